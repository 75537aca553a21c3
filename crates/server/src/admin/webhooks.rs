//! Metrics of the webhooks that are told of objects; none where there are none.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use serde_json::Value;

use super::labels::{self, Field};

/// By webhook.
pub const OF_WEBHOOKS: [Field; 7] = [
    ("delivered", "webhook_delivered", "Events that the webhook has taken", MetricType::Counter),
    ("failures", "webhook_failures", "Requests to the webhook that failed", MetricType::Counter),
    ("dropped", "webhook_dropped", "Events that were given up because too many waited", MetricType::Counter),
    ("dead", "webhook_dead", "Events that were put among the dead letters", MetricType::Counter),
    ("waiting", "webhook_waiting", "Events in the queue", MetricType::Gauge),
    ("retrying", "webhook_retrying", "Events that were posted in vain, and are posted again", MetricType::Gauge),
    ("failing", "webhook_failing", "Whether the last request failed", MetricType::Gauge),
];

/// Puts them into the answer.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, status: &Value) -> Result<(), fmt::Error> {
    labels::encode(encoder, &status["webhooks"], &OF_WEBHOOKS, &[("webhook", "name")])
}

#[cfg(test)]
mod tests {
    use crate::admin::collect::testing::metrics;

    #[test]
    fn each_webhook_has_its_own() {
        let hook = serde_json::json!({"name": "app", "delivered": 5, "failures": 2, "dropped": 1, "failing": true,
            "dead": 3, "waiting": 9, "retrying": 4});
        let out = metrics(serde_json::json!({"webhooks": [hook]}));
        for line in [
            "steadfast_webhook_delivered_total{webhook=\"app\"} 5.0",
            "steadfast_webhook_failures_total{webhook=\"app\"} 2.0",
            "steadfast_webhook_dropped_total{webhook=\"app\"} 1.0",
            "steadfast_webhook_dead_total{webhook=\"app\"} 3.0",
            "steadfast_webhook_waiting{webhook=\"app\"} 9.0",
            "steadfast_webhook_retrying{webhook=\"app\"} 4.0",
            "steadfast_webhook_failing{webhook=\"app\"} 1.0",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is missing in:\n{out}");
        }
        assert!(!metrics(serde_json::json!({"webhooks": []})).contains("webhook_"));
    }
}

//! Metrics of webhooks; none without webhooks.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use serde_json::Value;

use super::labels::{self, Field};

/// Metrics by webhook.
pub const OF_WEBHOOKS: [Field; 7] = [
    ("delivered", "webhook_delivered", "Events accepted by the webhook", MetricType::Counter),
    ("failures", "webhook_failures", "Requests to the webhook that failed", MetricType::Counter),
    ("dropped", "webhook_dropped", "Events dropped because the queue was full", MetricType::Counter),
    ("dead", "webhook_dead", "Events that became dead letters", MetricType::Counter),
    ("waiting", "webhook_waiting", "Events in the queue", MetricType::Gauge),
    ("retrying", "webhook_retrying", "Queued events that failed and are retried", MetricType::Gauge),
    ("failing", "webhook_failing", "1 if the last request failed", MetricType::Gauge),
];

/// Encodes the metrics.
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

//! Metrics of the live port with labels, taken from the status; none without a live port.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;

use super::labels::{self, Field};

/// Sessions by encoding and transport: name of the metric, help.
pub const SESSIONS: (&str, &str) = ("live_sessions", "Sessions, by encoding and transport");

/// Counters by code: field of the status, name of the metric, help.
pub const BY_CODE: [(&str, &str, &str); 2] = [
    ("ended", "live_ended_sessions", "Sessions ended, by close code; 0: ended by the client or the network"),
    ("refused", "live_refused_commands", "Commands refused, by error code"),
];

/// Metrics of proxies to a back end, by event and name.
pub const OF_PROXIES: [Field; 4] = [
    ("requests", "live_proxy_requests", "Requests to the back end, by event and proxy", MetricType::Counter),
    ("failures", "live_proxy_failures", "Requests to the back end that failed", MetricType::Counter),
    ("refused", "live_proxy_refused", "Events refused because the proxy was at its limit", MetricType::Counter),
    ("in_flight", "live_proxy_in_flight", "Requests to the back end in progress", MetricType::Gauge),
];

/// Encodes the metrics.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, status: &Value) -> Result<(), fmt::Error> {
    let live = &status["live"];
    let Some(kinds) = live["sessions_by"].as_array() else { return Ok(()) };
    let mut family = encoder.encode_descriptor(SESSIONS.0, SESSIONS.1, None, MetricType::Gauge)?;
    for kind in kinds {
        let text = |field: &str| kind[field].as_str().unwrap_or("?").to_owned();
        let labels = [("encoding", text("encoding")), ("transport", text("transport"))];
        let sessions = kind["sessions"].as_f64().unwrap_or_default();
        ConstGauge::new(sessions).encode(family.encode_family(&labels)?)?;
    }
    for (field, name, help) in BY_CODE {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for counted in live[field].as_array().into_iter().flatten() {
            let labels = [("code", counted["code"].to_string())];
            let count = counted["count"].as_f64().unwrap_or_default();
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    labels::encode(encoder, &live["proxies"], &OF_PROXIES, &[("event", "event"), ("proxy", "proxy")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::cluster::OF_LINKS;
    use crate::admin::collect::testing::metrics;
    use crate::admin::edge::OF_EDGE_BUCKETS;
    use crate::admin::table::TABLE;
    use crate::admin::webhooks::OF_WEBHOOKS;

    #[test]
    fn sessions_and_codes_have_labels() {
        let out = metrics(serde_json::json!({"live": {
            "sessions_by": [{"encoding": "json", "transport": "websocket", "sessions": 3}],
            "ended": [{"code": 0, "count": 5}, {"code": 3008, "count": 2}], "refused": [{"code": 111, "count": 4}],
            "publications": 7, "queued_bytes": 8,
            "proxies": [{"event": "rpc", "proxy": "default", "requests": 9, "failures": 2, "refused": 1, "in_flight": 3}],
        }}));
        for line in [
            "steadfast_live_sessions{encoding=\"json\",transport=\"websocket\"} 3.0",
            "steadfast_live_ended_sessions_total{code=\"0\"} 5.0",
            "steadfast_live_ended_sessions_total{code=\"3008\"} 2.0",
            "steadfast_live_refused_commands_total{code=\"111\"} 4.0",
            "steadfast_live_proxy_requests_total{event=\"rpc\",proxy=\"default\"} 9.0",
            "steadfast_live_proxy_failures_total{event=\"rpc\",proxy=\"default\"} 2.0",
            "steadfast_live_proxy_refused_total{event=\"rpc\",proxy=\"default\"} 1.0",
            "steadfast_live_proxy_in_flight{event=\"rpc\",proxy=\"default\"} 3.0",
            "steadfast_live_publications_total 7.0",
            "steadfast_live_queued_bytes 8.0",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is missing in:\n{out}");
        }
        assert!(!metrics(serde_json::json!({"ready": true})).contains("live_"), "none without a live port");
    }

    #[test]
    fn no_name_is_used_twice() {
        let mut names: Vec<&str> = TABLE.iter().map(|m| m.name).collect();
        names.push(SESSIONS.0);
        names.extend(BY_CODE.iter().map(|(_, name, _)| *name));
        let labelled = OF_PROXIES.iter().chain(&OF_WEBHOOKS).chain(&OF_EDGE_BUCKETS).chain(&OF_LINKS);
        names.extend(labelled.map(|(_, name, ..)| *name));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}

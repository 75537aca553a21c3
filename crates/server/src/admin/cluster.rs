//! Metrics of the links between nodes; none without a cluster.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType::{Counter, Gauge};
use serde_json::{Value, json};

use super::labels::{self, Field};

/// Metrics by node.
pub const OF_LINKS: [Field; 5] = [
    ("up", "cluster_link_up", "1 while the link to the node is up", Gauge),
    ("established", "cluster_links_established", "Links to the node that were established", Counter),
    ("frames_received", "cluster_frames_received", "Frames received from the node", Counter),
    ("outbox_bytes", "cluster_outbox_bytes", "Bytes that wait to be sent to the node", Gauge),
    ("round_trip_s", "cluster_round_trip_seconds", "The last round trip; 0 before the first", Gauge),
];

/// Encodes the metrics.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, status: &Value) -> Result<(), fmt::Error> {
    let nodes = status["cluster"]["nodes"].as_array().into_iter().flatten();
    let link = |node: &Value| {
        let mut link = node.get("link").filter(|link| link.is_object())?.clone();
        link["node"] = node["name"].clone();
        link["up"] = json!(link["state"] == "up");
        link["round_trip_s"] = json!(link["round_trip_us"].as_f64().unwrap_or_default() / 1e6);
        Some(link)
    };
    labels::encode(encoder, &nodes.filter_map(link).collect(), &OF_LINKS, &[("node", "node")])
}

#[cfg(test)]
mod tests {
    use crate::admin::collect::testing::metrics;

    #[test]
    fn each_link_has_its_own() {
        let out = metrics(serde_json::json!({"cluster": {"name": "a", "outbox_bytes_max": 64, "nodes": [
            {"name": "a", "link": null},
            {"name": "b", "link": {"state": "up", "established": 2, "frames_received": 9, "outbox_bytes": 7,
                "round_trip_us": 1500}},
            {"name": "c", "link": {"state": "down", "established": 0, "round_trip_us": null}},
        ]}}));
        for line in [
            "steadfast_cluster_link_up{node=\"b\"} 1.0",
            "steadfast_cluster_link_up{node=\"c\"} 0.0",
            "steadfast_cluster_links_established_total{node=\"b\"} 2.0",
            "steadfast_cluster_frames_received_total{node=\"b\"} 9.0",
            "steadfast_cluster_outbox_bytes{node=\"b\"} 7.0",
            "steadfast_cluster_round_trip_seconds{node=\"b\"} 0.0015",
            "steadfast_cluster_round_trip_seconds{node=\"c\"} 0.0",
            "steadfast_cluster_outbox_limit_bytes 64.0",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is missing in:\n{out}");
        }
        assert!(!out.contains("node=\"a\""), "no link to itself");
        assert!(!metrics(serde_json::json!({})).contains("cluster_"));
    }
}

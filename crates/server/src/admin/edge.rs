//! Metrics of buckets with an origin; none without such a bucket.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType::{Counter, Gauge};
use serde_json::Value;

use super::labels::{self, Field};

/// Metrics by bucket.
pub const OF_EDGE_BUCKETS: [Field; 16] = [
    ("used_bytes", "edge_used_bytes", "Bytes of cached objects and of fills", Gauge),
    ("space_bytes", "edge_space_bytes", "Bound on the bytes of cached objects and of fills", Gauge),
    ("fills", "edge_keys_fetched", "Keys with a running fill or question to the origin", Gauge),
    ("hits", "edge_hits", "GETs answered from the store", Counter),
    ("stale", "edge_stale_hits", "GETs answered from the store with a stale object", Counter),
    ("revalidated", "edge_revalidated_hits", "GETs answered after the origin confirmed the stored object", Counter),
    ("misses", "edge_misses", "GETs that began to fetch an object", Counter),
    ("collapsed", "edge_collapsed_misses", "GETs that joined a running fill", Counter),
    ("passed", "edge_passed_through", "GETs passed through to the origin", Counter),
    ("served_bytes", "edge_served_bytes", "Bytes of answers to GETs", Counter),
    ("origin_bytes", "edge_origin_bytes", "Bytes received from the origin", Counter),
    ("origin_requests", "edge_origin_requests", "Requests to the origin", Counter),
    ("origin_errors", "edge_origin_errors", "Requests that the origin refused or answered wrongly", Counter),
    ("fills_stored", "edge_fills_stored", "Objects fetched and stored", Counter),
    ("evictions", "edge_evictions", "Objects evicted", Counter),
    ("evicted_bytes", "edge_evicted_bytes", "Bytes of evicted objects", Counter),
];

/// Encodes the metrics.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, status: &Value) -> Result<(), fmt::Error> {
    labels::encode(encoder, &status["edge"]["buckets"], &OF_EDGE_BUCKETS, &[("bucket", "bucket")])
}

#[cfg(test)]
mod tests {
    use crate::admin::collect::testing::metrics;

    #[test]
    fn each_bucket_has_its_own() {
        let bucket =
            serde_json::json!({"bucket": "media", "used_bytes": 7, "space_bytes": 9, "hits": 3, "evictions": 2});
        let out = metrics(serde_json::json!({"edge": {"buckets": [bucket]}}));
        for line in [
            "steadfast_edge_used_bytes{bucket=\"media\"} 7.0",
            "steadfast_edge_space_bytes{bucket=\"media\"} 9.0",
            "steadfast_edge_hits_total{bucket=\"media\"} 3.0",
            "steadfast_edge_evictions_total{bucket=\"media\"} 2.0",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is missing in:\n{out}");
        }
        assert!(!metrics(serde_json::json!({})).contains("edge_"));
    }
}

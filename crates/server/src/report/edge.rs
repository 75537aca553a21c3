//! Buckets with an origin, in words.

use serde_json::Value;

use crate::config::human_size;

/// Number of a field.
fn number(bucket: &Value, field: &str) -> u64 {
    bucket[field].as_u64().unwrap_or_default()
}

/// One bucket of the edge's status.
pub fn edge_bucket(bucket: &Value) -> String {
    let n = |field| number(bucket, field);
    let hits = n("hits") + n("stale") + n("revalidated");
    let all = hits + n("misses") + n("collapsed") + n("passed");
    let share = if all == 0 { String::new() } else { format!(" ({:.1} %)", 100.0 * hits as f64 / all as f64) };
    let space = bucket["space_bytes"].as_u64().map(|bytes| format!(" of {}", human_size(bytes))).unwrap_or_default();
    format!(
        "{}: {}{space}, {hits} hits of {all} GETs{share}, {} from the origin, {} served, {} evictions, {} errors of the \
         origin, {} keys being fetched",
        bucket["bucket"].as_str().unwrap_or("?"),
        human_size(n("used_bytes")),
        human_size(n("origin_bytes")),
        human_size(n("served_bytes")),
        n("evictions"),
        n("origin_errors"),
        n("fills"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_in_words() {
        let bucket = serde_json::json!({"bucket": "media", "used_bytes": 1 << 30, "space_bytes": 4u64 << 30, "hits": 90,
            "stale": 5, "revalidated": 4, "misses": 1, "origin_bytes": 2048, "served_bytes": 3 << 20, "evictions": 7,
            "origin_errors": 2, "fills": 1});
        assert_eq!(
            edge_bucket(&bucket),
            "media: 1 GiB of 4 GiB, 99 hits of 100 GETs (99.0 %), 2 KiB from the origin, 3 MiB served, 7 evictions, \
             2 errors of the origin, 1 keys being fetched"
        );
        assert!(edge_bucket(&serde_json::json!({"bucket": "new"})).starts_with("new: 0 B, 0 hits of 0 GETs, "));
    }
}

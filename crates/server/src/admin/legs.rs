//! Metrics of the devices of each leg, taken from the status: bytes, and latencies of requests.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use serde_json::Value;

use super::collect::{Counted, MICROSECONDS};

/// A histogram: JSON pointer into a row of the status, name of the metric, help.
pub const HISTOGRAMS: [(&str, &str, &str); 3] = [
    (
        "/latency/read_us",
        "disk_leg_read_seconds",
        "Duration of reads from their submission to the device; by disk, leg and member",
    ),
    ("/latency/write_us", "disk_leg_write_seconds", "Duration of writes to the device, without flushes"),
    ("/latency/flush_us", "disk_leg_flush_seconds", "Duration of flushes of the device"),
];

/// A counter, in the same form.
pub const COUNTERS: [(&str, &str, &str); 2] = [
    ("/stats/read_bytes", "disk_leg_read_bytes", "Bytes read from the device"),
    ("/stats/write_bytes", "disk_leg_written_bytes", "Bytes written to the device"),
];

/// The labels: the disk of the pool, its leg and the device of the leg.
fn labels(row: &Value) -> [(&'static str, &str); 3] {
    [("disk", "pool_disk"), ("leg", "role"), ("member", "path")]
        .map(|(label, field)| (label, row[field].as_str().unwrap_or("?")))
}

/// Encodes the metrics.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, rows: &[&Value]) -> Result<(), fmt::Error> {
    // A device that is missing or not measured has none.
    let measured: Vec<&Value> = rows.iter().copied().filter(|row| row["latency"].is_object()).collect();
    if measured.is_empty() {
        return Ok(());
    }
    for (path, name, help) in HISTOGRAMS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for row in &measured {
            let Some(Counted { sum, count, buckets }) =
                row.pointer(path).and_then(|value| Counted::of(value, MICROSECONDS))
            else {
                continue;
            };
            let labels = labels(row);
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
    }
    for (path, name, help) in COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for row in &measured {
            let Some(value) = row.pointer(path).and_then(Value::as_f64) else { continue };
            let labels = labels(row);
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::collect::testing::metrics;
    use crate::admin::table::TABLE;

    #[test]
    fn each_device_of_a_leg_has_its_own() {
        let row = |role: &str, path: &str, buckets: &[u64]| {
            let sum: u64 = buckets.iter().zip(0..).map(|(count, i)| count << i).sum();
            serde_json::json!({"pool_disk": "/dev/a", "role": role, "path": path, "stats": {"read_bytes": 8192, "write_bytes": 7},
                "latency": {"read_us": {"buckets": buckets, "count": 3, "sum": sum, "max": 9},
                            "write_us": {"buckets": [], "count": 0, "sum": 0, "max": 0},
                            "flush_us": {"buckets": [0, 1], "count": 1, "sum": 2, "max": 2}}})
        };
        let missing = serde_json::json!({"pool_disk": "/dev/c", "role": "durable", "path": "/dev/c", "stats": null, "latency": null});
        let out = metrics(serde_json::json!({"disks": [
            row("durable", "/dev/a", &[0, 0, 0, 0, 0, 0, 2, 1]), row("fast", "/dev/b", &[0, 1]), missing,
        ]}));
        let of = |leg: &str, member: &str| format!("disk=\"/dev/a\",leg=\"{leg}\",member=\"{member}\"");
        let (durable, fast) = (of("durable", "/dev/a"), of("fast", "/dev/b"));
        for line in [
            format!("steadfast_disk_leg_read_seconds_bucket{{le=\"0.000063\",{durable}}} 0"),
            format!("steadfast_disk_leg_read_seconds_bucket{{le=\"0.000127\",{durable}}} 2"),
            format!("steadfast_disk_leg_read_seconds_bucket{{le=\"+Inf\",{durable}}} 3"),
            format!("steadfast_disk_leg_read_seconds_count{{{durable}}} 3"),
            format!("steadfast_disk_leg_read_seconds_sum{{{durable}}} 0.000256"),
            format!("steadfast_disk_leg_read_seconds_count{{{fast}}} 1"),
            format!("steadfast_disk_leg_write_seconds_bucket{{le=\"+Inf\",{fast}}} 0"),
            format!("steadfast_disk_leg_flush_seconds_count{{{fast}}} 1"),
            format!("steadfast_disk_leg_read_bytes_total{{{durable}}} 8192.0"),
            format!("steadfast_disk_leg_written_bytes_total{{{fast}}} 7.0"),
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is missing in:\n{out}");
        }
        assert!(!out.contains("/dev/c"), "a missing device has no metrics");
        assert!(!metrics(serde_json::json!({"disks": []})).contains("disk_leg"));
    }

    #[test]
    fn no_name_is_used_twice() {
        let mut names: Vec<&str> = TABLE.iter().map(|metric| metric.name).collect();
        names.extend(HISTOGRAMS.iter().chain(&COUNTERS).map(|(_, name, _)| *name));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}

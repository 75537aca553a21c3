//! Metrics taken from the status at each scrape, so that the two never differ.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;

use super::table::{Kind, Metric, TABLE};
use super::{Source, block, cluster, edge, labels, legs, live, superdisk, webhooks};

/// Adds the status of `source` to a registry.
pub struct StatusCollector {
    source: Arc<dyn Source>,
    table: &'static [Metric],
}

impl StatusCollector {
    /// A collector of the metrics in [`TABLE`].
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self { source, table: TABLE }
    }
}

impl fmt::Debug for StatusCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusCollector")
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(set) => Some(f64::from(u8::from(*set))),
        value => value.as_f64(),
    }
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.source.status();
        for metric in self.table {
            // A starting server lacks some values; skip their metrics.
            if let Some(value) = status.pointer(metric.path) {
                encode(&mut encoder, metric, value)?;
            }
        }
        legs::encode(&mut encoder, &with_block(&status, "disks"))?;
        superdisk::encode(&mut encoder, &with_block(&status, "superdisks"))?;
        block::encode(&mut encoder, &status)?;
        live::encode(&mut encoder, &status)?;
        webhooks::encode(&mut encoder, &status)?;
        edge::encode(&mut encoder, &status)?;
        cluster::encode(&mut encoder, &status)?;
        labels::encode(&mut encoder, &status["slow_requests"], &[SLOW], &[("door", "door")])?;
        bounds(&mut encoder, &status)
    }
}

/// The rows of a list of the status, of the pool and of block devices.
fn with_block<'a>(status: &'a Value, list: &str) -> Vec<&'a Value> {
    let devices = status["block"].as_array().into_iter().flatten();
    let lists = std::iter::once(status).chain(devices).filter_map(|of| of[list].as_array());
    lists.flatten().collect()
}

fn encode(encoder: &mut DescriptorEncoder<'_>, metric: &Metric, value: &Value) -> Result<(), fmt::Error> {
    match metric.kind {
        Kind::Gauge | Kind::Count | Kind::Timestamp => {
            let value = match metric.kind {
                Kind::Count => value.as_array().map(|list| list.len() as f64),
                // 0 if it has not happened yet.
                Kind::Timestamp => Some(number(value).unwrap_or_default() / 1e3),
                _ => number(value),
            };
            let Some(value) = value else { return Ok(()) };
            ConstGauge::new(value).encode(encoder.encode_descriptor(
                metric.name,
                metric.help,
                None,
                MetricType::Gauge,
            )?)
        }
        Kind::Counter | Kind::Seconds => {
            let Some(value) = number(value) else { return Ok(()) };
            let value = if metric.kind == Kind::Seconds { value / 1e6 } else { value };
            let to = encoder.encode_descriptor(metric.name, metric.help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(to)
        }
        Kind::Histogram | Kind::SecondsHistogram => {
            let unit = if metric.kind == Kind::Histogram { 1.0 } else { MICROSECONDS };
            let Some(Counted { sum, count, buckets }) = Counted::of(value, unit) else { return Ok(()) };
            let mut to = encoder.encode_descriptor(metric.name, metric.help, None, MetricType::Histogram)?;
            to.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}

/// Slow requests by door.
const SLOW: labels::Field = (
    "count",
    "slow_requests",
    "Requests that took limits.slow_request or longer, without the time of their clients; by door",
    MetricType::Counter,
);

/// Microseconds in a second.
pub(super) const MICROSECONDS: f64 = 1e6;

/// Buckets of a histogram before the last, unbounded one: up to 134 seconds.
const BUCKETS: usize = 27;

/// A histogram of the status in the form of a metric.
pub(super) struct Counted {
    pub(super) sum: f64,
    pub(super) count: u64,
    pub(super) buckets: Vec<(f64, u64)>,
}

impl Counted {
    /// Divides sizes by `unit`. The buckets are always the same, so that sums over several disks or
    /// servers are correct.
    pub(super) fn of(value: &Value, unit: f64) -> Option<Self> {
        let counts: Vec<u64> = value["buckets"].as_array()?.iter().filter_map(Value::as_u64).collect();
        // Bucket `i` holds whole numbers below 2^(i+1).
        let mut buckets: Vec<(f64, u64)> = (0..BUCKETS)
            .map(|i| ((2f64.powi(i as i32 + 1) - 1.0) / unit, counts.get(i).copied().unwrap_or_default()))
            .collect();
        buckets.push((f64::INFINITY, counts.iter().skip(BUCKETS).sum()));
        Some(Self { sum: number(&value["sum"]).unwrap_or_default() / unit, count: counts.iter().sum(), buckets })
    }
}

/// A field of a bound: its name, the name of the metric, whether it is a counter, help.
const BOUND_FIELDS: [(&str, &str, bool, &str); 6] = [
    ("limit", "bound_limit", false, "The limit, in its own unit (bytes of a budget, requests of a gate)"),
    ("used", "bound_used", false, "The part of the limit in use"),
    ("peak", "bound_peak", false, "The peak of the part in use since the start"),
    ("waiting", "bound_waiting", false, "Requests that wait for the limit"),
    ("refused", "bound_refused", true, "Requests refused at the limit"),
    ("granted", "bound_granted", true, "Requests granted"),
];

/// The bounds of the whole server, each with its name as a label.
fn bounds(encoder: &mut DescriptorEncoder<'_>, status: &Value) -> Result<(), fmt::Error> {
    let Some(all) = status["bounds"].as_array() else { return Ok(()) };
    for (field, name, counter, help) in BOUND_FIELDS {
        let kind = if counter { MetricType::Counter } else { MetricType::Gauge };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for bound in all {
            let (Some(label), Some(value)) = (bound["name"].as_str(), number(&bound[field])) else { continue };
            let labels = [("bound", label)];
            let to = family.encode_family(&labels)?;
            if counter {
                ConstCounter::new(value).encode(to)?;
            } else {
                ConstGauge::new(value).encode(to)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod testing {
    //! The metrics of a given status.
    use prometheus_client::registry::Registry;

    use super::*;

    struct Fixed(Value);

    impl Source for Fixed {
        fn not_ready(&self) -> Option<String> {
            None
        }

        fn warnings(&self) -> Vec<String> {
            Vec::new()
        }

        fn status(&self) -> Value {
            self.0.clone()
        }
    }

    /// The metrics of a server with this status, as text.
    pub fn metrics(status: Value) -> String {
        let mut registry = Registry::with_prefix("steadfast");
        registry.register_collector(Box::new(StatusCollector::new(Arc::new(Fixed(status)))));
        let mut out = String::new();
        prometheus_client::encoding::text::encode(&mut out, &registry).expect("encoded");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::testing::metrics;
    use super::*;

    #[test]
    fn the_status_becomes_metrics() {
        let out = metrics(serde_json::json!({
            "ready": true,
            "cpu_us": 1_500_000,
            "store": {"log": {"group_size": {"buckets": [1, 0, 3], "count": 4, "sum": 20},
                              "flush_us": {"buckets": [0, 2], "count": 2, "sum": 5},
                              "compaction": {"stuck": [{}, {}], "recycled": 3},
                              "scrub": {"last_pass_ms": 1500, "running": false}}},
            "slow_requests": [{"door": "live", "bound_ms": 1000, "count": 6}],
            "bounds": [{"name": "s3_requests", "limit": 7, "used": 2, "peak": 3, "waiting": 0, "refused": 9, "granted": 4}],
        }));
        for line in [
            "steadfast_ready 1.0",
            "steadfast_process_cpu_seconds_total 1.5",
            "steadfast_log_group_size_bucket{le=\"1.0\"} 1",
            "steadfast_log_group_size_bucket{le=\"7.0\"} 4",
            "steadfast_log_group_size_bucket{le=\"+Inf\"} 4",
            "steadfast_log_flush_seconds_bucket{le=\"0.000127\"} 2",
            "steadfast_log_flush_seconds_bucket{le=\"134.217727\"} 2",
            "steadfast_log_group_size_sum 20.0",
            "steadfast_log_flush_seconds_count 2",
            "steadfast_compaction_stuck_extents 2.0",
            "steadfast_compaction_recycled_extents_total 3.0",
            "steadfast_scrub_last_pass_seconds 1.5",
            "steadfast_scrub_running 0.0",
            "steadfast_slow_requests_total{door=\"live\"} 6.0",
            "steadfast_bound_used{bound=\"s3_requests\"} 2.0",
            "steadfast_bound_refused_total{bound=\"s3_requests\"} 9.0",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is missing in:\n{out}");
        }
        assert!(!out.contains("disk_reads"), "unknown values have no metric");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = TABLE.iter().map(|m| m.name).collect();
        names.extend(BOUND_FIELDS.iter().map(|(_, name, ..)| *name));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}

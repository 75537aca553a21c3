//! Metrics of super-disks, taken from the status; none without a super-disk.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;

/// A number of a super-disk's status: field, name of the metric, whether it is a counter, scale,
/// help.
type Number = (&'static str, &'static str, bool, f64, &'static str);

/// Metrics without a further label.
pub const NUMBERS: [Number; 22] = [
    ("degraded", "superdisk_degraded", false, 1.0, "1 when a fast leg is configured and not in use"),
    ("generation", "superdisk_generation", false, 1.0, "Times that the pair was opened with a fast leg"),
    ("region_bytes", "superdisk_region_bytes", false, 1.0, "Size of a region"),
    ("regions_total", "superdisk_regions", false, 1.0, "Regions with data that fit the fast leg"),
    ("regions_clean", "superdisk_regions_clean", false, 1.0, "Regions fully readable from the fast leg"),
    ("regions_to_rebuild", "superdisk_regions_to_rebuild", false, 1.0, "Regions waiting to be copied to the fast leg"),
    ("regions_quarantined", "superdisk_regions_quarantined", false, 1.0, "Regions quarantined after repeated failures"),
    ("dirty_bytes", "superdisk_dirty_bytes", false, 1.0, "Bytes of regions that a crash now would have copied"),
    (
        "dirty_bytes_max",
        "superdisk_dirty_limit_bytes",
        false,
        1.0,
        "Limit of these bytes while both legs hold the same data",
    ),
    ("rebuilt_bytes", "superdisk_rebuilt_bytes", true, 1.0, "Bytes copied to the fast leg in the background"),
    ("rebuild_bytes_s", "superdisk_rebuild_bytes_per_second", false, 1.0, "Recent rate of that copying"),
    ("rebuild_bytes_s_max", "superdisk_rebuild_limit_bytes_per_second", false, 1.0, "Limit of that rate; 0 for none"),
    (
        "reads_hedged",
        "superdisk_hedged_reads",
        true,
        1.0,
        "Reads also sent to the durable leg because the fast leg was late",
    ),
    ("hedges_won", "superdisk_hedges_won", true, 1.0, "Hedged reads that the durable leg answered first"),
    (
        "hedge_us",
        "superdisk_hedge_seconds",
        false,
        1e-6,
        "Delay after which a small read is also sent to the durable leg",
    ),
    ("fast_overdue", "superdisk_fast_overdue", false, 1.0, "Overdue reads of the fast leg"),
    ("heal_failures", "superdisk_heal_failures", true, 1.0, "Failed repairs of either leg"),
    ("fast_writes", "superdisk_fast_writes", true, 1.0, "Writes that went to both legs"),
    ("skipped_fast_writes", "superdisk_skipped_fast_writes", true, 1.0, "Writes that the fast leg missed"),
    (
        "fast_reopened",
        "superdisk_fast_reopened",
        true,
        1.0,
        "Times that the fast leg was reopened after a failed flush or a hang",
    ),
    ("pending_bytes", "superdisk_pending_bytes", false, 1.0, "Bytes being written to the fast leg"),
    ("pending_bytes_max", "superdisk_pending_limit_bytes", false, 1.0, "Limit of these bytes"),
];

/// A counter of each leg: name of the metric, help, and the fields of the legs.
type ByLeg = (&'static str, &'static str, [(&'static str, &'static str); 2]);

/// Metrics of each leg, with the label `leg`.
pub const BY_LEG: [ByLeg; 3] = [
    ("superdisk_reads", "Reads that the leg answered", [("fast", "reads_fast"), ("durable", "reads_durable")]),
    ("superdisk_errors", "Errors of the leg", [("fast", "fast_errors"), ("durable", "durable_errors")]),
    (
        "superdisk_healed",
        "Damaged ranges of the leg that were healed",
        [("fast", "healed_fast"), ("durable", "healed_durable")],
    ),
];

/// The states of a fast leg, for the label `state`.
pub const STATES: [&str; 6] = ["clean", "rebuilding", "stale", "missing", "foreign", "failed"];

/// Encodes the metrics, each with the disk as a label.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, all: &[&Value]) -> Result<(), fmt::Error> {
    if all.is_empty() {
        return Ok(());
    }
    let disk = |superdisk: &Value| superdisk["disk"].as_str().unwrap_or("?").to_owned();
    let number = |superdisk: &Value, field: &str| match &superdisk[field] {
        Value::Bool(set) => Some(f64::from(u8::from(*set))),
        value => value.as_f64(),
    };
    for (field, name, counter, scale, help) in NUMBERS {
        let kind = if counter { MetricType::Counter } else { MetricType::Gauge };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for superdisk in all {
            let Some(value) = number(superdisk, field).map(|value| value * scale) else { continue };
            let labels = [("disk", disk(superdisk))];
            let to = family.encode_family(&labels)?;
            if counter {
                ConstCounter::new(value).encode(to)?;
            } else {
                ConstGauge::new(value).encode(to)?;
            }
        }
    }
    for (name, help, legs) in BY_LEG {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for superdisk in all {
            for (leg, field) in legs {
                let Some(value) = number(superdisk, field) else { continue };
                let labels = [("disk", disk(superdisk)), ("leg", leg.to_owned())];
                ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    let help = "1 for the present state of the fast leg, 0 for the others";
    let mut family = encoder.encode_descriptor("superdisk_fast_state", help, None, MetricType::Gauge)?;
    for superdisk in all {
        for state in STATES {
            let now = superdisk["fast"]["state"].as_str() == Some(state);
            let labels = [("disk", disk(superdisk)), ("state", state.to_owned())];
            ConstGauge::new(f64::from(u8::from(now))).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "1 if the content of the fast leg was refused at the last opening";
    let mut family = encoder.encode_descriptor("superdisk_fast_refused", help, None, MetricType::Gauge)?;
    for superdisk in all {
        let refused = superdisk["refused"].is_string();
        ConstGauge::new(f64::from(u8::from(refused))).encode(family.encode_family(&[("disk", disk(superdisk))])?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::collect::testing::metrics;
    use crate::admin::table::TABLE;

    #[test]
    fn a_super_disk_has_metrics_by_leg_and_state() {
        let out = metrics(
            serde_json::json!({"superdisks": [{"disk": "/dev/a", "fast": {"state": "rebuilding"}, "degraded": true, "hedge_us": 2500,
            "reads_fast": 9, "reads_durable": 2, "healed_fast": 3, "healed_durable": 0, "heal_failures": 1},
            {"disk": "/dev/b", "fast": {"state": "clean"}, "degraded": false, "reads_fast": 4}]}),
        );
        for line in [
            "steadfast_superdisk_degraded{disk=\"/dev/a\"} 1.0",
            "steadfast_superdisk_degraded{disk=\"/dev/b\"} 0.0",
            "steadfast_superdisk_hedge_seconds{disk=\"/dev/a\"} 0.0025",
            "steadfast_superdisk_reads_total{disk=\"/dev/a\",leg=\"fast\"} 9.0",
            "steadfast_superdisk_reads_total{disk=\"/dev/b\",leg=\"fast\"} 4.0",
            "steadfast_superdisk_reads_total{disk=\"/dev/a\",leg=\"durable\"} 2.0",
            "steadfast_superdisk_healed_total{disk=\"/dev/a\",leg=\"fast\"} 3.0",
            "steadfast_superdisk_heal_failures_total{disk=\"/dev/a\"} 1.0",
            "steadfast_superdisk_fast_state{disk=\"/dev/a\",state=\"rebuilding\"} 1.0",
            "steadfast_superdisk_fast_state{disk=\"/dev/a\",state=\"clean\"} 0.0",
            "steadfast_superdisk_fast_state{disk=\"/dev/b\",state=\"clean\"} 1.0",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is missing in:\n{out}");
        }
        assert!(!metrics(serde_json::json!({"ready": true})).contains("superdisk"));
    }

    #[test]
    fn every_number_of_the_status_is_a_metric_and_no_name_is_used_twice() {
        let mut names: Vec<&str> = TABLE.iter().map(|m| m.name).collect();
        names.extend(NUMBERS.iter().map(|n| n.1));
        names.extend(BY_LEG.iter().map(|m| m.0));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}

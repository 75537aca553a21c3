//! Metrics that are read off the status when somebody asks, so that the two never differ.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;

use super::{Source, block, labels, legs, live, superdisk, webhooks};

/// How a value of the status becomes a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only goes up; the name gets `_total`.
    Counter,
    /// As a counter, from microseconds to seconds.
    Seconds,
    /// How long a list is, as a gauge.
    Count,
    /// As a gauge, from milliseconds since the Unix epoch to seconds.
    Timestamp,
    /// Counts by powers of two.
    Histogram,
    /// The same, from microseconds to seconds.
    SecondsHistogram,
}

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// Where in the status it is (a JSON pointer).
    pub path: &'static str,
    /// Its name, without `steadfast_`.
    pub name: &'static str,
    /// What it becomes.
    pub kind: Kind,
    /// What it says.
    pub help: &'static str,
}

const fn metric(path: &'static str, name: &'static str, kind: Kind, help: &'static str) -> Metric {
    Metric { path, name, kind, help }
}

/// Puts the status of `source` into a registry.
pub struct StatusCollector {
    source: Arc<dyn Source>,
    table: &'static [Metric],
}

impl StatusCollector {
    /// Of the metrics in [`TABLE`].
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
            // What the server does not have yet (it is starting) is left out.
            if let Some(value) = status.pointer(metric.path) {
                encode(&mut encoder, metric, value)?;
            }
        }
        legs::encode(&mut encoder, &with_block(&status, "disks"))?;
        superdisk::encode(&mut encoder, &with_block(&status, "superdisks"))?;
        block::encode(&mut encoder, &status)?;
        live::encode(&mut encoder, &status)?;
        webhooks::encode(&mut encoder, &status)?;
        labels::encode(&mut encoder, &status["slow_requests"], &[SLOW], &[("door", "door")])?;
        bounds(&mut encoder, &status)
    }
}

/// The rows of a list of the status: the pool's, and those of block devices.
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
                // Of what has not been yet: 0.
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

/// Of each door.
const SLOW: labels::Field = (
    "count",
    "slow_requests",
    "Requests that took limits.slow_request or longer, without what their clients took; by door",
    MetricType::Counter,
);

/// In a second.
pub(super) const MICROSECONDS: f64 = 1e6;

/// Buckets of a histogram before the one for all that is larger: of microseconds, up to 134 seconds.
const BUCKETS: usize = 27;

/// A histogram of the status, as a metric says it.
pub(super) struct Counted {
    pub(super) sum: f64,
    pub(super) count: u64,
    pub(super) buckets: Vec<(f64, u64)>,
}

impl Counted {
    /// Divides sizes by `unit`. There are always the same buckets: else sums over several disks or servers would be wrong.
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

/// A field of a bound, its metric's name, whether it is a counter, and what it says.
const BOUND_FIELDS: [(&str, &str, bool, &str); 6] = [
    ("limit", "bound_limit", false, "The bound, in its own unit (bytes of a budget, requests of a gate)"),
    ("used", "bound_used", false, "How much of the bound is taken"),
    ("peak", "bound_peak", false, "The most that was ever taken at a time"),
    ("waiting", "bound_waiting", false, "Callers that wait"),
    ("refused", "bound_refused", true, "Callers that were refused"),
    ("granted", "bound_granted", true, "Callers that were given what they asked for"),
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

use Kind::{Count, Counter, Gauge, Histogram, Seconds, SecondsHistogram, Timestamp};

/// All metrics that come from the status.
pub const TABLE: &[Metric] = &[
    metric("/ready", "ready", Gauge, "1 when the server takes requests, as /health/ready says"),
    metric("/uptime_s", "uptime_seconds", Gauge, "Since the start"),
    metric("/memory/resident_bytes", "process_resident_bytes", Gauge, "Memory of the process"),
    metric("/memory/resident_bytes_max", "process_resident_bytes_max", Gauge, "The most memory that it ever had"),
    metric("/cpu_us", "process_cpu_seconds", Seconds, "CPU time of the process"),
    metric("/s3/requests_in_flight", "s3_requests_in_flight", Gauge, "Requests that have begun and not ended"),
    metric("/connections/open", "connections_open", Gauge, "Connections to the S3 port"),
    metric("/connections/limit", "connections_limit", Gauge, "The bound on them"),
    metric("/connections/accepted", "connections_accepted", Counter, "Connections accepted"),
    metric("/connections/at_bound", "connections_at_bound", Counter, "Times that accepting waited for one to end"),
    metric("/connections/idle_closed", "connections_idle_closed", Counter, "Idle ones closed while the port was full"),
    metric("/connections/refused", "connections_refused", Counter, "Refused: their address had its share of the port"),
    metric("/connections/tls_failed", "connections_tls_failed", Counter, "TLS handshakes that failed"),
    metric("/disk/stats/reads", "disk_reads", Counter, "Reads from the disk"),
    metric("/disk/stats/read_bytes", "disk_read_bytes", Counter, "Bytes read from the disk"),
    metric("/disk/stats/writes", "disk_writes", Counter, "Writes to the disk"),
    metric("/disk/stats/write_bytes", "disk_written_bytes", Counter, "Bytes written to the disk"),
    metric("/disk/stats/flushes", "disk_flushes", Counter, "Flushes of the disk"),
    metric("/disk/stats/flush_us", "disk_flush_seconds", Seconds, "Time in flushes"),
    metric("/disk/stats/errors", "disk_errors", Counter, "Requests that the disk failed"),
    metric("/disk/stats/in_flight", "disk_in_flight", Gauge, "Requests given to the disk"),
    metric("/disk/stats/queue_depth", "disk_queue_depth", Gauge, "The bound on them"),
    metric("/disk/stats/pool_used_bytes", "disk_buffers_used_bytes", Gauge, "Buffers in use"),
    metric("/disk/stats/pool_limit_bytes", "disk_buffers_limit_bytes", Gauge, "The bound on them"),
    metric(
        "/disk/stats/oldest_read_ms",
        "disk_oldest_read_seconds",
        Timestamp,
        "For how long the oldest read has been with its disk",
    ),
    metric(
        "/disk/stats/oldest_write_ms",
        "disk_oldest_write_seconds",
        Timestamp,
        "For how long the oldest write, flush or growing has been with its disk",
    ),
    metric(
        "/disks_full",
        "disks_full",
        Gauge,
        "Disks that refused new data for want of space, and have taken none since",
    ),
    metric(
        "/spare_percent",
        "disks_free_percent",
        Gauge,
        "Share of the fullest disk that nothing needs; below live.publish_reserve clients cannot publish",
    ),
    metric("/disks_hanging", "disks_hanging", Gauge, "Disks that have not answered a request for 5 s or more"),
    metric("/disk/len_bytes", "pool_bytes", Gauge, "Size of the pool now"),
    metric("/disk/geometry/capacity_bytes", "pool_capacity_bytes", Gauge, "What the pool may grow to"),
    metric("/store/disks", "pool_disks", Count, "Disks of the pool"),
    metric(
        "/store/disks_in_trouble",
        "pool_disks_in_trouble",
        Gauge,
        "Disks of the pool that are missing or take no writes",
    ),
    metric("/store/moving/slots_done", "move_slots_done", Gauge, "Slots that have been moved to another disk"),
    metric("/store/moving/slots_total", "move_slots", Gauge, "Slots that are to be moved, or were last"),
    metric(
        "/store/moving/copied",
        "move_copied",
        Gauge,
        "Objects, uploads and parts copied by the move that goes on, or the last",
    ),
    metric("/store/moving/copied_bytes", "move_copied_bytes", Gauge, "Bytes of them"),
    metric("/store/moving/bytes_total", "move_bytes", Gauge, "About how many bytes there were to be moved"),
    metric("/store/moving/bytes_s_max", "move_bytes_per_second_max", Gauge, "The bound on bytes a second, 0 for none"),
    metric(
        "/store/moving/unmovable_total",
        "move_unmovable",
        Gauge,
        "Objects that cannot be read and stay where they are",
    ),
    metric("/store/buckets", "store_buckets", Gauge, "Buckets"),
    metric("/store/objects", "store_objects", Gauge, "Objects"),
    metric("/store/object_bytes", "store_object_bytes", Gauge, "Bytes of objects"),
    metric("/store/uploads", "store_uploads", Gauge, "Uploads in parts that are going on"),
    metric(
        "/store/events/forwarded",
        "events_forwarded",
        Counter,
        "Events of objects that were forwarded to channels and webhooks",
    ),
    metric("/store/channels", "store_channels", Gauge, "Channels in memory: those in use, and those used a moment ago"),
    metric(
        "/store/channel_tails/evicted",
        "store_channel_tails_evicted",
        Counter,
        "Times that a channel lost its newest publications in memory to the bound store_channel_tails",
    ),
    metric(
        "/store/publications_expired",
        "store_publications_expired",
        Counter,
        "Publications removed because their time was over",
    ),
    metric(
        "/store/clock/steps",
        "store_clock_steps",
        Counter,
        "Times that the wall clock stepped, or had been set while nothing ran",
    ),
    metric(
        "/store/clock/ahead_ms",
        "store_clock_ahead_seconds",
        Timestamp,
        "How far the wall clock is ahead of the time by which things are over; 0 while it is believed",
    ),
    metric("/store/pending_keys", "store_pending_keys", Gauge, "Keys with a change that is not yet confirmed"),
    metric("/store/applied_lsn", "store_applied_lsn", Gauge, "The last record in the index"),
    metric("/store/checkpoint_lsn", "store_checkpoint_lsn", Gauge, "The last record in the index on disk"),
    metric("/store/index/disk_bytes", "index_disk_bytes", Gauge, "The index's files"),
    metric("/store/index/memtable_bytes", "index_memory_bytes", Gauge, "Changes of the index that are only in memory"),
    metric("/store/index/tables", "index_tables", Gauge, "Files of the index"),
    metric(
        "/store/index/verified_bytes",
        "index_verified_bytes",
        Counter,
        "Bytes of the index's files that were verified",
    ),
    metric("/store/index/damaged", "index_damaged", Counter, "How often an index was found damaged"),
    metric("/store/index/rebuilt", "index_rebuilt", Counter, "How often an index was rebuilt in place"),
    metric("/store/index/rebuilding", "index_rebuilding", Gauge, "Indexes that cannot be read and are being rebuilt"),
    metric("/store/index/unsaved", "index_unsaved", Gauge, "Indexes that cannot be written"),
    metric("/store/cache/hits", "cache_hits", Counter, "Pieces that the read cache had"),
    metric("/store/cache/misses", "cache_misses", Counter, "Pieces that it had not"),
    metric("/store/cache/bytes", "cache_bytes", Gauge, "Bytes in the read cache"),
    metric("/store/cache/bytes_max", "cache_limit_bytes", Gauge, "The bound on them"),
    metric("/store/log/commits", "log_commits", Counter, "Batches committed"),
    metric("/store/log/records", "log_records", Counter, "Records committed"),
    metric("/store/log/frames", "log_frames", Counter, "Frames written, each with one flush"),
    metric("/store/log/frame_bytes", "log_frame_bytes", Counter, "Bytes of frames"),
    metric("/store/log/chunks", "log_chunks", Counter, "Chunks of large bodies written"),
    metric("/store/log/chunk_bytes", "log_chunk_bytes", Counter, "Bytes of them"),
    metric("/store/log/group_size", "log_group_size", Histogram, "Batches in a frame"),
    metric("/store/log/flush_us", "log_flush_seconds", SecondsHistogram, "A frame's write and flush"),
    metric("/store/log/pending_bytes", "log_pending_bytes", Gauge, "Bytes accepted and not yet on disk"),
    metric("/store/log/pending_bytes_max", "log_pending_limit_bytes", Gauge, "The bound on them"),
    metric("/store/log/accepted_lsn", "log_accepted_lsn", Gauge, "The last record accepted"),
    metric("/store/log/durable_lsn", "log_durable_lsn", Gauge, "All up to this record is durable"),
    metric("/store/log/extents/free", "log_extents_free", Gauge, "Extents that are free"),
    metric("/store/log/extents/growable", "log_extents_growable", Gauge, "Extents that could still be made"),
    metric("/store/log/extents/open_commit", "log_extents_open_commit", Gauge, "Commit extents being written"),
    metric("/store/log/extents/open_body", "log_extents_open_body", Gauge, "Body extents being written"),
    metric("/store/log/extents/sealed_commit", "log_extents_sealed_commit", Gauge, "Full commit extents"),
    metric("/store/log/extents/sealed_body", "log_extents_sealed_body", Gauge, "Full body extents"),
    metric("/store/log/extents/live_commit_bytes", "log_live_commit_bytes", Gauge, "Live bytes in commit extents"),
    metric("/store/log/extents/live_body_bytes", "log_live_body_bytes", Gauge, "Live bytes in body extents"),
    metric("/store/log/zones/open_zones", "log_zones_open", Gauge, "Zones being written, where the disk is zoned"),
    metric("/store/log/zones/open_zones_max", "log_zones_open_limit", Gauge, "The device's bound on them; 0 for none"),
    metric("/store/log/read_damage", "log_read_damage", Counter, "Reads that found damage or could not read"),
    metric("/store/log/reads_healed", "log_reads_healed", Counter, "Reads that succeeded on a second try"),
    metric(
        "/store/log/writes_elsewhere",
        "log_writes_elsewhere",
        Counter,
        "Writes that failed of what nobody had been promised, and went elsewhere or were done without",
    ),
    metric("/store/snapshots", "snapshots", Count, "Snapshots"),
    metric(
        "/store/log/extents/lost",
        "log_lost_extents",
        Gauge,
        "Extents that were in use, and of which nothing is there",
    ),
    metric("/store/log/extents/lost_bytes", "log_lost_bytes", Gauge, "Bytes in them that are still referred to"),
    metric("/store/log/extents/held", "snapshot_extents", Gauge, "Extents that snapshots keep"),
    metric("/store/log/extents/held_bytes", "snapshot_kept_bytes", Gauge, "Bytes that only snapshots keep"),
    metric("/store/log/compaction/recycled", "compaction_recycled_extents", Counter, "Extents won back"),
    metric(
        "/store/log/compaction/records_moved",
        "compaction_moved_records",
        Counter,
        "Records moved out of extents that were mostly dead",
    ),
    metric("/store/log/compaction/chunks_moved", "compaction_moved_chunks", Counter, "Chunks moved"),
    metric("/store/log/compaction/moved_bytes", "compaction_moved_bytes", Counter, "Bytes of both"),
    metric(
        "/store/log/compaction/write_amplification_percent",
        "compaction_write_amplification_percent",
        Gauge,
        "Bytes written for each 100 bytes that were asked to be written",
    ),
    metric(
        "/store/log/compaction/space_low",
        "compaction_space_low",
        Gauge,
        "1 when space is low and it runs without a bound",
    ),
    metric(
        "/store/log/compaction/waiting_for_checkpoint",
        "compaction_waiting_extents",
        Gauge,
        "Extents that wait for the index to be saved",
    ),
    metric(
        "/store/log/compaction/pinned",
        "compaction_pinned_extents",
        Gauge,
        "Emptied extents that somebody still reads",
    ),
    metric(
        "/store/log/compaction/stuck",
        "compaction_stuck_extents",
        Count,
        "Extents that cannot be emptied: something in them is damaged",
    ),
    metric("/store/log/heal/healed/0", "healed_durable", Counter, "Structures healed on the only or the durable copy"),
    metric("/store/log/heal/healed/1", "healed_fast", Counter, "Structures healed on the fast copy of a super-disk"),
    metric("/store/log/heal/healed_bytes", "healed_bytes", Counter, "Bytes of structures that were healed"),
    metric("/store/log/heal/failed", "heal_failures", Counter, "Damage good on another copy that could not be healed"),
    metric("/store/log/heal/pending", "heal_pending", Gauge, "Damaged places that wait to be healed"),
    metric("/store/log/heal/skipped", "heal_skipped", Counter, "Damaged places left to the scrub, as too many waited"),
    metric("/store/log/scrub/running", "scrub_running", Gauge, "1 while a pass goes on"),
    metric(
        "/store/log/scrub/extents_done",
        "scrub_extents_done",
        Gauge,
        "Extents verified in this pass, or in the last one",
    ),
    metric("/store/log/scrub/extents_total", "scrub_extents", Gauge, "Extents that this pass has to verify"),
    metric("/store/log/scrub/paused", "scrub_paused", Gauge, "1 while a pass waits for its part of the day"),
    metric(
        "/store/log/scrub/expected_end_ms",
        "scrub_expected_end_seconds",
        Timestamp,
        "When the pass will have ended, in seconds since 1970; 0 while there is none",
    ),
    metric(
        "/store/log/scrub/next_ms",
        "scrub_next_seconds",
        Timestamp,
        "When the next pass begins by the schedule; 0 while one goes on",
    ),
    metric("/store/log/scrub/passes", "scrub_passes", Counter, "Passes completed"),
    metric(
        "/store/log/scrub/last_pass_ms",
        "scrub_last_pass_seconds",
        Timestamp,
        "When the last pass ended, in seconds since 1970",
    ),
    metric("/store/log/scrub/read_bytes", "scrub_read_bytes", Counter, "Bytes read"),
    metric("/store/log/scrub/records", "scrub_records", Counter, "Records and chunks verified"),
    metric("/store/log/scrub/healed", "scrub_healed", Counter, "Extents that verified only on a second try"),
    metric("/store/log/scrub/damaged", "scrub_damaged", Counter, "Damages found, each counted once"),
    metric("/live/users", "live_users", Gauge, "Users with sessions"),
    metric("/live/subscriptions", "live_subscriptions", Gauge, "Subscriptions of all sessions"),
    metric("/live/channels", "live_channels", Gauge, "Channels with subscribers"),
    metric("/live/publications", "live_publications", Counter, "Publications accepted"),
    metric("/live/deliveries", "live_deliveries", Counter, "Publications times the sessions that got them"),
    metric(
        "/live/publications_left_out",
        "live_publications_left_out",
        Counter,
        "Publications times the sessions that were not told of them: they speak JSON, and the data is none",
    ),
    metric("/live/queued_sessions", "live_queued_sessions", Gauge, "Sessions whose sockets take nothing more for now"),
    metric("/live/queued_bytes", "live_queued_bytes", Gauge, "Bytes that wait for them"),
    metric("/live/slow", "live_slow_disconnects", Counter, "Sessions that were ended because they did not read"),
];

#[cfg(test)]
pub mod testing {
    //! What the metrics say of a status.
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
        assert!(!out.contains("disk_reads"), "what is not known is left out");
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

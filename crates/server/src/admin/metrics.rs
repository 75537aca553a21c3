//! Metrics of requests and of the process.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds of the latency buckets, in seconds: from a cached read to a stalled disk.
const LATENCY_BUCKETS: [f64; 16] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 5.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    operation: &'static str,
    status: u32,
}

#[derive(Clone)]
struct Latency;

impl MetricConstructor<Histogram> for Latency {
    fn new_metric(&self) -> Histogram {
        Histogram::new(LATENCY_BUCKETS)
    }
}

/// Measures requests. Cloning shares it.
#[derive(Clone)]
pub struct Requests {
    seconds: Family<Labels, Histogram, Latency>,
    received: Counter,
    sent: Counter,
    incomplete: Counter,
}

impl Requests {
    /// Creates the metrics and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self {
            seconds: Family::new_with_constructor(Latency),
            received: Counter::default(),
            sent: Counter::default(),
            incomplete: Counter::default(),
        };
        registry.register_with_unit(
            "s3_request",
            "Time from a request's header to the end of its answer, by operation and status",
            Unit::Seconds,
            this.seconds.clone(),
        );
        registry.register_with_unit(
            "s3_received",
            "Bytes of the bodies of requests",
            Unit::Bytes,
            this.received.clone(),
        );
        registry.register_with_unit("s3_sent", "Bytes of the bodies of answers", Unit::Bytes, this.sent.clone());
        registry.register("s3_incomplete", "Answers that could not be sent completely", this.incomplete.clone());
        this
    }

    /// Records a request that has ended.
    pub fn record(
        &self,
        operation: &'static str,
        status: u16,
        received: u64,
        sent: u64,
        took: Duration,
        complete: bool,
    ) {
        let labels = Labels { operation, status: u32::from(status) };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
        self.received.inc_by(received);
        self.sent.inc_by(sent);
        if !complete {
            self.incomplete.inc();
        }
    }
}

/// Converts OpenMetrics to the format of Prometheus, 0.0.4: a counter has the name of its samples,
/// and units and the end mark are absent.
pub fn plain(metrics: &str) -> String {
    let mut counters = std::collections::BTreeSet::new();
    for line in metrics.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.insert(name);
        }
    }
    let mut out = String::with_capacity(metrics.len());
    for line in metrics.lines() {
        let described = ["# HELP ", "# TYPE "].iter().find_map(|about| Some((*about, line.strip_prefix(about)?)));
        match described.and_then(|(about, rest)| Some((about, rest.split_once(' ')?))) {
            Some((about, (name, rest))) if counters.contains(name) => {
                out.push_str(&format!("{about}{name}_total {rest}\n"));
            }
            _ if line == "# EOF" || line.starts_with("# UNIT ") => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

/// Memory of this process.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct ProcessMemory {
    /// Resident bytes now.
    pub resident_bytes: u64,
    /// Peak of the resident bytes.
    pub resident_bytes_max: u64,
}

/// Reads the memory from the kernel; zeros if that fails.
pub fn process_memory() -> ProcessMemory {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or_default()
    };
    ProcessMemory { resident_bytes: kib("VmRSS:") << 10, resident_bytes_max: kib("VmHWM:") << 10 }
}

/// CPU time of this process, user and system together; zero if the kernel does not report it.
pub fn process_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain spaces.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or_default();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_millis((ticks(11) + ticks(12)) * 1000 / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reports_this_process() {
        let memory = process_memory();
        assert!(memory.resident_bytes > 100_000 && memory.resident_bytes_max >= memory.resident_bytes);
    }
}

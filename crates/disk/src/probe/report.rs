//! The report of a probe, for programs and for humans.

use std::fmt;

use serde::Serialize;

use crate::ZoneGeometry;
use crate::claim::DeviceClaim;
use crate::latency::Latency;

/// The measured object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A temporary file in the given folder, removed afterwards.
    TemporaryFile,
    /// An existing file or device, read only.
    ExistingReadOnly,
    /// An existing file or device, overwritten.
    ExistingOverwritten,
}

/// Bandwidth with 1 MiB requests at one queue depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DepthRate {
    /// Requests in flight.
    pub depth: usize,
    /// MiB per second.
    pub mib_per_s: f64,
}

/// Bandwidth with sequential 1 MiB requests at rising depth.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Best rate of all depths.
    pub best_mib_per_s: f64,
    /// Smallest depth that reached at least 95% of the best. A higher depth only adds waiting time.
    pub saturation_depth: usize,
    /// Rate of each depth.
    pub depths: Vec<DepthRate>,
}

impl Bandwidth {
    pub(super) fn new(depths: Vec<DepthRate>) -> Option<Self> {
        let best = depths.iter().map(|rate| rate.mib_per_s).fold(0.0, f64::max);
        let first = depths.iter().find(|rate| rate.mib_per_s >= best * 0.95)?;
        Some(Self { best_mib_per_s: best, saturation_depth: first.depth, depths })
    }
}

/// Random requests of 4 KiB.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RandomLoad {
    /// Requests per second, one at a time.
    pub iops_alone: f64,
    /// Latency of one request at a time.
    pub latency_alone: Latency,
    /// Queue depth of `iops` and `latency`.
    pub depth: usize,
    /// Requests per second at that depth.
    pub iops: f64,
    /// Latency at that depth.
    pub latency: Latency,
}

/// The cost of a durable write, on space written before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlushCost {
    /// Latency of a write of 8 KiB with its flush.
    pub write_and_flush: Latency,
    /// The same for one write with the commits of all [`CommitRates::clients`].
    pub group_of_clients: Latency,
}

/// Durable commits of 4 KiB objects per second that this disk allows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommitRates {
    /// Number of clients of the grouped figure.
    pub clients: usize,
    /// One flush per commit, measured.
    pub one_by_one_per_s: f64,
    /// One flush per commit group of all clients, measured.
    pub grouped_per_s: f64,
    /// Acknowledged before they are durable (`async`): limited only by the bandwidth of the disk.
    pub asynchronous_per_s_max: f64,
}

/// The report of a probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeReport {
    /// Probed path.
    pub path: String,
    /// Measured object.
    pub subject: Subject,
    /// Driver of the requests.
    pub driver: String,
    /// Used part of it in bytes.
    pub measured_bytes: u64,
    /// Alignment that direct I/O needs, in bytes.
    pub align_bytes: usize,
    /// Zones, where the device must be written zone by zone.
    pub zones: Option<ZoneGeometry>,
    /// Claims of the device.
    pub claim: DeviceClaim,
    /// Sequential reads.
    pub read: Bandwidth,
    /// Sequential writes; `None` when only read.
    pub write: Option<Bandwidth>,
    /// Random reads.
    pub random_read: RandomLoad,
    /// Random writes; `None` when only read.
    pub random_write: Option<RandomLoad>,
    /// Flushes; `None` when only read.
    pub flush: Option<FlushCost>,
    /// Commits; `None` when only read.
    pub commits: Option<CommitRates>,
    /// Queue depth that saturates this disk for reads and writes.
    pub queue_depth: usize,
    /// Warnings for humans.
    pub warnings: Vec<String>,
    /// Explanations of the figures for humans.
    pub meaning: Vec<String>,
}

fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn time(us: f64) -> String {
    match us {
        ..1000.0 => format!("{us:.0} us"),
        ..1_000_000.0 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p90, p99, p999, max] = [self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.max_us].map(time);
        write!(f, "p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {max}")
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB/s, saturated at depth {} (", count(self.best_mib_per_s), self.saturation_depth)?;
        for (i, rate) in self.depths.iter().enumerate() {
            write!(f, "{}{}: {}", if i > 0 { ", " } else { "" }, rate.depth, count(rate.mib_per_s))?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for RandomLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}/s one at a time: {}", count(self.iops_alone), self.latency_alone)?;
        write!(f, "{:18}{}/s at depth {}: {}", "", count(self.iops), self.depth, self.latency)
    }
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject {
            Subject::TemporaryFile => "temporary file, removed",
            Subject::ExistingReadOnly => "only read",
            Subject::ExistingOverwritten => "overwritten",
        };
        writeln!(f, "{}: {} MiB measured ({subject}), {}", self.path, self.measured_bytes >> 20, self.driver)?;
        writeln!(f, "  read 1 MiB      {}", self.read)?;
        if let Some(write) = &self.write {
            writeln!(f, "  write 1 MiB     {write}")?;
        }
        writeln!(f, "  read 4 KiB      {}", self.random_read)?;
        if let Some(random) = &self.random_write {
            writeln!(f, "  write 4 KiB     {random}")?;
        }
        writeln!(f, "  device claims   {}", self.claim)?;
        if let Some(ZoneGeometry { zone_bytes, zone_capacity_bytes, conventional_bytes, open_zones_max }) = self.zones {
            let [size, takes, front] = [zone_bytes, zone_capacity_bytes, conventional_bytes].map(|bytes| bytes >> 20);
            let open = if open_zones_max == 0 { "any number".to_owned() } else { open_zones_max.to_string() };
            writeln!(
                f,
                "  zones           of {size} MiB that take {takes} MiB each, in order; {open} open at a time; {front} MiB written anywhere"
            )?;
        }
        if let Some(flush) = &self.flush {
            writeln!(f, "  a flush costs   {} (8 KiB written and flushed)", flush.write_and_flush)?;
        }
        if let Some(commits) = &self.commits {
            writeln!(
                f,
                "  commits of 4 KiB  {}/s one by one, {}/s grouped ({} clients), up to {}/s asynchronous",
                count(commits.one_by_one_per_s),
                count(commits.grouped_per_s),
                commits.clients,
                count(commits.asynchronous_per_s_max)
            )?;
        }
        for line in &self.meaning {
            writeln!(f, "  - {line}")?;
        }
        for line in &self.warnings {
            writeln!(f, "  WARNING: {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturation_is_the_smallest_depth_near_the_best() {
        let rates = [(1, 100.0), (2, 190.0), (4, 196.0), (8, 200.0), (16, 199.0)];
        let depths = rates.map(|(depth, mib_per_s)| DepthRate { depth, mib_per_s }).to_vec();
        let bandwidth = Bandwidth::new(depths).expect("some");
        assert_eq!((bandwidth.saturation_depth, bandwidth.best_mib_per_s), (2, 200.0));
        assert_eq!(Bandwidth::new(Vec::new()), None);
    }

    #[test]
    fn numbers_for_humans() {
        assert_eq!([count(0.4), count(999.0), count(1000.0), count(1_234_567.0)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([time(12.3), time(1500.0), time(2.5e6)], ["12 us", "1.5 ms", "2.5 s"]);
    }
}

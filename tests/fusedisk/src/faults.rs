//! What is to go wrong, when, and how often it has.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

/// The kinds of requests that can be tampered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Reads of file data.
    Read,
    /// Writes of file data.
    Write,
    /// `fsync` and `fdatasync` of a file.
    Fsync,
    /// `fallocate` and growing truncations.
    Allocate,
}

/// What happens to a request that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It fails with `EIO`.
    Eio,
    /// It fails with `ENOSPC`.
    Enospc,
    /// It fails with `EROFS`: the disk has turned read-only.
    Erofs,
    /// It fails with `ENODEV`: the disk is gone.
    Enodev,
    /// It waits for `delay_ms` and `delay_us` first.
    Delay,
    /// It waits until the rule is removed.
    Hold,
    /// A read gets the byte at `offset` with the bits of `mask` flipped.
    Flip,
}

/// Which requests, and what happens to them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The kind of request.
    pub op: Op,
    /// What happens.
    pub fault: Fault,
    /// Only files whose path contains this.
    #[serde(default)]
    pub path: String,
    /// How many that match pass unharmed first.
    #[serde(default)]
    pub skip: u64,
    /// How many are harmed then; all when absent.
    #[serde(default)]
    pub times: Option<u64>,
    /// Only requests that touch bytes from here (reads and writes).
    #[serde(default)]
    pub offset: u64,
    /// ... to `offset + length`; to the end when absent.
    #[serde(default)]
    pub length: Option<u64>,
    /// For [`Fault::Delay`].
    #[serde(default)]
    pub delay_ms: u64,
    /// For [`Fault::Delay`], added to `delay_ms`.
    #[serde(default)]
    pub delay_us: u64,
    /// The rule is gone once its whole range (it needs a `length`) has been written: a bad sector that the device replaces.
    #[serde(default)]
    pub until_written: bool,
    /// For [`Fault::Flip`].
    #[serde(default = "one_bit")]
    pub mask: u8,
}

fn one_bit() -> u8 {
    1
}

#[derive(Debug)]
struct Armed {
    id: u64,
    rule: Rule,
    seen: u64,
    hits: u64,
}

/// Counts since the start or the last reset.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counts {
    reads: u64,
    read_bytes: u64,
    writes: u64,
    write_bytes: u64,
    fsyncs: u64,
    /// Requests that wait in a hold now.
    held: u64,
    /// Rules that are armed.
    rules: u64,
    /// How often each rule struck, by its id.
    hits: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    rules: Vec<Armed>,
    counts: Counts,
    /// Bytes a second for writes and reads together; 0 for no limit.
    bandwidth: u64,
    /// When the emulated device will be idle again.
    busy_until: Option<Instant>,
}

/// All faults of one mount.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
    changed: Condvar,
}

/// A request as the rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its kind.
    pub op: Op,
    /// Path of the file below the mount.
    pub path: &'a str,
    /// First byte (0 for a flush).
    pub offset: u64,
    /// Bytes (0 for a flush).
    pub length: u64,
}

impl Request<'_> {
    fn matches(&self, rule: &Rule) -> bool {
        let end = rule.length.map_or(u64::MAX, |length| rule.offset.saturating_add(length));
        // A flush has no range: it matches rules with any.
        let touches = self.op == Op::Fsync || (self.offset < end && self.offset + self.length > rule.offset);
        self.op == rule.op && self.path.contains(&rule.path) && touches
    }

    /// Whether this write ends a rule that only lasts until its range is written.
    fn repairs(&self, rule: &Rule) -> bool {
        let Some(length) = rule.length.filter(|_| rule.until_written) else { return false };
        let covers = self.offset <= rule.offset && rule.offset + length <= self.offset + self.length;
        self.path.contains(&rule.path) && covers
    }
}

/// Bits to flip in what a read returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flip {
    /// Where in the file.
    pub offset: u64,
    /// Which bits.
    pub mask: u8,
}

impl Faults {
    /// Arms a rule and returns its id.
    pub fn add(&self, rule: Rule) -> u64 {
        let mut state = self.state.lock();
        state.next_id += 1;
        let id = state.next_id;
        state.rules.push(Armed { id, rule, seen: 0, hits: 0 });
        id
    }

    /// Removes a rule; what it held goes on.
    pub fn remove(&self, id: u64) {
        self.state.lock().rules.retain(|armed| armed.id != id);
        self.changed.notify_all();
    }

    /// Removes every rule and the bandwidth.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.bandwidth = 0;
        drop(state);
        self.changed.notify_all();
    }

    /// Sets the bandwidth in bytes a second; 0 for none.
    pub fn set_bandwidth(&self, bytes_per_second: u64) {
        self.state.lock().bandwidth = bytes_per_second;
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        let mut counts = state.counts.clone();
        counts.rules = state.rules.len() as u64;
        counts.hits = state.rules.iter().map(|armed| (armed.id, armed.hits)).collect();
        counts
    }

    /// Lets a request through the rules: waits as they say, then gives the error or the flips.
    ///
    /// # Errors
    /// The error number to answer with.
    #[allow(clippy::disallowed_methods, reason = "emulates a slow device in real time; not part of the product")]
    pub fn pass(&self, request: Request<'_>) -> Result<Vec<Flip>, i32> {
        let mut state = self.state.lock();
        match request.op {
            Op::Read => {
                state.counts.reads += 1;
                state.counts.read_bytes += request.length;
            }
            Op::Write => {
                state.counts.writes += 1;
                state.counts.write_bytes += request.length;
            }
            Op::Fsync => state.counts.fsyncs += 1,
            Op::Allocate => {}
        }
        let mut outcome = Ok(Vec::new());
        let mut delay = Duration::ZERO;
        let mut holds = Vec::new();
        for armed in &mut state.rules {
            if !request.matches(&armed.rule) {
                continue;
            }
            armed.seen += 1;
            let past_skip = armed.seen > armed.rule.skip;
            if !past_skip || armed.rule.times.is_some_and(|times| armed.hits >= times) {
                continue;
            }
            armed.hits += 1;
            match armed.rule.fault {
                Fault::Eio => outcome = Err(libc::EIO),
                Fault::Enospc => outcome = Err(libc::ENOSPC),
                Fault::Erofs => outcome = Err(libc::EROFS),
                Fault::Enodev => outcome = Err(libc::ENODEV),
                Fault::Delay => {
                    delay += Duration::from_millis(armed.rule.delay_ms) + Duration::from_micros(armed.rule.delay_us);
                }
                Fault::Hold => holds.push(armed.id),
                Fault::Flip => {
                    if let Ok(flips) = &mut outcome {
                        flips.push(Flip { offset: armed.rule.offset, mask: armed.rule.mask });
                    }
                }
            }
        }
        if request.op == Op::Write && outcome.is_ok() {
            state.rules.retain(|armed| !request.repairs(&armed.rule));
        }
        if !holds.is_empty() {
            state.counts.held += 1;
            while state.rules.iter().any(|armed| holds.contains(&armed.id)) {
                self.changed.wait(&mut state);
            }
            state.counts.held -= 1;
        }
        if state.bandwidth > 0 && request.length > 0 && request.op != Op::Allocate {
            let now = Instant::now();
            let start = state.busy_until.map_or(now, |until| until.max(now));
            let end = start + Duration::from_secs_f64(request.length as f64 / state.bandwidth as f64);
            state.busy_until = Some(end);
            delay += end - now;
        }
        drop(state);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        serde_json::from_str(text).unwrap()
    }

    fn read(offset: u64, length: u64) -> Request<'static> {
        Request { op: Op::Read, path: "/pool", offset, length }
    }

    #[test]
    fn skips_then_strikes_as_often_as_told() {
        let faults = Faults::default();
        faults.add(rule(r#"{"op":"read","fault":"eio","skip":1,"times":2}"#));
        let outcomes: Vec<bool> = (0..5).map(|_| faults.pass(read(0, 1)).is_err()).collect();
        assert_eq!(outcomes, [false, true, true, false, false]);
    }

    #[test]
    fn keeps_to_its_range_path_and_kind() {
        let faults = Faults::default();
        faults.add(rule(r#"{"op":"read","fault":"eio","path":"pool","offset":100,"length":10}"#));
        assert!(faults.pass(read(0, 100)).is_ok());
        assert!(faults.pass(read(0, 101)).is_err());
        assert!(faults.pass(read(109, 1)).is_err());
        assert!(faults.pass(read(110, 1)).is_ok());
        assert!(faults.pass(Request { path: "/other", ..read(100, 1) }).is_ok());
        assert!(faults.pass(Request { op: Op::Write, ..read(100, 1) }).is_ok());
    }

    #[test]
    fn a_bad_sector_is_good_once_it_is_written() {
        let faults = Faults::default();
        faults.add(rule(r#"{"op":"read","fault":"eio","offset":512,"length":512,"until_written":true}"#));
        let write = |offset, length| Request { op: Op::Write, path: "/pool", offset, length };
        assert!(faults.pass(write(0, 512)).is_ok());
        assert!(faults.pass(read(0, 4096)).is_err(), "it was not this one");
        assert!(faults.pass(write(0, 4096)).is_ok());
        assert!(faults.pass(read(0, 4096)).is_ok());
        assert_eq!(faults.counts().rules, 0);
    }

    #[test]
    fn holds_until_removed() {
        let faults = std::sync::Arc::new(Faults::default());
        let id = faults.add(rule(r#"{"op":"fsync","fault":"hold"}"#));
        let other = std::sync::Arc::clone(&faults);
        let held =
            std::thread::spawn(move || other.pass(Request { op: Op::Fsync, path: "/pool", offset: 0, length: 0 }));
        while faults.counts().held == 0 {
            std::thread::yield_now();
        }
        assert!(!held.is_finished());
        faults.remove(id);
        assert!(held.join().unwrap().is_ok());
    }
}

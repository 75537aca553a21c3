//! Explains the figures of a probe: the claim about the cache against the cost of a flush.

use super::report::{ProbeReport, time};
use crate::CacheClaim;

/// Flush time in microseconds from which flushes dominate the commit rate.
const SLOW_FLUSH_US: f64 = 2000.0;
/// Flush time in microseconds below which the device cannot have moved a head or waited long for
/// flash.
const FAST_FLUSH_US: f64 = 500.0;

/// Adds the explanation and the warnings to the report.
pub(super) fn explain(report: &mut ProbeReport) {
    let mut meaning = vec![format!(
        "{} requests in flight saturate this disk; more would only wait (queue_depth).",
        report.queue_depth
    )];
    let mut warnings = Vec::new();
    let Some(flush) = &report.flush else {
        meaning.push("The cost of a flush was not measured, because the probe may not write here.".into());
        report.meaning = meaning;
        return;
    };
    let p50 = flush.write_and_flush.p50_us;
    let cost = time(p50);
    // The device's own identification overrides sysfs, which can be set by hand.
    let volatile = match (report.claim.nvme_volatile_cache, report.claim.cache) {
        (Some(volatile), _) => Some(volatile),
        (None, CacheClaim::WriteBack) => Some(true),
        (None, CacheClaim::WriteThrough) => Some(false),
        (None, CacheClaim::Unknown) => None,
    };
    match volatile {
        Some(true) if p50 >= SLOW_FLUSH_US => warnings.push(format!(
            "the device has a volatile write cache and a flush takes {cost}: every commit waits for it. Nothing is at risk, for \
             every commit is flushed; but clients that write one by one will be slow. A device with power-loss \
             protection is the cure; many clients at a time are grouped."
        )),
        Some(true) if p50 < FAST_FLUSH_US => meaning.push(format!(
            "The device claims a volatile cache, yet a flush takes only {cost}: a cache with power-loss protection, or a \
             virtual disk whose host may not really flush. Cheap is not proof of safe: ask who provides the device."
        )),
        Some(true) => meaning.push(format!("The device has a volatile cache; a flush empties it in {cost}.")),
        Some(false) if p50 >= SLOW_FLUSH_US => warnings.push(format!(
            "the device claims that there is nothing to flush, yet a flush takes {cost}. The claim may be wrong, or the \
             file system's journal is slow; flushes are sent in any case."
        )),
        Some(false) => meaning.push(format!(
            "The device claims that completed writes are durable, and a flush takes {cost}, which fits. A claim is not \
             proof: flushes are sent in any case."
        )),
        None if p50 >= SLOW_FLUSH_US => warnings.push(format!(
            "a flush takes {cost}, so clients that write one by one will be slow; many clients at a time are grouped."
        )),
        None => meaning.push(format!("Nothing is known about the device's cache; a flush takes {cost}.")),
    }
    warnings.extend(crate::claim::overridden(&report.claim).map(str::to_owned));
    if let Some(commits) = &report.commits {
        let gain = commits.grouped_per_s / commits.one_by_one_per_s.max(1.0);
        meaning.push(format!(
            "Grouping the commits of {} clients gives {gain:.0} times the durable commits of one client, at no risk.",
            commits.clients
        ));
        meaning.push(
            "Asynchronous commits are answered before they are durable: a power cut loses the last 10 ms. The processor or \
             the network will be their limit before the disk is."
                .into(),
        );
    }
    (report.meaning, report.warnings) = (meaning, warnings);
}

#[cfg(test)]
mod tests {
    use super::super::report::*;
    use super::*;
    use crate::claim::DeviceClaim;
    use crate::latency::Latency;

    fn report(cache: CacheClaim, nvme: Option<bool>, p50_us: f64) -> ProbeReport {
        let latency = Latency { p50_us, ..Latency::default() };
        let random = RandomLoad { iops_alone: 1.0, latency_alone: latency, depth: 32, iops: 1.0, latency };
        let claim =
            DeviceClaim { device: None, model: None, cache, nvme_volatile_cache: nvme, fua: None, rotational: None };
        let mut report = ProbeReport {
            path: "/x".into(),
            subject: Subject::TemporaryFile,
            driver: String::new(),
            measured_bytes: 1 << 30,
            align_bytes: 512,
            zones: None,
            claim,
            read: Bandwidth::default(),
            write: None,
            random_read: random,
            random_write: None,
            flush: Some(FlushCost { write_and_flush: latency, group_of_clients: latency }),
            commits: None,
            queue_depth: 8,
            warnings: Vec::new(),
            meaning: Vec::new(),
        };
        explain(&mut report);
        report
    }

    #[test]
    fn a_volatile_cache_with_slow_flushes_is_warned_of() {
        let slow = report(CacheClaim::WriteBack, None, 8000.0);
        assert!(slow.warnings[0].contains("volatile") && slow.warnings[0].contains("8.0 ms"), "{:?}", slow.warnings);
        assert!(slow.to_string().contains("WARNING"), "{slow}");
    }

    #[test]
    fn cheap_is_not_called_safe() {
        let fast = report(CacheClaim::WriteBack, None, 90.0);
        assert!(fast.warnings.is_empty() && fast.meaning.iter().any(|line| line.contains("not proof")));
    }

    #[test]
    fn an_overridden_cache_setting_is_found() {
        assert_eq!(report(CacheClaim::WriteThrough, Some(true), 90.0).warnings.len(), 1);
        assert_eq!(report(CacheClaim::WriteThrough, Some(false), 90.0).warnings.len(), 0);
    }
}

//! How long an object that was fetched may be served.
//!
//! Age counts from the moment when the request was sent (RFC 9111, section 4.2.3). It is measured
//! with the monotonic clock, so it is unknown after a restart: the first use then asks the origin.

mod headers;
mod recent;

use std::str::FromStr;
use std::time::Duration;

use steadfast_store::{CACHED, ObjectInfo};

use crate::options::{EdgeBucket, Fresh};

pub(crate) use headers::{CacheHeaders, date_ms};
pub(crate) use recent::Recent;

/// The longest lifetime that is derived from the age of an object.
const HEURISTIC_MS_MAX: u64 = 24 * 3600 * 1000;
/// Requests within this time share an answer, also one that must always be revalidated.
const SHARED_MS: u64 = 1000;

/// When the origin was asked about an object, and how long its answer counts. Times in
/// milliseconds. The attribute [`CACHED`] has it; an object without one is neither revalidated nor
/// evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FetchStamp {
    /// The process that sent the request.
    run: u64,
    /// When it sent it, by the monotonic clock, earlier by the age that the answer had already.
    sent_ms: i64,
    /// The same by the wall clock.
    wall_ms: u64,
    lifetime_ms: u64,
    /// How long after its lifetime it is served while it is revalidated.
    while_revalidate_ms: u64,
    /// How long after its lifetime it is served when the origin fails.
    if_error_ms: u64,
    /// The number of the origin; `None` for objects that were stored without it.
    origin: Option<u64>,
}

/// A point in time, of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) run: u64,
    pub(crate) now: Duration,
    pub(crate) wall_ms: u64,
}

/// How an object that is stored may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// A client wrote it.
    LocalWrite,
    /// Without asking the origin.
    Fresh,
    /// At once, while the origin is queried.
    WhileRevalidate,
    /// When the origin has been queried. If it fails and `if_error` is set, all the same.
    Stale { if_error: bool },
}

/// Whether an object came from an origin.
pub(crate) fn is_cached(info: &ObjectInfo) -> bool {
    info.attributes.system.contains_key(CACHED)
}

fn number<T: FromStr + Default>(text: Option<&str>) -> T {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl FetchStamp {
    /// The stamp of an answer whose request was sent at `asked`.
    pub(crate) fn new(options: &EdgeBucket, headers: &CacheHeaders, sent: Moment) -> Self {
        let lifetime_ms = match (options.fresh, headers.lifetime_ms) {
            (Fresh::Forever, _) => u64::MAX,
            (_, Some(lifetime)) => lifetime,
            (Fresh::Fallback(lifetime), None) => millis(lifetime),
            (Fresh::Origin, None) => headers.heuristic_ms.unwrap_or(0).min(HEURISTIC_MS_MAX),
        };
        let strict = headers.must_revalidate;
        let if_error_ms = headers.if_error_ms.unwrap_or_else(|| millis(options.stale_if_error));
        let sent_ms = i64::try_from(sent.now.as_millis()).unwrap_or(i64::MAX);
        let age_ms = i64::try_from(headers.age_ms).unwrap_or(i64::MAX);
        Self {
            run: sent.run,
            sent_ms: sent_ms.saturating_sub(age_ms),
            wall_ms: sent.wall_ms.saturating_sub(headers.age_ms),
            lifetime_ms,
            while_revalidate_ms: if strict { 0 } else { headers.while_revalidate_ms },
            if_error_ms: if strict { 0 } else { if_error_ms },
            origin: Some(options.origin.number()),
        }
    }

    /// The attribute that keeps the stamp.
    pub(crate) fn attribute(&self) -> (String, String) {
        let Self { run, sent_ms, wall_ms, lifetime_ms, while_revalidate_ms, if_error_ms, origin } = self;
        let mut text = format!("{run} {sent_ms} {wall_ms} {lifetime_ms} {while_revalidate_ms} {if_error_ms}");
        if let Some(origin) = origin {
            text.push_str(&format!(" {origin}"));
        }
        (CACHED.to_owned(), text)
    }

    /// The stamp of an object; `None` for one that a client wrote.
    pub(crate) fn of(info: &ObjectInfo) -> Option<Self> {
        let mut numbers = info.attributes.system.get(CACHED)?.split(' ');
        Some(Self {
            run: number(numbers.next()),
            sent_ms: number(numbers.next()),
            wall_ms: number(numbers.next()),
            lifetime_ms: number(numbers.next()),
            while_revalidate_ms: number(numbers.next()),
            if_error_ms: number(numbers.next()),
            origin: numbers.next().and_then(|text| text.parse().ok()),
        })
    }

    /// The stamp after the origin said that nothing changed. What it does not say again stays.
    pub(crate) fn renewed(&self, options: &EdgeBucket, headers: &CacheHeaders, sent: Moment) -> Self {
        let stamp = Self::new(options, headers, sent);
        if headers.lifetime_ms.is_some() {
            return stamp;
        }
        let Self { lifetime_ms, while_revalidate_ms, if_error_ms, .. } = *self;
        Self { lifetime_ms, while_revalidate_ms, if_error_ms, ..stamp }
    }

    /// Whether the object is of the origin that the bucket has now.
    pub(crate) fn is_of(&self, options: &EdgeBucket) -> bool {
        self.origin.is_none_or(|origin| origin == options.origin.number())
    }

    /// The age in milliseconds; `None` after a restart.
    pub(crate) fn age_ms(&self, at: Moment) -> Option<u64> {
        let now = i64::try_from(at.now.as_millis()).unwrap_or(i64::MAX);
        (self.run == at.run).then(|| u64::try_from(now.saturating_sub(self.sent_ms)).unwrap_or(0))
    }

    /// The stamp of an answer that there is no such object. It does not count for ever, even if
    /// objects do.
    pub(crate) fn missing(options: &EdgeBucket, sent: Moment) -> Self {
        let lifetime_ms = millis(options.negative);
        Self { lifetime_ms, ..Self::new(options, &CacheHeaders::default(), sent) }
    }

    /// Whether a request that came at this moment may use the answer that another one waits for.
    pub(crate) fn is_shared(&self, at: Moment) -> bool {
        self.age_ms(at).is_some_and(|age| age <= self.lifetime_ms.max(SHARED_MS))
    }

    pub(crate) fn freshness(&self, at: Moment) -> Freshness {
        if self.lifetime_ms == u64::MAX {
            return Freshness::Fresh;
        }
        if let Some(age) = self.age_ms(at) {
            if age < self.lifetime_ms {
                return Freshness::Fresh;
            }
            if age < self.lifetime_ms.saturating_add(self.while_revalidate_ms) {
                return Freshness::WhileRevalidate;
            }
        }
        let age = self.age_ms(at).unwrap_or_else(|| at.wall_ms.saturating_sub(self.wall_ms));
        Freshness::Stale { if_error: age < self.lifetime_ms.saturating_add(self.if_error_ms) && self.if_error_ms > 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OriginAddress;
    use crate::options::tests::bucket;

    fn at(run: u64, now_s: u64, wall_s: u64) -> Moment {
        Moment { run, now: Duration::from_secs(now_s), wall_ms: wall_s * 1000 }
    }

    fn lasting(lifetime_s: u64) -> CacheHeaders {
        CacheHeaders { lifetime_ms: Some(lifetime_s * 1000), ..CacheHeaders::default() }
    }

    #[test]
    fn an_object_is_fresh_then_stale_and_unknown_after_a_restart() {
        let mut options = bucket();
        options.stale_if_error = Duration::from_secs(1000);
        let headers = CacheHeaders { while_revalidate_ms: 5000, ..lasting(60) };
        let stamp = FetchStamp::new(&options, &headers, at(1, 100, 5000));
        assert_eq!(stamp.freshness(at(1, 100, 0)), Freshness::Fresh);
        assert_eq!(stamp.freshness(at(1, 159, 0)), Freshness::Fresh);
        assert_eq!(stamp.freshness(at(1, 160, 0)), Freshness::WhileRevalidate);
        assert_eq!(stamp.freshness(at(1, 165, 0)), Freshness::Stale { if_error: true });
        assert_eq!(stamp.freshness(at(1, 1160, 0)), Freshness::Stale { if_error: false });
        // The monotonic clock of another process says nothing.
        assert_eq!(stamp.freshness(at(2, 100, 5000)), Freshness::Stale { if_error: true });
        assert_eq!(stamp.freshness(at(2, 100, 6060)), Freshness::Stale { if_error: false });
        assert_eq!(stamp.freshness(at(2, 100, 4000)), Freshness::Stale { if_error: true });
    }

    #[test]
    fn settings_count_where_the_origin_sends_nothing() {
        let (mut options, sent) = (bucket(), at(1, 0, 0));
        let none = CacheHeaders::default();
        options.fresh = Fresh::Fallback(Duration::from_secs(10));
        assert_eq!(FetchStamp::new(&options, &none, sent).freshness(at(1, 9, 9)), Freshness::Fresh);
        assert_ne!(FetchStamp::new(&options, &lasting(5), sent).freshness(at(1, 6, 6)), Freshness::Fresh);
        options.fresh = Fresh::Forever;
        assert_eq!(FetchStamp::new(&options, &lasting(0), sent).freshness(at(9, 0, 0)), Freshness::Fresh);
        options.fresh = Fresh::Origin;
        assert_ne!(FetchStamp::new(&options, &none, sent).freshness(sent), Freshness::Fresh);
        let old = CacheHeaders { heuristic_ms: Some(u64::MAX), ..none };
        assert_eq!(FetchStamp::new(&options, &old, sent).freshness(at(1, 24 * 3600 - 1, 0)), Freshness::Fresh);
        assert_ne!(FetchStamp::new(&options, &old, sent).freshness(at(1, 24 * 3600, 0)), Freshness::Fresh);
    }

    #[test]
    fn the_age_that_an_answer_had_counts() {
        let headers = CacheHeaders { age_ms: 50_000, ..lasting(60) };
        let stamp = FetchStamp::new(&bucket(), &headers, at(1, 10, 100));
        assert_eq!(stamp.age_ms(at(1, 10, 0)), Some(50_000));
        assert_eq!(stamp.freshness(at(1, 19, 0)), Freshness::Fresh);
        assert_ne!(stamp.freshness(at(1, 20, 0)), Freshness::Fresh);
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let headers = CacheHeaders { while_revalidate_ms: 7, age_ms: 3, if_error_ms: Some(9), ..lasting(60) };
        let stamp = FetchStamp::new(&bucket(), &headers, at(u64::MAX, 10, 100));
        let mut info = ObjectInfo {
            key: String::new(),
            size: 0,
            modified_ms: 0,
            version: 0,
            attributes: steadfast_store::Attributes::default(),
            part_count: 0,
        };
        assert_eq!(FetchStamp::of(&info), None);
        info.attributes.system.extend([stamp.attribute()]);
        assert_eq!(FetchStamp::of(&info), Some(stamp));
        let mut other = bucket();
        other.origin = OriginAddress::Http { url: "http://127.0.0.2".into(), headers: Vec::new() };
        assert!(stamp.is_of(&bucket()) && !stamp.is_of(&other));
        info.attributes.system.insert(CACHED.into(), "1 2 3 4 5 6".into());
        assert!(FetchStamp::of(&info).is_some_and(|stamp| stamp.is_of(&other) && stamp.if_error_ms == 6));
        info.attributes.system.insert(CACHED.into(), "nonsense".into());
        assert!(FetchStamp::of(&info).is_some_and(|stamp| stamp.freshness(at(1, 1, 1)) != Freshness::Fresh));
    }
}

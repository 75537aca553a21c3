//! What the origin has, has had, and says about it.

use std::time::{Duration, UNIX_EPOCH};

use crate::rng::Rng;

/// What an answer says about caching. Times in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheRule {
    Silent,
    MaxAge(u64),
    /// `max-age` and `stale-while-revalidate`.
    WhileRevalidate(u64, u64),
    /// `max-age` and `stale-if-error`.
    IfError(u64, u64),
    Strict(u64),
    NoCache,
    NoStore,
    /// Each client may get another answer.
    Vary,
}

impl CacheRule {
    fn new(rng: &mut Rng) -> Self {
        let max_age = *rng.pick(&[0, 1, 2, 5, 20]);
        match rng.below(12) {
            0 => Self::Silent,
            1..=3 => Self::MaxAge(max_age),
            4 | 5 => Self::WhileRevalidate(max_age, *rng.pick(&[1, 5])),
            6 | 7 => Self::IfError(max_age, *rng.pick(&[2, 60])),
            8 => Self::Strict(max_age),
            9 | 10 => Self::NoCache,
            _ => *rng.pick(&[Self::NoStore, Self::Vary]),
        }
    }

    pub(crate) fn header(self) -> Option<(&'static str, String)> {
        let value = match self {
            Self::Silent => return None,
            Self::MaxAge(age) => format!("public, max-age={age}"),
            Self::WhileRevalidate(age, more) => format!("max-age={age}, stale-while-revalidate={more}"),
            Self::IfError(age, more) => format!("max-age={age}, stale-if-error={more}"),
            Self::Strict(age) => format!("max-age={age}, must-revalidate"),
            Self::NoCache => "no-cache".to_owned(),
            Self::NoStore => "no-store".to_owned(),
            Self::Vary => return Some(("vary", "Cookie".to_owned())),
        };
        Some(("cache-control", value))
    }
}

/// How entity tags are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TagRule {
    Strong,
    /// Of the time and the size: two versions within a second may have the same.
    Weak,
    Absent,
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length,
    Chunked,
    /// The connection is closed.
    Close,
}

/// A version of an object. Its number decides all bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Release {
    pub(crate) number: u64,
    pub(crate) size: u64,
    /// Seconds since the Unix epoch.
    pub(crate) modified_s: u64,
    pub(crate) cache: CacheRule,
}

/// A key of the origin with its history.
#[derive(Debug, Clone)]
pub(crate) struct OriginKey {
    pub(crate) name: String,
    pub(crate) tags: TagRule,
    /// Whether `Last-Modified` is sent.
    pub(crate) dated: bool,
    pub(crate) framing: Framing,
    pub(crate) ignores_if_match: bool,
    pub(crate) ignores_ranges: bool,
    pub(crate) releases: Vec<Release>,
    /// From when on the origin has had which release.
    eras: Vec<(Duration, Option<usize>)>,
}

/// The release as a date in a header.
pub(crate) fn date(seconds: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds))
}

impl OriginKey {
    pub(crate) fn new(rng: &mut Rng, name: &str) -> Self {
        let tags = *rng.pick(&[TagRule::Strong, TagRule::Strong, TagRule::Strong, TagRule::Weak, TagRule::Absent]);
        Self {
            name: name.to_owned(),
            tags,
            dated: !rng.one_in(4),
            framing: *rng.pick(&[Framing::Length, Framing::Length, Framing::Length, Framing::Chunked, Framing::Close]),
            ignores_if_match: rng.one_in(2),
            ignores_ranges: rng.one_in(8),
            releases: Vec::new(),
            eras: vec![(Duration::ZERO, None)],
        }
    }

    /// The entity tag without quotes, as the edge shows it.
    pub(crate) fn tag(&self, release: &Release) -> Option<String> {
        match self.tags {
            TagRule::Strong => Some(format!("v{}", release.number)),
            TagRule::Weak => Some(format!("{:x}-{:x}", release.modified_s, release.size)),
            TagRule::Absent => None,
        }
    }

    /// The value of the header `ETag`.
    pub(crate) fn etag(&self, release: &Release) -> Option<String> {
        let weak = if self.tags == TagRule::Weak { "W/" } else { "" };
        Some(format!("{weak}\"{}\"", self.tag(release)?))
    }

    /// Whether an answer of the edge with this tag and size may be of the release. The origin does
    /// not tell the size in each answer.
    pub(crate) fn is_shown(&self, release: &Release, tag: &str, size: Option<u64>) -> bool {
        let modified_ms = release.modified_s * 1000;
        let same = match self.tag(release) {
            Some(own) => own == tag,
            // The edge makes one: of the date, or of the time of the answer.
            None => tag
                .split_once('-')
                .and_then(|(time, _)| u64::from_str_radix(time, 16).ok())
                .is_some_and(|time| if self.dated { time == modified_ms } else { time >= modified_ms }),
        };
        same && size.is_none_or(|size| size == release.size)
    }

    pub(crate) fn current(&self) -> Option<usize> {
        self.eras.last().and_then(|(_, release)| *release)
    }

    /// Whether the origin has had the release, or nothing, at some time since `since`.
    pub(crate) fn had_since(&self, release: Option<usize>, since: Duration) -> bool {
        let ends = self.eras.iter().skip(1).map(|(from, _)| *from).chain([Duration::MAX]);
        self.eras.iter().zip(ends).any(|((_, had), end)| *had == release && end >= since)
    }

    /// When the release began to be current for the last time before `before`.
    pub(crate) fn begin(&self, release: usize, before: Duration) -> Option<Duration> {
        self.eras.iter().rev().find(|(from, had)| *had == Some(release) && *from <= before).map(|(from, _)| *from)
    }

    /// Writes a new version, deletes the object, or puts an earlier version back.
    pub(crate) fn change(&mut self, rng: &mut Rng, at: Duration, wall_s: u64, number: u64) {
        let was = self.current();
        if was.is_some() && rng.one_in(5) {
            return self.eras.push((at, None));
        }
        if self.tags == TagRule::Strong && !self.releases.is_empty() && rng.one_in(8) {
            let back = rng.below(self.releases.len() as u64) as usize;
            return self.eras.push((at, Some(back)));
        }
        let cache = match self.releases.last() {
            Some(last) if !rng.one_in(4) => last.cache,
            _ => CacheRule::new(rng),
        };
        // Often of the same size as before.
        let size = match self.releases.last() {
            Some(last) if rng.one_in(2) => last.size,
            _ => *rng.pick(&[0, 1, 700, 3000, 9_999, 10_000, 10_001, 25_000, 45_000]),
        };
        self.releases.push(Release { number, size, modified_s: wall_s, cache });
        self.eras.push((at, Some(self.releases.len() - 1)));
    }
}

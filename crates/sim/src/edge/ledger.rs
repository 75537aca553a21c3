//! What the edge may answer.
//!
//! The ledger knows what the origin has had at any time, each answer that it has sent, and each
//! purge. An answer of the edge is right if one version explains all of it: its tag and size, its
//! time, and each of its bytes. Without strong tags, several versions can explain the head.

use std::time::Duration;

use steadfast_edge::{EdgeBucket, Fresh, Handling};

use super::catalog::{CacheRule, Framing, OriginKey, Release, TagRule};
use crate::rng::{Rng, stream_bytes};

/// Requests within this time may share an answer that must always be revalidated.
const SHARED: Duration = Duration::from_secs(1);
/// The edge measures in milliseconds.
const GRAIN: Duration = Duration::from_millis(1);

/// How long an answer of the origin counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetime {
    fresh: Duration,
    /// How long after that it is served stale.
    stale: Duration,
}

/// What an answer of the origin has confirmed.
struct Confirmation {
    /// When the question was sent, earlier by the age of the answer.
    sent: Duration,
    /// The releases that it may mean; none if there is no such object.
    releases: Vec<usize>,
    lifetime: Lifetime,
}

/// What clients know of a key.
#[derive(Default)]
struct Knowledge {
    confirmations: Vec<Confirmation>,
    /// Purges: begin, and end if they have returned.
    purges: Vec<(Duration, Duration)>,
    /// When an answer showed which release, and in which life.
    shown: Vec<(Duration, usize, u64)>,
}

/// A request of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EdgeRequest {
    pub(crate) key: usize,
    pub(crate) begun: Duration,
    pub(crate) life: u64,
}

/// The head of an answer of the edge.
#[derive(Debug, Clone)]
pub(crate) struct ShownHead {
    pub(crate) tag: String,
    pub(crate) size: Option<u64>,
    pub(crate) handling: Handling,
    pub(crate) age_s: Option<u64>,
}

/// What the origin had and sent, and what clients have seen.
pub(crate) struct EdgeLedger {
    pub(crate) keys: Vec<OriginKey>,
    bucket: EdgeBucket,
    known: Vec<Knowledge>,
    /// Releases of all keys.
    releases: u64,
    /// Answers that were judged.
    pub(crate) answers: u64,
    /// The first violation.
    pub(crate) violation: Option<String>,
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl EdgeLedger {
    pub(crate) fn new(keys: Vec<OriginKey>, bucket: EdgeBucket) -> Self {
        let known = keys.iter().map(|_| Knowledge::default()).collect();
        Self { keys, bucket, known, releases: 0, answers: 0, violation: None }
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// The origin changes an object.
    pub(crate) fn change(&mut self, rng: &mut Rng, key: usize, at: Duration, wall_s: u64) {
        self.releases += 1;
        // Each number decides other bytes.
        let number = self.releases;
        self.keys[key].change(rng, at, wall_s, number);
    }

    /// Whether a stored object is a version of its key.
    pub(crate) fn is_whole(&self, key: &str, head: &ShownHead, data: &[u8]) -> bool {
        let Some(key) = self.keys.iter().find(|one| one.name == key) else { return false };
        let mut expected = vec![0; data.len()];
        key.releases.iter().any(|one| {
            stream_bytes(one.number, 0, &mut expected);
            key.is_shown(one, &head.tag, head.size) && data.len() as u64 == one.size && expected == data
        })
    }

    /// How long an answer counts that is sent at this time.
    fn lifetime(&self, key: usize, release: &Release, wall_s: u64) -> Lifetime {
        use CacheRule as C;
        let dated = self.keys[key].dated;
        let heuristic = if dated { seconds(wall_s.saturating_sub(release.modified_s)) / 10 } else { Duration::ZERO };
        let fresh = match (self.bucket.fresh, release.cache) {
            (Fresh::Forever, _) => Duration::MAX,
            (_, C::MaxAge(age) | C::WhileRevalidate(age, _) | C::IfError(age, _) | C::Strict(age)) => seconds(age),
            (_, C::NoCache) => Duration::ZERO,
            (Fresh::Fallback(lifetime), _) => lifetime,
            (Fresh::Origin, _) => heuristic,
        };
        let if_error = self.bucket.stale_if_error;
        let stale = match release.cache {
            C::WhileRevalidate(_, more) => if_error.max(seconds(more)),
            C::IfError(_, more) => seconds(more),
            C::Strict(_) => Duration::ZERO,
            _ => if_error,
        };
        Lifetime { fresh, stale }
    }

    /// The origin answers a question with this release.
    pub(crate) fn confirm(&mut self, key: usize, sent: Duration, release: usize, wall_s: u64) {
        let lifetime = self.lifetime(key, &self.keys[key].releases[release], wall_s);
        self.known[key].confirmations.push(Confirmation { sent, releases: vec![release], lifetime });
    }

    /// The origin answers that those which `matches` are unchanged. The current release decides for
    /// how long.
    pub(crate) fn confirm_unchanged(
        &mut self,
        key: usize,
        sent: Duration,
        wall_s: u64,
        matches: impl Fn(&OriginKey, &Release) -> bool,
    ) {
        let of = &self.keys[key];
        let Some(current) = of.current() else { return };
        let releases: Vec<usize> = (0..of.releases.len()).filter(|at| matches(of, &of.releases[*at])).collect();
        let mut lifetime = self.lifetime(key, &of.releases[current], wall_s);
        if matches!(of.releases[current].cache, CacheRule::Silent | CacheRule::NoStore | CacheRule::Vary) {
            // What the answer does not say stays as it was.
            let earlier = self.known[key].confirmations.iter();
            for one in earlier.filter(|one| one.releases.iter().any(|release| releases.contains(release))) {
                lifetime.fresh = lifetime.fresh.max(one.lifetime.fresh);
                lifetime.stale = lifetime.stale.max(one.lifetime.stale);
            }
        }
        self.known[key].confirmations.push(Confirmation { sent, releases, lifetime });
    }

    /// The origin answers that there is no such object.
    pub(crate) fn confirm_absent(&mut self, key: usize, sent: Duration) {
        let lifetime = Lifetime { fresh: self.bucket.negative, stale: Duration::ZERO };
        self.known[key].confirmations.push(Confirmation { sent, releases: Vec::new(), lifetime });
    }

    /// The keys that a purge names, with the purges of each.
    fn purges_of(&mut self, prefix: &str, exact: bool) -> impl Iterator<Item = &mut Vec<(Duration, Duration)>> {
        let named = move |name: &str| name == prefix || !exact && name.starts_with(prefix);
        let keys = self.keys.iter().zip(&mut self.known);
        keys.filter(move |(key, _)| named(&key.name)).map(|(_, known)| &mut known.purges)
    }

    /// A purge begins at `begun`.
    pub(crate) fn purge(&mut self, prefix: &str, exact: bool, begun: Duration) {
        self.purges_of(prefix, exact).for_each(|purges| purges.push((begun, Duration::MAX)));
    }

    /// The purge that began at `begun` has returned.
    pub(crate) fn purged(&mut self, prefix: &str, exact: bool, begun: Duration, ended: Duration) {
        for purges in self.purges_of(prefix, exact) {
            purges.iter_mut().filter(|purge| **purge == (begun, Duration::MAX)).for_each(|purge| purge.1 = ended);
        }
    }

    /// A process begins. Purges that had not returned are unknown.
    pub(crate) fn begin_life(&mut self) {
        self.known.iter_mut().for_each(|known| known.purges.retain(|(_, ended)| *ended < Duration::MAX));
    }

    /// Whether the origin has had the release since each purge that returned before the request.
    fn is_after_purges(&self, request: EdgeRequest, release: Option<usize>) -> bool {
        let before = self.known[request.key].purges.iter().filter(|(_, ended)| *ended <= request.begun);
        before.map(|(begun, _)| *begun).max().is_none_or(|begun| self.keys[request.key].had_since(release, begun))
    }

    /// Whether an answer of the origin for this release is young enough.
    fn is_in_time(&self, request: EdgeRequest, release: Option<usize>, handling: Handling) -> bool {
        self.known[request.key].confirmations.iter().any(|one| {
            let lasts = match handling {
                Handling::Hit => one.lifetime.fresh,
                Handling::Stale => one.lifetime.fresh.saturating_add(one.lifetime.stale),
                Handling::Passed => Duration::ZERO,
                _ => one.lifetime.fresh.max(SHARED),
            };
            let same = release.map_or(one.releases.is_empty(), |release| one.releases.contains(&release));
            same && request.begun <= one.sent.saturating_add(lasts).saturating_add(GRAIN)
        })
    }

    /// Whether each answer about the key can be stored. Else one that is passed through can be
    /// newer than one that is stored and fresh.
    fn is_always_storable(&self, key: usize) -> bool {
        let storable = |one: &Release| {
            !matches!(one.cache, CacheRule::NoStore | CacheRule::Vary) && one.size <= self.bucket.object_bytes_max
        };
        let key = &self.keys[key];
        key.framing == Framing::Length && key.releases.iter().all(storable)
    }

    /// Whether a release that clients saw before the request has replaced this one.
    fn is_older_than_seen(&self, request: EdgeRequest, release: usize) -> bool {
        let key = &self.keys[request.key];
        // A commit from before a purge can show until the purge returns.
        if self.known[request.key].purges.iter().any(|(_, ended)| *ended > request.begun) {
            return false;
        }
        self.known[request.key].shown.iter().any(|(at, shown, life)| {
            let since = (*at <= request.begun && *life == request.life).then(|| key.begin(*shown, *at)).flatten();
            since.is_some_and(|since| !key.had_since(Some(release), since))
        })
    }

    /// Judges the head of an answer. Returns the releases that explain it.
    pub(crate) fn head(&mut self, request: EdgeRequest, head: &ShownHead, now: Duration) -> Vec<usize> {
        self.answers += 1;
        let key = &self.keys[request.key];
        let all = 0..key.releases.len();
        let named: Vec<usize> = all.filter(|at| key.is_shown(&key.releases[*at], &head.tag, head.size)).collect();
        let name = key.name.clone();
        let by = |left: &[usize], holds: &dyn Fn(usize) -> bool| -> Vec<usize> {
            left.iter().copied().filter(|at| holds(*at)).collect()
        };
        let timely = by(&named, &|at| self.is_in_time(request, Some(at), head.handling));
        let current = by(&timely, &|at| self.is_after_purges(request, Some(at)));
        let ordered = match head.handling {
            Handling::Stale => current.clone(),
            _ => by(&current, &|at| !self.is_older_than_seen(request, at)),
        };
        let rules = ["MIXED", "TOO-OLD", "PURGED-SERVED", "OLDER-THAN-SEEN"];
        let left = [&named, &timely, &current, &ordered];
        if let Some((rule, _)) = rules.iter().zip(left).find(|(_, left)| left.is_empty()) {
            let cut = *rule == "MIXED" && key.releases.iter().any(|one| key.is_shown(one, &head.tag, None));
            let rule = if cut { "HALF-OBJECT" } else { rule };
            self.fail(format!("{rule}: {request:?} of {name}: {head:?}, releases {named:?}"));
        }
        if let (Handling::Hit, Some(age_s)) = (head.handling, head.age_s) {
            let confirmations = self.known[request.key].confirmations.iter();
            let of = confirmations.filter(|one| one.releases.iter().any(|release| named.contains(release)));
            let sent = of.map(|one| one.sent).max().unwrap_or_default();
            if seconds(age_s + 1) + GRAIN < request.begun.saturating_sub(sent) {
                self.fail(format!("TOO-OLD: {request:?} of {name}: the age {age_s} s is too small"));
            }
        }
        let shows = head.handling != Handling::Passed || self.is_always_storable(request.key);
        if let (TagRule::Strong, true, [release]) = (self.keys[request.key].tags, shows, &ordered[..]) {
            self.known[request.key].shown.push((now, *release, request.life));
        }
        ordered
    }

    /// Judges the answer that there is no such object.
    pub(crate) fn absent(&mut self, request: EdgeRequest) {
        self.answers += 1;
        let name = &self.keys[request.key].name;
        if !self.is_in_time(request, None, Handling::Miss { collapsed: true }) {
            self.fail(format!("TOO-OLD: {request:?} of {name}: no such object"));
        } else if !self.is_after_purges(request, None) {
            self.fail(format!("PURGED-SERVED: {request:?} of {name}: no such object"));
        }
    }

    /// Judges the answer that a range lies outside an object of this size.
    pub(crate) fn outside(&mut self, request: EdgeRequest, size: u64) {
        self.answers += 1;
        let key = &self.keys[request.key];
        if !key.releases.iter().any(|one| one.size == size) {
            let what = format!("HALF-OBJECT: {request:?} of {}: it never had {size} bytes", key.name);
            self.fail(what);
        }
    }

    /// Judges bytes of an answer. `left` keeps the releases that explain them.
    pub(crate) fn bytes(&mut self, key: usize, left: &mut Vec<usize>, offset: u64, data: &[u8]) {
        let releases = &self.keys[key].releases;
        let mut expected = vec![0; data.len()];
        let mut has = |release: &Release| {
            stream_bytes(release.number, offset, &mut expected);
            offset + data.len() as u64 <= release.size && expected == data
        };
        let before = left.clone();
        left.retain(|at| has(&releases[*at]));
        if left.is_empty() && !before.is_empty() {
            let of: Vec<u64> = releases.iter().filter(|one| has(one)).map(|one| one.number).collect();
            let head: Vec<u64> = before.iter().map(|at| releases[*at].number).collect();
            let (name, end) = (&self.keys[key].name, offset + data.len() as u64);
            let what = format!("MIXED: bytes {offset}..{end} of {name} are of {of:?}, the answer is {head:?}");
            self.fail(what);
        }
    }
}

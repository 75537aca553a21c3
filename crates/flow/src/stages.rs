//! The time of a request, stage by stage.
//!
//! A request is at exactly one stage at a time, so the stages add up to its whole time. A change of
//! stage costs one read of the clock. The entry point of a request begins its [`Stages`] and runs
//! the work under [`measured`]. Lower layers report what they wait for with [`enter`] and need not
//! know the request. Where no request is measured, that costs one read of a task-local variable.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Env;

/// What a request waits for or works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Waits for a permit, where requests are bounded.
    Gate,
    /// Reads the request, verifies its signature and determines its operation.
    Parse,
    /// Waits for more of the request body.
    Receive,
    /// Waits for a budget of memory or disk space: backpressure.
    Reserve,
    /// Reads the index.
    Index,
    /// Reads from the disk, and writes pieces of large bodies.
    Disk,
    /// Waits for the frames in front of its commit.
    Queue,
    /// Writes and flushes the frame of its commit.
    Flush,
    /// Applies the commit to the index.
    Apply,
    /// Waits for the back end.
    Proxy,
    /// Waits for the client to take the response.
    Send,
    /// Everything else.
    Other,
}

const STAGES: usize = Stage::Other as usize + 1;

/// The longest name in a log line, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The beginning of a name that a client may have chosen.
pub(crate) fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// The stages of one request.
#[derive(Debug)]
pub struct Stages {
    env: Env,
    begun: Duration,
    laps: Mutex<Laps>,
}

#[derive(Debug)]
struct Laps {
    stage: Stage,
    since: Duration,
    spent: [Duration; STAGES],
    noted: Noted,
}

/// Details of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    /// The bucket or channel of the request.
    pub about: Box<str>,
    /// Bytes received of the request body.
    pub received: u64,
    /// Outcome: an HTTP status or an error code; 0 for none.
    pub outcome: u32,
}

impl Laps {
    fn end(&mut self, stage: Stage, now: Duration) {
        // Never backwards: an end that is reported late may lie before another one.
        let until = now.max(self.since);
        self.spent[stage as usize] += until - self.since;
        self.since = until;
    }
}

impl Stages {
    /// Begins a request now, at this stage.
    pub fn begin(env: &Env, stage: Stage) -> Arc<Self> {
        let begun = env.now();
        let laps = Laps { stage, since: begun, spent: [Duration::ZERO; STAGES], noted: Noted::default() };
        Arc::new(Self { env: env.clone(), begun, laps: Mutex::new(laps) })
    }

    /// Moves the request to another stage. Returns the previous one.
    pub fn enter(&self, stage: Stage) -> Stage {
        self.enter_at(stage, self.env.now())
    }

    /// Like [`Stages::enter`], for a caller that has read the clock.
    pub fn enter_at(&self, stage: Stage, now: Duration) -> Stage {
        let mut laps = self.laps.lock();
        let before = laps.stage;
        laps.end(before, now);
        laps.stage = stage;
        before
    }

    /// Sets the subject of the request. Only the first one counts.
    pub fn set_about(&self, about: &str) {
        let noted = &mut self.laps.lock().noted;
        if noted.about.is_empty() {
            noted.about = cut(about).into();
        }
    }

    /// Adds received bytes of the request body.
    pub fn add_received(&self, bytes: u64) {
        self.laps.lock().noted.received += bytes;
    }

    /// Sets the outcome of the request. Only the first non-zero one counts.
    pub fn set_outcome(&self, outcome: u32) {
        let noted = &mut self.laps.lock().noted;
        if noted.outcome == 0 {
            noted.outcome = outcome;
        }
    }

    /// The details noted so far.
    pub fn noted(&self) -> Noted {
        self.laps.lock().noted.clone()
    }

    /// The time spent at each stage up to now.
    pub fn spent(&self) -> Spent {
        let mut laps = self.laps.lock();
        let (stage, now) = (laps.stage, self.env.now());
        laps.end(stage, now);
        Spent { total: laps.since.saturating_sub(self.begun), stages: laps.spent }
    }

    /// Runs `work` as part of this request.
    pub fn within<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), work)
    }
}

/// The time of a request by stage.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    /// Time since the request began.
    pub total: Duration,
    stages: [Duration; STAGES],
}

impl Spent {
    /// Time spent at a stage.
    pub fn at(&self, stage: Stage) -> Duration {
        self.stages[stage as usize]
    }

    /// Time without that of the client: sending the body and taking the response.
    pub fn own(&self) -> Duration {
        self.total.saturating_sub(self.at(Stage::Receive) + self.at(Stage::Send))
    }

    /// Time at a stage in milliseconds, rounded to 0.1 ms; `None` when that is zero.
    pub fn ms(&self, stage: Stage) -> Option<f64> {
        Some(millis(self.at(stage))).filter(|ms| *ms > 0.0)
    }
}

/// Milliseconds, rounded to a tenth.
pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

tokio::task_local! {
    static CURRENT: Arc<Stages>;
}

/// Runs `work` as part of a request, whose stages are measured if given. Tasks that `work` starts
/// are not measured.
pub async fn measured<T>(stages: Option<Arc<Stages>>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    std::future::poll_fn(|context| match &stages {
        Some(stages) => stages.within(|| work.as_mut().poll(context)),
        None => work.as_mut().poll(context),
    })
    .await
}

/// Puts the current request at `stage` until the returned guard is dropped.
#[must_use = "the stage ends when this is dropped"]
pub fn enter(stage: Stage) -> Lap {
    Lap(current().map(|stages| {
        let before = stages.enter(stage);
        (stages, stage, before)
    }))
}

/// Notes a detail of the current request, if it is measured.
pub fn note(what: impl FnOnce(&Stages)) {
    let _ = CURRENT.try_with(|stages| what(stages));
}

/// The stages of the current request, if it is measured.
pub fn current() -> Option<Arc<Stages>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Guard of a stage. See [`enter`].
#[derive(Debug)]
pub struct Lap(Option<(Arc<Stages>, Stage, Stage)>);

impl Lap {
    /// Accounts the time up to `until`, a time of the environment's clock, to another stage.
    /// Callers use it when the stage is known only afterwards.
    pub fn was(&self, stage: Stage, until: Duration) {
        if let Some((stages, ..)) = &self.0 {
            stages.laps.lock().end(stage, until);
        }
    }
}

impl Drop for Lap {
    fn drop(&mut self) {
        let Some((stages, mine, before)) = &self.0 else { return };
        let now = stages.env.now();
        let mut laps = stages.laps.lock();
        // Of several concurrent waits, the one that began last counts.
        if laps.stage == *mine {
            laps.end(*mine, now);
            laps.stage = *before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Clock, Held};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn all_of_the_time_is_some_stages() {
        let clock = Clock::default();
        let (env, stages) = (clock.env(), Stages::begin(&clock.env(), Stage::Gate));
        let sleep = |ms: u32| env.sleep(ms * MS);
        let (gate, index, commit, rest) = (sleep(10), sleep(30), sleep(100), sleep(107));
        let known = stages.clone();
        let work = async move {
            gate.await;
            known.enter(Stage::Other);
            note(|stages| stages.set_about("a channel"));
            {
                let _lap = enter(Stage::Index);
                index.await;
            }
            let lap = enter(Stage::Apply);
            commit.await;
            lap.was(Stage::Queue, 40 * MS);
            lap.was(Stage::Flush, 90 * MS);
            drop(lap);
            note(|stages| stages.set_about("a later one"));
            rest.await;
        };
        let mut work = Held::new(measured(Some(stages.clone()), work));
        for _ in 0..107 {
            assert!(work.poll().is_none());
            clock.advance(MS);
        }
        assert!(work.poll().is_some());
        assert!(current().is_none(), "only while it runs");
        stages.enter(Stage::Send);
        clock.advance(5 * MS);
        let spent = stages.spent();
        let of = [Stage::Gate, Stage::Index, Stage::Queue, Stage::Flush, Stage::Apply, Stage::Other, Stage::Send];
        assert_eq!(of.map(|stage| spent.at(stage).as_millis()), [10, 20, 10, 50, 10, 7, 5]);
        assert_eq!((spent.total, spent.own()), (112 * MS, 107 * MS));
        assert_eq!((spent.ms(Stage::Flush), spent.ms(Stage::Disk)), (Some(50.0), None));
        assert_eq!(&*stages.noted().about, "a channel");
    }

    #[test]
    fn concurrent_waits_do_not_count_twice() {
        let clock = Clock::default();
        let (env, stages) = (clock.env(), Stages::begin(&clock.env(), Stage::Other));
        let wait = |ms: u32| {
            let sleep = env.sleep(ms * MS);
            async move {
                let _lap = enter(Stage::Disk);
                sleep.await;
            }
        };
        let both = futures::future::join(wait(10), wait(20));
        let mut both = Held::new(measured(Some(stages.clone()), both));
        while both.poll().is_none() {
            clock.advance(MS);
        }
        let spent = stages.spent();
        assert_eq!(spent.total, 20 * MS);
        assert!(spent.at(Stage::Disk) >= 10 * MS && spent.at(Stage::Disk) + spent.at(Stage::Other) == 20 * MS);
    }

    #[test]
    fn unmeasured_requests_measure_nothing() {
        let mut work = Held::new(measured(None, async { enter(Stage::Disk).0.is_none() }));
        assert_eq!(work.poll(), Some(true));
        let stages = Stages::begin(&Clock::default().env(), Stage::Gate);
        stages.set_about(&"é".repeat(100));
        assert_eq!(*stages.noted().about, "é".repeat(64), "a long name is cut between characters");
    }
}

//! Where the time of a request goes, stage by stage.
//!
//! A request is at one stage at a time, and all of its time is some stage's; going on to the next one costs a look at the clock. The door
//! that takes a request in begins its [`Stages`] and runs the work under [`measured`]; layers below say what they wait for with
//! [`enter`], and need not know for which request. Where no request is measured, that costs a look at a variable of the task.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Env;

/// What a request waits for, or is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its turn, where requests are bounded.
    Gate,
    /// It is read, its signature is verified, and it is found out what it wants.
    Parse,
    /// More of its body.
    Receive,
    /// Room in a budget of memory or on the disk: backpressure.
    Reserve,
    /// The index.
    Index,
    /// Reads from the disk, and pieces of large bodies to be written.
    Disk,
    /// The frames before the one that its commit is in.
    Queue,
    /// The write and flush of that frame.
    Flush,
    /// What was committed is taken into the index.
    Apply,
    /// The back end.
    Proxy,
    /// The client takes the answer.
    Send,
    /// All else.
    Other,
}

const STAGES: usize = Stage::Other as usize + 1;

/// The longest name in a log line, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The beginning of a name that a client may have chosen.
pub(crate) fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// Where the time of one request went.
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

/// What else is known of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    /// What it is about, a bucket or a channel.
    pub about: Box<str>,
    /// Bytes of its body.
    pub received: u64,
    /// What came of it: an HTTP status, or the code of an error, 0 for none.
    pub outcome: u32,
}

impl Laps {
    fn end(&mut self, stage: Stage, now: Duration) {
        // Never back: one may have been told of an end that came before another's.
        let until = now.max(self.since);
        self.spent[stage as usize] += until - self.since;
        self.since = until;
    }
}

impl Stages {
    /// Of a request that begins now, at this stage.
    pub fn begin(env: &Env, stage: Stage) -> Arc<Self> {
        let begun = env.now();
        let laps = Laps { stage, since: begun, spent: [Duration::ZERO; STAGES], noted: Noted::default() };
        Arc::new(Self { env: env.clone(), begun, laps: Mutex::new(laps) })
    }

    /// The request enters another stage. Returns the one before.
    pub fn enter(&self, stage: Stage) -> Stage {
        self.enter_at(stage, self.env.now())
    }

    /// The same for a caller that has read the clock.
    pub fn enter_at(&self, stage: Stage, now: Duration) -> Stage {
        let mut laps = self.laps.lock();
        let before = laps.stage;
        laps.end(before, now);
        laps.stage = stage;
        before
    }

    /// What the request is about: the first that is said counts.
    pub fn set_about(&self, about: &str) {
        let noted = &mut self.laps.lock().noted;
        if noted.about.is_empty() {
            noted.about = cut(about).into();
        }
    }

    /// So many bytes of its body have come.
    pub fn add_received(&self, bytes: u64) {
        self.laps.lock().noted.received += bytes;
    }

    /// What came of the request: the first that is not 0 counts.
    pub fn set_outcome(&self, outcome: u32) {
        let noted = &mut self.laps.lock().noted;
        if noted.outcome == 0 {
            noted.outcome = outcome;
        }
    }

    /// What was noted of it.
    pub fn noted(&self) -> Noted {
        self.laps.lock().noted.clone()
    }

    /// Where its time went up to now.
    pub fn spent(&self) -> Spent {
        let mut laps = self.laps.lock();
        let (stage, now) = (laps.stage, self.env.now());
        laps.end(stage, now);
        Spent { total: laps.since.saturating_sub(self.begun), stages: laps.spent }
    }

    /// Runs `work`, which is of this request.
    pub fn within<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), work)
    }
}

/// How long a request took, and where.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    /// From its beginning.
    pub total: Duration,
    stages: [Duration; STAGES],
}

impl Spent {
    /// At a stage.
    pub fn at(&self, stage: Stage) -> Duration {
        self.stages[stage as usize]
    }

    /// Without what its client took to send a body and to take the answer.
    pub fn own(&self) -> Duration {
        self.total.saturating_sub(self.at(Stage::Receive) + self.at(Stage::Send))
    }

    /// At a stage, in milliseconds for people; `None` for nothing worth telling.
    pub fn ms(&self, stage: Stage) -> Option<f64> {
        Some(millis(self.at(stage))).filter(|ms| *ms > 0.0)
    }
}

/// Milliseconds for people, to a tenth.
pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

tokio::task_local! {
    static CURRENT: Arc<Stages>;
}

/// Runs `work`, which is of a request whose stages somebody may want to know. Tasks that it starts are not part of that.
pub async fn measured<T>(stages: Option<Arc<Stages>>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    std::future::poll_fn(|context| match &stages {
        Some(stages) => stages.within(|| work.as_mut().poll(context)),
        None => work.as_mut().poll(context),
    })
    .await
}

/// The request that this is done for is at `stage` until what is returned is dropped.
#[must_use = "the stage ends when this is dropped"]
pub fn enter(stage: Stage) -> Lap {
    Lap(current().map(|stages| {
        let before = stages.enter(stage);
        (stages, stage, before)
    }))
}

/// Notes something of the request that this is done for, if anybody wants to know.
pub fn note(what: impl FnOnce(&Stages)) {
    let _ = CURRENT.try_with(|stages| what(stages));
}

/// The stages of the request that this is done for, if anybody wants to know them.
pub fn current() -> Option<Arc<Stages>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// A stage that lasts. See [`enter`].
#[derive(Debug)]
pub struct Lap(Option<(Arc<Stages>, Stage, Stage)>);

impl Lap {
    /// All up to `until`, a time of the environment's clock, was another stage: what was waited for tells afterwards.
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
        // Of several that are waited for together, the last one that began counts.
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
            note(|stages| stages.set_about("is said once"));
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
    fn waits_side_by_side_do_not_count_twice() {
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
    fn who_is_not_asked_measures_nothing() {
        let mut work = Held::new(measured(None, async { enter(Stage::Disk).0.is_none() }));
        assert_eq!(work.poll(), Some(true));
        let stages = Stages::begin(&Clock::default().env(), Stage::Gate);
        stages.set_about(&"é".repeat(100));
        assert_eq!(*stages.noted().about, "é".repeat(64), "a long name is cut between characters");
    }
}

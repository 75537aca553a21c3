//! Opening a pair: which legs belong together, and what of the fast one may be believed.
//!
//! The fast leg's map is believed when its label is of the fast leg that the durable leg's label names, and the map's event is one that the
//! durable leg knows and has not left behind: `cleared_at <= event of the map <= event`. An event is durable on the durable leg before
//! the map has it, and the fast leg gets nothing new where its map calls anything valid. So a durable leg that was put back to an earlier
//! time does not know the event of a map made since; and an older image of the fast leg has an event that was left behind.
//! The durable leg's label names no fast leg while there is none, and while it has failed: so whatever was written without it, what comes back is stale.
//! A fast leg that is not believed gets a new name, so that no image of it ever counts again. So does one of which a flush has failed, when it has
//! been opened again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use steadfast_flow::Env;

use super::core::{Leg, Shared, tick};
use super::map::{RegionMap, Saving, region_bytes};
use super::options::{SuperdiskOptions, SuperdiskSabotage};
use super::pair::{DURABLE_RESERVED, FAST_START, Identity, NO_LEG, find_durable, find_fast};
use super::saved::SavedMap;
use crate::label::{Found, new_uuid, uuid_text};
use crate::{BLOCK, Disk};

/// How much of the end of a disk must be blank for it to be taken.
const TAIL: u64 = 1 << 20;
/// A fast leg whose flushes fail again and again is looked at again at least after so many times the usual interval.
const RETRY_FACTOR_MAX: u32 = 6;

/// What the fast leg turned out to be.
enum Probe {
    Blank,
    /// Of this pair; with its map where that may be believed.
    Ours {
        label: Identity,
        current: bool,
        map: Option<SavedMap>,
    },
    Foreign(String),
}

fn data_error(disk: &Arc<dyn Disk>, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", disk.describe()))
}

async fn is_blank(disk: &Arc<dyn Disk>, from: u64, to: u64) -> io::Result<bool> {
    let (mut at, to) = (from / BLOCK as u64 * BLOCK as u64, to.min(disk.len()) / BLOCK as u64 * BLOCK as u64);
    while at < to {
        let len = (to - at).min(256 << 10);
        if disk.read(at, len as usize).await?.iter().any(|b| *b != 0) {
            return Ok(false);
        }
        at += len;
    }
    Ok(true)
}

/// Looks at the fast leg. `before`: the durable leg's label from before this opening.
async fn probe(fast: &Arc<dyn Disk>, before: Option<&Identity>, take_foreign: bool) -> io::Result<Probe> {
    if fast.geometry().capacity_bytes < FAST_START + 4 * BLOCK as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is too small to be a fast leg"));
    }
    let foreign = |what: String| if take_foreign { Probe::Blank } else { Probe::Foreign(what) };
    Ok(match find_fast(fast).await? {
        Found::Label(label) if before.is_some_and(|before| before.pair == label.pair) => {
            let (current, map) = match before {
                Some(before) => believed(fast, before, &label).await,
                None => (false, None),
            };
            Probe::Ours { label, current, map }
        }
        Found::Label(label) => foreign(format!("it is the fast leg of another pair, {}", uuid_text(&label.pair))),
        Found::Damaged => foreign("its label as a fast leg is damaged".into()),
        Found::Version(version) => foreign(format!("its label is of format version {version}")),
        Found::Blank
            if is_blank(fast, 0, FAST_START).await?
                && is_blank(fast, fast.len().saturating_sub(TAIL), u64::MAX).await? =>
        {
            Probe::Blank
        }
        Found::Blank | Found::Other => foreign("it holds something that is not Steadfast's".into()),
    })
}

/// Whether a fast leg with this label is of the same time as the durable leg (`pair` is that one's label), and its map where one counts.
pub(super) async fn believed(fast: &Arc<dyn Disk>, pair: &Identity, label: &Identity) -> (bool, Option<SavedMap>) {
    if !pair.names(label) {
        return (false, None);
    }
    match SavedMap::find(fast, label).await {
        Some(map) if !pair.covers(map.event) => {
            let (disk, of, known) = (fast.describe(), map.event, (pair.cleared_at, pair.event));
            tracing::warn!(disk, of, ?known, "one leg has been put back to an earlier time than the other");
            (false, None)
        }
        map => (true, map),
    }
}

/// The pair as the durable leg knows it, and whether that is blank altogether.
async fn inspect_durable(durable: &Arc<dyn Disk>) -> io::Result<(Option<Identity>, bool)> {
    if !matches!(find_fast(durable).await, Ok(Found::Blank | Found::Other) | Err(_)) {
        return Err(data_error(durable, "this is the fast leg of a super-disk, given as its durable leg: swap them"));
    }
    match find_durable(durable).await {
        Ok(Found::Label(label)) => Ok((Some(label), false)),
        Ok(Found::Blank) => Ok((None, is_blank(durable, 0, DURABLE_RESERVED).await?)),
        Ok(Found::Damaged) => {
            tracing::warn!(disk = durable.describe(), "both labels of the pair are damaged: it gets new ones");
            Ok((None, false))
        }
        Ok(Found::Version(version)) => {
            Err(data_error(durable, &format!("its label as a durable leg is of format version {version}")))
        }
        Ok(Found::Other) => Err(data_error(
            durable,
            "it holds something that is not Steadfast's where the labels of a pair belong: it cannot be a durable leg",
        )),
        Err(error) => {
            let text = format!("{}: the labels of the pair cannot be read: {error}", durable.describe());
            Err(io::Error::new(error.kind(), text))
        }
    }
}

/// Opens the legs. No task runs yet.
pub(super) async fn open(
    durable: Arc<dyn Disk>,
    fast: Option<Arc<dyn Disk>>,
    env: Env,
    options: SuperdiskOptions,
) -> io::Result<Arc<Shared>> {
    if fast.as_ref().is_some_and(|fast| Arc::ptr_eq(fast, &durable)) {
        let text = format!("{} is given as both legs of one super-disk", durable.describe());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if let Some(zoned) =
        [Some(&durable), fast.as_ref()].into_iter().flatten().find(|leg| leg.geometry().zones.is_some())
    {
        let text = format!("{} is zoned: it cannot be a leg of a super-disk", zoned.describe());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if durable.len() < DURABLE_RESERVED {
        durable.reserve(DURABLE_RESERVED).await?;
    }
    let (before, blank) = inspect_durable(&durable).await?;
    let start = env.now();
    let left = |env: &Env| options.fast_open_limit.saturating_sub(env.now().saturating_sub(start));
    let late = || format!("it did not answer within {} ms", options.fast_open_limit.as_millis());
    let probed = match &fast {
        None => Err(Leg::Missing),
        Some(fast) => match env.timeout(left(&env), probe(fast, before.as_ref(), options.take_foreign_fast)).await {
            Some(Ok(Probe::Foreign(what))) => Err(Leg::Foreign(what)),
            Some(Ok(probe)) => Ok(probe),
            Some(Err(error)) => Err(Leg::Failed(error.to_string())),
            None => Err(Leg::Failed(late())),
        },
    };
    // Nothing of a new pair is worth copying before it is written.
    let wanted = !(blank && matches!(probed, Ok(Probe::Blank)));
    let fast_capacity = fast.as_ref().map_or(0, |fast| fast.geometry().capacity_bytes.saturating_sub(FAST_START));
    let region = region_bytes(options.region_bytes, durable.geometry().capacity_bytes.min(fast_capacity));
    let (stale, saved) = match &probed {
        Ok(Probe::Ours { map, current, .. }) => (!current, map.clone().filter(|map| map.region_bytes == region)),
        _ => (false, None),
    };
    let event = before.map_or(0, |before| before.event) + 1;
    let mut identity = Identity {
        pair: before.map_or_else(|| new_uuid(&env), |before| before.pair),
        fast: match &probed {
            // Not with events that begin anew: they might be those of an older image.
            Ok(Probe::Ours { label, .. }) if saved.is_some() && event > 1 => label.fast,
            Ok(_) => new_uuid(&env),
            Err(_) => NO_LEG,
        },
        generation: before.map_or(0, |before| before.generation) + 1,
        event,
        // Until the fast leg has the new event, it has the one that it was believed with.
        cleared_at: saved.as_ref().map_or(event, |map| map.event),
    };
    identity.write_durable(&durable).await?;
    let settle_ms = u64::try_from(options.rebuild_settle.as_millis()).unwrap_or(u64::MAX);
    let mut map = RegionMap::new(region, settle_ms, wanted);
    let (mut leg, mut number, mut saved_number) = (Leg::Up, 0, None);
    let answered = probed.is_ok();
    match (probed, &fast) {
        (Ok(_), Some(fast)) => {
            number = saved.as_ref().map_or(0, |map| map.number) + 1;
            let saved = saved.map(|map| SavedMap { number, event, ..map });
            match env.timeout(left(&env), attach(fast, &identity, saved.as_ref())).await {
                Some(Ok(())) => {}
                Some(Err(error)) => leg = Leg::Failed(error.to_string()),
                None => leg = Leg::Failed(late()),
            }
            if leg == Leg::Up {
                map.resize(durable.len(), fast.len().saturating_sub(FAST_START));
                if let Some(saved) = &saved {
                    map.load(&saved.entries);
                    saved_number = Some(number);
                    // Durable with what is flushed next.
                    identity.cleared_at = event;
                    identity.write_durable_unflushed(&durable).await?;
                }
                if stale && options.sabotage == SuperdiskSabotage::TrustStale {
                    map.trust();
                }
            } else {
                // What it got of its new label may yet arrive there.
                identity.fast = NO_LEG;
                identity.write_durable(&durable).await?;
            }
        }
        (Err(why), _) => leg = why,
        (Ok(_), None) => leg = Leg::Missing,
    }
    if matches!(leg, Leg::Failed(_)) {
        // It is followed from the beginning, in case that it comes back.
        map.resize(durable.len(), 0);
    }
    map.new_is_blank();
    tell(&leg, fast.as_ref(), stale);
    let attached = (leg == Leg::Up).then_some(Identity { cleared_at: 0, ..identity });
    let failed = matches!(leg, Leg::Failed(_));
    let shared = Shared::new(env, options, durable, fast, map, leg, identity);
    {
        let mut state = shared.state.lock();
        (state.attached, state.stale, state.map_number) = (attached, stale, number);
        state.saved_number = saved_number;
        (state.spoiled, state.silent) = (failed && answered, failed && !answered);
    }
    Ok(shared)
}

fn tell(leg: &Leg, fast: Option<&Arc<dyn Disk>>, stale: bool) {
    let disk = fast.map(|fast| fast.describe());
    match leg {
        Leg::Up if stale => tracing::warn!(disk, "the fast leg is of an earlier time: it is rebuilt"),
        Leg::Up => tracing::info!(disk, "fast leg in use"),
        Leg::Missing => tracing::warn!("no fast leg: everything is served by the durable leg"),
        Leg::Foreign(what) => {
            tracing::warn!(disk, what, "the fast leg is left alone: allow it to be taken, or give a blank one")
        }
        Leg::Failed(why) => {
            tracing::warn!(disk, why, "the fast leg cannot be used: everything is served by the durable leg")
        }
    }
}

/// Makes the fast leg one of this generation. The label comes last: it says that the map counts.
async fn attach(fast: &Arc<dyn Disk>, identity: &Identity, map: Option<&SavedMap>) -> io::Result<()> {
    if fast.len() < FAST_START {
        fast.reserve(FAST_START).await?;
    }
    if let Some(map) = map {
        map.write(fast, identity).await?;
        fast.flush().await?;
    }
    Identity { cleared_at: 0, ..*identity }.write_fast(fast).await
}

impl Shared {
    /// What is done about a fast leg that has failed: it is disowned, and looked at again after a while.
    pub(crate) async fn look_again(self: &Arc<Self>) -> Option<Duration> {
        self.disown().await;
        let closing = async {
            while !self.is_closing() {
                self.copier_wake.notified().await;
            }
        };
        let relapses = self.state.lock().relapses;
        let wait = self.options.fast_retry_interval * (1 << relapses.min(8)).min(RETRY_FACTOR_MAX);
        if self.env.timeout(wait, closing).await.is_none()
            // What is still on its way there says that it hangs.
            && self.pending.load(SeqCst) == 0
            && self.overdue.load(SeqCst) == 0
            && self.map_writes.load(SeqCst) == 0
        {
            self.revive().await;
        }
        Some(Duration::ZERO)
    }

    /// Has the durable leg's label name no fast leg while that has failed: what it misses now makes it stale.
    pub(crate) async fn disown(&self) {
        if matches!(self.state.lock().leg, Leg::Failed(_)) {
            self.name_fast_leg(NO_LEG, 0).await;
        }
    }

    /// Writes which fast leg counts into the durable leg's labels, and which event it is known to have (0: as before); durable with the next
    /// flush of what lies above. When that fails, the next attempt comes soon, and the caller of the durable leg learns of its state by himself.
    pub(crate) async fn name_fast_leg(&self, leg: [u8; 16], event: u64) {
        let _one = self.naming.lock().await;
        if leg != NO_LEG && self.state.lock().leg != Leg::Up {
            return;
        }
        let before = self.state.lock().identity;
        let identity = Identity { fast: leg, cleared_at: before.cleared_at.max(event), ..before };
        if before == identity {
            return;
        }
        if identity.write_durable_unflushed(&self.durable).await.is_ok() {
            self.state.lock().identity = identity;
        }
    }

    /// Closes the fast leg and opens it again, where it needs that. Whether it may be looked at.
    async fn reopen(&self, fast: &Arc<dyn Disk>) -> bool {
        let (spoiled, silent) = {
            let state = self.state.lock();
            (state.spoiled, state.silent)
        };
        if !spoiled && !silent {
            return true;
        }
        // It goes on when the limit ends the wait.
        match self.env.timeout(self.options.fast_write_limit, fast.reopen()).await {
            Some(Ok(())) => {
                tick(&self.counters.fast_reopened);
                let mut state = self.state.lock();
                (state.silent, state.fast_full) = (false, false);
                true
            }
            // It may answer again by itself.
            Some(Err(error)) if error.kind() == io::ErrorKind::Unsupported && !spoiled => true,
            Some(Err(error)) => {
                let mut state = self.state.lock();
                if matches!(state.leg, Leg::Failed(_)) {
                    state.leg = Leg::Failed(format!("it cannot be opened again: {error}"));
                }
                false
            }
            None => false,
        }
    }

    async fn revive(self: &Arc<Self>) {
        let Some(fast) = self.fast.clone() else { return };
        if !self.reopen(&fast).await {
            return;
        }
        let (identity, attached, spoiled) = {
            let state = self.state.lock();
            (state.identity, state.attached, state.spoiled)
        };
        let limit = self.options.fast_open_limit;
        let before = attached.unwrap_or(identity);
        let probed = self.env.timeout(limit, probe(&fast, Some(&before), self.options.take_foreign_fast)).await;
        let silent = matches!(probed, Some(Err(_)) | None);
        self.state.lock().silent = silent;
        let (legs, stale) = match probed {
            // What was written since the last flush that succeeded may or may not be there, for good or for now.
            Some(Ok(Probe::Ours { .. })) if spoiled => (Identity { fast: new_uuid(&self.env), ..identity }, false),
            Some(Ok(Probe::Ours { label, .. })) if attached == Some(label) => {
                // Nothing is taken from memory but what the leg's own map confirms: it may be an older image of itself.
                let Some(map) = self.env.timeout(limit, SavedMap::find(&fast, &label)).await else { return };
                let mut state = self.state.lock();
                let newest = |map: &SavedMap| state.saved_number.is_some_and(|number| map.number >= number);
                match map.filter(newest) {
                    Some(map) => {
                        state.map.restrict(&map.entries);
                        state.map_number = state.map_number.max(map.number);
                        (label, false)
                    }
                    None => (Identity { fast: new_uuid(&self.env), ..identity }, state.saved_number.is_some()),
                }
            }
            Some(Ok(Probe::Blank)) if attached.is_none() => (Identity { fast: new_uuid(&self.env), ..identity }, false),
            Some(Ok(Probe::Ours { .. })) => (Identity { fast: new_uuid(&self.env), ..identity }, true),
            _ if attached.is_some() => return,
            Some(Ok(Probe::Blank)) => return,
            Some(Ok(Probe::Foreign(what))) => {
                let leg = Leg::Foreign(what);
                tell(&leg, Some(&fast), false);
                self.state.lock().leg = leg;
                return;
            }
            Some(Err(_)) | None => return,
        };
        let known = attached == Some(legs);
        let legs = Identity { cleared_at: 0, ..legs };
        let works = match known {
            false => matches!(self.env.timeout(limit, attach(&fast, &legs, None)).await, Some(Ok(()))),
            true => matches!(self.env.timeout(limit, legs.is_kept(&fast)).await, Some(Ok(true))),
        };
        {
            let mut state = self.state.lock();
            if !works {
                // What failed may have been the flush of its new label.
                (state.spoiled, state.silent) = (spoiled || !known, known);
                return;
            }
            if !known {
                // Maps of the name that it had do not count any more.
                state.map.forget_all();
                state.saved_number = None;
            }
            (state.attached, state.leg) = (Some(legs), Leg::Up);
            state.stale |= stale;
            state.spoiled = false;
            state.relapses += u32::from(spoiled);
        }
        self.fast_works();
        self.resize();
        if spoiled {
            tracing::warn!(disk = fast.describe(), "the fast leg is in use again, and filled anew");
        } else {
            tell(&Leg::Up, Some(&fast), stale);
        }
        // The durable leg names it again once its map is saved.
        self.save_map(Saving::All).await;
    }
}

//! Opening a pair: whether the legs belong together, and which regions of the fast leg are trusted.
//!
//! The fast leg is trusted when the durable leg's label names it, and the durable leg knows its
//! event: `cleared_at <= event of the fast leg <= event`. A durable leg that was restored to an
//! earlier time does not know the event of a fast leg that was written since. An older image of the
//! fast leg has an event below `cleared_at`. Each opening draws a number for both labels. That
//! number identifies a fast leg of another history, after both legs were restored to an earlier
//! time. A fast leg of several devices is trusted when each of them is.
//!
//! On a trusted fast leg, the regions whose intent bit is clear count. An untrusted leg gets a new
//! name, so that no image of it ever counts again, and all bits are set. While the fast leg is
//! away, the durable leg still names it, and writes set bits.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use steadfast_flow::{Env, has_fault};

use super::compare::samples_differ;
use super::core::{Leg, SuperdiskShared};
use super::leg_labels::{LegLabels, find_fast};
use super::map::{RegionMap, region_bytes};
use super::options::{SuperdiskOptions, SuperdiskSabotage};
use super::pair::{
    DURABLE_RESERVED, FAST_START, Identity, LAST_WRITTEN, NO_LEG, find_durable, read_intent, write_new_pair,
};
use crate::intent::Intent;
use crate::label::{Found, new_uuid, uuid_text};
use crate::{BLOCK, Disk};

/// Bytes at the end of a disk that must be blank before it is used as a fast leg.
const TAIL: u64 = 1 << 20;
/// The result of probing the fast leg.
pub(super) enum Probe {
    Blank,
    /// A leg of this pair, with these labels.
    Ours(LegLabels),
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

/// Probes the fast leg. `pair` is the durable leg's label.
pub(super) async fn probe(fast: &Arc<dyn Disk>, pair: Option<&Identity>, take_foreign: bool) -> io::Result<Probe> {
    if fast.geometry().capacity_bytes < FAST_START + 4 * BLOCK as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is too small to be a fast leg"));
    }
    let foreign = |what: String| if take_foreign { Probe::Blank } else { Probe::Foreign(what) };
    Ok(match find_fast(fast).await? {
        Found::Label(labels) if pair.is_some_and(|pair| pair.pair == labels.oldest().pair) => Probe::Ours(labels),
        Found::Label(labels) => {
            foreign(format!("it is the fast leg of another pair, {}", uuid_text(&labels.oldest().pair)))
        }
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

/// The pair according to the durable leg, and whether that leg is entirely blank.
async fn inspect_durable(durable: &Arc<dyn Disk>) -> io::Result<(Option<Identity>, bool)> {
    if !matches!(find_fast(durable).await, Ok(Found::Blank | Found::Other) | Err(_)) {
        return Err(data_error(durable, "this is the fast leg of a super-disk, given as its durable leg: swap them"));
    }
    match find_durable(durable).await {
        Ok(Found::Label(label)) => Ok((Some(label), false)),
        Ok(Found::Blank) => Ok((None, is_blank(durable, 0, DURABLE_RESERVED).await?)),
        Ok(Found::Damaged) => {
            tracing::warn!(disk = durable.describe(), "both labels of the pair are damaged: new ones are written");
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

/// Refuses legs that cannot form a pair.
fn check_legs(durable: &Arc<dyn Disk>, fast: Option<&Arc<dyn Disk>>) -> io::Result<()> {
    if fast.is_some_and(|fast| Arc::ptr_eq(fast, durable)) {
        let text = format!("{} is given as both legs of one super-disk", durable.describe());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if let Some(zoned) = [Some(durable), fast].into_iter().flatten().find(|leg| leg.geometry().zones.is_some()) {
        let text = format!("{} is zoned: it cannot be a leg of a super-disk", zoned.describe());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

/// Probes the fast leg, if one is given, within `limit`. The error is the leg's state where it is
/// missing or must not be used.
async fn probe_within(
    limit: Duration,
    fast: Option<&Arc<dyn Disk>>,
    pair: Option<&Identity>,
    env: &Env,
    options: &SuperdiskOptions,
) -> Result<Probe, Leg> {
    let Some(fast) = fast else { return Err(Leg::Missing) };
    match env.timeout(limit, probe(fast, pair, options.take_foreign_fast)).await {
        Some(Ok(Probe::Foreign(what))) => Err(Leg::Foreign(what)),
        Some(Ok(probe)) => Ok(probe),
        Some(Err(error)) => Err(Leg::Failed(error.to_string())),
        None => Err(Leg::Failed(timed_out(options))),
    }
}

/// The failure of a fast leg that did not answer during an opening.
fn timed_out(options: &SuperdiskOptions) -> String {
    format!("it did not answer within {} ms", options.fast_open_limit.as_millis())
}

/// Opens the legs. No task runs yet.
pub(super) async fn open(
    durable: Arc<dyn Disk>,
    fast: Option<Arc<dyn Disk>>,
    env: Env,
    options: SuperdiskOptions,
) -> io::Result<Arc<SuperdiskShared>> {
    check_legs(&durable, fast.as_ref())?;
    if durable.len() < DURABLE_RESERVED {
        durable.reserve(DURABLE_RESERVED).await?;
    }
    // Writes of a killed process may still be in the disk's cache. They are made durable before
    // they are read.
    if !has_fault(options.sabotage, SuperdiskSabotage::NoFlushAtOpening) {
        durable.flush().await?;
    }
    let (before, blank) = inspect_durable(&durable).await?;
    let start = env.now();
    let left = |env: &Env| options.fast_open_limit.saturating_sub(env.now().saturating_sub(start));
    let probed = probe_within(left(&env), fast.as_ref(), before.as_ref(), &env, &options).await;
    let fast_capacity = fast.as_ref().map_or(0, |fast| fast.geometry().capacity_bytes.saturating_sub(FAST_START));
    let region = region_bytes(options.region_bytes, durable.geometry().capacity_bytes.min(fast_capacity));
    let mut belief = belief(&probed, before.as_ref(), region, options.sabotage);
    if let (Belief::Known(_), Some(pair), Some(fast), Some(data)) = (&belief, &before, &fast, options.compare_at_open) {
        match env.timeout(left(&env), samples_differ(&durable, fast, pair, data, &env)).await {
            Some(Ok(None)) => {}
            Some(Ok(Some(at))) => belief = Belief::New(format!("the durable leg was written elsewhere: at {at}")),
            Some(Err(error)) => belief = Belief::New(format!("its samples cannot be compared: {error}")),
            None => belief = Belief::New("its samples were not compared in time".to_owned()),
        }
    }
    let (identity, mut intent) = name_legs(&durable, before, &belief, region, &env, options.sabotage).await?;
    // The content of a new pair needs no copy before it is written.
    let wanted = !(blank && matches!(probed, Ok(Probe::Blank)));
    let settle_ms = u64::try_from(options.rebuild_settle.as_millis()).unwrap_or(u64::MAX);
    let mut map = RegionMap::new(identity.region_bytes, settle_ms, wanted);
    let silent = matches!(probed, Err(Leg::Failed(_)));
    let stale = matches!(probed, Ok(Probe::Ours(_))) && matches!(belief, Belief::New(_));
    let known = matches!(belief, Belief::Known(_));
    let leg = match (probed, &fast) {
        (Ok(_), Some(_)) if known && has_fault(options.sabotage, SuperdiskSabotage::NoStampAtOpening) => Leg::Up,
        (Ok(_), Some(fast)) => match env.timeout(left(&env), attach(fast, &identity)).await {
            Some(Ok(())) => Leg::Up,
            Some(Err(error)) => Leg::Failed(error.to_string()),
            None => Leg::Failed(timed_out(&options)),
        },
        (Err(why), _) => why,
        (Ok(_), None) => Leg::Missing,
    };
    (map.sabotage, intent.clears_under_writes) =
        (options.sabotage, has_fault(options.sabotage, SuperdiskSabotage::ClearUnderWrite));
    map.resize(durable.len(), if leg == Leg::Up { fast_limit(fast.as_ref()) } else { 0 });
    map.new_is_blank();
    if leg == Leg::Up {
        trust_regions(&mut map, &intent, options.sabotage, (stale, known));
    }
    let refused = match belief {
        Belief::New(why) if before.is_some() => Some(why),
        _ => None,
    };
    log_leg(&leg, fast.as_ref(), refused.as_deref());
    let spoiled = matches!(leg, Leg::Failed(_)) && !silent;
    let shared = SuperdiskShared::new(env, options, (durable, fast), map, intent, leg, identity);
    {
        let mut state = shared.state.lock();
        (state.stale, state.refused) = (stale, refused);
        (state.spoiled, state.silent) = (spoiled, silent);
    }
    Ok(shared)
}

/// Marks the regions of the fast leg that count: those whose intent bit is clear.
fn trust_regions(map: &mut RegionMap, intent: &Intent, sabotage: SuperdiskSabotage, (stale, known): (bool, bool)) {
    map.trust_only(|region| intent.is_clean(region));
    let all = has_fault(sabotage, SuperdiskSabotage::TrustStale) && (stale || known)
        || has_fault(sabotage, SuperdiskSabotage::DirtyFastBelieved) && known;
    if all {
        map.trust();
    }
}

/// The decision of an opening about the fast leg.
enum Belief {
    /// The durable leg names it, and its event is valid. Holds the opening number of its label.
    Known(u32),
    /// It gets a new name; the text is the reason.
    New(String),
    /// It is missing or must not be used.
    Away,
}

fn belief(probed: &Result<Probe, Leg>, before: Option<&Identity>, region: u64, sabotage: SuperdiskSabotage) -> Belief {
    match (probed, before) {
        (Err(_), _) => Belief::Away,
        (Ok(Probe::Ours(labels)), Some(before)) => match labels.refused_by(before, sabotage) {
            Some(why) => Belief::New(why.to_owned()),
            None if before.region_bytes != region => Belief::New("the region size has changed".to_owned()),
            None => Belief::Known(labels.oldest().opening),
        },
        (Ok(_), _) => Belief::New("it was blank".to_owned()),
    }
}

/// Writes the durable leg's label, where it changes, at both of its places. Returns which regions
/// are the same on both legs.
async fn name_legs(
    durable: &Arc<dyn Disk>,
    before: Option<Identity>,
    belief: &Belief,
    region_bytes: u64,
    env: &Env,
    sabotage: SuperdiskSabotage,
) -> io::Result<(Identity, Intent)> {
    let known = before.unwrap_or(Identity {
        pair: new_uuid(env),
        fast: NO_LEG,
        opening: 0,
        opening_before: 0,
        generation: 0,
        event: 0,
        cleared_at: 0,
        seq: 0,
        region_bytes: 0,
        last_written: [0; LAST_WRITTEN],
    });
    match belief {
        Belief::Known(_) if has_fault(sabotage, SuperdiskSabotage::NoStampAtOpening) => {
            Ok((known, read_intent(&known, durable).await))
        }
        Belief::Known(opening) => {
            let identity = Identity { generation: known.generation + 1, ..known.reopened(*opening, env) };
            let identity = identity.write_durable_flushed(durable).await?.write_durable(durable).await?;
            Ok((identity, read_intent(&identity, durable).await))
        }
        Belief::New(_) => {
            let new = Identity { generation: known.generation + 1, region_bytes, ..known.renamed(env) };
            let identity = write_new_pair(new, durable, sabotage).await?.write_durable(durable).await?;
            Ok((identity, Intent::new()))
        }
        // The durable leg still names the absent fast leg, so writes meanwhile set bits.
        Belief::Away if known.fast != NO_LEG => Ok((known, read_intent(&known, durable).await)),
        Belief::Away => {
            let new = Identity { generation: known.generation + 1, region_bytes, ..known };
            let identity = new.write_durable_flushed(durable).await?.write_durable(durable).await?;
            Ok((identity, Intent::new()))
        }
    }
}

pub(super) fn log_leg(leg: &Leg, fast: Option<&Arc<dyn Disk>>, refused: Option<&str>) {
    let disk = fast.map(|fast| fast.describe());
    match (leg, refused) {
        (Leg::Up, Some(why)) => tracing::warn!(disk, why, "the content of the fast leg is refused: the leg is rebuilt"),
        (Leg::Up, None) => tracing::info!(disk, "fast leg in use"),
        (Leg::Missing, _) => tracing::warn!("no fast leg: the durable leg serves all requests"),
        (Leg::Foreign(what), _) => {
            tracing::warn!(
                disk,
                what,
                "the fast leg holds foreign data and is not touched: allow it to be overwritten, or attach a blank one"
            )
        }
        (Leg::Failed(why), _) => {
            tracing::warn!(disk, why, "the fast leg cannot be used: the durable leg serves all requests")
        }
    }
}

/// Bytes of the durable leg that fit the fast one.
pub(super) fn fast_limit(fast: Option<&Arc<dyn Disk>>) -> u64 {
    fast.map_or(0, |fast| fast.len().saturating_sub(FAST_START)) / BLOCK as u64 * BLOCK as u64
}

/// Writes the label that matches the durable leg's to the fast leg.
async fn attach(fast: &Arc<dyn Disk>, identity: &Identity) -> io::Result<()> {
    if fast.len() < FAST_START {
        fast.reserve(FAST_START).await?;
    }
    identity.of_fast().write_new_fast(fast).await
}

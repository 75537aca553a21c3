//! Opening of a pool: finds its members, missing disks, and foreign disks.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use steadfast_flow::{Env, has_fault};
use steadfast_log::{LogError, LogState, RecoveryReport};
use tokio::sync::Semaphore;

use super::topology::{Member, Missing};
use crate::layout::{DISKS_MAX, Layout, Seat};
use crate::record::epoch_break::EpochBreak;
use crate::record::keys::Id;
use crate::shard::peek::{Peeked, Until, peek, saved_layout, saved_objects};
use crate::shard::{Shard, ShardReport, pool_of};
use crate::{IndexKind, OpenReport, PoolDisk, StoreError, StoreOptions, StoreSabotage};

/// Maximum bytes of a disk's name in the layout's record.
const NAME_BYTES_MAX: usize = 200;

/// A configured disk.
struct Given {
    name: String,
    /// Zeros when it cannot be read.
    id: Id,
    hint: bool,
    capacity_bytes: u64,
    shard: Result<(Shard, ShardReport), StoreError>,
}

/// Members, layout and skipped disks.
struct Seated {
    members: Vec<Arc<Member>>,
    layout: Option<Arc<Layout>>,
    left_out: Vec<(String, String)>,
}

pub(super) fn refuse(why: String) -> StoreError {
    LogError::Open(why).into()
}

/// A pool whose disks were opened.
pub(super) struct OpenedPool {
    pub(super) members: Vec<Arc<Member>>,
    pub(super) layout: Option<Arc<Layout>>,
    /// Without the repair of buckets.
    pub(super) report: OpenReport,
}

impl OpenedPool {
    /// Opens the disks, in any order, and finds how they belong together.
    pub(super) async fn open(
        disks: Vec<PoolDisk>,
        index: &IndexKind,
        env: &Env,
        options: &StoreOptions,
        read_ahead: &Arc<Semaphore>,
    ) -> Result<Self, StoreError> {
        if disks.is_empty() || disks.len() > DISKS_MAX {
            return Err(refuse(format!("a pool of {} disks: it must have 1 to {DISKS_MAX}", disks.len())));
        }
        let (given, strangers) = open_all(disks, index, env, options, read_ahead).await?;
        let members = match seat(&given, index, env).await {
            Ok(members) => members,
            Err(e) => {
                join_all(given.iter().filter_map(|g| g.shard.as_ref().ok()).map(|(shard, _)| shard.close())).await;
                return Err(e);
            }
        };
        let Seated { members, layout, mut left_out } = members;
        let put_back = options.put_back && !has_fault(options.sabotage, StoreSabotage::EpochsKept);
        if let Err(e) = level_epochs(&members, put_back, env).await {
            join_all(members.iter().filter_map(|member| member.shard.as_ref().ok()).map(Shard::close)).await;
            return Err(e);
        }
        left_out.extend(strangers);
        let missing: Vec<(String, String)> = members
            .iter()
            .filter_map(|member| Some((member.name.clone(), member.shard.as_ref().err()?.why.clone())))
            .collect();
        for (name, why) in &missing {
            tracing::error!(disk = %name, %why, "a disk of the pool is missing: its keys can be neither read nor \
             written");
        }
        let reports: Vec<(String, ShardReport)> =
            given.into_iter().filter_map(|g| Some((g.name, g.shard.ok()?.1))).collect();
        let logs: Vec<(String, RecoveryReport)> =
            reports.iter().map(|(name, report)| (name.clone(), report.recovery.clone())).collect();
        let Some((_, recovery)) = logs.first().cloned() else { return Err(refuse("no disk could be opened".into())) };
        let report = OpenReport {
            recovery,
            index_rebuilt: reports.iter().any(|(_, report)| report.index_rebuilt),
            replayed_records: reports.iter().map(|(_, report)| report.replayed_records).sum(),
            disks: logs,
            missing,
            left_out,
            moves_unfinished: layout.as_ref().is_some_and(|layout| layout.has_work()),
            buckets_repaired: 0,
        };
        Ok(Self { members, layout, report })
    }
}

/// Opens every disk separately. A failed one is kept with its error, unless it is the only one.
async fn open_all(
    disks: Vec<PoolDisk>,
    index: &IndexKind,
    env: &Env,
    options: &StoreOptions,
    read_ahead: &Arc<Semaphore>,
) -> Result<(Vec<Given>, Vec<(String, String)>), StoreError> {
    let count = disks.len();
    let mut ids = Vec::with_capacity(count);
    for disk in &disks {
        ids.push(match &disk.disk {
            Ok(disk) => pool_of(disk).await,
            Err(_) => Id::default(),
        });
    }
    for (i, id) in ids.iter().enumerate() {
        if let Some(first) = ids[..i].iter().position(|other| other == id && *id != Id::default()) {
            let (first, second) = (&disks[first].name, &disks[i].name);
            return Err(refuse(format!(
                "{first} and {second} are the same disk of a pool, or one is a copy of the other: name only one of \
                 them"
            )));
        }
    }
    let options = options.of_one_disk(count);
    let mut strangers = Vec::new();
    if count > 1 {
        adopt_index(index, env, &ids).await;
        strangers = refuse_strangers(&disks, &ids, index, env).await?;
    }
    let disks = disks.into_iter().zip(ids).enumerate().filter(|(i, _)| !strangers.iter().any(|(at, _)| at == i));
    let given = join_all(disks.map(|(_, (PoolDisk { name, disk, hint }, id))| {
        let (env, options, read_ahead) = (env.clone(), options.clone(), read_ahead.clone());
        let index = if count == 1 { index.of_only_disk(&id) } else { index.of_disk(&id) };
        async move {
            let (capacity_bytes, shard) = match disk {
                Ok(disk) => {
                    let capacity_bytes = disk.geometry().capacity_bytes;
                    (capacity_bytes, Shard::open(disk, index, env, options, read_ahead).await)
                }
                Err(why) => (0, Err(refuse(why))),
            };
            Given { name, id, hint, capacity_bytes, shard }
        }
    }))
    .await;
    let left_out = strangers.into_iter().map(|(_, reason)| reason).collect();
    match <[Given; 1]>::try_from(given) {
        Ok([only]) => match only.shard {
            Ok(_) => Ok((vec![only], left_out)),
            Err(e) => Err(e),
        },
        Err(given) => Ok((given, left_out)),
    }
}

/// Finds foreign disks before any disk is opened, which would write to it. Remembered ones are
/// skipped: returns their places, with names and reasons.
///
/// # Errors
/// When a configured disk belongs to another pool.
async fn refuse_strangers(
    disks: &[PoolDisk],
    ids: &[Id],
    index: &IndexKind,
    env: &Env,
) -> Result<Vec<(usize, (String, String))>, StoreError> {
    let look = |(disk, id): (&PoolDisk, &Id)| {
        let (disk, id, index) = (disk.disk.as_ref().ok().cloned(), *id, index.of_disk(id));
        async move {
            let disk = disk.filter(|_| id != Id::default())?;
            if let Some(layout) = saved_layout(&index, env, id).await {
                return Some(Peeked { layout: Some(layout), any: true, content: true });
            }
            // Opening a disk that cannot be inspected reports the reason.
            peek(&disk, Until::Layout).await.ok()
        }
    };
    let seen: Vec<Option<Peeked>> = join_all(disks.iter().zip(ids).map(look)).await;
    let known = seen.iter().enumerate().find_map(|(i, peeked)| Some((i, peeked.as_ref()?.family()?)));
    let named = match known {
        Some((_, family)) => named_by_others(disks, ids, &seen, family).await,
        None => Vec::new(),
    };
    let mut left_out = Vec::new();
    for (i, peeked) in seen.iter().enumerate() {
        let (name, Some(peeked)) = (&disks[i].name, peeked) else { continue };
        let why = match (known, peeked.family()) {
            (Some((other, family)), Some(theirs)) if theirs != family => {
                if !disks[i].hint {
                    return Err(refuse(format!("{} and {name} are disks of different pools", disks[other].name)));
                }
                "is a disk of another pool"
            }
            (Some(_), None) if named.contains(&ids[i]) => {
                tracing::warn!(disk = %name, "the disk does not identify its pool, but the layout of another disk \
                 names it");
                continue;
            }
            (Some(_), None) if peeked.content => "holds a pool of its own, and is not a disk of this one",
            (None, _) if peeked.content => {
                return Err(refuse(format!(
                    "{name} holds a pool of its own; a pool of several disks is made of disks that are all new"
                )));
            }
            _ => continue,
        };
        if !disks[i].hint {
            return Err(refuse(format!("{name} {why}")));
        }
        tracing::warn!(disk = %name, "a configured disk {why}; it is skipped");
        left_out.push((i, (name.clone(), why.to_owned())));
    }
    Ok(left_out)
}

/// For disks that do not identify their pool, since their layout is damaged: those that the layouts
/// of other disks name. A disk's identity is its log's identity and lasts until the disk is
/// formatted anew, so a named disk is not foreign. Whether it is still a member is decided when all
/// disks are open.
async fn named_by_others(disks: &[PoolDisk], ids: &[Id], seen: &[Option<Peeked>], family: Id) -> Vec<Id> {
    let silent = |(peeked, id): (&Option<Peeked>, &Id)| {
        peeked.as_ref().is_some_and(|peeked| peeked.content && peeked.layout.is_none()).then_some(*id)
    };
    let silent: Vec<Id> = seen.iter().zip(ids).filter_map(silent).collect();
    let of_family = |peeked: &&Peeked| peeked.family() == Some(family);
    let mut layouts: Vec<_> = seen.iter().flatten().filter(of_family).filter_map(|p| p.layout.clone()).collect();
    let is_named = |layouts: &[Arc<Layout>], id: &Id| layouts.iter().any(|layout| layout.seat_of(id).is_some());
    if !silent.iter().all(|id| is_named(&layouts, id)) {
        // The disk may have joined later than the first layout, or than the layout in an index.
        let others = disks.iter().zip(seen).filter(|(_, peeked)| peeked.as_ref().as_ref().is_some_and(of_family));
        let read = others.map(|(disk, _)| async move {
            let peeked = peek(disk.disk.as_ref().ok()?, Until::End).await.ok()?;
            peeked.layout.filter(|layout| layout.family == family)
        });
        layouts.extend(join_all(read).await.into_iter().flatten());
    }
    silent.into_iter().filter(|id| is_named(&layouts, id)).collect()
}

/// The disks that could be opened.
fn opened(given: &[Given]) -> impl Iterator<Item = (&Given, &Shard)> {
    given.iter().filter_map(|g| Some((g, &g.shard.as_ref().ok()?.0)))
}

/// The newest layout on the disks, if any has one.
///
/// # Errors
/// When two disks are of different pools.
fn newest_layout(given: &[Given]) -> Result<Option<Arc<Layout>>, StoreError> {
    let mut newest: Option<(&Given, Arc<Layout>)> = None;
    for (g, shard) in opened(given) {
        let Some(layout) = shard.layout() else { continue };
        match &newest {
            Some((other, known)) if known.family != layout.family => {
                return Err(refuse(format!("{} and {} are disks of different pools", other.name, g.name)));
            }
            Some((_, known)) if known.generation >= layout.generation => {}
            _ => newest = Some((g, layout)),
        }
    }
    Ok(newest.map(|(_, layout)| layout))
}

/// Determines how the disks belong together.
async fn seat(given: &[Given], index: &IndexKind, env: &Env) -> Result<Seated, StoreError> {
    let layout = match (newest_layout(given)?, given) {
        (Some(layout), _) => layout,
        (None, [only]) => {
            let shard = only.shard.as_ref().map(|(shard, _)| shard.clone());
            let shard = shard.map_err(|e| Missing { why: e.to_string(), objects: None });
            let members = vec![Arc::new(Member { id: only.id, name: only.name.clone(), shard })];
            return Ok(Seated { members, layout: None, left_out: Vec::new() });
        }
        (None, _) => found(given, env)?,
    };
    let any = opened(given).any(|(g, _)| layout.seat_of(&g.id).is_some());
    let mut left_out = Vec::new();
    for g in given {
        let of_pool = layout.seats.iter().any(|seat| seat.disk == g.id || seat.name == g.name);
        if let (Err(e), false) = (&g.shard, of_pool || g.hint) {
            let why = format!(
                "is not a disk of the pool, and cannot be opened: {e} (`steadfast disk add` takes one into the pool)"
            );
            left_out.push((g.name.clone(), why));
        }
    }
    for (g, shard) in opened(given) {
        if layout.seat_of(&g.id).is_some() {
            continue;
        }
        let (why, taken_out) = match (shard.layout(), is_blank(g)) {
            (Some(_), _) => ("was taken out of the pool: it does not belong to it any more", true),
            (None, true) => ("has nothing on it and is not a disk of this pool", false),
            (None, false) => ("holds a pool of its own, and is not a disk of this one", false),
        };
        if !any || !(taken_out || g.hint) {
            return Err(refuse(format!("{} {why}", g.name)));
        }
        // It may not know of its removal yet.
        if taken_out && shard.layout().is_some_and(|known| known.seat_of(&g.id).is_some()) {
            let marked = shard.put_layout(&layout).await;
            marked.unwrap_or_else(|e| {
                tracing::warn!(disk = %g.name, error = %e, "the disk could not be marked as \
                 removed")
            });
        }
        tracing::warn!(disk = %g.name, "a configured disk {why}; it is skipped");
        left_out.push((g.name.clone(), why.to_owned()));
        shard.close().await.unwrap_or_else(|e| {
            tracing::warn!(disk = %g.name, error = %e, "the disk could not be \
         closed")
        });
    }
    // In this order; the next start repeats it if this one is interrupted.
    for seat in &layout.seats {
        let Some((g, shard)) = opened(given).find(|(g, _)| g.id == seat.disk) else { continue };
        if shard.layout().as_deref() != Some(&*layout)
            && let Err(e) = shard.put_layout(&layout).await
        {
            // Without a layout it would be a pool of its own when it is the only disk of a start.
            if is_blank(g) && !g.hint {
                return Err(refuse(format!("{}: the layout of the pool could not be written: {e}", g.name)));
            }
            // The other disks have the layout.
            tracing::warn!(disk = %g.name, error = %e, "the pool's layout could not be written");
        }
    }
    let members = members(given, &layout, index, env).await;
    Ok(Seated { members, layout: Some(layout), left_out })
}

/// Gives all disks the same break of epochs. It is a new one if the pool was put back to an earlier
/// state, or if disks have different ones: one of them may be of a history that was abandoned. No
/// channel is in use yet.
///
/// # Errors
/// When a disk that takes writes does not take the record: its channels would keep their epochs.
async fn level_epochs(members: &[Arc<Member>], put_back: bool, env: &Env) -> Result<(), StoreError> {
    let shards = || members.iter().filter_map(|member| Some((member, member.shard.as_ref().ok()?)));
    let well = |shard: &Shard| shard.log().status().log == LogState::Ok;
    let newest = shards().filter_map(|(_, shard)| shard.applied.losses.epoch_break()).max();
    // A read-only disk keeps its own, at each start.
    let writable = shards().filter(|(_, shard)| well(shard));
    let known: BTreeSet<_> = writable.filter_map(|(_, shard)| shard.applied.losses.epoch_break()).collect();
    let newest = match known.len() {
        _ if put_back => Some(EpochBreak::after(newest, env)),
        0 => newest,
        1 => known.last().copied(),
        _ => Some(EpochBreak::after(newest, env)),
    };
    let Some(newest) = newest else { return Ok(()) };
    for (member, shard) in shards().filter(|(_, shard)| shard.applied.losses.epoch_break() != Some(newest)) {
        if let Err(e) = shard.put_epoch_break(newest).await {
            if well(shard) {
                return Err(refuse(format!(
                    "{}: the new epoch of its channels could not be written: {e}",
                    member.name
                )));
            }
            tracing::warn!(
                disk = %member.name, error = %e, "the disk takes no writes: its channels keep their epochs. Start it \
                 with --restored again when it does"
            );
        }
        shard.applied.channels.forget();
    }
    Ok(())
}

/// The members by the seats of the layout, with the missing ones.
async fn members(given: &[Given], layout: &Layout, index: &IndexKind, env: &Env) -> Vec<Arc<Member>> {
    let mut members = Vec::with_capacity(layout.seats.len());
    for seat in &layout.seats {
        let there = given.iter().find(|g| g.id == seat.disk);
        members.push(match there.map(|g| (g, &g.shard)) {
            Some((g, Ok((shard, _)))) => Arc::new(Member { id: g.id, name: g.name.clone(), shard: Ok(shard.clone()) }),
            Some((g, Err(e))) => absent(seat, g.name.clone(), e.to_string(), index, env).await,
            None => {
                // An unreadable disk has no known identity; its name may identify it.
                let unknown = given.iter().find(|g| g.id == Id::default() && g.name == seat.name);
                let why = unknown.and_then(|g| Some(g.shard.as_ref().err()?.to_string()));
                let why = why.unwrap_or_else(|| "it is not among the configured disks".to_owned());
                absent(seat, seat.name.clone(), why, index, env).await
            }
        });
    }
    members
}

async fn absent(seat: &Seat, name: String, why: String, index: &IndexKind, env: &Env) -> Arc<Member> {
    let objects = saved_objects(&index.of_disk(&seat.disk), env, seat.disk).await;
    Arc::new(Member { id: seat.disk, name, shard: Err(Missing { why, objects }) })
}

/// When a pool of one disk gets another, its index becomes the index of that disk.
async fn adopt_index(index: &IndexKind, env: &Env, ids: &[Id]) {
    for id in ids {
        let IndexKind::Lsm(to) = index.of_disk(id) else { return };
        let IndexKind::Lsm(from) = index.clone() else { return };
        if !to.exists() && from.is_dir() && saved_objects(index, env, *id).await.is_some() {
            let renamed = std::fs::rename(&from, &to);
            // Without it the disk's index is rebuilt from its log.
            renamed.unwrap_or_else(|e| tracing::warn!(error = %e, "{} cannot be renamed", from.display()));
            return;
        }
    }
}

/// Whether no record was ever committed on it.
fn is_blank(g: &Given) -> bool {
    g.shard.as_ref().is_ok_and(|(_, report)| report.recovery.last_lsn == 0 && report.recovery.damage.is_empty())
}

/// The first layout of disks without one.
fn found(given: &[Given], env: &Env) -> Result<Arc<Layout>, StoreError> {
    for g in given {
        if let Err(e) = &g.shard {
            return Err(refuse(format!(
                "{}: {e}; a new pool is made only with all of its disks: `steadfast format` makes those that are not there",
                g.name
            )));
        }
        if !is_blank(g) {
            return Err(refuse(format!(
                "{} holds a pool of its own; a pool of several disks is made of disks that are all new",
                g.name
            )));
        }
    }
    let family = new_family(env);
    let seats = given.iter().map(|g| new_seat(g.id, &g.name)).collect();
    let capacities: Vec<u64> = given.iter().map(|g| g.capacity_bytes).collect();
    Ok(Arc::new(Layout::found(family, seats, &capacities)))
}

/// The identity of a new pool.
fn new_family(env: &Env) -> Id {
    let mut family = Id::default();
    family[..8].copy_from_slice(&env.random_u64().to_le_bytes());
    family[8..].copy_from_slice(&env.random_u64().to_le_bytes());
    *uuid::Builder::from_random_bytes(family).as_uuid().as_bytes()
}

/// The seat of a joining disk.
pub(super) fn new_seat(disk: Id, name: &str) -> Seat {
    Seat { disk, name: shortened(name), unclean: false, leaving: false }
}

fn shortened(name: &str) -> String {
    let end = (0..=name.len().min(NAME_BYTES_MAX)).rev().find(|end| name.is_char_boundary(*end));
    name[..end.unwrap_or_default()].to_owned()
}

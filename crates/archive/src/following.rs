//! What the logs have made durable and the archive does not have yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use steadfast_flow::{Env, has_fault};
use steadfast_log::{ExtentCut, Log, LogCut, LogError, Lsn};
use steadfast_store::Store;
use tokio::sync::watch;

use crate::changes::{Counters, DiskAbout};
use crate::image::{DiskImage, ExtentImage, Image};
use crate::name::DiskId;
use crate::options::ArchiveSabotage;

/// A disk of the pool.
#[derive(Debug, Clone)]
pub struct PoolMember {
    /// The identity of its log.
    pub id: DiskId,
    /// Its path or name.
    pub name: String,
    /// Its log; `None` while the disk is missing.
    pub log: Option<Log>,
}

/// The disks of a pool, which may change while it is open.
pub trait Members: Send + Sync {
    /// All disks of the pool now, the missing ones among them.
    fn members(&self) -> Vec<PoolMember>;

    /// The log of a disk that is present.
    fn log(&self, disk: DiskId) -> Option<Log> {
        self.members().into_iter().find(|member| member.id == disk)?.log
    }
}

impl Members for Store {
    fn members(&self) -> Vec<PoolMember> {
        let members = self.logs().into_iter();
        members.map(|(id, name, log)| PoolMember { id: DiskId(id), name, log }).collect()
    }
}

/// A disk at the moment of a cut.
#[derive(Debug, Clone)]
pub(crate) struct CutDisk {
    pub(crate) about: DiskAbout,
    pub(crate) counters: Counters,
    /// To read what the cut names.
    pub(crate) log: Log,
    /// The extents that changed since the cut before.
    pub(crate) extents: BTreeMap<u32, ExtentCut>,
}

/// All disks at one moment, with what changed since the cut before.
#[derive(Debug, Default)]
pub(crate) struct PoolCut {
    /// When it was taken, in milliseconds since the Unix epoch.
    pub(crate) time_ms: u64,
    /// The disks that are followed.
    pub(crate) disks: BTreeMap<DiskId, CutDisk>,
    /// All disks of the pool, the missing ones among them.
    pub(crate) members: BTreeSet<DiskId>,
    /// The count of durable bytes at that moment.
    bytes: u64,
    /// When the first of its changes was found.
    since: Option<Duration>,
}

/// Time for which a disk that cannot be read is left out of cuts.
const ASIDE: Duration = Duration::from_secs(60);

/// Most bytes that the archive lacks before new chunks wait, where writes wait for it.
const BEHIND_BYTES_MAX: u64 = 64 << 20;

/// How far the archive is behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lag {
    /// Age of the oldest change that the archive does not have; zero without one.
    pub(crate) age: Duration,
    /// Bytes that became durable since.
    pub(crate) bytes: u64,
    /// When the cut was taken that is being shipped, in milliseconds since the Unix epoch.
    pub(crate) shipping_ms: Option<u64>,
    /// When the last look was, in milliseconds since the Unix epoch.
    pub(crate) looked_ms: u64,
}

/// The bytes of one use at the last look: epoch, opening, durable bytes.
type UseBytes = (u64, u64, u64);

#[derive(Default)]
struct State {
    /// What the next cut will have.
    next: PoolCut,
    /// What was seen of each extent in use, to count what is added.
    seen: BTreeMap<(DiskId, u32), UseBytes>,
    /// Bytes that have become durable, counted from the state that the archive had.
    durable_bytes: u64,
    /// Those of them that the archive has, or that were recycled before it got them.
    archived_bytes: u64,
    /// Disks that cannot be read, and until when they are left out of cuts.
    aside: BTreeMap<DiskId, Duration>,
    /// When the first change of the cut that is being shipped was found.
    shipping_since: Option<Duration>,
    /// When that cut was taken, in milliseconds since the Unix epoch.
    shipping_ms: Option<u64>,
    /// When the last look was, in milliseconds since the Unix epoch.
    looked_ms: u64,
    /// The last durable record of each disk at that look, and at the first one.
    looked_lsns: BTreeMap<DiskId, Lsn>,
    first_lsns: BTreeMap<DiskId, Lsn>,
    /// Whether records are held back until the archive has them.
    holding: bool,
    /// The logs in which they are.
    held: BTreeMap<DiskId, Log>,
}

/// Follows the logs of a pool.
pub(crate) struct Following {
    members: Arc<dyn Members>,
    state: Mutex<State>,
    /// The number of looks after which there were changes.
    changed: watch::Sender<u64>,
    env: Env,
    sabotage: ArchiveSabotage,
}

impl Following {
    /// Follows the logs from now on: the first look finds everything.
    pub(crate) fn new(members: Arc<dyn Members>, sabotage: ArchiveSabotage, env: &Env) -> Self {
        Self { members, state: Mutex::default(), changed: watch::Sender::new(0), env: env.clone(), sabotage }
    }

    /// Begins with the image that the archive has. Returns why a disk lacks some of it, if one
    /// does.
    pub(crate) fn begin(&self, image: &Image) -> Option<String> {
        self.look();
        let mut state = self.state.lock();
        for (disk, of) in &image.disks {
            let Some(there) = state.next.disks.get(disk) else { continue };
            let Counters { next_epoch, recycled_lsn, last_lsn } = there.counters;
            let cut = LogCut { next_epoch, recycled_lsn, last_lsn, changed: there.extents.clone() };
            if let Some(lacking) = of.lacking(&cut) {
                return Some(format!("{}: {lacking}", there.about.name));
            }
        }
        let in_pool =
            |(disk, of): (&DiskId, &DiskImage)| of.about.left_ms.is_none() && state.next.members.contains(disk);
        if !image.disks.is_empty() && !image.disks.iter().any(in_pool) {
            return Some("none of the disks in the archive is a disk of this pool".to_owned());
        }
        let known = |disk: &DiskId, extent: u32, epoch: u64, opening: u64| match image
            .disks
            .get(disk)
            .and_then(|of| of.extents.get(&extent))
        {
            Some(ExtentImage::Used(of)) if of.is(epoch, opening) => of.durable.bytes(),
            _ => 0,
        };
        let uses = state.seen.iter();
        let archived = uses.map(|((disk, extent), (epoch, opening, _))| known(disk, *extent, *epoch, *opening)).sum();
        state.archived_bytes = archived;
        state.first_lsns = state.looked_lsns.clone();
        None
    }

    /// Takes a look at the logs. All disks are seen at one moment.
    pub(crate) fn look(&self) {
        let members = self.members.members();
        let logs: Vec<(&PoolMember, &Log)> = members
            .iter()
            .filter_map(|member| Some((member, member.log.as_ref().filter(|log| log.is_followed())?)))
            .collect();
        let mut state = self.state.lock();
        let mut logs = logs;
        if has_fault(self.sabotage, ArchiveSabotage::TornCut) && !state.seen.is_empty() {
            // One disk at each look but the first.
            let one = usize::try_from(*self.changed.borrow()).unwrap_or(0) % logs.len().max(1);
            self.changed.send_modify(|n| *n += 1);
            logs = logs.into_iter().skip(one).take(1).collect();
        }
        let all: Vec<&Log> = logs.iter().map(|(_, log)| *log).collect();
        let cuts = Log::durable_cut(&all).expect("logs that are followed give cuts");
        state.looked_ms = self.env.wall_ms();
        state.next.time_ms = state.looked_ms;
        let mut any = false;
        for ((member, log), cut) in logs.into_iter().zip(cuts) {
            if state.holding {
                // It may have joined.
                log.begin_hold();
                state.held.insert(member.id, log.clone());
            }
            state.looked_lsns.insert(member.id, cut.last_lsn);
            any |= state.add(member, log, cut);
        }
        state.next.members = members.iter().map(|member| member.id).collect();
        state.let_go(&members);
        state.press();
        if any {
            state.next.since.get_or_insert(self.env.now());
        }
        if state.next.since.is_some() {
            self.changed.send_modify(|n| *n += 1);
        }
    }

    /// Becomes ready when the next cut has changes.
    pub(crate) async fn changed(&self) {
        let mut changed = self.changed.subscribe();
        while !self.has_changes() {
            let _ = changed.changed().await;
        }
    }

    /// Becomes ready when a log has made a record durable since the last look.
    pub(crate) async fn flushed(&self) {
        let is_followed = |log: &Log| log.is_followed();
        let members = self.members.members().into_iter();
        let logs = members.filter_map(|member| Some((member.id, member.log.filter(is_followed)?)));
        let looked = self.state.lock().looked_lsns.clone();
        let flushed = |(disk, log): (DiskId, Log)| {
            let known = looked.get(&disk).copied().unwrap_or(0);
            async move {
                // The sender ends with its log.
                if log.durable().wait_for(|lsn| *lsn > known).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let mut flushed: FuturesUnordered<_> = logs.map(flushed).collect();
        if flushed.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// From now on, nothing is answered or seen before it is released.
    pub(crate) fn hold(&self) {
        self.state.lock().holding = true;
        self.look();
    }

    /// After [`Following::hold`]: what was answered before is durable when this has returned, and
    /// is in the next cut.
    ///
    /// # Errors
    /// A disk cannot be flushed. Nothing is held back then.
    pub(crate) async fn flush_held(&self) -> Result<(), LogError> {
        let held: Vec<Log> = self.state.lock().held.values().cloned().collect();
        for log in &held {
            if let Err(e) = log.flush_held().await {
                self.cancel_hold();
                return Err(e);
            }
        }
        self.look();
        Ok(())
    }

    /// Holds nothing back any more.
    pub(crate) fn cancel_hold(&self) {
        self.state.lock().holding = false;
        self.look();
    }

    /// Whether all disks of the pool are seen, and none is left out of cuts.
    pub(crate) fn has_all_disks(&self) -> bool {
        let is_seen = |member: &PoolMember| member.log.as_ref().is_some_and(Log::is_followed);
        self.members.members().iter().all(is_seen) && self.state.lock().aside.is_empty()
    }

    /// A disk that is present and cannot be followed.
    pub(crate) fn unfollowed(&self) -> Option<String> {
        let is_not = |member: &PoolMember| member.log.as_ref().is_some_and(|log| !log.is_followed());
        self.members.members().into_iter().find(is_not).map(|member| member.name)
    }

    /// Whether an image has all that the last records of the first look were.
    pub(crate) fn is_recovered(&self, last_lsns: &BTreeMap<DiskId, Lsn>) -> bool {
        let state = self.state.lock();
        state.first_lsns.iter().all(|(disk, lsn)| last_lsns.get(disk).is_some_and(|archived| archived >= lsn))
    }

    /// Releases what the archive has.
    pub(crate) fn release(&self, last_lsns: &BTreeMap<DiskId, Lsn>) {
        let state = self.state.lock();
        let held = |(disk, lsn)| Some((state.held.get(disk)?, lsn));
        last_lsns.iter().filter_map(held).for_each(|(log, lsn): (&Log, &Lsn)| log.hold().release(*lsn));
    }

    /// Whether the last look found changes that no cut has.
    pub(crate) fn has_changes(&self) -> bool {
        let (state, now) = (self.state.lock(), self.env.now());
        state.next.since.is_some()
            && state
                .next
                .disks
                .iter()
                .any(|(disk, of)| !of.extents.is_empty() && state.aside.get(disk).is_none_or(|until| *until <= now))
    }

    /// Whether the last look saw all disks, and nothing of what it found is missing in the archive.
    pub(crate) fn is_archived(&self) -> bool {
        let is_seen = |member: &PoolMember| member.log.as_ref().is_some_and(Log::is_followed);
        let are_seen = self.members.members().iter().all(is_seen);
        let state = self.state.lock();
        are_seen && state.next.since.is_none() && state.aside.is_empty()
    }

    /// Leaves a disk out of cuts for a while, because it cannot be read. The archive keeps what it
    /// has of the disk.
    pub(crate) fn set_aside(&self, disk: DiskId) {
        self.state.lock().aside.insert(disk, self.env.now() + ASIDE);
    }

    /// The log of a disk that is present.
    pub(crate) fn log(&self, disk: DiskId) -> Option<Log> {
        self.members.log(disk)
    }

    /// Takes the cut of the last look.
    pub(crate) fn take(&self) -> PoolCut {
        let (mut state, now) = (self.state.lock(), self.env.now());
        let state = &mut *state;
        state.aside.retain(|_, until| *until > now);
        let mut cut = PoolCut { bytes: state.durable_bytes, ..std::mem::take(&mut state.next) };
        (state.shipping_since, state.shipping_ms) = (cut.since, Some(cut.time_ms));
        for disk in state.aside.keys() {
            if let Some(of) = cut.disks.remove(disk) {
                state.next.disks.insert(*disk, of);
                (state.next.since, cut.bytes) = (cut.since, state.archived_bytes);
            }
        }
        state.next.members.clone_from(&cut.members);
        cut
    }

    /// Gives a cut back that was given up. What was found since is newer.
    pub(crate) fn give_back(&self, cut: PoolCut) {
        let mut state = self.state.lock();
        (state.shipping_since, state.shipping_ms) = (None, None);
        let next = &mut state.next;
        next.since = cut.since;
        next.time_ms = next.time_ms.max(cut.time_ms);
        if next.members.is_empty() {
            next.members = cut.members;
        }
        for (disk, mut of) in cut.disks {
            match next.disks.get_mut(&disk) {
                Some(newer) => {
                    of.extents.append(&mut newer.extents);
                    newer.extents = of.extents;
                }
                None => _ = next.disks.insert(disk, of),
            }
        }
    }

    /// The archive has this cut.
    pub(crate) fn archived(&self, cut: &PoolCut) {
        let mut state = self.state.lock();
        state.archived_bytes = cut.bytes.max(state.archived_bytes);
        (state.shipping_since, state.shipping_ms) = (None, None);
        state.press();
    }

    /// How far the archive is behind at the last look.
    pub(crate) fn lag(&self) -> Lag {
        let state = self.state.lock();
        let oldest = state.shipping_since.or(state.next.since);
        Lag {
            age: oldest.map_or(Duration::ZERO, |since| self.env.now().saturating_sub(since)),
            bytes: state.durable_bytes.saturating_sub(state.archived_bytes),
            shipping_ms: state.shipping_ms,
            looked_ms: state.looked_ms,
        }
    }
}

impl State {
    /// Holds nothing back any more in disks that have left, nor in any if that is the end of it.
    fn let_go(&mut self, members: &[PoolMember]) {
        let holding = self.holding;
        let is_held = |disk: &DiskId, _: &mut Log| holding && members.iter().any(|member| member.id == *disk);
        for (_, log) in self.held.extract_if(.., |disk, log| !is_held(disk, log)) {
            log.hold().cancel();
        }
    }

    /// Lets uploads wait while the archive is far behind, as the next cut must have all of them.
    fn press(&self) {
        let is_behind = self.durable_bytes.saturating_sub(self.archived_bytes) > BEHIND_BYTES_MAX;
        self.held.values().for_each(|log| log.hold().press(is_behind));
    }

    /// Adds what changed on a disk. Returns whether anything did.
    fn add(&mut self, member: &PoolMember, log: &Log, cut: LogCut) -> bool {
        let disk = member.id;
        for (extent, state) in &cut.changed {
            self.count(disk, *extent, state);
        }
        let counters = Counters { next_epoch: cut.next_epoch, recycled_lsn: cut.recycled_lsn, last_lsn: cut.last_lsn };
        let of = self.next.disks.entry(disk).or_insert_with(|| CutDisk {
            about: DiskAbout::new(member.name.clone(), &log.superblock()),
            counters,
            log: log.clone(),
            extents: BTreeMap::new(),
        });
        // Without a changed extent nothing else has changed that matters.
        (of.counters, of.log) = (counters, log.clone());
        let any = !cut.changed.is_empty();
        of.extents.extend(cut.changed);
        any
    }

    /// Counts the bytes that have become durable in an extent.
    fn count(&mut self, disk: DiskId, extent: u32, state: &ExtentCut) {
        let ExtentCut::InUse(of) = state else {
            self.seen.remove(&(disk, extent));
            return;
        };
        let bytes = of.durable.bytes();
        let before = self.seen.insert((disk, extent), (of.epoch, of.opening, bytes));
        let known = before.filter(|(epoch, opening, _)| (*epoch, *opening) == (of.epoch, of.opening));
        self.durable_bytes += bytes.saturating_sub(known.map_or(0, |(.., bytes)| bytes));
    }
}

//! Commit of the next layout: first in one log, then in all others. The parent module explains the
//! order.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use steadfast_flow::has_fault;
use steadfast_log::LogError;

use super::sweep::patiently;
use crate::layout::Layout;
use crate::shard::Shard;
use crate::store::Store;
use crate::store::topology::{Member, Topology};
use crate::{StoreError, StoreSabotage};

/// Time that writers wait at closed gates for the commits in the other logs.
const OTHERS_WAIT: Duration = Duration::from_secs(1);

/// Number of [`crate::StoreOptions::write_wait`] periods to wait for a full disk. A resume
/// writes the layout to disks that lack it.
const FULL_WAITS: u32 = 6;

/// Time for which the other disks are delayed when the sabotaged goal lacks keys that it is home
/// to, so that a crash can intervene.
const SABOTAGE_WAIT: Duration = Duration::from_millis(20);

/// A layout to be committed.
pub(super) struct Next<'a> {
    /// The layout.
    pub(super) layout: Layout,
    /// Its disks, in order of the seats.
    pub(super) members: Vec<Arc<Member>>,
    /// The log that commits it first.
    pub(super) first: &'a Shard,
    /// A disk that commits it last.
    pub(super) last: Option<&'a Shard>,
}

/// Whether all disks are present and accept writes.
pub(super) fn all_well(topology: &Topology) -> Result<(), StoreError> {
    let failure = topology.members().iter().find_map(|member| member.failure());
    failure.map_or(Ok(()), Err)
}

/// Writes layouts to the disks of a store.
pub(super) struct LayoutWriter<'a>(pub(super) &'a Store);

impl LayoutWriter<'_> {
    /// Whether all disks are present, accept writes, and have the current layout.
    pub(super) fn all_agree(&self, topology: &Topology) -> Result<(), StoreError> {
        all_well(topology)?;
        for shard in topology.all()? {
            if shard.layout().as_ref() != topology.layout() {
                return Err(StoreError::Unavailable(
                    "not every disk has the pool's layout yet: a resume writes it to all".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Writes the current layout to disks that lack it, as a start does, after an interrupted
    /// commit. The caller has the turn. Waits for space, and for disks that hang.
    ///
    /// # Errors
    /// When a disk is missing or read-only, or the store is being closed.
    pub(super) async fn level(&self) -> Result<(), StoreError> {
        let topology = self.0.topology();
        all_well(&topology)?;
        let Some(layout) = topology.layout() else { return Ok(()) };
        for shard in topology.all()? {
            if shard.layout().is_none_or(|known| known.generation < layout.generation) {
                self.put(shard, layout).await?;
            }
        }
        Ok(())
    }

    /// Writes a current layout; a temporary obstacle must not keep it from a log.
    pub(super) async fn put(&self, shard: &Shard, layout: &Layout) -> Result<(), StoreError> {
        let mut stopping = self.0.0.moves.stopping.subscribe();
        let began = self.0.0.env.now();
        let put = async {
            loop {
                match patiently(&self.0.0.options, &self.0.0.env, || shard.put_layout(layout)).await {
                    // Compaction may free space, and so may deletes.
                    Err(StoreError::Log(LogError::Full | LogError::Busy { .. }))
                        if self.0.0.env.now().saturating_sub(began) < self.0.0.options.write_wait * FULL_WAITS =>
                    {
                        self.0.0.env.sleep(self.0.0.options.write_wait / 20).await;
                    }
                    done => return done,
                }
            }
        };
        tokio::select! {
            biased;
            done = put => done,
            // The next start writes the layout.
            _ = stopping.wait_for(|stopping| *stopping) => Err(StoreError::Log(LogError::Closed)),
        }
    }

    /// Commits a layout and makes it current. It then calls `opened`, before the other logs have
    /// the layout if they take long.
    ///
    /// # Errors
    /// When it was not committed, or (after `opened`) not in every log.
    pub(super) async fn commit(&self, next: Next<'_>, opened: impl FnOnce()) -> Result<(), StoreError> {
        let now = self.0.topology();
        self.all_agree(&now)?;
        let layout = Arc::new(next.layout);
        assert_eq!(layout.seats.len(), next.members.len(), "each disk of a layout has its member");
        let before = now.layout().map_or(0, |before| before.generation);
        assert!(layout.generation > before, "layout {} after {before}", layout.generation);
        let is = |shard: &Shard, other: &Shard| Arc::ptr_eq(&shard.applied, &other.applied);
        next.first.put_layout(&layout).await?;
        // The layout is current from here on.
        if has_fault(self.0.0.options.sabotage, StoreSabotage::EarlySwitch) {
            self.0.0.env.sleep(SABOTAGE_WAIT).await;
        }
        let put = async {
            let others = now.open().map(|(_, shard)| shard);
            let others =
                others.filter(|shard| !is(shard, next.first) && !next.last.is_some_and(|last| is(shard, last)));
            let put = join_all(others.map(|shard| self.put(shard, &layout))).await;
            put.into_iter().collect::<Result<(), _>>()?;
            match next.last {
                Some(last) => self.put(last, &layout).await,
                None => Ok(()),
            }
        };
        let mut put = pin!(put);
        let early = self.0.0.env.timeout(OTHERS_WAIT, put.as_mut()).await;
        self.0.0.topology.store(Arc::new(Topology::new(next.members, Some(layout.clone()))));
        opened();
        match early {
            Some(done) => done,
            None => put.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_disk::{Disk, MemDisk};
    use steadfast_flow::Env;
    use steadfast_log::{FormatOptions, Log};

    use super::*;
    use crate::MoveState;
    use crate::{IndexKind, PoolDisk, StoreOptions};

    /// A pool of two disks.
    async fn pool() -> Store {
        let mut disks = Vec::new();
        for n in 0..2 {
            let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
            let format = FormatOptions { extent_bytes: Some(1 << 20), ..FormatOptions::default() };
            Log::format(&disk, &Env::tokio(), &format).await.expect("format");
            disks.push(PoolDisk { name: format!("d{n}"), disk: Ok(disk), hint: false });
        }
        let options = StoreOptions { write_wait: Duration::from_secs(2), ..StoreOptions::default() };
        Store::open_pool(disks, IndexKind::memory(), Env::tokio(), options).await.expect("open").0
    }

    #[tokio::test]
    async fn a_hanging_disk_gets_the_layout_when_it_recovers() {
        let store = pool().await;
        let topology = store.topology();
        let shards = topology.all().expect("there");
        let layout = topology.layout().expect("a layout").next();
        let members = topology.members().to_vec();
        // Until the watch checks the disk again.
        shards[1].writes.hang.stop_writes();
        let next = Next { layout, members, first: shards[0], last: None };
        LayoutWriter(&store).commit(next, || ()).await.expect("in both logs");
        LayoutWriter(&store).all_agree(&store.topology()).expect("both have it");
    }

    #[tokio::test]
    async fn to_resume_writes_the_layout_where_it_lacks() {
        let store = pool().await;
        let topology = store.topology();
        let shards = topology.all().expect("there");
        let mut layout = topology.layout().expect("a layout").next();
        layout.seats[0].unclean = true;
        let layout = Arc::new(layout);
        shards[0].put_layout(&layout).await.expect("in the first log");
        store.0.topology.store(Arc::new(Topology::new(topology.members().to_vec(), Some(layout))));
        LayoutWriter(&store).all_agree(&store.topology()).expect_err("the second lacks it");
        assert!(store.disks().resume_moves().expect("may begin"));
        let mut moving = store.disks().moving();
        let ended = moving.wait_for(|m| m.as_ref().is_some_and(|m| m.state != MoveState::Running)).await;
        let status = ended.expect("the store is there").clone().expect("it ran");
        assert_eq!((status.state, status.error), (MoveState::Done, None));
        LayoutWriter(&store).all_agree(&store.topology()).expect("both have it");
    }
}

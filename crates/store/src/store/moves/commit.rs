//! Committing the next layout: first in one log, then in all others. See the module above for why in this order.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::layout::Layout;
use crate::shard::Shard;
use crate::store::Store;
use crate::store::topology::{Member, Topology};
use crate::{StoreError, StoreSabotage};

/// How long those who wait at closed gates also wait for the other logs.
const OTHERS_WAIT: Duration = Duration::from_secs(1);

/// How long the others wait for it where the goal lacks what it is home to: so that a crash comes in between.
const SABOTAGE_WAIT: Duration = Duration::from_millis(20);

/// A layout to be committed.
pub(super) struct Next<'a> {
    /// The layout.
    pub(super) layout: Layout,
    /// Its disks, in order.
    pub(super) members: Vec<Arc<Member>>,
    /// The log that gets it first.
    pub(super) first: &'a Shard,
    /// A disk that gets it last.
    pub(super) last: Option<&'a Shard>,
}

impl Store {
    /// Whether all disks are there, take writes, and have the layout that counts.
    pub(super) fn all_agree(&self, topology: &Topology) -> Result<(), StoreError> {
        if let Some(trouble) = topology.members().iter().find_map(|member| member.trouble()) {
            return Err(trouble);
        }
        for shard in topology.all()? {
            if shard.layout().as_ref() != topology.layout() {
                return Err(StoreError::Unavailable(
                    "not every disk has the layout of the pool: restart the server, which writes it to all".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Commits a layout and makes it count; calls `opened` then, which is before all of the other logs have it if they take long.
    ///
    /// # Errors
    /// When it was not committed, or (after `opened`) not in every log.
    pub(super) async fn commit_layout(&self, next: Next<'_>, opened: impl FnOnce()) -> Result<(), StoreError> {
        let now = self.topology();
        self.all_agree(&now)?;
        let layout = Arc::new(next.layout);
        let is = |shard: &Shard, other: &Shard| Arc::ptr_eq(&shard.core, &other.core);
        next.first.put_layout(&layout).await?;
        // From here on it counts.
        if self.0.options.sabotage == StoreSabotage::EarlySwitch {
            self.0.env.sleep(SABOTAGE_WAIT).await;
        }
        let put = async {
            let others = now.open().map(|(_, shard)| shard);
            let others =
                others.filter(|shard| !is(shard, next.first) && !next.last.is_some_and(|last| is(shard, last)));
            let put = join_all(others.map(|shard| shard.put_layout(&layout))).await;
            put.into_iter().collect::<Result<(), _>>()?;
            match next.last {
                Some(last) => last.put_layout(&layout).await,
                None => Ok(()),
            }
        };
        let mut put = pin!(put);
        let early = self.0.env.timeout(OTHERS_WAIT, put.as_mut()).await;
        self.0.topology.store(Arc::new(Topology::new(next.members, Some(layout.clone()))));
        opened();
        match early {
            Some(done) => done,
            None => put.await,
        }
    }
}

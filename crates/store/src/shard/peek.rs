//! What a disk says of itself before it is opened, which would write to it: its index, else its log.

use std::sync::Arc;

use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::LogError;

use super::{load_layout, read_checkpoint};
use crate::IndexKind;
use crate::index::{Index, LsmIndex, MemIndex};
use crate::layout::Layout;
use crate::record::Head;
use crate::record::keys::Id;

/// How many objects a disk's index knew of when it was last saved; `None` when there is none that can be read. Nothing is changed.
pub(crate) async fn saved_objects(kind: &IndexKind, env: &Env, disk: Id) -> Option<u64> {
    let checkpoint = match kind {
        IndexKind::Memory(checkpoint) => read_checkpoint(&MemIndex::open(checkpoint.clone())).ok()?,
        IndexKind::Lsm(dir) => {
            let dir = dir.clone();
            env.blocking(move || read_checkpoint(&LsmIndex::open_existing(&dir)?).ok()?).await?
        }
    };
    checkpoint.filter(|checkpoint| checkpoint.pool == disk).map(|checkpoint| checkpoint.objects)
}

/// The layout of the pool of disks that a disk is one of, as its index has it; `None` when there is none that can be read. Nothing is changed.
pub(crate) async fn saved_layout(kind: &IndexKind, env: &Env, disk: Id) -> Option<Arc<Layout>> {
    let of = move |index: &dyn Index| {
        read_checkpoint(index).ok()?.filter(|checkpoint| checkpoint.pool == disk)?;
        load_layout(index).ok()?
    };
    match kind {
        IndexKind::Memory(checkpoint) => of(&MemIndex::open(checkpoint.clone())),
        IndexKind::Lsm(dir) => {
            let dir = dir.clone();
            env.blocking(move || of(&LsmIndex::open_existing(&dir)?)).await?
        }
    }
}

/// What a disk's log says of it, without anything being changed there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Peeked {
    /// The newest layout that was seen: of the pool of disks that it is or was one of.
    pub(crate) layout: Option<Arc<Layout>>,
    /// Something was committed on it,
    pub(crate) any: bool,
    /// and not only buckets.
    pub(crate) content: bool,
}

impl Peeked {
    /// The pool of disks that it is or was one of.
    pub(crate) fn family(&self) -> Option<Id> {
        self.layout.as_ref().map(|layout| layout.family)
    }
}

/// How far a disk's log is read to find out whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The first layout, or the first record of content.
    Content,
    /// The first layout.
    Layout,
    /// All of it: the last layout is the newest.
    End,
}

/// Reads a disk's log until it is known whose it is.
pub(crate) async fn peek(disk: &Arc<dyn Disk>, until: Until) -> Result<Peeked, LogError> {
    let mut peeked = Peeked::default();
    peeked.any = steadfast_log::peek(disk, |head| {
        match Head::decode(head) {
            Ok(Head::PoolLayout { payload }) => {
                if let Ok(layout) = Layout::decode(payload)
                    && peeked.layout.as_ref().is_none_or(|known| known.generation < layout.generation)
                {
                    peeked.layout = Some(Arc::new(layout));
                }
            }
            Ok(Head::BucketPut { .. } | Head::BucketDelete { .. }) => {}
            _ => peeked.content = true,
        }
        match until {
            Until::Content => peeked.layout.is_none() && !peeked.content,
            Until::Layout => peeked.layout.is_none(),
            Until::End => true,
        }
    })
    .await?;
    Ok(peeked)
}

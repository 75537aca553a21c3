//! Inspection of a disk before it is opened, which would write to it: its index, otherwise its log.

use std::sync::Arc;

use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::LogError;

use super::index_open::{load_layout, read_checkpoint};
use crate::IndexKind;
use crate::index::{Index, LsmIndex, MemIndex};
use crate::layout::Layout;
use crate::record::Head;
use crate::record::keys::Id;

/// Number of objects in a disk's last saved index; `None` without a readable one. Nothing is
/// changed.
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

/// The pool layout in a disk's index; `None` without a readable one. Nothing is changed.
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

/// Findings in a disk's log; nothing on the disk is changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Peeked {
    /// The newest layout found: of the pool that the disk belongs or belonged to.
    pub(crate) layout: Option<Arc<Layout>>,
    /// Whether anything was committed on it.
    pub(crate) any: bool,
    /// Whether anything but buckets was committed on it.
    pub(crate) content: bool,
}

impl Peeked {
    /// The pool that the disk belongs or belonged to.
    pub(crate) fn family(&self) -> Option<Id> {
        self.layout.as_ref().map(|layout| layout.family)
    }
}

/// How far a disk's log is read to identify its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Up to the first layout, or the first record of content.
    Content,
    /// Up to the first layout.
    Layout,
    /// All of it: the last layout is the newest.
    End,
}

/// Reads a disk's log until its pool is known.
pub(crate) async fn peek(disk: &Arc<dyn Disk>, until: Until) -> Result<Peeked, LogError> {
    let mut peeked = Peeked::default();
    peeked.any = steadfast_log::peek(disk, |record| {
        match Head::decode(record.head) {
            Ok(Head::PoolLayout { payload }) => {
                if let Ok(layout) = Layout::decode(payload)
                    && peeked.layout.as_ref().is_none_or(|known| known.generation < layout.generation)
                {
                    peeked.layout = Some(Arc::new(layout));
                }
            }
            Ok(Head::BucketPut { .. } | Head::BucketDelete { .. } | Head::EpochBreak { .. }) => {}
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

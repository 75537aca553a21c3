//! Eviction on behalf of compaction.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::RwLock;

/// Deletes objects of a cache that are not worth moving when compaction empties their extent.
pub trait Evictor: Send + Sync {
    /// Deletes the object if it is cached and has not been used for long. Returns whether it did,
    /// after the delete has been applied.
    fn evict<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, bool>;
}

/// The evictor of a store, if it has one. Clones share it.
#[derive(Clone, Default)]
pub struct EvictorSlot(Arc<RwLock<Option<Arc<dyn Evictor>>>>);

impl EvictorSlot {
    /// Sets the evictor.
    pub fn set(&self, evictor: Arc<dyn Evictor>) {
        *self.0.write() = Some(evictor);
    }

    pub(crate) fn get(&self) -> Option<Arc<dyn Evictor>> {
        self.0.read().clone()
    }
}

impl fmt::Debug for EvictorSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EvictorSlot(set: {})", self.0.read().is_some())
    }
}

//! Writers of chunks that no record names yet. Their chunks are live, and a writer must learn of
//! its chunks that compaction moves.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use steadfast_log::{ChunkMove, Location, Lsn};

use crate::record::keys::Id;

#[derive(Default)]
struct OwnersState {
    /// Writers, each with the moves of its chunks.
    live: BTreeMap<Id, BTreeMap<Location, Location>>,
    /// Writers whose record was submitted, by its LSN: live until it is applied.
    submitted: BTreeMap<Lsn, Id>,
}

/// The writers whose chunks no record names yet.
#[derive(Default)]
pub(crate) struct Owners(Mutex<OwnersState>);

impl Owners {
    /// Registers a writer.
    pub(crate) fn begin(&self, id: Id) {
        let before = self.0.lock().live.insert(id, BTreeMap::new());
        assert!(before.is_none(), "two writers with one name");
    }

    /// Removes a writer that gave up or whose record was applied.
    pub(crate) fn end(&self, id: &Id) {
        self.0.lock().live.remove(id);
    }

    /// Whether the writer is live.
    pub(crate) fn contains(&self, id: &Id) -> bool {
        self.0.lock().live.contains_key(id)
    }

    /// Whether any writer is live.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().live.is_empty()
    }

    /// The only live writer.
    #[cfg(test)]
    pub(crate) fn only(&self) -> Id {
        let state = self.0.lock();
        let mut ids = state.live.keys().filter(|id| !state.submitted.values().any(|s| s == *id));
        *ids.next().expect("one writer")
    }

    /// The writer's record was submitted: the writer ends when it is applied.
    pub(crate) fn submitted(&self, id: Id, lsn: Lsn) {
        let before = self.0.lock().submitted.insert(lsn, id);
        assert!(before.is_none(), "two writers with one record");
    }

    /// All records up to `lsn` have been applied.
    pub(crate) fn applied(&self, lsn: Lsn) {
        let mut state = self.0.lock();
        while let Some(first) = state.submitted.first_entry().filter(|e| *e.key() <= lsn) {
            let id = first.remove();
            state.live.remove(&id);
        }
    }

    /// Records moves of the writer's chunks. Returns whether the writer is live.
    pub(crate) fn moved(&self, id: &Id, moves: &[ChunkMove]) -> bool {
        let mut state = self.0.lock();
        let Some(redirects) = state.live.get_mut(id) else { return false };
        for m in moves {
            debug_assert!(m.from != m.to && m.from.body_len == m.to.body_len, "a move to {:?}", m.to);
            // A chunk that moves twice is followed from its original location.
            let mut known = false;
            for to in redirects.values_mut().filter(|to| **to == m.from) {
                *to = m.to;
                known = true;
            }
            if !known {
                redirects.insert(m.from, m.to);
            }
        }
        true
    }

    /// Replaces moved chunks by their new locations. Returns whether there were any.
    pub(crate) fn follow(&self, id: &Id, chunks: &mut [Location]) -> bool {
        let state = self.0.lock();
        let Some(redirects) = state.live.get(id).filter(|r| !r.is_empty()) else { return false };
        let mut any = false;
        for chunk in chunks {
            if let Some(to) = redirects.get(chunk) {
                *chunk = *to;
                any = true;
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u32) -> Location {
        Location { extent: 1, epoch: 1, offset, head_len: 1, body_len: 1 }
    }

    #[test]
    fn a_chunk_that_moves_twice_is_followed() {
        let owners = Owners::default();
        owners.begin([1; 16]);
        assert!(owners.moved(&[1; 16], &[ChunkMove { from: at(1), to: at(2) }]));
        assert!(owners.moved(&[1; 16], &[ChunkMove { from: at(2), to: at(3) }]));
        let mut chunks = [at(1), at(9)];
        assert!(owners.follow(&[1; 16], &mut chunks));
        assert_eq!(chunks, [at(3), at(9)]);
    }

    #[test]
    fn a_submitted_writer_is_live_until_it_is_applied() {
        let owners = Owners::default();
        owners.begin([1; 16]);
        owners.submitted([1; 16], 7);
        owners.applied(6);
        assert!(owners.contains(&[1; 16]));
        owners.applied(7);
        assert!(!owners.contains(&[1; 16]));
        assert!(!owners.moved(&[1; 16], &[]));
    }
}

//! The interface to the layer above.

use steadfast_flow::BoxFuture;

use crate::history::History;
use crate::usage::Usage;
use crate::{Applied, ExtentUsage, Location, Lsn, Subject};

/// Receiver of committed records in the layer above. The log makes one call at a time, in LSN
/// order, at run time and in recovery alike. So the derived state is the same both times.
pub trait Applier: Send + Sync + 'static {
    /// Applies records that have become visible: flushed, or written if asynchronous. It counts in
    /// `usage` which bytes they make live or dead. Runs on the commit path and must not block.
    ///
    /// Returns how many records it applied. The log passes the rest again when the applier is
    /// [`Applier::ready`], and acknowledges none of them before. In recovery, opening fails with
    /// [`crate::LogError::Open`] if the applier applies fewer than all.
    fn apply(&self, records: &[Applied], usage: &mut Usage) -> usize;

    /// Whether the applier's checkpoint belongs to this history of the log. The log asks first,
    /// before it changes anything. If not, opening fails with [`crate::LogError::Open`].
    fn can_continue(&self, history: &History) -> bool {
        let _ = history;
        true
    }

    /// Resolves when an applier that applied fewer records than it received can continue. `false`
    /// if it never will.
    fn ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { true })
    }

    /// The highest LSN whose effect the applier has saved durably. Recovery replays from the next
    /// one; 0 replays the whole log.
    fn checkpoint(&self) -> Lsn;

    /// Hint that free space depends on a newer checkpoint. The applier may ignore it.
    fn checkpoint_wanted(&self) {}

    /// The usage saved with that checkpoint.
    fn usage(&self) -> Vec<ExtentUsage>;

    /// Whether the record at `location`, with this head and version, must outlive its extent.
    /// Called for commit records, not for chunks. `oldest` is the lowest version that any other
    /// extent may hold of the record's subject ([`Applier::subject`]): a delete older than that
    /// hides nothing. `None` if the applier cannot decide now, for instance while the index is
    /// unreadable. The log then moves and drops nothing of the extent. Moving a dead record as
    /// live, and later dropping the delete that hides it, would resurrect the record.
    fn record_is_live(&self, head: &[u8], version: Lsn, location: &Location, oldest: Lsn) -> Option<bool>;

    /// Subject of the record with this head. Without a subject, a delete is kept while any older
    /// record exists.
    fn subject(&self, head: &[u8]) -> Subject {
        let _ = head;
        Subject::Unknown
    }

    /// Whether the record with this head may name chunks. Before the log writes a frame with such a
    /// record, it flushes chunks written since the last flush. Otherwise a power cut could keep the
    /// record and lose the chunks.
    fn names_chunks(&self, head: &[u8]) -> bool {
        let _ = head;
        true
    }
}

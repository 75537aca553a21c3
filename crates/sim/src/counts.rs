//! Counts of a run, which show that it tested enough.

/// Counts of operations and outcomes.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Counts {
    /// Requests made.
    pub requests: u64,
    /// Writes acknowledged.
    pub writes: u64,
    /// Successful reads, and listings.
    pub reads: u64,
    /// Requests cancelled.
    pub cancelled: u64,
    /// Requests refused because the disk was full.
    pub full: u64,
    /// Requests refused because a limit was reached.
    pub busy: u64,
    /// Requests that failed because of a disk fault.
    pub failed: u64,
    /// Extents that compaction recycled.
    pub recycled: u64,
    /// Records that compaction appended again.
    pub records_moved: u64,
    /// Chunks that compaction copied.
    pub chunks_moved: u64,
    /// Scrub passes.
    pub scrubs: u64,
    /// Structures of a durable leg healed from the fast leg.
    pub healed_durable: u64,
    /// Structures of a fast leg healed from the durable leg.
    pub healed_fast: u64,
    /// Reads served by the fast leg.
    pub reads_fast: u64,
    /// Bytes copied to a fast leg by the background rebuild.
    pub rebuilt_bytes: u64,
    /// Requests refused because their disk was missing or refused writes.
    pub unavailable: u64,
    /// Listings refused because a disk was missing.
    pub listings_refused: u64,
    /// Starts with missing disks.
    pub starts_incomplete: u64,
    /// Disk additions, drains and replacements that began.
    pub moves_begun: u64,
    /// Changes resumed after a start.
    pub moves_resumed: u64,
    /// Changes finished.
    pub moves_done: u64,
    /// Changes refused for lack of space or because of a fault.
    pub moves_refused: u64,
    /// Objects, uploads and parts copied between disks.
    pub keys_moved: u64,
    /// Publications acknowledged.
    pub publications: u64,
    /// Publications delivered.
    pub delivered: u64,
    /// Times that a subscriber recovered from its position.
    pub recoveries: u64,
    /// Times that a subscriber could not recover.
    pub recoveries_refused: u64,
    /// Requests refused because the index was unreadable.
    pub index_failed: u64,
    /// Indexes rebuilt in place.
    pub index_rebuilt: u64,
    /// Times that the pool was restored to an earlier state.
    pub gone_back: u64,
    /// Times that the pool was restored from its archive.
    pub from_archive: u64,
    /// Writes that an archive did not get in time.
    pub unarchived: u64,
    /// Restores that had all that was answered.
    pub complete_restores: u64,
    /// Objects that were deleted from archives.
    pub archive_deleted: u64,
    /// Events of objects received for the first time.
    #[serde(rename = "told")]
    pub events_received: u64,
    /// Events received again after a start.
    #[serde(rename = "told_again")]
    pub events_redelivered: u64,
}

impl Counts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.writes += other.writes;
        self.reads += other.reads;
        self.cancelled += other.cancelled;
        self.full += other.full;
        self.busy += other.busy;
        self.failed += other.failed;
        self.recycled += other.recycled;
        self.records_moved += other.records_moved;
        self.chunks_moved += other.chunks_moved;
        self.scrubs += other.scrubs;
        self.healed_durable += other.healed_durable;
        self.healed_fast += other.healed_fast;
        self.reads_fast += other.reads_fast;
        self.rebuilt_bytes += other.rebuilt_bytes;
        self.unavailable += other.unavailable;
        self.listings_refused += other.listings_refused;
        self.starts_incomplete += other.starts_incomplete;
        self.moves_begun += other.moves_begun;
        self.moves_resumed += other.moves_resumed;
        self.moves_done += other.moves_done;
        self.moves_refused += other.moves_refused;
        self.keys_moved += other.keys_moved;
        self.publications += other.publications;
        self.delivered += other.delivered;
        self.recoveries += other.recoveries;
        self.recoveries_refused += other.recoveries_refused;
        self.index_failed += other.index_failed;
        self.index_rebuilt += other.index_rebuilt;
        self.gone_back += other.gone_back;
        self.from_archive += other.from_archive;
        self.unarchived += other.unarchived;
        self.complete_restores += other.complete_restores;
        self.archive_deleted += other.archive_deleted;
        self.events_received += other.events_received;
        self.events_redelivered += other.events_redelivered;
    }
}

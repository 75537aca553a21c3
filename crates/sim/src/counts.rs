//! How much a run did: what shows that it proved something.

/// How much of what was done.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Counts {
    /// Requests made.
    pub requests: u64,
    /// Writes answered as done.
    pub writes: u64,
    /// Reads answered with bytes, and listings.
    pub reads: u64,
    /// Requests given up midway.
    pub cancelled: u64,
    /// Requests refused for want of room.
    pub full: u64,
    /// Requests refused because a bound was reached.
    pub busy: u64,
    /// Requests that failed because the disk did.
    pub failed: u64,
    /// Extents that compaction emptied and gave back.
    pub recycled: u64,
    /// Records that compaction appended again.
    pub records_moved: u64,
    /// Chunks that compaction copied.
    pub chunks_moved: u64,
    /// Passes of the scrub.
    pub scrubs: u64,
    /// Structures of a durable leg that were healed from the fast one.
    pub healed_durable: u64,
    /// Structures of a fast leg that were healed from the durable one.
    pub healed_fast: u64,
    /// Reads that the fast leg answered.
    pub reads_fast: u64,
    /// Bytes that were copied to a fast leg in the background.
    pub rebuilt_bytes: u64,
    /// Requests refused because the disk that they needed was missing or took no writes.
    pub unavailable: u64,
    /// Listings refused because a disk was missing.
    pub listings_refused: u64,
    /// Starts at which disks of the pool were missing.
    pub starts_incomplete: u64,
    /// Disks that began to come, leave or replace another.
    pub moves_begun: u64,
    /// Times that what was begun was gone on with after a start.
    pub moves_resumed: u64,
    /// Times that everything was where it was to be.
    pub moves_done: u64,
    /// Times that it could not begin or go on, for want of room or because of a fault.
    pub moves_refused: u64,
    /// Objects, uploads and parts that were copied from disk to disk.
    pub keys_moved: u64,
    /// Snapshots that were made.
    pub snapshots_made: u64,
    /// Times that one was read, whole.
    pub snapshots_read: u64,
    /// Publications answered as done.
    pub publications: u64,
    /// Publications delivered to whoever listens.
    pub delivered: u64,
    /// Times that a subscriber went on from where it was.
    pub recoveries: u64,
    /// Times that it was told that it could not.
    pub recoveries_refused: u64,
    /// Requests refused since the index could not be read.
    pub index_failed: u64,
    /// Indexes that were rebuilt in place.
    pub index_rebuilt: u64,
    /// Times that the pool was put back to an earlier moment.
    pub gone_back: u64,
    /// Events of objects that were heard of.
    pub told: u64,
    /// Those that came again after a start.
    pub told_again: u64,
}

impl Counts {
    /// Adds those of another run.
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
        self.snapshots_made += other.snapshots_made;
        self.snapshots_read += other.snapshots_read;
        self.publications += other.publications;
        self.delivered += other.delivered;
        self.recoveries += other.recoveries;
        self.recoveries_refused += other.recoveries_refused;
        self.index_failed += other.index_failed;
        self.index_rebuilt += other.index_rebuilt;
        self.gone_back += other.gone_back;
        self.told += other.told;
        self.told_again += other.told_again;
    }
}

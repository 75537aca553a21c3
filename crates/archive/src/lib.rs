//! The archive: a copy of the log in a store elsewhere, which follows it continuously.
//!
//! The bytes of all logs of a pool go into a bucket or a directory, in the background. One object,
//! the `head`, names all that counts, and is replaced with a condition. So the copy is at each
//! moment that of one cut, over all disks, whatever happens to requests.
//!
//! - `following` looks at the logs; a cut is what it found.
//! - `shipper` ships one cut after the other, with `transfer`, `gather` and `head_writer`.
//! - `claim` makes this process the owner, and `own_state` remembers that.
//! - `lease_keeper` keeps the lease of an owner in the object `alive`; `lease_watch` watches it.
//! - `periods` are the states that can be restored; `dropped` is what no later one names, and
//!   `cleaner` deletes it in the end.
//! - `image` is the state of a pool that `changes` describe, and `load` reads it.
//! - `reader` reads an archive and takes it over, `history` finds its older states, and `check`
//!   verifies all of them.
//! - `standby` follows an archive onto disks of its own: `followed_image` is what the heads name,
//!   `standby_disks` copy it, and `held_uses` is what they hold.
//! - `archived_pool` is one state of a pool. `disk_writer` makes a disk of it. `image_pool` has
//!   disks that are read only: each `image_disk` reads from the archive what a reader of it needs.

mod alive;
mod archive;
mod archived_pool;
mod aside;
mod attempts;
mod changes;
mod check;
mod claim;
mod cleaner;
mod disk_writer;
mod document;
mod dropped;
mod error;
mod followed_image;
mod following;
mod gather;
mod head;
mod head_writer;
mod held_uses;
mod history;
mod image;
mod image_disk;
mod image_pool;
mod inline;
mod lease_keeper;
mod lease_watch;
mod load;
mod name;
mod named_objects;
mod options;
mod own_state;
mod part_reader;
mod periods;
mod place;
mod progress;
mod reader;
mod shipper;
mod standby;
mod standby_disks;
mod standby_progress;
mod stopping;
mod transfer;
mod transfer_progress;

pub use archive::{Archive, ArchiveGate, ArchiveParts, ArchiveStatus};
pub use archived_pool::{ArchivedDisk, ArchivedPool};
pub use aside::Aside;
pub use check::ArchiveCheck;
pub use disk_writer::{RestoreError, RestorePlace};
pub use error::ArchiveError;
pub use following::{Members, PoolMember};
pub use head::Promise;
#[doc(hidden)]
pub use head_writer::tenure_of_head;
pub use history::ArchivePoint;
pub use image_disk::ImageDisk;
pub use image_pool::ImagePool;
pub use name::DiskId;
pub use options::{ArchiveOptions, ArchiveSabotage};
pub use own_state::{StateKeeper, note_other_owner, refuse_left};
pub use progress::ArchiveState;
pub use reader::{ArchiveDescription, ArchiveReader, TakeOver};
pub use standby::{FollowEnd, Standby, StandbyParts};
pub use standby_disks::StandbyDisk;
pub use standby_progress::{StandbyProgress, StandbyStatus};
pub use transfer_progress::TransferProgress;

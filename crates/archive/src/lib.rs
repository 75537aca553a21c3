//! The archive: a copy of the log in a store elsewhere, which follows it continuously.
//!
//! The bytes of all logs of a pool go into a bucket or a directory, in the background. One object,
//! the `head`, names all that counts, and is replaced with a condition. So the copy is at each
//! moment that of one cut, over all disks, whatever happens to requests.
//!
//! - `following` looks at the logs; a cut is what it found.
//! - `shipper` ships one cut after the other, with `transfer`, `gather` and `head_writer`.
//! - `claim` makes this process the owner, and `own_state` remembers that.
//! - `image` is the state of a pool that `changes` describe, and `load` reads it.
//! - `archived_pool` is a pool as a head names it, and `disk_writer` makes a disk of it.

mod archive;
mod archived_pool;
mod attempts;
mod changes;
mod claim;
mod disk_writer;
mod document;
mod error;
mod following;
mod gather;
mod head;
mod head_writer;
mod image;
mod inline;
mod load;
mod name;
mod options;
mod own_state;
mod progress;
mod shipper;
mod transfer;

pub use archive::{Archive, ArchiveGate, ArchiveParts, ArchiveStatus};
pub use archived_pool::ArchivedPool;
pub use disk_writer::RestoreError;
pub use error::ArchiveError;
pub use following::{Members, PoolMember};
pub use name::DiskId;
pub use options::{ArchiveOptions, ArchiveSabotage};
pub use own_state::StateKeeper;
pub use progress::ArchiveState;

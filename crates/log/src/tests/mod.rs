//! The log over disks in memory and in files.

mod basics;
mod compaction;
mod crashes;
mod failures;
mod harness;
mod model;
mod random;

//! The log over disks in memory and in files.

mod basics;
mod crashes;
mod failures;
mod harness;
mod random;

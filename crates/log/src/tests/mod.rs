//! The log over disks in memory and in files.

mod basics;
mod harness;

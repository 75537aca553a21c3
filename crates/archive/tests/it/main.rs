//! Archives of pools on disks in memory, in stores that misbehave.

mod common;
mod following;
mod leases;
mod owners;
mod points;
mod restores;
mod retention;
mod standby;

//! The store over real files and simulated disks.
//!
//! One binary: each further one would be linked, and compile the generic code of the crates, once more.

#[macro_use]
mod common;

mod ailing;
mod channels;
mod damaged_member;
mod damages;
mod deletes;
mod events;
mod forget;
mod large;
mod legs;
mod listing;
mod model;
mod moves;
mod moves_crash;
mod objects;
mod pool;
mod restored;
mod slow_clients;
mod snapshots;
mod space;
mod stored;
mod timelines;
mod twice;
mod uploads;
mod verify;

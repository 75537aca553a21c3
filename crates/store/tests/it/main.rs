//! The store over real files and simulated disks.
//!
//! One binary: each further one would be linked separately and compile the crates' generic code
//! once more.

#[macro_use]
mod common;

mod channel_moves;
mod channels;
mod damaged_member;
mod damages;
mod deletes;
mod epochs;
mod events;
mod fills;
mod forget;
mod index_failures;
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
mod space;
mod stored;
mod timelines;
mod twice;
mod uploads;
mod users;
mod verify;

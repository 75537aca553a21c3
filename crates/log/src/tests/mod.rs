//! The log over disks in memory and in files.

mod basics;
mod compaction;
mod copies;
mod crashes;
mod deletes;
mod durable;
mod elsewhere;
mod failures;
mod flushes;
mod harness;
mod hold;
mod lost;
mod model;
mod panics;
mod past_records;
mod random;
mod restored;
mod saturated;
mod scale;
mod twin;
mod zones;

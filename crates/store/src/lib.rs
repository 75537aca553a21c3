//! Buckets, objects and channels as records of the log, with their index, cache and cleanup.
//!
//! Everything is a record of a log; the index is derived from it and may be deleted. A *shard* is
//! one disk's log with its index and content. A [`Store`] is all shards; each is home to its share
//! of the keys.

mod api;
mod cache;
mod channels;
mod clock;
mod events;
mod evictor;
mod index;
mod layout;
mod merge;
mod move_gate;
mod names;
mod options;
mod outbox;
mod plan;
mod record;
mod settings;
mod shard;
mod status;
mod store;

pub use api::{
    Attributes, BucketInfo, CACHED, Condition, FillCondition, ListEntry, ListPage, ListQuery, ObjectInfo, PartChoice,
    PartInfo, StoreError, StoredObject, UploadInfo, UploadPage, WEAK_ETAG, Written,
};
pub use cache::CacheStatus;
pub use channels::{
    ChannelSink, FOR_EVER_MS, History, HistoryQuery, NewPublication, Position, Publication, Published, StoredKey,
};
pub use clock::ClockStatus;
pub use events::{Cause, Event, EventKind, EventTarget, Mirrored, NotificationRule, Notifications, ObjectEvent};
pub use evictor::{Evictor, EvictorSlot};
pub use index::{IndexKind, IndexStatus, MemCheckpoint};
pub use move_gate::MoveGate;
pub use names::{Names, named_chunks};
pub use options::{OpenReport, PoolDisk, StoreOptions, StoreSabotage};
pub use record::keys::is_own_channel;
pub use settings::{BucketDocument, BucketSettings};
pub use shard::buckets::UserTexts;
pub use shard::channels::CHANNEL_BYTES_MAX;
pub use shard::channels::pending::PendingPublication;
pub use shard::reader::ObjectReader;
pub use status::{
    DiskState, DiskStatus, EventsStatus, MoveKind, MoveState, MoveStatus, PoolSpace, StoreStatus, Unmovable,
};
pub use store::Store;
pub use store::buckets::Buckets;
pub use store::channels::{ChannelHandle, StoreChannels};
pub use store::contents::BucketContents;
pub use store::events::EventFeed;
pub use store::home::Home;
pub use store::moves::{Forgotten, StoreDisks};
pub use store::upload::Upload;
pub use store::users::StoreUsers;
pub use store::writer::ObjectWriter;

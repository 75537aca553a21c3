//! Channels over all shards: they are on the first disk of the pool, which can therefore not be taken out while there are any.

use std::sync::Arc;

use super::Store;
use super::topology::Topology;
use crate::StoreError;
use crate::channels::ChannelSink;
use crate::record::keys;
use crate::shard::channels::ChannelHandle;

/// The seat of the disk that channels are on.
const SEAT: usize = 0;

impl Store {
    /// A channel. One that was never published into is as good as any other.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] for a name that is empty or too long, [`StoreError::Unavailable`], those of the index.
    pub fn channel(&self, name: &str) -> Result<ChannelHandle, StoreError> {
        self.topology().members()[SEAT].open()?.channel(name)
    }

    /// Who is told of publications from now on.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the disk that channels are on is missing.
    pub fn set_channel_sink(&self, sink: Arc<dyn ChannelSink>) -> Result<(), StoreError> {
        self.topology().members()[SEAT].open()?.core.channels.set_sink(sink);
        Ok(())
    }
}

/// Refuses to take out the disk that channels are on, when there are any or may be soon.
pub(super) fn none_on(topology: &Topology, seat: usize) -> Result<(), StoreError> {
    if seat != SEAT {
        return Ok(());
    }
    let member = &topology.members()[SEAT];
    let core = &member.open()?.core;
    let any = core.index.range(&[keys::PUBLICATIONS], Some(&[keys::PUBLICATIONS + 1])).next();
    match any.transpose()? {
        None if !core.channels.has_sink() => Ok(()),
        _ => Err(StoreError::Unavailable(format!(
            "{} holds the pool's channels, which cannot be moved to another disk yet: it can be taken out only while the live door is off \
             (live.listen is empty) and there are no publications",
            member.name
        ))),
    }
}

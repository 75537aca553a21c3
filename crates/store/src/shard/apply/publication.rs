//! Applies a publication.

use std::sync::Arc;

use steadfast_flow::has_fault;

use super::record::RecordApplier;
use crate::index::IndexError;
use crate::record::wire::Malformed;
use crate::record::{Value, keys};
use crate::shard::channels::record::PublicationMeta;
use crate::shard::channels::state::{Channel, HeldPublication};
use crate::shard::counts::Class;
use crate::shard::dirty::Entity;
use crate::shard::fault::Fault;
use crate::{StoreError, StoreSabotage};

/// Up to this many expired publications are looked up one by one.
const FEW: u64 = 8;

/// The life of the channel that a record belongs to, relative to the newest known one.
enum Life {
    Same,
    Older,
    Newer,
}

/// The application of a publication.
pub(super) struct PublicationApplier<'a, 'b> {
    pub(super) to: &'a mut RecordApplier<'b>,
    /// Its channel.
    pub(super) name: &'a [u8],
    pub(super) offset: u64,
    pub(super) payload: &'a [u8],
}

impl PublicationApplier<'_, '_> {
    /// Applies a record of a channel.
    pub(super) fn apply(mut self) -> Result<(), Fault> {
        let (applied, r) = (self.to.applied, self.to.record);
        let (name, offset) = (self.name, self.offset);
        let meta = PublicationMeta::decode(self.payload)?;
        let text = std::str::from_utf8(name).map_err(|_| Malformed("publication: channel"))?;
        let unread = |e: StoreError| match applied.index.failure() {
            Some(failure) => Fault::Index(IndexError::failed(failure.why)),
            None => Fault::Index(IndexError::damaged(e.to_string())),
        };
        let channel = applied.channels.get(applied, text).map_err(unread)?;
        let channel = match self.replayed_life(&meta, &channel)? {
            Life::Same => channel,
            Life::Older => return Ok(()),
            Life::Newer => {
                applied.channels.drop_channel(name);
                applied.channels.get(applied, text).map_err(unread)?
            }
        };
        if !self.to.put(keys::publication(name, offset).into(), self.payload, Class::Publication)? {
            return Ok(());
        }
        let (held, over, queued) = {
            let mut state = channel.state.lock();
            let (held, over) = state.applied(offset, &meta, r.moved);
            (held, over, state.try_queue())
        };
        if queued {
            applied.channels.tails.enqueue(&channel);
        }
        applied.channels.tails.evict();
        assert!(held.as_ref().is_none_or(|held| held.publication.offset == offset), "another publication is delivered");
        let removed = self.remove_dropped(over.start..over.end.min(offset));
        if !r.moved {
            applied.dirty.note(keys::CHANNELS, name, |name| Entity::Channel { name });
        }
        // Publications that could not be removed lie below the channel's kept range and do no harm;
        // delivery happens only once.
        self.deliver(&channel, &meta, held);
        removed
    }

    /// In a replay: a channel that was forgotten and used again has records of both lives in the
    /// log. No record marks the end of the first life, and that life may have had higher offsets.
    /// The versions separate them: within one life they rise with the offsets.
    fn replayed_life(&mut self, meta: &PublicationMeta, channel: &Channel) -> Result<Life, Fault> {
        let (applied, r) = (self.to.applied, self.to.record);
        let (name, offset) = (self.name, self.offset);
        if applied.replay.lock().is_none() {
            return Ok(Life::Same);
        }
        let (epoch, top) = {
            let state = channel.state.lock();
            (state.epoch, state.top)
        };
        if top == 0 || epoch == meta.epoch {
            return Ok(Life::Same);
        }
        let Some(newest) = applied.index.get(&keys::publication(name, top))? else { return Ok(Life::Same) };
        let newest = Value::decode(&newest).map_err(|e| IndexError::damaged(e.to_string()))?.version;
        if offset > top {
            return Ok(if r.version < newest { Life::Older } else { Life::Same });
        }
        if r.version < newest {
            return Ok(Life::Same);
        }
        let (from, to) = (keys::publication(name, offset + 1), keys::publications(name).1);
        let later: Vec<_> = applied.index.range(&from, Some(&to)).collect();
        for pair in later {
            applied.remove(self.to.usage, &pair?.0, Class::Publication, Some(r.version), r.lsn)?;
        }
        Ok(Life::Newer)
    }

    /// Removes the publications with these offsets from the index; markers of removed ones stay.
    fn remove_dropped(&mut self, gone: std::ops::Range<u64>) -> Result<(), Fault> {
        let (applied, name, lsn) = (self.to.applied, self.name, self.to.record.lsn);
        if gone.end.saturating_sub(gone.start) <= FEW {
            for offset in gone {
                applied.remove_expired(self.to.usage, &keys::publication(name, offset).into(), lsn)?;
            }
            return Ok(());
        }
        // Of a channel that began on another disk, nearly all of these offsets never existed here.
        let (from, to) = (keys::publication(name, gone.start), keys::publication(name, gone.end));
        for pair in applied.index.range(&from, Some(&to)) {
            applied.remove_expired(self.to.usage, &pair?.0, lsn)?;
        }
        Ok(())
    }

    /// Delivers a publication of this process to the sink and the outbox.
    fn deliver(&self, channel: &Arc<Channel>, meta: &PublicationMeta, held: Option<HeldPublication>) {
        let (applied, r) = (self.to.applied, self.to.record);
        let Some(held) = held else { return };
        if let Some(slot) = keys::outbox_slot(channel.name.as_bytes()) {
            if let Some(outbox) = applied.channels.outbox() {
                outbox.on_committed(slot, meta.epoch, &held.publication);
            }
            return;
        }
        if !r.moved
            && let Some(sink) = &*applied.channels.sink.read()
        {
            if has_fault(applied.options.sabotage, StoreSabotage::FanOutOrder) {
                let (sink, channel, epoch) = (sink.clone(), channel.clone(), meta.epoch);
                let publication = held.publication;
                applied.env.spawn("deliver", async move { sink.published(&channel.name, epoch, &publication) });
                return;
            }
            sink.published(&channel.name, meta.epoch, &held.publication);
        }
    }
}

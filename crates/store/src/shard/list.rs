//! Listings: a range scan of the index that skips rolled-up keys.

use bytes::Bytes;

use crate::index::LiveRange;
use crate::layout::Owned;
use crate::merge::{Listed, Source};
use crate::record::keys::BucketId;
use crate::record::object::First;
use crate::record::{Value, keys};
use crate::shard::applied::AppliedState;
use crate::shard::scan::entity_of;
use crate::{ListEntry, ListQuery, StoreError};

/// Keys of a rolled-up prefix that are read before seeking past it: a seek costs about as much.
const STEPS_BEFORE_SEEK: usize = 8;

/// Rolls keys up to their prefixes.
pub(crate) struct Roll<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) delimiter: &'a str,
}

impl Roll<'_> {
    /// The rolled-up prefix of a key; `None` when the key is listed itself.
    pub(crate) fn up<'k>(&self, key: &'k str) -> Option<&'k str> {
        if self.delimiter.is_empty() {
            return None;
        }
        let rest = key.get(self.prefix.len()..)?;
        let at = rest.find(self.delimiter)?;
        key.get(..self.prefix.len() + at + self.delimiter.len())
    }
}

/// A scan that can jump ahead.
pub(crate) struct Scan<'a> {
    applied: &'a AppliedState,
    entries: LiveRange,
    end: Option<Vec<u8>>,
    /// Restricts the scan to keys at home here.
    owned: Option<Owned>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(applied: &'a AppliedState, from: &[u8], end: Option<Vec<u8>>, owned: Option<Owned>) -> Self {
        Self { applied, entries: applied.index.range(from, end.as_deref()), end, owned }
    }

    pub(crate) fn seek(&mut self, to: &[u8]) {
        self.entries = self.applied.index.range(to, self.end.as_deref());
    }

    /// The next pair that does not start with `prefix`.
    pub(crate) fn past(&mut self, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        for _ in 0..STEPS_BEFORE_SEEK {
            match self.next()? {
                Some((key, _)) if key.starts_with(prefix) => {}
                other => return Ok(other),
            }
        }
        let Some(to) = keys::past(prefix) else { return Ok(None) };
        self.seek(&to);
        self.next()
    }

    pub(crate) fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        let Some(owned) = &self.owned else { return Ok(self.entries.next().transpose()?) };
        for pair in self.entries.by_ref() {
            let pair = pair?;
            if entity_of(&pair.0).is_none_or(|entity| owned.has_slot(entity.slot())) {
                return Ok(Some(pair));
            }
        }
        Ok(None)
    }
}

/// The key of an index entry, as text.
fn text(index_key: &[u8]) -> Result<&str, StoreError> {
    index_key
        .get(keys::OBJECT_KEY_AT..)
        .and_then(|key| std::str::from_utf8(key).ok())
        .ok_or_else(|| StoreError::Index("a key that is not text".into()))
}

/// An item of a listing.
#[derive(Debug)]
pub(crate) enum Item {
    Object(ListEntry),
    /// A rolled-up prefix.
    Prefix(String),
}

impl Listed for Item {
    fn place(&self) -> (&str, &str) {
        match self {
            Self::Object(entry) => (&entry.key, ""),
            Self::Prefix(prefix) => (prefix, ""),
        }
    }
}

/// A shard's part of a listing, in order.
pub(crate) struct Items<'a> {
    scan: Scan<'a>,
    roll: Roll<'a>,
    bucket: BucketId,
    /// Prefix to skip.
    skip: Option<Vec<u8>>,
    ended: bool,
}

impl<'a> Items<'a> {
    /// A shard's objects of a bucket for this query, without its limit.
    pub(crate) fn new(applied: &'a AppliedState, bucket: BucketId, query: &'a ListQuery, owned: Option<Owned>) -> Self {
        let roll = Roll { prefix: &query.prefix, delimiter: &query.delimiter };
        let first = keys::object(bucket, query.prefix.as_bytes());
        let after = keys::object(bucket, query.start_after.as_bytes());
        let mut ended = false;
        let from = if after < first {
            first.clone()
        } else if query.start_after.starts_with(&query.prefix)
            && roll.up(&query.start_after) == Some(&query.start_after)
        {
            // The last page ended with this rolled-up prefix.
            let past = keys::past(&after);
            ended = past.is_none();
            past.unwrap_or_default()
        } else {
            [&after[..], &[0]].concat()
        };
        Self { scan: Scan::new(applied, &from, keys::past(&first), owned), roll, bucket, skip: None, ended }
    }
}

impl Source for Items<'_> {
    type Item = Item;

    fn next(&mut self) -> Result<Option<Item>, StoreError> {
        if self.ended {
            return Ok(None);
        }
        let pair = match self.skip.take() {
            Some(prefix) => self.scan.past(&prefix)?,
            None => self.scan.next()?,
        };
        let Some((index_key, value)) = pair else {
            self.ended = true;
            return Ok(None);
        };
        let key = text(&index_key)?;
        if let Some(prefix) = self.roll.up(key) {
            self.skip = Some(keys::object(self.bucket, prefix.as_bytes()));
            return Ok(Some(Item::Prefix(prefix.to_owned())));
        }
        Ok(Some(Item::Object(First::decode(Value::decode(&value)?.payload)?.into_entry(key.to_owned()))))
    }
}

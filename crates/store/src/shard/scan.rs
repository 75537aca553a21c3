//! Reading through a shard's index, a page at a time: which things of some slots there are.

use bytes::Bytes;

use crate::StoreError;
use crate::record::keys::{self, OBJECT_KEY_AT};
use crate::shard::core::Core;
use crate::shard::dirty::Thing;

/// Things of a page at most.
const THINGS_MAX: usize = 512;

/// Keys that are looked at for a page at most.
const LOOKS_MAX: usize = 16 << 10;

/// A page.
pub(crate) struct Page {
    pub(crate) things: Vec<Thing>,
    /// Where to go on; `None` at the end.
    pub(crate) next: Option<Vec<u8>>,
}

/// Where a scan begins.
pub(crate) fn start() -> Vec<u8> {
    vec![keys::OBJECTS]
}

/// What an index key of an object or an upload stands for.
pub(crate) fn thing_of(index_key: &Bytes) -> Option<Thing> {
    let bucket = u64::from_be_bytes(index_key.get(1..OBJECT_KEY_AT)?.try_into().ok()?);
    match index_key.first().copied()? {
        keys::OBJECTS => Some(Thing::Object { bucket, key: index_key.slice(OBJECT_KEY_AT..) }),
        keys::UPLOADS => {
            let (key, upload) = keys::parse_upload(index_key)?;
            Some(Thing::Upload { bucket, key: key.into(), upload })
        }
        _ => None,
    }
}

impl Core {
    /// The next objects, uploads (not their parts) and channels of slots that are `wanted`, and where to go on. May read from disk: off the threads that
    /// serve requests.
    ///
    /// # Errors
    /// [`StoreError::Index`].
    pub(crate) fn scan(&self, from: &[u8], wanted: impl Fn(usize) -> bool) -> Result<Page, StoreError> {
        let not_understood = || StoreError::Index("a key that is not understood".into());
        let mut things = Vec::new();
        let mut looked = 0;
        if from[0] < keys::PARTS {
            for pair in self.index.range(from, Some(&[keys::PARTS])) {
                let (index_key, _) = pair?;
                if looked == LOOKS_MAX || things.len() == THINGS_MAX {
                    return Ok(Page { things, next: Some(index_key.to_vec()) });
                }
                looked += 1;
                let thing = thing_of(&index_key).ok_or_else(not_understood)?;
                if wanted(thing.slot()) {
                    things.push(thing);
                }
            }
        }
        let mut from = from.max(&[keys::PUBLICATIONS]).to_vec();
        while let Some(pair) = self.index.range(&from, Some(&[keys::PUBLICATIONS + 1])).next() {
            let (index_key, _) = pair?;
            if looked == LOOKS_MAX || things.len() == THINGS_MAX {
                return Ok(Page { things, next: Some(from) });
            }
            looked += 1;
            let (name, _) = keys::parse_publication(&index_key).ok_or_else(not_understood)?;
            from = keys::publications(&name).1;
            let thing = Thing::Channel { name: name.into() };
            if wanted(thing.slot()) {
                things.push(thing);
            }
        }
        Ok(Page { things, next: None })
    }

    /// The numbers of the parts that there are of an upload.
    ///
    /// # Errors
    /// [`StoreError::Index`].
    pub(crate) fn part_numbers(&self, upload: &keys::Id) -> Result<Vec<u16>, StoreError> {
        let prefix = keys::parts(upload);
        let mut numbers = Vec::new();
        for pair in self.index.range(&prefix, keys::past(&prefix).as_deref()) {
            let (key, _) = pair?;
            numbers.extend(key.split_last_chunk::<2>().map(|(_, number)| u16::from_be_bytes(*number)));
        }
        Ok(numbers)
    }
}

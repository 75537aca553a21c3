//! Scan of a shard's index, a page at a time: the entities in some slots.

use bytes::Bytes;

use crate::StoreError;
use crate::record::keys::{self, OBJECT_KEY_AT};
use crate::shard::applied::AppliedState;
use crate::shard::dirty::Entity;

/// Maximum number of entities in a page.
const ENTITIES_MAX: usize = 512;

/// Maximum number of keys examined for a page.
const LOOKS_MAX: usize = 16 << 10;

/// A page.
pub(crate) struct Page {
    pub(crate) entities: Vec<Entity>,
    /// Start of the next page; `None` at the end.
    pub(crate) next: Option<Vec<u8>>,
}

/// Start of a scan.
pub(crate) fn start() -> Vec<u8> {
    vec![keys::OBJECTS]
}

/// The entity of an object's or an upload's index key.
pub(crate) fn entity_of(index_key: &Bytes) -> Option<Entity> {
    let bucket = u64::from_be_bytes(index_key.get(1..OBJECT_KEY_AT)?.try_into().ok()?);
    match index_key.first().copied()? {
        keys::OBJECTS => Some(Entity::Object { bucket, key: index_key.slice(OBJECT_KEY_AT..) }),
        keys::UPLOADS => {
            let (key, upload) = keys::parse_upload(index_key)?;
            Some(Entity::Upload { bucket, key: key.into(), upload })
        }
        _ => None,
    }
}

/// The next objects, uploads (without their parts) and channels of slots that are `wanted`, and
/// the start of the next page. May read from disk: call it off the threads that serve requests.
///
/// # Errors
/// [`StoreError::Index`].
pub(crate) fn scan(applied: &AppliedState, from: &[u8], wanted: impl Fn(usize) -> bool) -> Result<Page, StoreError> {
    let not_understood = || StoreError::Index("a key of an unknown format".into());
    let mut entities = Vec::new();
    let mut looked = 0;
    if from[0] < keys::PARTS {
        for pair in applied.index.range(from, Some(&[keys::PARTS])) {
            let (index_key, _) = pair?;
            if looked == LOOKS_MAX || entities.len() == ENTITIES_MAX {
                return Ok(Page { entities, next: Some(index_key.to_vec()) });
            }
            looked += 1;
            let entity = entity_of(&index_key).ok_or_else(not_understood)?;
            if wanted(entity.slot()) {
                entities.push(entity);
            }
        }
    }
    let mut from = from.max(&[keys::PUBLICATIONS]).to_vec();
    while let Some(pair) = applied.index.range(&from, Some(&[keys::PUBLICATIONS + 1])).next() {
        let (index_key, _) = pair?;
        if looked == LOOKS_MAX || entities.len() == ENTITIES_MAX {
            return Ok(Page { entities, next: Some(from) });
        }
        looked += 1;
        let (name, _) = keys::parse_publication(&index_key).ok_or_else(not_understood)?;
        from = keys::publications(&name).1;
        let entity = Entity::Channel { name: name.into() };
        if wanted(entity.slot()) {
            entities.push(entity);
        }
    }
    Ok(Page { entities, next: None })
}

/// The numbers of an upload's parts.
///
/// # Errors
/// [`StoreError::Index`].
pub(crate) fn part_numbers(applied: &AppliedState, upload: &keys::Id) -> Result<Vec<u16>, StoreError> {
    let prefix = keys::parts(upload);
    let mut numbers = Vec::new();
    for pair in applied.index.range(&prefix, keys::past(&prefix).as_deref()) {
        let (key, _) = pair?;
        numbers.extend(key.split_last_chunk::<2>().map(|(_, number)| u16::from_be_bytes(*number)));
    }
    Ok(numbers)
}

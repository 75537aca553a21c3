//! Listings: a range scan of the index that steps over what is rolled up.

use bytes::Bytes;

use crate::core::Core;
use crate::index::Entry;
use crate::record::object::First;
use crate::record::{Value, keys};
use crate::{ListPage, ListQuery, Store, StoreError};

/// How many keys of a rolled-up prefix are read through before seeking past it: a seek costs about as much.
const STEPS_BEFORE_SEEK: usize = 8;

/// Rolls keys up to their prefixes.
pub(crate) struct Roll<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) delimiter: &'a str,
}

impl Roll<'_> {
    /// The rolled-up prefix of a key; `None` when it stands for itself.
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
    core: &'a Core,
    entries: Box<dyn Iterator<Item = Entry> + Send>,
    end: Option<Vec<u8>>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(core: &'a Core, from: &[u8], end: Option<Vec<u8>>) -> Self {
        Self { core, entries: core.index.range(from, end.as_deref()), end }
    }

    pub(crate) fn seek(&mut self, to: &[u8]) {
        self.entries = self.core.index.range(to, self.end.as_deref());
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
        Ok(self.entries.next().transpose()?)
    }
}

/// The key of an index entry, as text.
fn text(index_key: &[u8]) -> Result<&str, StoreError> {
    index_key
        .get(keys::OBJECT_KEY_AT..)
        .and_then(|key| std::str::from_utf8(key).ok())
        .ok_or_else(|| StoreError::Index("a key that is not text".into()))
}

impl Store {
    /// A page of the objects of a bucket.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::Index`].
    pub fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage, StoreError> {
        let id = self.find(bucket)?.id;
        let mut page = ListPage::default();
        if query.limit == 0 {
            return Ok(page);
        }
        let roll = Roll { prefix: &query.prefix, delimiter: &query.delimiter };
        let first = keys::object(id, query.prefix.as_bytes());
        let after = keys::object(id, query.start_after.as_bytes());
        let mut scan = Scan::new(&self.core, &first, keys::past(&first));
        let mut pair = if after < first {
            scan.next()?
        } else if query.start_after.starts_with(&query.prefix)
            && roll.up(&query.start_after) == Some(&query.start_after)
        {
            // The last page ended with this rolled-up prefix.
            let Some(past) = keys::past(&after) else { return Ok(page) };
            scan.seek(&past);
            scan.next()?
        } else {
            scan.seek(&[&after[..], &[0]].concat());
            scan.next()?
        };
        let mut last = String::new();
        while let Some((index_key, value)) = pair {
            let key = text(&index_key)?;
            if page.objects.len() + page.prefixes.len() == query.limit {
                page.next = Some(last);
                break;
            }
            if let Some(prefix) = roll.up(key) {
                last = prefix.to_owned();
                page.prefixes.push(last.clone());
                pair = scan.past(&keys::object(id, last.as_bytes()))?;
            } else {
                let entry = First::decode(Value::decode(&value)?.payload)?.into_entry(key.to_owned());
                last.clear();
                last.push_str(&entry.key);
                page.objects.push(entry);
                pair = scan.next()?;
            }
        }
        Ok(page)
    }
}

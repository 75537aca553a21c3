//! The fills of a bucket, by key.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::bucket_state::BucketState;
use crate::fill::{Base, Fill, Holder, Opening};

/// The fills that requests may join. There are as many as `edge.fills` and `edge.waiting` allow.
#[derive(Clone, Default)]
pub(crate) struct Entries(Arc<Mutex<HashMap<String, Arc<Fill>>>>);

impl Entries {
    /// Joins the fill of a key, or begins one. Returns whether it has joined. `base` is the stored
    /// object that the origin is asked about.
    pub(crate) fn join(
        &self,
        bucket_state: &Arc<BucketState>,
        key: &str,
        client: &Arc<str>,
        opening: Opening,
        base: Option<Box<Base>>,
    ) -> Option<(Holder, bool)> {
        let mut entries = self.0.lock();
        if let Some(holder) = entries.get(key).and_then(|fill| fill.join(opening)) {
            return Some((holder, true));
        }
        let fill = Fill::new(bucket_state.clone(), key, client.clone(), base);
        let holder = fill.join(opening)?;
        entries.insert(key.to_owned(), fill.clone());
        let (entries, key) = (self.clone(), key.to_owned());
        bucket_state.env.spawn("edge-fill", async move {
            fill.run(opening).await;
            let mut entries = entries.0.lock();
            if entries.get(&key).is_some_and(|entry| Arc::ptr_eq(entry, &fill)) {
                entries.remove(&key);
            }
        });
        Some((holder, false))
    }

    /// Detaches the fills of the keys that `matches`.
    pub(crate) fn detach(&self, matches: impl Fn(&str) -> bool) {
        for (_, fill) in self.0.lock().iter().filter(|(key, _)| matches(key)) {
            fill.detach();
        }
    }

    /// Whether the key has a fill.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.0.lock().contains_key(key)
    }

    /// Number of keys with a fill.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().len() as u64
    }
}

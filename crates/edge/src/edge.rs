//! The edge of a server: all buckets with an origin.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use steadfast_flow::Env;
use steadfast_log::Lsn;
use steadfast_store::{BucketSettings, Evictor, ObjectInfo, ObjectReader, Store, StoreError};

use crate::bucket_state::{BucketGates, BucketState, Gates, NegativeEntry, busy};
use crate::counters::Handling;
use crate::entries::Entries;
use crate::error::EdgeError;
use crate::evict;
use crate::fill::{Base, FillEnd, FillReader, Opening};
use crate::fresh::{Freshness, Recent};
use crate::options::{EdgeBounds, EdgeBucket};
use crate::origin::{Client, Origin};
use crate::passed::{HeadObject, PassedObject, Wanted};
use crate::sabotage::Sabotage;
use crate::space::Inventory;

/// How often a request looks for the object again when a fill ended without an answer for it.
const LOOKS: u32 = 4;

/// A bucket with its fills.
pub(crate) struct EdgeEntry {
    pub(crate) bucket_state: Arc<BucketState>,
    pub(crate) entries: Entries,
}

/// All buckets with an origin. Clones share them.
#[derive(Clone)]
pub struct Edge(Arc<EdgeInner>);

struct EdgeInner {
    buckets: BTreeMap<String, EdgeEntry>,
    gates: Gates,
}

/// Evicts for compaction, as long as the edge exists.
struct ColdEvictor(Weak<EdgeInner>);

/// Where the bytes of an object are.
pub enum Fetched {
    /// It is stored.
    Object(ObjectReader),
    /// It is being fetched.
    Fill(FillReader),
    /// It cannot be stored.
    Passed(PassedObject),
}

/// What an edge answers.
pub struct EdgeAnswer<T> {
    /// The object.
    pub found: T,
    /// How it was found.
    pub handling: Handling,
    /// Its age in seconds, where it is known.
    pub age_s: Option<u64>,
}

/// What a lookup in the store leads to.
enum Lookup<T> {
    Answer(EdgeAnswer<T>),
    /// The origin is queried. The stored object may be served if that fails.
    Ask {
        stored: Option<T>,
        base: Option<Box<Base>>,
        if_error: bool,
    },
}

impl Edge {
    /// Checks the origins and creates the buckets that do not exist.
    ///
    /// # Errors
    /// An origin's address or a bound is invalid, or a bucket cannot be created; the text is for
    /// operators.
    pub async fn open(store: Store, env: Env, buckets: Vec<EdgeBucket>, bounds: EdgeBounds) -> Result<Self, String> {
        let mut with_origins: Vec<(EdgeBucket, Arc<dyn Origin>)> = Vec::new();
        for bucket in buckets {
            let client = Client::new(&bucket.origin, bucket.addresses, bounds.origin_connections, env.clone());
            let client = client.map_err(|e| format!("the origin of the edge bucket {}: {e}", bucket.bucket))?;
            with_origins.push((bucket, Arc::new(client)));
        }
        Self::with_origins(store, env, with_origins, &bounds).await
    }

    /// The same with given origins.
    ///
    /// # Errors
    /// Those of [`Edge::open`].
    pub async fn with_origins(
        store: Store,
        env: Env,
        buckets: Vec<(EdgeBucket, Arc<dyn Origin>)>,
        bounds: &EdgeBounds,
    ) -> Result<Self, String> {
        let gates = Gates::new(bounds, &env);
        let mut sites = BTreeMap::new();
        let last_use_bytes = bounds.last_use_bytes / buckets.len().max(1) as u64;
        for (options, origin) in buckets {
            let bucket = options.bucket.clone();
            match store.buckets().create(&bucket, BucketSettings::default()).await {
                Ok(_) | Err(StoreError::BucketExists) => {}
                Err(e) => return Err(format!("the edge bucket {bucket} cannot be created: {e}")),
            }
            let bucket_gates = BucketGates::new(bounds, &env);
            let (store, env, gates) = (store.clone(), env.clone(), gates.clone());
            let bucket_state = BucketState {
                run: env.random_u64(),
                inventory: Inventory::new(options.retention.space_bytes, last_use_bytes, &env),
                counters: Arc::default(),
                remembered: Recent::new(),
                renewals: Recent::new(),
                options,
                store,
                env,
                origin,
                bucket_gates,
                gates,
            };
            let bucket_state = Arc::new(bucket_state);
            bucket_state.env.clone().spawn("edge-evict", evict::keep_within(bucket_state.clone()));
            sites.insert(bucket, EdgeEntry { bucket_state, entries: Entries::default() });
        }
        let edge = Self(Arc::new(EdgeInner { buckets: sites, gates }));
        store.set_evictor(Arc::new(ColdEvictor(Arc::downgrade(&edge.0))));
        edge.spawn_sweep(store, env);
        Ok(edge)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &EdgeEntry> {
        self.0.buckets.values()
    }

    pub(crate) fn gates(&self) -> &Gates {
        &self.0.gates
    }

    /// Counts bytes of an answer that is being sent.
    pub fn served(&self, bucket: &str, bytes: u64) {
        if let Some(entry) = self.0.buckets.get(bucket) {
            entry.bucket_state.counters.served(bytes);
        }
    }

    /// The error for a cached object that could not be read to its end. A damaged object is
    /// deleted, so that the next request fetches it again.
    pub fn read_failed(&self, bucket: &str, key: &str, version: Lsn, error: StoreError) -> EdgeError {
        if let Some(EdgeEntry { bucket_state, .. }) = self.0.buckets.get(bucket) {
            let (bucket_state, key, error) = (bucket_state.clone(), key.to_owned(), error.clone());
            bucket_state.env.clone().spawn("edge-evict", async move {
                bucket_state.evict_unreadable(&key, Some(version), &error).await;
            });
        }
        error.into()
    }

    /// Whether the bucket has an origin.
    pub fn has_origin(&self, bucket: &str) -> bool {
        self.0.buckets.contains_key(bucket)
    }

    pub(crate) fn entry(&self, bucket: &str, key: &str) -> Result<&EdgeEntry, EdgeError> {
        // An origin could resolve such a key to something outside its prefix.
        if key.split('/').any(|step| matches!(step, "." | "..")) {
            return Err(StoreError::NoSuchKey.into());
        }
        self.entry_of(bucket)
    }

    pub(crate) fn entry_of(&self, bucket: &str) -> Result<&EdgeEntry, EdgeError> {
        self.0.buckets.get(bucket).ok_or_else(|| StoreError::NoSuchBucket.into())
    }

    /// The object as it is stored, as it is being fetched, or as the origin answers.
    ///
    /// # Errors
    /// [`EdgeError`].
    pub async fn get(&self, bucket: &str, key: &str, wanted: &Wanted) -> Result<EdgeAnswer<Fetched>, EdgeError> {
        let entry = self.entry(bucket, key)?;
        let answer = self.find(entry, key, wanted).await?;
        entry.bucket_state.counters.answered(answer.handling);
        Ok(answer)
    }

    pub(crate) async fn find(
        &self,
        entry: &EdgeEntry,
        key: &str,
        wanted: &Wanted,
    ) -> Result<EdgeAnswer<Fetched>, EdgeError> {
        let EdgeEntry { bucket_state, entries } = entry;
        let bucket = &bucket_state.options.bucket;
        let mut waiting = None;
        for _ in 0..LOOKS {
            let opened = match bucket_state.store.at(bucket, key).reader().await {
                Ok(reader) => Ok((reader.info().clone(), reader)),
                Err(error) if bucket_state.evict_unreadable(key, None, &error).await => continue,
                Err(error) => Err(error),
            };
            let (stored, base, if_error) = match self.look(bucket_state, entries, key, &wanted.client, opened)? {
                Lookup::Answer(answer) => return Ok(answer.map(Fetched::Object)),
                Lookup::Ask { stored, base, if_error } => (stored, base, if_error),
            };
            if waiting.is_none() {
                waiting = Some(
                    bucket_state.bucket_gates.waiting.try_enter(&wanted.client).map_err(|refused| busy(&refused))?,
                );
            }
            let old = base.is_some();
            // The first bytes end the wait.
            let pass = async |waiting| {
                let passed = Fetched::Passed(bucket_state.pass(key, false, wanted, waiting).await?);
                Ok(EdgeAnswer { found: passed, handling: Handling::Passed, age_s: None })
            };
            if !old && matches!(bucket_state.remembered(key), Some(NegativeEntry::NotStorable(_))) {
                return pass(waiting).await;
            }
            let Some((holder, collapsed)) =
                entries.join(bucket_state, key, &wanted.client, Opening::Get(wanted.first), base)
            else {
                continue;
            };
            match holder.target().await {
                Ok(target) => {
                    bucket_state.touch(key);
                    let handling = if old { Handling::Replaced } else { Handling::Miss { collapsed } };
                    let found = Fetched::Fill(FillReader::new(holder, target, waiting));
                    return Ok(EdgeAnswer { found, handling, age_s: None });
                }
                Err(FillEnd::NotStorable) => return pass(waiting).await,
                Err(end) => {
                    if let Some(answer) =
                        settle(bucket_state, key, end, stored, if_error, |reader| reader.info().version)?
                    {
                        return Ok(answer.map(Fetched::Object));
                    }
                }
            }
        }
        Err(EdgeError::Changed)
    }

    /// The description of an object, as a GET at the same time would find it.
    ///
    /// # Errors
    /// [`EdgeError`].
    pub async fn head(&self, bucket: &str, key: &str, client: Arc<str>) -> Result<EdgeAnswer<HeadObject>, EdgeError> {
        let EdgeEntry { bucket_state, entries } = self.entry(bucket, key)?;
        let wanted = Wanted { client, ..Wanted::default() };
        let mut waiting = None;
        for _ in 0..LOOKS {
            let found = bucket_state.store.at(bucket, key).info().map(|info| (info.clone(), info));
            let (stored, base, if_error) = match self.look(bucket_state, entries, key, &wanted.client, found)? {
                Lookup::Answer(answer) => return Ok(answer.map(HeadObject::from)),
                Lookup::Ask { stored, base, if_error } => (stored, base, if_error),
            };
            if waiting.is_none() {
                waiting = Some(
                    bucket_state.bucket_gates.waiting.try_enter(&wanted.client).map_err(|refused| busy(&refused))?,
                );
            }
            let handling = if base.is_some() { Handling::Replaced } else { Handling::Miss { collapsed: false } };
            let pass = async || {
                let found = bucket_state.pass(key, true, &wanted, None).await?.into();
                Ok(EdgeAnswer { found, handling: Handling::Passed, age_s: None })
            };
            let beside = bucket_state.has(Sabotage::HeadBesideFill) && entries.contains(key);
            if beside || stored.is_none() && matches!(bucket_state.remembered(key), Some(NegativeEntry::NotStorable(_)))
            {
                return pass().await;
            }
            let Some((holder, _)) = entries.join(bucket_state, key, &wanted.client, Opening::Head, base) else {
                continue;
            };
            match holder.target().await {
                Ok(target) => return Ok(EdgeAnswer { found: target.info.clone().into(), handling, age_s: None }),
                Err(FillEnd::NotStorable | FillEnd::NoLength) => return pass().await,
                Err(end) => {
                    if let Some(answer) = settle(bucket_state, key, end, stored, if_error, |info| info.version)? {
                        return Ok(answer.map(HeadObject::from));
                    }
                    if let Some(target) = holder.seen() {
                        return Ok(EdgeAnswer { found: target.info.clone().into(), handling, age_s: None });
                    }
                }
            }
        }
        Err(EdgeError::Changed)
    }

    /// Decides what the store's answer is worth.
    fn look<T>(
        &self,
        bucket_state: &Arc<BucketState>,
        entries: &Entries,
        key: &str,
        client: &Arc<str>,
        found: Result<(ObjectInfo, T), StoreError>,
    ) -> Result<Lookup<T>, EdgeError> {
        let (info, stored) = match found {
            Ok(found) => found,
            Err(StoreError::NoSuchKey) => {
                return match bucket_state.remembered(key) {
                    Some(NegativeEntry::Missing(_)) => Err(StoreError::NoSuchKey.into()),
                    Some(NegativeEntry::Refused(_)) => Err(EdgeError::Origin(
                        "The origin of this bucket has just failed to answer for this object.".into(),
                    )),
                    _ => Ok(Lookup::Ask { stored: None, base: None, if_error: false }),
                };
            }
            Err(error) => return Err(error.into()),
        };
        bucket_state.touch(key);
        let (freshness, age_ms) = bucket_state.freshness(&info);
        let answer = |handling| EdgeAnswer { found: stored, handling, age_s: age_ms.map(|age| age / 1000) };
        Ok(match freshness {
            Freshness::LocalWrite | Freshness::Fresh => Lookup::Answer(answer(Handling::Hit)),
            Freshness::WhileRevalidate => {
                if !matches!(bucket_state.remembered(key), Some(NegativeEntry::Failing(_))) {
                    // The origin is asked without this request.
                    drop(entries.join(bucket_state, key, client, Opening::Get(0), Base::of(&info)));
                }
                Lookup::Answer(answer(Handling::Stale))
            }
            Freshness::Stale { if_error: true }
                if matches!(bucket_state.remembered(key), Some(NegativeEntry::Failing(_))) =>
            {
                Lookup::Answer(answer(Handling::Stale))
            }
            Freshness::Stale { if_error } => {
                Lookup::Ask { base: Base::of(&info), stored: Some(answer(Handling::Stale).found), if_error }
            }
        })
    }
}

impl Evictor for ColdEvictor {
    fn evict<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let edge = self.0.upgrade();
            let entry = edge.as_ref().and_then(|edge| edge.buckets.get(bucket));
            match entry {
                Some(entry) => entry.bucket_state.evict_cold(key).await,
                None => false,
            }
        })
    }
}

impl fmt::Debug for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Edge").field(&self.0.buckets.keys()).finish()
    }
}

impl<T> EdgeAnswer<T> {
    /// The same with another form of the object.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> EdgeAnswer<U> {
        EdgeAnswer { found: map(self.found), handling: self.handling, age_s: self.age_s }
    }
}

/// The answer after a request that found no new version; `None` if the request looks again.
fn settle<T>(
    bucket_state: &BucketState,
    key: &str,
    end: FillEnd,
    stored: Option<T>,
    if_error: bool,
    version: impl Fn(&T) -> Lsn,
) -> Result<Option<EdgeAnswer<T>>, EdgeError> {
    match (end, stored) {
        (FillEnd::Renewed(renewed), Some(found)) if version(&found) == renewed => {
            Ok(Some(EdgeAnswer { found, handling: Handling::Revalidated, age_s: Some(0) }))
        }
        (FillEnd::Failed(EdgeError::Changed), _) => Ok(None),
        (FillEnd::Failed(EdgeError::Store(StoreError::NoSuchKey)), _) => Err(StoreError::NoSuchKey.into()),
        (FillEnd::Failed(error), Some(found)) if if_error => {
            tracing::debug!(bucket = %bucket_state.options.bucket, %key, %error, "a stale object is served");
            Ok(Some(EdgeAnswer { found, handling: Handling::Stale, age_s: None }))
        }
        (FillEnd::Failed(error), _) => Err(error),
        _ => Ok(None),
    }
}

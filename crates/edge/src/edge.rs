//! The edge of a server: all buckets with an origin.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_flow::Env;
use steadfast_store::{BucketSettings, ObjectInfo, ObjectReader, Store, StoreError};

use crate::entries::Entries;
use crate::error::EdgeError;
use crate::fill::{FillEnd, FillReader, Opening};
use crate::options::{EdgeBounds, EdgeBucket};
use crate::origin::{Client, Origin};
use crate::passed::{PassedObject, Wanted};
use crate::site::{Gates, Site, busy};

/// How often a request looks for the object again when a fill ended without an answer for it.
const LOOKS: u32 = 4;

struct EdgeEntry {
    site: Arc<Site>,
    entries: Entries,
}

/// All buckets with an origin. Clones share them.
#[derive(Clone)]
pub struct Edge(Arc<BTreeMap<String, EdgeEntry>>);

/// Where the bytes of an object are.
pub enum Fetched {
    /// It is stored.
    Object(ObjectReader),
    /// It is being fetched.
    Fill(FillReader),
    /// It cannot be stored.
    Passed(PassedObject),
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
        for (options, origin) in buckets {
            let bucket = options.bucket.clone();
            match store.create_bucket(&bucket, BucketSettings::default()).await {
                Ok(_) | Err(StoreError::BucketExists) => {}
                Err(e) => return Err(format!("the edge bucket {bucket} cannot be created: {e}")),
            }
            let connections = gates.connections(bounds, &env);
            let (store, env, gates) = (store.clone(), env.clone(), gates.clone());
            let uploads = Mutex::default();
            let site = Arc::new(Site { options, store, env, origin, connections, gates, uploads });
            sites.insert(bucket, EdgeEntry { site, entries: Entries::default() });
        }
        let edge = Self(Arc::new(sites));
        edge.spawn_sweep(store, env);
        Ok(edge)
    }

    /// Whether the bucket has an origin.
    pub fn has_origin(&self, bucket: &str) -> bool {
        self.0.contains_key(bucket)
    }

    /// Whether a fill of the key is running.
    pub(crate) fn is_filling(&self, bucket: &str, key: &str) -> bool {
        self.0.get(bucket).is_some_and(|entry| entry.entries.contains(key))
    }

    fn entry(&self, bucket: &str, key: &str) -> Result<&EdgeEntry, EdgeError> {
        // An origin could resolve such a key to something outside its prefix.
        if key.split('/').any(|step| matches!(step, "." | "..")) {
            return Err(StoreError::NoSuchKey.into());
        }
        self.0.get(bucket).ok_or_else(|| StoreError::NoSuchBucket.into())
    }

    /// The object as it is stored, as it is being fetched, or as the origin answers.
    ///
    /// # Errors
    /// [`EdgeError`].
    pub async fn get(&self, bucket: &str, key: &str, wanted: &Wanted) -> Result<Fetched, EdgeError> {
        let EdgeEntry { site, entries } = self.entry(bucket, key)?;
        let _waiting = site.gates.waiting.try_enter().map_err(|refused| busy(&refused))?;
        for _ in 0..LOOKS {
            match site.store.reader(bucket, key).await {
                Ok(reader) => return Ok(Fetched::Object(reader)),
                Err(StoreError::NoSuchKey) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(holder) = entries.join(site, key, Opening::Get(wanted.first)) else { continue };
            match holder.plan().await {
                Ok(plan) => return Ok(Fetched::Fill(FillReader::new(holder, plan))),
                Err(FillEnd::NotStorable) => return Ok(Fetched::Passed(site.pass(key, false, wanted).await?)),
                Err(FillEnd::Failed(error)) if !matches!(error, EdgeError::Changed) => return Err(error),
                Err(FillEnd::Failed(_) | FillEnd::Stopped | FillEnd::Stored(_)) => {}
            }
        }
        Err(EdgeError::Changed)
    }

    /// The description of an object, as a GET at the same time would find it.
    ///
    /// # Errors
    /// [`EdgeError`].
    pub async fn head(&self, bucket: &str, key: &str) -> Result<ObjectInfo, EdgeError> {
        let EdgeEntry { site, entries } = self.entry(bucket, key)?;
        let _waiting = site.gates.waiting.try_enter().map_err(|refused| busy(&refused))?;
        for _ in 0..LOOKS {
            match site.store.object(bucket, key) {
                Ok(info) => return Ok(info),
                Err(StoreError::NoSuchKey) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(holder) = entries.join(site, key, Opening::Head) else { continue };
            match holder.plan().await {
                Ok(plan) => return Ok(plan.info.clone()),
                Err(FillEnd::NotStorable) => {
                    return Ok(site.pass(key, true, &Wanted::default()).await?.info().clone());
                }
                Err(FillEnd::Failed(error)) if !matches!(error, EdgeError::Changed) => return Err(error),
                Err(_) => {
                    if let Some(plan) = holder.seen() {
                        return Ok(plan.info.clone());
                    }
                }
            }
        }
        Err(EdgeError::Changed)
    }
}

impl fmt::Debug for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Edge").field(&self.0.keys()).finish()
    }
}

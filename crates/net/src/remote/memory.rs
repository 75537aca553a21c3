//! A store in memory, for tests and the simulator. What happens to a request is decided by its
//! user.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Env};

use super::{EntityTag, REMOTE_PAGE, RemoteEntry, RemoteError, RemoteObject, RemoteResult, RemoteStore};

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is answered after this time.
    Answered(Duration),
    /// It happens after this time, and its answer is lost.
    Lost(Duration),
    /// It is given up by its sender at once, and happens after this time. A late one may find that
    /// its condition does not hold any more.
    Late(Duration),
    /// It happens twice, the second time after this time.
    Twice(Duration),
    /// It does not happen, and fails so.
    Failed(RemoteError),
}

/// A request to a [`MemoryStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteCall<'a> {
    /// [`RemoteStore::create`]
    Create(&'a str),
    /// [`RemoteStore::replace`]
    Replace(&'a str),
    /// [`RemoteStore::read`]
    Read(&'a str),
    /// [`RemoteStore::list`]
    List,
    /// [`RemoteStore::delete`]
    Delete,
}

/// Decides what happens to each request.
pub type Fates = Arc<dyn Fn(RemoteCall<'_>) -> Fate + Send + Sync>;

type Objects = BTreeMap<String, Bytes>;

/// A write with its condition.
#[derive(Clone)]
enum Write {
    Create(String, Bytes),
    Replace(String, Bytes, EntityTag),
    Delete(Vec<String>),
}

impl Write {
    fn to(&self, objects: &mut Objects) -> RemoteResult<EntityTag> {
        let (name, body) = match self {
            Self::Create(name, _) if objects.contains_key(name) => return Err(RemoteError::Exists),
            Self::Replace(name, _, over) if objects.get(name).map(tag).as_ref() != Some(over) => {
                return Err(RemoteError::Changed);
            }
            Self::Create(name, body) | Self::Replace(name, body, _) => (name, body),
            Self::Delete(names) => {
                names.iter().for_each(|name| _ = objects.remove(name));
                return Ok(EntityTag(String::new()));
            }
        };
        objects.insert(name.clone(), body.clone());
        Ok(tag(body))
    }
}

/// The entity tag of an object: equal bytes have equal ones, as in S3.
fn tag(body: &Bytes) -> EntityTag {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    EntityTag(format!("{:016x}", hasher.finish()))
}

/// A store in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryStore {
    objects: Arc<Mutex<Objects>>,
    /// Requests on their way.
    late: Arc<Mutex<BTreeMap<u64, Write>>>,
    fates: Fates,
    env: Env,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryStore({} objects)", self.objects.lock().len())
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new(env: &Env, fates: Fates) -> Self {
        Self { objects: Arc::default(), late: Arc::default(), fates, env: env.clone() }
    }

    /// The same objects in another environment. Requests that were late in the old one arrive in
    /// this one, after up to a second.
    #[must_use]
    pub fn in_env(&self, env: &Env, fates: Fates) -> Self {
        let store = Self { fates, env: env.clone(), ..self.clone() };
        let late: Vec<u64> = store.late.lock().keys().copied().collect();
        late.into_iter().for_each(|number| store.arrive(number, Duration::from_millis(env.random_u64() % 1000)));
        store
    }

    /// The same objects, with other fates of requests.
    #[must_use]
    pub fn with_fates(&self, fates: Fates) -> Self {
        Self { fates, ..self.clone() }
    }

    /// Names and bytes of all objects.
    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        self.objects.lock().clone()
    }

    /// Sets or removes an object, whatever the conditions.
    pub fn force(&self, name: &str, body: Option<Bytes>) {
        let mut objects = self.objects.lock();
        match body {
            Some(body) => _ = objects.insert(name.to_owned(), body),
            None => _ = objects.remove(name),
        }
    }

    /// Removes all objects, and requests on their way: what is left is as another place.
    pub fn clear(&self) {
        self.objects.lock().clear();
        self.late.lock().clear();
    }

    async fn put(&self, call: RemoteCall<'_>, write: Write) -> RemoteResult<EntityTag> {
        let unknown = || RemoteError::Unknown("the answer is lost".to_owned());
        match (self.fates)(call) {
            Fate::Answered(after) => {
                self.env.sleep(after).await;
                write.to(&mut self.objects.lock())
            }
            Fate::Lost(after) => {
                self.env.sleep(after).await;
                let _ = write.to(&mut self.objects.lock());
                Err(unknown())
            }
            Fate::Late(after) => {
                self.later(after, write);
                Err(unknown())
            }
            Fate::Twice(after) => {
                let first = write.to(&mut self.objects.lock());
                self.later(after, write);
                first
            }
            Fate::Failed(e) => Err(e),
        }
    }

    fn later(&self, after: Duration, write: Write) {
        let number = {
            let mut late = self.late.lock();
            let number = late.last_key_value().map_or(0, |(number, _)| number + 1);
            late.insert(number, write);
            number
        };
        self.arrive(number, after);
    }

    /// Lets a late request arrive.
    fn arrive(&self, number: u64, after: Duration) {
        let (objects, late, env) = (self.objects.clone(), self.late.clone(), self.env.clone());
        self.env.spawn("late request", async move {
            env.sleep(after).await;
            let write = late.lock().remove(&number);
            if let Some(write) = write {
                let _ = write.to(&mut objects.lock());
            }
        });
    }

    /// Whether a request that changes nothing is answered.
    async fn answered(&self, call: RemoteCall<'_>) -> RemoteResult<()> {
        match (self.fates)(call) {
            Fate::Answered(after) | Fate::Twice(after) => {
                self.env.sleep(after).await;
                Ok(())
            }
            Fate::Lost(_) | Fate::Late(_) => Err(RemoteError::Unknown("the answer is lost".to_owned())),
            Fate::Failed(e) => Err(e),
        }
    }
}

impl RemoteStore for MemoryStore {
    fn create<'a>(&'a self, name: &'a str, body: Vec<Bytes>) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        Box::pin(self.put(RemoteCall::Create(name), Write::Create(name.to_owned(), body.concat().into())))
    }

    fn replace<'a>(
        &'a self,
        name: &'a str,
        body: Bytes,
        over: &'a EntityTag,
    ) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        Box::pin(self.put(RemoteCall::Replace(name), Write::Replace(name.to_owned(), body, over.clone())))
    }

    fn read<'a>(
        &'a self,
        name: &'a str,
        range: Option<Range<u64>>,
        bytes_max: u64,
    ) -> BoxFuture<'a, RemoteResult<RemoteObject>> {
        Box::pin(async move {
            self.answered(RemoteCall::Read(name)).await?;
            let body = self.objects.lock().get(name).cloned().ok_or(RemoteError::Missing)?;
            let (size, tag) = (body.len() as u64, tag(&body));
            let range = range.unwrap_or(0..size);
            if range.end > size || range.start > range.end {
                return Err(RemoteError::Refused(format!("{name} has only {size} bytes")));
            }
            let body = body.slice(range.start as usize..range.end as usize);
            if body.len() as u64 > bytes_max {
                return Err(RemoteError::Refused(format!("{name} has {size} bytes, at most {bytes_max} are read")));
            }
            Ok(RemoteObject { body, tag: Some(tag), size })
        })
    }

    fn list<'a>(&'a self, under: &'a str, after: &'a str) -> BoxFuture<'a, RemoteResult<Vec<RemoteEntry>>> {
        Box::pin(async move {
            self.answered(RemoteCall::List).await?;
            let objects = self.objects.lock();
            let prefix = if under.is_empty() { String::new() } else { format!("{under}/") };
            let there = objects.iter().filter(|(name, _)| name.starts_with(&prefix) && ***name > *after);
            let entry = |(name, body): (&String, &Bytes)| RemoteEntry {
                name: name.clone(),
                size: body.len() as u64,
                modified_ms: self.env.wall_ms(),
            };
            Ok(there.take(REMOTE_PAGE).map(entry).collect())
        })
    }

    fn delete<'a>(&'a self, names: &'a [String]) -> BoxFuture<'a, RemoteResult<()>> {
        Box::pin(async move { self.put(RemoteCall::Delete, Write::Delete(names.to_vec())).await.map(|_| ()) })
    }

    fn describe(&self) -> String {
        "a store in memory".to_owned()
    }
}

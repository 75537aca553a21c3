//! The content of a store: read completely and compared with the model, and listed to compare two
//! stores.

use std::collections::BTreeMap;

use futures::StreamExt;
use steadfast_store::{ListQuery, Store, StoreError};

use crate::client::Client;
use crate::events;
use crate::members::disk_name;
use crate::model::{Key, Seen};
use crate::outcome::Outcome;
use crate::shared::Shared;
use crate::tags::{attributes, tag_of};

/// The result of reading a key.
enum KeyReading {
    Seen(Seen),
    /// The key's disk is missing.
    Missing(usize),
    Unreadable,
}

/// The visible content of a store, for comparisons.
pub(crate) type Contents = BTreeMap<String, String>;

/// Reads everything and compares it with the model. Returns false if damage to the medium prevents
/// that.
pub(crate) async fn survey(client: &Client, clean: bool) -> Outcome<bool> {
    let shared = &client.shared;
    let damage = shared.damage();
    shared.unseen.lock().clear();
    let mut seen: BTreeMap<Key, Seen> = BTreeMap::new();
    for (bucket, _) in &shared.buckets {
        if client.store.buckets().get(bucket).is_err() {
            if shared.made.lock().contains(bucket) && !damage {
                return Err(format!("LOST: the bucket {bucket} is missing"));
            }
            // Its creation may not have been acknowledged; then the bucket is empty.
            for key in &shared.keys {
                seen.insert((bucket.clone(), key.clone()), None);
            }
            continue;
        }
        for name in &shared.keys {
            let key = (bucket.clone(), name.clone());
            let state = read_key(client, &key).await?;
            match state {
                KeyReading::Seen(state) => {
                    let moved = shared.members.lock().moved;
                    if let Some(home) = shared.homes.lock().get(&key).filter(|home| shared.is_missing(**home) && !moved)
                    {
                        return Err(format!("{key:?} is on {}, which is missing: {state:?}", disk_name(*home)));
                    }
                    seen.insert(key, state);
                }
                KeyReading::Missing(disk) => {
                    let home = *shared.homes.lock().entry(key.clone()).or_insert(disk);
                    if home != disk && !shared.members.lock().moved {
                        let (one, two) = (disk_name(home), disk_name(disk));
                        return Err(format!("{key:?} was on {one}, but the store now names {two}"));
                    }
                    shared.unseen.lock().insert(key, disk);
                }
                KeyReading::Unreadable if damage => {}
                KeyReading::Unreadable => return Err(format!("{key:?} cannot be read after a start")),
            }
        }
    }
    if !damage {
        events::survey(shared, &client.store, &seen).await?;
    }
    client.check_uploads(clean, &seen).or_else(|what| shared.judge(Err(what)))?;
    let mut model = shared.model.lock();
    if damage {
        model.restarted_damaged(&seen)?
    } else {
        model.restarted(&seen, clean)?
    }
    drop(model);
    for (bucket, _) in shared.buckets.iter().filter(|(bucket, _)| client.store.buckets().get(bucket).is_ok()) {
        shared.judge(client.check_listing(bucket, "", "", "", 3))?;
    }
    Ok(true)
}

/// Reads a key completely.
async fn read_key(client: &Client, key: &Key) -> Outcome<KeyReading> {
    for _ in 0..30 {
        let reader = match client.store.at(&key.0, &key.1).reader().await {
            Ok(reader) => reader,
            Err(StoreError::NoSuchKey) => return Ok(KeyReading::Seen(None)),
            Err(StoreError::Unavailable(why)) => {
                return client.shared.unavailable(&why, false).map(KeyReading::Missing);
            }
            Err(error) => {
                client.shared.read_may_fail(&error)?;
                continue;
            }
        };
        let info = reader.info().clone();
        let tag = tag_of(&info.attributes.etag)?;
        if info.attributes != attributes(tag) {
            return Err(format!("WRONG attributes of {key:?}: {:?}", info.attributes));
        }
        let mut stream = std::pin::pin!(reader.stream(0..info.size));
        let mut at = 0;
        let mut whole = true;
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(data) => {
                    client.shared.model.lock().check_bytes(tag, info.size, at, &data)?;
                    at += data.len() as u64;
                }
                Err(error) => {
                    client.shared.read_may_fail(&error)?;
                    whole = false;
                    break;
                }
            }
        }
        if whole {
            if at != info.size {
                return Err(format!("WRONG length of {key:?}: {at}, not {}", info.size));
            }
            client.shared.model.lock().check_bytes(tag, info.size, 0, &[])?;
            return Ok(KeyReading::Seen(Some((tag, info.version))));
        }
        if client.shared.damage() {
            return Ok(KeyReading::Seen(Some((tag, info.version))));
        }
    }
    Ok(KeyReading::Unreadable)
}

/// The key of the live bytes in [`Contents`].
pub(crate) const USAGE: &str = "live bytes";

/// The live bytes of each extent that has any.
pub(crate) fn usage(store: &Store) -> String {
    let usage = store.status().log.usage;
    let live = usage.iter().filter(|u| u.live_bytes > 0);
    live.map(|u| format!("{}:{}:{} ", u.extent, u.epoch, u.live_bytes)).collect()
}

/// Lists everything.
pub(crate) fn contents(store: &Store, shared: &Shared) -> Outcome<Contents> {
    let mut all = Contents::new();
    for (bucket, _) in &shared.buckets {
        let info = match store.buckets().get(bucket) {
            Ok(info) => info,
            Err(_) => continue,
        };
        all.insert(format!("bucket {bucket}"), format!("{info:?}"));
        let query = ListQuery { limit: 100_000, ..ListQuery::default() };
        let page = match store.contents(bucket).objects(&query) {
            Ok(page) => page,
            // Damage has removed records that may belong to the listing.
            Err(StoreError::Doubtful(_)) if shared.damage() => continue,
            Err(error) => return Err(format!("listing {bucket}: {error:?}")),
        };
        for entry in page.objects {
            let info = match store.at(bucket, &entry.key).info() {
                Ok(info) => info,
                Err(StoreError::Doubtful(_)) if shared.damage() => continue,
                Err(error) => return Err(format!("{bucket}/{}: {error:?}", entry.key)),
            };
            all.insert(format!("object {bucket}/{}", entry.key), format!("{entry:?} {info:?}"));
        }
    }
    for upload in shared.uploads.lock().iter() {
        let (key, id) = upload.place();
        if let Ok(info) = store.at(&key.0, &key.1).upload(id).info() {
            let parts =
                store.at(&key.0, &key.1).upload(id).parts(0, 10_000).map_err(|error| format!("{key:?}: {error:?}"))?;
            all.insert(format!("upload {key:?} {id}"), format!("{info:?} {parts:?}"));
        }
    }
    Ok(all)
}

/// The first difference between two contents; empty if they are equal.
pub(crate) fn difference(a: &Contents, b: &Contents) -> String {
    let keys = a.keys().chain(b.keys());
    for key in keys {
        if a.get(key) != b.get(key) {
            return format!("{key}: {:?} became {:?}", a.get(key), b.get(key));
        }
    }
    String::new()
}

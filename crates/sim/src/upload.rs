//! A client's multipart uploads and listings.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use steadfast_store::{
    Condition, DiskState, DiskStatus, ListEntry, ListPage, ListQuery, ObjectInfo, PartChoice, StoreError,
};

use crate::client::{Client, PendingWrite};
use crate::model::{Key, Piece, Pieces, Seen, bytes_of};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::run_state::{Part, Upload, UploadState};
use crate::tags::{attributes, etag, tag_of};

/// The pages of a listing together.
struct Listing {
    /// Tag and size of each object, by its key.
    objects: BTreeMap<String, (u64, u64)>,
    /// The rolled-up prefixes.
    groups: Vec<String>,
}

impl Client {
    /// Performs one step of a random upload.
    pub(crate) async fn multipart(&self, rng: &mut Rng) -> Outcome {
        let free: Vec<usize> = {
            let uploads = self.shared.uploads.lock();
            (0..uploads.len())
                .filter(|&at| !uploads[at].in_hand && matches!(uploads[at].state, UploadState::Open))
                .collect()
        };
        if free.is_empty() || (free.len() < 4 && rng.one_in(5)) {
            return self.create_upload(rng).await;
        }
        let at = *rng.pick(&free);
        self.shared.uploads.lock()[at].in_hand = true;
        let outcome = match rng.below(10) {
            0..=5 => self.put_part(rng, at).await,
            6..=8 => self.complete(rng, at).await,
            _ => self.abort(at).await,
        };
        self.shared.uploads.lock()[at].in_hand = false;
        outcome
    }

    async fn create_upload(&self, rng: &mut Rng) -> Outcome {
        let key = self.key_to_change(rng);
        self.note("upload", &key, 0);
        match self.store.at(&key.0, &key.1).create_upload(attributes(0), Condition::None).await {
            Ok(info) => {
                let parts = BTreeMap::new();
                let upload = Upload {
                    key,
                    id: info.upload_id,
                    parts,
                    state: UploadState::Open,
                    in_hand: false,
                    clean_then: None,
                };
                self.shared.uploads.lock().push(upload);
                Ok(())
            }
            Err(error) => self.shared.write_may_fail(&error).map(drop),
        }
    }

    async fn put_part(&self, rng: &mut Rng, at: usize) -> Outcome {
        let (key, id) = self.upload_at(at);
        let number = rng.range(1, 5) as u16;
        let size = if rng.one_in(2) { rng.below(self.shared.small_max) } else { rng.range(1, self.shared.large_max) };
        let tag = self.shared.model.lock().new_tag();
        let piece = Piece { id: tag, len: size };
        self.note("part", &key, tag);
        let size_hint = rng.one_in(2).then_some(size);
        let mut writer = match self.store.at(&key.0, &key.1).upload(&id).writer(number, size_hint).await {
            Ok(writer) => writer,
            Err(error) => return self.shared.write_may_fail(&error).map(drop),
        };
        let mut sent = 0;
        while sent < size {
            let n = self.step(rng, size).min(size - sent);
            if let Err(error) = writer.write(Bytes::from(bytes_of(&[piece], sent, n as usize))).await {
                return self.shared.write_may_fail(&error).map(drop);
            }
            sent += n;
            if rng.one_in(40) {
                return Ok(());
            }
        }
        self.part(at, number, |part| part.maybe.push(piece));
        match writer.commit(attributes(tag), Condition::None, None).await {
            Ok(_) => {
                self.part(at, number, |part| *part = Part { sure: Some(piece), maybe: Vec::new() });
                self.note("part done", &key, tag);
                Ok(())
            }
            Err(error) => {
                if self.shared.write_may_fail(&error)? {
                    self.part(at, number, |part| part.maybe.retain(|other| *other != piece));
                }
                Ok(())
            }
        }
    }

    fn upload_at(&self, at: usize) -> (Key, String) {
        let uploads = self.shared.uploads.lock();
        (uploads[at].key.clone(), uploads[at].id.clone())
    }

    fn part(&self, at: usize, number: u16, change: impl FnOnce(&mut Part)) {
        change(self.shared.uploads.lock()[at].parts.entry(number).or_default());
    }

    async fn complete(&self, rng: &mut Rng, at: usize) -> Outcome {
        let (key, id) = self.upload_at(at);
        let listed = match self.check_parts(at) {
            Ok(Some(listed)) => listed,
            Ok(None) => return Ok(()),
            Err(what) => return self.shared.judge(Err(what)),
        };
        if listed.is_empty() {
            return Ok(());
        }
        let mut chosen: Vec<(u16, Piece)> = listed;
        if chosen.len() > 1 && rng.one_in(3) {
            chosen.remove(rng.below(chosen.len() as u64) as usize);
        }
        let choices =
            chosen.iter().map(|(number, piece)| PartChoice { number: *number, etag: etag(piece.id) }).collect();
        let pieces: Pieces = chosen.iter().map(|(_, piece)| *piece).collect::<Vec<_>>().into();
        let (demand, condition) = self.demand(rng, &key);
        let (durability, lax) = self.durability(rng, &key.0);
        let (write, tag) = {
            let mut model = self.shared.model.lock();
            let tag = model.new_tag();
            let start = model.tick();
            let id = model.begin_put(&key, tag, vec![pieces], demand.clone(), lax);
            (PendingWrite { key: key.clone(), start, id, demand }, tag)
        };
        self.note("complete", &key, tag);
        self.state(at, UploadState::Ending(Some(write.id.clone())));
        let answer =
            self.store.at(&key.0, &key.1).upload(&id).complete(choices, attributes(tag), condition, durability).await;
        match &answer {
            Ok(_) => {
                self.state(at, if lax { UploadState::Ending(Some(write.id.clone())) } else { UploadState::Removed });
            }
            Err(StoreError::PartTooSmall(_)) => {
                self.state(at, UploadState::Open);
                let found = self.shared.model.lock().failed(&write.id);
                return self.shared.judge(found);
            }
            Err(StoreError::Hangs | StoreError::Log(steadfast_log::LogError::Unknown { .. })) => {}
            Err(_) => self.state(at, UploadState::Open),
        }
        self.settle(&write, answer)
    }

    async fn abort(&self, at: usize) -> Outcome {
        let (key, id) = self.upload_at(at);
        self.note("abort", &key, 0);
        self.state(at, UploadState::Ending(None));
        match self.store.at(&key.0, &key.1).upload(&id).abort().await {
            Ok(()) => {
                // The bucket decides whether the abort is durable.
                let sync = self.durability_of(&key) == steadfast_log::Durability::Sync;
                self.state(at, if sync { UploadState::Removed } else { UploadState::Ending(None) });
                Ok(())
            }
            Err(error) => {
                if self.shared.write_may_fail(&error)? {
                    self.state(at, UploadState::Open);
                }
                Ok(())
            }
        }
    }

    fn durability_of(&self, key: &Key) -> steadfast_log::Durability {
        let found = self.shared.buckets.iter().find(|(name, _)| *name == key.0);
        found.map_or(steadfast_log::Durability::Sync, |bucket| bucket.1)
    }

    fn state(&self, at: usize, state: UploadState) {
        self.shared.uploads.lock()[at].state = state;
    }

    /// Lists and checks the parts of an upload in hand. Returns `None` if a fault of the disk
    /// excuses its loss.
    fn check_parts(&self, at: usize) -> Outcome<Option<Vec<(u16, Piece)>>> {
        let upload = self.shared.uploads.lock()[at].clone();
        let (key, id) = (&upload.key, &upload.id);
        let mut listed = BTreeMap::new();
        let mut after = 0;
        loop {
            let (parts, more) = match self.store.at(&key.0, &key.1).upload(id).parts(after, 2) {
                Ok(page) => page,
                Err(error @ (StoreError::Unavailable(_) | StoreError::Index(_))) => {
                    self.shared.read_may_fail(&error)?;
                    return Ok(None);
                }
                Err(error) => return Err(format!("parts of {key:?} {id}: {error:?}")),
            };
            for part in parts {
                after = part.number;
                let tag = tag_of(&part.attributes.etag)?;
                if listed.insert(part.number, Piece { id: tag, len: part.size }).is_some() {
                    return Err(format!("part {} of {key:?} is listed twice", part.number));
                }
            }
            if !more {
                break;
            }
        }
        let numbers = upload.parts.keys().chain(listed.keys());
        for number in numbers {
            let known = upload.parts.get(number).cloned().unwrap_or_default();
            match listed.get(number) {
                Some(piece) if known.sure == Some(*piece) || known.maybe.contains(piece) => {}
                None if known.sure.is_none() => {}
                other => {
                    return Err(format!("part {number} of {key:?} {id} is {other:?}, but must be one of {known:?}"));
                }
            }
        }
        Ok(Some(listed.into_iter().collect()))
    }

    /// Checks every upload after a restart. With `clean`, the store had been closed.
    pub(crate) fn check_uploads(&self, clean: bool, seen: &BTreeMap<Key, Seen>) -> Outcome {
        let count = self.shared.uploads.lock().len();
        for at in 0..count {
            let upload = self.shared.uploads.lock()[at].clone();
            let (key, id) = (&upload.key, &upload.id);
            let clean = upload.clean_then.unwrap_or(clean);
            let lax = self.durability_of(key) == steadfast_log::Durability::Async && !clean;
            let there = match self.store.at(&key.0, &key.1).upload(id).info() {
                Ok(info) => {
                    if info.key != *key.1 {
                        return Err(format!("WRONG key {} of upload {id}", info.key));
                    }
                    true
                }
                Err(StoreError::NoSuchUpload) => false,
                Err(StoreError::Unavailable(why)) => {
                    self.shared.unavailable(&why, false)?;
                    let mut uploads = self.shared.uploads.lock();
                    uploads[at].clean_then = Some(clean);
                    uploads[at].in_hand = false;
                    continue;
                }
                Err(error) => return Err(format!("upload {key:?} {id}: {error:?}")),
            };
            match &upload.state {
                UploadState::Open if !there && !lax => {
                    return Err(format!("LOST: the upload {key:?} {id} is missing: {upload:?}"));
                }
                UploadState::Removed if there => {
                    return Err(format!("the upload {key:?} {id} exists again after its end"));
                }
                UploadState::Ending(Some(op)) => {
                    let mut model = self.shared.model.lock();
                    if !there && !lax {
                        model.prove(op);
                    } else if there && (model.is_durable(op) || model.shows(op, seen)) {
                        return Err(format!("both the upload {key:?} {id} and its object exist"));
                    }
                }
                _ => {}
            }
            if there {
                if !lax {
                    self.check_parts(at)?;
                }
                let listed = self.listed_parts(&upload)?;
                let mut uploads = self.shared.uploads.lock();
                uploads[at].parts = listed
                    .into_iter()
                    .map(|(number, piece)| (number, Part { sure: Some(piece), maybe: Vec::new() }))
                    .collect();
                uploads[at].state = UploadState::Open;
            } else {
                self.state(at, UploadState::Removed);
            }
            let mut uploads = self.shared.uploads.lock();
            uploads[at].in_hand = false;
            uploads[at].clean_then = None;
        }
        Ok(())
    }

    fn listed_parts(&self, upload: &Upload) -> Outcome<Vec<(u16, Piece)>> {
        let (parts, _) = self
            .store
            .at(&upload.key.0, &upload.key.1)
            .upload(&upload.id)
            .parts(0, 1000)
            .map_err(|error| format!("parts of {:?}: {error:?}", upload.key))?;
        parts
            .iter()
            .map(|part| Ok((part.number, Piece { id: tag_of(&part.attributes.etag)?, len: part.size })))
            .collect()
    }

    /// Lists a bucket with random parameters and checks the pages.
    pub(crate) fn list(&self, rng: &mut Rng) -> Outcome {
        let bucket = rng.pick(&self.shared.buckets).0.clone();
        let prefix = (*rng.pick(&["", "", "a/", "b", "b/c/", "zz"])).to_owned();
        let delimiter = if rng.one_in(2) { "/" } else { "" }.to_owned();
        let after =
            if delimiter.is_empty() && rng.one_in(3) { rng.pick(&self.shared.keys).to_string() } else { String::new() };
        let limit = *rng.pick(&[1, 2, 3, 7, 1000]);
        let found = self.check_listing(&bucket, &prefix, &delimiter, &after, limit);
        self.shared.counts.lock().reads += 1;
        self.shared.judge(found)
    }

    /// One page of a listing. [`crate::Variant::ListWithoutMissing`] answers without the objects of
    /// missing disks.
    fn page(&self, bucket: &str, query: &ListQuery) -> Result<ListPage, StoreError> {
        let page = self.store.contents(bucket).objects(query);
        if !self.shared.lists_without_missing || !matches!(page, Err(StoreError::Unavailable(_))) {
            return page;
        }
        let there = self.shared.keys.iter().filter(|key| key.starts_with(&query.prefix) && ***key > *query.start_after);
        let infos = there.filter_map(|key| self.store.at(bucket, key).info().ok());
        let entry = |info: ObjectInfo| ListEntry {
            key: info.key,
            size: info.size,
            modified_ms: info.modified_ms,
            etag: info.attributes.etag,
            checksum_algorithms: Vec::new(),
            checksum_type: String::new(),
        };
        Ok(ListPage { objects: infos.map(entry).collect(), ..ListPage::default() })
    }

    /// Whether a missing disk is the home of any slot. A disk that has just joined or is about to
    /// leave may hold none.
    fn lacks_keys(&self) -> bool {
        let missing = |disk: &DiskStatus| disk.state == DiskState::Missing && disk.slots > 0;
        !self.shared.missing.lock().is_empty() && self.store.status().disks.iter().any(missing)
    }

    /// Lists page by page, and checks the order. `None` where a missing disk or an unreadable index
    /// excuses a refusal.
    fn list_pages(&self, bucket: &Arc<str>, mut query: ListQuery) -> Outcome<Option<Listing>> {
        let (mut objects, mut groups) = (BTreeMap::<String, _>::new(), Vec::<String>::new());
        loop {
            let page = match self.page(bucket, &query) {
                Ok(_) if self.lacks_keys() => {
                    return Err(format!("the listing of {bucket} succeeded, though a disk is missing"));
                }
                Ok(page) => page,
                Err(error) if self.shared.index_excuses(&error) => return Ok(None),
                Err(StoreError::Unavailable(why)) => {
                    self.shared.unavailable(&why, false)?;
                    self.shared.counts.lock().listings_refused += 1;
                    return Ok(None);
                }
                Err(error) => return Err(format!("listing {bucket}: {error:?}")),
            };
            if page.objects.len() + page.prefixes.len() > query.limit {
                return Err(format!(
                    "a page has {} entries, above the limit of {}",
                    page.objects.len() + page.prefixes.len(),
                    query.limit
                ));
            }
            for entry in page.objects {
                if objects.last_key_value().is_some_and(|(last, _)| *last >= entry.key) {
                    return Err(format!("listing {bucket}: {} is out of order", entry.key));
                }
                objects.insert(entry.key.clone(), (tag_of(&entry.etag)?, entry.size));
            }
            for group in page.prefixes {
                if groups.last().is_some_and(|last| *last >= group) {
                    return Err(format!("listing {bucket}: {group} is out of order"));
                }
                groups.push(group);
            }
            match page.next {
                Some(next) if next > query.start_after => query.start_after = next,
                Some(next) => return Err(format!("listing {bucket}: the next page starts at {next} again")),
                None => break,
            }
        }
        Ok(Some(Listing { objects, groups }))
    }

    /// Lists a bucket page by page and compares it with the model.
    pub(crate) fn check_listing(
        &self,
        bucket: &Arc<str>,
        prefix: &str,
        delimiter: &str,
        after: &str,
        limit: usize,
    ) -> Outcome {
        let start = self.shared.model.lock().tick();
        let query = ListQuery {
            prefix: prefix.to_owned(),
            delimiter: delimiter.to_owned(),
            start_after: after.to_owned(),
            limit,
        };
        let Some(Listing { mut objects, groups }) = self.list_pages(bucket, query)? else { return Ok(()) };
        let mut model = self.shared.model.lock();
        let mut expected: BTreeMap<String, Vec<Key>> = BTreeMap::new();
        for name in &self.shared.keys {
            if !name.starts_with(prefix) || &**name <= after {
                continue;
            }
            let key = (bucket.clone(), name.clone());
            let rest = &name[prefix.len()..];
            if let Some(at) = (!delimiter.is_empty()).then(|| rest.find(delimiter)).flatten() {
                let group = format!("{prefix}{}", &rest[..at + delimiter.len()]);
                expected.entry(group).or_default().push(key);
                continue;
            }
            match objects.remove(&**name) {
                Some((tag, size)) => {
                    model.check_bytes(tag, size, 0, &[])?;
                    model.saw(&key, start, tag, None).map_err(|what| format!("listed: {what}"))?;
                }
                None => model.saw_nothing(&key, start).map_err(|what| format!("not listed: {what}"))?,
            }
        }
        if let Some((name, _)) = objects.first_key_value() {
            return Err(format!("WRONG: {bucket} lists {name}, which no client wrote"));
        }
        for (group, keys) in &expected {
            let may: Vec<(bool, bool)> = keys.iter().map(|key| model.may_be(key)).collect();
            let listed = groups.iter().any(|other| other == group);
            if listed && !may.iter().any(|may| may.0) {
                return Err(format!("{bucket} lists the prefix {group}, which has no objects"));
            }
            if !listed && may.iter().any(|may| !may.1) {
                return Err(format!("{bucket} does not list the prefix {group}"));
            }
        }
        if let Some(group) = groups.iter().find(|group| !expected.contains_key(*group)) {
            return Err(format!("WRONG: {bucket} lists the prefix {group}"));
        }
        Ok(())
    }
}

//! A client of the store: sends random requests and reports requests, answers and observations to
//! the model.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use steadfast_flow::Env;
use steadfast_log::Durability;
use steadfast_store::{Condition, Store, StoreError, Written};

use crate::model::{Demand, Key, OpId, Piece, Pieces, bytes_of};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::shared::Shared;
use crate::tags::{attributes, etag, tag_of};

/// One client in one life.
pub(crate) struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Store,
    pub(crate) env: Env,
    pub(crate) number: u64,
}

/// A write that has been registered with the model.
pub(crate) struct PendingWrite {
    pub(crate) key: Key,
    pub(crate) start: u64,
    pub(crate) id: OpId,
    pub(crate) demand: Demand,
}

impl Client {
    pub(crate) fn note(&self, what: &'static str, key: &Key, more: u64) {
        let number = self.number;
        self.shared.trace.note_with_text(self.env.now().as_nanos() as u64, what, [number, more, 0], || {
            format!("client {number}: {}/{} {more:x}", key.0, key.1)
        });
    }

    pub(crate) fn key(&self, rng: &mut Rng) -> Key {
        (rng.pick(&self.shared.buckets).0.clone(), rng.pick(&self.shared.keys).clone())
    }

    /// A key to write to: seldom a cold key.
    pub(crate) fn key_to_change(&self, rng: &mut Rng) -> Key {
        let keys = match self.shared.cold_keys {
            0 => &self.shared.keys[..],
            _ if rng.one_in(20) => &self.shared.keys[..],
            cold => &self.shared.keys[cold..],
        };
        (rng.pick(&self.shared.buckets).0.clone(), rng.pick(keys).clone())
    }

    fn size(&self, rng: &mut Rng) -> u64 {
        if rng.chance(self.shared.large_per_mille) {
            return rng.range(self.shared.small_max, self.shared.large_max);
        }
        match rng.below(8) {
            0 => 0,
            1 => *rng.pick(&[1, 511, 512, 4095, 4096, 4097, 8192]),
            _ => rng.below(self.shared.small_max),
        }
    }

    pub(crate) fn durability(&self, rng: &mut Rng, bucket: &str) -> (Option<Durability>, bool) {
        let requested = match rng.below(6) {
            _ if self.shared.listened && *bucket == *self.shared.buckets[0].0 => Some(Durability::Sync),
            0 => Some(Durability::Async),
            1 => Some(Durability::Sync),
            _ => None,
        };
        let default = self.shared.buckets.iter().find(|(name, _)| **name == *bucket).map_or(Durability::Sync, |b| b.1);
        (requested, requested.unwrap_or(default) == Durability::Async)
    }

    pub(crate) fn demand(&self, rng: &mut Rng, key: &Key) -> (Demand, Condition) {
        match rng.below(10) {
            0 => (Demand::Absent, Condition::Absent),
            1 => (Demand::Any, Condition::Matches("*".to_owned())),
            2 => match self.shared.model.lock().likely_tag(key) {
                Some(tag) => (Demand::Tag(tag), Condition::Matches(etag(tag))),
                None => (Demand::None, Condition::None),
            },
            _ => (Demand::None, Condition::None),
        }
    }

    /// Performs one random request. An error is a violation.
    pub(crate) async fn act(&self, rng: &mut Rng) -> Outcome {
        self.shared.counts.lock().requests += 1;
        match rng.below(100) {
            0..=34 => self.put(rng).await,
            35..=57 => self.get(rng).await,
            58..=66 => self.delete(rng).await,
            67..=68 => self.delete_many(rng).await,
            69..=74 => self.copy(rng).await,
            75..=80 => self.list(rng),
            81..=83 => self.head(rng),
            84..=96 => self.multipart(rng).await,
            _ => {
                let pause = if rng.one_in(4) { rng.below(300_000) } else { rng.below(5_000) };
                self.env.sleep(Duration::from_micros(pause)).await;
                Ok(())
            }
        }
    }

    /// As [`Client::act`], but sometimes cancels the request.
    pub(crate) async fn act_or_leave(&self, rng: &mut Rng) -> Outcome {
        if !rng.one_in(20) {
            return self.act(rng).await;
        }
        let patience = Duration::from_micros(if rng.one_in(2) { rng.below(500) } else { rng.below(20_000) });
        match self.env.timeout(patience, self.act(rng)).await {
            Some(outcome) => outcome,
            None => {
                self.shared.counts.lock().cancelled += 1;
                Ok(())
            }
        }
    }

    /// Reports the answer to a write.
    pub(crate) fn settle(&self, write: &PendingWrite, answer: Result<Written, StoreError>) -> Outcome {
        let shared = &self.shared;
        let found = match answer {
            Ok(written) => {
                self.note("answered", &write.key, written.version);
                shared.counts.lock().writes += 1;
                shared.model.lock().acked(&write.id, written.version, written.durable)
            }
            Err(error) => {
                self.note("refused", &write.key, 0);
                let mut model = shared.model.lock();
                match &error {
                    StoreError::ConditionFailed if write.demand != Demand::None => {
                        let reason = model.refused(&write.key, write.start, &write.id, &write.demand);
                        reason.and(model.failed(&write.id))
                    }
                    StoreError::NoSuchKey if matches!(write.demand, Demand::Any | Demand::Tag(_)) => {
                        let reason = model.saw_nothing(&write.key, write.start);
                        reason.and(model.failed(&write.id))
                    }
                    other => {
                        if shared.write_may_fail(other)? {
                            model.failed(&write.id)
                        } else {
                            Ok(())
                        }
                    }
                }
            }
        };
        shared.judge(found)
    }

    async fn put(&self, rng: &mut Rng) -> Outcome {
        let key = self.key_to_change(rng);
        let size = self.size(rng);
        let tag = self.shared.model.lock().new_tag();
        let pieces: Pieces = Arc::from([Piece { id: tag, len: size }]);
        self.note("put", &key, tag);
        let size_hint = rng.one_in(2).then_some(size);
        let mut writer = match self.store.at(&key.0, &key.1).writer(size_hint).await {
            Ok(writer) => writer,
            Err(error) => return self.shared.write_may_fail(&error).map(drop),
        };
        let give_up_at = rng.one_in(20).then(|| rng.below(size + 1));
        let mut at = 0;
        while at < size {
            let n = self.step(rng, size).min(size - at);
            let data = Bytes::from(bytes_of(&pieces, at, n as usize));
            if let Err(error) = writer.write(data).await {
                return self.shared.write_may_fail(&error).map(drop);
            }
            at += n;
            if give_up_at.is_some_and(|end| at >= end) {
                self.note("abandon", &key, tag);
                return Ok(());
            }
        }
        let (demand, condition) = self.demand(rng, &key);
        let (durability, lax) = self.durability(rng, &key.0);
        let write = {
            let mut model = self.shared.model.lock();
            let start = model.tick();
            let id = model.begin_put(&key, tag, vec![pieces], demand.clone(), lax);
            PendingWrite { key, start, id, demand }
        };
        let answer = writer.commit(attributes(tag), condition, durability).await;
        self.settle(&write, answer)
    }

    /// Bytes that the client sends at a time.
    pub(crate) fn step(&self, rng: &mut Rng, size: u64) -> u64 {
        if rng.one_in(2) { size.max(1) } else { rng.range(1, 48 * 1024) }
    }

    async fn get(&self, rng: &mut Rng) -> Outcome {
        let key = self.key(rng);
        self.note("get", &key, 0);
        let whole = rng.one_in(2);
        self.read(&key, (!whole).then(|| (rng.next(), rng.next())), rng.one_in(6)).await.map(drop)
    }

    /// Reads `key`, either the part that `range` selects or all of it. Returns the tag, the
    /// version, and whether the read succeeded.
    pub(crate) async fn read(
        &self,
        key: &Key,
        range: Option<(u64, u64)>,
        slow: bool,
    ) -> Outcome<Option<(u64, u64, bool)>> {
        let shared = &self.shared;
        let start = shared.model.lock().tick();
        let reader = match self.store.at(&key.0, &key.1).reader().await {
            Ok(reader) => reader,
            Err(StoreError::NoSuchKey) => {
                let found = shared.model.lock().saw_nothing(key, start);
                shared.judge(found)?;
                return Ok(None);
            }
            Err(error) => return shared.read_may_fail(&error).map(|()| None),
        };
        let info = reader.info().clone();
        let tag = tag_of(&info.attributes.etag)?;
        let found = shared.model.lock().saw(key, start, tag, Some(info.version));
        shared.judge(found)?;
        if info.attributes != attributes(tag) {
            return Err(format!("WRONG attributes of {key:?}: {:?}", info.attributes));
        }
        let (from, to) = match range {
            None => (0, info.size),
            Some((a, b)) => {
                let mut a = Rng::new(a);
                let from = a.below(info.size + 1);
                let len = if b % 2 == 0 { info.size - from } else { 1 + Rng::new(b).below(20_000) };
                (from, (from + len).min(info.size))
            }
        };
        let mut stream = std::pin::pin!(reader.stream(from..to));
        let mut at = from;
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(data) => {
                    shared.model.lock().check_bytes(tag, info.size, at, &data)?;
                    at += data.len() as u64;
                }
                Err(error) => {
                    shared.read_may_fail(&error)?;
                    return Ok(Some((tag, info.version, false)));
                }
            }
            if slow {
                self.env.sleep(Duration::from_millis(20)).await;
            }
        }
        if at != to {
            return Err(format!("WRONG length of {key:?}: {from}..{to} ended at {at}"));
        }
        shared.model.lock().check_bytes(tag, info.size, 0, &[])?;
        shared.counts.lock().reads += 1;
        Ok(Some((tag, info.version, true)))
    }

    fn head(&self, rng: &mut Rng) -> Outcome {
        let key = self.key(rng);
        let shared = &self.shared;
        let mut model = shared.model.lock();
        let start = model.tick();
        let found = match self.store.at(&key.0, &key.1).info() {
            Ok(info) => {
                let tag = tag_of(&info.attributes.etag)?;
                model.check_bytes(tag, info.size, 0, &[])?;
                model.saw(&key, start, tag, Some(info.version))
            }
            Err(StoreError::NoSuchKey) => model.saw_nothing(&key, start),
            Err(error) => {
                drop(model);
                return shared.read_may_fail(&error);
            }
        };
        drop(model);
        shared.judge(found)
    }

    async fn delete(&self, rng: &mut Rng) -> Outcome {
        let key = self.key_to_change(rng);
        let (demand, condition) = if rng.one_in(4) { self.demand(rng, &key) } else { (Demand::None, Condition::None) };
        let (demand, condition) = match demand {
            Demand::Absent => (Demand::None, Condition::None),
            _ => (demand, condition),
        };
        let (durability, lax) = self.durability(rng, &key.0);
        self.note("delete", &key, 0);
        let write = {
            let mut model = self.shared.model.lock();
            let start = model.tick();
            let id = model.begin_delete(&key, demand.clone(), lax);
            PendingWrite { key: key.clone(), start, id, demand }
        };
        let answer = self.store.at(&key.0, &key.1).delete(condition, durability).await;
        self.settle(&write, answer)
    }

    async fn delete_many(&self, rng: &mut Rng) -> Outcome {
        let bucket = rng.pick(&self.shared.buckets).0.clone();
        let keys = &self.shared.keys[self.shared.cold_keys..];
        let mut names: Vec<Arc<str>> = (0..rng.range(1, 6)).map(|_| rng.pick(keys).clone()).collect();
        names.sort();
        names.dedup();
        let (durability, lax) = self.durability(rng, &bucket);
        let mut ids = Vec::new();
        for name in &names {
            let key = (bucket.clone(), name.clone());
            self.note("delete +", &key, 0);
            ids.push(self.shared.model.lock().begin_delete(&key, Demand::None, lax));
        }
        let keys = names.iter().map(|name| name.to_string()).collect();
        let answers = self.store.contents(&bucket).delete(keys, durability).await;
        if answers.len() != ids.len() {
            return Err(format!("{} answers for {} deletes", answers.len(), ids.len()));
        }
        for ((id, name), answer) in ids.iter().zip(&names).zip(answers) {
            self.note("deleted", &(bucket.clone(), name.clone()), u64::from(answer.is_ok()));
            match answer {
                Ok(()) => self.shared.model.lock().acked_unversioned(id),
                Err(error) => {
                    if self.shared.write_may_fail(&error)? {
                        let found = self.shared.model.lock().failed(id);
                        self.shared.judge(found)?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn copy(&self, rng: &mut Rng) -> Outcome {
        let (from, to) = (self.key(rng), self.key_to_change(rng));
        let (demand, condition) = self.demand(rng, &to);
        let (durability, lax) = self.durability(rng, &to.0);
        let (tag, start, id) = {
            let mut model = self.shared.model.lock();
            let tag = model.new_tag();
            (tag, model.tick(), model.begin_copy(&to, tag, demand.clone(), lax))
        };
        self.note("copy from", &from, tag);
        self.note("copy to", &to, tag);
        let write = PendingWrite { key: to.clone(), start, id, demand };
        let (source, home) = (self.store.at(&from.0, &from.1), self.store.at(&to.0, &to.1));
        let answer = if from == to {
            home.copy_onto_itself(attributes(tag), condition, None, durability).await
        } else {
            match source.reader().await {
                Ok(reader) => home.copy_from(reader, attributes(tag), condition, durability).await,
                Err(e) => Err(e),
            }
        };
        match answer {
            Err(StoreError::NoSuchKey) if matches!(write.demand, Demand::None | Demand::Absent) => {
                let mut model = self.shared.model.lock();
                let found = model.saw_nothing(&from, start).and(model.failed(&write.id));
                drop(model);
                self.shared.judge(found)
            }
            Err(StoreError::NoSuchKey) => {
                // Either the source or the demanded target may be missing.
                let mut model = self.shared.model.lock();
                let found = model.failed(&write.id);
                drop(model);
                self.shared.judge(found)
            }
            answer => {
                if answer.is_ok() {
                    self.shared.model.lock().copied(tag, &from, start);
                }
                self.settle(&write, answer)
            }
        }
    }
}

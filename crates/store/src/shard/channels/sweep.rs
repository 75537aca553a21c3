//! Removes expired publications and channels that were unused for long from the index.
//!
//! No record is needed: each record contains its expiry, so an index rebuild arrives at the same
//! state.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use steadfast_log::{Log, Usage};
use tokio::sync::watch;

use super::PARTS;
use super::record::PublicationMeta;
use crate::StoreError;
use crate::record::{Value, keys};
use crate::shard::applied::AppliedState;

/// Time from the end of one pass to the start of the next.
const EVERY: Duration = Duration::from_secs(5);

/// Entries examined before other tasks get a turn.
const STEP: usize = 256;

/// Pause between two steps.
const PAUSE: Duration = Duration::from_millis(5);

/// Time for one round over all channels in memory to drop unused ones, about, independent of the
/// publications' pass.
const TIDY: Duration = Duration::from_secs(5);

/// Progress of the search for unused channels. It follows the clock.
struct Tidying {
    begun: Duration,
    done: usize,
}

impl Tidying {
    /// The parts of the table to examine now: the first one, and how many.
    fn due(&mut self, now: Duration) -> (usize, usize) {
        let due = (now.saturating_sub(self.begun).as_millis() * PARTS as u128 / TIDY.as_millis()) as usize;
        let from = std::mem::replace(&mut self.done, due);
        (from % PARTS, due.saturating_sub(from).min(PARTS))
    }
}

/// The removal of what has expired.
pub(crate) struct Sweep {
    pub(crate) applied: Arc<AppliedState>,
    pub(crate) log: Log,
}

impl Sweep {
    /// Runs until the shard closes.
    pub(crate) async fn run(self, mut closing: watch::Receiver<bool>) {
        let applied = &*self.applied;
        let mut from = vec![keys::PUBLICATIONS];
        let mut tidying = Tidying { begun: applied.env.now(), done: 0 };
        loop {
            let next = match self.step(&from) {
                Ok(next) => next,
                Err(e) => {
                    tracing::warn!(error = %e, "cannot search for expired publications");
                    None
                }
            };
            let pause = if next.is_some() { PAUSE } else { EVERY };
            let (first, parts) = tidying.due(applied.env.now());
            applied.channels.tidy(first, parts);
            from = next.unwrap_or_else(|| vec![keys::PUBLICATIONS]);
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                () = applied.env.sleep(pause) => {}
            }
        }
    }

    /// Examines some entries. Returns where to continue, `None` at the end.
    fn step(&self, from: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let applied = &*self.applied;
        if !applied.index.is_well() {
            return Ok(None);
        }
        let (now_ms, forgotten_after_ms) = (applied.clock.now_ms(), applied.channels.forgotten_after_ms());
        let mut over: Vec<Bytes> = Vec::new();
        let mut entries = applied.index.range(from, Some(&[keys::PUBLICATIONS + 1])).peekable();
        let mut next = None;
        for _ in 0..STEP {
            let Some(pair) = entries.next() else {
                next = None;
                break;
            };
            let (key, value) = pair?;
            let meta = PublicationMeta::decode(Value::decode(&value)?.payload)?;
            let newest = match entries.peek() {
                Some(Ok((other, _))) => keys::channel_of(other) != keys::channel_of(&key),
                Some(Err(e)) => return Err(e.clone().into()),
                None => true,
            };
            let ends = if newest {
                meta.time_ms.saturating_add(meta.ttl_ms).saturating_add(forgotten_after_ms) <= now_ms
            } else {
                meta.expired(now_ms)
            };
            next = Some([&key[..], &[0]].concat());
            if ends {
                over.push(key);
            }
        }
        drop(entries);
        for key in over {
            self.log.with_usage(|usage| self.remove_publication(usage, &key, now_ms))?;
        }
        Ok(next)
    }

    fn remove_publication(&self, usage: &mut Usage, key: &Bytes, now_ms: u64) -> Result<(), StoreError> {
        let applied = &*self.applied;
        let Some((name, offset)) = keys::parse_publication(key) else { return Ok(()) };
        let name = String::from_utf8(name).map_err(|_| StoreError::Index("a channel's name".into()))?;
        let channel = applied.channels.get(applied, &name)?;
        // Callers obtain a channel under this lock, so no caller does between the check of its
        // holders and its removal.
        let mut part = applied.channels.part(&name).lock();
        let mut state = channel.state.lock();
        let Some(value) = applied.lookup(key)? else { return Ok(()) };
        let meta = PublicationMeta::decode(Value::decode(&value)?.payload)?;
        // It was published into again, or is in use.
        if !meta.expired(now_ms) || offset >= state.top && (!state.is_settled() || Arc::strong_count(&channel) > 2) {
            return Ok(());
        }
        // Where earlier publications last longer (this one had a shorter TTL, or a wrong clock),
        // its removal leaves a hole and they stay. Where none of them remains, the channel now
        // starts after it. Otherwise the channel would start at the first hole for ever.
        let before = keys::publication(name.as_bytes(), state.first);
        if offset <= state.first || offset >= state.top || applied.index.range(&before, Some(key)).next().is_none() {
            state.forget_up_to(offset);
        }
        applied.remove_expired(usage, key, applied.progress.borrow().lsn.max(1))?;
        if offset >= state.top {
            // The channel is forgotten as a whole; the next publication begins a new channel.
            drop(state);
            channel.gone.store(true, Ordering::Release);
            part.remove(&*name);
        }
        applied.channels.swept.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use steadfast_disk::{Disk, MemDisk};
    use steadfast_flow::Env;
    use steadfast_log::{Durability, FormatOptions, Priority};

    use super::*;
    use crate::clock::testing::Clocks;
    use crate::shard::Shard;
    use crate::shard::uploads::{expire_uploads, upload_expiry_ms};
    use crate::{Attributes, BucketSettings, Condition, HistoryQuery, IndexKind, NewPublication, Store, StoreOptions};

    fn sweep(shard: &Shard) -> Sweep {
        Sweep { applied: shard.applied.clone(), log: shard.log().clone() }
    }

    #[tokio::test]
    async fn an_expired_publication_in_the_middle_hides_none_before_it() {
        let env = Env::tokio();
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &env, &format).await.expect("formats");
        let opened = Store::open(disk, IndexKind::memory(), env, StoreOptions::default()).await;
        let store = opened.expect("opens").0;
        let channel = store.channel("c").expect("a channel");
        let start = channel.position().expect("there");
        for n in 1..=5 {
            let new = NewPublication {
                body: Bytes::from_static(b"x"),
                history_size: 100,
                history_ttl_ms: if n == 4 { 0 } else { 3_600_000 },
                durability: Durability::Sync,
                priority: Priority::Write,
                key: None,
            };
            channel.publish(new).await.expect("published");
        }
        for swept in [false, true] {
            if swept {
                for (_, shard) in store.topology().open() {
                    sweep(shard).step(&[keys::PUBLICATIONS]).expect("swept");
                }
            }
            let query = HistoryQuery { since: Some(start), limit: 100, reverse: false };
            let history = channel.history(query).await.expect("read");
            let offsets: Vec<u64> = history.publications.iter().map(|p| p.offset).collect();
            assert_eq!((offsets, history.complete), (vec![1, 2, 3, 5], false), "{swept}");
        }
        assert_eq!(store.status().publications_expired, 1);
    }

    #[tokio::test]
    async fn a_channel_starts_after_its_holes_when_earlier_publications_expire() {
        let env = Env::tokio();
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &env, &format).await.expect("formats");
        let store =
            Store::open(disk, IndexKind::memory(), env.clone(), StoreOptions::default()).await.expect("opens").0;
        let channel = store.channel("c").expect("a channel");
        for n in 1..=9 {
            let new = NewPublication {
                body: Bytes::from_static(b"x"),
                history_size: 100,
                // The fourth leaves a hole; all but the last expire soon.
                history_ttl_ms: [3_600_000, 300, 0][usize::from(n < 9) + usize::from(n == 4)],
                durability: Durability::Sync,
                priority: Priority::Write,
                key: None,
            };
            channel.publish(new).await.expect("published");
        }
        let shard = store.topology().open().next().expect("a disk").1.clone();
        let step = || sweep(&shard).step(&[keys::PUBLICATIONS]).expect("swept");
        step();
        while store.status().publications_expired < 8 {
            env.sleep(Duration::from_millis(20)).await;
            step();
        }
        assert_eq!(shard.applied.channels.get(&shard.applied, "c").expect("there").state.lock().first, 9);
    }

    #[tokio::test]
    async fn a_clock_that_steps_forward_takes_nothing_away() {
        let clocks = Clocks::new();
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &clocks.env(), &format).await.expect("formats");
        let index = IndexKind::memory();
        let open = || Store::open(disk.clone(), index.clone(), clocks.env(), StoreOptions::default());
        let mut store = open().await.expect("opens").0;
        store.buckets().create("b", BucketSettings::default()).await.expect("made");
        let upload =
            store.at("b", "k").create_upload(Attributes::default(), Condition::None).await.expect("begun").upload_id;
        let channel = store.channel("c").expect("a channel");
        for _ in 0..5 {
            let new = NewPublication {
                body: Bytes::from_static(b"x"),
                history_size: 100,
                history_ttl_ms: 3_600_000,
                durability: Durability::Sync,
                priority: Priority::Write,
                key: None,
            };
            channel.publish(new).await.expect("published");
        }
        drop(channel);
        let age = Duration::from_secs(24 * 3600);
        // The number of publications and uploads.
        let left = async |store: &Store| {
            let shard = store.topology().open().next().expect("a disk").1.clone();
            sweep(&shard).step(&[keys::PUBLICATIONS]).expect("swept");
            expire_uploads(&shard.writes, upload_expiry_ms(&shard.applied, age)).await.expect("looked for");
            let query = HistoryQuery { since: None, limit: 100, reverse: false };
            let history = store.channel("c").expect("a channel").history(query).await.expect("read");
            (history.publications.len(), store.at("b", "k").upload(&upload).info().is_ok())
        };
        assert_eq!(left(&store).await, (5, true));
        // A step of ten years while it runs; a restart makes no difference.
        clocks.step(3650 * 24 * 3600);
        assert_eq!(left(&store).await, (5, true));
        assert_eq!(store.status().clock.steps, 1);
        for rebuilt in [false, true] {
            store.close().await.expect("closed");
            if let (true, IndexKind::Memory(checkpoint)) = (rebuilt, &index) {
                checkpoint.clear();
            }
            store = open().await.expect("opens").0;
            assert_eq!(left(&store).await, (5, true), "rebuilt: {rebuilt}");
        }
        clocks.step(-3650 * 24 * 3600);
        assert_eq!(left(&store).await, (5, true));
        assert_eq!(store.status().clock.ahead_ms, 0);
        // The store was stopped for forty days: the clock is believed in time.
        store.close().await.expect("closed");
        clocks.pass(40 * 24 * 3600);
        store = open().await.expect("opens").0;
        assert_eq!(left(&store).await, (5, true));
        clocks.pass(3601);
        assert_eq!(left(&store).await, (0, false));
    }

    #[tokio::test]
    async fn an_unused_channel_keeps_its_position_for_the_configured_time() {
        const DAY: u64 = 24 * 3600;
        let clocks = Clocks::new();
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::growable(64 << 20));
        let format = FormatOptions { extent_bytes: Some(4 << 20), ..FormatOptions::default() };
        Log::format(&disk, &clocks.env(), &format).await.expect("formats");
        let index = IndexKind::memory();
        let open = || Store::open(disk.clone(), index.clone(), clocks.env(), StoreOptions::default());
        let store = open().await.expect("opens").0;
        let new = NewPublication {
            body: Bytes::from_static(b"x"),
            history_size: 100,
            history_ttl_ms: 1000,
            durability: Durability::Sync,
            priority: Priority::Write,
            key: None,
        };
        store.channel("c").expect("a channel").publish(new).await.expect("published");
        let position = |store: &Store| {
            let shard = store.topology().open().next().expect("a disk").1.clone();
            sweep(&shard).step(&[keys::PUBLICATIONS]).expect("swept");
            store.channel("c").expect("a channel").position().expect("read")
        };
        let before = position(&store);
        // Until the time is set, nothing is forgotten: a server starts with its store.
        store.close().await.expect("closed");
        clocks.pass(50 * DAY);
        let store = open().await.expect("opens").0;
        clocks.pass(3601);
        assert_eq!((position(&store), before.offset), (before, 1));
        store.channels().set_retention(Duration::from_secs(60 * DAY));
        assert_eq!(position(&store), before);
        // Less than 30 days counts as 30 days.
        store.channels().set_retention(Duration::ZERO);
        assert_ne!(position(&store), before);
        assert_eq!(position(&store).offset, 0);
    }

    #[test]
    fn all_channels_are_looked_at_in_time_however_long_a_pass_takes() {
        let mut tidying = Tidying { begun: Duration::from_secs(9), done: 0 };
        // A pass of many steps, each after its pause.
        let (mut seen, mut now) = ([0; PARTS], Duration::from_secs(9));
        while now < Duration::from_secs(9) + TIDY {
            now += PAUSE;
            let (from, parts) = tidying.due(now);
            assert!(parts <= 1, "spread out");
            (from..from + parts).for_each(|part| seen[part] += 1);
        }
        assert_eq!(seen, [1; PARTS]);
        // Passes of one step.
        assert_eq!(tidying.due(now + EVERY), (0, PARTS));
        assert_eq!(tidying.due(now + EVERY), (0, 0));
        assert_eq!(tidying.due(now + 9 * EVERY), (0, PARTS));
    }
}

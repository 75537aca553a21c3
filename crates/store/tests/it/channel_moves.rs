//! Channels move between disks with their slots.

use std::sync::Arc;
use std::time::Duration;

use crate::channels::{ALL, RecordingSink, new, publish, reopened, since, texts};
use crate::common::{Pool, done, ended, formatted, named};
use steadfast_disk::{Disk, Effect, Fault, Faults, Faulty, OpKind};
use steadfast_log::Durability;
use steadfast_store::{ChannelSink, MoveState, NewPublication, Position, Store};

/// The state of a channel as a client sees it.
async fn seen(store: &Store, name: &str) -> (Position, Vec<String>, bool) {
    let channel = store.channel(name).expect("a channel");
    let (kept, history) = texts(&channel, ALL).await;
    (channel.position().expect("there"), kept, history.complete)
}

#[tokio::test]
async fn channels_move_with_their_slots_and_come_back() {
    for lsm in [false, true] {
        let (mut pool, mut store) = Pool::start_on(1, lsm).await;
        let lasting = |n: usize, text: &str| NewPublication {
            durability: if n.is_multiple_of(5) { Durability::Async } else { Durability::Sync },
            ..new(text)
        };
        let names: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
        let mut handles = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let channel = store.channel(name).expect("a channel");
            for i in 0..n % 7 {
                let history_ttl_ms = if n % 7 == 3 && i == 0 { 1 } else { 3_600_000 };
                let new = NewPublication { history_size: 4, history_ttl_ms, ..lasting(n, &format!("{n} {i}")) };
                channel.publish(new).await.expect("published");
            }
            if n % 11 == 3 {
                channel.clear().await.expect("cleared");
            }
            handles.push(channel);
        }
        let received = Arc::new(RecordingSink::default());
        let sink: Arc<dyn ChannelSink> = received.clone();
        store.channels().set_sink(&sink);
        steadfast_flow::Env::tokio().sleep(Duration::from_millis(5)).await;
        let mut like = Vec::new();
        for name in &names {
            like.push(seen(&store, name).await);
        }
        for round in 0..3 {
            // A disk joins, and the first leaves; at last a former member rejoins with the remains
            // of its index.
            let (added, index) = (formatted().await, pool.disks.len());
            store.disks().add(named(&format!("d{index}"), &added)).await.expect("added");
            assert!(done(&store).await.copied > 10);
            pool.disks.push(added);
            for (name, like) in names.iter().zip(&like) {
                assert_eq!(seen(&store, name).await, *like, "{name}");
            }
            let leaves = if round == 1 { format!("d{index}") } else { "d0".to_owned() };
            store.disks().drain(&leaves).await.expect("drained");
            done(&store).await;
            pool.disks.remove(leaves[1..].parse().expect("a number"));
            // An existing handle stays usable, and the sink receives each publication.
            for ((n, handle), like) in handles.iter().enumerate().zip(&mut like) {
                assert_eq!(handle.position().expect("there"), like.0, "{n}");
                let history =
                    texts(handle, since(Position { offset: like.0.offset.saturating_sub(1), ..like.0 })).await.1;
                assert!(history.complete || like.0.offset > 0 && like.1.is_empty(), "{n}: {history:?}");
                let published = handle.publish(lasting(n, &format!("{n} round {round}"))).await.expect("published");
                assert_eq!(published.position, Position { offset: like.0.offset + 1, ..like.0 });
                like.0 = published.position;
                like.1.push(format!("{n} round {round}"));
            }
            assert_eq!(std::mem::take(&mut *received.0.lock()).len(), names.len());
            for (name, like) in names.iter().zip(&like) {
                assert_eq!(seen(&store, name).await, *like, "{name}");
            }
            handles.clear();
            store = reopened(&pool, store, true).await;
            store.channels().set_sink(&sink);
            for (n, (name, like)) in names.iter().zip(&mut like).enumerate() {
                let is = seen(&store, name).await;
                // Channels with asynchronous publications may have lost some, as far as the store
                // knows.
                like.0.epoch = if n % 5 == 0 { is.0.epoch } else { like.0.epoch };
                assert_eq!(is, *like, "{name}");
                handles.push(store.channel(name).expect("a channel"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_channels_is_invisible_to_clients() {
    let (_pool, store) = Pool::start_on(2, false).await;
    let received = Arc::new(RecordingSink::default());
    let sink: Arc<dyn ChannelSink> = received.clone();
    store.channels().set_sink(&sink);
    let moving = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (mut ends, env) = (Vec::new(), steadfast_flow::Env::tokio());
    for n in 0..6 {
        let (store, moving) = (store.clone(), moving.clone());
        let (end, ended) = tokio::sync::oneshot::channel();
        ends.push(ended);
        env.spawn("publisher", async move {
            let channel = store.channel(&format!("c{n}")).expect("a channel");
            let (mut last, mut received) = (channel.position().expect("there"), Vec::new());
            while moving.load(std::sync::atomic::Ordering::Relaxed) {
                let text = format!("{n} {}", received.len());
                let is = publish(&channel, &text).await.position;
                assert_eq!(is.offset, last.offset + 1);
                received.push(text);
                let (missed, history) = texts(&channel, since(last)).await;
                assert!(history.complete && missed == received[last.offset as usize..], "{history:?}");
                last = is;
            }
            let _ = end.send(received);
        });
    }
    let new = [formatted().await, formatted().await];
    store.disks().add(named("n0", &new[0])).await.expect("added");
    done(&store).await;
    store.disks().drain("d0").await.expect("drained");
    done(&store).await;
    store.disks().replace("d1", named("n1", &new[1])).await.expect("replaced");
    done(&store).await;
    moving.store(false, std::sync::atomic::Ordering::Relaxed);
    for (n, end) in ends.into_iter().enumerate() {
        let published = end.await.expect("no panic");
        assert!(published.len() > 20, "at work");
        let received = received.0.lock();
        let received: Vec<_> = received.iter().filter(|received| received.0 == format!("c{n}")).collect();
        assert!(received.iter().map(|received| received.1).eq(1..=published.len() as u64), "in order, each once");
        assert!(received.iter().map(|received| &received.2).eq(&published));
    }
}

#[tokio::test]
async fn a_publication_that_cannot_be_read_keeps_its_channel_where_it_is() {
    let (pool, store) = Pool::start(false).await;
    for name in ["a", "b"] {
        publish(&store.channel(name).expect("a channel"), name).await;
    }
    let like = seen(&store, "b").await;
    store.close().await.expect("closed");
    drop(store);
    let faults = Faults::new();
    let disk: Arc<dyn Disk> = Arc::new(Faulty::new(pool.disks[0].clone(), faults.clone()));
    let (store, _) = pool.open_on(vec![named("d0", &disk)]).await.expect("open");
    let fault = faults.add(Fault::new(OpKind::Read, Effect::Error(5)).within(0..u64::MAX));
    store.disks().replace("d0", named("new", &formatted().await)).await.expect("begun");
    let status = ended(&store).await;
    assert_eq!((status.state, status.unmovable_total), (MoveState::Failed, 2), "{status:?}");
    assert!(status.unmovable.iter().any(|what| what.name == "channel b"), "{status:?}");
    faults.remove(fault);
    assert!(store.disks().resume_moves().expect("resumed"));
    done(&store).await;
    assert_eq!(seen(&store, "b").await, like);
}

//! Clients that do not read their answers, or do not send their announced bodies, do not block
//! other clients.

use std::pin::pin;
use std::time::Duration;

use crate::common::{BUCKET, Pool, bytes_of, etag, get, options};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use steadfast_flow::Env;
use steadfast_log::LogOptions;
use steadfast_store::{Attributes, BucketSettings, Condition, ObjectWriter, Store, StoreOptions};

/// Timeout for operations that would otherwise hang for ever.
const LONG: Duration = Duration::from_secs(120);

async fn put(store: &Store, key: &str, data: &[u8]) {
    let mut writer = store.at(BUCKET, key).writer(Some(data.len() as u64)).await.expect("writer");
    writer.write(data.to_vec().into()).await.expect("write");
    writer.commit(etag("t"), Condition::None, None).await.expect("commit");
}

async fn start(options: StoreOptions) -> (Pool, Store) {
    let mut pool = Pool::of(1, false).await;
    pool.options = options;
    let store = pool.open().await;
    store.buckets().create(BUCKET, BucketSettings::default()).await.expect("bucket");
    (pool, store)
}

/// A write budget of 4 MiB, and writers that wait long for it.
fn small_budget() -> StoreOptions {
    StoreOptions {
        inline_max_bytes: 128 << 10,
        chunk_bytes: 1 << 20,
        log: LogOptions { pending_bytes_max: 4 << 20, ..LogOptions::default() },
        write_wait: LONG,
        ..options()
    }
}

#[tokio::test]
async fn unread_answers_do_not_block_reads() {
    // At most four pieces may be read ahead.
    let (_pool, store) = start(StoreOptions {
        cache_bytes: 0,
        read_piece_bytes: 256 << 10,
        read_ahead_bytes_max: 1 << 20,
        chunk_bytes: 1 << 20,
        ..options()
    })
    .await;
    let data = bytes_of(1, 2 << 20);
    put(&store, "big", &data).await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        let reader = store.at(BUCKET, "big").reader().await.expect("reader");
        let mut stream = Box::pin(reader.stream(0..u64::MAX));
        let first = Env::tokio().timeout(LONG, stream.next()).await.expect("in time").expect("a piece").expect("read");
        assert!(first == data[..first.len()]);
        unread.push((stream, first.len()));
    }
    for _ in 0..3 {
        let read = Env::tokio().timeout(LONG, get(&store, "big")).await.expect("in time").expect("read");
        assert!(read == data);
    }
    // Streams that continue get the rest.
    for (mut stream, mut taken) in unread {
        while let Some(piece) = stream.next().await {
            let piece = piece.expect("read");
            assert!(piece == data[taken..taken + piece.len()]);
            taken += piece.len();
        }
        assert_eq!(taken, data.len());
    }
}

#[tokio::test]
async fn bodies_that_stall_do_not_stop_writes() {
    let (_pool, store) = start(small_budget()).await;
    // Half of them hold a chunk, half the budget for their record.
    let mut stalled = Vec::new();
    let filling = async {
        for n in 0..60u64 {
            let size = if n % 2 == 0 { 100 << 20 } else { 128 << 10 };
            let mut slow = FuturesUnordered::new();
            for (writer, _) in &mut stalled {
                slow.push(Box::pin(ObjectWriter::give_room(writer)));
            }
            let mut begin = pin!(async {
                let mut writer = store.at(BUCKET, &format!("slow{n}")).writer(Some(size)).await.expect("writer");
                writer.write(bytes_of(n, 100_000).into()).await.expect("write");
                (writer, n)
            });
            let begun = loop {
                tokio::select! {
                    begun = &mut begin => break begun,
                    Some(()) = slow.next(), if !slow.is_empty() => {}
                }
            };
            drop(slow);
            stalled.push(begun);
        }
        let mut slow: FuturesUnordered<_> = stalled.iter_mut().map(|(writer, _)| writer.give_room()).collect();
        let data = bytes_of(7, 3 << 20);
        let quick = async {
            put(&store, "quick", &data).await;
            put(&store, "small", &data[..100_000]).await;
        };
        tokio::pin!(quick);
        loop {
            tokio::select! {
                () = &mut quick => break,
                Some(()) = slow.next(), if !slow.is_empty() => {}
            }
        }
        drop(slow);
        assert!(get(&store, "quick").await.expect("there") == data);
        // The slow clients still finish.
        for (mut writer, n) in stalled.drain(..).take(4) {
            writer.write(bytes_of(n + 1000, 20_000).into()).await.expect("write");
            writer.commit(etag("t"), Condition::None, None).await.expect("commit");
            let whole = [bytes_of(n, 100_000), bytes_of(n + 1000, 20_000)].concat();
            assert!(get(&store, &format!("slow{n}")).await.expect("there") == whole);
        }
    };
    Env::tokio().timeout(LONG, filling).await.expect("in time");
}

/// Opens so many writers that their first parts fill the budget, and finishes all of them at once.
async fn finish_all(store: &Store, count: u64, size_hint: Option<u64>, body: usize, attributes: Attributes) {
    let mut writers = Vec::new();
    for n in 0..count {
        writers.push((n, store.at(BUCKET, &format!("k{n}")).writer(size_hint).await.expect("writer")));
    }
    let finish = join_all(writers.into_iter().map(|(n, mut writer)| {
        let attributes = attributes.clone();
        async move {
            writer.write(bytes_of(n, body).into()).await.expect("write");
            writer.commit(attributes, Condition::None, None).await.expect("commit");
        }
    }));
    Env::tokio().timeout(LONG, finish).await.expect("in time");
    for n in 0..count {
        assert!(get(store, &format!("k{n}")).await.expect("there") == bytes_of(n, body));
    }
}

#[tokio::test]
async fn writers_that_need_a_larger_part_of_the_budget_do_not_wait_for_one_another() {
    let (_pool, store) = start(small_budget()).await;
    // Their metadata is longer than expected.
    let user = (0..3).map(|n| (format!("name{n}"), "x".repeat(1000))).collect();
    finish_all(&store, 41, Some(100_000), 100_000, Attributes { user, ..etag("t") }).await;
    // Their bodies are longer than what a record takes.
    finish_all(&store, 31, None, 200_000, etag("t")).await;
}

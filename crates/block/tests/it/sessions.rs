//! Sessions without faults.

use steadfast_block::Limits;
use steadfast_disk::{BLOCK, Effect, Fault, OpKind};

use crate::client::*;
use crate::{MIB, World};

#[tokio::test]
async fn exports_are_listed_and_described() {
    let world = World::new(Limits::default()).await;
    let mut client = Client::greet(&world.path).await;
    let mut replies = client.option(3, b"").await;
    assert_eq!(replies.remove(0), (2, b"\0\0\0\x05firstthe first".to_vec()));
    assert_eq!(replies.remove(0), (2, b"\0\0\0\x06secondthe second".to_vec()));
    assert_eq!(replies, [(1, vec![])]);

    let replies = client.option(6, &info("", &[0, 1, 2, 3, 77])).await;
    let kinds: Vec<_> = replies.iter().map(|(kind, data)| (*kind, data.get(1).copied())).collect();
    assert_eq!(kinds, [(3, Some(0)), (3, Some(1)), (3, Some(2)), (3, Some(3)), (1, None)]);
    assert_eq!(replies[0].1[2..10], (4 * MIB).to_be_bytes());
    assert_eq!(&replies[1].1[2..], b"first");
    assert_eq!(&replies[2].1[2..], b"the first");
    assert_eq!(&replies[3].1[2..], b"\0\0\x02\0\0\0\x10\0\x02\0\0\0");

    let replies = client.option(6, &info("second", &[])).await;
    assert_eq!(replies.len(), 2);
    let flags = u16::from_be_bytes([replies[0].1[10], replies[0].1[11]]);
    assert_eq!(flags, 1 | 1 << 1 | 1 << 2 | 1 << 8);
    // After all of these options the client can still begin transmission.
    assert_eq!(client.option(GO, &info("second", &[])).await.last().expect("a reply").0, 1);
    assert!(client.read(0, 10).await.is_ok());
    world.shut_down().await;
}

#[tokio::test]
async fn the_old_option_begins_without_zeros_when_they_are_not_wanted() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::new(Limits::default()).await;
    let mut client = Client::greet(&world.path).await;
    client.send_option(1, b"first").await;
    let mut reply = [0; 10];
    client.stream.read_exact(&mut reply).await.expect("a reply");
    assert_eq!(reply[..8], (4 * MIB).to_be_bytes());
    client.write(0, 3, b"abc").await.expect("written");
    assert_eq!(client.read(2, 5).await.expect("read"), b"\0abc\0");

    let mut old = tokio::net::UnixStream::connect(&world.path).await.expect("connected");
    old.read_exact(&mut [0; 18]).await.expect("a greeting");
    old.write_all(b"\0\0\0\0IHAVEOPT\0\0\0\x01\0\0\0\0").await.expect("sent");
    let mut reply = [1; 134];
    old.read_exact(&mut reply).await.expect("a reply with zeros");
    assert_eq!(reply[10..], [0; 124]);
}

#[tokio::test]
async fn data_is_written_read_trimmed_and_zeroed() {
    for structured in [false, true] {
        let world = World::new(Limits::default()).await;
        let mut client = Client::connect(&world.path, "first", structured).await;
        assert_eq!(client.size, 4 * MIB);
        let flags = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;
        assert_eq!(client.flags, flags | if structured { 1 << 7 } else { 0 });
        let mut model = vec![0; 4 * MIB as usize];
        let data: Vec<u8> = (0..3 * MIB).map(|i| (i % 251) as u8 + 1).collect();
        for (at, length, flags) in
            [(0, BLOCK, 0), (700, 100, FUA), (4000, 9000, 0), (1000, 2_500_001, FUA), (8192, 0, 0)]
        {
            model[at..at + length].copy_from_slice(&data[..length]);
            client.write(flags, at as u64, &data[..length]).await.expect("written");
        }
        model[5000..5000 + 2_000_000].fill(0);
        client.command(ZEROES, FUA | 2, 5000, 2_000_000).await.expect("zeroed");
        client.command(FLUSH, 0, 0, 0).await.expect("flushed");
        // The trim removes the whole blocks between the edges; memory then reads as zeros.
        model[12_288..16_384].fill(0);
        client.command(TRIM, FUA, 12_000, 5000).await.expect("trimmed");
        assert!(client.read(0, 4 << 20).await.expect("read") == model);
        for (at, length) in [(0, 1), (4095, 2), (511, 513), (3_000_000, 1_000_000), (9, 0)] {
            assert!(client.read(at as u64, length as u32).await.expect("read") == model[at..at + length]);
        }
        // The disk outside the window is unchanged.
        let before = world.disk.read(0, MIB as usize).await.expect("read");
        assert!(before.iter().all(|byte| *byte == 0));

        let counts = world.export().status().counts;
        assert_eq!((counts.requests.write, counts.requests.write_zeroes, counts.requests.trim), (5, 1, 1));
        assert_eq!(counts.written_bytes, (BLOCK + 100 + 9000 + 2_500_001) as u64);
        client.send(DISCONNECT, 0, 0, 0, b"").await;
        assert!(client.closed().await);
        world.until("the connection is gone", |world| world.export().status().connections == 0).await;
        world.shut_down().await;
    }
}

#[tokio::test]
async fn unaligned_writes_of_two_connections_keep_all_bytes() {
    let world = World::new(Limits::default()).await;
    let hold = world.faults.add(Fault::new(OpKind::Write, Effect::Hold));
    let writers = (0..2u8).map(|mine| {
        let path = world.path.clone();
        async move {
            let mut client = Client::connect(&path, "first", false).await;
            // Neighbouring halves of the same blocks.
            for at in (0..64u64).map(|i| i * 1024 + u64::from(mine) * 512) {
                client.send(WRITE, 0, at, 512, &[mine + 1; 512]).await;
            }
            for _ in 0..64 {
                client.reply(0).await.1.expect("written");
            }
        }
    });
    let release = async {
        world.until("all have come", |world| world.export().status().in_flight == 128).await;
        world.faults.remove(hold);
    };
    futures::join!(futures::future::join_all(writers), release);
    let mut client = Client::connect(&world.path, "first", true).await;
    let data = client.read(0, 64 << 10).await.expect("read");
    assert!(data.chunks(512).enumerate().all(|(i, half)| half.iter().all(|byte| usize::from(*byte) == i % 2 + 1)));
    assert_eq!(world.export().status().counts.connections, 3);
}

#[tokio::test]
async fn many_requests_at_once_are_all_answered() {
    let world = World::new(Limits::default()).await;
    let mut client = Client::connect(&world.path, "first", true).await;
    let mut open = std::collections::BTreeSet::new();
    for i in 0..500u64 {
        open.insert(client.send(WRITE, 0, i * 4096, 4096, &[i as u8; 4096]).await);
        if i >= 100 {
            let (cookie, result) = client.reply(0).await;
            assert!(open.remove(&cookie) && result.is_ok());
        }
    }
    while !open.is_empty() {
        assert!(open.remove(&client.reply(0).await.0));
    }
    for i in 0..500u64 {
        assert_eq!(client.read(i * 4096, 4096).await.expect("read"), [i as u8; 4096]);
    }
}

#[tokio::test]
async fn long_reads_and_writes_of_any_alignment() {
    let world = World::new(Limits::default()).await;
    let data: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 7) as u8).collect();
    for structured in [true, false] {
        let mut client = Client::connect(&world.path, "first", structured).await;
        for offset in [0, 512, 4095] {
            client.write(0, offset, &data).await.expect("written");
            assert!(client.read(offset, data.len() as u32).await.expect("read") == data, "at {offset}");
        }
    }
}

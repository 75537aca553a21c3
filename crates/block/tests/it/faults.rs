//! Invalid input, floods, and failing disks.

use std::time::Duration;

use steadfast_block::Limits;
use steadfast_disk::{BLOCK, Effect, Fault, OpKind};
use steadfast_flow::Env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::*;
use crate::{MIB, World};

#[tokio::test]
async fn bad_options_are_refused_and_the_handshake_continues() {
    let world = World::new(Limits::default()).await;
    let mut client = Client::greet(&world.path).await;
    for option in [5, 9, 10, 11, 99] {
        assert_eq!(client.option(option, b"data").await[0].0, 0x8000_0001, "{option}");
    }
    assert_eq!(client.option(3, b"x").await[0].0, 0x8000_0003);
    assert_eq!(client.option(8, b"x").await[0].0, 0x8000_0003);
    assert_eq!(client.option(6, b"x").await[0].0, 0x8000_0003);
    assert_eq!(client.option(GO, &info("third", &[])).await[0].0, 0x8000_0006);
    assert_eq!(client.option(GO, &vec![0; 1 << 20]).await[0].0, 0x8000_0009);
    assert_eq!(client.option(2, b"").await, [(1, vec![])]);
    assert!(client.closed().await);

    // In these cases no reply gives the reason.
    let mut client = Client::greet(&world.path).await;
    client.send_option(1, b"third").await;
    assert!(client.closed().await);
    let mut client = Client::greet(&world.path).await;
    client.stream.write_all(b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff").await.expect("sent");
    assert!(client.closed().await);
    let mut client = Client::greet(&world.path).await;
    client.stream.write_all(b"HAVEOPTI\0\0\0\x07\0\0\0\0").await.expect("sent");
    assert!(client.closed().await);
    world.shut_down().await;
}

#[tokio::test]
async fn bad_requests_are_refused_and_the_session_continues() {
    for structured in [false, true] {
        let limits = Limits { request_bytes_max: MIB as u32, ..Limits::default() };
        let world = World::new(limits).await;
        let mut client = Client::connect(&world.path, "first", structured).await;
        let end = client.size;
        assert_eq!(client.read(end, 1).await, Err(EINVAL));
        assert_eq!(client.read(u64::MAX, 1).await, Err(EINVAL));
        assert_eq!(client.read(0, MIB as u32 + 1).await, Err(EINVAL));
        assert_eq!(client.write(0, end - 1, b"ab").await, Err(ENOSPC));
        assert_eq!(client.write(0, 0, &vec![1; MIB as usize + 1]).await, Err(EINVAL));
        assert_eq!(client.write(1 << 4, 0, b"ab").await, Err(EINVAL));
        assert_eq!(client.command(ZEROES, 0, end, 1).await, Err(ENOSPC));
        assert_eq!(client.command(TRIM, 0, end, 1).await, Err(EINVAL));
        assert_eq!(client.command(FLUSH, 0, 0, 1).await, Err(EINVAL));
        assert_eq!(client.command(42, 0, 0, 0).await, Err(EINVAL));
        assert_eq!(client.read(0, 4).await.expect("read"), [0; 4]);
        assert_eq!(world.export().status().counts.refused, 10);

        client.send(WRITE, 0, 0, u32::MAX, b"the beginning").await;
        assert!(client.closed().await);
        let mut client = Client::connect(&world.path, "first", structured).await;
        client.stream.write_all(&[7; 28]).await.expect("sent");
        assert!(client.closed().await);
        world.shut_down().await;
    }
}

#[tokio::test]
async fn a_read_only_export_takes_no_writes() {
    let world = World::new(Limits::default()).await;
    let mut client = Client::connect(&world.path, "second", true).await;
    assert_ne!(client.flags & 1 << 1, 0);
    assert_eq!(client.write(0, 0, b"ab").await, Err(EPERM));
    assert_eq!(client.command(TRIM, 0, 0, 4096).await, Err(EPERM));
    assert_eq!(client.command(ZEROES, 0, 0, 4096).await, Err(EPERM));
    assert_eq!(client.command(FLUSH, 0, 0, 0).await, Ok(()));
    assert_eq!(client.read(0, 2).await.expect("read"), [0; 2]);
}

#[tokio::test]
async fn connections_are_bounded() {
    let limits = Limits { export_connections_max: 2, connections_max: 4, ..Limits::default() };
    let world = World::new(limits).await;
    let first = Client::connect(&world.path, "first", true).await;
    let _second = Client::connect(&world.path, "first", true).await;
    let mut third = Client::greet(&world.path).await;
    assert_eq!(third.option(GO, &info("first", &[])).await[0].0, 0x8000_0002);
    let _other = Client::connect(&world.path, "second", true).await;
    // The fifth connection takes the place of the only one without an export.
    let mut fifth = Client::greet(&world.path).await;
    assert!(third.closed().await);
    drop(first);
    world.until("there is a place again", |world| world.export().status().connections == 1).await;
    assert_eq!(fifth.option(GO, &info("first", &[])).await.last().expect("a reply").0, 1);
    let _fourth = Client::connect(&world.path, "second", true).await;
    // All have an export: the server closes another connection at once.
    let mut sixth = tokio::net::UnixStream::connect(&world.path).await.expect("connected");
    assert_eq!(sixth.read(&mut [0; 18]).await.expect("closed"), 0);
}

#[tokio::test]
async fn a_client_that_takes_no_replies_holds_little_and_is_cut_off() {
    let limits = Limits {
        stall_timeout: Duration::from_millis(300),
        connection_bytes_max: 2 << 20,
        request_bytes_max: 1 << 20,
        ..Limits::default()
    };
    let world = World::new(limits).await;
    let mut greedy = Client::connect(&world.path, "first", true).await;
    for _ in 0..100 {
        greedy.send(READ, 0, 0, 1 << 20, b"").await;
    }
    world.until("the bound is reached", |world| world.export().status().bytes_in_flight == 2 << 20).await;
    // The server serves other clients meanwhile.
    let mut client = Client::connect(&world.path, "first", true).await;
    client.write(0, 0, b"abc").await.expect("written");
    world.until("the client is cut off", |world| world.export().status().connections == 1).await;
    assert_eq!(world.export().status().bytes_in_flight, 0);
    assert!(greedy.closed().await);
    // A client that sends only a part of a payload holds memory as well.
    let mut slow = Client::connect(&world.path, "first", true).await;
    slow.send(WRITE, 0, 0, 1 << 20, b"a part").await;
    world.until("memory is held", |world| world.export().status().bytes_in_flight == 1 << 20).await;
    assert!(slow.closed().await);
    world.until("memory is free", |world| world.export().status().bytes_in_flight == 0).await;
    assert_eq!(client.read(0, 4).await.expect("read"), b"abc\0");
}

#[tokio::test]
async fn a_flood_of_small_writes_is_bounded_while_the_disk_hangs() {
    let limits = Limits { requests_in_flight_max: 8, ..Limits::default() };
    let world = World::new(limits).await;
    let hold = world.faults.add(Fault::new(OpKind::Write, Effect::Hold));
    let mut client = Client::connect(&world.path, "first", true).await;
    for i in 0..50 {
        client.send(WRITE, 0, i * 100, 100, &[i as u8; 100]).await;
    }
    world.until("the requests are old", |world| world.export().status().oldest_request_ms >= 50).await;
    assert_eq!(world.export().status().in_flight, 8);
    assert_eq!(world.export().status().bytes_in_flight, 800);
    world.faults.remove(hold);
    for _ in 0..50 {
        client.reply(0).await.1.expect("written");
    }
    assert_eq!(world.export().status().in_flight, 0);
    assert_eq!(world.export().status().oldest_request_ms, 0);
    let data = client.read(0, 5000).await.expect("read");
    assert!(data.chunks(100).enumerate().all(|(i, part)| part.iter().all(|byte| usize::from(*byte) == i)));
}

#[tokio::test]
async fn an_old_write_of_a_reconnected_client_does_not_land_last() {
    let world = World::new(Limits::default()).await;
    let hold = world.faults.add(Fault::new(OpKind::Write, Effect::Hold).times(1));
    let mut client = Client::connect(&world.path, "first", true).await;
    client.send(WRITE, 0, 0, 4096, &[1; 4096]).await;
    world.until("it is with the disk", |world| world.faults.harmed(hold) == 1).await;
    drop(client);
    let mut client = Client::connect(&world.path, "first", true).await;
    client.send(WRITE, 0, 0, 4096, &[2; 4096]).await;
    world.until("both are there", |world| world.export().status().in_flight == 2).await;
    world.faults.remove(hold);
    client.reply(0).await.1.expect("written");
    assert_eq!(client.read(0, 4096).await.expect("read"), [2; 4096]);
    world.until("the old connection is gone", |world| world.export().status().connections == 1).await;
}

#[tokio::test]
async fn a_write_of_a_closed_connection_that_waits_for_memory_does_not_begin() {
    let limits = Limits {
        connection_bytes_max: 64 << 10,
        large_bytes_max: 1 << 20,
        request_bytes_max: 1 << 20,
        ..Limits::default()
    };
    let world = World::new(limits).await;
    // A long read occupies all the memory of long requests.
    let hold = world.faults.add(Fault::new(OpKind::Read, Effect::Hold));
    let mut reader = Client::connect(&world.path, "first", true).await;
    reader.send(READ, 0, 1 << 20, 1 << 20, b"").await;
    world.until("it is with the disk", |world| world.faults.harmed(hold) == 1).await;
    let mut old = Client::connect(&world.path, "first", true).await;
    old.send(WRITE, 0, 0, 128 << 10, &[1; 128 << 10]).await;
    old.send(ZEROES, 0, 0, 4096, b"").await;
    drop(old);
    let mut new = Client::connect(&world.path, "first", true).await;
    // The server serves short requests meanwhile.
    new.write(0, 0, &[2; 4096]).await.expect("written");
    world.faults.remove(hold);
    reader.reply(1 << 20).await.1.expect("read");
    world.until("the old connection is gone", |world| world.export().status().connections == 2).await;
    assert_eq!(new.read(0, 4096).await.expect("read"), [2; 4096]);
}

#[tokio::test]
async fn a_failed_write_or_flush_is_the_last_one_for_all_connections() {
    type Harm = (OpKind, u16, u16);
    let cases: [Harm; 5] = [
        (OpKind::Write, WRITE, 0),
        (OpKind::Flush, WRITE, FUA),
        (OpKind::Flush, FLUSH, 0),
        (OpKind::Write, ZEROES, 0),
        (OpKind::Discard, TRIM, 0),
    ];
    for (kind, command, flags) in cases {
        let world = World::new(Limits::default()).await;
        let mut one = Client::connect(&world.path, "first", true).await;
        let mut two = Client::connect(&world.path, "", false).await;
        one.write(0, 0, b"before").await.expect("written");
        // 5 is EIO.
        world.faults.add(Fault::new(kind, Effect::Error(5)).times(1));
        let length = if command == FLUSH { 0 } else { BLOCK as u32 };
        let payload = vec![1; if command == WRITE { BLOCK } else { 0 }];
        one.send(command, flags, 0, length, &payload).await;
        assert_eq!(one.reply(0).await.1, Err(EIO), "{kind:?}");
        for client in [&mut one, &mut two] {
            assert_eq!(client.write(0, 8192, b"after").await, Err(EIO));
            assert_eq!(client.command(FLUSH, 0, 0, 0).await, Err(EIO));
            assert_eq!(client.command(TRIM, 0, 0, 4096).await, Err(EIO));
            assert_eq!(client.command(ZEROES, 0, 0, 4096).await, Err(EIO));
            assert_eq!(client.read(8192, 5).await.expect("read"), [0; 5]);
        }
        let status = world.export().status();
        assert!(status.failure.is_some_and(|text| text.contains("os error 5")));
        assert_eq!(status.counts.write_errors, 1);
        world.shut_down().await;
    }
}

#[tokio::test]
async fn a_full_disk_and_a_failed_read_are_not_latched() {
    let world = World::new(Limits::default()).await;
    let mut client = Client::connect(&world.path, "first", true).await;
    // 28 is ENOSPC.
    world.faults.add(Fault::new(OpKind::Write, Effect::Error(28)).times(1));
    world.faults.add(Fault::new(OpKind::Read, Effect::Error(5)).times(2));
    assert_eq!(client.write(0, 0, &[1; 4096]).await, Err(ENOSPC));
    assert_eq!(client.read(0, 10).await, Err(EIO));
    // The failing read belongs to an unaligned write.
    assert_eq!(client.write(0, 1, &[1; 10]).await, Err(EIO));
    client.write(FUA, 1, &[1; 10]).await.expect("written");
    assert_eq!(client.read(0, 3).await.expect("read"), [0, 1, 1]);
    let status = world.export().status();
    assert_eq!((status.failure, status.counts.read_errors, status.counts.write_errors), (None, 2, 1));
    // A failed flush leaves open what is lost, whatever its error is.
    world.faults.add(Fault::new(OpKind::Flush, Effect::Error(28)).times(1));
    assert_eq!(client.command(FLUSH, 0, 0, 0).await, Err(ENOSPC));
    assert_eq!(client.command(FLUSH, 0, 0, 0).await, Err(EIO));
}

#[tokio::test]
async fn a_shutdown_finishes_what_is_in_flight_and_flushes() {
    let world = World::new(Limits::default()).await;
    let mut client = Client::connect(&world.path, "first", true).await;
    let mut idle = Client::connect(&world.path, "second", true).await;
    let hold = world.faults.add(Fault::new(OpKind::Write, Effect::Hold));
    client.send(WRITE, 0, 0, 4, b"abcd").await;
    world.until("it is with the disk", |world| world.faults.harmed(hold) == 1).await;
    let (faults, disk) = (world.faults.clone(), world.disk.clone());
    let flushes = disk.stats().flushes;
    let (shut, ()) = futures::join!(
        async {
            world.shut_down().await;
            disk.stats().flushes
        },
        async {
            // The server closes the idle connection at once, and the other one after its reply.
            assert_eq!(idle.stream.read(&mut [0; 1]).await.expect("closed"), 0);
            faults.remove(hold);
            client.reply(0).await.1.expect("written");
            assert_eq!(client.stream.read(&mut [0; 1]).await.expect("closed"), 0);
        }
    );
    assert_eq!(shut, flushes + 1);
}

#[tokio::test]
async fn a_hanging_disk_does_not_hang_the_shutdown() {
    let limits = Limits { shutdown_timeout: Duration::from_millis(50), ..Limits::default() };
    let world = World::new(limits).await;
    let mut client = Client::connect(&world.path, "first", true).await;
    world.faults.add(Fault::new(OpKind::Flush, Effect::Hold));
    client.send(FLUSH, 0, 0, 0, b"").await;
    world.until("it is with the disk", |world| world.export().status().in_flight == 1).await;
    assert!(Env::tokio().timeout(Duration::from_secs(20), world.shut_down()).await.is_some());
}

#[tokio::test]
async fn a_silent_client_loses_its_place() {
    let limits = Limits { handshake_timeout: Duration::from_millis(50), ..Limits::default() };
    let world = World::new(limits).await;
    let client = Client::greet(&world.path).await;
    assert!(client.closed().await);
}

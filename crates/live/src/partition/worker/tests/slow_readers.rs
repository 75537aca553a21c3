//! Clients that read slowly or not at all.

use super::*;

#[test]
fn a_reader_gets_answers_and_publications_of_any_size() {
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 8 * QUEUE, 1);
    // Queued behind the answer, which is being written.
    scene.published(2, 3 * QUEUE / 2);
    scene.wait_until_delivered();
    scene.advance(4_000);
    assert!(!scene.ended());
    assert!(scene.next_message().starts_with(r#"{"id":7,"subscribe":{"#));
    assert!(scene.next_message().contains(r#""offset":2"#));
    for offset in 3..6 {
        scene.published(offset, 3 * QUEUE);
        assert!(scene.next_message().contains(&format!(r#""offset":{offset}"#)));
    }
    assert!(!scene.ended());
}

#[test]
fn a_permit_is_released_when_its_answer_is_written_or_its_session_ends() {
    let mut scene = Scene::new();
    scene.connect();
    let budget = Budget::new("answers", 2, scene.env.clone());
    let answers = |scene: &Scene, id: u32| {
        let publications = vec![Publication { data: text(8 * QUEUE).into(), ..Publication::default() }];
        let history = Some(HistoryResult { publications, ..HistoryResult::default() });
        let permit = Arc::new(budget.try_acquire(1).expect("a permit"));
        scene.send(SessionMessage::Answer(Box::new(Reply { id, history, ..Reply::default() }), vec![permit]));
        scene.wait_until_delivered();
    };
    answers(&scene, 7);
    scene.advance(250);
    assert_eq!(budget.used_bytes(), 1, "the client has not read it");
    scene.next_message();
    let until_free = || {
        while budget.used_bytes() > 0 {
            std::thread::yield_now();
        }
    };
    until_free();
    answers(&scene, 8);
    assert_eq!(budget.used_bytes(), 1);
    scene.client.shutdown(std::net::Shutdown::Both).expect("closed");
    until_free();
}

#[test]
fn commands_wait_until_the_client_reads_its_answers() {
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 8 * QUEUE, 1);
    scene.send(SessionMessage::Ready);
    let history = |id: u32| format!(r#"{{"id":{id},"history":{{"channel":"room"}}}}"#);
    for id in 8..11 {
        scene.client.write_all(&websocket::from_client(Encoding::Json, history(id).as_bytes())).expect("sent");
    }
    scene.advance(1_000);
    let before = scene.hub.carried_out.load(Relaxed);
    scene.advance(1_000);
    assert_eq!((before, scene.hub.carried_out.load(Relaxed)), (1, 1), "the connect command");
    scene.next_message();
    for id in 8..11 {
        while scene.hub.carried_out.load(Relaxed) < id as usize - 6 {
            std::thread::yield_now();
        }
        scene.send(SessionMessage::Reply(Box::new(Reply { id, ..Reply::default() })));
        scene.send(SessionMessage::Ready);
        assert_eq!(scene.next_message(), format!(r#"{{"id":{id}}}"#));
    }
}

#[test]
fn a_stalled_reader_is_disconnected_and_a_slow_one_is_not() {
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 8 * QUEUE, 1);
    let mut taken = vec![0; 2 * QUEUE];
    for _ in 0..3 {
        scene.advance(4_000);
        scene.client.read_exact(&mut taken).expect("bytes");
        // Wait until the worker has written more.
        scene.advance(250);
    }
    assert!(!scene.ended());
    scene.advance(250);
    scene.advance(5_000);
    scene.advance(250);
    assert!(scene.ended());
}

#[test]
fn a_slow_reader_gets_the_close_frame_after_the_frame_in_progress() {
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 10, 1);
    scene.next_message();
    for offset in 2..40 {
        scene.published(offset, QUEUE / 4);
    }
    scene.wait_until_delivered();
    assert!(scene.ended(), "a quarter of this exceeds the bound and the kernel's buffer");
    // Only whole frames arrive, in order, and then the close frame.
    let mut next = 2;
    scene.client.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
    let mut received = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        match scene.client.read(&mut part) {
            Ok(0) => break,
            Ok(len) => received.extend_from_slice(&part[..len]),
            // The clock writes what is queued for an ended session.
            Err(_) => scene.advance(250),
        }
    }
    let mut rest = &received[..];
    loop {
        let len = match rest[1] {
            127 => {
                usize::try_from(u64::from_be_bytes(rest[2..10].try_into().expect("a length"))).expect("a length") + 10
            }
            len => usize::from(len) + 2,
        };
        let (frame, behind) = rest.split_at(len);
        rest = behind;
        if frame[0] & 15 == 8 {
            assert_eq!(&frame[2..4], 3008u16.to_be_bytes());
            break;
        }
        let offset = format!(r#""offset":{next}"#);
        assert!(frame.windows(offset.len()).any(|part| part == offset.as_bytes()), "{next}");
        next += 1;
    }
    assert!(rest.is_empty() && (3..30).contains(&next), "{next}");
}

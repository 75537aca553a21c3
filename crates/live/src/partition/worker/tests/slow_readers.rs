//! Sessions whose clients read slowly, or not at all.

use super::*;

#[test]
fn each_reader_gets_its_answer_and_each_publication_whatever_their_size() {
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 8 * QUEUE, 1);
    // Behind the answer, which is being written.
    scene.published(2, 3 * QUEUE / 2);
    scene.dealt();
    scene.passes(4_000);
    assert!(!scene.ended());
    assert!(scene.hears().starts_with(r#"{"id":7,"subscribe":{"#));
    assert!(scene.hears().contains(r#""offset":2"#));
    for offset in 3..6 {
        scene.published(offset, 3 * QUEUE);
        assert!(scene.hears().contains(&format!(r#""offset":{offset}"#)));
    }
    assert!(!scene.ended());
}

#[test]
fn a_permit_comes_back_when_its_answer_has_been_written_or_the_session_ends() {
    let mut scene = Scene::new();
    scene.connect();
    let budget = Budget::new("answers", 2, scene.env.clone());
    let answers = |scene: &Scene, id: u32| {
        let publications = vec![Publication { data: text(8 * QUEUE), ..Publication::default() }];
        let history = Some(HistoryResult { publications, ..HistoryResult::default() });
        let permit = Arc::new(budget.try_acquire(1).expect("a permit"));
        scene.tell(ToSession::Answer(Box::new(Reply { id, history, ..Reply::default() }), vec![permit]));
        scene.dealt();
    };
    answers(&scene, 7);
    scene.passes(250);
    assert_eq!(budget.used_bytes(), 1, "the client has not read it");
    scene.hears();
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
fn commands_wait_for_who_does_not_read_what_it_was_answered() {
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 8 * QUEUE, 1);
    scene.tell(ToSession::Ready);
    let asks = |id: u32| format!(r#"{{"id":{id},"history":{{"channel":"room"}}}}"#);
    for id in 8..11 {
        scene.client.write_all(&websocket::from_client(Encoding::Json, asks(id).as_bytes())).expect("sent");
    }
    scene.passes(1_000);
    let before = scene.hub.carried_out.load(Relaxed);
    scene.passes(1_000);
    assert_eq!((before, scene.hub.carried_out.load(Relaxed)), (1, 1), "the connect command");
    scene.hears();
    for id in 8..11 {
        while scene.hub.carried_out.load(Relaxed) < id as usize - 6 {
            std::thread::yield_now();
        }
        scene.tell(ToSession::Reply(Box::new(Reply { id, ..Reply::default() })));
        scene.tell(ToSession::Ready);
        assert_eq!(scene.hears(), format!(r#"{{"id":{id}}}"#));
    }
}

#[test]
fn who_takes_nothing_for_too_long_is_ended_and_who_takes_something_is_not() {
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 8 * QUEUE, 1);
    let mut taken = vec![0; 2 * QUEUE];
    for _ in 0..3 {
        scene.passes(4_000);
        scene.client.read_exact(&mut taken).expect("something");
        // Until the worker has written more.
        scene.passes(250);
    }
    assert!(!scene.ended());
    scene.passes(250);
    scene.passes(5_000);
    scene.passes(250);
    assert!(scene.ended());
}

#[test]
fn who_does_not_read_is_told_why_it_was_ended_behind_the_frame_that_was_begun() {
    let mut scene = Scene::new();
    scene.connect();
    scene.subscribes(7, 10, 1);
    scene.hears();
    for offset in 2..40 {
        scene.published(offset, QUEUE / 4);
    }
    scene.dealt();
    assert!(scene.ended(), "about a quarter of this may wait, beside what the kernel has");
    // Nothing but whole frames, in order, and then the reason.
    let mut next = 2;
    scene.client.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
    let mut came = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        match scene.client.read(&mut part) {
            Ok(0) => break,
            Ok(len) => came.extend_from_slice(&part[..len]),
            // What waits for a session that has ended is written with the clock.
            Err(_) => scene.passes(250),
        }
    }
    let mut rest = &came[..];
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

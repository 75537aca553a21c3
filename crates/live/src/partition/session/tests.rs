//! Tests of sessions.

use bytes::Bytes;

use super::*;
use crate::session::ConnectionInfo;
use crate::websocket;

fn session(connected: bool) -> Session {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (encoding, transport) = (Encoding::Json, Transport::WebSocket);
    let connection = ConnectionInfo::of(encoding, transport);
    let opened =
        Opened { socket, leftover: Vec::new(), connection: connection.clone(), place: None, unconnected: None };
    let mut session = Session::new(opened, 0);
    session.identity = connected.then(|| Arc::new(SessionIdentity::ann(connection)));
    session
}

/// Frames with `commands` commands in all, `in_each` in each.
fn frames(commands: u32, in_each: usize) -> Vec<u8> {
    let ids: Vec<u32> = (1..=commands).collect();
    let line = |id: &u32| format!("{{\"id\":{id},\"ping\":{{}}}}\n{{}}\n");
    let message = |ids: &[u32]| ids.iter().map(line).collect::<String>();
    ids.chunks(in_each).flat_map(|ids| websocket::from_client(Encoding::Json, message(ids).as_bytes())).collect()
}

#[test]
fn a_long_answer_must_be_read_within_minutes() {
    let bounds = Bounds { stall_ms: 30_000, client_bytes_s_min: 4 << 10, ..Bounds::default() };
    let slow_for = |answer_bytes| {
        let mut session = session(true);
        session.answer_bytes = answer_bytes;
        (0..100).find(|ten_s| {
            session.taken = 50_000;
            session.is_stalled(ten_s * 10_000, &bounds)
        })
    };
    assert_eq!(slow_for(1 << 20), None, "5 KB/s suffice for an answer of 1 MiB");
    assert!(slow_for(16 << 20).is_some_and(|ten_s| ten_s < 10), "16 MiB would take an hour");
}

#[test]
fn a_reader_of_single_bytes_is_as_slow_as_one_that_reads_nothing() {
    let mut session = session(true);
    let bounds = |client_bytes_s_min| Bounds { stall_ms: 30_000, client_bytes_s_min, ..Bounds::default() };
    session.keep(Bytes::from_static(&[0; 1 << 10]), 1 << 20).expect("below the bound");
    assert!(!session.is_stalled(0, &bounds(1000)));
    session.taken = 1;
    assert!(!session.is_stalled(20_000, &bounds(1000)));
    session.taken = 15_000;
    assert!(!session.is_stalled(40_000, &bounds(1000)), "reading extends the deadline");
    session.taken = 1;
    assert!(session.is_stalled(50_000, &bounds(1000)));
    session.patience = None;
    for now_ms in [60_000, 80_000, 100_000] {
        session.taken = 1;
        assert!(!session.is_stalled(now_ms, &bounds(0)), "without a rate any byte suffices");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    session.socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    session.flush().expect("taken");
    assert!(session.patience.is_none(), "an empty queue resets the deadline");
}

#[test]
fn outstanding_pings_have_one_deadline() {
    let mut session = session(true);
    assert_eq!(session.pinged(10), Some(10));
    assert_eq!((session.pinged(20), session.pinged(30)), (None, None), "a deadline is pending");
    assert!(session.owes_pong(10) && !session.owes_pong(20));
    session.lives();
    assert!(!session.owes_pong(10));
    assert_eq!(session.pinged(40), Some(40));
    assert!(session.owes_pong(40) && !session.owes_pong(10), "an old deadline ends no session");
}

#[test]
fn commands_above_the_bound_stay_undecoded_and_keep_their_order() {
    for in_each in [1, 7, 500, 2000] {
        let mut session = session(true);
        let mut bytes = [frames(2000, in_each), websocket::from_client(Encoding::Json, b"nonsense")].concat();
        let mut found = Vec::new();
        let mut come = &mut bytes[..];
        let end = loop {
            let end = session.take_in(std::mem::take(&mut come), 1 << 16).1;
            assert!(session.commands.len() <= COMMANDS_MAX, "{} in frames of {in_each}", session.commands.len());
            assert_eq!(session.takes_more(), session.commands.len() < COMMANDS_MAX);
            // Taking one makes space for one more.
            found.extend(session.commands.pop_front().map(|queued| queued.command.id));
            if end.is_some() {
                break end;
            }
        };
        found.extend(session.commands.iter().map(|queued| queued.command.id));
        assert!(found.iter().copied().eq(1..=2000), "in order, each once: {found:?}");
        assert_eq!(end, Some(codes::BAD_PROTOCOL));
    }
}

#[test]
fn an_unconnected_session_has_one_command() {
    let mut session = session(false);
    let connect = websocket::from_client(Encoding::Json, br#"{"id":1,"connect":{}}"#);
    let mut bytes = [connect, frames(2000, 1)].concat();
    assert_eq!(session.take_in(&mut bytes, 1 << 16), (Vec::new(), None));
    assert_eq!(session.commands.len(), 1);
    assert!(!session.takes_more());
    (session.busy, session.commands) = (true, VecDeque::new());
    assert_eq!(session.take_in(&mut [], 1 << 16), (Vec::new(), None));
    assert!(session.commands.is_empty() && !session.takes_more());
    session.busy = false;
    session.identity = Some(Arc::new(SessionIdentity::ann(ConnectionInfo::of(Encoding::Json, Transport::WebSocket))));
    assert_eq!(session.take_in(&mut [], 1 << 16), (Vec::new(), None));
    assert_eq!(session.commands.len(), COMMANDS_MAX);
    // The first command must be connect, and connect must not be repeated.
    for first in [&br#"{"id":1,"ping":{}}"#[..], br#"{"connect":{}}"#] {
        let mut bytes = websocket::from_client(Encoding::Json, first);
        assert_eq!(self::session(false).take_in(&mut bytes, 1 << 16).1, Some(codes::BAD_PROTOCOL));
    }
    let mut again = websocket::from_client(Encoding::Json, br#"{"id":1,"connect":{}}"#);
    assert_eq!(self::session(true).take_in(&mut again, 1 << 16).1, Some(codes::BAD_PROTOCOL));
}

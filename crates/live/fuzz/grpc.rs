//! The fuzzer entry point for gRPC messages: API requests and back-end answers must decode without
//! a panic.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::mem::discriminant;

use bytes::Bytes;
use prost::Message;

use super::{door, message};
use crate::api::ParsedCommand;
use crate::grpc::put_field;
use crate::proxy::ProxyEvent;
use crate::proxy::grpc::outcome;

const METHODS: [&str; 12] = [
    "Publish",
    "Broadcast",
    "Subscribe",
    "Unsubscribe",
    "Disconnect",
    "Presence",
    "PresenceStats",
    "History",
    "HistoryRemove",
    "Info",
    "Refresh",
    "Channels",
];

const EVENTS: [ProxyEvent; 6] = [
    ProxyEvent::Connect,
    ProxyEvent::Refresh,
    ProxyEvent::Subscribe,
    ProxyEvent::Publish,
    ProxyEvent::SubRefresh,
    ProxyEvent::Rpc,
];

/// The initial corpus: the first byte selects the kind of message.
pub fn grpc_corpus() -> Vec<Vec<u8>> {
    let fields = |fields: &[(u32, &[u8])]| {
        let mut out = Vec::new();
        fields.iter().for_each(|(tag, value)| put_field(*tag, value, &mut out));
        out
    };
    let texts: Vec<(u32, &[u8])> = (1..=11).map(|tag| (tag, &b"e30="[..])).collect();
    let publish = fields(&[(1, b"c"), (2, b"{}"), (5, &fields(&[(1, b"k"), (2, b"v")]))]);
    let batch =
        fields(&[(1, &fields(&[(4, &publish)])), (1, &fields(&[(13, b"")])), (1, &fields(&[(9, &texts_of(1))]))]);
    let options = fields(&[(2, b"{}"), (5, b"/wA="), (6, &fields(&[(1, &[8, 1])]))]);
    let connect = fields(&[(1, b"ann"), (3, b"{}"), (7, b"x"), (8, &fields(&[(1, b"c"), (2, &options)])), (9, b"{}")]);
    let mut bodies = vec![publish, batch, fields(&texts), texts_of(1), Vec::new()];
    for result in [connect, options, texts_of(2)] {
        bodies.push(fields(&[(1, &result)]));
    }
    bodies.push(fields(&[(2, &[8, 107]), (3, &[8, 0xa0, 0x1f])]));
    let kinds = 0..=(METHODS.len() + EVENTS.len()) as u8;
    kinds.flat_map(|kind| bodies.iter().map(move |body| [&[kind][..], body].concat())).collect()
}

fn texts_of(tag: u32) -> Vec<u8> {
    let mut out = Vec::new();
    put_field(tag, b"text", &mut out);
    out
}

/// Decodes an API request, a batch or a back-end answer.
///
/// # Panics
/// An error that cannot be encoded; the fuzzer looks for this and any other panic.
pub fn fuzz_grpc(data: &[u8]) -> u64 {
    let mut seen = DefaultHasher::new();
    let Some((kind, body)) = data.split_first() else { return 0 };
    let (kind, body) = (usize::from(*kind) % (METHODS.len() + EVENTS.len() + 1), Bytes::copy_from_slice(body));
    kind.hash(&mut seen);
    if let Some(method) = METHODS.get(kind) {
        match door::command(method, body) {
            Ok(command) => hash_command(&command, &mut seen),
            Err(status) => (status.code() as i32).hash(&mut seen),
        }
    } else if let Some(event) = EVENTS.get(kind - METHODS.len()) {
        outcome(*event, body).ok().hash(&mut seen);
    } else {
        match door::batch_of(body) {
            Ok((tags, commands, parallel)) => {
                assert_eq!(tags.len(), commands.len());
                (commands.len().min(8), parallel).hash(&mut seen);
                for (tag, command) in tags.iter().zip(&commands).take(8) {
                    tag.hash(&mut seen);
                    hash_command(command, &mut seen);
                }
            }
            Err(status) => (status.code() as i32).hash(&mut seen),
        }
    }
    seen.finish()
}

fn hash_command(command: &ParsedCommand, seen: &mut DefaultHasher) {
    match command {
        Ok(command) => discriminant(command).hash(seen),
        Err(error) => {
            error.code.hash(seen);
            let encoded = message::response(Err(error.clone())).encode_to_vec();
            assert!(!encoded.is_empty() && !message::reply(4, Err(error.clone())).is_empty(), "an error has bytes");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_has_many_outcomes() {
        let outcomes: std::collections::BTreeSet<u64> = grpc_corpus().iter().map(|input| fuzz_grpc(input)).collect();
        assert!(outcomes.len() > 30, "{}", outcomes.len());
        assert_eq!(fuzz_grpc(&[]), 0);
    }
}

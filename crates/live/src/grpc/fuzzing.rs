//! The entry point of the fuzzer of gRPC's messages: what back ends ask and what they answer in, no panic out.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::mem::discriminant;

use bytes::Bytes;
use prost::Message;

use super::{door, message, put_field};
use crate::api::Asked;
use crate::proxy::Event;
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

const EVENTS: [Event; 6] =
    [Event::Connect, Event::Refresh, Event::Subscribe, Event::Publish, Event::SubRefresh, Event::Rpc];

/// Messages to begin with: the first byte says what the rest is.
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

/// Reads a message: a request of the API, a batch of them, or the answer of a back end.
///
/// # Panics
/// When that cannot be refused in words: that, and any other panic, is what the fuzzer looks for.
pub fn fuzz_grpc(data: &[u8]) -> u64 {
    let mut seen = DefaultHasher::new();
    let Some((kind, body)) = data.split_first() else { return 0 };
    let (kind, body) = (usize::from(*kind) % (METHODS.len() + EVENTS.len() + 1), Bytes::copy_from_slice(body));
    kind.hash(&mut seen);
    if let Some(method) = METHODS.get(kind) {
        match door::command(method, body) {
            Ok(command) => understood(&command, &mut seen),
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
                    understood(command, &mut seen);
                }
            }
            Err(status) => (status.code() as i32).hash(&mut seen),
        }
    }
    seen.finish()
}

fn understood(command: &Asked, seen: &mut DefaultHasher) {
    match command {
        Ok(command) => discriminant(command).hash(seen),
        Err(error) => {
            error.code.hash(seen);
            let said = message::response(Err(error.clone())).encode_to_vec();
            assert!(!said.is_empty() && !message::reply(4, Err(error.clone())).is_empty(), "an error is said");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fuzzer_begins_with_is_understood_in_many_ways() {
        let outcomes: std::collections::BTreeSet<u64> = grpc_corpus().iter().map(|input| fuzz_grpc(input)).collect();
        assert!(outcomes.len() > 30, "{}", outcomes.len());
        assert_eq!(fuzz_grpc(&[]), 0);
    }
}

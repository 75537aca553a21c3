//! Answers to subscribe commands. Sessions that reconnect together send equal commands: the answer
//! is encoded once for all of them. Only the number of the command, at the front, is each session's
//! own.

use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use steadfast_flow::Permit;
use steadfast_store::Position;

use crate::deflate::{Deflate, stored};
use crate::protocol::Encoding;
use crate::protocol::message::SubscribeResult;
use crate::websocket;

/// Fields of [`crate::protocol::message::Reply`] in Protobuf.
const ID: u32 = 1;
const SUBSCRIBE: u32 = 6;

/// The permit of an answer's memory; `None` for an answer too short to count.
pub(crate) type AnswerPermit = Option<Arc<Permit>>;

/// Bytes that hold permits until the last part of them is dropped.
struct Held {
    bytes: Bytes,
    _permits: Box<[Arc<Permit>]>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, holding `permits`.
pub(crate) fn held(bytes: Bytes, permits: &[Arc<Permit>]) -> Bytes {
    match permits {
        [] => bytes,
        permits => Bytes::from_owner(Held { bytes, _permits: permits.into() }),
    }
}

/// Everything that an answer depends on within a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerKey {
    /// The position to recover from.
    pub(crate) since: Option<Position>,
    /// The newest position of the channel.
    pub(crate) top: Position,
    pub(crate) encoding: Encoding,
    pub(crate) delta: bool,
    pub(crate) recoverable: bool,
    pub(crate) positioned: bool,
}

/// The answer to equal subscribe commands, encoded once for each form.
pub(crate) struct SubscribeAnswer {
    pub(crate) result: SubscribeResult,
    /// By encoding: the bytes behind the command's number.
    encoded: [OnceLock<Option<Bytes>>; 2],
    /// The same, compressed; `None` if compression does not help.
    compressed: [OnceLock<Option<Bytes>>; 2],
    /// Its memory, while any part of it is in use.
    pub(crate) permit: AnswerPermit,
}

impl SubscribeAnswer {
    pub(crate) fn new(result: SubscribeResult) -> Self {
        Self::holding(result, None)
    }

    pub(crate) fn holding(result: SubscribeResult, permit: AnswerPermit) -> Self {
        Self { result, encoded: Default::default(), compressed: Default::default(), permit }
    }

    /// The two parts of the frame that answers a command: the session's own part and the shared
    /// part. `None` if JSON cannot represent it. For a session with compression only the shared
    /// part is compressed.
    pub(crate) fn frame(&self, encoding: Encoding, id: u32, deflate: Option<Deflate>) -> Option<(Bytes, Bytes)> {
        let rest = self.encoded[encoding as usize].get_or_init(|| Some(self.held(self.encode(encoding)?))).clone()?;
        let mut own = BytesMut::with_capacity(40);
        match encoding {
            Encoding::Json => own.extend_from_slice(format!("{{\"id\":{id}").as_bytes()),
            Encoding::Protobuf => {
                let id_len = key_len(ID) + encoded_len_varint(u64::from(id));
                encode_varint((id_len + rest.len()) as u64, &mut own);
                encode_key(ID, WireType::Varint, &mut own);
                encode_varint(u64::from(id), &mut own);
            }
        }
        if let Some(rest) = deflate.and_then(|deflate| self.compressed(encoding, deflate, &rest))
            && let Some(own) = stored(&own)
        {
            let mut head = websocket::message_head(encoding, true, own.len() + rest.len());
            head.extend_from_slice(&own);
            return Some((head.freeze(), rest));
        }
        let mut head = websocket::message_head(encoding, false, own.len() + rest.len());
        head.unsplit(own);
        Some((head.freeze(), rest))
    }

    fn compressed(&self, encoding: Encoding, deflate: Deflate, rest: &[u8]) -> Option<Bytes> {
        // It is kept for a while: drop the spare capacity of the compressor.
        let compressed = || deflate.message(rest).map(|out| self.held(Bytes::from(out.into_boxed_slice())));
        self.compressed[encoding as usize].get_or_init(compressed).clone()
    }

    fn held(&self, bytes: Bytes) -> Bytes {
        held(bytes, self.permit.as_slice())
    }

    fn encode(&self, encoding: Encoding) -> Option<Bytes> {
        match encoding {
            Encoding::Json => {
                let mut out = b",\"subscribe\":".to_vec();
                serde_json::to_writer(&mut out, &self.result).ok()?;
                out.push(b'}');
                Some(out.into())
            }
            Encoding::Protobuf => {
                let len = self.result.encoded_len();
                let mut out = BytesMut::with_capacity(len + 16);
                encode_key(SUBSCRIBE, WireType::LengthDelimited, &mut out);
                encode_varint(len as u64, &mut out);
                out.put(&self.result.encode_to_vec()[..]);
                Some(out.freeze())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::inflate;
    use crate::protocol::Payload;
    use crate::protocol::codec::encode_reply;
    use crate::protocol::message::{Publication, Reply};

    #[test]
    fn its_two_parts_make_the_whole_reply() {
        let publications =
            vec![Publication { data: b"{\"x\":1}".to_vec().into(), offset: 4, ..Publication::default() }; 30];
        let result = SubscribeResult {
            recoverable: true,
            epoch: "e".into(),
            offset: 33,
            publications,
            recovered: true,
            ..SubscribeResult::default()
        };
        let answer = SubscribeAnswer::new(result.clone());
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            for id in [1, 127, 128, u32::MAX] {
                let (head, rest) = answer.frame(encoding, id, None).expect("encoded");
                let mut whole = Payload::default();
                let reply = Reply { id, subscribe: Some(result.clone()), ..Reply::default() };
                encode_reply(encoding, &reply, &mut whole).expect("encoded");
                let whole = whole.bytes().to_vec();
                let framed = websocket::message(encoding, &whole);
                assert_eq!([head, rest.clone()].concat(), framed, "{encoding:?} {id}");
                assert_eq!(rest.as_ptr(), answer.frame(encoding, 9, None).expect("again").1.as_ptr(), "encoded once");
                let deflate = Some(Deflate { level: 1, min_bytes: 0, bytes_max: 1 << 20 });
                let (head, rest) = answer.frame(encoding, id, deflate).expect("encoded");
                let again = answer.frame(encoding, 9, deflate).expect("again").1;
                assert_eq!(rest.as_ptr(), again.as_ptr(), "compressed once");
                let short = [head, rest].concat();
                assert_eq!(short[0], framed[0] | 0x40);
                let at = if short[1] < 126 { 2 } else { 4 };
                assert_eq!(inflate(&short[at..], 10_000), Ok(whole), "{encoding:?} {id}");
                let deflate = Some(Deflate { level: 1, min_bytes: 10_000, bytes_max: 1 << 20 });
                let short = SubscribeAnswer::new(result.clone()).frame(encoding, id, deflate).expect("encoded");
                assert_eq!([short.0, short.1].concat(), framed, "too short to be compressed");
            }
        }
    }

    #[test]
    fn binary_data_has_no_frame_in_json() {
        let publications = vec![Publication { data: vec![0xff].into(), ..Publication::default() }];
        let answer = SubscribeAnswer::new(SubscribeResult { publications, ..SubscribeResult::default() });
        assert!(answer.frame(Encoding::Json, 1, None).is_none());
        assert!(answer.frame(Encoding::Protobuf, 1, None).is_some());
    }
}

//! Frames of a link: Protobuf messages, each after its length in four bytes.

pub mod channels;
pub mod members;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::{Message, Oneof};

use channels::{Published, Request, Response, Watch, WatchNumber, Watched};
use members::{MemberCheck, MemberDone, MemberEvent, MemberList};

use crate::tenure::Tenure;

/// Maximum length of a frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// Maximum length of a frame of a handshake, in bytes: a stranger may send it.
pub const HANDSHAKE_BYTES_MAX: usize = 128 << 10;

const HEAD_BYTES: usize = 4;

/// The protocol version of this build, and the oldest that it understands.
pub const VERSION: u32 = 5;
/// See [`VERSION`].
pub const VERSION_MIN: u32 = 5;

/// What a frame says.
#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    /// The first frame in each direction.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// The second frame in each direction.
    #[prost(message, tag = "2")]
    Proof(Proof),
    /// The other node refuses the link, and closes it.
    #[prost(message, tag = "3")]
    Refused(Refused),
    /// Sent each second; it is answered at once.
    #[prost(message, tag = "4")]
    Ping(Ping),
    /// The answer to a ping.
    #[prost(message, tag = "5")]
    Pong(Ping),
    /// A front watches a channel.
    #[prost(message, tag = "6")]
    Watch(Watch),
    /// A front ends a watch. It has no answer.
    #[prost(message, tag = "7")]
    Unwatch(WatchNumber),
    /// The answer to a watch.
    #[prost(message, tag = "8")]
    Watched(Watched),
    /// A publication in a watched channel.
    #[prost(message, tag = "9")]
    Published(Published),
    /// The history of a watched channel was removed.
    #[prost(message, tag = "10")]
    Cleared(WatchNumber),
    /// A request about a channel.
    #[prost(message, tag = "11")]
    Request(Request),
    /// The answer to a request.
    #[prost(message, tag = "12")]
    Response(Response),
    /// The members of a watched channel at a front.
    #[prost(message, tag = "13")]
    MemberList(MemberList),
    /// A member changed at a front.
    #[prost(message, tag = "14")]
    MemberEvent(MemberEvent),
    /// The home has taken a list or a change.
    #[prost(message, tag = "15")]
    MemberDone(MemberDone),
    /// The home announces a join or a leave to subscribers.
    #[prost(message, tag = "16")]
    Announcement(MemberEvent),
    /// A front compares its members with those that the home knows.
    #[prost(message, tag = "17")]
    MemberCheck(MemberCheck),
    /// The home wants the list of the members of a watched channel.
    #[prost(message, tag = "18")]
    MembersWanted(WatchNumber),
}

/// A frame.
#[derive(Clone, PartialEq, Message)]
pub struct Frame {
    /// What it says; `None`: a kind that this build does not know.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18")]
    pub kind: Option<Kind>,
}

/// Begins a link.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// The sender's protocol version.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The oldest protocol version that the sender understands.
    #[prost(uint32, tag = "2")]
    pub version_min: u32,
    /// The sender's name.
    #[prost(string, tag = "3")]
    pub node: String,
    /// 16 random bytes of the sender's process.
    #[prost(bytes = "bytes", tag = "4")]
    pub incarnation: Bytes,
    /// The number of this link among those that the sender opened, rising within an incarnation.
    #[prost(uint64, tag = "5")]
    pub number: u64,
    /// A hash of the sender's list of homes.
    #[prost(bytes = "bytes", tag = "6")]
    pub homes_hash: Bytes,
    /// Random bytes that the proof of the other side covers.
    #[prost(bytes = "bytes", tag = "7")]
    pub nonce: Bytes,
    /// The namespaces of the sender, sorted by name.
    #[prost(message, repeated, tag = "8")]
    pub namespaces: Vec<WireNamespace>,
    /// The sender's tenure.
    #[prost(message, required, tag = "9")]
    pub tenure: Tenure,
    /// The latest tenure of the receiver's node that the sender has seen.
    #[prost(message, required, tag = "10")]
    pub seen: Tenure,
}

/// A namespace of channels.
#[derive(Clone, PartialEq, Message)]
pub struct WireNamespace {
    /// What the names of its channels begin with; empty: those without a namespace.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A hash of the options that decide what a home stores.
    #[prost(fixed64, tag = "2")]
    pub stored: u64,
    /// A hash of all options.
    #[prost(fixed64, tag = "3")]
    pub all: u64,
}

/// Proves that its sender has the secret.
#[derive(Clone, PartialEq, Message)]
pub struct Proof {
    /// A MAC over both hellos.
    #[prost(bytes = "bytes", tag = "1")]
    pub proof: Bytes,
    /// In an answer: why the link is refused although both nodes have the secret. Empty: it is not.
    #[prost(string, tag = "2")]
    pub duplicate: String,
}

/// Why a link is refused.
#[derive(Clone, PartialEq, Message)]
pub struct Refused {
    /// For operators.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// A sign of life.
#[derive(Clone, PartialEq, Message)]
pub struct Ping {
    /// The sender's clock, microseconds. The answer repeats it.
    #[prost(uint64, tag = "1")]
    pub sent_us: u64,
}

impl From<Kind> for Frame {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl Kind {
    /// The frame with its length.
    pub fn to_bytes(self) -> Bytes {
        let frame = Frame::from(self);
        let len = frame.encoded_len();
        let mut out = BytesMut::with_capacity(HEAD_BYTES + len);
        out.put_u32(len as u32);
        frame.encode_raw(&mut out);
        out.freeze()
    }
}

/// Finds the frames in a stream of bytes, which begins with a handshake.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffered: BytesMut,
    is_established: bool,
}

impl FrameDecoder {
    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffered.extend_from_slice(bytes);
    }

    /// The handshake has ended: longer frames follow.
    pub fn established(&mut self) {
        self.is_established = true;
    }

    /// The next complete frame.
    ///
    /// # Errors
    /// The bytes are not a frame; the text is for operators.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, String> {
        let Some((head, rest)) = self.buffered.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let len = u32::from_be_bytes(*head) as usize;
        let len_max = if self.is_established { FRAME_BYTES_MAX } else { HANDSHAKE_BYTES_MAX };
        if len > len_max {
            return Err(format!("a frame of {len} bytes is above the bound of {len_max}"));
        }
        if rest.len() < len {
            return Ok(None);
        }
        self.buffered.advance(HEAD_BYTES);
        let frame = self.buffered.split_to(len).freeze();
        Frame::decode(frame).map(Some).map_err(|e| format!("a frame cannot be decoded: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ping(sent_us: u64) -> Kind {
        Kind::Ping(Ping { sent_us })
    }

    proptest! {
        #[test]
        fn frames_are_found_however_the_bytes_are_cut(times in proptest::collection::vec(any::<u64>(), 0..20), cut in 1usize..30) {
            let bytes: Vec<u8> = times.iter().flat_map(|time| ping(*time).to_bytes()).collect();
            let (mut decoder, mut found) = (FrameDecoder::default(), Vec::new());
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().expect("frames") {
                    found.push(frame);
                }
            }
            let sent: Vec<Frame> = times.into_iter().map(|time| ping(time).into()).collect();
            prop_assert_eq!(found, sent);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut decoder = FrameDecoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }
    }

    #[test]
    fn a_length_above_the_bound_is_refused_before_its_bytes_arrive() {
        for (established, max) in [(false, HANDSHAKE_BYTES_MAX), (true, FRAME_BYTES_MAX)] {
            for (len, refused) in [(max, false), (max + 1, true)] {
                let mut decoder = FrameDecoder::default();
                if established {
                    decoder.established();
                }
                decoder.push(&(len as u32).to_be_bytes());
                let found = decoder.next_frame();
                assert_eq!(found.is_err_and(|why| why.contains("above the bound")), refused, "{len}");
            }
        }
    }
}

//! Shared by the gRPC server API and the gRPC proxies: a codec of raw bytes, and fields of both.
//!
//! tonic implements the protocol over hyper's HTTP/2; `prost` and the message tables define the
//! bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::options::{Bool, Overrides};

/// Declares messages by their fields with `prost` attributes.
macro_rules! messages {
    ($($(#[doc = $doc:expr])* $name:ident { $($field:ident: $type:ty = [$($prost:tt)*],)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub(crate) struct $name {
            $(#[prost($($prost)*)] pub(crate) $field: $type,)*
        }
    )*};
}
pub(crate) use messages;

/// A codec that passes messages on as bytes.
#[derive(Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Appends a text, bytes or message field; the three have the same encoding.
pub(crate) fn put_field(tag: u32, value: &[u8], to: &mut Vec<u8>) {
    prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, to);
    prost::encoding::encode_varint(value.len() as u64, to);
    to.put_slice(value);
}

messages! {
    BoolValue {
        value: bool = [bool, tag = "1"],
    }
}

/// Overrides of namespace options, with the same fields in API requests and in proxy answers.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OverrideMessage {
    #[prost(message, optional, tag = "1")]
    presence: Option<BoolValue>,
    #[prost(message, optional, tag = "2")]
    join_leave: Option<BoolValue>,
    #[prost(message, optional, tag = "3")]
    force_recovery: Option<BoolValue>,
    #[prost(message, optional, tag = "4")]
    force_positioning: Option<BoolValue>,
    #[prost(message, optional, tag = "5")]
    force_push_join_leave: Option<BoolValue>,
}

impl From<OverrideMessage> for Overrides {
    fn from(message: OverrideMessage) -> Self {
        let bool = |value: Option<BoolValue>| value.map(|BoolValue { value }| Bool { value });
        Self {
            presence: bool(message.presence),
            join_leave: bool(message.join_leave),
            force_recovery: bool(message.force_recovery),
            force_positioning: bool(message.force_positioning),
            force_push_join_leave: bool(message.force_push_join_leave),
        }
    }
}

/// The Base64 text if there is one, else the bytes in Base64.
pub(crate) fn base64_of(base64: String, bytes: &[u8]) -> String {
    if base64.is_empty() { STANDARD.encode(bytes) } else { base64 }
}

/// An expiry in seconds since the Unix epoch, which must not be negative.
pub(crate) fn expire_at(seconds: i64) -> Result<u64, String> {
    u64::try_from(seconds).map_err(|_| "expire_at is negative".to_owned())
}

//! gRPC: the server API as Centrifugo's `CentrifugoApi`, and what it has in common with the proxies that speak it.
//!
//! tonic speaks the protocol over hyper's HTTP/2; which bytes a message is, is up to `prost` and the tables here.

pub(crate) mod config;
mod door;
pub(crate) mod fuzzing;
pub(crate) mod message;

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

pub use config::{GrpcApiConfig, GrpcTlsConfig};
pub(crate) use door::ERROR_MODE;
pub use door::GrpcDoor;

/// Names of metadata that gRPC keeps to itself, and whose values it takes for Base64.
pub(crate) const RESERVED_PREFIX: &str = "grpc-";
pub(crate) const BINARY_SUFFIX: &str = "-bin";

/// Declares messages: fields with what `prost` says of them.
macro_rules! messages {
    ($($(#[doc = $doc:expr])* $name:ident { $($field:ident: $type:ty = [$($prost:tt)*],)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct $name {
            $(#[prost($($prost)*)] pub(super) $field: $type,)*
        }
    )*};
}
pub(crate) use messages;

/// Hands messages on as the bytes that they are.
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

/// Appends a field that is text, bytes or a message, which are the same on the wire.
pub(crate) fn put_field(tag: u32, value: &[u8], to: &mut Vec<u8>) {
    prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, to);
    prost::encoding::encode_varint(value.len() as u64, to);
    to.put_slice(value);
}

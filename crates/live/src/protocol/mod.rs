//! Centrifugo's client protocol, version 2.

pub mod codec;
pub mod codes;
pub(crate) mod json;
pub mod message;
mod payload;
mod transport;

pub use codec::{Encoding, Malformed, decode_commands};
pub use codes::{ClientError, Disconnected};
pub use payload::Payload;
pub use transport::Transport;

/// The text of an epoch in the client protocol.
pub(crate) fn epoch_text(epoch: u32) -> String {
    format!("{epoch:08x}")
}

/// The epoch of a text in the client protocol; 0, which no channel has, if it is not one.
pub(crate) fn parse_epoch(text: &str) -> u32 {
    u32::from_str_radix(text, 16).unwrap_or_default()
}

//! Centrifugo's client protocol, version 2.

pub mod codec;
pub mod codes;
pub(crate) mod json;
pub mod message;
mod transport;

pub use codec::{Encoding, Malformed, decode_commands};
pub use codes::{ClientError, Disconnected};
pub use transport::Transport;

/// The text of an epoch in the client protocol.
pub(crate) fn epoch_text(epoch: u32) -> String {
    format!("{epoch:08x}")
}

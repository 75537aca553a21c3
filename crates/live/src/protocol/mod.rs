//! Centrifugo's client protocol, version 2.

pub mod codec;
pub mod codes;
pub mod message;

pub use codec::{Encoding, Malformed, decode_commands};
pub use codes::{ClientError, Disconnected};

//! Compression of WebSocket messages: permessage-deflate (RFC 7692), without context between
//! messages.
//!
//! So a session owns neither a compressor nor a window, and a shared message is compressed once for
//! all sessions. The compressor's state belongs to the thread.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::config::WebSocketConfig;

/// The end of each flushed message, which is not sent.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Initial output buffer, bytes; it grows with the output.
const ROOM: usize = 256;

/// Compression for a session whose client accepts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deflate {
    /// Level, from 1 (fast) to 9 (small).
    pub level: u8,
    /// Messages of at most this many bytes are sent uncompressed.
    pub min_bytes: u32,
    /// Messages of more bytes are sent uncompressed too, because compressing blocks all other
    /// sessions of the thread.
    pub bytes_max: u32,
}

/// A violation by the client, with its close code from RFC 6455.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// The bytes violate the standard.
    Protocol,
    /// The message exceeds the server's limit.
    TooBig,
}

impl Violation {
    /// The close code.
    pub fn code(self) -> u16 {
        match self {
            Self::Protocol => 1002,
            Self::TooBig => 1009,
        }
    }
}

thread_local! {
    /// The compressor and its level.
    static COMPRESSOR: RefCell<Option<(u8, Compress)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

impl Deflate {
    /// The configured compression, for messages of at most `bytes_max` bytes; `None` if it is
    /// disabled.
    pub fn new(config: &WebSocketConfig, bytes_max: usize) -> Option<Self> {
        config.compression.then(|| Self {
            level: config.compression_level,
            min_bytes: config.compression_min_size,
            bytes_max: u32::try_from(bytes_max).unwrap_or(u32::MAX),
        })
    }

    /// A compressed message; `None` if compression does not help.
    pub fn message(self, payload: &[u8]) -> Option<Vec<u8>> {
        if payload.len() <= self.min_bytes as usize || payload.len() > self.bytes_max as usize {
            return None;
        }
        self.part(payload).filter(|out| out.len() < payload.len())
    }

    /// A compressed part of a message, which may follow any other part.
    pub fn part(self, payload: &[u8]) -> Option<Vec<u8>> {
        COMPRESSOR.with_borrow_mut(|kept| {
            let (level, compressor) = kept.get_or_insert_with(|| (self.level, new_compressor(self.level)));
            if *level != self.level {
                (*level, *compressor) = (self.level, new_compressor(self.level));
            }
            compressor.reset();
            // Incompressible data grows by some bytes for each 16 KiB.
            let mut out = Vec::with_capacity(payload.len() + payload.len() / 1000 + 64);
            compressor.compress_vec(payload, &mut out, FlushCompress::Sync).ok()?;
            let whole = compressor.total_in() == payload.len() as u64 && out.len() < out.capacity();
            if !whole || !out.ends_with(&TAIL) {
                return None;
            }
            out.truncate(out.len() - TAIL.len());
            Some(out)
        })
    }
}

fn new_compressor(level: u8) -> Compress {
    Compress::new(Compression::new(level.into()), false)
}

/// An uncompressed part of a compressed message, of at most 64 KiB.
pub fn stored(payload: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(payload.len()).ok()?;
    let mut out = vec![0];
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&(!len).to_le_bytes());
    out.extend_from_slice(payload);
    Some(out)
}

/// Decompresses a message of a client. It uses at most twice `max` bytes of memory, whatever the
/// message would expand to.
///
/// # Errors
/// When the message is invalid, or larger than `max` bytes.
pub fn inflate(payload: &[u8], max: usize) -> Result<Vec<u8>, Violation> {
    let mut input = Vec::with_capacity(payload.len() + TAIL.len());
    input.extend_from_slice(payload);
    input.extend_from_slice(&TAIL);
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = kept.get_or_insert_with(|| Decompress::new(false));
        decompressor.reset(false);
        let mut out = Vec::new();
        loop {
            let room = out.len().max(ROOM).min((max + 1).saturating_sub(out.len()));
            out.reserve_exact(room);
            let rest = &input[decompressor.total_in() as usize..];
            let status =
                decompressor.decompress_vec(rest, &mut out, FlushDecompress::Sync).map_err(|_| Violation::Protocol)?;
            if out.len() > max {
                return Err(Violation::TooBig);
            }
            let rest = &input[decompressor.total_in() as usize..];
            match status {
                // A compressor without flush ends its last block like a stream. An empty block
                // follows, or the last block was the empty one.
                Status::StreamEnd if matches!(rest, [] | [0, 0, 0xff, 0xff] | [0, 0, 0, 0xff, 0xff]) => return Ok(out),
                Status::StreamEnd => return Err(Violation::Protocol),
                Status::Ok | Status::BufError if out.len() == out.capacity() => {}
                // The buffer has space left and all input is used: the message is complete.
                Status::Ok | Status::BufError if rest.is_empty() => return Ok(out),
                Status::Ok | Status::BufError => return Err(Violation::Protocol),
            }
        }
    })
}

/// The answer to the offers in `Sec-WebSocket-Extensions`; `None` if no offer is acceptable.
pub fn agreed<'a>(offers: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    offers.flat_map(|value| value.split(',')).find_map(agreed_on)
}

fn agreed_on(offer: &str) -> Option<&'static str> {
    let mut parts = offer.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case("permessage-deflate") {
        return None;
    }
    let (mut seen, mut bounds_server) = (Vec::new(), false);
    for part in parts {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim().trim_matches('"'))),
            None => (part, None),
        };
        let bits = |value: &str| matches!(value, "8" | "9" | "10" | "11" | "12" | "13" | "14" | "15");
        let valid = match (name, value) {
            ("server_no_context_takeover" | "client_no_context_takeover" | "client_max_window_bits", None) => true,
            ("client_max_window_bits", Some(value)) => bits(value),
            // The compressor supports only the largest window.
            ("server_max_window_bits", Some(value)) => {
                bounds_server = true;
                value == "15"
            }
            _ => false,
        };
        if !valid || seen.contains(&name) {
            return None;
        }
        seen.push(name);
    }
    Some(match bounds_server {
        false => "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
        true => "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=15",
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FAST: Deflate = Deflate { level: 1, min_bytes: 0, bytes_max: u32::MAX };

    #[test]
    fn messages_survive_compression() {
        // Examples of RFC 7692, 7.2.3.
        for hello in [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ] {
            assert_eq!(inflate(hello, 5), Ok(b"Hello".to_vec()), "{hello:x?}");
            assert_eq!(inflate(hello, 4), Err(Violation::TooBig), "{hello:x?}");
        }
        for empty in [&[0][..], &[1], &[3, 0], &[0x71]] {
            assert_eq!(inflate(empty, 0), Ok(Vec::new()), "{empty:x?}");
        }
        for level in 1..=9 {
            let long = r#"{"push":{"channel":"room","pub":{"data":{"x":1}}}}"#.repeat(3000);
            let short = Deflate { level, ..FAST }.message(long.as_bytes()).expect("compressed");
            assert!(short.len() < long.len() / 20);
            assert_eq!(inflate(&short, long.len()), Ok(long.clone().into_bytes()));
            assert_eq!(inflate(&short, long.len() - 1), Err(Violation::TooBig));
        }
    }

    #[test]
    fn incompressible_messages_are_not_compressed() {
        assert_eq!(FAST.message(b"{}"), None);
        assert_eq!(FAST.message(b""), None);
        let noise: Vec<u8> = (0..70_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let part = FAST.part(&noise).expect("a part is always compressed");
        assert_eq!(inflate(&part, noise.len()), Ok(noise));
        let text = [b'x'; 100];
        assert!(Deflate { min_bytes: 99, ..FAST }.message(&text).is_some());
        assert_eq!(Deflate { min_bytes: 100, ..FAST }.message(&text), None);
        assert!(Deflate { bytes_max: 100, ..FAST }.message(&text).is_some());
        assert_eq!(Deflate { bytes_max: 99, ..FAST }.message(&text), None);
    }

    #[test]
    fn parts_can_be_concatenated() {
        let rest = b",\"subscribe\":{\"publications\":[]}}".repeat(20);
        let own = b"{\"id\":7";
        let message = [stored(own).expect("short"), FAST.part(&rest).expect("compressed")].concat();
        assert_eq!(inflate(&message, 10_000), Ok([&own[..], &rest].concat()));
        assert_eq!(stored(&[0; 65_536]), None);
    }

    #[test]
    fn a_decompression_bomb_is_refused_within_the_bound() {
        let bomb = Deflate { level: 9, ..FAST }.message(&vec![0; 64 << 20]).expect("compressed");
        assert!(bomb.len() < 70_000, "{}", bomb.len());
        assert_eq!(inflate(&bomb, 65_536), Err(Violation::TooBig));
    }

    #[test]
    fn invalid_deflate_data_is_refused() {
        let hello = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        for bad in [
            // An unknown block type, and a length that differs from its complement.
            &[0x06][..],
            &[0x00, 0x05, 0x00, 0x05, 0x00, 0x48],
            // Bytes behind the end.
            &[&hello[..], b"more"].concat(),
            &[hello, hello].concat(),
        ] {
            assert_eq!(inflate(bad, 1000), Err(Violation::Protocol), "{bad:x?}");
        }
        // The next message is unaffected.
        assert_eq!(inflate(&hello, 10), Ok(b"Hello".to_vec()));
    }

    #[test]
    fn messages_do_not_leak_into_each_other() {
        let secret = FAST.message(&[b'S'; 70_000]).expect("compressed");
        assert!(inflate(&secret, 70_000).is_ok());
        // A reference to three bytes before the message: from the thread's window.
        let before = inflate(&[0x02, 0x02, 0, 0], 100);
        assert!(before.is_err() || before == Ok(vec![0; 3]), "{before:?}");
    }

    #[test]
    fn offers_are_negotiated() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        for offer in [
            "permessage-deflate",
            "permessage-deflate; client_max_window_bits",
            "Permessage-Deflate;client_max_window_bits=10 ; server_no_context_takeover;client_no_context_takeover",
            "x-webkit-deflate-frame, permessage-deflate; client_max_window_bits=\"15\"",
            "permessage-deflate; server_max_window_bits=10, permessage-deflate",
            "permessage-deflate; unknown, permessage-deflate",
        ] {
            assert_eq!(agreed([offer].into_iter()), Some(plain), "{offer}");
        }
        let bounded = agreed(["permessage-deflate; server_max_window_bits=15"].into_iter()).expect("agreed");
        assert!(bounded.ends_with("; server_max_window_bits=15"));
        assert_eq!(agreed(["other", "permessage-deflate"].into_iter()), Some(plain), "in two headers");
        for offer in [
            "",
            "other",
            "permessage-deflate; server_max_window_bits=10",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; client_max_window_bits=7",
            "permessage-deflate; client_max_window_bits=16",
            "permessage-deflate; client_max_window_bits=08",
            "permessage-deflate; server_no_context_takeover=1",
            "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
            "permessage-deflate; unknown",
        ] {
            assert_eq!(agreed([offer].into_iter()), None, "{offer}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_inflated_without_panic_and_within_the_bound(bytes: Vec<u8>, max in 0usize..5000) {
            if let Ok(out) = inflate(&bytes, max) {
                prop_assert!(out.len() <= max);
            }
        }

        #[test]
        fn any_message_survives_compression(bytes: Vec<u8>, level in 1u8..=9) {
            let part = Deflate { level, ..FAST }.part(&bytes).expect("compressed");
            prop_assert_eq!(inflate(&part, bytes.len()), Ok(bytes));
        }
    }
}

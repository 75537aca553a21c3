//! Compression of WebSocket messages: permessage-deflate (RFC 7692), without context between messages.
//!
//! So a session owns neither compressor nor window, and what goes to many is compressed once for all of them. The state that
//! compressing takes is the thread's.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::config::WebSocketConfig;
use crate::websocket::Violation;

/// What ends each message of the compressor, and is not sent.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Compressed messages begin with this much room for what comes out; more is made as it comes.
const ROOM: usize = 256;

/// How messages to a session are compressed that takes them so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deflate {
    /// From 1, fast, to 9, small.
    pub level: u8,
    /// Messages of so many bytes or fewer go as they are.
    pub min_bytes: u32,
    /// And so do those of more: all other sessions of the thread wait meanwhile.
    pub bytes_max: u32,
}

thread_local! {
    /// With the level that it was made for.
    static COMPRESSOR: RefCell<Option<(u8, Compress)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

impl Deflate {
    /// As it is configured, for messages of so many bytes at most; `None` when there is no compression.
    pub fn new(config: &WebSocketConfig, bytes_max: usize) -> Option<Self> {
        config.compression.then(|| Self {
            level: config.compression_level,
            min_bytes: config.compression_min_size,
            bytes_max: u32::try_from(bytes_max).unwrap_or(u32::MAX),
        })
    }

    /// A message, compressed; `None` when it is better sent as it is.
    pub fn message(self, payload: &[u8]) -> Option<Vec<u8>> {
        if payload.len() <= self.min_bytes as usize || payload.len() > self.bytes_max as usize {
            return None;
        }
        self.part(payload).filter(|out| out.len() < payload.len())
    }

    /// A part of a message: compressed by itself, so that it may stand behind any other.
    pub fn part(self, payload: &[u8]) -> Option<Vec<u8>> {
        COMPRESSOR.with_borrow_mut(|kept| {
            let (level, compressor) = kept.get_or_insert_with(|| (self.level, made(self.level)));
            if *level != self.level {
                (*level, *compressor) = (self.level, made(self.level));
            }
            compressor.reset();
            // What cannot be compressed becomes longer by some bytes for each 16 KiB.
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

fn made(level: u8) -> Compress {
    Compress::new(Compression::new(level.into()), false)
}

/// A part of a message that is not compressed, in the form of one that is; of 64 KiB at most.
pub fn stored(payload: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(payload.len()).ok()?;
    let mut out = vec![0];
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&(!len).to_le_bytes());
    out.extend_from_slice(payload);
    Some(out)
}

/// A message that a client has compressed. It takes no more memory than twice what a message may have, whatever it would come to.
///
/// # Errors
/// When it is not one, or larger than `max` bytes.
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
                // A compressor that cannot flush ends its last block as a stream ends; an empty one follows, or that was the empty one.
                Status::StreamEnd if matches!(rest, [] | [0, 0, 0xff, 0xff] | [0, 0, 0, 0xff, 0xff]) => return Ok(out),
                Status::StreamEnd => return Err(Violation::Protocol),
                Status::Ok | Status::BufError if out.len() == out.capacity() => {}
                // It has room, and no more to say.
                Status::Ok | Status::BufError if rest.is_empty() => return Ok(out),
                Status::Ok | Status::BufError => return Err(Violation::Protocol),
            }
        }
    })
}

/// The answer to what a client offers in `Sec-WebSocket-Extensions`; `None` when nothing of it can be agreed on.
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
            // The compressor has one window, the largest.
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
    fn messages_come_back_as_they_were() {
        // From RFC 7692, 7.2.3: as compressors may say it.
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
    fn what_does_not_get_smaller_goes_as_it_is() {
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
    fn parts_stand_behind_each_other() {
        let rest = b",\"subscribe\":{\"publications\":[]}}".repeat(20);
        let own = b"{\"id\":7";
        let message = [stored(own).expect("short"), FAST.part(&rest).expect("compressed")].concat();
        assert_eq!(inflate(&message, 10_000), Ok([&own[..], &rest].concat()));
        assert_eq!(stored(&[0; 65_536]), None);
    }

    #[test]
    fn a_bomb_is_an_error_and_takes_no_memory() {
        let bomb = Deflate { level: 9, ..FAST }.message(&vec![0; 64 << 20]).expect("compressed");
        assert!(bomb.len() < 70_000, "{}", bomb.len());
        assert_eq!(inflate(&bomb, 65_536), Err(Violation::TooBig));
    }

    #[test]
    fn what_is_no_deflate_is_refused() {
        let hello = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        for bad in [
            // A kind of block that is none, a length that is not its complement's,
            &[0x06][..],
            &[0x00, 0x05, 0x00, 0x05, 0x00, 0x48],
            // and more behind the end.
            &[&hello[..], b"more"].concat(),
            &[hello, hello].concat(),
        ] {
            assert_eq!(inflate(bad, 1000), Err(Violation::Protocol), "{bad:x?}");
        }
        // The next one is not concerned.
        assert_eq!(inflate(&hello, 10), Ok(b"Hello".to_vec()));
    }

    #[test]
    fn nothing_of_a_message_is_found_in_the_next_one() {
        let secret = FAST.message(&[b'S'; 70_000]).expect("compressed");
        assert!(inflate(&secret, 70_000).is_ok());
        // Three bytes from before the beginning of the message: of the thread's window.
        let before = inflate(&[0x02, 0x02, 0, 0], 100);
        assert!(before.is_err() || before == Ok(vec![0; 3]), "{before:?}");
    }

    #[test]
    fn an_offer_is_agreed_on_or_not() {
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
        fn any_message_comes_back(bytes: Vec<u8>, level in 1u8..=9) {
            let part = Deflate { level, ..FAST }.part(&bytes).expect("compressed");
            prop_assert_eq!(inflate(&part, bytes.len()), Ok(bytes));
        }
    }
}

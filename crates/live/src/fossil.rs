//! Deltas between publications in Fossil's format, which Centrifugo's SDKs apply
//! (fossil-scm.org/home/doc/trunk/www/delta_format.wiki).
//!
//! ```text
//! delta   = length "\n" (copy | insert)* checksum ";"
//! copy    = length "@" offset ","           from the source
//! insert  = length ":" bytes
//! ```

use std::collections::HashMap;

/// Bytes of a block. Shorter common parts are not found.
const BLOCK: usize = 16;

const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~";

fn put_int(out: &mut Vec<u8>, mut value: u32) {
    let mut digits = [0; 6];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = DIGITS[(value & 63) as usize];
        value >>= 6;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn checksum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum = words.iter().fold(0u32, |sum, word| sum.wrapping_add(u32::from_be_bytes(*word)));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum.wrapping_add(u32::from_be_bytes(last))
}

fn insert(out: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_int(out, bytes.len() as u32);
        out.push(b':');
        out.extend_from_slice(bytes);
    }
}

/// The delta from `source` to `target`. Both must be smaller than 4 GiB.
pub fn create(source: &[u8], target: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    put_int(&mut out, target.len() as u32);
    out.push(b'\n');
    let (blocks, _) = source.as_chunks::<BLOCK>();
    let mut places: HashMap<&[u8; BLOCK], usize> = HashMap::with_capacity(blocks.len());
    for (i, block) in blocks.iter().enumerate() {
        places.entry(block).or_insert(i * BLOCK);
    }
    // The delta covers the target up to `done`; `at` is the next position to compare.
    let (mut done, mut at) = (0, 0);
    while let Some(block) = target.get(at..).and_then(|rest| rest.first_chunk::<BLOCK>()) {
        let Some(&place) = places.get(block) else {
            at += 1;
            continue;
        };
        let back = source[..place].iter().rev().zip(target[done..at].iter().rev()).take_while(|(a, b)| a == b).count();
        let forward = source[place..].iter().zip(&target[at..]).take_while(|(a, b)| a == b).count();
        insert(&mut out, &target[done..at - back]);
        put_int(&mut out, (back + forward) as u32);
        out.push(b'@');
        put_int(&mut out, (place - back) as u32);
        out.push(b',');
        at += forward;
        done = at;
    }
    insert(&mut out, &target[done..]);
    put_int(&mut out, checksum(target));
    out.push(b';');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn int(delta: &mut &[u8]) -> u32 {
        let mut value = 0;
        while let Some((&byte, rest)) = delta.split_first()
            && let Some(digit) = DIGITS.iter().position(|d| *d == byte)
        {
            value = value << 6 | digit as u32;
            *delta = rest;
        }
        value
    }

    fn apply(source: &[u8], mut delta: &[u8]) -> Vec<u8> {
        let len = int(&mut delta);
        delta = &delta[1..];
        let mut out = Vec::new();
        loop {
            let value = int(&mut delta);
            let (&kind, rest) = delta.split_first().expect("more");
            delta = rest;
            match kind {
                b'@' => {
                    let from = int(&mut delta) as usize;
                    delta = &delta[1..];
                    out.extend_from_slice(&source[from..from + value as usize]);
                }
                b':' => {
                    out.extend_from_slice(&delta[..value as usize]);
                    delta = &delta[value as usize..];
                }
                _ => {
                    assert_eq!((out.len() as u32, value, delta.len()), (len, checksum(&out), 0));
                    return out;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn deltas_make_the_target_from_the_source(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6),
            order in proptest::collection::vec(0usize..6, 0..8),
            extra: Vec<u8>,
        ) {
            let source = pieces.concat();
            let mut target = Vec::new();
            for i in order {
                target.extend(pieces.get(i).into_iter().flatten());
                target.extend(extra.iter().take(i));
            }
            prop_assert_eq!(apply(&source, &create(&source, &target)), target.clone());
        }
    }

    #[test]
    fn common_parts_are_not_sent_again() {
        let source = b"{\"input\": \"test message which is long enough for a difference\", \"n\": 1}";
        let mut target = source.to_vec();
        target[source.len() - 2] = b'2';
        let delta = create(source, &target);
        assert!(delta.len() < 40, "{}", String::from_utf8_lossy(&delta));
        assert_eq!(apply(source, &delta), target);
    }
}

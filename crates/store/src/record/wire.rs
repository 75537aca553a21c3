//! Encoding and decoding of the store's bytes: LEB128 integers and length-prefixed strings.
//! Decoding never panics.

use std::collections::BTreeMap;

use steadfast_log::Location;

/// Bytes that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Appends `value`, seven bits a byte, low ones first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends the count and the pairs.
pub(crate) fn put_map(out: &mut Vec<u8>, map: &BTreeMap<String, String>) {
    put_varint(out, map.len() as u64);
    for (name, value) in map {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

/// Appends a location.
pub(crate) fn put_location(out: &mut Vec<u8>, at: &Location) {
    put_varint(out, u64::from(at.extent));
    put_varint(out, at.epoch);
    put_varint(out, u64::from(at.offset));
    put_varint(out, u64::from(at.head_len));
    put_varint(out, u64::from(at.body_len));
}

/// Decodes from the front of a byte slice.
#[derive(Clone, Copy)]
pub(crate) struct Dec<'a>(pub(crate) &'a [u8]);

impl<'a> Dec<'a> {
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed("record: cut short"))?;
        self.0 = rest;
        Ok(first)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed("record: cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed("record: cut short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("record: integer beyond 64 bits"))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed("record: integer beyond 32 bits"))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        u16::try_from(self.varint()?).map_err(|_| Malformed("record: integer beyond 16 bits"))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.varint()?;
        self.take(usize::try_from(len).map_err(|_| Malformed("record: length"))?)
    }

    pub(crate) fn str(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("record: text that is not UTF-8"))
    }

    pub(crate) fn map(&mut self) -> Result<BTreeMap<String, String>, Malformed> {
        let count = self.varint()?;
        let mut map = BTreeMap::new();
        for _ in 0..count {
            let name = self.str()?.to_owned();
            map.insert(name, self.str()?.to_owned());
        }
        Ok(map)
    }

    /// Skips a map without building it.
    pub(crate) fn skip_map(&mut self) -> Result<(), Malformed> {
        for _ in 0..self.varint()? {
            self.bytes()?;
            self.bytes()?;
        }
        Ok(())
    }

    pub(crate) fn location(&mut self) -> Result<Location, Malformed> {
        Ok(Location {
            extent: self.u32()?,
            epoch: self.varint()?,
            offset: self.u32()?,
            head_len: self.u32()?,
            body_len: self.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_come_back(value: u64, tail: Vec<u8>) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            out.extend_from_slice(&tail);
            let mut dec = Dec(&out);
            prop_assert_eq!(dec.varint(), Ok(value));
            prop_assert_eq!(dec.0, &tail[..]);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = Dec(&bytes).map();
            let _ = Dec(&bytes).location();
            let _ = Dec(&bytes).skip_map();
        }
    }

    #[test]
    fn an_integer_of_more_than_64_bits_is_refused() {
        assert!(Dec(&[0xff; 10]).varint().is_err());
        assert!(Dec(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).varint() == Ok(u64::MAX));
    }
}

//! Labels: blocks that identify the role of a disk.
//!
//! A label uses only the first 128 bytes of its block. These lie within one sector, so a torn write
//! leaves either the old or the new label. Mark, version and checksum have the same offsets in
//! every version.

use crate::BLOCK;

/// Bytes with content. The last four are the CRC32C of the preceding bytes.
pub(crate) const LABEL_LEN: usize = 128;
/// The first version of every label.
pub(crate) const VERSION_1: u32 = 1;

/// The text of a UUID.
pub(crate) fn uuid_text(id: &[u8; 16]) -> String {
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A random UUID (version 4).
pub(crate) fn new_uuid(env: &steadfast_flow::Env) -> [u8; 16] {
    let mut id = [0u8; 16];
    id[..8].copy_from_slice(&env.random_u64().to_le_bytes());
    id[8..].copy_from_slice(&env.random_u64().to_le_bytes());
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// The content of a label block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found<T> {
    /// Zeros.
    Blank,
    /// The label.
    Label(T),
    /// The mark is right, but the label is damaged.
    Damaged,
    /// A label of another version of the format.
    Version(u32),
    /// Other data.
    Other,
}

impl<T> Found<T> {
    /// Converts the label.
    pub(crate) fn map<U>(self, with: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Self::Label(label) => Found::Label(with(label)),
            Self::Blank => Found::Blank,
            Self::Damaged => Found::Damaged,
            Self::Version(version) => Found::Version(version),
            Self::Other => Found::Other,
        }
    }
}

/// A block that is being encoded as a label, or decoded as one.
pub(crate) struct Label(pub(crate) [u8; BLOCK]);

impl Label {
    /// Creates an empty label of the given format version.
    pub(crate) fn new(magic: [u8; 8], version: u32) -> Self {
        let mut label = Self([0; BLOCK]);
        label.put(0, &magic);
        label.put(8, &version.to_le_bytes());
        label
    }

    /// Sets a field.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Adds the checksum and returns the block.
    pub(crate) fn seal(mut self) -> [u8; BLOCK] {
        let crc = crc32c(&self.0[..LABEL_LEN - 4]);
        self.put(LABEL_LEN - 4, &crc.to_le_bytes());
        self.0
    }
}

/// Decodes a block. `read` gets the fields and the version of a label whose mark and checksum are
/// right and whose version is at most `newest`.
pub(crate) fn look<T>(block: &[u8], magic: [u8; 8], newest: u32, read: impl FnOnce(&[u8], u32) -> T) -> Found<T> {
    if block.len() < LABEL_LEN || block[..8] != magic {
        return if block.iter().all(|b| *b == 0) { Found::Blank } else { Found::Other };
    }
    if crc32c(&block[..LABEL_LEN - 4]) != u32_at(block, LABEL_LEN - 4) {
        return Found::Damaged;
    }
    match u32_at(block, 8) {
        version if (VERSION_1..=newest).contains(&version) => Found::Label(read(block, version)),
        other => Found::Version(other),
    }
}

pub(crate) fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// Reads a little-endian field of a block that is long enough.
pub(crate) fn field<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&block[at..at + N]);
    out
}

pub(crate) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(block, at))
}

pub(crate) fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(block, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_recognised_by_mark_version_and_checksum() {
        let make = || Label::new(*b"STEADXYZ", 2);
        let read = |b: &[u8], version: u32| (u64_at(b, 16), version);
        let mut label = make();
        label.put(16, &7u64.to_le_bytes());
        let block = label.seal();
        assert_eq!(look(&block, *b"STEADXYZ", 2, read), Found::Label((7, 2)));
        assert_eq!(look(&block, *b"STEADABC", 2, read), Found::Other);
        assert_eq!(look(&[0; BLOCK], *b"STEADXYZ", 2, read), Found::Blank);
        let mut bad = block;
        bad[20] ^= 1;
        assert_eq!(look(&bad, *b"STEADXYZ", 2, read), Found::Damaged);
        let mut newer = make();
        newer.put(8, &3u32.to_le_bytes());
        assert_eq!(look(&newer.seal(), *b"STEADXYZ", 2, read), Found::Version(3));
        assert_eq!(look(&[1; 16], *b"STEADXYZ", 2, read), Found::Other);
    }

    #[test]
    fn uuids_read_as_usual() {
        assert_eq!(uuid_text(&std::array::from_fn(|i| i as u8)), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}

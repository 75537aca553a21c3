//! Identifies the content of a disk, so that foreign data is never overwritten.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use serde::Serialize;
use steadfast_disk::{BLOCK, MARK_OFFSETS, Mark, mark};
use steadfast_log::format::{FormatError, SUPERBLOCK_OFFSETS, Superblock};

use super::signatures::{END_BYTES, START_BYTES, at_end, at_start};

/// The content of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "holds")]
pub enum Contents {
    /// There is no such file or device.
    Absent,
    /// Only zeros in the sampled places.
    Blank,
    /// A pool, readable by itself.
    Pool {
        /// Its UUID.
        pool: String,
        /// Bytes of an extent.
        extent_bytes: u64,
        /// Time of creation, milliseconds since the Unix epoch.
        created_ms: u64,
        /// UUID of the super-disk whose durable leg this is, if any.
        pair: Option<String>,
        /// Number of times that the super-disk has been opened.
        generation: Option<u64>,
    },
    /// One disk of a stripe.
    StripeMember {
        /// UUID of the stripe.
        stripe: String,
        /// Index in the stripe, from 0.
        index: u32,
        /// Number of disks of the stripe.
        count: u32,
    },
    /// The fast leg of a super-disk.
    FastLeg {
        /// UUID of the super-disk.
        pair: String,
        /// Generation in which it was last used.
        generation: u64,
    },
    /// Foreign or unknown data.
    Foreign {
        /// Description.
        what: String,
    },
    /// The disk cannot be read.
    Unreadable {
        /// Reason.
        why: String,
    },
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("nothing: it does not exist"),
            Self::Blank => f.write_str("nothing: it is blank"),
            Self::Pool { pool, generation: Some(generation), .. } => {
                write!(f, "a Steadfast pool ({pool}), the durable leg of a super-disk at generation {generation}")
            }
            Self::Pool { pool, .. } => write!(f, "a Steadfast pool ({pool})"),
            Self::StripeMember { stripe, index, count } => {
                write!(f, "disk {} of {count} of a Steadfast stripe ({stripe})", index + 1)
            }
            Self::FastLeg { pair, generation } => {
                write!(f, "the fast leg of a Steadfast super-disk ({pair}) at generation {generation}")
            }
            Self::Foreign { what } => f.write_str(what),
            Self::Unreadable { why } => write!(f, "unknown: {why}"),
        }
    }
}

impl Contents {
    /// Whether the disk has no data to lose.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Absent | Self::Blank)
    }
}

/// The present state of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Whether it is a block device.
    pub device: bool,
    /// Size in bytes; 0 if it does not exist.
    pub size_bytes: u64,
    /// Its content.
    #[serde(flatten)]
    pub contents: Contents,
}

/// Places in the middle of a disk that are sampled before it counts as blank.
const SAMPLES: u64 = 64;

/// Bytes read at each place.
const SAMPLE_BYTES: usize = 64 << 10;

/// Bytes read at the start: the headers of file systems, volume managers and Steadfast.
const HEAD_BYTES: u64 = 4 << 20;

/// Identifies the content of a disk, without a lock and without changes. May block as long as the
/// disk.
pub fn look(path: &Path) -> Found {
    let open = || -> io::Result<(File, bool, u64)> {
        let meta = std::fs::metadata(path)?;
        let device = meta.file_type().is_block_device();
        if !device && !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device"));
        }
        let file = File::open(path)?;
        // The metadata of a block device has no length; seeking to the end returns it.
        let size = if device { io::Seek::seek(&mut &file, io::SeekFrom::End(0))? } else { meta.len() };
        Ok((file, device, size))
    };
    match open() {
        Ok((file, device, size_bytes)) => {
            let contents = identify(&file, size_bytes).unwrap_or_else(|e| Contents::Unreadable { why: e.to_string() });
            Found { device, size_bytes, contents }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Found { device: false, size_bytes: 0, contents: Contents::Absent }
        }
        Err(e) => Found { device: false, size_bytes: 0, contents: Contents::Unreadable { why: e.to_string() } },
    }
}

/// Reads the part of a range that lies within the disk.
fn read(file: &File, offset: u64, len: usize, size: u64) -> io::Result<Vec<u8>> {
    let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(len);
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn identify(file: &File, size: u64) -> io::Result<Contents> {
    let head = read(file, 0, START_BYTES, size)?;
    if let Some(ours) = ours(file, &head, size)? {
        return Ok(ours);
    }
    let tail_from = size.saturating_sub(END_BYTES as u64);
    let tail = read(file, tail_from, END_BYTES, size)?;
    if let Some(what) = at_start(&head).or_else(|| at_end(&tail, size)) {
        return Ok(Contents::Foreign { what: what.to_owned() });
    }
    match first_content(file, size)? {
        None => Ok(Contents::Blank),
        Some(at) => Ok(Contents::Foreign {
            what: format!("something unknown (not zero at byte {at}): perhaps data without a header"),
        }),
    }
}

/// The content, if it is Steadfast's.
fn ours(file: &File, head: &[u8], size: u64) -> io::Result<Option<Contents>> {
    let block = |offset: u64| {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        head.get(from..from.saturating_add(BLOCK)).map_or_else(|| read(file, offset, BLOCK, size), |b| Ok(b.to_vec()))
    };
    let mut marks = Vec::new();
    for offset in MARK_OFFSETS {
        marks.extend(mark(&block(offset)?));
    }
    for offset in SUPERBLOCK_OFFSETS {
        match Superblock::decode(&block(offset)?) {
            Ok(sb) => {
                let newest = marks.iter().filter_map(|m| match m {
                    Mark::Durable { pair, generation } => Some((*generation, pair.clone())),
                    _ => None,
                });
                let (generation, pair) = newest.max().unzip();
                let pool = uuid::Uuid::from_bytes(sb.pool).to_string();
                let (extent_bytes, created_ms) = (sb.extent_bytes, sb.created_ms);
                return Ok(Some(Contents::Pool { pool, extent_bytes, created_ms, pair, generation }));
            }
            Err(error @ (FormatError::Version { .. } | FormatError::Features(_))) => {
                let what = format!("a Steadfast pool of another version ({error})");
                return Ok(Some(Contents::Foreign { what }));
            }
            Err(_) => {}
        }
    }
    let mut damaged = None;
    let mut fast: Option<(u64, String)> = None;
    for mark in marks {
        match mark {
            Mark::StripeMember { stripe, index, count, .. } => {
                return Ok(Some(Contents::StripeMember { stripe, index, count }));
            }
            Mark::Fast { pair, generation } => fast = fast.max(Some((generation, pair))),
            Mark::Durable { .. } => {
                damaged = Some("the durable leg of a Steadfast super-disk without a pool".to_owned())
            }
            Mark::Damaged(what) => damaged = Some(format!("a damaged label of Steadfast's, {what}")),
        }
    }
    if let Some((generation, pair)) = fast {
        return Ok(Some(Contents::FastLeg { pair, generation }));
    }
    Ok(damaged.map(|what| Contents::Foreign { what }))
}

/// The offset of the first byte in the sampled places that is not zero.
fn first_content(file: &File, size: u64) -> io::Result<Option<u64>> {
    let mut places: Vec<u64> = (0..HEAD_BYTES.min(size)).step_by(SAMPLE_BYTES).collect();
    places.extend((0..SAMPLES).map(|n| (size / SAMPLES * n) / BLOCK as u64 * BLOCK as u64));
    places.push(size.saturating_sub(1 << 20));
    for place in places {
        let len = if place + (1 << 20) >= size { 1 << 20 } else { SAMPLE_BYTES };
        let bytes = read(file, place, len, size)?;
        if let Some(at) = bytes.iter().position(|b| *b != 0) {
            return Ok(Some(place + at as u64));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: u64, parts: &[(u64, &[u8])]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(len).expect("sized");
        for (offset, bytes) in parts {
            file.as_file().write_all_at(bytes, *offset).expect("written");
        }
        file
    }

    fn contents(len: u64, parts: &[(u64, &[u8])]) -> Contents {
        look(file(len, parts).path()).contents
    }

    #[test]
    fn blank_and_absent_have_nothing_to_lose() {
        for len in [0, 1, 4096, 3 << 20, 100 << 20] {
            assert_eq!(contents(len, &[]), Contents::Blank, "{len} zeros");
        }
        let found = look(Path::new("/nowhere/at/all"));
        assert_eq!((found.contents, found.size_bytes), (Contents::Absent, 0));
        assert!(matches!(look(Path::new("/")).contents, Contents::Unreadable { .. }));
    }

    #[test]
    fn what_is_of_others_is_named() {
        let named = |offset, bytes: &[u8]| contents(100 << 20, &[(offset, bytes)]).to_string();
        assert_eq!(named(1024 + 56, &[0x53, 0xef]), "an ext2, ext3 or ext4 file system");
        assert_eq!(named((100 << 20) - 512, b"EFI PART"), "a GPT partition table (the copy at its end)");
        for at in [5, 200_000, (4 << 20) - 1, (100 << 20) - 1, 50 << 20] {
            assert!(named(at, b"x").contains("something unknown"), "a byte at {at}");
        }
    }

    #[test]
    fn a_pool_is_known_by_either_superblock() {
        let sb = Superblock {
            pool: [7; 16],
            extent_bytes: 1 << 20,
            created_ms: 5,
            zones: None,
            features: Default::default(),
        };
        let expected = Contents::Pool {
            pool: uuid::Uuid::from_bytes([7; 16]).to_string(),
            extent_bytes: 1 << 20,
            created_ms: 5,
            pair: None,
            generation: None,
        };
        for offset in SUPERBLOCK_OFFSETS {
            assert_eq!(contents(32 << 20, &[(offset, &sb.encode())]), expected);
        }
    }
}

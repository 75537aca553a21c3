//! The superblock: identity and layout of the pool.

use steadfast_disk::BLOCK;

use super::Lsn;
use super::{
    EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, EXTENTS_START, FEATURES_VERSION, FORMAT_VERSION, Features, FormatError,
    ZONED_VERSION, crc32c, field, put, u32_at, u64_at,
};

const WHAT: &str = "superblock";
const MAGIC: [u8; 8] = *b"STEADFST";
/// Bytes of content. They are within the first sector, so that a torn write leaves the old or the
/// new ones.
const LEN: usize = 128;

/// Offsets of the copies from the start of the disk, in bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 512 << 10];

/// Placement of the extents on a disk whose zones are written in order: one in each zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zoning {
    /// Offset of extent 0, in bytes.
    pub begin: u64,
    /// Bytes from the start of one zone to the start of the next.
    pub zone_bytes: u64,
    /// Bytes at the beginning of the disk that may be written anywhere and hold the superblocks. 0:
    /// the superblocks are in the first two zones.
    pub conventional_bytes: u64,
    /// Limit of open zones; 0 for no limit.
    pub open_zones_max: u32,
    /// Whether the disk is not zoned and the zones are emulated by [`steadfast_disk::Zoned`].
    pub emulated: bool,
}

/// Facts about a pool on zones that must survive the reset of a zone with its header. Written in
/// each new copy of the superblock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Number of the copy; the highest one is valid.
    pub generation: u64,
    /// Exclusive upper bound of all epochs ever used.
    pub epoch_bound: u64,
    /// As [`super::ExtentHeader::recycled_lsn`].
    pub recycled_lsn: Lsn,
    /// The opening that has or last had the pool; 0 if unknown, and on zones. It needs no ledger.
    pub opening: u64,
}

/// Identity and layout of the pool, in two copies. Written once; on zones again with each new
/// [`Ledger`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the pool.
    pub pool: [u8; 16],
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Time of formatting, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Placement on zones; `None` for a pool that may be written anywhere.
    pub zones: Option<Zoning>,
    /// Features of the format that the pool uses.
    pub features: Features,
}

impl Superblock {
    /// The encoded block.
    pub fn encode(&self) -> [u8; BLOCK] {
        self.encode_with(&Ledger::default())
    }

    /// The encoded block with this ledger. A pool without zones has no ledger.
    pub fn encode_with(&self, ledger: &Ledger) -> [u8; BLOCK] {
        let mut b = [0u8; BLOCK];
        // A build older than features would ignore them.
        let version = match &self.zones {
            _ if self.features.keep_away() => FEATURES_VERSION,
            Some(_) => ZONED_VERSION,
            None => FORMAT_VERSION,
        };
        put(&mut b, 0, &MAGIC);
        put(&mut b, 8, &version.to_le_bytes());
        put(&mut b, 12, &(BLOCK as u32).to_le_bytes());
        put(&mut b, 16, &self.pool);
        put(&mut b, 32, &self.extent_bytes.to_le_bytes());
        put(&mut b, 40, &self.extent_start(0).to_le_bytes());
        put(&mut b, 48, &self.created_ms.to_le_bytes());
        if let Some(zones) = &self.zones {
            put(&mut b, 56, &zones.zone_bytes.to_le_bytes());
            put(&mut b, 64, &zones.conventional_bytes.to_le_bytes());
            put(&mut b, 72, &zones.open_zones_max.to_le_bytes());
            put(&mut b, 76, &u32::from(zones.emulated).to_le_bytes());
            put(&mut b, 80, &ledger.generation.to_le_bytes());
            put(&mut b, 88, &ledger.epoch_bound.to_le_bytes());
            put(&mut b, 96, &ledger.recycled_lsn.to_le_bytes());
        }
        put(&mut b, 104, &self.features.compatible.to_le_bytes());
        put(&mut b, 108, &self.features.read_only.to_le_bytes());
        put(&mut b, 112, &self.features.incompatible.to_le_bytes());
        put(&mut b, 116, &ledger.opening.to_le_bytes());
        let crc = crc32c(&b[..LEN - 4]);
        put(&mut b, LEN - 4, &crc.to_le_bytes());
        b
    }

    /// Decodes a copy. Magic, version and checksum keep their places in every version of the
    /// format, so that a pool of another version is recognised.
    ///
    /// # Errors
    /// [`FormatError::Magic`] if there is no pool, [`FormatError::Version`] for another version,
    /// [`FormatError::Features`] for incompatible features that this build does not know.
    pub fn decode(b: &[u8]) -> Result<Self, FormatError> {
        Self::decode_with(b).map(|(superblock, _)| superblock)
    }

    /// [`Superblock::decode`], with its ledger.
    ///
    /// # Errors
    /// As [`Superblock::decode`].
    pub fn decode_with(b: &[u8]) -> Result<(Self, Ledger), FormatError> {
        if b.len() < LEN {
            return Err(FormatError::Short(WHAT));
        }
        if b[..8] != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if crc32c(&b[..LEN - 4]) != u32_at(b, LEN - 4) {
            return Err(FormatError::Checksum(WHAT));
        }
        let found = u32_at(b, 8);
        if !matches!(found, FORMAT_VERSION | ZONED_VERSION | FEATURES_VERSION) {
            return Err(FormatError::Version { what: WHAT, found });
        }
        let features = Features { compatible: u32_at(b, 104), read_only: u32_at(b, 108), incompatible: u32_at(b, 112) };
        if features.unreadable() != 0 {
            return Err(FormatError::Features(features.unreadable()));
        }
        if u32_at(b, 12) != BLOCK as u32 {
            return Err(FormatError::Field("block size"));
        }
        let extent_bytes = u64_at(b, 32);
        if !(EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes) || !extent_bytes.is_multiple_of(BLOCK as u64)
        {
            return Err(FormatError::Field("extent size"));
        }
        let begin = u64_at(b, 40);
        let mut superblock =
            Self { pool: field(b, 16), extent_bytes, created_ms: u64_at(b, 48), zones: None, features };
        if found == FORMAT_VERSION || (found == FEATURES_VERSION && u64_at(b, 56) == 0) {
            if begin != EXTENTS_START {
                return Err(FormatError::Field("start of extents"));
            }
            return Ok((superblock, Ledger { opening: u64_at(b, 116), ..Ledger::default() }));
        }
        let (zone_bytes, conventional_bytes) = (u64_at(b, 56), u64_at(b, 64));
        if zone_bytes < extent_bytes || !(zone_bytes | conventional_bytes | begin).is_multiple_of(BLOCK as u64) {
            return Err(FormatError::Field("zone size"));
        }
        // The first two zones, or space that may be written anywhere.
        let head = if conventional_bytes == 0 { zone_bytes.saturating_mul(2) } else { conventional_bytes };
        if begin != head || (conventional_bytes > 0 && conventional_bytes < EXTENTS_START) {
            return Err(FormatError::Field("start of extents"));
        }
        let open_zones_max = u32_at(b, 72);
        let emulated = u32_at(b, 76) & 1 != 0;
        superblock.zones = Some(Zoning { begin, zone_bytes, conventional_bytes, open_zones_max, emulated });
        let ledger = Ledger {
            generation: u64_at(b, 80),
            epoch_bound: u64_at(b, 88),
            recycled_lsn: u64_at(b, 96),
            opening: u64_at(b, 116),
        };
        Ok((superblock, ledger))
    }

    /// Offset of an extent on the disk, in bytes.
    pub fn extent_start(&self, extent: u32) -> u64 {
        let (begin, stride) = self.lies();
        begin.saturating_add(u64::from(extent).saturating_mul(stride))
    }

    /// Number of whole extents on a disk of `len` bytes.
    pub fn extents_in(&self, len: u64) -> u32 {
        let (begin, stride) = self.lies();
        u32::try_from(len.saturating_sub(begin) / stride).unwrap_or(u32::MAX)
    }

    /// Offset of extent 0, and the distance from one extent to the next.
    fn lies(&self) -> (u64, u64) {
        self.zones.map_or((EXTENTS_START, self.extent_bytes), |zones| (zones.begin, zones.zone_bytes))
    }

    /// Possible offsets of a trailer in its extent, in search order. Normally the last block. On
    /// zones a gap before it would have to be written, so the last block of each of
    /// [`TRAILER_PLACES`] equal parts.
    pub fn trailer_places(&self) -> impl Iterator<Item = u64> + use<> {
        let (bytes, places) = (self.extent_bytes, if self.zones.is_some() { TRAILER_PLACES } else { 1 });
        (1..=places).rev().map(move |n| trailer_place(bytes, n, places))
    }

    /// Offset of the trailer if the footer ends at `end`. The caller has reserved a block for it at
    /// the end of the extent.
    pub fn trailer_after(&self, end: u64) -> u64 {
        let last = self.extent_bytes - BLOCK as u64;
        self.trailer_places().take_while(|place| *place >= end).last().unwrap_or(last)
    }
}

/// Number of places of a zone that may hold its trailer. More places mean less padding when an
/// extent is sealed early; fewer mean a shorter search when it was not sealed.
pub const TRAILER_PLACES: u64 = 64;

fn trailer_place(extent_bytes: u64, n: u64, places: u64) -> u64 {
    let block = BLOCK as u64;
    extent_bytes / block * n / places * block - block
}

//! Which segments a fill has, and which are wanted.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use steadfast_flow::Permit;
use steadfast_store::ObjectWriter;

use super::{FillEnd, FillTarget};
use crate::error::EdgeError;
use crate::fresh::FetchStamp;
use crate::options::FillMode;
use crate::space::{Reservation, Room};

/// Segments that are fetched ahead of each reader.
const AHEAD: u32 = 2;

/// Smaller pieces are copied together.
const PIECE_BYTES: usize = 16 << 10;

/// The bytes of a segment that have come, in memory until they are stored.
#[derive(Default)]
pub(super) struct Received {
    /// Each piece with its end in the segment.
    pieces: Vec<(u64, Bytes)>,
    /// What came after them in small pieces.
    tail: BytesMut,
    /// Holds the memory of the segment.
    pub(super) memory: Option<Permit>,
}

impl Received {
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.last().map_or(0, |(end, _)| *end) + self.tail.len() as u64
    }

    /// Adds a piece. Small ones are copied together: each piece costs memory of its own.
    pub(super) fn push(&mut self, piece: &Bytes) {
        let small = piece.len() < PIECE_BYTES;
        if !self.tail.is_empty() && (!small || self.tail.len() >= PIECE_BYTES) {
            let end = self.bytes();
            self.pieces.push((end, self.tail.split().freeze()));
        }
        if small {
            self.tail.extend_from_slice(piece);
        } else {
            self.pieces.push((self.bytes() + piece.len() as u64, piece.clone()));
        }
    }

    /// The bytes from `offset` to the end of the piece that contains it.
    pub(super) fn at(&self, offset: u64) -> Option<Bytes> {
        let index = self.pieces.partition_point(|(end, _)| *end <= offset);
        let Some((end, piece)) = self.pieces.get(index) else {
            let before = self.bytes() - self.tail.len() as u64;
            let tail = self.tail.get(usize::try_from(offset - before).ok()?..)?;
            return (!tail.is_empty()).then(|| Bytes::copy_from_slice(tail));
        };
        let left = (*end - offset) as usize;
        Some(piece.slice(piece.len() - left..))
    }
}

pub(super) enum Segment {
    Missing,
    Fetching(Received),
    Stored,
}

/// What a request wants of a fill.
#[derive(Default)]
struct Want {
    /// The segment that its next byte is in, once it reads.
    segment: Option<u32>,
}

/// What the scheduler does next.
pub(super) enum Step {
    End(FillEnd),
    /// All segments are there.
    Complete,
    /// Fetch a segment that a reader waits for. It has begun.
    Fetch(u32),
    /// Fetch a segment ahead, when there is a connection for it.
    Ahead(u32),
    Wait,
    /// Wait for the readers of a segment in memory, for a bounded time.
    Linger,
}

#[derive(Default)]
pub(super) struct FillState {
    pub(super) target: Option<Arc<FillTarget>>,
    /// When the origin was last asked about this version.
    pub(super) stamp: Option<FetchStamp>,
    /// The internal upload of a fill of several segments.
    pub(super) upload: Option<String>,
    /// The room of its segments.
    pub(super) room: Option<Room>,
    /// The space that all of it will need.
    pub(super) reservation: Option<Reservation>,
    pub(super) segments: Vec<Segment>,
    /// For an object of one segment, what commits it.
    pub(super) writer: Option<ObjectWriter>,
    pub(super) end: Option<FillEnd>,
    /// Why a segment could not be fetched.
    pub(super) fault: Option<EdgeError>,
    holders: BTreeMap<u64, Want>,
    next_id: u64,
    /// Whether any request wanted bytes, and not only the headers.
    read: bool,
    /// Segments that are complete.
    complete: usize,
    /// Segments being fetched.
    fetching: usize,
    /// The segment that is fetched ahead.
    ahead: Option<u32>,
}

impl FillState {
    pub(super) fn add_holder(&mut self, reads: bool) -> u64 {
        self.next_id += 1;
        self.holders.insert(self.next_id, Want::default());
        self.read |= reads;
        self.next_id
    }

    pub(super) fn remove_holder(&mut self, id: u64) {
        self.holders.remove(&id);
    }

    pub(super) fn has_holders(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Notes the segment that a reader is at. Returns whether it is another than before.
    pub(super) fn want(&mut self, id: u64, segment: u32) -> bool {
        self.holders.get_mut(&id).is_some_and(|want| want.segment.replace(segment) != Some(segment))
    }

    /// Takes over the plan, and the segments that an earlier fill has stored.
    pub(super) fn set_plan(&mut self, target: Arc<FillTarget>, stamp: FetchStamp, stored: &[u16]) {
        self.stamp = Some(stamp);
        self.segments = (0..target.segments()).map(|_| Segment::Missing).collect();
        for number in stored {
            if let Some(segment) = self.segments.get_mut(usize::from(*number).wrapping_sub(1)) {
                *segment = Segment::Stored;
                self.complete += 1;
            }
        }
        self.target = Some(target);
    }

    /// Bytes of the segments that are stored, or may be soon.
    pub(super) fn stored_bytes(&self) -> u64 {
        let Some(target) = &self.target else { return 0 };
        let stored = (0..).zip(&self.segments).filter(|(_, segment)| !matches!(segment, Segment::Missing));
        stored.map(|(number, _)| target.range(number)).map(|range| range.end - range.start).sum()
    }

    /// Frees the memory of segments, once the fill has ended.
    pub(super) fn release_memory(&mut self) {
        if self.fetching == 0 {
            self.segments.clear();
        }
    }

    fn is_missing(&self, segment: u32) -> bool {
        matches!(self.segments.get(segment as usize), Some(Segment::Missing))
    }

    /// Begins to fetch a segment, unless it has begun.
    pub(super) fn begin(&mut self, segment: u32, ahead: bool) -> bool {
        if !self.is_missing(segment) {
            return false;
        }
        self.segments[segment as usize] = Segment::Fetching(Received::default());
        self.fetching += 1;
        if ahead {
            self.ahead = Some(segment);
        }
        true
    }

    /// The bytes of a segment that is being fetched.
    pub(super) fn in_progress(&mut self, segment: u32) -> Option<&mut Received> {
        match self.segments.get_mut(segment as usize) {
            Some(Segment::Fetching(received)) => Some(received),
            _ => None,
        }
    }

    /// Whether a reader waits for a segment.
    pub(super) fn is_wanted(&self, segment: u32) -> bool {
        self.holders.values().any(|want| want.segment == Some(segment))
    }

    /// Notes that a segment that had begun is not fetched now.
    pub(super) fn put_back(&mut self, segment: u32) {
        assert!(self.fetching > 0, "a fetch was not counted");
        self.fetching -= 1;
        self.segments[segment as usize] = Segment::Missing;
    }

    /// Notes that a fetch has ended. A segment of an upload is stored, that of a small object stays
    /// in memory until the commit.
    pub(super) fn fetched(&mut self, segment: u32, outcome: Result<Option<ObjectWriter>, EdgeError>) {
        assert!(self.fetching > 0, "a fetch was not counted");
        self.fetching -= 1;
        if self.ahead == Some(segment) {
            self.ahead = None;
        }
        match outcome {
            Ok(writer) => {
                if writer.is_none() {
                    self.segments[segment as usize] = Segment::Stored;
                }
                self.writer = writer;
                self.complete += 1;
            }
            Err(error) => self.fault = Some(error),
        }
    }

    /// Whether segments are fetched that no reader has asked for.
    fn wants_rest(&self, mode: FillMode) -> bool {
        self.read && (mode == FillMode::Whole || self.complete * 2 >= self.segments.len())
    }

    pub(super) fn next_step(&mut self, mode: FillMode, attached: bool) -> Step {
        if let Some(error) = &self.fault {
            return Step::End(FillEnd::Failed(error.clone()));
        }
        if !attached && self.holders.is_empty() {
            return Step::End(FillEnd::Stopped);
        }
        if self.complete == self.segments.len() {
            return match attached {
                true => Step::Complete,
                false if self.segments.len() == 1 => Step::Linger,
                false => Step::Wait,
            };
        }
        let wanted: Vec<u32> = self.holders.values().filter_map(|want| want.segment).collect();
        if let Some(segment) = wanted.iter().copied().find(|segment| self.is_missing(*segment)) {
            self.begin(segment, false);
            return Step::Fetch(segment);
        }
        if self.ahead.is_none() {
            let near = wanted.iter().flat_map(|segment| segment + 1..=segment + AHEAD);
            let rest = 0..if attached && self.wants_rest(mode) { self.segments.len() as u32 } else { 0 };
            if let Some(segment) = near.chain(rest).find(|segment| self.is_missing(*segment)) {
                return Step::Ahead(segment);
            }
        }
        if self.holders.is_empty() && self.fetching == 0 && !self.wants_rest(mode) {
            return Step::End(FillEnd::Stopped);
        }
        Step::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_sizes_are_found_by_their_place() {
        let data: Vec<u8> = (0..300_000usize).map(|i| (i % 251) as u8).collect();
        let mut received = Received::default();
        let mut at = 0;
        for len in [1, 1, 20_000, 5, 16_383, 1, 16_384, 2, 40_000, 1].into_iter().cycle() {
            if at + len > data.len() {
                break;
            }
            received.push(&Bytes::copy_from_slice(&data[at..at + len]));
            at += len;
            assert_eq!(received.bytes(), at as u64);
            assert!(received.at(at as u64).is_none() && received.at(u64::MAX).is_none());
        }
        let mut offset = 0;
        while offset < at {
            let piece = received.at(offset as u64).expect("there");
            assert!(piece[..] == data[offset..offset + piece.len()]);
            assert!(received.at(offset as u64 + 1).is_none_or(|next| next[0] == data[offset + 1]));
            offset += piece.len();
        }
        assert_eq!(offset, at);
        let mut tiny = Received::default();
        (0..100_000).for_each(|_| tiny.push(&Bytes::from_static(b"x")));
        assert!(tiny.pieces.len() < 10);
    }
}

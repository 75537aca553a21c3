//! The content of objects: pieces of endless streams, so that the bytes of a read identify their
//! source.

use std::sync::Arc;

use crate::rng::stream_bytes;

/// A piece of an object's content: the first `len` bytes of stream `id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Number of the stream.
    pub id: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The content of an object.
pub type Pieces = Arc<[Piece]>;

/// Total bytes of `pieces`.
pub fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.len).sum()
}

/// `len` bytes from `offset` on.
pub fn bytes_of(pieces: &[Piece], offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let (mut at, mut filled) = (0, 0);
    for piece in pieces {
        let end = at + piece.len;
        let want = offset + filled as u64;
        if want >= at && want < end && filled < len {
            let n = ((end - want) as usize).min(len - filled);
            stream_bytes(piece.id, want - at, &mut out[filled..filled + n]);
            filled += n;
        }
        at = end;
    }
    out.truncate(filled);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_pieces_in_order() {
        let pieces = [Piece { id: 1, len: 10 }, Piece { id: 2, len: 20 }];
        let whole = bytes_of(&pieces, 0, 30);
        for offset in 0..30 {
            for len in 0..30 - offset {
                assert_eq!(bytes_of(&pieces, offset as u64, len), whole[offset..offset + len]);
            }
        }
        assert_eq!(bytes_of(&pieces, 25, 30).len(), 5);
    }
}

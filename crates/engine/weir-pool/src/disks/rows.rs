//! The geometry of raidz rows: which strip of which row is on which leg.
//!
//! Not here: reading and writing them (raidz), parity itself (weir-codec).
//!
//! ```text
//! raidz2 on five legs, k = 3:     leg 0   leg 1   leg 2   leg 3   leg 4
//!                        row 0      D0      D1      D2       P       Q
//!                        row 1       Q      D0      D1      D2       P
//!                        row 2       P       Q      D0      D1      D2
//! ```
//! Invariants: strip s of row r is on leg (s + r) mod legs, at the same offset of every leg; data
//! strips of a row, then of the next row, are the vdev's segment area from front to back.

use std::ops::Range;

/// The shape of a raidz vdev's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Data strips of a row: 0 to this.
    pub(crate) data: usize,
    /// Parity strips of a row, numbered behind the data strips.
    pub(crate) parity: usize,
    pub(crate) strip_bytes: u64,
}

/// A part of the segment area that is on one leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) row: u64,
    pub(crate) strip: usize,
    /// Bytes of the strip.
    pub(crate) within: Range<u64>,
    /// Where they are in the range that was asked for.
    pub(crate) at: usize,
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        (self.within.end - self.within.start) as usize
    }

    /// Its place in the range that was asked for.
    pub(crate) fn place(&self) -> Range<usize> {
        self.at..self.at + self.len()
    }
}

/// The same bytes of every strip of a row: what is needed to reconstruct the pieces in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) row: u64,
    /// Bytes of each strip.
    pub(crate) within: Range<u64>,
    pub(crate) pieces: Vec<Piece>,
}

impl Rows {
    pub(crate) fn strips(&self) -> usize {
        self.data + self.parity
    }

    /// Data bytes of a row.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.data as u64 * self.strip_bytes
    }

    /// The leg that holds a strip.
    pub(crate) fn leg(&self, row: u64, strip: usize) -> usize {
        ((row + strip as u64) % self.strips() as u64) as usize
    }

    /// The strip that a leg holds.
    pub(crate) fn strip(&self, row: u64, leg: usize) -> usize {
        let strips = self.strips() as u64;
        ((leg as u64 + strips - row % strips) % strips) as usize
    }

    /// Where a byte of a row's strips is on every leg, from the start of its segment area.
    pub(crate) fn leg_offset(&self, row: u64, within: u64) -> u64 {
        row * self.strip_bytes + within
    }

    /// A range of the segment area, cut at the ends of strips.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut offset = range.start;
        while offset < range.end {
            let within = offset % self.strip_bytes;
            let len = (self.strip_bytes - within).min(range.end - offset);
            pieces.push(Piece {
                row: offset / self.row_bytes(),
                strip: (offset % self.row_bytes() / self.strip_bytes) as usize,
                within: within..within + len,
                at: (offset - range.start) as usize,
            });
            offset += len;
        }
        pieces
    }

    /// Puts the pieces of a row whose bytes overlap into one slice.
    pub(crate) fn slices(pieces: Vec<Piece>) -> Vec<Slice> {
        let mut slices: Vec<Slice> = Vec::new();
        for piece in pieces {
            let (row, within) = (piece.row, piece.within.clone());
            let joins = |slice: &&mut Slice| {
                slice.row == row
                    && slice.within.start < within.end
                    && within.start < slice.within.end
            };
            match slices.last_mut().filter(joins) {
                Some(slice) => {
                    slice.within =
                        slice.within.start.min(within.start)..slice.within.end.max(within.end);
                    slice.pieces.push(piece);
                }
                None => slices.push(Slice { row, within, pieces: vec![piece] }),
            }
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: Rows = Rows { data: 3, parity: 2, strip_bytes: 4096 };

    #[test]
    fn every_leg_holds_one_strip_of_each_row_and_all_kinds_in_turn() {
        for row in 0..10 {
            let mut legs: Vec<usize> = (0..5).map(|strip| ROWS.leg(row, strip)).collect();
            assert_eq!(legs[0], row as usize % 5);
            assert!((0..5).all(|strip| ROWS.strip(row, legs[strip]) == strip));
            legs.sort_unstable();
            assert_eq!(legs, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn pieces_cover_a_range_once_and_in_order() {
        let pieces = ROWS.pieces(4000..4000 + 20_000);
        let lens: Vec<usize> = pieces.iter().map(Piece::len).collect();
        assert_eq!(lens, [96, 4096, 4096, 4096, 4096, 3520]);
        let strips: Vec<(u64, usize)> = pieces.iter().map(|p| (p.row, p.strip)).collect();
        assert_eq!(strips, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert!(pieces.windows(2).all(|pair| pair[0].place().end == pair[1].at));
    }

    #[test]
    fn a_block_across_two_strips_needs_no_whole_strips() {
        let slices = Rows::slices(ROWS.pieces(3584..3584 + 1024));
        let within: Vec<Range<u64>> = slices.iter().map(|slice| slice.within.clone()).collect();
        assert_eq!(within, [3584..4096, 0..512]);
        let whole = Rows::slices(ROWS.pieces(3584..2 * 12_288));
        let shapes: Vec<_> =
            whole.iter().map(|slice| (slice.within.clone(), slice.pieces.len())).collect();
        assert_eq!(shapes, [(0..4096, 3), (0..4096, 3)]);
    }
}

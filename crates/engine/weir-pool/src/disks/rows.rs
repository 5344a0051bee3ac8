//! Geometry of raidz rows: maps the strips of each row to legs.
//!
//! Not here: reading and writing rows (`raidz`), parity computation (weir-codec).
//!
//! ```text
//! raidz2 on five legs, k = 3:     leg 0   leg 1   leg 2   leg 3   leg 4
//!                        row 0      D0      D1      D2       P       Q
//!                        row 1       Q      D0      D1      D2       P
//!                        row 2       P       Q      D0      D1      D2
//! ```
//! Invariants: strip s of row r is on leg (s + r) mod legs, at the same offset on every leg; the
//! data strips of row 0, row 1 and so on form the vdev's segment area from front to back.

use std::ops::Range;

/// Shape of the rows of a raidz vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Number of data strips in a row. Data strips are numbered from 0.
    pub(crate) data: usize,
    /// Number of parity strips in a row. Parity strips are numbered after the data strips.
    pub(crate) parity: usize,
    pub(crate) strip_bytes: u64,
}

/// Part of a requested range that lies on one leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) row: u64,
    pub(crate) strip: usize,
    /// Byte range within the strip.
    pub(crate) within: Range<u64>,
    /// Offset within the requested range.
    pub(crate) at: usize,
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        (self.within.end - self.within.start) as usize
    }

    /// Byte range within the requested range.
    pub(crate) fn place(&self) -> Range<usize> {
        self.at..self.at + self.len()
    }
}

/// The same byte range of every strip of a row: the input for reconstructing the pieces within that
/// range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) row: u64,
    /// Byte range within each strip.
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

    /// Leg that holds a strip.
    pub(crate) fn leg(&self, row: u64, strip: usize) -> usize {
        ((row + strip as u64) % self.strips() as u64) as usize
    }

    /// Strip that a leg holds.
    pub(crate) fn strip(&self, row: u64, leg: usize) -> usize {
        let strips = self.strips() as u64;
        ((leg as u64 + strips - row % strips) % strips) as usize
    }

    /// Offset, in the segment area of every leg, of byte `within` of a row's strips.
    pub(crate) fn leg_offset(&self, row: u64, within: u64) -> u64 {
        row * self.strip_bytes + within
    }

    /// Splits a range of the segment area at strip boundaries.
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

    /// Merges pieces of one row with overlapping byte ranges into slices.
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
    fn each_leg_holds_one_strip_of_each_row() {
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
    fn block_across_two_strips_needs_no_whole_strips() {
        let slices = Rows::slices(ROWS.pieces(3584..3584 + 1024));
        let within: Vec<Range<u64>> = slices.iter().map(|slice| slice.within.clone()).collect();
        assert_eq!(within, [3584..4096, 0..512]);
        let whole = Rows::slices(ROWS.pieces(3584..2 * 12_288));
        let shapes: Vec<_> =
            whole.iter().map(|slice| (slice.within.clone(), slice.pieces.len())).collect();
        assert_eq!(shapes, [(0..4096, 3), (0..4096, 3)]);
    }
}

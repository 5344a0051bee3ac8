//! Sends the block states (generations) to another process.
//!
//! `load::generations` has the meaning of the states.
//!
//! Invariants: received states change only the blocks that they describe; the receiver refuses
//! states that do not cover exactly the expected blocks.

use std::ops::Range;

use super::wire::Piece;
use crate::load::Generations;

/// Maximum number of entries in one message. An entry is a state with the number of consecutive
/// blocks in this state; 40,000 entries take less than 1 MiB of JSON.
const RUNS_MAX: usize = 40_000;

/// Splits the states of blocks into one or more messages.
pub(super) fn pieces(known: &Generations, blocks: Range<u64>) -> impl Iterator<Item = Piece> {
    let mut states = known.states(blocks).peekable();
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let mut runs = Vec::new();
        while let Some(state) = states.next_if(|_| runs.len() < RUNS_MAX) {
            let mut count = 1;
            while count < u32::MAX && states.next_if_eq(&state).is_some() {
                count += 1;
            }
            runs.push((state, count));
        }
        ended = states.peek().is_none();
        Some(Piece { runs, is_last: ended })
    })
}

/// Receiver of messages with block states.
pub(super) struct Taker<'a> {
    known: &'a Generations,
    left: Range<u64>,
}

impl<'a> Taker<'a> {
    /// Creates a receiver for the states of `blocks`.
    pub(super) fn new(known: &'a Generations, blocks: Range<u64>) -> Self {
        Self { known, left: blocks }
    }

    /// Applies one message to the table. Returns true if the message was the last one, and the
    /// reason as `Err` if the message is invalid.
    pub(super) fn take(&mut self, piece: &Piece) -> Result<bool, &'static str> {
        for (state, count) in &piece.runs {
            let count = u64::from(*count);
            if count == 0 || count > self.left.end - self.left.start {
                return Err("it reports blocks outside its part of the dataset");
            }
            let until = self.left.start + count;
            self.known.set_states(self.left.start..until, *state);
            self.left.start = until;
        }
        if piece.is_last != self.left.is_empty() {
            return Err("its report does not cover all blocks");
        }
        Ok(piece.is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_transfer_exactly_the_given_blocks() {
        let blocks = 100_000_u64;
        let [from, to] = [(); 2].map(|()| Generations::new(blocks * 4096, 4096).expect("small"));
        (0..blocks).for_each(|n| from.set_states(n..n + 1, if n > 90_000 { 7 } else { n as u32 }));
        let told: Vec<Piece> = pieces(&from, 5..blocks - 5).collect();
        assert_eq!(told.len(), 3, "40,000 and 40,000 runs and the rest");
        let mut taker = Taker::new(&to, 5..blocks - 5);
        let ends: Vec<bool> = told.iter().map(|piece| taker.take(piece).unwrap()).collect();
        assert_eq!(ends, [false, false, true]);
        let all: Vec<u32> = to.states(0..blocks).collect();
        let wanted: Vec<u32> = from.states(0..blocks).collect();
        assert_eq!(all[5..99_995], wanted[5..99_995]);
        assert!(all[..5].iter().chain(&all[99_995..]).all(|state| *state == 0));
        let empty: Vec<Piece> = pieces(&from, 3..3).collect();
        assert_eq!(empty, [Piece { runs: Vec::new(), is_last: true }]);
    }

    #[test]
    fn pieces_with_wrong_counts_are_refused() {
        let known = Generations::new(8 * 4096, 4096).expect("small");
        let take = |runs: &[(u32, u32)], is_last| {
            Taker::new(&known, 0..8).take(&Piece { runs: runs.to_vec(), is_last })
        };
        assert_eq!(take(&[(1, 4), (u32::MAX, 4)], true), Ok(true));
        assert_eq!(take(&[(1, 4)], false), Ok(false));
        assert!(take(&[(1, 4)], true).is_err() && take(&[(1, 8)], false).is_err());
        assert!(take(&[(1, 9)], true).is_err() && take(&[(1, 0), (1, 8)], true).is_err());
    }
}

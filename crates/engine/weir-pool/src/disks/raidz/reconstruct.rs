//! Reconstruction of strips: identifies wrong and lost strips, and writes verified bytes back.
//!
//! Not here: reading strips (`gather`), parity computation (weir-codec).
//!
//! Invariants:
//! - wrong strips are identified by trial: the checksum decides, no leg is trusted. A bad leg is
//!   likely to be wrong in every row of a block, so whole legs are tried first;
//! - bad bytes count as an error of a leg only if it was not stale when its read was issued;
//! - only bytes that a checksum verified are written back. The same reconstruction proves nothing
//!   about other strips: errors of two legs can cancel each other out in the wanted strip (for
//!   example, if zeros overwrote both legs at an offset where their bytes were equal);
//! - an unread strip is neither counted as wrong nor written: its leg may only be slow.

use std::cmp::Reverse;
use std::ops::Range;

use weir_base::limits::RECONSTRUCTIONS_MAX;
use weir_block::IoBuf;
use weir_codec::parity::Recovery;

use crate::disks::leg::Doubt;
use crate::disks::raidz::gather::{Reading, Strip};
use crate::disks::rows::{Piece, Rows};
use crate::disks::vdev::Vdev;
use crate::error::PoolError;

impl Reading {
    /// Computes a strip as if the strips in `lost` were lost.
    fn computed(&self, recovery: &Recovery, lost: &[usize], strip: usize) -> IoBuf {
        let strips: Vec<Option<&[u8]>> = (0..self.strips.len())
            .map(|other| self.read(other).filter(|_| !lost.contains(&other)))
            .collect();
        let mut out = IoBuf::zeroed(self.len());
        recovery.strip(strip, &strips, &mut out);
        out
    }

    /// Fills the slice's pieces of `out`; computes the strips in `lost` from the others.
    fn assemble(&self, rows: &Rows, lost: &[usize], out: &mut [u8]) {
        let recovery = Recovery::new(rows.data, rows.parity, lost);
        for piece in &self.slice.pieces {
            let place = self.place(piece);
            let out = &mut out[piece.place()];
            match self.read(piece.strip).filter(|_| !lost.contains(&piece.strip)) {
                Some(buf) => out.copy_from_slice(&buf[place]),
                None => {
                    let computed = self.computed(&recovery, lost, piece.strip);
                    out.copy_from_slice(&computed[place]);
                }
            }
        }
    }
}

impl Vdev {
    /// Fills `out` from the strips that were read; the other strips count as lost.
    pub(super) fn assemble_all(
        &self,
        rows: &Rows,
        readings: &[Reading],
        out: &mut [u8],
    ) -> Result<(), PoolError> {
        for reading in readings {
            let lost = reading.lost();
            if lost.len() > rows.parity {
                return Err(self.lost());
            }
            reading.assemble(rows, &lost, out);
        }
        Ok(())
    }

    /// Tries which strips of each slice to treat as lost until `verify` accepts the result; `None`
    /// if no combination is accepted.
    pub(super) fn try_losses(
        &self,
        rows: &Rows,
        readings: &[Reading],
        out: &mut [u8],
        verify: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<Vec<usize>>> {
        if readings.len() > 1
            && let Some(found) = self.try_legs(rows, readings, out, &verify)
        {
            return Some(found);
        }
        let choices: Vec<Vec<Vec<usize>>> =
            readings.iter().map(|reading| self.choices(rows, reading)).collect();
        if choices.iter().any(Vec::is_empty) {
            return None;
        }
        let mut current = vec![0; choices.len()];
        for (reading, choices) in readings.iter().zip(&choices) {
            reading.assemble(rows, &choices[0], out);
        }
        for _ in 0..RECONSTRUCTIONS_MAX {
            if verify(out) {
                return Some(choices.iter().zip(current).map(|(all, n)| all[n].clone()).collect());
            }
            // Advance to the next combination; the first slice varies fastest.
            let mut slice = 0;
            loop {
                let choice = current.get_mut(slice)?;
                *choice = (*choice + 1) % choices[slice].len();
                readings[slice].assemble(rows, &choices[slice][*choice], out);
                if *choice > 0 {
                    break;
                }
                slice += 1;
            }
        }
        tracing::error!(vdev = self.index, "could not identify the damaged disks of a row");
        None
    }

    /// Treats the strips of the same legs as lost in every slice. Tries each set of at most
    /// `parity` legs, small sets and doubtful legs first.
    fn try_legs(
        &self,
        rows: &Rows,
        readings: &[Reading],
        out: &mut [u8],
        verify: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<Vec<usize>>> {
        let legs: Vec<usize> = (0..rows.strips()).collect();
        let mut sets: Vec<Vec<usize>> =
            (0..=rows.parity).flat_map(|size| subsets(&legs, size)).collect();
        let doubts = |set: &Vec<usize>| {
            let count = |doubt| set.iter().filter(|leg| self.legs[**leg].doubt() == doubt).count();
            (count(Doubt::Stale), count(Doubt::Unconfirmed))
        };
        sets.sort_by_cached_key(|set| (set.len(), Reverse(doubts(set))));
        let lost_with = |set: &[usize]| {
            let of = |reading: &Reading| {
                let is_lost = |strip: &usize| {
                    let leg = rows.leg(reading.slice.row, *strip);
                    reading.read(*strip).is_none() || set.contains(&leg)
                };
                let lost: Vec<usize> = (0..rows.strips()).filter(is_lost).collect();
                (lost.len() <= rows.parity).then_some(lost)
            };
            readings.iter().map(of).collect::<Option<Vec<_>>>()
        };
        sets.iter().find_map(|set| {
            let lost = lost_with(set)?;
            for (reading, lost) in readings.iter().zip(&lost) {
                reading.assemble(rows, lost, out);
            }
            verify(out).then_some(lost)
        })
    }

    /// Returns sets of strips of a slice that may be wrong or were not read, the most likely set
    /// first: the unread strips alone, then each set of `parity` strips that contains the unread
    /// ones and a wanted strip.
    fn choices(&self, rows: &Rows, reading: &Reading) -> Vec<Vec<usize>> {
        let unknown = reading.unknown();
        let Some(more) = rows.parity.checked_sub(unknown.len()) else { return Vec::new() };
        let known: Vec<usize> = (0..rows.strips()).filter(|s| !unknown.contains(s)).collect();
        let mut sets: Vec<Vec<usize>> = subsets(&known, more)
            .into_iter()
            .map(|set| {
                let mut lost: Vec<usize> = set.into_iter().chain(unknown.clone()).collect();
                lost.sort_unstable();
                lost
            })
            .filter(|lost| lost.iter().any(|strip| reading.wants(*strip)))
            .collect();
        let of = |strip: &usize| self.leg_of(rows, reading.slice.row, *strip).doubt();
        let doubts = |lost: &Vec<usize>| {
            let count = |doubt| lost.iter().filter(|strip| of(strip) == doubt).count();
            (count(Doubt::Stale), count(Doubt::Unconfirmed))
        };
        sets.sort_by_cached_key(|lost| Reverse(doubts(lost)));
        if !unknown.iter().any(|strip| reading.wants(*strip)) {
            sets.insert(0, unknown);
        }
        sets
    }

    /// Counts a checksum error on each leg with wanted bytes, because no combination of lost strips
    /// gave the right bytes. Returns the error of the read.
    pub(super) async fn blame(&self, rows: &Rows, readings: &[Reading], at: u64) -> PoolError {
        for reading in readings {
            for piece in &reading.slice.pieces {
                let leg = self.leg_of(rows, piece.row, piece.strip);
                let doubt = match &reading.strips[piece.strip] {
                    Strip::Read(_, doubt) => *doubt,
                    Strip::Unread | Strip::Asked(_) | Strip::Missing => leg.doubt(),
                };
                let at = rows.leg_offset(piece.row, piece.within.start);
                leg.count_wrong_bytes(doubt, self.base + at);
            }
        }
        if readings.iter().any(|reading| reading.unknown().len() > rows.parity) {
            return self.unreadable(at).await;
        }
        self.damaged(at)
    }

    /// Rewrites the wanted bytes that were reconstructed and differ from the bytes on their legs.
    pub(super) async fn heal_slice(
        &self,
        rows: &Rows,
        reading: &Reading,
        lost: &[usize],
        wanted: &Range<usize>,
    ) {
        let recovery = Recovery::new(rows.data, rows.parity, lost);
        let computed = |piece: &&Piece| lost.contains(&piece.strip);
        for piece in reading.slice.pieces.iter().filter(computed) {
            let place = piece.place();
            let proved = place.start.max(wanted.start)..place.end.min(wanted.end);
            if !proved.is_empty() {
                let shift = reading.place(piece).start;
                let proved = proved.start - piece.at + shift..proved.end - piece.at + shift;
                let good = reading.computed(&recovery, lost, piece.strip);
                self.heal_strip(rows, reading, piece.strip, &good, proved).await;
            }
        }
    }

    /// Rewrites the verified bytes of one strip if they differ from the bytes on its leg.
    async fn heal_strip(
        &self,
        rows: &Rows,
        reading: &Reading,
        strip: usize,
        good: &IoBuf,
        proved: Range<usize>,
    ) {
        let leg = self.leg_of(rows, reading.slice.row, strip);
        let read = match &reading.strips[strip] {
            Strip::Unread | Strip::Asked(_) => return,
            Strip::Read(theirs, _) if theirs[proved.clone()] == good[proved.clone()] => return,
            Strip::Read(theirs, doubt) => {
                let start = reading.slice.within.start + proved.start as u64;
                let at = rows.leg_offset(reading.slice.row, start);
                leg.count_wrong_bytes(*doubt, self.base + at);
                Some(theirs)
            }
            Strip::Missing => None,
        };
        // Write whole sectors, with as few bytes of the neighbouring blocks as possible.
        let sector = self.sector_bytes() as usize;
        let start = proved.start - proved.start % sector;
        let sectors = start..proved.end.next_multiple_of(sector);
        let mut part = IoBuf::zeroed(sectors.len());
        part.copy_from_slice(&good[sectors.clone()]);
        let read = read.map(|theirs| &theirs[sectors]);
        let at = self.base
            + rows.leg_offset(reading.slice.row, reading.slice.within.start + start as u64);
        let proved = proved.start - start..proved.end - start;
        self.heal((leg, read), at, &part, proved).await;
    }
}

/// All subsets of `size` elements, in order.
pub(crate) fn subsets(of: &[usize], size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut sets = Vec::new();
    for (index, first) in of.iter().enumerate() {
        for mut rest in subsets(&of[index + 1..], size - 1) {
            rest.insert(0, *first);
            sets.push(rest);
        }
    }
    sets
}

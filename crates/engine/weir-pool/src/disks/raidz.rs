//! Raidz reads: from the legs that hold the bytes, or by reconstruction if a leg fails or is slow.
//!
//! Not here: row geometry (`rows`), reading the other strips of a row (`gather`), reconstruction
//! (`reconstruct`), writing rows (`write`), parity computation (weir-codec).
//!
//! Invariants:
//! - a read uses only the legs that hold the bytes while these legs are usable, answer in time with
//!   the right bytes, and delayed no other read recently;
//! - otherwise the read returns the bytes that are available first: the bytes of the slow leg, or
//!   bytes reconstructed from other strips of the rows;
//! - a read waits for a slow leg if the other legs do not suffice. Slowness counts as no error, and
//!   nothing is written to a leg because it was slow.

use std::cell::Cell;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use futures_util::future::{Either, join_all, select};
use weir_base::clock::Sleep;
use weir_base::limits::{DISK_UNRESPONSIVE, HEDGE_MAX};
use weir_block::IoBuf;

use crate::disks::leg::Leg;
use crate::disks::raidz::gather::{Gather, Reading};
use crate::disks::rows::{Piece, Rows};
use crate::disks::vdev::Vdev;
use crate::error::PoolError;

mod gather;
mod reconstruct;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use crate::disks::raidz::reconstruct::subsets;

/// Pieces of a read. For each piece: whether its leg has answered.
struct Own<'a> {
    rows: &'a Rows,
    pieces: Vec<Piece>,
    answered: Vec<Cell<bool>>,
}

impl Own<'_> {
    /// Legs that have not answered yet.
    fn unanswered(&self) -> impl Iterator<Item = usize> {
        let pieces = self.pieces.iter().zip(&self.answered);
        let waiting = pieces.filter(|(_, answered)| !answered.get());
        waiting.map(|(piece, _)| self.rows.leg(piece.row, piece.strip))
    }
}

impl Vdev {
    fn leg_of(&self, rows: &Rows, row: u64, strip: usize) -> &Leg {
        &self.legs[rows.leg(row, strip)]
    }

    /// Reads whole sectors of the segment area, unverified. Reconstructs bytes on missing or slow
    /// legs.
    #[boxed(?Send)]
    pub(super) async fn read_raidz(
        &self,
        rows: &Rows,
        at: u64,
        len: usize,
    ) -> Result<IoBuf, PoolError> {
        match self.read_or_gather(rows, at, len, |_| true).await {
            Ok(buf) => Ok(buf),
            Err(gather) => {
                let mut out = IoBuf::zeroed(len);
                self.assemble_all(rows, &gather.readings, &mut out)?;
                Ok(out)
            }
        }
    }

    /// Reads `len` bytes at `at` as [`Vdev::read_verified`] does, but verifies only the range
    /// `wanted` of these bytes.
    pub(super) async fn read_raidz_verified(
        &self,
        rows: &Rows,
        at: u64,
        len: usize,
        wanted: Range<usize>,
        verify: impl Fn(&[u8]) -> bool,
    ) -> Result<IoBuf, PoolError> {
        let right = |out: &[u8]| verify(&out[wanted.clone()]);
        let mut gather = match self.read_or_gather(rows, at, len, right).await {
            Ok(buf) => return Ok(buf),
            Err(gather) => gather,
        };
        let mut out = IoBuf::zeroed(len);
        let mut chosen: Vec<Vec<usize>> = gather.readings.iter().map(Reading::lost).collect();
        let assembled = self.assemble_all(rows, &gather.readings, &mut out);
        if assembled.is_err() || !right(&out) {
            gather.all().await;
            chosen = loop {
                if let Some(found) = self.try_losses(rows, &gather.readings, &mut out, right) {
                    break found;
                }
                if !gather.one_more().await {
                    return Err(self.blame(rows, &gather.readings, at).await);
                }
            };
            gather.bypass_rest();
        }
        tracing::debug!(vdev = self.index, at, "row reconstructed");
        for (reading, lost) in gather.readings.iter().zip(&chosen) {
            self.heal_slice(rows, reading, lost, &wanted).await;
        }
        Ok(out)
    }

    /// Reads from the legs that hold the bytes. If the read fails or takes too long, `Err` has
    /// enough other strips to reconstruct the bytes, or all readable strips if they do not suffice.
    async fn read_or_gather<'a>(
        &'a self,
        rows: &'a Rows,
        at: u64,
        len: usize,
        right: impl Fn(&[u8]) -> bool,
    ) -> Result<IoBuf, Gather<'a>> {
        let pieces = rows.pieces(at..at + len as u64);
        let answered = vec![Cell::new(false); pieces.len()];
        let own = Own { rows, pieces, answered };
        let mut read = pin!(self.read_pieces(&own, len));
        let (mut failed, mut late) = (Vec::new(), Vec::new());
        if self.asks_own_legs(&own) {
            match self.in_time(&own, read.as_mut()).await {
                Ok(Ok(buf)) if right(&buf) => return Ok(buf),
                Ok(Ok(_)) => {}
                Ok(Err(unread)) => failed = unread,
                Err(legs) => late = legs,
            }
        }
        late.iter().for_each(|leg| self.legs[*leg].note_bypass());
        let is_late = !late.is_empty();
        let mut gather = Gather::new(self, rows, own.pieces.clone(), &failed, late);
        if is_late {
            let enough = pin!(gather.enough());
            if let Either::Left((Ok(buf), _)) = select(read, enough).await
                && right(&buf)
            {
                return Ok(buf);
            }
        }
        gather.enough().await;
        Err(gather)
    }

    /// True if the read first tries only the legs that hold the bytes.
    fn asks_own_legs(&self, own: &Own<'_>) -> bool {
        let mut avoided = Vec::new();
        for piece in &own.pieces {
            let index = own.rows.leg(piece.row, piece.strip);
            let leg = &self.legs[index];
            if leg.usable().is_none() {
                return false;
            }
            if leg.is_avoided() {
                avoided.push(index);
            }
        }
        avoided.is_empty() || !self.can_do_without(own.rows, &avoided)
    }

    /// True if the other complete legs suffice to read the data without the `slow` legs. Legs that
    /// were slow recently do not count, so that a hedged read adds no load if all disks are busy.
    /// If all `slow` legs are unresponsive, every responsive leg counts, also a recently slow one.
    fn can_do_without(&self, rows: &Rows, slow: &[usize]) -> bool {
        let is_silent = |leg: &Leg| leg.silent().is_some_and(|silent| silent >= DISK_UNRESPONSIVE);
        let stuck = slow.iter().all(|leg| is_silent(&self.legs[*leg]));
        let answers = |leg: &Leg| if stuck { !is_silent(leg) } else { !leg.is_avoided() };
        let legs = self.legs.iter().enumerate().filter(|(index, _)| !slow.contains(index));
        legs.filter(|(_, leg)| leg.is_whole() && answers(leg)).count() >= rows.data
    }

    /// Returns the result of the read. If its hedge delay expires and the other legs suffice,
    /// returns the legs that have not answered.
    async fn in_time<T>(
        &self,
        own: &Own<'_>,
        mut read: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, Vec<usize>> {
        let hedge_delay = |leg: usize| self.legs[leg].hedge_delay();
        let (mut waited, mut timer): (Duration, Option<Sleep>) = (Duration::ZERO, None);
        poll_fn(|context| {
            if let Poll::Ready(read) = read.as_mut().poll(context) {
                return Poll::Ready(Ok(read));
            }
            loop {
                // Create the timer only once the read is known to be pending.
                let timer_of = || {
                    let next =
                        own.unanswered().map(hedge_delay).filter(|next| *next > waited).min();
                    let pause = next.map_or(HEDGE_MAX, |next| next.saturating_sub(waited));
                    waited += pause;
                    self.clock.sleep(pause)
                };
                ready!(timer.get_or_insert_with(timer_of).as_mut().poll(context));
                timer = None;
                let mut late: Vec<usize> =
                    own.unanswered().filter(|leg| hedge_delay(*leg) <= waited).collect();
                late.sort_unstable();
                late.dedup();
                if !late.is_empty() && self.can_do_without(own.rows, &late) {
                    return Poll::Ready(Err(late));
                }
            }
        })
        .await
    }

    /// Reads each piece (the part of one strip that a read covers) from the leg with this strip.
    /// `Err` lists the row and strip of each unreadable piece.
    async fn read_pieces(&self, own: &Own<'_>, len: usize) -> Result<IoBuf, Vec<(u64, usize)>> {
        let Own { rows, pieces, answered } = own;
        let reads = pieces.iter().zip(answered).map(|(piece, answered)| async move {
            let buf = self.read_piece(rows, piece).await;
            answered.set(true);
            buf
        });
        let mut bufs = join_all(reads).await;
        if let [only] = bufs.as_mut_slice() {
            let place = (pieces[0].row, pieces[0].strip);
            return only.take().ok_or_else(|| vec![place]);
        }
        let mut out = IoBuf::zeroed(len);
        let mut failed = Vec::new();
        for (piece, buf) in pieces.iter().zip(bufs) {
            match buf {
                Some(buf) => out[piece.place()].copy_from_slice(&buf),
                None => failed.push((piece.row, piece.strip)),
            }
        }
        if failed.is_empty() { Ok(out) } else { Err(failed) }
    }

    /// Reads bytes of one strip. Returns `None` if the disk is missing or the read fails; the error
    /// is counted.
    async fn read_piece(&self, rows: &Rows, piece: &Piece) -> Option<IoBuf> {
        let leg = self.leg_of(rows, piece.row, piece.strip);
        let at = self.base + rows.leg_offset(piece.row, piece.within.start);
        let (done, buf) = leg.usable()?.read_at(at, IoBuf::for_read(piece.len())).await;
        done.map_err(|error| leg.count_read_error(&error)).ok()?;
        Some(buf)
    }
}

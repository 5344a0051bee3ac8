//! Raidz: writing rows with their parity, reading single strips, and reconstructing what is
//! missing or wrong.
//!
//! Not here: geometry (rows), the parity itself (weir-codec), writing the same to all legs (vdev).
//!
//! Invariants:
//! - rows are written whole, once, each strip with the others: there is no write hole and parity is
//!   never updated;
//! - a read that succeeds asked only the legs that hold the bytes;
//! - which strips are wrong is not believed of any leg but found by trying: the checksum decides;
//! - only bytes that a checksum proved are written back. What the same reconstruction says of other
//!   strips is not proved: errors of two legs can cancel each other out in the one strip that was
//!   asked for (both overwritten with zeros, say, where they held the same bytes).

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use weir_base::limits::RECONSTRUCTIONS_MAX;
use weir_codec::parity::{self, Recovery};
use weir_device::{Durability, IoBuf};

use super::rows::{Piece, Rows, Slice};
use super::{Leg, Vdev};
use crate::error::PoolError;
use crate::planted::PlantedBug;

/// What is known of one strip of a slice.
enum Strip {
    Unread,
    Read(IoBuf),
    /// No disk, or its read failed.
    Missing,
}

/// A slice and what was read of it.
struct Reading {
    slice: Slice,
    strips: Vec<Strip>,
}

impl Reading {
    fn len(&self) -> usize {
        (self.slice.within.end - self.slice.within.start) as usize
    }

    fn read(&self, strip: usize) -> Option<&[u8]> {
        match &self.strips[strip] {
            Strip::Read(buf) => Some(buf),
            Strip::Unread | Strip::Missing => None,
        }
    }

    /// Strips whose bytes are not known.
    fn unknown(&self) -> Vec<usize> {
        (0..self.strips.len()).filter(|strip| self.read(*strip).is_none()).collect()
    }

    /// What must be computed from the rest: nothing while every wanted strip is known.
    fn lost(&self) -> Vec<usize> {
        let unknown = self.unknown();
        if unknown.iter().any(|strip| self.wants(*strip)) { unknown } else { Vec::new() }
    }

    fn wants(&self, strip: usize) -> bool {
        self.slice.pieces.iter().any(|piece| piece.strip == strip)
    }

    /// Where a piece is in the slice's buffers.
    fn place(&self, piece: &Piece) -> Range<usize> {
        let start = (piece.within.start - self.slice.within.start) as usize;
        start..start + piece.len()
    }

    /// What a strip would be if `lost` were lost.
    fn computed(&self, recovery: &Recovery, lost: &[usize], strip: usize) -> IoBuf {
        let strips: Vec<Option<&[u8]>> = (0..self.strips.len())
            .map(|other| self.read(other).filter(|_| !lost.contains(&other)))
            .collect();
        let mut out = IoBuf::zeroed(self.len());
        recovery.strip(strip, &strips, &mut out);
        out
    }

    /// Fills the slice's pieces of `out`, taking the strips in `lost` from the others.
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
    fn leg_of(&self, rows: &Rows, row: u64, strip: usize) -> &Leg {
        &self.legs[rows.leg(row, strip)]
    }

    /// Writes whole rows, `data[range]`, at an offset of the segment area.
    pub(super) async fn write_raidz(
        &self,
        rows: &Rows,
        offset: u64,
        data: &IoBuf,
        range: Range<usize>,
    ) -> Result<(), PoolError> {
        let row_bytes = rows.row_bytes();
        let whole =
            offset.is_multiple_of(row_bytes) && (range.len() as u64).is_multiple_of(row_bytes);
        assert!(whole, "only whole rows are written");
        let first_row = offset / row_bytes;
        let bufs = self.spread(rows, first_row, &data[range]);
        let at = self.base + rows.leg_offset(first_row, 0);
        let writes = self.legs.iter().zip(bufs).filter_map(|(leg, buf)| {
            let (device, len) = (leg.usable()?, buf.len());
            Some(async move {
                leg.judge(device.write_at(at, Arc::new(buf), 0..len, Durability::Cached).await)
            })
        });
        self.enough(&join_all(writes).await)
    }

    /// One buffer per leg with its strips of neighbouring rows, parity included.
    fn spread(&self, rows: &Rows, first_row: u64, data: &[u8]) -> Vec<IoBuf> {
        let strip_bytes = rows.strip_bytes as usize;
        let count = data.len() / rows.row_bytes() as usize;
        let mut bufs: Vec<IoBuf> =
            (0..rows.strips()).map(|_| IoBuf::zeroed(count * strip_bytes)).collect();
        for (index, row_data) in data.chunks(rows.row_bytes() as usize).enumerate() {
            let row = first_row + index as u64;
            let place = index * strip_bytes..(index + 1) * strip_bytes;
            let mut strips: Vec<&[u8]> = row_data.chunks(strip_bytes).collect();
            for (strip, bytes) in strips.iter().enumerate() {
                bufs[rows.leg(row, strip)][place.clone()].copy_from_slice(bytes);
            }
            if self.bug == PlantedBug::WrongParityStrip {
                strips[0] = strips[rows.data - 1];
            }
            let mut parity: Vec<(usize, &mut [u8])> = bufs
                .iter_mut()
                .enumerate()
                .map(|(leg, buf)| (rows.strip(row, leg), &mut buf[place.clone()]))
                .filter(|(strip, _)| *strip >= rows.data)
                .collect();
            parity.sort_unstable_by_key(|(strip, _)| *strip);
            let mut parity: Vec<&mut [u8]> = parity.into_iter().map(|(_, bytes)| bytes).collect();
            parity::encode(&strips, &mut parity);
        }
        bufs
    }

    /// Reads whole sectors of the segment area, unverified; what is on missing legs is computed.
    pub(super) async fn read_raidz(
        &self,
        rows: &Rows,
        at: u64,
        len: usize,
    ) -> Result<IoBuf, PoolError> {
        let pieces = rows.pieces(at..at + len as u64);
        match self.read_pieces(rows, &pieces, len).await {
            Ok(buf) => Ok(buf),
            Err(failed) => {
                let mut readings = Self::readings(rows, pieces, &failed);
                let mut out = IoBuf::zeroed(len);
                self.read_enough(rows, &mut readings).await;
                self.assemble_all(rows, &readings, &mut out)?;
                Ok(out)
            }
        }
    }

    /// As [`Vdev::read_verified`]: `wanted` are the verified bytes of the `len` from `at` on.
    pub(super) async fn read_raidz_verified(
        &self,
        rows: &Rows,
        at: u64,
        len: usize,
        wanted: Range<usize>,
        verify: impl Fn(&[u8]) -> bool,
    ) -> Result<IoBuf, PoolError> {
        let pieces = rows.pieces(at..at + len as u64);
        let failed = match self.read_pieces(rows, &pieces, len).await {
            Ok(buf) if verify(&buf[wanted.clone()]) => return Ok(buf),
            Ok(_) => Vec::new(),
            Err(unread) => unread,
        };
        let mut out = IoBuf::zeroed(len);
        let mut readings = Self::readings(rows, pieces, &failed);
        self.read_enough(rows, &mut readings).await;
        let mut chosen: Vec<Vec<usize>> = readings.iter().map(Reading::lost).collect();
        let assembled = self.assemble_all(rows, &readings, &mut out);
        if assembled.is_err() || !verify(&out[wanted.clone()]) {
            join_all(readings.iter_mut().map(|reading| self.read_more(rows, reading, usize::MAX)))
                .await;
            let found =
                self.try_losses(rows, &readings, &mut out, |out| verify(&out[wanted.clone()]));
            chosen = found.ok_or_else(|| self.blame(rows, &readings, at))?;
        }
        tracing::debug!(vdev = self.index, at, "row reconstructed");
        for (reading, lost) in readings.iter().zip(&chosen) {
            self.heal_slice(rows, reading, lost, &wanted).await;
        }
        Ok(out)
    }

    /// Reads pieces from their own legs, or tells which (row and strip) could not be read.
    async fn read_pieces(
        &self,
        rows: &Rows,
        pieces: &[Piece],
        len: usize,
    ) -> Result<IoBuf, Vec<(u64, usize)>> {
        let there = |piece: &Piece| self.leg_of(rows, piece.row, piece.strip).usable().is_some();
        if !pieces.iter().all(there) {
            return Err(Vec::new());
        }
        let reads = pieces.iter().map(|piece| {
            self.read_strip(rows, piece.row, piece.strip, piece.within.start, piece.len())
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

    /// Bytes of one strip; `None` without its disk or after a read error, which is counted.
    async fn read_strip(
        &self,
        rows: &Rows,
        row: u64,
        strip: usize,
        within: u64,
        len: usize,
    ) -> Option<IoBuf> {
        let leg = self.leg_of(rows, row, strip);
        let at = self.base + rows.leg_offset(row, within);
        let (done, buf) = leg.usable()?.read_at(at, IoBuf::zeroed(len)).await;
        done.map_err(|error| leg.count_read_error(&error)).ok()?;
        Some(buf)
    }

    fn readings(rows: &Rows, pieces: Vec<Piece>, failed: &[(u64, usize)]) -> Vec<Reading> {
        let reading = |slice: Slice| {
            let failed = |strip| failed.contains(&(slice.row, strip));
            let state = |strip| if failed(strip) { Strip::Missing } else { Strip::Unread };
            Reading { strips: (0..rows.strips()).map(state).collect(), slice }
        };
        Rows::slices(pieces).into_iter().map(reading).collect()
    }

    /// Reads the wanted strips of each slice; where one is missing, as many others as it takes.
    async fn read_enough(&self, rows: &Rows, readings: &mut [Reading]) {
        join_all(readings.iter_mut().map(|reading| async {
            let mut wanted = 0;
            for strip in 0..rows.data {
                let there = self.leg_of(rows, reading.slice.row, strip).usable().is_some();
                wanted += usize::from(reading.wants(strip) && there);
            }
            self.read_more(rows, reading, wanted).await;
            let missing = |strip| reading.wants(strip) && reading.read(strip).is_none();
            if (0..rows.data).any(missing) {
                self.read_more(rows, reading, rows.data).await;
            }
        }))
        .await;
    }

    /// Reads unread strips until `enough` are read or none is left: wanted ones first, then those
    /// that are up to date.
    async fn read_more(&self, rows: &Rows, reading: &mut Reading, enough: usize) {
        loop {
            let row = reading.slice.row;
            let unread = |strip: &usize| matches!(reading.strips[*strip], Strip::Unread);
            let mut next: Vec<usize> = (0..rows.strips()).filter(unread).collect();
            let stale = |strip| self.leg_of(rows, row, strip).stale_after().is_some();
            next.sort_by_key(|strip| (!reading.wants(*strip), stale(*strip)));
            let read = rows.strips() - reading.unknown().len();
            next.truncate(enough.saturating_sub(read));
            if next.is_empty() {
                return;
            }
            let (start, len) = (reading.slice.within.start, reading.len());
            let reads = next.iter().map(|strip| self.read_strip(rows, row, *strip, start, len));
            for (strip, buf) in next.iter().zip(join_all(reads).await) {
                reading.strips[*strip] = buf.map_or(Strip::Missing, Strip::Read);
            }
        }
    }

    /// Fills `out` from what was read, taking what was not for lost.
    fn assemble_all(
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

    /// Tries which strips of each slice to take for lost until `verify` accepts the result; `None`
    /// if no combination is right.
    fn try_losses(
        &self,
        rows: &Rows,
        readings: &[Reading],
        out: &mut [u8],
        verify: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<Vec<usize>>> {
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
            // Counts up, the first slice fastest.
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
        tracing::error!(vdev = self.index, "gave up looking for the damaged disks of a row");
        None
    }

    /// What may be lost of a slice, likely first: nothing but what is not there, then every set of
    /// as many strips as there is parity that makes a difference.
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
        let stale =
            |strip: &&usize| self.leg_of(rows, reading.slice.row, **strip).stale_after().is_some();
        sets.sort_by_key(|lost| Reverse(lost.iter().filter(stale).count()));
        if !unknown.iter().any(|strip| reading.wants(*strip)) {
            sets.insert(0, unknown);
        }
        sets
    }

    /// Counts damage that no combination explains and says what is the matter.
    fn blame(&self, rows: &Rows, readings: &[Reading], at: u64) -> PoolError {
        let wanted = readings.iter().flat_map(|reading| &reading.slice.pieces);
        for piece in wanted {
            let leg = self.leg_of(rows, piece.row, piece.strip);
            leg.checksum_errors.fetch_add(1, Ordering::Relaxed);
        }
        if readings.iter().any(|reading| reading.unknown().len() > rows.parity) {
            return self.lost();
        }
        PoolError::Damaged { pool: self.pool.clone(), vdev: self.index, offset: at }
    }

    /// Rewrites those of the wanted bytes that were computed and differ from what is on their legs.
    async fn heal_slice(
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

    /// Brings the proved bytes of one strip back if they differ.
    async fn heal_strip(
        &self,
        rows: &Rows,
        reading: &Reading,
        strip: usize,
        good: &IoBuf,
        proved: Range<usize>,
    ) {
        let leg = self.leg_of(rows, reading.slice.row, strip);
        match &reading.strips[strip] {
            Strip::Unread => return,
            Strip::Read(theirs) if theirs[proved.clone()] == good[proved.clone()] => return,
            Strip::Read(_) => {
                leg.checksum_errors.fetch_add(1, Ordering::Relaxed);
            }
            Strip::Missing => {}
        }
        // Whole sectors, and no more of the neighbours than those hold.
        let sector = self.sector_bytes() as usize;
        let start = proved.start - proved.start % sector;
        let sectors = start..proved.end.next_multiple_of(sector);
        let mut part = IoBuf::zeroed(sectors.len());
        part.copy_from_slice(&good[sectors]);
        let at = self.base
            + rows.leg_offset(reading.slice.row, reading.slice.within.start + start as u64);
        let proved = proved.start - start..proved.end - start;
        self.heal(leg, at, &part, proved).await;
    }
}

/// Every set of `size` of these, in order.
fn subsets(of: &[usize], size: usize) -> Vec<Vec<usize>> {
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

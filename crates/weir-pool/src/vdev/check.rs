//! Raidz rows looked at as a whole: what lives in them, their parity, and legs that lack them.
//!
//! Not here: which rows (scan, copies), a client's read (raidz).
//!
//! Invariants:
//! - parity is judged, and written, only in rows of which everything that lives was verified: made
//!   from a rotten block it would destroy the one way to bring that block back;
//! - a strip is written whole: what is dead in it counts for the parity of what lives beside it;
//! - what was written is read back.
//!
//! Strips that are written one by one leave a row without its full redundancy when the power fails
//! in between, never with less than before: they were wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use weir_codec::parity::{self, Recovery};
use weir_device::{Durability, IoBuf};

use super::rows::Rows;
use super::{Leg, Vdev};
use crate::copies::{Checked, Part, Scope, proves};
use crate::live::Live;
use crate::scan::ScanKind;

/// Rows read at once: a mebibyte of each leg.
const LEG_BYTES_MAX: u64 = 1 << 20;

/// What one leg gave of some rows.
struct LegStrips {
    buf: IoBuf,
    /// By row: whether it was asked for its strip and could read it.
    there: Vec<bool>,
}

/// Some neighbouring rows, as far as the legs gave them, then as they must be.
struct Stretch<'a> {
    rows: &'a Rows,
    first: u64,
    /// By leg: its strips.
    legs: Vec<LegStrips>,
    /// By row: its data strips.
    data: Vec<u8>,
    /// By row: whether every strip of it is known.
    whole: Vec<bool>,
    /// By row: whether its data strips are what the legs gave, none computed or replaced.
    given: Vec<bool>,
}

impl<'a> Stretch<'a> {
    /// Rows from `first` on, as the legs gave them.
    fn new(rows: &'a Rows, first: u64, legs: Vec<LegStrips>, count: usize) -> Self {
        let data = Vec::with_capacity(count * rows.row_bytes() as usize);
        let mut new = Self { rows, first, legs, data, whole: Vec::new(), given: Vec::new() };
        (0..count).for_each(|row| new.assemble(row));
        new
    }

    fn strip_bytes(&self) -> usize {
        self.rows.strip_bytes as usize
    }

    fn row_bytes(&self) -> usize {
        self.rows.row_bytes() as usize
    }

    /// What the legs gave of a row, by strip.
    fn read(&self, row: usize) -> Vec<Option<&[u8]>> {
        let at = row * self.strip_bytes();
        let strips = (0..self.rows.strips()).map(|strip| {
            let LegStrips { buf, there } =
                &self.legs[self.rows.leg(self.first + row as u64, strip)];
            there[row].then(|| &buf[at..at + self.strip_bytes()])
        });
        strips.collect()
    }

    /// The data strips of a row.
    fn data_strips(&self, row: usize) -> impl Iterator<Item = &[u8]> {
        self.data[row * self.row_bytes()..][..self.row_bytes()].chunks(self.strip_bytes())
    }

    /// Brings the data of the next row together, computing what no leg gave.
    fn assemble(&mut self, row: usize) {
        let Rows { data: data_strips, parity, .. } = *self.rows;
        let mut data = std::mem::take(&mut self.data);
        let read = self.read(row);
        let lost: Vec<usize> = (0..read.len()).filter(|strip| read[*strip].is_none()).collect();
        let whole = lost.len() <= parity;
        let given = lost.iter().all(|strip| *strip >= data_strips);
        let recovery = (whole && !given).then(|| Recovery::new(data_strips, parity, &lost));
        for strip in 0..data_strips {
            if let Some(bytes) = read[strip] {
                data.extend_from_slice(bytes);
                continue;
            }
            let at = data.len();
            data.resize(at + self.strip_bytes(), 0);
            if let Some(recovery) = &recovery {
                recovery.strip(strip, &read, &mut data[at..]);
            }
        }
        self.data = data;
        self.whole.push(whole);
        self.given.push(given);
    }

    /// Puts the right bytes at a place of the data.
    fn replace(&mut self, at: usize, bytes: &[u8]) {
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
        let rows = at / self.row_bytes()..(at + bytes.len()).div_ceil(self.row_bytes());
        self.given[rows].fill(false);
    }
}

impl Vdev {
    pub(crate) fn has_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// On raidz, which neighbours are not looked at together: with rows between them, or with more
    /// than is read at once.
    pub(crate) fn row_split(&self) -> Option<impl Fn(&Live, &Live, &Live) -> bool> {
        let rows = self.rows?;
        let row = move |at: u64| at / rows.row_bytes();
        Some(move |first: &Live, before: &Live, next: &Live| {
            let rows_max = LEG_BYTES_MAX / rows.strip_bytes;
            // A row is never cut but by the end of what a step takes on.
            row(next.at) > row(before.end() - 1)
                && (row(next.at) > row(before.end() - 1) + 1
                    || row(next.at) - row(first.at) >= rows_max)
        })
    }

    /// Bytes of the rows that a run is in, on all legs, and of their data brought together.
    pub(crate) fn bytes_of_rows(&self, run: &Part<'_>) -> usize {
        let rows = self.rows.map_or(0, |rows| {
            let count = run.len() as u64 / rows.row_bytes() + 2;
            count * rows.strip_bytes * (rows.strips() + rows.data) as u64
        });
        rows as usize
    }

    /// Looks at rows on every leg, from the first to the last block of `run`.
    pub(crate) async fn check_rows(&self, scope: &Scope<'_>, run: Part<'_>) -> Checked {
        let rows = &self.rows.expect("the caller asked");
        let row_bytes = rows.row_bytes();
        let items = run.items();
        let (first, last) = (&items[0], &items[items.len() - 1]);
        let first_row = (run.start + first.at) / row_bytes;
        let end_row = (run.start + last.end()).div_ceil(row_bytes);
        let count = (end_row - first_row) as usize;
        let legs = self.read_strips(rows, scope, first_row, count).await;
        let mut stretch = Stretch::new(rows, first_row, legs, count);

        // Also all that is in the first row from before: a step may end anywhere in a row, and the
        // next may come much later.
        let base = first_row * row_bytes - run.start;
        let reaches_in = |live: &&Live| live.end() > base;
        let before = run.all[..run.from].iter().rev().take_while(reaches_in);
        let (mut checked, mut bad) = (Checked::default(), vec![false; count]);
        for live in before.chain(items) {
            let known = self.verify_live(&mut stretch, run.start, live, base).await;
            let of_run = live.at >= first.at;
            if !known {
                checked.damaged += u64::from(of_run);
                let end = (live.end() - base).div_ceil(row_bytes) as usize;
                let start = live.at.saturating_sub(base) / row_bytes;
                bad[start as usize..end.min(count)].fill(true);
            }
        }
        // A row that the next blocks are in, too, is theirs to judge.
        let next = run.all.get(run.to).filter(|next| next.at < base + count as u64 * row_bytes);
        let owned = next.map_or(count, |next| ((next.at - base) / row_bytes) as usize);
        checked.add(self.settle_rows(scope, &stretch, &bad, owned).await);
        checked
    }

    /// The strips of rows from each leg that misses nothing.
    async fn read_strips(
        &self,
        rows: &Rows,
        scope: &Scope<'_>,
        first_row: u64,
        count: usize,
    ) -> Vec<LegStrips> {
        let (strip, at) = (rows.strip_bytes as usize, self.base + rows.leg_offset(first_row, 0));
        join_all(self.legs.iter().map(|leg| async move {
            let (buf, mut there) = (IoBuf::zeroed(count * strip), vec![false; count]);
            let wanted = scope.good.iter().any(|good| std::ptr::eq(*good, leg));
            let Some(device) = leg.usable().filter(|_| wanted) else {
                return LegStrips { buf, there };
            };
            let (done, mut buf) = device.read_at(at, buf).await;
            if done.is_ok() {
                there.fill(true);
                return LegStrips { buf, there };
            }
            // One sector that cannot be read must not cost what the leg has beside it.
            for (row, there) in there.iter_mut().enumerate() {
                let place = row * strip;
                let (done, one) = device.read_at(at + place as u64, IoBuf::zeroed(strip)).await;
                *there = done.map_err(|error| leg.count_read_error(&error)).is_ok();
                buf[place..place + strip].copy_from_slice(&one);
            }
            LegStrips { buf, there }
        }))
        .await
    }

    /// Whether the stretch holds the right bytes of a block, after a look at all legs if need be.
    /// `base`: the first row's place in the segment.
    async fn verify_live(
        &self,
        stretch: &mut Stretch<'_>,
        start: u64,
        live: &Live,
        base: u64,
    ) -> bool {
        let end = base + stretch.data.len() as u64;
        let inside = live.at >= base && live.end() <= end;
        if inside {
            let place = (live.at - base) as usize..(live.end() - base) as usize;
            let row_bytes = stretch.row_bytes();
            let rows = place.start / row_bytes..place.end.div_ceil(row_bytes);
            let whole = stretch.whole[rows].iter().all(|whole| *whole);
            if whole && proves(live.proof, &stretch.data[place]) {
                return true;
            }
        }
        let Some(good) = self.read_any_copy(start, live).await else { return false };
        let (from, to) = (live.at.max(base), live.end().min(end));
        let part = &good[(from - live.at) as usize..(to - live.at) as usize];
        stretch.replace((from - base) as usize, part);
        true
    }

    /// Compares the first `owned` rows with what they must be and writes what differs.
    async fn settle_rows(
        &self,
        scope: &Scope<'_>,
        stretch: &Stretch<'_>,
        bad: &[bool],
        owned: usize,
    ) -> Checked {
        let (rows, strip_bytes) = (stretch.rows, stretch.strip_bytes());
        let mut checked = Checked::default();
        let mut parity = vec![vec![0; strip_bytes]; rows.parity];
        // By leg: what is to be written, and where.
        let mut writes: Vec<Vec<(usize, Vec<u8>)>> = vec![Vec::new(); self.legs.len()];
        for row in (0..owned).filter(|row| !bad[*row]) {
            if !stretch.whole[row] {
                checked.unrepaired += u64::from(scope.kind == ScanKind::Resilver);
                continue;
            }
            let data: Vec<&[u8]> = stretch.data_strips(row).collect();
            let mut into: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            parity::encode(&data, &mut into);
            let expected = data.into_iter().chain(parity.iter().map(Vec::as_slice));
            let read = stretch.read(row);
            for (strip, must) in expected.enumerate() {
                let theirs = read[strip];
                let unchanged = strip < rows.data && stretch.given[row];
                if unchanged || theirs == Some(must) {
                    continue;
                }
                let index = rows.leg(stretch.first + row as u64, strip);
                let leg = &self.legs[index];
                let asked = scope.good.iter().any(|good| std::ptr::eq(*good, leg));
                let behind = scope.behind.iter().any(|behind| std::ptr::eq(*behind, leg));
                if !(asked || behind) {
                    continue;
                }
                if asked && theirs.is_some() {
                    leg.checksum_errors.fetch_add(1, Ordering::Relaxed);
                }
                writes[index].push((row, must.to_vec()));
            }
        }
        for (index, strips) in writes.into_iter().enumerate() {
            for stretch_of in strips.chunk_by(|a, b| a.0 + 1 == b.0) {
                let at = rows.leg_offset(stretch.first + stretch_of[0].0 as u64, 0);
                let mut buf = IoBuf::zeroed(stretch_of.len() * strip_bytes);
                for (place, (_, must)) in buf.chunks_mut(strip_bytes).zip(stretch_of) {
                    place.copy_from_slice(must);
                }
                let leg = &self.legs[index];
                if self.write_strips(leg, at, buf).await {
                    checked.repaired_bytes += (stretch_of.len() * strip_bytes) as u64;
                    if scope.kind == ScanKind::Scrub {
                        tracing::warn!(disk = %leg.path, offset = at, "bad copy repaired");
                    }
                } else {
                    checked.unrepaired += stretch_of.len() as u64;
                }
            }
        }
        checked
    }

    /// Writes strips to a leg; true when they were read back as they were written.
    async fn write_strips(&self, leg: &Leg, at: u64, buf: IoBuf) -> bool {
        let Some(device) = leg.usable() else { return false };
        let (at, len, buf) = (self.base + at, buf.len(), Arc::new(buf));
        let _repair = self.repairs.hold(at..at + len as u64).await;
        if let Err(error) = device.write_at(at, Arc::clone(&buf), 0..len, Durability::Cached).await
        {
            leg.fault(&error);
            return false;
        }
        let (done, back) = device.read_at(at, IoBuf::zeroed(len)).await;
        done.map_err(|error| leg.count_read_error(&error)).is_ok() && back[..] == buf[..]
    }
}

//! Checks whole raidz rows: their live blocks, their parity, and legs that lack their strips.
//!
//! Not here: the choice of rows (`segment_scan`, `copies`), client reads (`raidz`).
//!
//! Invariants (reasons: docs/decisions/0005 and 0008):
//! - a scan checks and writes parity only in rows whose live blocks are all verified;
//! - a scan rewrites wrong parity only in a second pass, after a commit;
//! - a scan writes whole strips, with dead bytes that the row's other strips confirm
//!   ([`Stretch::trust`]);
//! - a scan reads each written strip back and compares it;
//! - a power failure between two strip writes never leaves a row with less redundancy than before.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};
use weir_block::IoBuf;
use weir_codec::parity::{self, Recovery};
use weir_device::Durability;

use crate::disks::leg::Leg;
use crate::disks::raidz::subsets;
use crate::disks::rows::Rows;
use crate::disks::scan_kind::ScanKind;
use crate::disks::vdev::Vdev;
use crate::planted_bugs::PlantedBug;
use crate::scan::copies::proves;
use crate::scan::part::{Checked, Part, Scope};
use crate::tree::live::Live;

/// Maximum length of one read of rows, on each leg.
const LEG_BYTES_MAX: u64 = 1 << 20;

/// Strips of some rows as one leg returned them.
struct LegStrips {
    buf: IoBuf,
    /// For each row: true if the scan read the leg's strip and the read succeeded.
    there: Vec<bool>,
}

/// Neighbouring rows: the strips that the legs returned, then the corrected strips.
struct Stretch<'a> {
    rows: &'a Rows,
    first: u64,
    /// Strips of each leg.
    legs: Vec<LegStrips>,
    /// For each row: true if every strip is known.
    whole: Vec<bool>,
    /// Data that the scan computed or replaced, by row and strip. Other data is as the legs
    /// returned it.
    made: BTreeMap<(usize, usize), Vec<u8>>,
    /// Row and strip of data that failed a block's checksum.
    wrong: BTreeSet<(usize, usize)>,
    /// Ranges of the blocks that were verified or replaced.
    proved: Vec<Range<usize>>,
}

impl<'a> Stretch<'a> {
    /// Takes the rows from number `first` on as the legs returned them, and computes the missing
    /// strips.
    fn new(rows: &'a Rows, first: u64, legs: Vec<LegStrips>, count: usize) -> Self {
        let mut new = Self {
            rows,
            first,
            legs,
            whole: Vec::new(),
            made: BTreeMap::new(),
            wrong: BTreeSet::new(),
            proved: Vec::new(),
        };
        let mut made = BTreeMap::new();
        for row in 0..count {
            let read = new.read(row);
            let lost: Vec<usize> = (0..read.len()).filter(|strip| read[*strip].is_none()).collect();
            let whole = lost.len() <= rows.parity;
            let lost_data = lost.iter().filter(|strip| **strip < rows.data);
            if whole && lost_data.clone().next().is_some() {
                let recovery = Recovery::new(rows.data, rows.parity, &lost);
                for strip in lost_data {
                    let mut data = vec![0; new.strip_bytes()];
                    recovery.strip(*strip, &read, &mut data);
                    made.insert((row, *strip), data);
                }
            }
            new.whole.push(whole);
        }
        Self { made, ..new }
    }

    fn strip_bytes(&self) -> usize {
        self.rows.strip_bytes as usize
    }

    fn row_bytes(&self) -> usize {
        self.rows.row_bytes() as usize
    }

    /// Data bytes of all rows.
    fn len(&self) -> usize {
        self.whole.len() * self.row_bytes()
    }

    /// Strips of a row as the legs returned them.
    fn read(&self, row: usize) -> Vec<Option<&[u8]>> {
        let at = row * self.strip_bytes();
        let strips = (0..self.rows.strips()).map(|strip| {
            let LegStrips { buf, there } =
                &self.legs[self.rows.leg(self.first + row as u64, strip)];
            there[row].then(|| &buf[at..at + self.strip_bytes()])
        });
        strips.collect()
    }

    /// Data strip of a row whose strips are all known.
    fn data_strip(&self, row: usize, strip: usize) -> &[u8] {
        assert!(self.whole[row] && strip < self.rows.data, "it is known");
        let of_leg = || {
            let leg = self.rows.leg(self.first + row as u64, strip);
            &self.legs[leg].buf[row * self.strip_bytes()..][..self.strip_bytes()]
        };
        self.made.get(&(row, strip)).map_or_else(of_leg, Vec::as_slice)
    }

    /// Data in a range; `None` if some of this data is not known.
    fn bytes(&self, place: Range<usize>) -> Option<Cow<'_, [u8]>> {
        let rows = place.start / self.row_bytes()..place.end.div_ceil(self.row_bytes());
        if !self.whole[rows].iter().all(|whole| *whole) {
            return None;
        }
        let mut all = Cow::Borrowed(&[][..]);
        for piece in self.rows.pieces(place.start as u64..place.end as u64) {
            let strip = self.data_strip(piece.row as usize, piece.strip);
            let bytes = &strip[piece.within.start as usize..piece.within.end as usize];
            if all.is_empty() {
                all = Cow::Borrowed(bytes);
            } else {
                all.to_mut().extend_from_slice(bytes);
            }
        }
        Some(all)
    }

    /// Puts the right bytes at an offset of the data, and records the strips that were wrong.
    fn replace(&mut self, at: usize, bytes: &[u8]) {
        for piece in self.rows.pieces(at as u64..(at + bytes.len()) as u64) {
            let (row, strip) = (piece.row as usize, piece.strip);
            if self.whole[row] {
                let made = self.made.remove(&(row, strip));
                let mut made = made.unwrap_or_else(|| self.data_strip(row, strip).to_vec());
                let within = piece.within.start as usize..piece.within.end as usize;
                if made[within.clone()] != bytes[piece.place()] {
                    self.wrong.insert((row, strip));
                }
                made[within].copy_from_slice(&bytes[piece.place()]);
                self.made.insert((row, strip), made);
            }
        }
    }
}

impl Stretch<'_> {
    /// Returns for each byte of a data strip whether the byte belongs to a verified or replaced
    /// block.
    fn proved_of(&self, row: usize, strip: usize) -> Vec<bool> {
        let mut proved = vec![false; self.strip_bytes()];
        let start = row * self.row_bytes() + strip * self.strip_bytes();
        let own = start..start + self.strip_bytes();
        for place in &self.proved {
            let (from, to) = (place.start.max(own.start), place.end.min(own.end));
            if from < to {
                proved[from - start..to - start].fill(true);
            }
        }
        proved
    }

    /// Returns the known strips of a whole row, except the strips in `lost`.
    fn known(&self, row: usize, lost: &[usize]) -> Vec<Option<&[u8]>> {
        let read = self.read(row);
        let known = |strip: usize| {
            let is_data = strip < self.rows.data;
            if is_data { Some(self.data_strip(row, strip)) } else { read[strip] }
        };
        (0..read.len()).map(|strip| known(strip).filter(|_| !lost.contains(&strip))).collect()
    }

    /// Computes the `lost` data strips of a row from its other strips.
    fn computed(&self, row: usize, lost: &[usize]) -> Vec<(usize, Vec<u8>)> {
        let (recovery, known) =
            (Recovery::new(self.rows.data, self.rows.parity, lost), self.known(row, lost));
        let data = lost.iter().filter(|strip| **strip < self.rows.data);
        let computed = |strip: &usize| {
            let mut out = vec![0; self.strip_bytes()];
            recovery.strip(*strip, &known, &mut out);
            (*strip, out)
        };
        data.map(computed).collect()
    }

    /// Compares a known strip with `bytes`: with `proved` only inside verified and replaced blocks,
    /// otherwise only outside of them. Returns true if they are equal there.
    fn agrees(&self, row: usize, strip: usize, bytes: &[u8], proved: bool) -> bool {
        let (own, is_proved) = (self.data_strip(row, strip), self.proved_of(row, strip));
        let same = own.iter().zip(bytes).map(|(own, byte)| own == byte);
        same.zip(is_proved).all(|(same, is_proved)| same || is_proved != proved)
    }

    /// Corrects the dead bytes of strips that failed a checksum. The parity of the row covers dead
    /// bytes too, but no checksum does, so the other strips of the row must confirm or determine
    /// the dead bytes. Returns false if the other strips can do neither. If a leg returned wrong
    /// bytes, its dead bytes may be wrong too, so a scan does not write them back unconfirmed.
    fn trust(&mut self, row: usize) -> bool {
        let mut lost: Vec<usize> =
            self.wrong.range((row, 0)..(row + 1, 0)).map(|(_, strip)| *strip).collect();
        if lost.is_empty() {
            return true;
        }
        let (wrong, read) = (lost.clone(), self.read(row));
        let missing: Vec<usize> = (0..read.len()).filter(|strip| read[*strip].is_none()).collect();
        lost.extend(&missing);
        lost.sort_unstable();
        lost.dedup();
        let others: Vec<usize> = (0..read.len()).filter(|strip| !lost.contains(strip)).collect();
        for more in 0..=self.rows.parity.saturating_sub(lost.len()) {
            if lost.len() > self.rows.parity {
                break;
            }
            for set in subsets(&others, more) {
                let mut lost: Vec<usize> = lost.iter().copied().chain(set).collect();
                lost.sort_unstable();
                let computed = self.computed(row, &lost);
                if computed.iter().all(|(strip, bytes)| self.agrees(row, *strip, bytes, true)) {
                    let computed = computed.into_iter().map(|(strip, made)| ((row, strip), made));
                    self.made.extend(computed);
                    return true;
                }
            }
        }
        let agrees = |strip: &usize| {
            let computed = self.computed(row, &[*strip]);
            self.agrees(row, *strip, &computed[0].1, false)
        };
        missing.is_empty() && wrong.iter().all(agrees)
    }
}

impl Vdev {
    pub(crate) fn has_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// For raidz: returns a predicate that is true if a run of blocks must end between two adjacent
    /// blocks, because whole rows lie between the blocks or because the run would exceed the
    /// maximum length of one read. Its arguments are the first block of the run and the two
    /// adjacent blocks.
    pub(crate) fn row_split(&self) -> Option<impl Fn(&Live, &Live, &Live) -> bool> {
        let rows = self.rows?;
        let row = move |at: u64| at / rows.row_bytes();
        Some(move |first: &Live, before: &Live, next: &Live| {
            let rows_max = LEG_BYTES_MAX / rows.strip_bytes;
            // Split a run of blocks only between rows. Only the end of a scan step can end a run
            // within a row.
            row(next.at) > row(before.end() - 1)
                && (row(next.at) > row(before.end() - 1) + 1
                    || row(next.at) - row(first.at) >= rows_max)
        })
    }

    /// Returns the bytes, on all legs, of the rows that a run covers.
    pub(crate) fn bytes_of_rows(&self, run: &Part<'_>) -> usize {
        let rows = self.rows.map_or(0, |rows| {
            let count = run.len() as u64 / rows.row_bytes() + 2;
            count * rows.strip_bytes * rows.strips() as u64
        });
        rows as usize
    }

    /// Checks rows on every leg, from the first to the last block of `run`. Leaves rows with an
    /// unverified live block unchanged: parity computed from a bad block would destroy the only way
    /// to reconstruct that block.
    pub(crate) async fn check_rows(&self, scope: &Scope<'_>, run: Part<'_>) -> Checked {
        let rows = &self.rows.expect("the caller asked");
        let row_bytes = rows.row_bytes();
        let items = run.items();
        let first_row = (run.start + items[0].at) / row_bytes;
        let end_row = (run.start + items[0].at + run.len() as u64).div_ceil(row_bytes);
        let count = (end_row - first_row) as usize;
        let legs = self.read_strips(rows, scope, first_row, count).await;
        let mut stretch = Stretch::new(rows, first_row, legs, count);

        // Include the earlier blocks of the first row: a scan step may end anywhere in a row, and
        // the next step may run much later.
        let base = first_row * row_bytes - run.start;
        let reaches_in = |live: &&Live| live.end() > base;
        let before = run.all[..run.from].iter().rev().take_while(reaches_in);
        let (mut checked, mut bad) = (Checked::default(), vec![false; count]);
        let before = before.map(|live| (None, live));
        let items = (run.from..).map(Some).zip(items);
        for (of_run, live) in before.chain(items) {
            let known = self.verify_live(scope, &mut stretch, (run.start, base), live).await;
            if !known {
                of_run.into_iter().for_each(|index| checked.lose(index));
                let end = (live.end() - base).div_ceil(row_bytes) as usize;
                let start = live.at.saturating_sub(base) / row_bytes;
                bad[start as usize..end.min(count)].fill(true);
            }
        }
        // If the next run has blocks in the last row, the next run checks that row.
        let next = run.all.get(run.to).filter(|next| next.at < base + count as u64 * row_bytes);
        let owned = next.map_or(count, |next| ((next.at - base) / row_bytes) as usize);
        // The planted bug `ParityAnewTooEarly` has an effect only if dead bytes stay as a leg
        // returned them.
        let is_trusted = self.repairs_unverified() || self.bug == PlantedBug::ParityAnewTooEarly;
        for (row, bad) in bad.iter_mut().enumerate().take(owned) {
            if !*bad && stretch.whole[row] && !is_trusted && !stretch.trust(row) {
                tracing::debug!(vdev = self.index, row, "row is left to a later scrub");
                checked.unrepaired += 1;
                *bad = true;
            }
        }
        checked.add(self.settle_rows(scope, &stretch, &bad, owned).await);
        checked
    }

    /// Reads the strips of rows from each complete leg.
    async fn read_strips(
        &self,
        rows: &Rows,
        scope: &Scope<'_>,
        first_row: u64,
        count: usize,
    ) -> Vec<LegStrips> {
        let (strip, at) = (rows.strip_bytes as usize, self.base + rows.leg_offset(first_row, 0));
        let reads = self.legs.iter().map(|leg| async move {
            let (buf, mut there) = (IoBuf::for_read(count * strip), vec![false; count]);
            let wanted = scope.good.iter().any(|good| std::ptr::eq(*good, leg));
            // Exclude a leg that reconnected during the scan: it is stale and may have older bytes.
            let Some(device) = leg.usable().filter(|_| wanted && leg.is_whole()) else {
                return LegStrips { buf, there };
            };
            let (done, mut buf) = device.read_at(at, buf).await;
            if done.is_ok() {
                there.fill(true);
                return LegStrips { buf, there };
            }
            // Read each strip alone: one unreadable sector must not hide the leg's readable strips.
            for (row, there) in there.iter_mut().enumerate() {
                let place = row * strip;
                let (done, one) = device.read_at(at + place as u64, IoBuf::zeroed(strip)).await;
                *there = done.map_err(|error| leg.count_read_error(&error)).is_ok();
                buf[place..place + strip].copy_from_slice(&one);
            }
            LegStrips { buf, there }
        });
        stream::iter(reads).buffered(scope.legs_in_flight).collect().await
    }

    /// Returns true if the stretch holds the right bytes of a block; reads all legs if necessary.
    /// `base`: the first row's offset in the segment.
    async fn verify_live(
        &self,
        scope: &Scope<'_>,
        stretch: &mut Stretch<'_>,
        (start, base): (u64, u64),
        live: &Live,
    ) -> bool {
        let end = base + stretch.len() as u64;
        let inside = live.at >= base && live.end() <= end;
        if inside {
            let place = (live.at - base) as usize..(live.end() - base) as usize;
            if stretch.bytes(place.clone()).is_some_and(|bytes| proves(live.proof, &bytes)) {
                stretch.proved.push(place);
                return true;
            }
        }
        let Ok(good) = self.read_or_recall(scope, start, live).await else { return false };
        let (from, to) = (live.at.max(base), live.end().min(end));
        let part = &good[(from - live.at) as usize..(to - live.at) as usize];
        stretch.replace((from - base) as usize, part);
        stretch.proved.push((from - base) as usize..(to - base) as usize);
        true
    }

    /// Compares the first `owned` rows with their right content and writes the strips that differ.
    /// Writes whole strips, because the parity of live blocks also covers the dead bytes of their
    /// row. A power failure between two strip writes leaves a row without its full redundancy,
    /// never with less redundancy than before: the strips were wrong already.
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
        // For each leg: the strips to write, each at the offset of its row, and the numbers of
        // these rows.
        let mut writes: Vec<(Option<IoBuf>, Vec<usize>)> = Vec::new();
        writes.resize_with(self.legs.len(), Default::default);
        for row in 0..owned {
            if bad[row] {
                // In a row with damage, the scan cannot compute the strips that a leg lacks.
                let lacks = scope.kind == ScanKind::Resilver && !scope.behind.is_empty();
                checked.unrepaired += u64::from(lacks);
                continue;
            }
            if !stretch.whole[row] {
                checked.unrepaired += u64::from(scope.kind == ScanKind::Resilver);
                continue;
            }
            let data: Vec<&[u8]> =
                (0..rows.data).map(|strip| stretch.data_strip(row, strip)).collect();
            let mut into: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            parity::encode(&data, &mut into);
            let expected = data.into_iter().chain(parity.iter().map(Vec::as_slice));
            let read = stretch.read(row);
            for (strip, must) in expected.enumerate() {
                let theirs = read[strip];
                let unchanged = strip < rows.data && !stretch.made.contains_key(&(row, strip));
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
                let differs = asked && theirs.is_some();
                if differs && !scope.settles {
                    let at = rows.leg_offset(stretch.first + row as u64, 0);
                    leg.checksum_errors.count(self.base + at);
                }
                if differs
                    && strip >= rows.data
                    && !self.may_make_parity(scope, stretch, row, &mut checked).await
                {
                    continue;
                }
                let (buf, rows_of) = &mut writes[index];
                let buf = buf.get_or_insert_with(|| IoBuf::zeroed(owned * strip_bytes));
                buf[row * strip_bytes..][..strip_bytes].copy_from_slice(must);
                rows_of.push(row);
            }
        }
        let at = rows.leg_offset(stretch.first, 0);
        for (leg, (buf, rows_of)) in self.legs.iter().zip(writes) {
            let Some(buf) = buf.map(Arc::new) else { continue };
            for run in rows_of.chunk_by(|a, b| a + 1 == *b) {
                let place = run[0] * strip_bytes..(run[0] + run.len()) * strip_bytes;
                let offset = at + place.start as u64;
                if self.write_strips(leg, offset, &buf, place).await {
                    checked.repaired_bytes += (run.len() * strip_bytes) as u64;
                    if scope.kind == ScanKind::Scrub {
                        tracing::warn!(disk = %leg.path(), offset, "bad copy repaired");
                    }
                } else if leg.still_lacks(scope.kind) {
                    checked.unrepaired += run.len() as u64;
                }
            }
        }
        checked
    }

    /// Returns true if the scan may rewrite the wrong parity of a row now. If not, counts the row
    /// for the second pass, which follows a commit. The scan does not verify blocks freed since the
    /// last commit, but a power failure makes these blocks live again. If such a block is bad on
    /// its leg, only the old parity can reconstruct it.
    async fn may_make_parity(
        &self,
        scope: &Scope<'_>,
        stretch: &Stretch<'_>,
        row: usize,
        checked: &mut Checked,
    ) -> bool {
        if !scope.settles {
            let early = self.bug == PlantedBug::ParityAnewTooEarly;
            checked.postponed += u64::from(!early);
            return early;
        }
        if self.repairs_unverified() || self.reads_same_again(scope, stretch, row).await {
            return true;
        }
        checked.unrepaired += 1;
        false
    }

    /// Returns true if a scan may compute parity from data strips that no live block covers: none
    /// of the row's data legs returned wrong bytes in these rows, and a second read returns the
    /// same bytes.
    async fn reads_same_again(&self, scope: &Scope<'_>, stretch: &Stretch<'_>, row: usize) -> bool {
        let rows = stretch.rows;
        let first = stretch.first + row as u64;
        let leg_of = |(row, strip): &(usize, usize)| rows.leg(stretch.first + *row as u64, *strip);
        let data: Vec<usize> = (0..rows.data).map(|strip| rows.leg(first, strip)).collect();
        if stretch.wrong.iter().any(|wrong| data.contains(&leg_of(wrong))) {
            return false;
        }
        let again = self.read_strips(rows, scope, first, 1).await;
        let read = stretch.read(row);
        (0..rows.data).all(|strip| {
            let again = &again[rows.leg(first, strip)];
            read[strip].is_none_or(|read| again.there[0] && again.buf[..] == *read)
        })
    }

    /// Writes strips to a leg and reads them back. Returns true if the bytes read equal the bytes
    /// written.
    async fn write_strips(
        &self,
        leg: &Leg,
        at: u64,
        buf: &Arc<IoBuf>,
        place: Range<usize>,
    ) -> bool {
        let Some(device) = leg.usable() else { return false };
        let (at, len) = (self.base + at, place.len());
        let _repair = self.repairs.hold(at..at + len as u64).await;
        let write = device.write_at(at, Arc::clone(buf), place.clone(), Durability::Cached);
        if let Err(error) = write.await {
            leg.fault(&error);
            return false;
        }
        let (done, back) = device.read_at(at, IoBuf::for_read(len)).await;
        let read = done.map_err(|error| leg.count_read_error(&error)).is_ok();
        let is_right = read && back[..] == buf[place];
        if is_right {
            leg.checksum_errors.forget(&(at..at + len as u64));
        }
        is_right
    }
}

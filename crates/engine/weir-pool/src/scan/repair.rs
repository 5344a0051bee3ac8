//! Rewrites bad copies on a leg, in whole sectors and with trusted bytes only.
//!
//! Not here: finding bad copies (`copies`, `vdev`), raidz rows (`raidz_rows`).
//!
//! Invariants:
//! - a repair writes only bytes that [`Vdev::right_sectors`] trusts;
//! - a sector with a byte that a repair may not write stays bad until a later scrub;
//! - a repair reads each written sector back and compares it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use weir_block::IoBuf;
use weir_device::Durability;

use crate::disks::leg::Leg;
use crate::disks::vdev::Vdev;
use crate::scan::part::{Part, Unread};
use crate::tree::live::Live;

/// Bytes of one leg, rounded out to sectors.
pub(crate) struct Span {
    pub(crate) buf: IoBuf,
    /// Offset of the run's first byte in the buffer.
    pub(crate) within: usize,
}

impl Span {
    pub(crate) fn part(&self, range: &Range<usize>) -> &[u8] {
        &self.buf[self.within + range.start..self.within + range.end]
    }
}

/// Right bytes of live blocks of a segment, by index in the segment's list of live blocks.
pub(crate) type Proved = BTreeMap<usize, Vec<u8>>;

/// Neighbouring blocks and the bytes that the legs of a mirror returned for them.
pub(crate) struct Run<'a> {
    pub(crate) part: Part<'a>,
    pub(crate) legs: &'a [&'a Leg],
    pub(crate) spans: &'a [Option<Span>],
    /// For each block of the part and each leg: whether the copy of the block on the leg is right.
    pub(crate) good: &'a [bool],
}

impl Run<'_> {
    /// Returns the start of the spans in the vdev's segment area, before rounding to sectors.
    fn at(&self) -> u64 {
        self.part.start + self.part.items()[0].at
    }

    /// For each leg, true if the leg's copy of a block is right. `None` for a block outside the
    /// part.
    fn good_of(&self, block: usize) -> Option<&[bool]> {
        let index = block.checked_sub(self.part.from)?;
        self.good.chunks(self.legs.len()).nth(index)
    }

    /// Returns a leg that has the right copy of one of these blocks.
    fn good_leg(&self, blocks: &[usize]) -> Option<usize> {
        let has = |leg: &usize| {
            let good = |block: &usize| self.good_of(*block).is_some_and(|good| good[*leg]);
            self.spans[*leg].is_some() && blocks.iter().any(good)
        };
        (0..self.legs.len()).find(has)
    }

    /// Returns the right bytes of a block if a leg's copy in this run is right.
    fn right_copy(&self, block: usize) -> Option<&[u8]> {
        let good = self.good_of(block)?;
        let live = &self.part.all[block];
        let place = (live.at - self.part.items()[0].at) as usize;
        let leg = good.iter().position(|good| *good)?;
        self.spans[leg].as_ref().map(|span| span.part(&(place..place + live.len)))
    }
}

/// Sectors to write, with the bad blocks in them.
struct Sectors {
    /// Byte range in the vdev's segment area.
    range: Range<u64>,
    blocks: Vec<usize>,
}

/// Result of a repair.
#[derive(Default)]
pub(crate) struct Repaired {
    /// Stored bytes of blocks with a repaired copy.
    pub(crate) bytes: u64,
    /// Blocks whose copy is still bad after the repair.
    pub(crate) failed: u64,
}

impl Vdev {
    /// Rewrites the copies of the `bad` blocks on one leg of a run. `proved` has the right bytes of
    /// these blocks.
    pub(crate) async fn repair(
        &self,
        run: &Run<'_>,
        leg: usize,
        bad: &[usize],
        proved: &mut Proved,
    ) -> Repaired {
        let mut repaired = Repaired::default();
        for sectors in self.sectors_of(run.part, bad) {
            let right = if self.repairs_unverified() {
                self.unverified_sectors(run, leg, &sectors, proved).await
            } else {
                self.right_sectors(run, leg, &sectors, proved).await
            };
            let done = match right {
                Some(bytes) => self.write_sectors(run.legs[leg], sectors.range.start, bytes).await,
                None => false,
            };
            if done {
                let bytes = sectors.blocks.iter().map(|block| run.part.all[*block].len as u64);
                repaired.bytes += bytes.sum::<u64>();
            } else {
                repaired.failed += sectors.blocks.len() as u64;
            }
        }
        repaired
    }

    /// Returns the sectors of some blocks; blocks with common or adjacent sectors share a range.
    fn sectors_of(&self, part: Part<'_>, blocks: &[usize]) -> Vec<Sectors> {
        let mut all: Vec<Sectors> = Vec::new();
        if self.repairs_unverified() {
            let (start, _, len) = self.round_out(part.start + part.items()[0].at, part.len());
            return vec![Sectors { range: start..start + len as u64, blocks: blocks.to_vec() }];
        }
        for block in blocks {
            let live = &part.all[*block];
            let (start, _, len) = self.round_out(part.start + live.at, live.len);
            let range = start..start + len as u64;
            match all.last_mut().filter(|last| range.start <= last.range.end) {
                Some(last) => {
                    last.range.end = last.range.end.max(range.end);
                    last.blocks.push(*block);
                }
                None => all.push(Sectors { range, blocks: vec![*block] }),
            }
        }
        all
    }

    /// Computes the right content of some sectors of a leg; `None` if some bytes in them cannot be
    /// verified now.
    ///
    /// A block shares its first and last sector with its neighbours. A leg may return wrong bytes
    /// for these neighbours while its disk holds the right bytes, because a cable or a controller
    /// flips bits on reads. A repair that wrote the returned bytes back would destroy the right
    /// bytes. So a repair writes a byte only if
    /// - the byte belongs to a live block that matched its checksum on any leg; or
    /// - the byte belongs to no live block, and the leg with the right copy of the repaired block
    ///   returned it. If no leg of this vdev has the right copy, two reads of the repaired leg must
    ///   agree. On a leg that missed writes, a live block without a right copy counts as no live
    ///   block. If neither leg returned the sectors, the repair writes zeros there.
    async fn right_sectors(
        &self,
        run: &Run<'_>,
        leg: usize,
        Sectors { range, blocks }: &Sectors,
        proved: &mut Proved,
    ) -> Option<IoBuf> {
        let len = (range.end - range.start) as usize;
        let (first, within, _) = self.round_out(run.at(), run.part.len());
        let place = (range.start - first) as usize;
        let of_leg = |leg: usize| {
            let span = run.spans[leg].as_ref()?;
            assert_eq!(span.within, within, "spans of one run begin at the same place");
            span.buf.get(place..place + len)
        };
        let mut out = IoBuf::zeroed(len);
        let mut is_known = vec![false; len];
        for (block, live) in blocks_in(run.part, range) {
            let right = match proved.entry(block) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => match run.right_copy(block) {
                    Some(right) => place.insert(right.to_vec()),
                    None => match self.read_any_copy(run.part.start, live).await {
                        Ok(right) => place.insert(right),
                        // A complete leg may have the last good copy, so overwrite unverified bytes
                        // only on legs that missed writes.
                        Err(unread) if unread == Unread::Damaged && !run.legs[leg].is_whole() => {
                            continue;
                        }
                        Err(_) => return None,
                    },
                },
            };
            let (from, at) = overlap(run.part.start + live.at, live.len, range);
            out[at.clone()].copy_from_slice(&right[from]);
            is_known[at].fill(true);
        }
        if is_known.iter().all(|known| *known) {
            return Some(out);
        }
        let (theirs, again) = match run.good_leg(blocks).and_then(of_leg) {
            Some(good) => (Some(good), None),
            // The leg cannot return these sectors, so it has no bytes that the write would destroy.
            None => match of_leg(leg) {
                Some(own) => (Some(own), Some(self.read_again(run.legs[leg], range).await?)),
                None => (None, None),
            },
        };
        for at in (0..len).filter(|at| !is_known[*at]) {
            let Some(theirs) = theirs else { break };
            if again.as_ref().is_some_and(|again| again[at] != theirs[at]) {
                return None;
            }
            out[at] = theirs[at];
        }
        Some(out)
    }

    /// Planted bug: returns the sectors of the leg with only the bad blocks corrected. The other
    /// bytes of these sectors are unverified.
    async fn unverified_sectors(
        &self,
        run: &Run<'_>,
        leg: usize,
        Sectors { range, blocks }: &Sectors,
        proved: &Proved,
    ) -> Option<IoBuf> {
        let mut out = self.read_again(run.legs[leg], range).await?;
        for block in blocks {
            let live = &run.part.all[*block];
            let (from, at) = overlap(run.part.start + live.at, live.len, range);
            let right = proved.get(block).map(Vec::as_slice);
            out[at].copy_from_slice(&right.or_else(|| run.right_copy(*block))?[from]);
        }
        Some(out)
    }

    async fn read_again(&self, leg: &Leg, range: &Range<u64>) -> Option<IoBuf> {
        let len = (range.end - range.start) as usize;
        let device = leg.usable()?;
        let (done, buf) = device.read_at(self.base + range.start, IoBuf::for_read(len)).await;
        done.map_err(|error| leg.count_read_error(&error)).ok()?;
        Some(buf)
    }

    /// Writes sectors to a leg and reads them back. Returns true if the bytes read equal the bytes
    /// written.
    pub(crate) async fn write_sectors(&self, leg: &Leg, offset: u64, bytes: IoBuf) -> bool {
        let Some(device) = leg.usable() else { return false };
        let (at, len, bytes) = (self.base + offset, bytes.len(), Arc::new(bytes));
        let _repair = self.repairs.hold(at..at + len as u64).await;
        let write = device.write_at(at, Arc::clone(&bytes), 0..len, Durability::Cached);
        if let Err(error) = write.await {
            leg.fault(&error);
            return false;
        }
        let (done, back) = device.read_at(at, IoBuf::for_read(len)).await;
        let read = done.map_err(|error| leg.count_read_error(&error)).is_ok();
        let is_right = read && back[..] == bytes[..];
        if is_right {
            leg.checksum_errors.forget(&(at..at + len as u64));
        }
        is_right
    }
}

/// Returns the live blocks in a range of the vdev's segment area, with their indexes.
fn blocks_in<'a>(part: Part<'a>, range: &Range<u64>) -> Vec<(usize, &'a Live)> {
    let to = part.all.partition_point(|live| part.start + live.at < range.end);
    let reaches_in = |(_, live): &(usize, &Live)| part.start + live.end() > range.start;
    part.all[..to].iter().enumerate().rev().take_while(reaches_in).collect()
}

/// Returns the overlap of a block at `start` and a range, as a range of the block and as a range
/// within `range`.
fn overlap(start: u64, len: usize, range: &Range<u64>) -> (Range<usize>, Range<usize>) {
    let (from, to) = (start.max(range.start), (start + len as u64).min(range.end));
    let relative = |to_what: u64| (from - to_what) as usize..(to - to_what) as usize;
    (relative(start), relative(range.start))
}

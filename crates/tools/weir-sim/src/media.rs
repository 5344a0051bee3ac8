//! Content of a simulated disk: sparse, and cheap to copy. [`crate::SimDisk`] tracks which writes
//! are durable; [`crate::CutPlan`] decides what a power cut keeps.
//!
//! Invariants:
//! - a block that was never written reads as zeros and uses no memory;
//! - copies share each block until one of them writes it, so one instant is cut hundreds of times
//!   without copying disks;
//! - an unreadable sector stays unreadable across copies and power cuts, until it is overwritten.
//!
//! ```text
//! leaves: offset / 256 KiB -> shared leaf of 64 slots -> shared block of 4 KiB
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weir_base::BLOCK_BYTES;

/// Smallest unit that a disk writes; smaller than any unit that a file system or pool may assume.
pub(crate) const SECTOR_BYTES: usize = 512;
pub(crate) const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;
const BLOCKS_PER_LEAF: u64 = 64;

pub(crate) type BlockBytes = [u8; BLOCK_BYTES];

/// Range of an operation's virtual latency; one in eight operations takes up to seven times as
/// long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Minimum latency.
    pub min: Duration,
    /// Maximum latency, except for the slow operations; at least `min`.
    pub max: Duration,
}

/// Properties of a simulated disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// Name of the disk in error messages.
    pub path: Arc<str>,
    /// Length of the disk in bytes; a multiple of `sector_bytes`.
    pub len_bytes: u64,
    /// Smallest unit that the device accepts: 512 or 4096 bytes.
    pub sector_bytes: u32,
    /// Size of the unit that a power cut keeps or loses as a whole: 512 or 4096 bytes.
    pub atomic_bytes: u32,
    /// If true, a random cut may also keep only a prefix of a unit.
    pub torn_sectors: bool,
    /// Range of the operations' latency.
    pub latency: Latency,
}

impl DiskOptions {
    /// A disk of 512-byte sectors, each written atomically, with a latency of 5 to 200 us.
    pub fn new(path: &str, len_bytes: u64) -> Self {
        let latency = Latency { min: Duration::from_micros(5), max: Duration::from_micros(200) };
        Self {
            path: path.into(),
            len_bytes,
            sector_bytes: 512,
            atomic_bytes: 512,
            torn_sectors: false,
            latency,
        }
    }
}

#[derive(Clone)]
struct Leaf([Option<Arc<BlockBytes>>; BLOCKS_PER_LEAF as usize]);

/// Content of a disk without power.
#[derive(Clone)]
pub struct MediaImage {
    options: DiskOptions,
    leaves: BTreeMap<u64, Arc<Leaf>>,
    /// Numbers of the unreadable sectors.
    bad: BTreeSet<u64>,
}

impl MediaImage {
    /// A new disk full of zeros.
    pub fn blank(options: DiskOptions) -> Self {
        for unit in [options.sector_bytes, options.atomic_bytes] {
            assert!(unit == 512 || unit == 4096, "a sector is 512 or 4096 bytes, not {unit}");
        }
        let whole = options.len_bytes.is_multiple_of(u64::from(options.sector_bytes));
        assert!(whole && options.len_bytes > 0, "a disk is a whole number of sectors");
        assert!(options.latency.min <= options.latency.max, "latency: min is above max");
        Self { options, leaves: BTreeMap::new(), bad: BTreeSet::new() }
    }

    /// Properties of the disk.
    pub fn options(&self) -> &DiskOptions {
        &self.options
    }

    /// Properties to change; the next user of this media sees the changes, such as a new length or
    /// latency.
    pub fn options_mut(&mut self) -> &mut DiskOptions {
        &mut self.options
    }

    /// Reads bytes, even from unreadable sectors.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for (block, within, part) in parts(offset, out.len()) {
            let out = &mut out[part];
            match self.block(block) {
                Some(bytes) => out.copy_from_slice(&bytes[within]),
                None => out.fill(0),
            }
        }
    }

    /// Writes bytes; completely overwritten sectors become readable.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (block, within, part) in parts(offset, data.len()) {
            self.block_mut(block)[within].copy_from_slice(&data[part]);
        }
        let sector = SECTOR_BYTES as u64;
        let whole = offset.div_ceil(sector)..(offset + data.len() as u64) / sector;
        self.mark_readable(whole);
    }

    /// Flips one bit, as bit rot does.
    pub fn flip_bit(&mut self, offset: u64, bit: u32) {
        let at = (offset % BLOCK_BYTES as u64) as usize;
        self.block_mut(offset / BLOCK_BYTES as u64)[at] ^= 1 << (bit % 8);
    }

    /// Makes every sector that overlaps a byte range unreadable.
    pub fn set_unreadable(&mut self, range: Range<u64>) {
        let sector = SECTOR_BYTES as u64;
        self.bad.extend(range.start / sector..range.end.div_ceil(sector));
    }

    /// True if a byte range overlaps an unreadable sector.
    pub fn is_unreadable(&self, range: Range<u64>) -> bool {
        let sector = SECTOR_BYTES as u64;
        !self.bad.is_empty()
            && self.bad.range(range.start / sector..range.end.div_ceil(sector)).next().is_some()
    }

    /// Number of blocks that use memory.
    pub fn stored_blocks(&self) -> usize {
        self.leaves.values().map(|leaf| leaf.0.iter().flatten().count()).sum()
    }

    pub(crate) fn block(&self, block: u64) -> Option<&Arc<BlockBytes>> {
        let leaf = self.leaves.get(&(block / BLOCKS_PER_LEAF))?;
        leaf.0[(block % BLOCKS_PER_LEAF) as usize].as_ref()
    }

    /// Copies the sectors in `mask` from `bytes` to a block.
    pub(crate) fn put_sectors(&mut self, block: u64, mask: u8, bytes: &Arc<BlockBytes>) {
        if mask == u8::MAX {
            *self.slot(block) = Some(Arc::clone(bytes));
        } else if mask != 0 {
            let target = self.block_mut(block);
            for sector in sectors_of(mask) {
                let range = sector_range(sector);
                target[range.clone()].copy_from_slice(&bytes[range]);
            }
        }
        if !self.bad.is_empty() {
            let first = block * SECTORS_PER_BLOCK as u64;
            sectors_of(mask)
                .for_each(|s| self.mark_readable(first + s as u64..first + s as u64 + 1));
        }
    }

    /// Copies some bytes of one block, as a torn write does.
    pub(crate) fn put_bytes(&mut self, block: u64, range: Range<usize>, bytes: &BlockBytes) {
        self.block_mut(block)[range.clone()].copy_from_slice(&bytes[range]);
    }

    /// Replaces the content of a block; unreadable sectors stay unreadable.
    pub(crate) fn replace_block(&mut self, block: u64, content: Option<Arc<BlockBytes>>) {
        if content.is_some() || self.block(block).is_some() {
            *self.slot(block) = content;
        }
    }

    /// Fills a block with zeros.
    pub(crate) fn clear_block(&mut self, block: u64) {
        self.replace_block(block, None);
        let first = block * SECTORS_PER_BLOCK as u64;
        self.mark_readable(first..first + SECTORS_PER_BLOCK as u64);
    }

    fn mark_readable(&mut self, sectors: Range<u64>) {
        if !self.bad.is_empty() {
            self.bad.retain(|sector| !sectors.contains(sector));
        }
    }

    fn slot(&mut self, block: u64) -> &mut Option<Arc<BlockBytes>> {
        let leaf = self
            .leaves
            .entry(block / BLOCKS_PER_LEAF)
            .or_insert_with(|| Arc::new(Leaf(std::array::from_fn(|_| None))));
        &mut Arc::make_mut(leaf).0[(block % BLOCKS_PER_LEAF) as usize]
    }

    fn block_mut(&mut self, block: u64) -> &mut BlockBytes {
        let slot = self.slot(block).get_or_insert_with(|| Arc::new([0; BLOCK_BYTES]));
        Arc::make_mut(slot)
    }
}

impl std::fmt::Debug for MediaImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MediaImage")
            .field("options", &self.options)
            .field("stored_blocks", &self.stored_blocks())
            .field("unreadable_sectors", &self.bad.len())
            .finish_non_exhaustive()
    }
}

/// The bytes of a write that lie in one block.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) block: u64,
    /// Mask of the sectors of the block that are written; bit n is sector n.
    pub(crate) mask: u8,
    pub(crate) bytes: Arc<BlockBytes>,
}

impl Piece {
    /// Splits a write of whole sectors into one piece for each block.
    pub(crate) fn split(offset: u64, data: &[u8]) -> Vec<Self> {
        parts(offset, data.len())
            .map(|(block, within, part)| {
                let mut bytes = [0; BLOCK_BYTES];
                bytes[within.clone()].copy_from_slice(&data[part]);
                let sectors = within.start / SECTOR_BYTES..within.end / SECTOR_BYTES;
                let mask = sectors.fold(0, |mask, sector| mask | 1 << sector);
                Self { block, mask, bytes: Arc::new(bytes) }
            })
            .collect()
    }

    /// Units of the piece that a cut keeps or loses as a whole, each as a mask of its sectors.
    pub(crate) fn units(&self, atomic_bytes: u32) -> impl Iterator<Item = u8> + use<> {
        let mask = self.mask;
        let whole = atomic_bytes as usize == BLOCK_BYTES;
        let one = (whole && mask != 0).then_some(mask);
        let each = (!whole).then(|| sectors_of(mask).map(|sector| 1 << sector));
        one.into_iter().chain(each.into_iter().flatten())
    }
}

pub(crate) fn sectors_of(mask: u8) -> impl Iterator<Item = usize> {
    (0..SECTORS_PER_BLOCK).filter(move |sector| mask & (1 << sector) != 0)
}

fn sector_range(sector: usize) -> Range<usize> {
    sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES
}

/// Bytes of a block from the first to the last sector in a mask.
pub(crate) fn span(mask: u8) -> Range<usize> {
    let first = mask.trailing_zeros() as usize;
    let end = SECTORS_PER_BLOCK - mask.leading_zeros() as usize;
    first * SECTOR_BYTES..end * SECTOR_BYTES
}

/// Mask of the sectors that are completely inside a byte range, in the block that contains `at`.
pub(crate) fn sector_mask(range: &Range<u64>, at: u64) -> u8 {
    let start = at - at % BLOCK_BYTES as u64;
    let inside = |sector: &usize| {
        let begin = start + (sector * SECTOR_BYTES) as u64;
        range.start <= begin && begin + SECTOR_BYTES as u64 <= range.end
    };
    (0..SECTORS_PER_BLOCK).filter(inside).fold(0, |mask, sector| mask | 1 << sector)
}

/// Splits a byte range at block borders; returns block, range inside the block, and range inside
/// the buffer.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % BLOCK_BYTES as u64) as usize;
        let count = (BLOCK_BYTES - start).min(len - done);
        let part = done..done + count;
        done += count;
        Some((at / BLOCK_BYTES as u64, start..start + count, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank() -> MediaImage {
        MediaImage::blank(DiskOptions::new("m", 1 << 40))
    }

    #[test]
    fn reads_return_written_data_across_blocks_and_leaves() {
        let mut image = blank();
        let data: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
        image.write(1_000_003, &data);
        let mut back = vec![0xff; data.len() + 2];
        image.read(1_000_002, &mut back);
        assert_eq!(back[0], 0);
        assert_eq!(back[1..=data.len()], data);
        assert_eq!(back[data.len() + 1], 0);
    }

    #[test]
    fn copies_are_independent() {
        let mut first = blank();
        first.write(0, &[1; 8192]);
        let mut second = first.clone();
        second.write(4096, &[2; 512]);
        let mut byte = [0];
        first.read(4096, &mut byte);
        assert_eq!(byte, [1]);
        second.read(4096, &mut byte);
        assert_eq!(byte, [2]);
        assert_eq!(second.stored_blocks(), 2);
    }

    #[test]
    fn unreadable_sector_becomes_readable_only_by_a_full_overwrite() {
        let mut image = blank();
        image.set_unreadable(1000..1030);
        assert!(image.is_unreadable(512..1024) && image.is_unreadable(1024..1536));
        assert!(!image.is_unreadable(1536..4096));
        image.write(600, &[0; 800]);
        assert!(image.is_unreadable(512..1024) && image.is_unreadable(1024..1536));
        image.write(512, &[0; 1024]);
        assert!(!image.is_unreadable(0..4096));
    }

    #[test]
    fn pieces_cover_exactly_the_written_sectors() {
        let pieces = Piece::split(4096 - 1024, &[7; 1024 + 4096 + 512]);
        let shape: Vec<_> = pieces.iter().map(|p| (p.block, p.mask)).collect();
        assert_eq!(shape, [(0, 0b1100_0000), (1, 0xff), (2, 1)]);
        assert_eq!(pieces[0].units(512).collect::<Vec<_>>(), [0b0100_0000, 0b1000_0000]);
        assert_eq!(pieces[0].units(4096).collect::<Vec<_>>(), [0b1100_0000]);
        assert_eq!(span(0b1100_0000), 3072..4096);
    }
}

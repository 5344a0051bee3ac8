//! The dedupe index: maps content to blocks that may hold it, in bounded RAM.
//!
//! The comparison of contents is in `txg::dedupe`, reference counts in
//! `segments::reference_counts`.
//!
//! Invariants:
//! - a lost or wrong entry (`dedupe_entry`) costs dedupe savings, never data;
//! - freeing a block removes its entry: the freed pointer contains the key of the entry;
//! - when a read or a scrub finds no good copy of a block, the block has no entry until the next
//!   import: dedupe must not refer restored content to the lost block;
//! - the index uses no more RAM than configured, however many blocks pass through it.

use weir_base::hash::HashSet;
use weir_base::{RecordSize, VsegId};
use weir_format::{BlockPtr, Codec, PtrKind};

/// Slots per bucket. With this number, nearly all buckets are nearly full before the first one is
/// full, and a search of one bucket takes a fraction of a microsecond.
const WAYS: usize = 32;
/// RAM per slot: cost of one block in the index.
pub const SLOT_BYTES: u64 = 20;
/// Maximum number of tracked blocks without a good copy. Above this number the index drops all
/// entries, which costs only dedupe savings.
const DISTRUSTED_MAX: usize = 4096;
const USED: u64 = 1 << 63;
const HIT: u64 = 1 << 62;
const VSEG_BITS: u32 = 40;
const OFFSET_BITS: u32 = 19;

/// Key of a block: equal for blocks of equal content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) checksum: u128,
    pub(crate) stored_units: u16,
    pub(crate) codec: Codec,
    pub(crate) record: RecordSize,
}

impl Content {
    pub(crate) fn of(ptr: &BlockPtr) -> Self {
        let BlockPtr { checksum, stored_units, codec, record, .. } = *ptr;
        Self { checksum, stored_units, codec, record }
    }

    const fn tag(&self) -> u64 {
        self.checksum as u64
    }

    fn form(&self) -> u32 {
        let (codec, shift) = (self.codec.code(), self.record.shift());
        u32::from(self.stored_units) | u32::from(codec) << 16 | u32::from(shift) << 24
    }

    /// Builds a pointer to a block of this content at an address; the other fields are defaults.
    fn at(&self, place: u64) -> BlockPtr {
        BlockPtr {
            kind: PtrKind::Data,
            vseg: VsegId(place & ((1 << VSEG_BITS) - 1)),
            offset_units: (place >> VSEG_BITS & ((1 << OFFSET_BITS) - 1)) as u32,
            stored_units: self.stored_units,
            codec: self.codec,
            record: self.record,
            checksum: self.checksum,
            ..BlockPtr::default()
        }
    }
}

/// Size of the dedupe index, and its statistics since the import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintFigures {
    /// RAM in use, in bytes.
    pub bytes: u64,
    /// Capacity in blocks.
    pub slots: u64,
    /// Number of blocks in the index.
    pub used: u64,
    /// Number of lookups whose entry named a block with the same content.
    pub hits: u64,
    /// Number of lookups whose entry named a block with other content, or an unreadable block.
    pub false_hits: u64,
    /// Number of entries evicted for newer ones.
    pub evicted: u64,
}

/// The dedupe index of one pool.
///
/// Layout: open addressing in buckets of [`WAYS`] slots of 20 bytes: tag (half of the checksum),
/// address, and the other fields that must match. The other half of the checksum selects the
/// bucket. A full bucket evicts a slot that had no hit since the clock hand last passed it.
#[derive(Default)]
pub(crate) struct DedupeIndex {
    tags: Vec<u64>,
    /// For each slot: the address of a block, with the flags [`USED`] and [`HIT`].
    places: Vec<u64>,
    forms: Vec<u32>,
    /// Addresses of blocks without a good copy.
    distrusted: HashSet<u64>,
    hand: usize,
    max_bytes: u64,
    used: u64,
    hits: u64,
    false_hits: u64,
    evicted: u64,
}

impl DedupeIndex {
    /// Changes the RAM limit and drops all entries. The index allocates no RAM before the first
    /// entry.
    pub(crate) fn set_max(&mut self, bytes: u64) {
        if bytes != self.max_bytes {
            let Self { hits, false_hits, evicted, .. } = *self;
            *self = Self { max_bytes: bytes, hits, false_hits, evicted, ..Self::default() };
        }
    }

    fn buckets(&self) -> usize {
        self.tags.len() / WAYS
    }

    fn bucket(&self, content: &Content) -> Option<std::ops::Range<usize>> {
        let buckets = self.buckets() as u128;
        // Multiply the high half of the checksum by the number of buckets: a multiplication is
        // faster than a division and works with any number of buckets.
        let high = content.checksum >> 64;
        let first = ((high * buckets) >> 64) as usize * WAYS;
        (buckets > 0).then_some(first..first + WAYS)
    }

    fn find(&self, content: &Content, place: Option<u64>) -> Option<usize> {
        let mut bucket = self.bucket(content)?;
        // Most lookups miss, and comparing all tags at once detects a miss fastest.
        let tags: &[u64; WAYS] = self.tags[bucket.start..].first_chunk()?;
        if !tags.iter().fold(false, |any, tag| any | (*tag == content.tag())) {
            return None;
        }
        bucket.find(|slot| {
            self.tags[*slot] == content.tag()
                && self.places[*slot] & USED != 0
                && self.forms[*slot] == content.form()
                && place.is_none_or(|place| self.places[*slot] & !(USED | HIT) == place)
        })
    }

    /// Returns a block that may hold this content. The entry may be wrong: dedupe compares the
    /// stored bytes before it shares the block.
    pub(crate) fn get(&mut self, content: &Content) -> Option<BlockPtr> {
        let slot = self.find(content, None)?;
        let place = self.places[slot] & !(USED | HIT);
        if self.distrusted.contains(&place) {
            self.clear(slot);
            return None;
        }
        Some(content.at(place))
    }

    /// Records that a read or a scrub found no good copy of a block. Dedupe no longer refers to the
    /// block. The caller passes the address, because the pointer with the entry's key may be
    /// unknown.
    pub(crate) fn distrust(&mut self, address: u64) {
        if self.distrusted.len() >= DISTRUSTED_MAX {
            let max = std::mem::take(&mut self.max_bytes);
            self.distrusted.clear();
            self.set_max(max);
        }
        self.distrusted.insert(address);
    }

    /// Records whether the block of an entry had the expected content. If not, drops the entry.
    pub(crate) fn judge(&mut self, ptr: &BlockPtr, right: bool) {
        if right {
            self.hits += 1;
        } else {
            self.false_hits += 1;
        }
        let Some(slot) = self.find(&Content::of(ptr), Some(ptr.address())) else { return };
        if right {
            self.places[slot] |= HIT;
        } else {
            self.clear(slot);
        }
    }

    /// Adds a block that was written.
    pub(crate) fn insert(&mut self, ptr: &BlockPtr) {
        if self.tags.is_empty() {
            let slots = (self.max_bytes / SLOT_BYTES) as usize / WAYS * WAYS;
            self.tags = vec![0; slots];
            self.places = vec![0; slots];
            self.forms = vec![0; slots];
        }
        let content = Content::of(ptr);
        let Some(bucket) = self.bucket(&content) else { return };
        // Replace an entry of the same content: dedupe refers to the newest block.
        let known = self.find(&content, None);
        let free = || {
            let places = &self.places[bucket.clone()];
            let is_full = places.iter().fold(USED, |all, place| all & place) != 0;
            if is_full { None } else { bucket.clone().find(|slot| self.places[*slot] & USED == 0) }
        };
        let slot = known.or_else(free).unwrap_or_else(|| self.evict(bucket.start));
        self.used += u64::from(self.places[slot] & USED == 0);
        self.tags[slot] = content.tag();
        self.places[slot] = ptr.address() | USED;
        self.forms[slot] = content.form();
    }

    /// Selects the slot to evict from a full bucket: the next one without a recent hit.
    fn evict(&mut self, first: usize) -> usize {
        self.evicted += 1;
        loop {
            self.hand = (self.hand + 1) % WAYS;
            let slot = first + self.hand;
            if self.places[slot] & HIT == 0 {
                return slot;
            }
            self.places[slot] &= !HIT;
        }
    }

    /// Drops the entry of a block that is freed.
    pub(crate) fn remove(&mut self, ptr: &BlockPtr) {
        if let Some(slot) = self.find(&Content::of(ptr), Some(ptr.address())) {
            self.clear(slot);
        }
    }

    fn clear(&mut self, slot: usize) {
        self.places[slot] = 0;
        self.used -= 1;
    }

    pub(crate) fn figures(&self) -> HintFigures {
        let slots = self.tags.len() as u64;
        let Self { used, hits, false_hits, evicted, .. } = *self;
        HintFigures { bytes: slots * SLOT_BYTES, slots, used, hits, false_hits, evicted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_codec::checksum::xxh3_128;

    fn ptr(n: u64) -> BlockPtr {
        let (checksum, record) = (xxh3_128(&n.to_le_bytes()), RecordSize::BLOCK);
        Content { checksum, stored_units: 64, codec: Codec::Raw, record }
            .at(n << VSEG_BITS & ((1 << (VSEG_BITS + OFFSET_BITS)) - 1) | n >> 10)
    }

    fn index(slots: u64) -> DedupeIndex {
        let mut dedupe_index = DedupeIndex::default();
        dedupe_index.set_max(slots * SLOT_BYTES);
        dedupe_index
    }

    fn known(dedupe_index: &mut DedupeIndex, n: u64) -> bool {
        dedupe_index.get(&Content::of(&ptr(n))) == Some(ptr(n))
    }

    #[test]
    fn entries_within_capacity_are_found_until_freed() {
        let mut dedupe_index = index(64 << 10);
        assert_eq!(dedupe_index.figures().bytes, 0, "none before the first hint");
        (0..40_000).for_each(|n| dedupe_index.insert(&ptr(n)));
        let found = (0..40_000).filter(|n| known(&mut dedupe_index, *n)).count();
        assert!(found > 39_900, "{found}");
        (0..20_000).for_each(|n| dedupe_index.remove(&ptr(n)));
        assert!((0..20_000).all(|n| !known(&mut dedupe_index, n)));
        let left = (20_000..40_000).filter(|n| known(&mut dedupe_index, *n)).count() as u64;
        assert_eq!(dedupe_index.figures().used, left);
        // A block of the same content at another address keeps its entry.
        let twin = BlockPtr { vseg: VsegId(7), ..ptr(30_000) };
        dedupe_index.remove(&twin);
        assert_eq!(dedupe_index.figures().used, left);
        dedupe_index.insert(&twin);
        assert_eq!(dedupe_index.get(&Content::of(&twin)), Some(twin));
        assert_eq!(dedupe_index.figures().used, left, "it took the other's place");
    }

    #[test]
    fn memory_is_bounded_and_hit_entries_stay_longest() {
        let mut dedupe_index = index(4096);
        (0..1000).for_each(|n| dedupe_index.insert(&ptr(n)));
        (0..1000).for_each(|n| dedupe_index.judge(&ptr(n), true));
        let bytes = dedupe_index.figures().bytes;
        (1000..5000).for_each(|n| dedupe_index.insert(&ptr(n)));
        let kept = (0..1000).filter(|n| known(&mut dedupe_index, *n)).count();
        assert!(kept > 900, "{kept}");
        (5000..41_000).for_each(|n| dedupe_index.insert(&ptr(n)));
        let figures = dedupe_index.figures();
        assert_eq!((figures.bytes, figures.hits), (bytes, 1000));
        assert!(figures.used <= 4096 && figures.evicted > 30_000);
        dedupe_index.judge(&ptr(40_999), false);
        assert!(!known(&mut dedupe_index, 40_999));
    }
    #[test]
    fn block_without_a_good_copy_loses_its_entry_to_its_replacement() {
        let mut dedupe_index = index(4096);
        (0..10).for_each(|n| dedupe_index.insert(&ptr(n)));
        dedupe_index.distrust(ptr(3).address());
        assert!((0..10).all(|n| known(&mut dedupe_index, n) == (n != 3)));
        let restored = BlockPtr { vseg: VsegId(9), ..ptr(3) };
        dedupe_index.insert(&restored);
        assert_eq!(dedupe_index.get(&Content::of(&restored)), Some(restored));
        // Too many blocks without a good copy: the index drops all entries.
        (0..DISTRUSTED_MAX as u64).for_each(|n| dedupe_index.distrust(ptr(n + 100).address()));
        assert!((0..10).all(|n| !known(&mut dedupe_index, n)));
        dedupe_index.insert(&ptr(5));
        assert!(known(&mut dedupe_index, 5));
    }
}

//! The dedupe hint index: maps content to blocks that may hold it, in bounded RAM.
//!
//! Not here: comparing contents, and counting references.
//!
//! A hint may be wrong: its user compares the stored bytes before it shares the block. A lost hint
//! costs dedupe savings, never data.
//!
//! Open addressing in buckets of [`WAYS`] slots of 20 bytes: tag (half of the checksum), address,
//! and the other fields that must match. The other half of the checksum selects the bucket. A full
//! bucket evicts a slot that had no hit since the clock hand last passed it.
//!
//! Invariants:
//! - freeing a block removes its hint, because the block's pointer has the key;
//! - when a read or a scrub finds no good copy of a block, the block loses its hint until the next
//!   import: dedupe must not refer restored content to the lost block;
//! - the index uses no more RAM than configured, however many blocks pass through it.

use weir_base::hash::HashSet;
use weir_base::{RecordSize, VsegId};
use weir_format::{BlockPtr, Codec, PtrKind};

/// Slots of a bucket: enough that nearly every bucket is nearly full before any is, and few enough
/// to be searched in a fraction of a microsecond.
const WAYS: usize = 32;
/// RAM of a slot: what the index takes for one block that may be found again.
pub const SLOT_BYTES: u64 = 20;
/// Maximum number of remembered blocks without a good copy. Beyond it the index drops all hints,
/// which costs dedupe savings only.
const DISTRUSTED_MAX: usize = 4096;
const USED: u64 = 1 << 63;
const HIT: u64 = 1 << 62;
const VSEG_BITS: u32 = 40;
const OFFSET_BITS: u32 = 19;

/// Key that blocks of equal content share.
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

    /// A pointer to a block of this content at an address, as far as that says.
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

/// What the index did since it was made, and how large it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintFigures {
    /// Bytes of RAM it takes.
    pub bytes: u64,
    /// Blocks it can know.
    pub slots: u64,
    /// Blocks it knows.
    pub used: u64,
    /// Hints that led to a block of the same content.
    pub hits: u64,
    /// Hints that led nowhere: other content, or a block that could not be read.
    pub false_hits: u64,
    /// Hints given up for newer ones.
    pub evicted: u64,
}

/// The index of one pool.
#[derive(Default)]
pub(crate) struct Hints {
    tags: Vec<u64>,
    /// Address, [`USED`] and [`HIT`].
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

impl Hints {
    /// Changes the most RAM it may take; what it knew is forgotten. It takes none before the first
    /// hint.
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
        // The high half, scaled: no division, and no power of two needed.
        let high = content.checksum >> 64;
        let first = ((high * buckets) >> 64) as usize * WAYS;
        (buckets > 0).then_some(first..first + WAYS)
    }

    fn find(&self, content: &Content, place: Option<u64>) -> Option<usize> {
        let mut bucket = self.bucket(content)?;
        // Mostly it is in none, which a look at all of them at once tells soonest.
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

    /// Where a block of this content may be.
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
    /// block. The caller passes the address, because the pointer with the hint's key may be
    /// unknown.
    pub(crate) fn distrust(&mut self, address: u64) {
        if self.distrusted.len() >= DISTRUSTED_MAX {
            let max = std::mem::take(&mut self.max_bytes);
            self.distrusted.clear();
            self.set_max(max);
        }
        self.distrusted.insert(address);
    }

    /// Notes whether a hint led to what it said; one that did not goes.
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

    /// A block was written.
    pub(crate) fn insert(&mut self, ptr: &BlockPtr) {
        if self.tags.is_empty() {
            let slots = (self.max_bytes / SLOT_BYTES) as usize / WAYS * WAYS;
            self.tags = vec![0; slots];
            self.places = vec![0; slots];
            self.forms = vec![0; slots];
        }
        let content = Content::of(ptr);
        let Some(bucket) = self.bucket(&content) else { return };
        // The newest block of a content is the one to refer to.
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

    /// The slot of a full bucket that is given up: the next one that was not hit lately.
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

    /// A block is freed.
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

    fn index(slots: u64) -> Hints {
        let mut hints = Hints::default();
        hints.set_max(slots * SLOT_BYTES);
        hints
    }

    fn known(hints: &mut Hints, n: u64) -> bool {
        hints.get(&Content::of(&ptr(n))) == Some(ptr(n))
    }

    #[test]
    fn what_fits_is_found_and_what_is_freed_is_not() {
        let mut hints = index(64 << 10);
        assert_eq!(hints.figures().bytes, 0, "none before the first hint");
        (0..40_000).for_each(|n| hints.insert(&ptr(n)));
        let found = (0..40_000).filter(|n| known(&mut hints, *n)).count();
        assert!(found > 39_900, "{found}");
        (0..20_000).for_each(|n| hints.remove(&ptr(n)));
        assert!((0..20_000).all(|n| !known(&mut hints, n)));
        let left = (20_000..40_000).filter(|n| known(&mut hints, *n)).count() as u64;
        assert_eq!(hints.figures().used, left);
        // Another block of the same content is not the one that is freed.
        let twin = BlockPtr { vseg: VsegId(7), ..ptr(30_000) };
        hints.remove(&twin);
        assert_eq!(hints.figures().used, left);
        hints.insert(&twin);
        assert_eq!(hints.get(&Content::of(&twin)), Some(twin));
        assert_eq!(hints.figures().used, left, "it took the other's place");
    }

    #[test]
    fn memory_stays_and_what_was_hit_stays_longest() {
        let mut hints = index(4096);
        (0..1000).for_each(|n| hints.insert(&ptr(n)));
        (0..1000).for_each(|n| hints.judge(&ptr(n), true));
        let bytes = hints.figures().bytes;
        (1000..5000).for_each(|n| hints.insert(&ptr(n)));
        let kept = (0..1000).filter(|n| known(&mut hints, *n)).count();
        assert!(kept > 900, "{kept}");
        (5000..41_000).for_each(|n| hints.insert(&ptr(n)));
        let figures = hints.figures();
        assert_eq!((figures.bytes, figures.hits), (bytes, 1000));
        assert!(figures.used <= 4096 && figures.evicted > 30_000);
        hints.judge(&ptr(40_999), false);
        assert!(!known(&mut hints, 40_999));
    }
    #[test]
    fn block_without_a_good_copy_is_found_no_more_and_its_successor_is() {
        let mut hints = index(4096);
        (0..10).for_each(|n| hints.insert(&ptr(n)));
        hints.distrust(ptr(3).address());
        assert!((0..10).all(|n| known(&mut hints, n) == (n != 3)));
        let restored = BlockPtr { vseg: VsegId(9), ..ptr(3) };
        hints.insert(&restored);
        assert_eq!(hints.get(&Content::of(&restored)), Some(restored));
        // Too many distrusted blocks: the index drops all hints.
        (0..DISTRUSTED_MAX as u64).for_each(|n| hints.distrust(ptr(n + 100).address()));
        assert!((0..10).all(|n| !known(&mut hints, n)));
        hints.insert(&ptr(5));
        assert!(known(&mut hints, 5));
    }
}

//! Estimate of the savings by dedupe in existing volumes, from the checksums in their trees. Reads
//! no data. The unit is the record: the block that one pointer of a volume references.
//!
//! Dedupe itself is in weir-pool; the caller decides when to stop.
//!
//! Invariants:
//! - memory is bounded, independent of the volumes' contents;
//! - one address counts once, even if several volumes reference it.

use std::collections::{BTreeMap, HashSet};

use async_recursion::async_recursion as boxed;
use weir_format::BlockPtr;
use weir_format::layout::PACK_BYTES;
use weir_pool::{HINT_BYTES, PoolError, Tree};

use crate::error::DatasetError;
use crate::state::engine::Engine;

/// Blocks visited in one step. If all have data, their 256 leaf nodes take 1 MiB of reads.
const STEP_BLOCKS: usize = 32 << 10;

/// 95 % of a normal distribution are within this number of standard deviations.
pub(crate) const NORMAL_95: f64 = 1.96;

/// Checksum of a content, and the disk address and size of a block with this content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Seen {
    checksum: u128,
    vseg: u64,
    offset_units: u32,
    stored_units: u16,
}

/// Sample of the contents of blocks, for a dedupe estimate.
///
/// Blocks with equal content and equal compression have equal checksums of their stored bytes.
/// Dedupe would thus find each checksum that occurs at several disk addresses. The sample is drawn
/// by content instead of address: the sample keeps the checksums in which certain bits are zero,
/// with all addresses of these checksums. So the sample counts all copies of a content or none, and
/// the ratios in the sample apply to all blocks. If the sample is too large, one more bit must be
/// zero, which drops half of it.
#[derive(Debug)]
pub struct DedupeCount {
    kept: HashSet<Seen>,
    kept_max: usize,
    /// Number of checksum bits that must be zero for a content to be in the sample.
    bits: u32,
    /// Number of pointers visited.
    looked_at: u64,
}

/// Result of the sample, extrapolated to all visited records.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DedupeEstimate {
    /// Number of records; each disk address counts once.
    pub records: u64,
    /// Number of different contents: the records that dedupe would store.
    pub unique: u64,
    /// Number of the remaining records, which dedupe would not store.
    pub duplicates: u64,
    /// Present size of all records on disk.
    pub stored_bytes: u64,
    /// Part of `stored_bytes` that the duplicates occupy.
    pub saved_bytes: u64,
    /// `stored_bytes` divided by the size after dedupe.
    pub ratio: f64,
    /// Lower bound of the ratio. In 95 of 100 samples, the true ratio is between the two bounds.
    pub ratio_low: f64,
    /// Upper bound of the ratio; see [`Self::ratio_low`].
    pub ratio_high: f64,
    /// RAM for a dedupe index of all unique records.
    pub index_bytes: u64,
    /// One in this number of contents is in the sample; 1 if every content is in the sample.
    pub one_in: u64,
}

impl DedupeEstimate {
    fn nothing() -> Self {
        Self { ratio: 1.0, ratio_low: 1.0, ratio_high: 1.0, one_in: 1, ..Self::default() }
    }
}

/// Rounds to an integer; a negative number becomes 0.
#[expect(clippy::cast_sign_loss, reason = "a negative number becomes 0 on purpose")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

impl DedupeCount {
    /// Creates a sample of at most `kept_max` addresses.
    pub fn new(kept_max: usize) -> Self {
        Self { kept: HashSet::new(), kept_max: kept_max.max(1), bits: 0, looked_at: 0 }
    }

    /// Number of records visited so far.
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    fn keeps(bits: u32, checksum: u128) -> bool {
        (checksum >> 64) as u64 & ((1 << bits) - 1) == 0
    }

    fn add(&mut self, ptr: &BlockPtr) {
        self.looked_at += 1;
        if !Self::keeps(self.bits, ptr.checksum) {
            return;
        }
        self.kept.insert(Seen {
            checksum: ptr.checksum,
            vseg: ptr.vseg.0,
            offset_units: ptr.offset_units,
            stored_units: ptr.stored_units,
        });
        while self.kept.len() > self.kept_max && self.bits < 63 {
            self.bits += 1;
            let bits = self.bits;
            self.kept.retain(|seen| Self::keeps(bits, seen.checksum));
        }
    }

    /// Extrapolates the sample to all visited records.
    pub fn estimate(&self) -> DedupeEstimate {
        // For each content: the number of disk addresses with this content, and their stored units.
        let mut contents: BTreeMap<u128, (u64, u64)> = BTreeMap::new();
        for seen in &self.kept {
            let (places, units) = contents.entry(seen.checksum).or_default();
            *places += 1;
            *units += u64::from(seen.stored_units);
        }
        let places = self.kept.len() as f64;
        let units: u64 = contents.values().map(|(_, units)| units).sum();
        let saved = |(places, units): &(u64, u64)| units - units / places;
        let saved_units: u64 = contents.values().map(saved).sum();
        if units == 0 {
            return DedupeEstimate::nothing();
        }
        let share = saved_units as f64 / units as f64;
        // Standard error of `share`: a ratio of two sums over the contents that are in the sample.
        let out = 1.0 - 1.0 / (1_u64 << self.bits) as f64;
        let square = |of: &(u64, u64)| (saved(of) as f64 - share * of.1 as f64).powi(2);
        let error = (out * contents.values().map(square).sum::<f64>()).sqrt() / units as f64;
        let scale = (1_u64 << self.bits) as f64;
        let records = whole(places * scale);
        let stored_bytes = units as f64 * scale * PACK_BYTES as f64;
        let ratio = |share: f64| 1.0 / (1.0 - share.clamp(0.0, 0.999_999));
        let unique = whole(contents.len() as f64 * scale);
        DedupeEstimate {
            records,
            unique,
            duplicates: records.saturating_sub(unique),
            stored_bytes: whole(stored_bytes),
            saved_bytes: whole(stored_bytes * share),
            ratio: ratio(share),
            ratio_low: ratio(share - NORMAL_95 * error),
            ratio_high: ratio(share + NORMAL_95 * error),
            index_bytes: unique * HINT_BYTES,
            one_in: 1 << self.bits,
        }
    }
}

impl Engine {
    /// Adds further records of a volume to the sample, beginning with record `from`. Returns the
    /// record at which to continue; `None` at the end.
    ///
    /// # Errors
    /// `NotFound` if the volume does not exist; the error of an unreadable node.
    #[boxed(?Send)]
    pub async fn count_contents(
        &self,
        volume: &str,
        from: u64,
        count: &mut DedupeCount,
    ) -> Result<Option<u64>, DatasetError> {
        /// Bounds the retries after a commit replaced the tree during the scan.
        const TRIES_MAX: usize = 8;
        let volume = self.volume(volume)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let root = volume.state.lock().record.root;
            let mut found = Vec::new();
            let mut next = None;
            let mut keep = |block: u64, ptr: BlockPtr| {
                if found.len() == STEP_BLOCKS {
                    next = Some(block);
                    return false;
                }
                found.push(ptr);
                true
            };
            let tree = Tree::new(&self.core.pool, root);
            match tree.scan(from..u64::MAX, &mut keep).await {
                Err(PoolError::NoSegment { .. }) if tries < TRIES_MAX => {}
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    found.iter().for_each(|ptr| count.add(ptr));
                    return Ok(next);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_base::RecordSize;
    use weir_base::{Txg, VsegId};
    use weir_codec::checksum::xxh3_128;
    use weir_format::{Codec, PtrKind};

    use super::*;

    fn ptr(content: u64, place: u64) -> BlockPtr {
        BlockPtr {
            kind: PtrKind::Data,
            vseg: VsegId(place >> 8),
            offset_units: (place & 0xff) as u32 * 64,
            stored_units: 64,
            codec: Codec::Raw,
            record: RecordSize::BLOCK,
            birth: Txg(1),
            shared: false,
            checksum: xxh3_128(&content.to_le_bytes()),
        }
    }

    /// 40 of 100 blocks are duplicates: 60 contents, 20 of them with three copies.
    fn counted(kept_max: usize, blocks: u64) -> DedupeCount {
        let mut count = DedupeCount::new(kept_max);
        for place in 0..blocks {
            let (hundred, at) = (place / 100, place % 100);
            let content = if at < 60 { at } else { (at - 60) % 20 };
            count.add(&ptr(hundred * 100 + content, place));
        }
        count
    }

    #[test]
    fn sample_without_limit_is_exact() {
        let estimate = counted(10_000, 10_000).estimate();
        assert_eq!((estimate.records, estimate.unique, estimate.duplicates), (10_000, 6000, 4000));
        assert_eq!(estimate.saved_bytes, 4000 * 4096);
        assert_eq!(estimate.index_bytes, 6000 * HINT_BYTES);
        assert_eq!((estimate.one_in, estimate.ratio), (1, 10.0 / 6.0));
        assert_eq!((estimate.ratio_low, estimate.ratio_high), (estimate.ratio, estimate.ratio));
    }

    #[test]
    fn address_counts_once() {
        let mut count = DedupeCount::new(100);
        (0..10).for_each(|_| count.add(&ptr(1, 5)));
        count.add(&ptr(1, 6));
        let estimate = count.estimate();
        assert_eq!((estimate.records, estimate.unique, estimate.duplicates), (2, 1, 1));
    }

    #[test]
    fn sample_is_bounded_and_accurate() {
        let count = counted(20_000, 1_000_000);
        assert!(count.kept.len() <= 20_000, "{}", count.kept.len());
        let estimate = count.estimate();
        assert!(estimate.one_in >= 32, "{}", estimate.one_in);
        let truth = 10.0 / 6.0;
        assert!((estimate.ratio / truth - 1.0).abs() < 0.05, "{estimate:?}");
        assert!(estimate.ratio_low < truth && truth < estimate.ratio_high, "{estimate:?}");
        assert!(estimate.ratio_high - estimate.ratio_low < 0.1, "{estimate:?}");
        assert!((estimate.records as f64 / 1e6 - 1.0).abs() < 0.05, "{estimate:?}");
    }

    #[test]
    fn estimate_of_nothing_has_ratio_one() {
        let estimate = DedupeCount::new(1).estimate();
        assert_eq!((estimate.records, estimate.ratio), (0, 1.0));
    }
}

//! Logical unit: the state that all nexuses to one volume share.
//!
//! Commands are in `command`; the map of logical unit numbers is in `dispatch::target`.
//!
//! Invariants:
//! - a volume has one logical unit, even if several targets map it, so that reservations, exclusive
//!   range locks and unit attentions apply across targets;
//! - all offsets passed to the medium are multiples of the logical block length, 512 or 4096 bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::codec::sense::{OUT_OF_RANGE, Sense, invalid_cdb};
use crate::limits::{THRESHOLD_INTERVAL_BYTES, TRANSFER_BYTES_MAX};
use crate::medium::Medium;
use crate::unit::attention::Attention;
use crate::unit::itl_nexus::ItlNexus;
use crate::unit::mode::Mode;
use crate::unit::options::{Identity, Options, UnitStore};
use crate::unit::range::Range;
use crate::unit::range_lock::Ranges;
use crate::unit::reservation::ReservationState;
use crate::unit::reservations::Reservations;

/// Counters of a logical unit since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// READ commands that moved data.
    pub reads: u64,
    /// WRITE commands that moved data, including COMPARE AND WRITE.
    pub writes: u64,
    /// Bytes that READ commands read.
    pub read_bytes: u64,
    /// Bytes that WRITE commands and COMPARE AND WRITE wrote.
    pub written_bytes: u64,
    /// Bytes that UNMAP and WRITE SAME deallocated.
    pub unmapped_bytes: u64,
    /// Bytes filled by WRITE SAME without UNMAP, and zeroed by WRITE USING TOKEN.
    pub zeroed_bytes: u64,
    /// Bytes copied by EXTENDED COPY and WRITE USING TOKEN.
    pub cloned_bytes: u64,
}

/// Atomic form of [`Counters`].
#[derive(Default)]
pub(crate) struct Counting {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) unmapped_bytes: AtomicU64,
    pub(crate) zeroed_bytes: AtomicU64,
    pub(crate) cloned_bytes: AtomicU64,
}

/// One logical unit.
pub struct Unit {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    pub(crate) mode: Mode,
    pub(crate) ranges: Ranges,
    pub(crate) reservations: Reservations,
    pub(crate) counting: Counting,
    blocks: AtomicU64,
    /// Store for saved mode parameters and reservations.
    pub(crate) store: Option<Arc<dyn UnitStore>>,
    itl_nexuses: Mutex<Vec<Weak<ItlNexus>>>,
    unchecked_bytes: AtomicU64,
    is_short: AtomicBool,
}

impl Unit {
    /// Creates a logical unit on `medium`. `reservations` is the state that was last saved to
    /// `store`. Without a store, the unit refuses requests to save state across a loss of power.
    pub fn new(
        medium: Arc<dyn Medium>,
        identity: Identity,
        options: Options,
        reservations: ReservationState,
        store: Option<Arc<dyn UnitStore>>,
    ) -> Arc<Self> {
        assert!(matches!(options.block_bytes, 512 | 4096), "{} byte blocks", options.block_bytes);
        let blocks = medium.size_bytes() / u64::from(options.block_bytes);
        Arc::new(Self {
            mode: Mode::new(options.write_cache, options.saved_write_cache),
            ranges: Ranges::default(),
            reservations: Reservations::new(reservations, store.clone()),
            store,
            counting: Counting::default(),
            blocks: AtomicU64::new(blocks),
            itl_nexuses: Mutex::default(),
            unchecked_bytes: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            medium,
            identity,
            options,
        })
    }

    /// Adopts the current size of the medium and raises a unit attention for every initiator.
    /// Revokes all ROD tokens, because shrinking a volume discards data permanently.
    pub fn resized(&self) {
        let blocks = self.medium.size_bytes() / u64::from(self.options.block_bytes);
        if self.blocks.swap(blocks, Ordering::SeqCst) != blocks {
            self.revoke_tokens();
            self.raise(Attention::CAPACITY_CHANGED, |_| true);
        }
    }

    /// Revokes all ROD tokens. The server calls this before it changes the medium by other means
    /// than SCSI commands, for example by a rollback. A running WRITE USING TOKEN then ends with an
    /// error.
    pub fn revoke_tokens(&self) {
        self.ranges.tokens.revoke();
    }

    /// Revokes all ROD tokens and refuses POPULATE TOKEN from now on: clients of other protocols
    /// may write to the medium, and the unit would not see their writes.
    pub fn changes_elsewhere(&self) {
        self.ranges.tokens.give_up();
    }

    /// NAA designator of the unit.
    pub const fn naa(&self) -> [u8; 16] {
        self.identity.naa
    }

    /// Length of a logical block in bytes.
    pub const fn block_bytes(&self) -> u32 {
        self.options.block_bytes
    }

    /// Current write cache setting. True if a write may complete before its data is durable.
    pub fn write_cache(&self) -> bool {
        self.mode.write_cache()
    }

    /// Current values of the counters.
    pub fn counters(&self) -> Counters {
        let counting = &self.counting;
        Counters {
            reads: counting.reads.load(Ordering::Relaxed),
            writes: counting.writes.load(Ordering::Relaxed),
            read_bytes: counting.read_bytes.load(Ordering::Relaxed),
            written_bytes: counting.written_bytes.load(Ordering::Relaxed),
            unmapped_bytes: counting.unmapped_bytes.load(Ordering::Relaxed),
            zeroed_bytes: counting.zeroed_bytes.load(Ordering::Relaxed),
            cloned_bytes: counting.cloned_bytes.load(Ordering::Relaxed),
        }
    }

    /// Current registrations and reservation.
    pub fn reservations(&self) -> ReservationState {
        self.reservations.state()
    }

    /// Capacity in logical blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Length of a logical block in bytes.
    pub(crate) fn block(&self) -> u64 {
        u64::from(self.options.block_bytes)
    }

    /// Maximum number of blocks of one transfer.
    pub(crate) fn transfer_blocks_max(&self) -> u64 {
        TRANSFER_BYTES_MAX / self.block()
    }

    /// Byte range of `blocks` logical blocks from `lba`; an error if it exceeds the capacity.
    pub(crate) fn range(&self, lba: u64, blocks: u64) -> Result<Range, Sense> {
        let capacity = self.blocks();
        if lba > capacity || blocks > capacity - lba {
            return Err(OUT_OF_RANGE.with_information(lba));
        }
        Ok(Range { start: lba * self.block(), end: (lba + blocks) * self.block() })
    }

    /// As [`Unit::range`], and also checks the maximum transfer length. `field` is the CDB byte of
    /// the transfer length field.
    pub(crate) fn transfer(&self, lba: u64, blocks: u64, field: u16) -> Result<Range, Sense> {
        let range = self.range(lba, blocks)?;
        if blocks > self.transfer_blocks_max() {
            return Err(invalid_cdb(field));
        }
        Ok(range)
    }

    /// Registers an I_T_L nexus of this unit.
    pub(crate) fn attach(&self, itl_nexus: &Arc<ItlNexus>) {
        let mut itl_nexuses = self.itl_nexuses.lock();
        itl_nexuses.retain(|itl_nexus| itl_nexus.strong_count() > 0);
        itl_nexuses.push(Arc::downgrade(itl_nexus));
    }

    /// The I_T_L nexuses of this unit.
    pub(crate) fn itl_nexuses(&self) -> Vec<Arc<ItlNexus>> {
        self.itl_nexuses.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Raises a unit attention for each I_T_L nexus for which `concerns` returns true.
    pub(crate) fn raise(&self, attention: Attention, concerns: impl Fn(&ItlNexus) -> bool) {
        for itl_nexus in self.itl_nexuses() {
            if concerns(&itl_nexus) {
                itl_nexus.attentions.raise(attention);
            }
        }
    }

    /// Counts a write. After each [`THRESHOLD_INTERVAL_BYTES`] of writes, compares the available
    /// space with the soft threshold, and raises a unit attention if the space has fallen below the
    /// threshold.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.counting.writes.fetch_add(1, Ordering::Relaxed);
        self.counting.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        let threshold = self.options.soft_threshold_bytes;
        if threshold == 0 {
            return;
        }
        let unchecked = self.unchecked_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if unchecked < THRESHOLD_INTERVAL_BYTES {
            return;
        }
        self.unchecked_bytes.store(0, Ordering::Relaxed);
        let is_short = self.medium.room_bytes() < threshold;
        if !self.is_short.swap(is_short, Ordering::Relaxed) && is_short {
            self.raise(Attention::SOFT_THRESHOLD, |_| true);
        }
    }

    /// Counts a read.
    pub(crate) fn read(&self, bytes: u64) {
        self.counting.reads.fetch_add(1, Ordering::Relaxed);
        self.counting.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Logical unit reset (SAM-5 6.3.3): restores the mode parameters, releases the SPC-2
    /// reservation, and aborts the tasks of all nexuses except the nexus with id `by`. Persistent
    /// reservations remain.
    pub(crate) fn reset(&self, by: u64) {
        self.reservations.reset();
        self.mode.reset();
        for itl_nexus in self.itl_nexuses() {
            if itl_nexus.id != by {
                itl_nexus.abort();
            }
            itl_nexus.attentions.raise(Attention::RESET);
        }
    }
}

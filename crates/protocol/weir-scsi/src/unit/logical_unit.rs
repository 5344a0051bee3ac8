//! A logical unit: what all nexuses to one volume share.
//!
//! Not here: its commands, which target shows it under which number (`target`).
//!
//! Invariants:
//! - there is one per volume, however many targets show it: reservations, ranges held alone and
//!   unit attentions hold for all of them;
//! - offsets that leave here are multiples of the logical block, which is 512 or 4096 bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::codec::sense::{OUT_OF_RANGE, Sense, invalid_cdb};
use crate::limits::{THRESHOLD_INTERVAL_BYTES, TRANSFER_BYTES_MAX};
use crate::medium::Medium;
use crate::unit::attention::Attention;
use crate::unit::itl_nexus::Seat;
use crate::unit::mode::Mode;
use crate::unit::options::{Identity, Options, UnitStore};
use crate::unit::range::Range;
use crate::unit::range_lock::Ranges;
use crate::unit::reservation::ReservationState;
use crate::unit::reservations::Reservations;

/// What was done on a logical unit since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// READ commands that moved data.
    pub reads: u64,
    /// WRITE commands that moved data, COMPARE AND WRITE among them.
    pub writes: u64,
    /// Bytes read by them.
    pub read_bytes: u64,
    /// Bytes written by them.
    pub written_bytes: u64,
    /// Bytes given back by UNMAP and WRITE SAME.
    pub unmapped_bytes: u64,
    /// Bytes filled by WRITE SAME otherwise, and with zeros by WRITE USING TOKEN.
    pub zeroed_bytes: u64,
    /// Bytes copied by EXTENDED COPY and WRITE USING TOKEN.
    pub cloned_bytes: u64,
}

/// [`Counters`] as they are counted.
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
    /// Where what is saved goes.
    pub(crate) store: Option<Arc<dyn UnitStore>>,
    seats: Mutex<Vec<Weak<Seat>>>,
    unchecked_bytes: AtomicU64,
    is_short: AtomicBool,
}

impl Unit {
    /// A logical unit over `medium`. `reservations` is what `store` was last given; without a
    /// store, what is to survive a loss of power is refused.
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
            seats: Mutex::default(),
            unchecked_bytes: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            medium,
            identity,
            options,
        })
    }

    /// Takes over the size that the medium has now, and tells every initiator. Tokens end: what
    /// lay beyond a smaller size is gone for good.
    pub fn resized(&self) {
        let blocks = self.medium.size_bytes() / u64::from(self.options.block_bytes);
        if self.blocks.swap(blocks, Ordering::SeqCst) != blocks {
            self.revoke_tokens();
            self.raise(Attention::CAPACITY_CHANGED, |_| true);
        }
    }

    /// Ends all tokens: the medium is about to change other than by commands (a rollback, for
    /// example). A WRITE USING TOKEN that is under way meanwhile ends with an error.
    pub fn revoke_tokens(&self) {
        self.ranges.tokens.revoke();
    }

    /// As [`Unit::revoke_tokens`], for ever: others than its initiators may change the medium from
    /// now on, which nobody sees here. POPULATE TOKEN is refused.
    pub fn changes_elsewhere(&self) {
        self.ranges.tokens.give_up();
    }

    /// Its designator.
    pub const fn naa(&self) -> [u8; 16] {
        self.identity.naa
    }

    /// Bytes of a logical block.
    pub const fn block_bytes(&self) -> u32 {
        self.options.block_bytes
    }

    /// Whether writes may be answered before they are durable, as it is now.
    pub fn write_cache(&self) -> bool {
        self.mode.write_cache()
    }

    /// What was done on it.
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

    /// Registrations and the reservation as they are now.
    pub fn reservations(&self) -> ReservationState {
        self.reservations.state()
    }

    /// Logical blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Bytes of a logical block.
    pub(crate) fn block(&self) -> u64 {
        u64::from(self.options.block_bytes)
    }

    /// Most blocks of one transfer.
    pub(crate) fn transfer_blocks_max(&self) -> u64 {
        TRANSFER_BYTES_MAX / self.block()
    }

    /// The bytes of a range of logical blocks, if it lies inside.
    pub(crate) fn range(&self, lba: u64, blocks: u64) -> Result<Range, Sense> {
        let capacity = self.blocks();
        if lba > capacity || blocks > capacity - lba {
            return Err(OUT_OF_RANGE.with_information(lba));
        }
        Ok(Range { start: lba * self.block(), end: (lba + blocks) * self.block() })
    }

    /// As [`Unit::range`], of one transfer; `field` is where its length stands.
    pub(crate) fn transfer(&self, lba: u64, blocks: u64, field: u16) -> Result<Range, Sense> {
        let range = self.range(lba, blocks)?;
        if blocks > self.transfer_blocks_max() {
            return Err(invalid_cdb(field));
        }
        Ok(range)
    }

    /// Makes a nexus known to it.
    pub(crate) fn attach(&self, seat: &Arc<Seat>) {
        let mut seats = self.seats.lock();
        seats.retain(|seat| seat.strong_count() > 0);
        seats.push(Arc::downgrade(seat));
    }

    /// The nexuses to it.
    pub(crate) fn seats(&self) -> Vec<Arc<Seat>> {
        self.seats.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Raises a unit attention for the nexuses that it concerns.
    pub(crate) fn raise(&self, attention: Attention, concerns: impl Fn(&Seat) -> bool) {
        for seat in self.seats() {
            if concerns(&seat) {
                seat.attentions.raise(attention);
            }
        }
    }

    /// Notes what was written, and from time to time looks whether space runs short.
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

    /// Notes what was read.
    pub(crate) fn read(&self, bytes: u64) {
        self.counting.reads.fetch_add(1, Ordering::Relaxed);
        self.counting.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What a reset sets back (SAM-5 6.3.3): mode parameters and SPC-2 reservations. Persistent
    /// reservations stay.
    pub(crate) fn reset(&self, by: u64) {
        self.reservations.reset();
        self.mode.reset();
        for seat in self.seats() {
            if seat.id != by {
                seat.abort();
            }
            seat.attentions.raise(Attention::RESET);
        }
    }
}

//! Quotas and reservations: space that a volume may still take, and space reserved for a volume.
//!
//! `properties` sets quotas and reservations; `state::shared` measures the space of the whole pool.
//!
//! Invariants:
//! - I30: the claims of all volumes ([`Volume::measure_limits`]) fit into the space of the pool;
//! - a volume and its snapshots never exceed their quota: dirty data counts at its worst-case cost
//!   until the commit determines its actual cost;
//! - a reservation is counted as claimed before the space is checked, so two reservations cannot
//!   claim the same space;
//! - a pool with any reservation also keeps free the space that the cleaner cannot reclaim in time;
//! - a volume without quota and reservation pays one comparison for each write.

use std::sync::atomic::Ordering;

use weir_base::BLOCK_BYTES;
use weir_base::limits::{HOLE_RANGES_MAX, HOLE_RANGES_POOL_MAX};
use weir_format::DatasetState;
use weir_format::layout::PACK_BYTES;
use weir_pool::PlantedBug;

use crate::error::DatasetError;
use crate::objects::record::VolumeSize;
use crate::state::block_clone::BlockClone;
use crate::state::engine::Engine;
use crate::state::limits::{ATOMIC_WRITE_BLOCKS, VolumeUsage, by_refreservation, shortfall};
use crate::state::shared::{Admission, Core, NewBlocks};
use crate::state::volume::{State, Volume};

impl State {
    /// Space use of the volume.
    fn usage(&self) -> VolumeUsage {
        let space = self.space();
        // A shared block is not the volume's own data: overwriting it frees no space for the new
        // block.
        let shared = self.record.shared_units * PACK_BYTES as u64;
        VolumeUsage { used: space.used, born: space.written.saturating_sub(shared) }
    }

    /// Space use once the requested snapshot exists.
    fn has_after_snapshot(&self) -> VolumeUsage {
        let usage = self.limits.usage;
        if self.limits.is_taking { VolumeUsage { born: 0, ..usage } } else { usage }
    }

    /// Worst-case cost of writing the dirty data.
    fn charge(&self) -> u64 {
        self.object.charge() + self.objects.as_ref().map_or(0, |objects| objects.charge())
    }

    /// Upper bound of the space that the volume, its refreservation and `cost` bytes of further
    /// dirty data take.
    pub(crate) fn most(&self, cost: u64) -> u64 {
        let kept = by_refreservation(&self.record.properties, self.has_after_snapshot());
        let charge = self.charge() + cost;
        debug_assert!(self.limits.is_set, "called only with limits set");
        let more = if self.limits.covers() { kept.max(charge) } else { kept + charge };
        self.limits.usage.used + more + self.cloning_bytes
    }

    /// Part of the volume's shortfall that its dirty data does not cover.
    fn lacks(&self) -> u64 {
        if self.record.state == DatasetState::Destroying {
            return 0;
        }
        let shortfall = shortfall(&self.record.properties, self.has_after_snapshot());
        if self.limits.covers() { shortfall.saturating_sub(self.charge()) } else { shortfall }
    }

    /// Additional nodes that a TRIM writes, if they count towards a quota; otherwise 0. They count
    /// if the volume has a quota and a snapshot, which keeps the old nodes. A TRIM changes the
    /// nodes above its two ends and frees the nodes between the ends.
    pub(crate) fn nodes_of_trim(&self) -> u64 {
        let counts = self.record.properties.quota_bytes() > 0 && !self.snapshots.is_empty();
        if counts { 2 * self.nodes().of(1) } else { 0 }
    }

    /// True if uncommitted changes may reduce the space use of the volume.
    fn may_shrink(&self) -> bool {
        let dirty = self.charge() > 0 || self.object.has_unwritten();
        dirty || self.cloning_bytes > 0 || self.has_to_free()
    }
}

impl Volume {
    /// Returns true if the volume may accept `blocks` more consecutive dirty blocks, and false if
    /// the caller must wait for a commit. `is_divisible`: after a wait, the caller writes many
    /// blocks in several parts.
    ///
    /// # Errors
    /// `Full`, or `Quota` if the volume would exceed its quota.
    pub(crate) fn admit(
        &self,
        state: &State,
        blocks: u64,
        is_divisible: bool,
    ) -> Result<bool, DatasetError> {
        // The rest of a large write may fit once its first parts are compressed.
        let is_divisible = is_divisible && blocks > ATOMIC_WRITE_BLOCKS;
        let nodes = state.nodes();
        let covered = if state.limits.is_set {
            let cost = nodes.cost(blocks);
            let quota_bytes = state.record.properties.quota_bytes();
            if quota_bytes > 0 && state.most(cost) > quota_bytes {
                if is_divisible || state.may_shrink() {
                    return Ok(false);
                }
                let name = self.full_name(state);
                return Err(DatasetError::Quota { name, quota_bytes });
            }
            if state.limits.covers() { state.limits.unclaimed.min(cost) } else { 0 }
        } else {
            0
        };
        let blocks = NewBlocks { added: blocks, own: state.object.open.data_blocks() as u64 };
        match self.core.admit(blocks, nodes, covered) {
            Admission::Now => Ok(true),
            Admission::Wait => Ok(false),
            Admission::Full if is_divisible || state.limits.is_taking => Ok(false),
            Admission::Full => Err(self.core.full()),
        }
    }

    /// Returns true if the quota allows a change that costs `cost` bytes, and false if the caller
    /// must wait for a commit.
    ///
    /// # Errors
    /// `Quota`: commits free no space for the change.
    pub(crate) fn fits_quota(&self, state: &State, cost: u64) -> Result<bool, DatasetError> {
        let quota_bytes = state.record.properties.quota_bytes();
        if quota_bytes == 0 || state.most(cost) <= quota_bytes {
            return Ok(true);
        }
        if state.may_shrink() {
            return Ok(false);
        }
        Err(DatasetError::Quota { name: self.full_name(state), quota_bytes })
    }

    /// Returns true if the quota allows a TRIM that rewrites `rewritten` blocks of records, and
    /// false if the caller must wait for a commit.
    ///
    /// # Errors
    /// `Quota`: trimmed blocks stay in a snapshot, and the changed nodes take additional space.
    pub(crate) fn admit_trim(&self, state: &State, rewritten: u64) -> Result<bool, DatasetError> {
        if state.object.open.hole_ranges() >= HOLE_RANGES_MAX
            || self.core.hole_ranges() >= HOLE_RANGES_POOL_MAX
        {
            return Ok(false);
        }
        let blocks = rewritten + state.nodes_of_trim();
        if blocks == 0 { Ok(true) } else { self.fits_quota(state, blocks * BLOCK_BYTES as u64) }
    }

    /// Returns true if a block clone may join the open txg, and false if the caller must retry
    /// after a commit. The clone's references count towards the quota like blocks. In the pool, the
    /// clone needs space only for nodes.
    ///
    /// # Errors
    /// `Full`, or `Quota` if the volume would exceed its quota.
    pub(crate) fn admit_clone(
        &self,
        state: &State,
        clone: &BlockClone,
    ) -> Result<bool, DatasetError> {
        let counts = self.core.pool.bug() != PlantedBug::ClonesNotCounted;
        Ok((!counts || self.fits_quota(state, clone.weight())?)
            && self.fits_pool(NewBlocks { added: 0, own: 0 }, clone.charge)?)
    }

    /// Returns true if the pool has space for a change with these dirty blocks and a worst-case
    /// cost of `cost` bytes, and false if the caller must wait for a commit.
    ///
    /// # Errors
    /// `Full`: commits free no space for the change.
    pub(crate) fn fits_pool(&self, blocks: NewBlocks, cost: u64) -> Result<bool, DatasetError> {
        match self.core.admit_cost(blocks, cost, 0) {
            Admission::Now => Ok(true),
            Admission::Wait => Ok(false),
            Admission::Full => Err(self.core.full()),
        }
    }

    /// Counts dirty data of a volume against its reserved bytes.
    pub(crate) fn cover(&self, state: &mut State, cost: u64) {
        if state.limits.unclaimed > 0 && state.limits.covers() {
            let covered = state.limits.unclaimed.min(cost);
            state.limits.unclaimed -= covered;
            self.core.unclaimed.fetch_sub(covered, Ordering::AcqRel);
        }
    }

    /// Recomputes the limits of a volume, after a commit and after a change of a property. Returns
    /// the increase of the volume's reserved bytes.
    ///
    /// A volume claims the larger of two amounts: the worst-case cost of its dirty data, and its
    /// [`shortfall`]. So a write that a reservation covers changes no sum and always finds space.
    /// Any other write can use unreserved space only. From the request for a snapshot until the
    /// snapshot exists, the volume claims the sum of both amounts.
    pub(crate) fn measure_limits(&self, state: &mut State) -> u64 {
        let properties = &state.record.properties;
        let reserved = properties.reservation_bytes().max(properties.refreservation_bytes());
        let is_set = properties.quota_bytes() > 0 || reserved > 0;
        if state.is_view || !(is_set || state.limits.is_set) {
            return 0;
        }
        state.limits.is_set = is_set;
        state.limits.usage = state.usage();
        let is_there = state.record.state != DatasetState::Destroying;
        let is_reserved = is_there && reserved > 0;
        match (state.limits.is_reserved, is_reserved) {
            (false, true) => {
                self.core.reserved_volumes.fetch_add(1, Ordering::AcqRel);
            }
            (true, false) => {
                self.core.reserved_volumes.fetch_sub(1, Ordering::AcqRel);
            }
            _ => {}
        }
        state.limits.is_reserved = is_reserved;
        let (before, now) = (state.limits.unclaimed, state.lacks());
        state.limits.unclaimed = now;
        let unclaimed = &self.core.unclaimed;
        if now > before {
            unclaimed.fetch_add(now - before, Ordering::AcqRel);
        } else {
            unclaimed.fetch_sub(before - now, Ordering::AcqRel);
        }
        now.saturating_sub(before)
    }

    /// Refuses a larger size if the additional tree levels exceed the quota.
    pub(crate) fn refuse_growth(&self, size_bytes: u64) -> Result<(), DatasetError> {
        let state = self.state.lock();
        let grown = VolumeSize { bytes: size_bytes, ..state.size() };
        let levels = grown.height().saturating_sub(state.record.root.height);
        let quota_bytes = state.record.properties.quota_bytes();
        let cost = u64::from(levels) * BLOCK_BYTES as u64;
        if quota_bytes == 0 || levels == 0 || state.most(cost) <= quota_bytes {
            return Ok(());
        }
        Err(DatasetError::Quota { name: self.full_name(&state), quota_bytes })
    }

    /// Releases the reserved bytes of a volume that was never used.
    pub(crate) fn release_reservations(&self) {
        let mut state = self.state.lock();
        state.record.state = DatasetState::Destroying;
        self.measure_limits(&mut state);
    }

    /// Space that the volume can still take, including its reserved bytes.
    pub fn available_bytes(&self) -> u64 {
        let state = self.state.lock();
        let room = self.core.unreserved_bytes() + state.limits.unclaimed;
        let room = room.min(self.core.reachable_bytes());
        let quota = state.record.properties.quota_bytes();
        if quota == 0 {
            return room;
        }
        let used = state.limits.usage.used + state.charge() + state.cloning_bytes;
        room.min(quota.saturating_sub(used))
    }
}

impl Core {
    /// Free bytes that neither reservations nor dirty data claim.
    pub(crate) fn unreserved_bytes(&self) -> u64 {
        self.capacity_left().saturating_sub(self.claimed())
    }

    /// Bytes by which reservations and dirty data exceed the pool's space.
    fn overcommitted(&self) -> u64 {
        self.claimed().saturating_sub(self.capacity_left())
    }
}

impl Engine {
    /// Enlarges a reservation: `change` applies the new value and returns the additional bytes. If
    /// the pool has no space for these bytes, `undo` reverts the change.
    ///
    /// # Errors
    /// `CannotReserve` if the pool has too little unreserved space.
    pub(crate) fn enlarge_reservation(
        &self,
        name: &str,
        what: &'static str,
        change: impl FnOnce() -> u64,
        undo: impl FnOnce(),
    ) -> Result<(), DatasetError> {
        let needed_bytes = change();
        let lacking = self.core.overcommitted();
        if needed_bytes == 0 || lacking == 0 {
            return Ok(());
        }
        undo();
        let (name, unreserved_bytes) = (self.full_name(name), needed_bytes.saturating_sub(lacking));
        Err(DatasetError::CannotReserve { name, what, needed_bytes, unreserved_bytes })
    }

    /// Refuses to move `units` of snapshot data between volumes if the destination would exceed its
    /// quota, or if the pool has no space for the larger shortfall.
    pub(crate) fn refuse_move(
        &self,
        from: &State,
        to: &State,
        units: u64,
    ) -> Result<(), DatasetError> {
        let bytes = units * PACK_BYTES as u64;
        let quota_bytes = to.record.properties.quota_bytes();
        let (from_has, to_has) = (from.usage(), to.usage());
        if quota_bytes > 0 && to_has.used + bytes > quota_bytes {
            let name = self.full_name(&to.record.name);
            return Err(DatasetError::Quota { name, quota_bytes });
        }
        let used = |usage: VolumeUsage, used| VolumeUsage { used, ..usage };
        let less = used(from_has, from_has.used.saturating_sub(bytes));
        let more = used(to_has, to_has.used + bytes);
        let (of, at) = (&from.record.properties, &to.record.properties);
        let before = shortfall(of, from_has) + shortfall(at, to_has);
        let needed_bytes = (shortfall(of, less) + shortfall(at, more)).saturating_sub(before);
        let unreserved_bytes = self.core.unreserved_bytes();
        if needed_bytes > unreserved_bytes {
            let name = self.full_name(&from.record.name);
            let what = "its reservation without the moved snapshots";
            return Err(DatasetError::CannotReserve { name, what, needed_bytes, unreserved_bytes });
        }
        Ok(())
    }

    /// Unreserved space of the pool.
    pub fn available_bytes(&self) -> u64 {
        self.core.unreserved_bytes()
    }
}

//! Quotas and reservations: what a volume may still take, and what is kept back for it.
//!
//! Not here: setting them (properties), the room of the pool as a whole (core).
//!
//! A volume *claims* the larger of two: the worst that its dirty data can cost, and what it was
//! promised and does not have. The claims of all volumes together never exceed the room of the
//! pool. So a write that a promise covers changes no sum and always finds room, and any other
//! finds only what nobody was promised. The promise of a reservation is what the volume and its
//! snapshots lack of it; that of a refreservation what the volume's own data lacks, without what
//! snapshots hold: everything may be overwritten again after each.
//!
//! Invariants:
//! - a volume and its snapshots never take more than their quota: dirty data counts at its worst,
//!   and what it took instead is known after the commit;
//! - a promise is counted among the claims before the room is looked at, so that of two promises
//!   for the same room one is refused;
//! - where anything was promised, a part of the pool is left beside: it is room that no cleaning
//!   gathers in time;
//! - a volume without either pays one comparison per write.

use std::sync::atomic::Ordering;

use weir_base::BLOCK_BYTES;
use weir_base::limits::{HOLE_RANGES_MAX, HOLE_RANGES_POOL_MAX};
use weir_format::layout::PACK_BYTES;
use weir_format::{DatasetState, Properties};
use weir_pool::PlantedBug;

use crate::error::DatasetError;
use crate::objects::record::VolumeSize;
use crate::state::block_clone::RangeClone;
use crate::state::engine::Engine;
use crate::state::limits::{ATOMIC_WRITE_BLOCKS, Has, by_refreservation, promise};
use crate::state::shared::{Admission, Core};
use crate::state::volume::{State, Volume};

impl State {
    /// What it has.
    fn has(&self) -> Has {
        let space = self.space();
        // Overwriting what others refer to as well gives no room back for the new block.
        let shared = self.record.shared_units * PACK_BYTES as u64;
        Has { used: space.used, born: space.written.saturating_sub(shared) }
    }

    /// What it will have when the snapshot is there that it waits for.
    fn has_after_snapshot(&self) -> Has {
        let has = self.limits.has;
        if self.limits.is_taking { Has { born: 0, ..has } } else { has }
    }

    /// The worst that writing out its dirty data can cost.
    fn charge(&self) -> u64 {
        self.open.charge + self.syncing.as_ref().map_or(0, |syncing| syncing.charge)
    }

    /// What it may take at most with a promise and this much more dirty data, with what it has.
    pub(crate) fn most(&self, cost: u64) -> u64 {
        let kept = by_refreservation(&self.record.properties, self.has_after_snapshot());
        let charge = self.charge() + cost;
        debug_assert!(self.limits.is_set, "asked where there are limits");
        let more = if self.limits.covers() { kept.max(charge) } else { kept + charge };
        self.limits.has.used + more + self.cloning_bytes
    }

    /// Of its promise, what its dirty data does not cover.
    fn lacks(&self) -> u64 {
        if self.record.state == DatasetState::Destroying {
            return 0;
        }
        let promise = promise(&self.record.properties, self.has_after_snapshot());
        if self.limits.covers() { promise.saturating_sub(self.charge()) } else { promise }
    }

    /// Nodes that a trim makes the volume take beside those it had, where they count: a snapshot
    /// keeps the old ones. A trim changes the nodes above its two ends, and frees those between.
    pub(crate) fn nodes_of_trim(&self) -> u64 {
        let counts = self.record.properties.quota_bytes > 0 && !self.snapshots.is_empty();
        if counts { 2 * self.nodes().of(1) } else { 0 }
    }

    /// Whether something that is not committed may give it room below its quota.
    fn may_shrink(&self) -> bool {
        let dirty = self.charge() > 0 || !self.open.is_empty() || self.syncing.is_some();
        dirty || self.cloning_bytes > 0 || self.has_to_free()
    }
}

impl Volume {
    /// Whether `blocks` more neighbouring dirty blocks may be taken; false: wait for a commit.
    /// `is_divisible`: if they are many, whoever waits takes them in pieces.
    ///
    /// # Errors
    /// `Full`, or `Quota` where the volume may not take more.
    pub(crate) fn admit(
        &self,
        state: &State,
        blocks: u64,
        is_divisible: bool,
    ) -> Result<bool, DatasetError> {
        // What is compressed by then leaves room for the rest.
        let is_divisible = is_divisible && blocks > ATOMIC_WRITE_BLOCKS;
        let nodes = state.nodes();
        let covered = if state.limits.is_set {
            let cost = nodes.cost(blocks);
            let quota_bytes = state.record.properties.quota_bytes;
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
        match self.core.admit(blocks, nodes, covered) {
            Admission::Now => Ok(true),
            Admission::Wait => Ok(false),
            Admission::Full if is_divisible || state.limits.is_taking => Ok(false),
            Admission::Full => Err(self.core.full()),
        }
    }

    /// Whether the quota allows a trim that writes so many blocks of records anew; false: wait for
    /// a commit.
    ///
    /// # Errors
    /// `Quota`: what is trimmed stays in a snapshot, and the changed nodes come on top.
    pub(crate) fn admit_trim(&self, state: &State, rewritten: u64) -> Result<bool, DatasetError> {
        if state.open.hole_ranges() >= HOLE_RANGES_MAX
            || self.core.hole_ranges() >= HOLE_RANGES_POOL_MAX
        {
            return Ok(false);
        }
        let quota_bytes = state.record.properties.quota_bytes;
        let blocks = rewritten + state.nodes_of_trim();
        let fits = || state.most(blocks * BLOCK_BYTES as u64) <= quota_bytes;
        if quota_bytes == 0 || blocks == 0 || fits() {
            return Ok(true);
        }
        if state.may_shrink() {
            return Ok(false);
        }
        Err(DatasetError::Quota { name: self.full_name(state), quota_bytes })
    }

    /// Whether a range clone may be part of the open txg; `Ok(false)`: after a commit, perhaps. Its
    /// references count for the quota as blocks do; of the pool they take nothing but nodes.
    ///
    /// # Errors
    /// `Full`, or `Quota` where the volume may not take more.
    pub(crate) fn admit_clone(
        &self,
        state: &State,
        clone: &RangeClone,
    ) -> Result<bool, DatasetError> {
        let quota_bytes = state.record.properties.quota_bytes;
        let counts = self.core.pool.bug() != PlantedBug::ClonesNotCounted;
        if counts && quota_bytes > 0 && state.most(clone.weight()) > quota_bytes {
            if state.may_shrink() {
                return Ok(false);
            }
            return Err(DatasetError::Quota { name: self.full_name(state), quota_bytes });
        }
        match self.core.admit_cost(0, clone.charge, 0) {
            Admission::Now => Ok(true),
            Admission::Wait => Ok(false),
            Admission::Full => Err(self.core.full()),
        }
    }

    /// Counts dirty data of a volume among what was promised to it.
    pub(crate) fn cover(&self, state: &mut State, cost: u64) {
        if state.limits.unclaimed > 0 && state.limits.covers() {
            let covered = state.limits.unclaimed.min(cost);
            state.limits.unclaimed -= covered;
            self.core.unclaimed.fetch_sub(covered, Ordering::AcqRel);
        }
    }

    /// Counts its limits anew: after a commit, and after a change of a property. Returns by how
    /// much more is kept back for it.
    pub(crate) fn measure_limits(&self, state: &mut State) -> u64 {
        let properties = &state.record.properties;
        let Properties { quota_bytes, reservation_bytes, refreservation_bytes, .. } = *properties;
        let is_set = quota_bytes > 0 || reservation_bytes > 0 || refreservation_bytes > 0;
        if state.is_view || !(is_set || state.limits.is_set) {
            return 0;
        }
        state.limits.is_set = is_set;
        state.limits.has = state.has();
        let is_there = state.record.state != DatasetState::Destroying;
        let is_promised = is_there && reservation_bytes.max(refreservation_bytes) > 0;
        match (state.limits.is_promised, is_promised) {
            (false, true) => {
                self.core.promises.fetch_add(1, Ordering::AcqRel);
            }
            (true, false) => {
                self.core.promises.fetch_sub(1, Ordering::AcqRel);
            }
            _ => {}
        }
        state.limits.is_promised = is_promised;
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

    /// Refuses a size whose tree has more levels, where these do not fit below the quota.
    pub(crate) fn refuse_growth(&self, size_bytes: u64) -> Result<(), DatasetError> {
        let state = self.state.lock();
        let grown = VolumeSize { bytes: size_bytes, ..state.size() };
        let levels = grown.height().saturating_sub(state.record.root.height);
        let quota_bytes = state.record.properties.quota_bytes;
        let cost = u64::from(levels) * BLOCK_BYTES as u64;
        if quota_bytes == 0 || levels == 0 || state.most(cost) <= quota_bytes {
            return Ok(());
        }
        Err(DatasetError::Quota { name: self.full_name(&state), quota_bytes })
    }

    /// Gives back what is kept back for it: it was never used.
    pub(crate) fn give_up_promises(&self) {
        let mut state = self.state.lock();
        state.record.state = DatasetState::Destroying;
        self.measure_limits(&mut state);
    }

    /// Room that it can still take, its own promise included.
    pub fn available_bytes(&self) -> u64 {
        let state = self.state.lock();
        let room = self.core.room_bytes() + state.limits.unclaimed;
        let quota = state.record.properties.quota_bytes;
        if quota == 0 {
            return room;
        }
        let used = state.limits.has.used + state.charge() + state.cloning_bytes;
        room.min(quota.saturating_sub(used))
    }
}

impl Core {
    /// Room that nobody was promised and nothing dirty may take.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.capacity_left().saturating_sub(self.claimed())
    }

    /// How much more was promised than there is room for.
    fn overcommitted(&self) -> u64 {
        self.claimed().saturating_sub(self.capacity_left())
    }
}

impl Engine {
    /// Makes a promise larger by `change`, which tells by how much, unless there is no room for
    /// that: then `undo` takes it back.
    ///
    /// # Errors
    /// `NoRoom`.
    pub(crate) fn promise_more(
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
        let (name, room_bytes) = (self.full_name(name), needed_bytes.saturating_sub(lacking));
        Err(DatasetError::NoRoom { name, what, needed_bytes, room_bytes })
    }

    /// Refuses a move of `units` of snapshots from one volume to another where that takes the one
    /// over its quota, or leaves the other less than it was promised.
    pub(crate) fn refuse_move(
        &self,
        from: &State,
        to: &State,
        units: u64,
    ) -> Result<(), DatasetError> {
        let bytes = units * PACK_BYTES as u64;
        let quota_bytes = to.record.properties.quota_bytes;
        let (from_has, to_has) = (from.has(), to.has());
        if quota_bytes > 0 && to_has.used + bytes > quota_bytes {
            let name = self.full_name(&to.record.name);
            return Err(DatasetError::Quota { name, quota_bytes });
        }
        let used = |has: Has, used| Has { used, ..has };
        let less = used(from_has, from_has.used.saturating_sub(bytes));
        let more = used(to_has, to_has.used + bytes);
        let (of, at) = (&from.record.properties, &to.record.properties);
        let before = promise(of, from_has) + promise(at, to_has);
        let needed_bytes = (promise(of, less) + promise(at, more)).saturating_sub(before);
        let room_bytes = self.core.room_bytes();
        if needed_bytes > room_bytes {
            let name = self.full_name(&from.record.name);
            let what = "its reservation, without the snapshots that move,";
            return Err(DatasetError::NoRoom { name, what, needed_bytes, room_bytes });
        }
        Ok(())
    }

    /// Room that no volume was promised.
    pub fn available_bytes(&self) -> u64 {
        self.core.room_bytes()
    }
}

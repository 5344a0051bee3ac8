//! Limits of a volume: quotas, reservations, used space.
//!
//! Not here: measuring and checking them (`accounting`).
//!
//! Invariant: a limit that is not set limits nothing.

use weir_base::BLOCK_BYTES;
use weir_base::limits::ATOMIC_WRITE_BYTES_MAX;
use weir_format::{NODE_FANOUT, Properties, TreeRoot};

use crate::objects::record::VolumeSize;

/// A promise keeps this much back even where the volume has all of it: what is overwritten needs
/// room until the commit frees the old blocks. As much as the largest change of a write takes: all
/// of the two largest records of which it changes a part, with their nodes, and some.
pub(crate) const OVERWRITE_BYTES: u64 = 3 << 20;

pub(crate) const ATOMIC_WRITE_BLOCKS: u64 = ATOMIC_WRITE_BYTES_MAX / BLOCK_BYTES as u64;

/// A larger promise counts as this one, so that sums of promises do not overflow: 64 times the
/// largest volume.
const PROMISE_MAX: u64 = 64 * weir_base::limits::VOLUME_BYTES_MAX;

/// What a volume has, as of the last commit, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Has {
    /// With its snapshots.
    pub(crate) used: u64,
    /// Its own data that no snapshot holds.
    pub(crate) born: u64,
}

/// Of what was promised to its own data, what a volume does not have.
pub(crate) fn by_refreservation(properties: &Properties, has: Has) -> u64 {
    properties.refreservation_bytes.min(PROMISE_MAX).saturating_sub(has.born)
}

/// What is kept back for a volume beside what it has.
pub(crate) fn promise(properties: &Properties, has: Has) -> u64 {
    let kept = |promised: u64, lacks: u64| lacks.max(promised.min(OVERWRITE_BYTES));
    let Properties { reservation_bytes, refreservation_bytes, .. } = *properties;
    let reservation_bytes = reservation_bytes.min(PROMISE_MAX);
    kept(refreservation_bytes, by_refreservation(properties, has))
        .max(kept(reservation_bytes, reservation_bytes.saturating_sub(has.used)))
}

/// What a volume of this size takes at most: its data and the nodes over it.
pub(crate) fn thick_bytes(size: VolumeSize) -> u64 {
    let (records, height) = (size.records(), size.height());
    let nodes: u64 = (1..=height).map(|level| records.div_ceil(TreeRoot::capacity(level))).sum();
    debug_assert!(records < NODE_FANOUT as u64 || nodes > 0);
    size.bytes + nodes * BLOCK_BYTES as u64
}

/// What a volume's state knows of its limits, so that a write need not count.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Whether any of what follows counts.
    pub(crate) is_set: bool,
    /// What it has.
    pub(crate) has: Has,
    /// Its part of [`Core::unclaimed`]: of its promise, what its dirty data does not cover.
    pub(crate) unclaimed: u64,
    /// Whether it is one of [`Core::promises`].
    pub(crate) is_promised: bool,
    /// A snapshot is asked for and not there yet: what is dirty will be the snapshot's, and the
    /// promise to the volume's own data holds anew.
    pub(crate) is_taking: bool,
}

impl Limits {
    /// Whether what is dirty is a part of what was promised.
    pub(crate) fn covers(&self) -> bool {
        !self.is_taking
    }
}

#[cfg(test)]
mod tests {
    use weir_format::{NODE_FANOUT, TreeRoot};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_promise_is_the_larger_of_what_is_lacking() {
        let properties = |reservation: u64, refreservation: u64| Properties {
            reservation_bytes: reservation * MIB,
            refreservation_bytes: refreservation * MIB,
            ..Properties::default()
        };
        let promised = |reservation, refreservation, used: u64, born: u64| {
            let has = Has { used: used * MIB, born: born * MIB };
            promise(&properties(reservation, refreservation), has) / MIB
        };
        assert_eq!(promised(0, 0, 9, 9), 0);
        assert_eq!(promised(10, 0, 3, 3), 7);
        assert_eq!(promised(10, 0, 20, 3), 3, "to overwrite what is there");
        assert_eq!(promised(1, 0, 20, 3), 1, "no more than was asked for");
        assert_eq!(promised(0, 10, 9, 0), 10, "what snapshots hold does not count");
        assert_eq!(promised(30, 10, 9, 0), 21);
    }

    #[test]
    fn a_thick_volume_has_room_for_its_nodes() {
        let blocks = |bytes: u64| thick_bytes(bytes.into()) / 4096;
        assert_eq!(blocks(4096), 1 + u64::from(TreeRoot::height_for(1)));
        let fanout = NODE_FANOUT as u64;
        assert_eq!(blocks(4096 * fanout), fanout + 1);
        assert_eq!(blocks(4096 * fanout * 2), fanout * 2 + 3);
        let large = VolumeSize { bytes: fanout << 20, record: weir_base::RecordSize::MAX };
        assert_eq!(thick_bytes(large), (fanout << 20) + 4096, "a node for all of its records");
    }
}

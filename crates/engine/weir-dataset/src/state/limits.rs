//! Limits of a volume: quotas, reservations, used space.
//!
//! `accounting` measures and checks the limits.
//!
//! Invariant: an unset limit restricts nothing.

use weir_base::BLOCK_BYTES;
use weir_base::limits::ATOMIC_WRITE_BYTES_MAX;
use weir_format::{NODE_FANOUT, Properties, TreeRoot};

use crate::objects::record::VolumeSize;

/// Minimum space reserved for a volume with a reservation, even if it already uses all of the
/// reservation: overwritten blocks occupy space until the commit frees the old ones. The minimum
/// covers the largest change of one write, which includes two partly changed records of the maximum
/// size and their nodes, with a margin.
pub(crate) const OVERWRITE_BYTES: u64 = 3 << 20;

pub(crate) const ATOMIC_WRITE_BLOCKS: u64 = ATOMIC_WRITE_BYTES_MAX / BLOCK_BYTES as u64;

/// Larger reservations count as this value, so that their sum cannot overflow: 64 times the largest
/// volume.
const RESERVATION_MAX: u64 = 64 * weir_base::limits::VOLUME_BYTES_MAX;

/// Space use of a volume as of the last commit, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeUsage {
    /// Space that the volume and its snapshots use.
    pub(crate) used: u64,
    /// Data of the volume that no snapshot references.
    pub(crate) born: u64,
}

/// Unused part of the refreservation.
pub(crate) fn by_refreservation(properties: &Properties, usage: VolumeUsage) -> u64 {
    properties.refreservation_bytes().min(RESERVATION_MAX).saturating_sub(usage.born)
}

/// Bytes that the pool reserves for a volume in addition to its used space: the larger shortfall of
/// its reservation and its refreservation. Each shortfall is at least [`OVERWRITE_BYTES`], or the
/// whole reservation if that is smaller.
///
/// The shortfall of a reservation is the part that the volume and its snapshots do not use. The
/// shortfall of a refreservation counts only the volume's own data, without data that snapshots
/// hold: after each snapshot, clients may overwrite all data again.
pub(crate) fn shortfall(properties: &Properties, usage: VolumeUsage) -> u64 {
    let kept = |reserved: u64, lacks: u64| lacks.max(reserved.min(OVERWRITE_BYTES));
    let reservation_bytes = properties.reservation_bytes().min(RESERVATION_MAX);
    kept(properties.refreservation_bytes(), by_refreservation(properties, usage))
        .max(kept(reservation_bytes, reservation_bytes.saturating_sub(usage.used)))
}

/// Maximum space of a volume of this size: its data and its tree nodes.
pub(crate) fn thick_bytes(size: VolumeSize) -> u64 {
    let (records, height) = (size.records(), size.height());
    let nodes: u64 = (1..=height).map(|level| records.div_ceil(TreeRoot::capacity(level))).sum();
    debug_assert!(records < NODE_FANOUT as u64 || nodes > 0);
    size.bytes + nodes * BLOCK_BYTES as u64
}

/// Limits cached in the volume's state, so that a write computes no sums.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// True if the volume has any limit.
    pub(crate) is_set: bool,
    /// Space use of the volume.
    pub(crate) usage: VolumeUsage,
    /// Part of [`Core::unclaimed`] that belongs to this volume: the part of its reserved bytes that
    /// its dirty data does not cover.
    pub(crate) unclaimed: u64,
    /// True if [`Core::reserved_volumes`] counts this volume.
    pub(crate) is_reserved: bool,
    /// True while a requested snapshot is not created yet. The dirty data will belong to the
    /// snapshot, so the refreservation counts in full once more.
    pub(crate) is_taking: bool,
}

impl Limits {
    /// True if the reservation covers the dirty data.
    pub(crate) fn covers(&self) -> bool {
        !self.is_taking
    }
}

#[cfg(test)]
mod tests {
    use weir_base::property::{Limit, REFRESERVATION, RESERVATION, Refreservation};
    use weir_format::{NODE_FANOUT, TreeRoot};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn larger_shortfall_of_both_reservations_is_reserved() {
        let properties = |reservation: u64, refreservation: u64| {
            Properties::default()
                .with(RESERVATION, Limit(reservation * MIB))
                .with(REFRESERVATION, Refreservation::Bytes(refreservation * MIB))
        };
        let reserved = |reservation, refreservation, used: u64, born: u64| {
            let usage = VolumeUsage { used: used * MIB, born: born * MIB };
            shortfall(&properties(reservation, refreservation), usage) / MIB
        };
        assert_eq!(reserved(0, 0, 9, 9), 0);
        assert_eq!(reserved(10, 0, 3, 3), 7);
        assert_eq!(reserved(10, 0, 20, 3), 3, "to overwrite what is there");
        assert_eq!(reserved(1, 0, 20, 3), 1, "no more than was asked for");
        assert_eq!(reserved(0, 10, 9, 0), 10, "what snapshots hold does not count");
        assert_eq!(reserved(30, 10, 9, 0), 21);
    }

    #[test]
    fn thick_volume_includes_its_nodes() {
        let blocks = |bytes: u64| thick_bytes(bytes.into()) / 4096;
        assert_eq!(blocks(4096), 1 + u64::from(TreeRoot::height_for(1)));
        let fanout = NODE_FANOUT as u64;
        assert_eq!(blocks(4096 * fanout), fanout + 1);
        assert_eq!(blocks(4096 * fanout * 2), fanout * 2 + 3);
        let large = VolumeSize { bytes: fanout << 20, record: weir_base::RecordSize::MAX };
        assert_eq!(thick_bytes(large), (fanout << 20) + 4096, "a node for all of its records");
    }
}

//! History of a pool: relations between uberblocks, derived from the import epochs in their lineage
//! (this import epoch and the earlier ones, newest first).
//!
//! A claim is the first uberblock of an import: it repeats the uberblock from which the pool was
//! opened, as a txg of the new import epoch.
//!
//! Not here: the import (`open_pool`), which applies these relations.
//!
//! Invariant: no function reads a disk.

use weir_base::{Guid, Txg};
use weir_format::{ImportEpoch, Owner, Uberblock};

/// True if two uberblocks refer to the same bootstrap table, and so to the same blocks.
pub(crate) fn lead_to_same(a: &Uberblock, b: &Uberblock) -> bool {
    (&a.bootstrap, a.bootstrap_checksum) == (&b.bootstrap, b.bootstrap_checksum)
}

/// True if the import epoch of `late` descends from the import epoch of `early`: the lineage of
/// `late` lists that epoch as an earlier one.
pub(crate) fn follows(late: &Uberblock, early: &Uberblock) -> bool {
    let Some(before) = early.lineage.first() else { return false };
    late.lineage.iter().position(|known| known.id == before.id).is_some_and(|index| index > 0)
}

/// Sort key of uberblocks by their order in the pool's history, except where [`supersedes`]
/// decides. The first commit of each import epoch starts a new log epoch, so a higher log epoch is
/// later, even if a leg that was absent has a txg of the same number.
pub(crate) fn age(uberblock: &Uberblock) -> (u64, Txg) {
    (uberblock.log_epoch, uberblock.txg)
}

/// True if `late` is later in the pool's history than `early`, although its [`age`] is not higher.
///
/// A claim keeps the log epoch of the uberblock that it repeats. So an unfinished txg of an earlier
/// import epoch can have the same txg number as the claim, or the higher log epoch of a first
/// commit. The import that wrote the claim did not find that txg, and may have overwritten its
/// rows.
///
/// If the import epoch of `early` committed more than one txg, in addition to its claim, that the
/// history of `late` lacks, that epoch ran without the disks of `late`, and the result is false.
pub(crate) fn supersedes(late: &Uberblock, early: &Uberblock) -> bool {
    let is_claim = late.lineage.first().is_some_and(|own| own.first == late.txg);
    let is_unfinished = || is_claim && is_ancestor_of_without_cuts(early, late);
    follows(late, early) && (age(late) == age(early) || is_unfinished())
}

/// Last txg of an import epoch that belongs to the history that ends with `newest`; `None` if the
/// history does not contain the epoch.
pub(crate) fn shared_with(import_epoch: Guid, lineage: &[ImportEpoch], newest: Txg) -> Option<Txg> {
    let index = lineage.iter().position(|known| known.id == import_epoch)?;
    Some(match index.checked_sub(1) {
        Some(next) => Txg(lineage[next].first.0.saturating_sub(1)),
        None => newest,
    })
}

/// True if `old` is part of the history of `new`.
pub(crate) fn is_ancestor_of(old: &Uberblock, new: &Uberblock) -> bool {
    is_part_of(old, &new.lineage, new.txg)
}

/// True if `old` is part of a history that ends with `newest`.
pub(crate) fn is_part_of(old: &Uberblock, lineage: &[ImportEpoch], newest: Txg) -> bool {
    let import_epoch = old.lineage.first().map(|import_epoch| import_epoch.id);
    import_epoch.and_then(|id| shared_with(id, lineage, newest)).is_some_and(|txg| old.txg <= txg)
}

/// True if `old` would be part of the history of `new` if no power cut had interrupted a commit.
/// For each import epoch in the lineage of `old`, the history of `new` may lack two txgs: the claim
/// of that epoch, and the epoch's last txg, which a power cut between the writes to two disks left
/// on only one disk. Any number of consecutive epochs may end in this way.
///
/// Such a txg contains no acknowledged write: an import epoch acknowledges writes only after its
/// first txg is on all disks.
pub(crate) fn is_ancestor_of_without_cuts(old: &Uberblock, new: &Uberblock) -> bool {
    is_part_of_but_for_cuts(old, &new.lineage, new.txg)
}

/// True if [`is_ancestor_of_without_cuts`] holds for a history that ends with `newest`.
fn is_part_of_but_for_cuts(old: &Uberblock, lineage: &[ImportEpoch], newest: Txg) -> bool {
    let mut end = old.txg;
    for import_epoch in &old.lineage {
        let shared = shared_with(import_epoch.id, lineage, newest);
        let shared = shared.filter(|txg| *txg >= import_epoch.first);
        let (unknown, most) = match shared {
            Some(shared) => (end.0.saturating_sub(shared.0), 1),
            // No txg of this import epoch is in the history: the epoch's claim counts as a second
            // lacking txg.
            None => (end.0.saturating_add(1).saturating_sub(import_epoch.first.0), 2),
        };
        if unknown > most {
            return false;
        }
        if shared.is_some() {
            return true;
        }
        end = Txg(import_epoch.first.0.saturating_sub(1));
    }
    false
}

/// True if an owner slot proves that the txg of an uberblock was committed.
pub(crate) fn proves_commit(owner: &Owner, uberblock: &Uberblock) -> bool {
    let import_epoch = uberblock.lineage.first().map(|import_epoch| import_epoch.id);
    Some(owner.import_epoch) == import_epoch && owner.txg >= uberblock.txg
}

/// History of a pool, with the legs that it relies on.
pub(crate) struct PoolHistory<'a> {
    /// Import epochs, newest first.
    pub(crate) lineage: &'a [ImportEpoch],
    pub(crate) newest: Txg,
    /// Legs in use that the history does not list as stale. These legs include unconfirmed legs.
    pub(crate) current_legs: &'a [Guid],
}

/// Uberblock of a disk that may have diverged.
pub(crate) struct DiskEnd<'a> {
    /// Newest uberblock of the disk, claims excluded.
    pub(crate) newest: &'a Uberblock,
    /// True if an owner slot proves that the txg of `newest` was committed.
    pub(crate) is_committed: bool,
    /// Last txg before the disk went out of use, if the history lists the disk as stale.
    pub(crate) stale_after: Option<Txg>,
}

/// True if a disk diverged: it has a committed txg that the history of the pool lacks.
pub(crate) fn has_diverged(disk: &DiskEnd<'_>, pool: &PoolHistory<'_>) -> bool {
    let own = disk.newest;
    let import_epoch = own.lineage.first();
    // The lineage lists only the last import epochs. So a stale disk that was last written in an
    // earlier epoch counts as known.
    let is_before = |oldest: &ImportEpoch| import_epoch.is_some_and(|e| e.first < oldest.first);
    let is_known = is_part_of(own, pool.lineage, pool.newest)
        || (disk.stale_after.is_some_and(|after| own.txg <= after)
            && pool.lineage.last().is_some_and(is_before));
    // The disk listed a current leg as stale, so it was written without that leg.
    let alone = || own.stale_legs.iter().any(|stale| pool.current_legs.contains(&stale.guid));
    let is_cut = || is_part_of_but_for_cuts(own, pool.lineage, pool.newest);
    !is_known && (disk.is_committed || alone() || !is_cut())
}

/// Newest uberblock in the ring of one disk, claims excluded. A claim has the roots of an earlier
/// uberblock, so a disk whose newest uberblock is a claim has no data that other disks lack.
pub(crate) fn newest_change(ring: &[Uberblock]) -> Option<&Uberblock> {
    let is_claim =
        |own: &Uberblock| ring.iter().any(|other| other.txg < own.txg && lead_to_same(other, own));
    ring.iter().filter(|own| !is_claim(own)).max_by_key(|own| age(own))
}

/// End of the uberblock ring of a leg, among the uberblocks that belong to one history of the pool.
#[derive(Clone, Copy)]
pub(crate) struct RingEnd {
    /// Txg of the newest uberblock.
    pub(crate) last: Txg,
    /// Txg up to which the leg is complete. This txg is earlier than `last` if the uberblock of txg
    /// `last` lists the leg itself as stale or unconfirmed, because the leg was being resilvered.
    pub(crate) complete: Txg,
}

impl RingEnd {
    /// A leg without any uberblock of the history.
    pub(crate) const NONE: Self = Self { last: Txg(0), complete: Txg(0) };
}

/// Ring end of a leg with the uberblocks `own`, in a history that ends with `newest`.
pub(crate) fn ring_end(
    leg: Guid,
    own: &[Uberblock],
    lineage: &[ImportEpoch],
    newest: Txg,
) -> Option<RingEnd> {
    let shared = own.iter().filter(|own| is_part_of(own, lineage, newest));
    let end = shared.max_by_key(|own| own.txg)?;
    let lists = end.stale_legs.iter().chain(&end.unconfirmed_legs);
    let of_leg = lists.filter(|listed| listed.guid == leg).map(|listed| listed.after);
    let complete = of_leg.min().map_or(end.txg, |after| after.min(end.txg));
    Some(RingEnd { last: end.txg, complete })
}

//! Which labels and uberblocks belong to one history of a pool.
//!
//! Not here: import (`open_pool`), which acts on it.
//!
//! Invariant: no function reads a disk.

use weir_base::{Guid, Txg};
use weir_format::{Opening, Uberblock};

/// Whether two uberblocks lead to the same blocks.
pub(crate) fn lead_to_same(a: &Uberblock, b: &Uberblock) -> bool {
    (&a.bootstrap, a.bootstrap_checksum) == (&b.bootstrap, b.bootstrap_checksum)
}

/// Whether the opening of `late` came after that of `early`. A claim has epoch and number of a txg
/// that another opening did not finish.
pub(crate) fn follows(late: &Uberblock, early: &Uberblock) -> bool {
    let before = early.lineage.first();
    before.is_some_and(|before| late.lineage.iter().skip(1).any(|known| known.id == before.id))
}

/// Every import starts a new log epoch, so a higher epoch comes later in the pool's history, also
/// where a leg that was absent holds a txg of the same number.
pub(crate) fn age(uberblock: &Uberblock) -> (u64, Txg) {
    (uberblock.log_epoch, uberblock.txg)
}

/// Last txg of an opening that is part of the history of `new`.
fn shared_until(opening: Guid, new: &Uberblock) -> Option<Txg> {
    shared_with(opening, &new.lineage, new.txg)
}

/// Last txg of an opening that is part of a history that ends with `newest`.
pub(crate) fn shared_with(opening: Guid, lineage: &[Opening], newest: Txg) -> Option<Txg> {
    let index = lineage.iter().position(|known| known.id == opening)?;
    Some(match index.checked_sub(1) {
        Some(next) => Txg(lineage[next].first.0.saturating_sub(1)),
        None => newest,
    })
}

/// Whether everything that `old` knows is known to `new`.
pub(crate) fn leads_to(old: &Uberblock, new: &Uberblock) -> bool {
    is_part_of(old, &new.lineage, new.txg)
}

/// Whether `old` is part of a history that ends with `newest`.
pub(crate) fn is_part_of(old: &Uberblock, lineage: &[Opening], newest: Txg) -> bool {
    let opening = old.lineage.first().map(|opening| opening.id);
    opening.and_then(|id| shared_with(id, lineage, newest)).is_some_and(|txg| old.txg <= txg)
}

/// Whether each opening that led to `old` has at most one txg, beside its claim, that is unknown to
/// `new`: the last, which power cuts between the writes to two disks leave on one of them, any
/// number in a row.
/// Nothing of such a txg was acknowledged: an opening acknowledges after its first one is on all
/// disks.
pub(crate) fn leads_to_but_for_cuts(old: &Uberblock, new: &Uberblock) -> bool {
    let mut end = old.txg;
    for opening in &old.lineage {
        let shared = shared_until(opening.id, new);
        let (unknown, most) = match shared {
            Some(shared) => (end.0.saturating_sub(shared.0), 1),
            // It began with its claim.
            None => (end.0.saturating_add(1).saturating_sub(opening.first.0), 2),
        };
        if unknown > most {
            return false;
        }
        if shared.is_some() {
            return true;
        }
        end = Txg(opening.first.0.saturating_sub(1));
    }
    false
}

/// The end of a leg's own uberblocks, as far as they belong to a history.
#[derive(Clone, Copy)]
pub(crate) struct RingEnd {
    /// Txg of its newest uberblock.
    pub(crate) last: Txg,
    /// The leg holds everything up to this txg. Earlier than `last` where that uberblock calls the
    /// leg itself stale or unconfirmed: it was being resilvered then.
    pub(crate) complete: Txg,
}

impl RingEnd {
    /// Of a leg without any uberblock of the history.
    pub(crate) const NONE: Self = Self { last: Txg(0), complete: Txg(0) };
}

/// The end of the uberblocks `own` of a leg in a history that ends with `newest`.
pub(crate) fn ring_end(
    leg: Guid,
    own: &[Uberblock],
    lineage: &[Opening],
    newest: Txg,
) -> Option<RingEnd> {
    let shared = own.iter().filter(|own| is_part_of(own, lineage, newest));
    let end = shared.max_by_key(|own| own.txg)?;
    let lists = end.stale_legs.iter().chain(&end.unconfirmed_legs);
    let of_leg = lists.filter(|listed| listed.guid == leg).map(|listed| listed.after);
    let complete = of_leg.min().map_or(end.txg, |after| after.min(end.txg));
    Some(RingEnd { last: end.txg, complete })
}

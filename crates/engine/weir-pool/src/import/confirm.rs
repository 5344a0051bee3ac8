//! Marks legs as stale or unconfirmed for an uberblock, from the uberblock's own lists and from the
//! uberblock ring of each leg.
//!
//! Not here: choosing the uberblock (`open_pool`), diverged legs (`open_pool`, `Diverged`).
//!
//! Invariants (I25; docs/design/recovery.md, "Legs"):
//! - a claim does not count: it repeats an older uberblock and adds no data that a leg could miss;
//! - a leg whose ring ends one txg early is unconfirmed, or stale if it has an uberblock of a later
//!   import epoch; a leg whose ring ends earlier is stale ([`mark_legs`]);
//! - a leg whose own newest uberblock lists it as stale or unconfirmed (such as a disk that was
//!   copied during its resilver) is complete only up to the listed txg;
//! - if the uberblock's lists and the ring differ, the earlier txg counts.

use weir_base::Txg;
use weir_format::{StaleLeg, Uberblock};

use crate::disks::leg::Leg;
use crate::disks::lineage::{RingEnd, follows, is_ancestor_of, lead_to_same, ring_end};
use crate::disks::vdev::Vdev;
use crate::disks::vdevs::Vdevs;
use crate::import::found_disk::Found;
use crate::planted_bugs::PlantedBug;

/// Marks legs as stale or unconfirmed if `uberblock`, or the leg's own uberblock ring, shows that
/// the leg missed writes.
///
/// A commit writes its uberblock to every leg in use before the next txg begins. If a leg fails,
/// all later uberblocks list it as stale. So the ring of an unlisted leg ends at the pool's newest
/// txg, or one txg earlier if the power failed between two legs. A ring that ends earlier belongs
/// to an old copy of the disk, or to a disk that lost writes which it had reported as durable. Such
/// a leg is stale from the end of its ring.
///
/// A leg whose ring ends one txg early is unconfirmed. The rows of the missing txg were flushed
/// before its uberblock was written, so the leg has these rows unless its disk loses flushed
/// writes. Therefore the leg counts as complete and is resilvered. If the leg also has an uberblock
/// of a later import epoch, it is stale from the end of its ring: that epoch may have overwritten
/// the rows of the missing txg.
pub(crate) fn mark_legs(vdevs: &Vdevs, uberblock: &Uberblock, found: &Found, bug: PlantedBug) {
    let content_txg = content_txg(uberblock, found);
    for vdev in vdevs.in_service() {
        let joined_with_it = first_txg(vdev, uberblock, found).is_none_or(|txg| txg >= content_txg);
        for leg in &vdev.legs {
            let listed = |list: &[StaleLeg]| {
                list.iter().find(|stale| stale.guid == leg.guid).map(|stale| stale.after)
            };
            if let Some(after) = listed(&uberblock.stale_legs) {
                leg.set_stale_since(after);
            }
            if let Some(after) = listed(&uberblock.unconfirmed_legs) {
                leg.set_unconfirmed(after);
            }
            if bug == PlantedBug::OldLegTrusted {
                continue;
            }
            let end_of = |own| ring_end(leg.guid, own, &uberblock.lineage, uberblock.txg);
            match found.uberblocks_of(leg.guid).map(end_of) {
                // The disk is missing: the import reads its uberblock ring when the disk
                // reconnects.
                None => {}
                Some(None) if joined_with_it => leg.set_unconfirmed(Txg(0)),
                Some(None) => note_old(leg, RingEnd::NONE, content_txg),
                Some(Some(end)) if end.last >= content_txg => {}
                Some(Some(end)) if end.last.next() == content_txg => {
                    let own = found.uberblocks_of(leg.guid).unwrap_or_default();
                    let is_overwritten = own.iter().any(|own| follows(own, uberblock));
                    if is_overwritten || listed(&uberblock.stale_legs).is_some() {
                        leg.set_stale_since(end.complete);
                    } else {
                        leg.set_unconfirmed(end.complete);
                    }
                }
                Some(Some(end)) => note_old(leg, end, content_txg),
            }
        }
    }
}

/// Txg that wrote the roots of an uberblock. All later txgs up to the uberblock are claims.
///
/// The first txg of each import epoch except the oldest is a claim. The disk with the uberblock of
/// the content txg may be missing, so the txg is derived from the lineage. If the lineage is
/// truncated, the rings of the disks supply the txg.
pub(crate) fn content_txg(uberblock: &Uberblock, found: &Found) -> Txg {
    let mut content = uberblock.txg;
    let claims = uberblock.lineage.len().saturating_sub(1);
    for import_epoch in uberblock.lineage.iter().take(claims) {
        if import_epoch.first > content {
            // This epoch claimed the same state as a newer epoch, with the same or a later txg:
            // skip its claim.
            continue;
        }
        if import_epoch.first != content {
            break;
        }
        content = Txg(content.0.saturating_sub(1));
    }
    let same = found.uberblocks().filter(|other| lead_to_same(other, uberblock));
    same.map(|other| other.txg).min().map_or(content, |oldest| oldest.min(content))
}

fn note_old(leg: &Leg, end: RingEnd, newest: Txg) {
    let known = leg.stale_after().is_some_and(|after| after <= end.complete);
    if !known {
        let (disk, end, newest) = (leg.path(), end.last.0, newest.0);
        tracing::error!(disk, end, newest, "disk holds an older state than the pool: it is stale");
    }
    leg.set_stale_since(end.complete);
}

/// Oldest txg in the history of `newest` for which any leg of the vdev has an uberblock. A vdev
/// that was added later has no earlier uberblocks.
fn first_txg(vdev: &Vdev, newest: &Uberblock, found: &Found) -> Option<Txg> {
    let own = vdev.legs.iter().filter_map(|leg| found.uberblocks_of(leg.guid)).flatten();
    own.filter(|own| is_ancestor_of(own, newest)).map(|own| own.txg).min()
}

//! Evaluates the labels of all disks of one pool: finds the legs and the newest uberblock.
//!
//! Not here: reading the labels (`late_disks`), opening the pool (`open_pool`).
//!
//! Invariant: `check_newest` refuses an uberblock if a later txg was certainly committed.

use std::sync::Arc;

use weir_base::{Guid, Txg};
use weir_device::Device;
use weir_format::layout::RING_SLOTS;
use weir_format::{FormatError, ImportEpoch, Owner, Uberblock, VdevConfig};

use crate::disks::labels::DiskLabels;
use crate::disks::layout::build_vdevs;
use crate::disks::leg::Leg;
use crate::disks::lineage::{
    DiskEnd, PoolHistory, age, has_diverged, lead_to_same, proves_commit, supersedes,
};
use crate::disks::vdev::Vdev;
use crate::disks::vdevs::Vdevs;
use crate::error::PoolError;
use crate::import::answer::{Answer, Unlabelled};
use crate::import::confirm::{content_txg, mark_legs};
use crate::import::found_disk::{Found, FoundDisk};
use crate::import::late_disks::LateDisk;
use crate::import::options::ImportOptions;
use crate::options::PoolOptions;
use crate::planted_bugs::PlantedBug;
use crate::segments::sanity::LOG_NUMBER_MAX;
use crate::state::moment::HistoryPoint;
use crate::topology::claim::Labelled;

impl Found {
    /// Collects the labels of all disks of one pool, in the order of the disks.
    ///
    /// A disk of another format version counts as foreign, like a disk without a label.
    /// [`Self::check_newest`] refuses the other disks if a newer Weir wrote that disk as a disk of
    /// this pool.
    pub(crate) fn new<'a>(answers: impl Iterator<Item = &'a Answer>) -> Result<Self, PoolError> {
        let mut other_version = Vec::<(String, FormatError)>::new();
        let (mut disks, mut paths, mut left_out) =
            (Vec::<FoundDisk>::new(), Vec::new(), Vec::new());
        for Answer { disk, labels } in answers {
            paths.push(disk.path().to_owned());
            let DiskLabels { label, uberblocks, damaged_slots, owner, is_old_format } = match labels
            {
                Ok(labels) => labels,
                Err(error) => {
                    left_out.push((disk.path().to_owned(), error.to_string()));
                    if let Unlabelled::Format(source) = error
                        && source.is_other_version()
                    {
                        other_version.push((disk.path().to_owned(), source.clone()));
                    }
                    continue;
                }
            };
            if let Some(known) = disks.first().filter(|known| known.label.pool != label.pool) {
                return Err(PoolError::OtherPool {
                    path: disk.path().to_owned(),
                    found: label.pool,
                    wanted: known.label.pool,
                });
            }
            disks.push(FoundDisk {
                guid: label.disk,
                device: Arc::clone(disk),
                label: label.clone(),
                uberblocks: uberblocks.clone(),
                damaged_slots: damaged_slots.clone(),
                owner: owner.clone(),
                is_old_format: *is_old_format,
            });
        }
        let mut other_version = other_version.into_iter();
        let Some(label) = disks.first().map(|disk| disk.label.clone()) else {
            return Err(match other_version.next() {
                Some((path, source)) => PoolError::OtherFormat { path, source },
                None => PoolError::NoPool { paths: paths.join(", ") },
            });
        };
        let newer_format =
            other_version.find(|(_, source)| source.newer_pool() == Some(label.pool));
        let mut found = Self { label, disks, left_out, newer_format };
        found.choose_label();
        Ok(found)
    }

    /// Takes the label with the highest txg, except labels of diverged disks, which describe the
    /// vdevs of another history. Among labels with the same txg, prefers the label of a disk with
    /// the newest uberblock. If a crash interrupted a change, and a disk with the new label was
    /// absent when the pool changed again, the label of that disk may have the same txg although it
    /// is out of date.
    fn choose_label(&mut self) {
        let newest = self.uberblocks_newest_first().into_iter().next();
        let diverged = newest.as_ref().map(|newest| self.diverged_from(newest));
        let diverged: Vec<Guid> =
            diverged.unwrap_or_default().into_iter().map(|disk| disk.guid).collect();
        let agrees = |disk: &&FoundDisk| !diverged.contains(&disk.guid);
        let has_newest =
            |disk: &FoundDisk| newest.as_ref().is_some_and(|u| disk.uberblocks.contains(u));
        let by = |disk: &&FoundDisk| (disk.label.txg, has_newest(disk));
        if let Some(disk) = self.disks.iter().filter(agrees).max_by_key(by) {
            self.label = disk.label.clone();
        }
    }

    /// True if a label copy has an older format version than this Weir writes.
    pub(crate) fn has_old_labels(&self) -> bool {
        self.disks.iter().any(|disk| disk.is_old_format)
    }

    /// Ids of the import epochs that the owner slots of the disks name.
    pub(crate) fn owners_before(&self) -> Vec<Guid> {
        let mut import_epochs: Vec<Guid> = self
            .disks
            .iter()
            .flat_map(|disk| &disk.owner)
            .map(|owner| owner.import_epoch)
            .collect();
        import_epochs.dedup();
        import_epochs
    }

    /// Disks of the pool with their owner slots, each with the label that describes the pool.
    pub(crate) fn labelled(&self) -> Vec<Labelled<'_>> {
        let place = |guid: Guid| {
            let has = |vdev: &&VdevConfig| vdev.legs.iter().any(|leg| leg.guid == guid);
            self.label.vdevs.iter().find(has).map(|vdev| vdev.disk_bytes)
        };
        self.disks
            .iter()
            .map(|found| Labelled {
                disk: &*found.device,
                label: &self.label,
                disk_bytes: place(found.guid),
                owner: found.owner.as_ref(),
            })
            .collect()
    }

    /// Records on each leg without a disk why the disk at its path was excluded.
    pub(crate) fn explain(&self, vdevs: &Vdevs, late: &[LateDisk]) {
        let late = late.iter().map(|late| (late.path(), "is unresponsive"));
        let left_out = self.left_out.iter().map(|(path, why)| (path.as_str(), why.as_str()));
        for (path, why) in left_out.chain(late) {
            tracing::warn!(disk = path, why, "disk excluded from the import");
            let missing = |leg: &&Leg| leg.device().is_none() && leg.path() == path;
            vdevs.legs().filter(missing).for_each(|leg| leg.set_note(why));
        }
    }

    /// Checks that no txg after `newest` is known to be committed.
    ///
    /// # Errors
    /// `OtherFormat`: a newer Weir wrote a disk of the pool. `OlderThanSeen`: `how` or an owner
    /// slot names such a txg. `NewestDamaged`: more than one uberblock after `newest` is damaged in
    /// every copy. A power cut tears the uberblock of one txg.
    pub(crate) fn check_newest(
        &self,
        newest: &Uberblock,
        how: ImportOptions,
    ) -> Result<(), PoolError> {
        let pool = &self.label.name;
        if let Some((path, source)) = self.newer_format.clone() {
            return Err(PoolError::OtherFormat { path, source });
        }
        if let Some(seen) = how.newest_seen {
            seen.check(newest, pool, "this server has seen")?;
        }
        for FoundDisk { device, owner, .. } in self.current(newest) {
            let Some(owner) = owner.as_ref().filter(|owner| owner.txg > Txg(0)) else { continue };
            let Owner { import_epoch, txg, unix_ms, .. } = *owner;
            let by = format!("the owner slot of {} names", device.path());
            HistoryPoint { import_epoch, txg, unix_ms }.check(newest, pool, &by)?;
        }
        let damaged = self.damaged_after(newest);
        if damaged > 1 {
            return Err(PoolError::NewestDamaged {
                pool: pool.clone(),
                found: newest.txg,
                damaged,
            });
        }
        Ok(())
    }

    /// Damaged ring slots of all disks, each with the guid of its leg.
    pub(crate) fn damaged_slots(&self) -> impl Iterator<Item = (Guid, u64)> {
        self.disks.iter().flat_map(|disk| disk.damaged_slots.iter().map(|slot| (disk.guid, *slot)))
    }

    /// Ring slots that a power cut tore while another disk got the uberblock: damaged slots of txgs
    /// up to `newest` that are later than each uberblock of their disk. Returns each slot with the
    /// guid of its leg.
    pub(crate) fn torn_slots(&self, newest: &Uberblock) -> Vec<(Guid, u64)> {
        let of_disk = |disk: &FoundDisk| {
            let own = disk.uberblocks.iter().map(|own| own.txg).filter(|txg| *txg <= newest.txg);
            let behind = newest.txg.0 - own.max().map_or(newest.txg.0, |txg| txg.0);
            let behind = 0..behind.min(RING_SLOTS);
            let slots = behind.map(|back| (newest.txg.0 - back) % RING_SLOTS);
            let torn = slots.filter(|slot| disk.damaged_slots.contains(slot));
            torn.map(|slot| (disk.guid, slot)).collect::<Vec<_>>()
        };
        self.disks.iter().flat_map(of_disk).collect()
    }

    /// Ring slots that hold one of these uberblocks, each with the guid of its leg.
    pub(crate) fn slots_with(&self, uberblocks: &[Uberblock]) -> Vec<(Guid, u64)> {
        let slots = |disk: &FoundDisk| {
            let (guid, own) = (disk.guid, disk.uberblocks.iter());
            let found = own.filter(|own| uberblocks.contains(own));
            found.map(|own| (guid, own.txg.0 % RING_SLOTS)).collect::<Vec<_>>()
        };
        self.disks.iter().flat_map(slots).collect()
    }

    /// Disks that have the uberblock `newest` and are not in its list of stale legs.
    fn current<'a>(&'a self, newest: &'a Uberblock) -> impl Iterator<Item = &'a FoundDisk> {
        self.disks
            .iter()
            .filter(|disk| newest.stale_legs.iter().all(|stale| stale.guid != disk.guid))
            .filter(|disk| disk.uberblocks.contains(newest))
    }

    /// Number of consecutive ring slots after `newest` that are damaged on each disk that is up to
    /// date.
    fn damaged_after(&self, newest: &Uberblock) -> usize {
        let is_damaged = |after: &u64| {
            // The addition wraps, because a forged txg can be `u64::MAX`.
            let slot = newest.txg.0.wrapping_add(*after) % RING_SLOTS;
            self.current(newest).all(|disk| disk.damaged_slots.contains(&slot))
        };
        let slots = if self.current(newest).next().is_some() { 1..RING_SLOTS } else { 0..0 };
        slots.take_while(is_damaged).count()
    }

    /// True if the pool can be opened with these disks alone: every vdev has enough intact legs.
    pub(crate) fn suffices(&self, how: ImportOptions, options: &PoolOptions) -> bool {
        let vdevs = build_vdevs(&self.label, self.place_disks(), options);
        if let Some(newest) = self.uberblocks_newest_first().first() {
            if options.bug != PlantedBug::OldDisksTrusted && self.check_newest(newest, how).is_err()
            {
                return false;
            }
            mark_legs(&vdevs, newest, self, options.bug);
        }
        vdevs.in_service().all(Vdev::is_alive)
    }

    pub(crate) fn place_disks(&self) -> Vec<Vec<Option<Arc<dyn Device>>>> {
        let disk_of = |guid| {
            let found = self.disks.iter().find(|disk| disk.guid == guid);
            found.map(|disk| Arc::clone(&disk.device))
        };
        self.label
            .vdevs
            .iter()
            .map(|vdev| {
                let long_enough = |d: &Arc<dyn Device>| d.geometry().len_bytes >= vdev.disk_bytes;
                vdev.legs.iter().map(|leg| disk_of(leg.guid).filter(long_enough)).collect()
            })
            .collect()
    }

    /// Disks in service that committed txgs without the other disks: the history that ends with
    /// `newest` does not contain the newest uberblock of such a disk. The label may not list such a
    /// disk, because the label may belong to the other history.
    pub(crate) fn diverged_from(&self, newest: &Uberblock) -> Vec<&FoundDisk> {
        let stale = |guid| newest.stale_legs.iter().find(|stale| stale.guid == guid);
        let newest_disks = self.disks.iter().filter(|disk| disk.uberblocks.contains(newest));
        let current_legs = newest_disks.flat_map(|disk| &disk.label.vdevs);
        let current_legs = current_legs.flat_map(|vdev| &vdev.legs).map(|leg| leg.guid);
        let current_legs: Vec<Guid> = current_legs.filter(|guid| stale(*guid).is_none()).collect();
        let (lineage, txg) = (newest.lineage.as_slice(), newest.txg);
        let pool = PoolHistory { lineage, newest: txg, current_legs: &current_legs };
        let diverged = |disk: &&FoundDisk| {
            // A disk whose last uberblock is a claim has no data that the other disks lack.
            let real = disk.uberblocks.iter().filter(|own| !self.is_claim(own));
            let Some(newest) = real.max_by_key(|own| age(own)) else { return false };
            let is_committed = self.is_committed(newest);
            let stale_after = stale(disk.guid).map(|stale| stale.after);
            !disk.is_spare() && has_diverged(&DiskEnd { newest, is_committed, stale_after }, &pool)
        };
        self.disks.iter().filter(diverged).collect()
    }

    /// Uberblocks in the ring of a disk; `None` if the disk is missing.
    pub(crate) fn uberblocks_of(&self, guid: Guid) -> Option<&[Uberblock]> {
        let found = self.disks.iter().find(|disk| disk.guid == guid);
        found.map(|disk| disk.uberblocks.as_slice())
    }

    pub(crate) fn uberblocks(&self) -> impl Iterator<Item = &Uberblock> {
        self.disks.iter().flat_map(|disk| &disk.uberblocks)
    }

    /// True if an older uberblock has the same roots. Then this uberblock only claims the pool for
    /// an import epoch.
    pub(crate) fn is_claim(&self, uberblock: &Uberblock) -> bool {
        self.uberblocks().any(|other| other.txg < uberblock.txg && lead_to_same(other, uberblock))
    }

    /// Import epochs of a history that continues `uberblock`, newest first: its own epochs, and
    /// epochs that only claimed the same state. An epoch that only claimed the state may have an
    /// unfinished txg on a missing disk. The claim of the next epoch supersedes that txg only if
    /// the claim names these epochs.
    pub(crate) fn lineage_after(&self, uberblock: &Uberblock) -> Vec<ImportEpoch> {
        let mut lineage = uberblock.lineage.clone();
        let content = content_txg(uberblock, self);
        let same = self.uberblocks().filter(|other| lead_to_same(other, uberblock));
        for epoch in same.flat_map(|other| &other.lineage) {
            let is_claim = epoch.first > content && epoch.first <= uberblock.txg;
            if is_claim && lineage.iter().all(|known| known.id != epoch.id) {
                let place = lineage.iter().position(|known| known.first <= epoch.first);
                lineage.insert(place.unwrap_or(lineage.len()), *epoch);
            }
        }
        lineage
    }

    /// Log epoch of the first commit after `uberblock`. This log epoch is higher than the log epoch
    /// of each uberblock on the disks, because the log may have intact batches of a state that a
    /// forced import abandons.
    pub(crate) fn next_log_epoch(&self, uberblock: &Uberblock) -> u64 {
        // A forged uberblock must not use up the log epochs.
        let others = self.uberblocks().map(|other| other.log_epoch);
        let highest = others.filter(|epoch| *epoch < LOG_NUMBER_MAX / 2).max().unwrap_or_default();
        highest.max(uberblock.log_epoch) + 1
    }

    /// True if an owner slot proves that the txg of an uberblock was committed.
    fn is_committed(&self, uberblock: &Uberblock) -> bool {
        let mut owners = self.disks.iter().flat_map(|disk| &disk.owner);
        owners.any(|owner| proves_commit(owner, uberblock))
    }

    pub(crate) fn uberblocks_newest_first(&self) -> Vec<Uberblock> {
        let mut all: Vec<Uberblock> = Vec::new();
        for uberblock in self.uberblocks() {
            if !all.contains(uberblock) {
                all.push(uberblock.clone());
            }
        }
        all.sort_by_key(|ub| std::cmp::Reverse(age(ub)));
        let mut sorted: Vec<Uberblock> = Vec::new();
        for uberblock in all.into_iter().rev() {
            // All uberblocks in `sorted` have the same age or are older.
            let later = |other: &Uberblock| supersedes(other, &uberblock);
            let last = sorted.iter().rposition(later).filter(|_| !self.is_committed(&uberblock));
            sorted.insert(last.map_or(0, |last| last + 1), uberblock);
        }
        sorted.truncate(RING_SLOTS as usize);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use weir_device::MemoryDevice;
    use weir_format::layout::FORMAT_VERSION;
    use weir_format::{Features, Label, LegConfig, VdevKind, VdevRole};

    use crate::import::open_pool::tests;

    use super::*;

    /// Builds an uberblock that has roots of its own, so that it is no claim.
    fn uberblock(txg: u64, lineage: &[(u64, u64)]) -> Uberblock {
        Uberblock { bootstrap_checksum: txg.into(), ..tests::uberblock(txg, lineage) }
    }

    /// Answer of a disk of a mirror, whose label has this txg and these legs.
    fn answer(disk: u64, txg: u64, legs: &[u64], uberblocks: Vec<Uberblock>) -> Answer {
        let leg = |guid: &u64| LegConfig { guid: Guid(*guid), path: format!("disk{guid}") };
        let legs = legs.iter().map(leg).collect();
        let (kind, role) = (VdevKind::Mirror, VdevRole::Data);
        let label = Label {
            version: FORMAT_VERSION,
            pool: Guid(7),
            name: "tank".to_owned(),
            disk: Guid(disk),
            txg: Txg(txg),
            segment_bytes: 1 << 16,
            strip_bytes: 4096,
            log_bytes: 1 << 16,
            vdevs: vec![VdevConfig { kind, role, disk_bytes: 8 << 20, legs }],
            features: Features::default(),
        };
        let (damaged_slots, owner, is_old_format) = (Vec::new(), None, false);
        let labels = Ok(DiskLabels { label, uberblocks, damaged_slots, owner, is_old_format });
        Answer { disk: Arc::new(MemoryDevice::new(format!("disk{disk}"), 8 << 20)), labels }
    }

    /// Legs of the label that an import of these disks uses, in both orders of the disks.
    fn legs_of(answers: &[Answer; 2]) -> Vec<u64> {
        let legs = |found: Found| -> Vec<u64> {
            found.label.vdevs[0].legs.iter().map(|leg| leg.guid.0).collect()
        };
        let found = legs(Found::new(answers.iter()).unwrap());
        assert_eq!(found, legs(Found::new(answers.iter().rev()).unwrap()));
        found
    }

    // Regression: the order of the disks decided between labels with the same txg.
    #[test]
    fn label_of_a_current_disk_precedes_an_interrupted_one_with_the_same_txg() {
        let old = vec![uberblock(16, &[(1, 1)])];
        let newest = vec![uberblock(16, &[(1, 1)]), uberblock(20, &[(2, 17), (1, 1)])];
        let interrupted = answer(2, 33, &[1, 2, 3], old);
        assert_eq!(legs_of(&[interrupted, answer(1, 33, &[1, 2, 4], newest)]), [1, 2, 4]);
    }

    #[test]
    fn newest_label_counts_before_the_newest_uberblock() {
        let newest = vec![uberblock(17, &[(1, 1)])];
        let old = vec![uberblock(16, &[(1, 1)])];
        assert_eq!(
            legs_of(&[answer(1, 1, &[1, 2], newest), answer(2, 33, &[1, 2, 3], old)]),
            [1, 2, 3]
        );
    }

    #[test]
    fn label_of_a_diverged_disk_does_not_count() {
        let kept = vec![uberblock(16, &[(1, 1)]), uberblock(25, &[(2, 17), (1, 1)])];
        let diverged = vec![uberblock(16, &[(1, 1)]), uberblock(24, &[(3, 17), (1, 1)])];
        assert_eq!(
            legs_of(&[answer(1, 1, &[1, 2], kept), answer(2, 40, &[2, 3], diverged)]),
            [1, 2]
        );
    }
}

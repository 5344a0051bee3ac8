//! Opens an existing pool: labels, newest usable uberblock, segment table, intent log replay.
//!
//! Not here: applying log records to volumes (weir-dataset), searching for disks.
//!
//! Invariants:
//! - an import writes nothing, except the owner slot of a pool that it takes by force;
//! - an import uses the newest uberblock or fails: an older one lacks acknowledged data and needs
//!   `force`;
//! - disks whose history ends before the newest txg that the caller has seen are refused without
//!   `force`;
//! - a leg that missed writes is marked stale and read only after the other legs; a vdev without
//!   enough other legs is refused.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::limits::TAKEOVERS_MAX;
use weir_base::{ErrorKind, Guid, Txg};
use weir_codec::checksum::xxh3_128;
use weir_device::{Device, DeviceError};
use weir_format::log::{Batch, LogRecord};
use weir_format::{Bootstrap, FormatError, Label, StaleLeg, Uberblock};

use crate::disks::labels::{DiskLabels, read_labels};
use crate::disks::layout::build_vdevs;
use crate::disks::leg::Leg;
use crate::disks::lineage::lead_to_same;
use crate::disks::vdevs::Vdevs;
use crate::error::{BlockAddress, PoolError};
use crate::import::confirm::mark_legs;
use crate::import::entries::read_entries;
use crate::import::found_disk::{Found, FoundDisk};
use crate::import::late_disks::{LateDisk, read_all_labels};
use crate::import::options::ImportOptions;
use crate::import::reads::Reads;
use crate::log::intent_log::LogStart;
use crate::log::replay::Replay;
use crate::options::PoolOptions;
use crate::planted_bugs::PlantedBug;
use crate::segments::areas::Areas;
use crate::segments::entries::Entries;
use crate::segments::sanity;
use crate::segments::segment_table::Segments;
use crate::state::claim::Identity;
use crate::state::pool::{Committed, History, Pool};
use crate::topology::claim;

/// Number of uberblocks that a forced import can go back: the segments of these txgs are not reused
/// yet.
const REWIND_TXGS_MAX: u64 = weir_base::limits::REUSE_AFTER_TXGS;

/// Pool membership of one disk.
#[derive(Clone, Debug)]
pub struct Discovered {
    /// Configuration in the label.
    pub label: Label,
    /// Newest uberblock on this disk.
    pub txg: Txg,
}

/// Reads the labels of one disk.
///
/// # Errors
/// Inner: the disk has no usable label. Outer: the disk cannot be read.
#[boxed(?Send)]
pub async fn discover(
    device: &dyn Device,
) -> Result<Result<Discovered, FormatError>, Arc<DeviceError>> {
    let labels = read_labels(device).await.map_err(Arc::new)?;
    Ok(labels.map(|DiskLabels { label, uberblocks, .. }| Discovered {
        txg: uberblocks.iter().map(|ub| ub.txg).max().unwrap_or_default(),
        label,
    }))
}

/// An opened pool, and the log batches that replay applies to its volumes.
pub struct Imported {
    /// Pool at its last committed txg.
    pub pool: Pool,
    /// Batches to replay in order.
    pub batches: Vec<Batch>,
    /// Last txg whose changes are in the trees. Replay applies log records of later txgs.
    pub replay_after: Txg,
    /// Disks that did not answer in time; the pool was opened without them.
    pub late: Vec<LateDisk>,
    /// Process that will own the pool.
    owner: Option<&'static Identity>,
    /// Import epochs that the owner slots named.
    owners_before: Vec<Guid>,
    /// Uberblock from which the pool was opened.
    uberblock: Uberblock,
}

impl Imported {
    /// Claims the pool for this import epoch, before any other write: repeats the uberblock from
    /// which the pool was opened, as a txg of this epoch.
    ///
    /// A power cut can leave the uberblock of an unfinished txg on one disk alone. If that disk is
    /// absent now, this import may overwrite the blocks of that txg. After another power cut the
    /// disk may return. The uberblock on that disk must not count as the newest then, because the
    /// blocks of its txg are overwritten.
    ///
    /// # Durability
    /// The claim is on every leg in use when this returns `Ok`. After a crash the same batches are
    /// replayed.
    ///
    /// # Errors
    /// A vdev that holds segments has too few legs left.
    #[boxed(?Send)]
    pub async fn claim(&self) -> Result<(), PoolError> {
        if let Some(identity) = self.owner {
            self.pool.announce_owner(identity, &self.owners_before).await;
        }
        if self.pool.bug == PlantedBug::OpensUnclaimed {
            return Ok(());
        }
        self.pool.claim(&self.uberblock).await
    }
}

/// Reads all labels and checks that no other server owns the pool. After a takeover, reads the
/// labels again.
async fn read_labels_without_owner(
    disks: Vec<Arc<dyn Device>>,
    how: ImportOptions,
    options: &PoolOptions,
) -> Result<(Found, Vec<LateDisk>), PoolError> {
    for takeovers in 0.. {
        let (found, late) = read_all_labels(disks.clone(), how, options).await?;
        let Some(identity) = how.owner else { return Ok((found, late)) };
        check_writable(&found.label)?;
        let takes = how.force && takeovers < TAKEOVERS_MAX;
        let owner = (identity, how.import_epoch);
        if claim::settle(&found.labelled(), owner, takes, &*options.clock).await? {
            return Ok((found, late));
        }
    }
    unreachable!("the last takeover is refused")
}

/// Refuses a pool with a feature that needs a newer Weir for writes. The import calls this only for
/// an owner: without an owner, all writes stay in RAM (`weir check`, `weir rescue`).
fn check_writable(label: &Label) -> Result<(), PoolError> {
    let path = label.name.clone();
    let writable = label.features.check_writable(label.pool);
    writable.map_err(|source| PoolError::OtherFormat { path, source })
}

impl Imported {
    /// Log records that the replay applies.
    pub fn records_to_replay(&self) -> impl Iterator<Item = LogRecord<'_>> {
        let records = self.batches.iter().flat_map(Batch::records);
        records.filter(|record| record.txg > self.replay_after)
    }
}

/// Opens the pool found on `disks`. Disks of other pools are an error; missing legs are not.
///
/// # Errors
/// The disks hold no pool, a vdev has too few legs, or the pool is damaged; nothing was written.
#[boxed(?Send)]
pub async fn import(
    disks: Vec<Arc<dyn Device>>,
    how: ImportOptions,
    options: &PoolOptions,
) -> Result<Imported, PoolError> {
    let (found, late) = read_labels_without_owner(disks, how, options).await?;
    let label = found.label.clone();
    let vdevs = build_vdevs(&label, found.place_disks(), options);
    if let Some(vdev) = vdevs.with_segments().find(|vdev| !vdev.is_alive()) {
        let missing = vdev.legs.iter().filter(|leg| leg.device().is_none());
        let missing: Vec<&str> = missing.map(Leg::path).collect();
        return Err(PoolError::MissingDisks { pool: label.name, missing: missing.join(", ") });
    }
    found.explain(&vdevs, &late);
    let candidates = found.uberblocks_newest_first();
    let newest = candidates.first().map(|ub| ub.txg).unwrap_or_default();
    let diverged = candidates.first().map(|ub| found.diverged_from(ub)).unwrap_or_default();
    refuse_diverged(&label, &vdevs, newest, &diverged, how.force)?;
    let diverged: Vec<Guid> = diverged.iter().map(|disk| disk.guid).collect();
    if let Some(newest) = candidates.first()
        && options.bug != PlantedBug::OldDisksTrusted
        && let Err(error) = found.check_newest(newest, how)
    {
        if !how.force {
            return Err(error);
        }
        tracing::error!(%error, "newer txgs are dropped");
    }
    let mut vdevs = Some(vdevs);
    let tries = if how.force { 1 + REWIND_TXGS_MAX as usize } else { 1 };
    let mut tried: Vec<Uberblock> = Vec::new();
    let mut why = None;
    let mut abandoned = Vec::new();
    for uberblock in candidates {
        // A claim has the same roots as the uberblock before it, so a claim gives a forced import
        // no older state.
        if tried.len() >= tries || tried.iter().any(|before| lead_to_same(before, &uberblock)) {
            abandoned.push(uberblock);
            continue;
        }
        tried.push(uberblock.clone());
        let parts = vdevs.take().expect("handed back after a failed try");
        match try_uberblock(&found, parts, &uberblock, (how, options)).await {
            Ok(opened) => {
                let mut imported = finish(opened, &uberblock, how, &diverged).await?;
                imported.late = late;
                imported.owners_before = found.owners_before();
                let abandoned = found.slots_with(&abandoned).into_iter();
                let slots = found.damaged_slots().chain(abandoned);
                let torn = found.torn_slots(&imported.uberblock);
                imported.pool.note_damaged_slots(slots, imported.uberblock.txg, &torn);
                return Ok(imported);
            }
            Err((parts, error)) if error.kind() == ErrorKind::Data => {
                tracing::error!(pool = %label.name, txg = uberblock.txg.0, %error, "txg unusable");
                vdevs = Some(parts);
                why.get_or_insert(error);
                abandoned.push(uberblock);
            }
            Err((_, error)) => return Err(error),
        }
    }
    Err(PoolError::NoUberblock { pool: label.name, newest, why: why.map(Box::new) })
}

async fn finish(
    (pool, replay_after): (Pool, Txg),
    uberblock: &Uberblock,
    how: ImportOptions,
    diverged: &[Guid],
) -> Result<Imported, PoolError> {
    if let Err(error) = check_whole(&pool.label, &pool.vdevs, uberblock) {
        if !how.force {
            return Err(error);
        }
        tracing::error!(%error, "newer data on missing disks is dropped");
        let given_up = pool.vdevs.with_segments().filter(|vdev| !vdev.is_alive());
        let legs = given_up.flat_map(|vdev| &vdev.legs);
        legs.filter(|leg| !diverged.contains(&leg.guid)).for_each(Leg::take_as_it_is);
        check_whole(&pool.label, &pool.vdevs, uberblock)?;
    }
    let mut batches = Vec::new();
    let vdev = pool.vdevs.all().nth(usize::from(uberblock.log_vdev));
    let vdev = vdev.ok_or_else(|| {
        let field = "log_vdev";
        let value = u64::from(uberblock.log_vdev);
        structure(&pool.label, "uberblock", FormatError::Field { what: "uberblock", field, value })
    })?;
    if !vdev.is_alive() {
        let missing: Vec<&str> = vdev.legs.iter().map(Leg::path).collect();
        let missing = missing.join(", ");
        if !how.force {
            return Err(PoolError::LogMissing { pool: pool.label.name.clone(), missing });
        }
        tracing::error!(missing, "writes in the missing intent log are dropped");
        let (late, uberblock) = (Vec::new(), uberblock.clone());
        return Ok(Imported {
            pool,
            batches,
            replay_after,
            late,
            owner: how.owner,
            owners_before: Vec::new(),
            uberblock,
        });
    }
    let start = LogStart {
        vdev: uberblock.log_vdev,
        epoch: uberblock.log_epoch,
        batch: uberblock.log_batch,
        offset: uberblock.log_offset,
    };
    let mut replay =
        Replay::new(vdev, pool.label.pool, &pool.label.name, pool.label.log_bytes, start);
    while let Some(batch) = replay.next(how.force).await? {
        batches.push(batch);
    }
    if pool.bug == PlantedBug::DropLastBatch {
        batches.pop();
    }
    let (late, uberblock) = (Vec::new(), uberblock.clone());
    Ok(Imported {
        pool,
        batches,
        replay_after,
        late,
        owner: how.owner,
        owners_before: Vec::new(),
        uberblock,
    })
}

/// Refuses vdevs with too few up-to-date legs.
fn check_whole(label: &Label, vdevs: &Vdevs, uberblock: &Uberblock) -> Result<(), PoolError> {
    let Some(vdev) = vdevs.with_segments().find(|vdev| !vdev.is_alive()) else { return Ok(()) };
    let pool = label.name.clone();
    let not_there = vdev.legs.iter().filter(|leg| leg.stale_after().is_none());
    let missing: Vec<&str> =
        not_there.filter(|leg| leg.usable().is_none()).map(Leg::path).collect();
    if !missing.is_empty() {
        return Err(PoolError::StaleDisks { pool, missing: missing.join(", ") });
    }
    let newest = uberblock.txg.0;
    let old = vdev.legs.iter().filter_map(|leg| {
        let after = leg.stale_after().filter(|_| !leg.is_whole())?.0;
        Some(format!("{} holds txg {after} and the pool is at txg {newest}", leg.path()))
    });
    Err(PoolError::OldDisks { pool, disks: old.collect::<Vec<_>>().join(", ") })
}

/// Refuses disks that diverged from the others. With `force`, marks these disks as stale from txg
/// 0, if the label lists them as legs. The import does not use diverged disks that the label does
/// not list.
fn refuse_diverged(
    label: &Label,
    vdevs: &Vdevs,
    newest: Txg,
    diverged: &[&FoundDisk],
    force: bool,
) -> Result<(), PoolError> {
    if diverged.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = diverged.iter().map(|disk| disk.device.path()).collect();
    let names = names.join(", ");
    if !force {
        let pool = label.name.clone();
        return Err(PoolError::Diverged { pool, diverged: names, newest });
    }
    tracing::error!(disks = names, "data that only the diverged disks have is dropped");
    let is_diverged = |leg: &&Leg| diverged.iter().any(|disk| disk.guid == leg.guid);
    vdevs.legs().filter(is_diverged).for_each(|leg| leg.set_stale(Txg(0)));
    Ok(())
}

/// Builds the pool that an uberblock describes and returns it with the txg of its trees. On
/// failure, returns the vdevs and the reason.
async fn try_uberblock(
    found: &Found,
    vdevs: Vdevs,
    uberblock: &Uberblock,
    (how, options): (ImportOptions, &PoolOptions),
) -> Result<(Pool, Txg), (Vdevs, PoolError)> {
    let label = &found.label;
    // Mark stale legs before the first read: the old data on a stale leg is not damage.
    if options.bug != PlantedBug::StaleLegTrusted {
        mark_legs(&vdevs, uberblock, found, options.bug);
    }
    if !how.force
        && let Err(error) = check_whole(label, &vdevs, uberblock)
    {
        return Err((vdevs, error));
    }
    let bootstrap = match read_bootstrap(label, &vdevs, uberblock, options).await {
        Ok(bootstrap) => bootstrap,
        Err(error) => return Err((vdevs, error)),
    };
    let numbers = (bootstrap.next_vseg, uberblock.txg);
    let known = |stale: &StaleLeg| vdevs.legs().any(|leg| leg.guid == stale.guid);
    let newest_first = uberblock.stale_legs.iter().filter(|stale| !known(stale));
    let left: Vec<StaleLeg> = newest_first.rev().copied().collect();
    let build = |entries: Entries, vdevs| {
        let areas = Areas::of(label);
        let judged = entries.segments.iter();
        let mut judged = judged.map(|(vseg, entry)| sanity::segment(&areas, *vseg, entry, numbers));
        if let Err(source) = judged.try_for_each(|done| done) {
            return Err((vdevs, structure(label, "segment table", source)));
        }
        match Segments::new(areas, entries, bootstrap.next_vseg, options.bug) {
            Ok(segments) => Ok(Pool::assemble(
                label.clone(),
                vdevs,
                segments,
                History {
                    log_epoch: found.next_log_epoch(uberblock),
                    lineage: found.lineage_after(uberblock),
                    import_epoch: how.import_epoch,
                    left: left.clone(),
                    has_old_labels: found.has_old_labels(),
                },
                &Committed {
                    txg: uberblock.txg,
                    segments: bootstrap.segments,
                    datasets: bootstrap.datasets,
                    remaps: bootstrap.remaps,
                    references: bootstrap.references,
                    next_dataset: bootstrap.next_dataset,
                    log_vdev: uberblock.log_vdev,
                    version: uberblock.version,
                },
                options,
            )),
            Err(why) => {
                tracing::error!(pool = %label.name, why, "segment table is damaged");
                let field = "place";
                let source = FormatError::Field { what: "segment table", field, value: 0 };
                Err((vdevs, structure(label, "segment table", source)))
            }
        }
    };
    // First open the pool with the root segments alone: they contain the segment table, which
    // describes all other segments.
    let roots = Entries { segments: bootstrap.root_segments.clone(), ..Entries::default() };
    let roots = build(roots, vdevs)?;
    match read_entries(&roots, &bootstrap, how.force).await {
        Ok(entries) => {
            let pool = build(entries, roots.vdevs)?;
            pool.restore_lost_nodes(bootstrap.damaged_since);
            Ok((pool, bootstrap.txg))
        }
        Err(error) => Err((roots.vdevs, error)),
    }
}

pub(crate) fn structure(label: &Label, what: &'static str, source: FormatError) -> PoolError {
    PoolError::Structure { pool: label.name.clone(), what, place: None, source }
}

async fn read_bootstrap(
    label: &Label,
    vdevs: &Vdevs,
    uberblock: &Uberblock,
    options: &PoolOptions,
) -> Result<Bootstrap, PoolError> {
    let mut reads = Reads::default();
    loop {
        let read = read_bootstrap_once(label, vdevs, uberblock).await;
        let is_lost = read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Data);
        if !is_lost || !reads.again(&*options.clock).await {
            return read;
        }
    }
}

async fn read_bootstrap_once(
    label: &Label,
    vdevs: &Vdevs,
    uberblock: &Uberblock,
) -> Result<Bootstrap, PoolError> {
    let what = "bootstrap table";
    let bad = |what| move |source| structure(label, what, source);
    sanity::uberblock(label, uberblock).map_err(bad("uberblock"))?;
    let mut failure = structure(label, what, FormatError::Checksum { what });
    for copy in &uberblock.bootstrap {
        let len = uberblock.bootstrap_bytes as usize;
        let inside = label.vdevs.get(usize::from(copy.vdev)).is_some_and(|vdev| {
            copy.offset.checked_add(len as u64).is_some_and(|end| end <= label.vdev_bytes(vdev))
        });
        if !inside || len == 0 {
            continue;
        }
        let vdev = &vdevs[usize::from(copy.vdev)];
        let verify = |bytes: &[u8]| xxh3_128(bytes) == uberblock.bootstrap_checksum;
        match vdev.read_verified(vdev.next_leg(), copy.offset, len, verify).await {
            Ok((buf, start)) => {
                let place = Some(BlockAddress { vdev: copy.vdev, offset: copy.offset });
                let decoded = Bootstrap::decode(&buf[start..start + len]);
                let judged = decoded.and_then(|table| {
                    sanity::bootstrap(uberblock, &table)?;
                    Ok(table)
                });
                let pool = label.name.clone();
                return judged.map_err(|source| PoolError::Structure { pool, what, place, source });
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
pub(crate) mod tests {
    use weir_format::layout::FORMAT_VERSION;
    use weir_format::{BootstrapCopy, ImportEpoch};

    use crate::disks::lineage::{follows, is_ancestor_of, is_ancestor_of_without_cuts, supersedes};

    use super::*;

    /// Builds an uberblock of a txg with this lineage (id and first txg), newest first.
    pub(crate) fn uberblock(txg: u64, lineage: &[(u64, u64)]) -> Uberblock {
        let import_epoch =
            |(id, first): &(u64, u64)| ImportEpoch { id: Guid(*id), first: Txg(*first) };
        Uberblock {
            version: FORMAT_VERSION,
            pool: Guid(1),
            txg: Txg(txg),
            unix_ms: 0,
            log_epoch: lineage.len() as u64,
            log_vdev: 0,
            log_batch: 1,
            log_offset: 0,
            bootstrap: vec![BootstrapCopy { vdev: 0, offset: 0 }],
            bootstrap_bytes: 1,
            bootstrap_checksum: 0,
            stale_legs: Vec::new(),
            lineage: lineage.iter().map(import_epoch).collect(),
            unconfirmed_legs: Vec::new(),
        }
    }

    #[test]
    fn stale_disk_is_distinguished_from_diverged_disk() {
        let newest = uberblock(30, &[(3, 20), (1, 1)]);
        let away = uberblock(12, &[(1, 1)]);
        assert!(is_ancestor_of(&away, &newest) && is_ancestor_of(&newest, &newest));
        let other = uberblock(21, &[(2, 13), (1, 1)]);
        assert!(!is_ancestor_of(&other, &newest) && !is_ancestor_of_without_cuts(&other, &newest));
        let unknown = uberblock(5, &[(9, 1)]);
        assert!(
            !is_ancestor_of(&unknown, &newest) && !is_ancestor_of_without_cuts(&unknown, &newest)
        );
    }

    #[test]
    fn claim_precedes_the_txg_with_the_same_number() {
        let unfinished = Uberblock { log_epoch: 1, ..uberblock(17, &[(1, 1)]) };
        let claim = Uberblock { log_epoch: 1, ..uberblock(17, &[(2, 17), (1, 1)]) };
        assert!(follows(&claim, &unfinished) && !follows(&unfinished, &claim));
        assert!(
            !is_ancestor_of(&unfinished, &claim)
                && is_ancestor_of_without_cuts(&unfinished, &claim)
        );
        let committed = uberblock(18, &[(2, 17), (1, 1)]);
        let other = uberblock(30, &[(3, 17), (1, 1)]);
        assert!(is_ancestor_of_without_cuts(&committed, &other), "its claim, and a txg cut off");
        let twice = uberblock(19, &[(2, 17), (1, 1)]);
        assert!(!is_ancestor_of_without_cuts(&twice, &other), "it went on");
    }

    #[test]
    fn claim_supersedes_the_unfinished_first_commit_before_it() {
        // Import epoch 2 claimed txg 17. Its first commit, 18, has a new log epoch.
        let first_commit = Uberblock { log_epoch: 2, ..uberblock(18, &[(2, 17), (1, 1)]) };
        let claim = Uberblock { log_epoch: 1, ..uberblock(18, &[(3, 18), (2, 17), (1, 1)]) };
        assert!(supersedes(&claim, &first_commit) && !supersedes(&first_commit, &claim));
        let went_on = Uberblock { txg: Txg(19), ..first_commit.clone() };
        assert!(!supersedes(&claim, &went_on), "txg 18 was committed on that disk");
        // Import epoch 4 found the claim of epoch 5 for txg 17, not the claim of epoch 2.
        let unknown = Uberblock { log_epoch: 1, ..uberblock(18, &[(4, 18), (5, 17), (1, 1)]) };
        assert!(!supersedes(&unknown, &first_commit));
        let both =
            Uberblock { log_epoch: 1, ..uberblock(18, &[(4, 18), (2, 17), (5, 17), (1, 1)]) };
        assert!(supersedes(&both, &first_commit));
        let both =
            Uberblock { log_epoch: 1, ..uberblock(18, &[(4, 18), (5, 17), (2, 17), (1, 1)]) };
        assert!(supersedes(&both, &first_commit));
    }

    #[test]
    fn repeated_power_cuts_between_two_disks_are_no_divergence() {
        let newest = uberblock(30, &[(3, 20), (1, 1)]);
        for cut in [
            uberblock(20, &[(1, 1)]),
            uberblock(20, &[(2, 20), (1, 1)]),
            uberblock(21, &[(2, 21), (1, 1)]),
            uberblock(22, &[(4, 22), (2, 21), (1, 1)]),
        ] {
            assert!(
                !is_ancestor_of(&cut, &newest) && is_ancestor_of_without_cuts(&cut, &newest),
                "{cut:?}"
            );
        }
        for gone_on in [
            uberblock(21, &[(1, 1)]),
            uberblock(23, &[(2, 21), (1, 1)]),
            uberblock(24, &[(4, 24), (2, 21), (1, 1)]),
        ] {
            assert!(!is_ancestor_of_without_cuts(&gone_on, &newest), "{gone_on:?}");
        }
    }
}

//! Converts the state of the engine to the types of the API.
//!
//! bin/weir prints these values as tables.
//!
//! Invariant: a pool in a state that needs an administrator has the fields `status`, `action` and
//! `see`, as in `zpool status`.

use std::collections::{BTreeMap, BTreeSet};

use weir_api::types::{
    Allocated, CleanerStatus, ClientIo, Damage, DamagedObjects, DamagedPart, DamagedRange,
    DatasetKind, DiskIo, DiskStatus, ErrorCounts, Evacuation, Health, OpIo, PointerIo, PoolStatus,
    ScanKind, ScanState, ScanStatus, SegmentIo, VdevKind, VdevRole, VdevStatus,
    Volume as ApiVolume, VolumeSpace,
};
use weir_base::BLOCK_BYTES;
use weir_dataset::{
    DamagedWhere, Engine, PoolDamage, SnapshotId, TrafficCounts, Volume, VolumeInfo,
};
use weir_device::{DiskFigures, DiskOp, OpFigures};
use weir_format::{
    PoolPart, PtrKind, SegmentClass, VdevKind as FormatKind, VdevRole as FormatRole,
};
use weir_pool::{LegState, LegStatus, Pool, PoolHealth, Reserve, Slowness};

use crate::answer::metadata_loss;

/// Command whose help explains the states. An installed program comes without the book.
const SEE: &str = "weir pool status --help";

/// Returns the state of an open pool.
pub(crate) fn pool(engine: &Engine) -> PoolStatus {
    let status = engine.pool().status();
    let leaving = |vdev: &weir_pool::VdevStatus| {
        let left = status.evacuations.iter().find(|left| left.vdev == vdev.number)?;
        Some(Evacuation { live_bytes: left.live_bytes, stuck_segments: left.stuck as u64 })
    };
    let vdevs: Vec<VdevStatus> = status.vdevs.iter().map(|v| vdev(v, leaving(v))).collect();
    let legs: Vec<&LegStatus> = status.vdevs.iter().flat_map(|vdev| &vdev.legs).collect();
    let damage = damage(engine);
    let (text, action) =
        explain(status.health, status.suspended.as_deref(), &legs, engine.pool().had_damage());
    let (text, action) = explain_damage(engine, &damage, (text, action));
    let losses = metadata_loss::words(engine);
    let (text, action) = with_losses(engine.pool().name(), &losses, text, action);
    let space = status.space;
    // The engine's reserve counts neither as used space nor as space that is free for users.
    let usable = space.total_bytes.saturating_sub(engine.reserve_bytes());
    // The cleaner reclaims dead space in segments, so it counts as free.
    let free = usable.saturating_sub(space.live_bytes);
    PoolStatus {
        name: engine.pool().name().to_owned(),
        guid: engine.pool().guid().to_string(),
        state: match status.health {
            PoolHealth::Online => Health::Online,
            PoolHealth::Degraded => Health::Degraded,
            PoolHealth::Suspended => Health::Faulted,
        },
        see: text.is_some().then(|| SEE.to_owned()),
        status: text,
        action,
        size_bytes: usable,
        allocated_bytes: usable.saturating_sub(free),
        allocated: allocated(engine, usable.saturating_sub(free)),
        free_bytes: free,
        compression_ratio: pool_ratio(engine),
        dedupe_ratio: dedupe_ratio(engine),
        expandable_bytes: status.expandable_bytes,
        txg: status.txg.0,
        scan: status.scan.as_ref().map(scan),
        properties: BTreeMap::new(),
        errors: sum(vdevs.iter().map(|vdev| vdev.errors)),
        damage,
        client: client(engine.traffic().counts()),
        written: written(engine.pool()),
        read: read(engine.pool()),
        cleaner: Some(cleaner(&engine.pool().cleaner_status())),
        counted_ms: engine.pool().clock().monotonic().as_millis() as u64,
        vdevs,
    }
}

fn client(counts: TrafficCounts) -> ClientIo {
    let TrafficCounts { reads, read_bytes, writes, written_bytes, flushes, p99_us } = counts;
    let [read_p99_us, write_p99_us, flush_p99_us] = p99_us;
    ClientIo {
        reads,
        read_bytes,
        writes,
        written_bytes,
        flushes,
        read_p99_us,
        write_p99_us,
        flush_p99_us,
    }
}

fn written(pool: &Pool) -> SegmentIo {
    SegmentIo {
        data_bytes: pool.written_bytes(SegmentClass::Data),
        node_bytes: pool.written_bytes(SegmentClass::Meta),
        root_bytes: pool.written_bytes(SegmentClass::Root),
        cleaner_bytes: pool.written_bytes(SegmentClass::Clean),
    }
}

fn read(pool: &Pool) -> PointerIo {
    PointerIo {
        data_bytes: pool.read_bytes(PtrKind::Data),
        node_bytes: pool.read_bytes(PtrKind::Node),
    }
}

fn cleaner(status: &weir_pool::CleanerStatus) -> CleanerStatus {
    let Reserve { reserve, writers, always, idle, .. } = status.reserve;
    CleanerStatus {
        working: status.lately.segments > 0,
        lately_ms: status.lately_ms,
        lately_segments: status.lately.segments,
        lately_moved_bytes: status.lately.moved_bytes,
        cleaned_segments: status.total.segments,
        moved_bytes: status.total.moved_bytes,
        free_segments: status.free_segments,
        pending_segments: status.pending_segments,
        segments: status.segments,
        clean_below_segments: always,
        clean_idle_below_segments: idle,
        reserve_segments: reserve,
        writers_wait_segments: writers,
        remap_bytes: status.remap_bytes,
    }
}

fn op(figures: &OpFigures) -> OpIo {
    let OpFigures {
        count,
        bytes,
        errors,
        total_us,
        recent_us,
        p50_us,
        p99_us,
        recent_p99_us,
        max_us,
    } = *figures;
    OpIo { count, bytes, errors, total_us, recent_us, p50_us, p99_us, recent_p99_us, max_us }
}

fn disk_io(figures: &DiskFigures) -> DiskIo {
    DiskIo {
        read: op(figures.of(DiskOp::Read)),
        write: op(figures.of(DiskOp::Write)),
        sync_write: op(figures.of(DiskOp::SyncWrite)),
        flush: op(figures.of(DiskOp::Flush)),
        in_flight: figures.in_flight,
        silent_ms: figures.silent.map(|silent| silent.as_millis() as u64),
        bypassed: figures.bypassed,
    }
}

/// Describes the slowness of a disk in a few words.
fn slowness(slow: Slowness) -> String {
    match slow {
        Slowness::Unresponsive(silent) => format!("no answer for {} s", silent.as_secs()),
        Slowness::Slow { op, recent_us, others_us } => {
            let (own, others) = (micros(recent_us), micros(others_us));
            format!("slow: {} takes {own}, on other disks {others}", op.name().replace('_', " "))
        }
        Slowness::Avoided => "slow: reads avoid it".to_owned(),
    }
}

/// Formats a latency for users.
fn micros(us: u64) -> String {
    match us {
        0..1000 => format!("{us} us"),
        1000..1_000_000 => format!("{} ms", us / 1000),
        _ => format!("{}.{} s", us / 1_000_000, us / 100_000 % 10),
    }
}

/// Returns the state of a pool that could not be opened.
pub(crate) fn unavailable(name: &str, why: &str, disks: &[std::path::PathBuf]) -> PoolStatus {
    let disk = |path: &std::path::PathBuf| VdevStatus {
        name: path.display().to_string(),
        kind: VdevKind::Disk,
        role: VdevRole::Data,
        leaving: None,
        state: Health::Unavailable,
        errors: ErrorCounts::default(),
        disks: Vec::new(),
    };
    PoolStatus {
        name: name.to_owned(),
        guid: String::new(),
        state: Health::Unavailable,
        status: Some(format!("The pool could not be opened: {why}")),
        action: Some(format!(
            "Make its disks available, then run 'weir pool clear {name}'. If their paths have \
             changed, run 'weir pool export --force {name}' and 'weir pool import {name}'."
        )),
        see: Some(SEE.to_owned()),
        size_bytes: 0,
        allocated_bytes: 0,
        allocated: Allocated::default(),
        free_bytes: 0,
        compression_ratio: 1.0,
        dedupe_ratio: 1.0,
        expandable_bytes: 0,
        txg: 0,
        scan: None,
        properties: BTreeMap::new(),
        errors: ErrorCounts::default(),
        damage: Damage::default(),
        client: ClientIo::default(),
        written: SegmentIo::default(),
        read: PointerIo::default(),
        cleaner: None,
        counted_ms: 0,
        vdevs: disks.iter().map(disk).collect(),
    }
}

/// Puts the description of unreadable metadata before the other status texts.
fn with_losses(
    pool: &str,
    lost: &[String],
    text: Option<String>,
    action: Option<String>,
) -> (Option<String>, Option<String>) {
    if lost.is_empty() {
        return (text, action);
    }
    let mut sentences = vec![format!("Part of the pool cannot be read: {}.", lost.join("; "))];
    sentences.extend(text);
    let restore = format!(
        "Check disks and cables, then export and import the pool: an import uses every part that \
         it can read. Restore the rest from a backup or a replica; 'weir pool clear --lost {pool}' \
         drops unreadable datasets and frees their space."
    );
    let action = action.map_or_else(|| restore.clone(), |action| format!("{restore} {action}"));
    (Some(sentences.join(" ")), Some(action))
}

fn explain(
    health: PoolHealth,
    suspended: Option<&str>,
    legs: &[&LegStatus],
    lost_data: bool,
) -> (Option<String>, Option<String>) {
    let any = |state| legs.iter().any(|leg| leg.state == state);
    let silent = legs.iter().any(|leg| matches!(leg.slow, Some(Slowness::Unresponsive(_))));
    let slow = legs.iter().any(|leg| leg.slow.is_some());
    let damaged = legs.iter().any(|leg| leg.checksum_errors > 0);
    let unreadable = legs.iter().any(|leg| leg.read_errors > 0);
    let (status, action) = match health {
        PoolHealth::Suspended => (
            suspended.unwrap_or("The pool is suspended.").to_owned(),
            "Repair the disks, then open the pool again: weir pool clear POOL",
        ),
        _ if silent => (
            "A disk is unresponsive. Reads use other copies if any exist; writes wait for the disk."
                .to_owned(),
            "Check the disk and its cable. If the disk is lost and the pool hangs, close the pool \
             with 'weir pool export --force'.",
        ),
        _ if any(LegState::Faulted) => (
            "A disk failed a write or a flush and is no longer used. The pool works with less \
             redundancy."
                .to_owned(),
            "Check the disk and its cable, then use it again with 'weir pool clear', or replace it \
             with 'weir pool replace'.",
        ),
        _ if any(LegState::Missing) => (
            "A disk is missing. The pool works with less redundancy.".to_owned(),
            "Connect the disk, then run 'weir pool online' with its path. If the disk is lost, \
             replace it with 'weir pool replace'.",
        ),
        _ if any(LegState::Offline) => (
            "A disk was taken offline. The pool works with less redundancy.".to_owned(),
            "Bring it online with 'weir pool online'.",
        ),
        _ if any(LegState::Stale) => (
            "A disk reconnected after it missed writes. A resilver copies the missed writes to it; \
             until then it adds no redundancy for that data."
                .to_owned(),
            "Keep the other disks of its vdev in place, and wait for the resilver.",
        ),
        _ if damaged => explain_copies(lost_data),
        _ if unreadable => (
            "Reads of a disk failed. If another copy exists, it was used and the bad copy was \
             rewritten."
                .to_owned(),
            "Watch the READ column; replace the disk if the number grows.",
        ),
        _ if slow => (
            "A disk is far slower than the others of this pool. Reads use another copy if one \
             exists; writes wait for the disk."
                .to_owned(),
            "Check 'weir pool iostat' and the disk's own health report (smartctl); replace the \
             disk if it stays slow.",
        ),
        PoolHealth::Online | PoolHealth::Degraded => return (None, None),
    };
    (Some(status), Some(action.to_owned()))
}

/// Describes copies that failed their checksum. If `lost_data` is true, some blocks had no intact
/// copy; the list of permanent errors then has entries for these blocks, or had them earlier.
fn explain_copies(lost_data: bool) -> (String, &'static str) {
    let text = if lost_data {
        "Copies failed their checksum, and not all of them could be repaired: see the list of \
         permanent errors. Data that is no longer on the list was overwritten, freed or found \
         intact."
    } else {
        "Damaged copies were found and repaired from good ones or parity. Applications are \
         unaffected."
    };
    (text.to_owned(), "Watch the CKSUM column; replace the disk if the number grows.")
}

/// Returns the permanent errors of a pool, with the names of the affected objects.
pub fn damage(engine: &Engine) -> Damage {
    let PoolDamage { data, parts, more } = engine.damage();
    let pool = engine.pool().name();
    let ranges: Vec<DamagedRange> = data
        .into_iter()
        .map(|data| DamagedRange {
            volume: format!("{pool}/{}", data.volume),
            offset_bytes: data.offset_bytes,
            len_bytes: data.len_bytes,
            objects: damaged_objects(data.part),
            in_volume: data.in_volume,
            snapshots: data.snapshots,
            snapshot_count: data.snapshot_count as u64,
            found_unix_ms: data.found_unix_ms,
        })
        .collect();
    let part = |part: weir_format::DamagedPart| DamagedPart {
        part: part_name(part.part).to_owned(),
        number: part.number,
        found_unix_ms: part.found_unix_ms,
    };
    let volumes: BTreeSet<&str> = ranges.iter().map(|range| range.volume.as_str()).collect();
    Damage {
        bytes: ranges.iter().map(|range| range.len_bytes).sum(),
        volumes: volumes.len() as u64,
        parts: parts.into_iter().map(part).collect(),
        more,
        ranges,
    }
}

fn damaged_objects(part: DamagedWhere) -> Option<DamagedObjects> {
    match part {
        DamagedWhere::Bytes => None,
        DamagedWhere::Slots { first, count } => Some(DamagedObjects { object: None, first, count }),
        DamagedWhere::Records { object, first, count } => {
            Some(DamagedObjects { object: Some(object), first, count })
        }
    }
}

fn part_name(part: PoolPart) -> &'static str {
    match part {
        PoolPart::Directory => "dataset directory",
        PoolPart::SegmentTable => "segment table",
        PoolPart::RemapTable => "remap table",
        PoolPart::ReferenceTable => "reference table",
        PoolPart::Summary => "segment summary",
        PoolPart::IntentLog => "intent log",
    }
}

/// Puts the description of permanent errors before all other texts.
fn explain_damage(
    engine: &Engine,
    damage: &Damage,
    (text, action): (Option<String>, Option<String>),
) -> (Option<String>, Option<String>) {
    if damage.is_empty() {
        return (text, action);
    }
    let first = |own: String, other: Option<String>| match other {
        Some(other) => Some(format!("{own} {other}")),
        None => Some(own),
    };
    let (what, how) = damage_words(engine.pool().name(), damage);
    (first(what.to_owned(), text), first(how, action))
}

/// Describes the damage of a pool and the next command.
fn damage_words(name: &str, damage: &Damage) -> (&'static str, String) {
    let what = match (damage.ranges.is_empty(), damage.parts.is_empty()) {
        (false, _) => {
            "Data has no good copy on any disk: reading it fails. Applications are affected."
        }
        (true, false) => {
            "Parts of the pool's metadata have no good copy on any disk. Applications may be \
             affected."
        }
        (true, true) => {
            "The list of permanent errors is full: the other data without a good copy is counted, \
             but not named. Applications may be affected."
        }
    };
    let how = if damage.ranges.is_empty() && damage.parts.is_empty() {
        format!("Run 'weir pool scrub {name}': it lists the data that is still damaged.")
    } else {
        format!(
            "List it with 'weir pool status -v {name}'. Reconnect disks that have it and run 'weir \
             pool scrub {name}'; otherwise overwrite it from a backup, or destroy the volumes and \
             snapshots that contain it."
        )
    };
    (what, how)
}

fn sum(all: impl Iterator<Item = ErrorCounts>) -> ErrorCounts {
    all.fold(ErrorCounts::default(), |a, b| ErrorCounts {
        read: a.read + b.read,
        write: a.write + b.write,
        checksum: a.checksum + b.checksum,
    })
}

fn vdev(vdev: &weir_pool::VdevStatus, leaving: Option<Evacuation>) -> VdevStatus {
    let disks: Vec<DiskStatus> = vdev.legs.iter().map(disk).collect();
    let online = disks.iter().filter(|disk| disk.state == Health::Online).count();
    let state = match (online == disks.len(), vdev.works) {
        (true, _) => Health::Online,
        (false, true) => Health::Degraded,
        (false, false) => Health::Faulted,
    };
    VdevStatus {
        name: vdev_name(vdev.kind, vdev.number.into(), &disks),
        kind: api_kind(vdev.kind),
        role: api_role(vdev.role),
        leaving,
        state,
        errors: sum(disks.iter().map(|disk| disk.errors)),
        disks,
    }
}

fn api_role(role: FormatRole) -> VdevRole {
    match role {
        FormatRole::Data | FormatRole::Evacuating | FormatRole::Removed => VdevRole::Data,
        FormatRole::Log => VdevRole::Log,
        FormatRole::Spare => VdevRole::Spare,
    }
}

fn vdev_name(kind: FormatKind, index: usize, disks: &[DiskStatus]) -> String {
    match (kind, disks) {
        (FormatKind::Disk, [only]) => only.path.clone(),
        _ => format!("{}-{index}", kind.name()),
    }
}

fn api_kind(kind: FormatKind) -> VdevKind {
    match kind {
        FormatKind::Disk => VdevKind::Disk,
        FormatKind::Mirror => VdevKind::Mirror,
        FormatKind::Raidz1 => VdevKind::Raidz1,
        FormatKind::Raidz2 => VdevKind::Raidz2,
        FormatKind::Raidz3 => VdevKind::Raidz3,
    }
}

fn disk(leg: &LegStatus) -> DiskStatus {
    let (state, note) = match leg.state {
        LegState::Online => (Health::Online, leg.note.clone()),
        LegState::Stale if leg.unconfirmed => {
            (Health::Degraded, Some("may lack the last txg; being compared".to_owned()))
        }
        LegState::Stale => {
            let after = leg.stale_after.unwrap_or_default();
            (Health::Degraded, Some(format!("misses writes after txg {after}")))
        }
        LegState::Faulted => (Health::Faulted, Some("a write or flush failed".to_owned())),
        LegState::Offline => (Health::Offline, Some("taken offline".to_owned())),
        LegState::Missing => {
            let why = leg.note.as_deref().unwrap_or("missing");
            (Health::Unavailable, Some(why.to_owned()))
        }
    };
    let slow = leg.slow.map(slowness);
    DiskStatus {
        path: leg.path.clone(),
        guid: leg.guid.to_string(),
        state,
        slow: slow.is_some(),
        io: leg.io.as_ref().map(disk_io),
        errors: ErrorCounts {
            read: leg.read_errors,
            write: leg.write_errors,
            checksum: leg.checksum_errors,
        },
        note: note.or(slow),
    }
}

/// Returns the kind of a dataset.
pub(crate) fn kind(volume: &Volume) -> DatasetKind {
    match volume.object_layer() {
        Some(_) => DatasetKind::Filesystem,
        None => DatasetKind::Volume,
    }
}

/// Returns the state of a volume.
pub(crate) fn volume(engine: &Engine, volume: &Volume, exports: Vec<String>) -> ApiVolume {
    let (info, pool) = (volume.info(), engine.pool().name());
    let origin = engine
        .origin_of(volume)
        .map(|SnapshotId { volume, name }| format!("{pool}/{volume}@{name}"));
    // A volume that was destroyed meanwhile has no snapshots.
    let snapshots = engine.snapshot_names(&info.name).map_or(0, |names| names.len() as u64);
    let space = info.space;
    let VolumeInfo { name, size_bytes, used_bytes, stored_bytes, created_unix_ms, .. } = info;
    ApiVolume {
        name: format!("{pool}/{name}"),
        kind: kind(volume),
        size_bytes,
        block_bytes: BLOCK_BYTES as u32,
        record_bytes: info.record_size.bytes() as u64,
        compression: info.compression.into(),
        used_bytes,
        stored_bytes,
        compression_ratio: ratio(used_bytes, stored_bytes),
        dedupe: info.dedupe,
        shared_bytes: info.shared_bytes,
        dedupe_ratio: own_ratio(stored_bytes, info.shared_bytes),
        created_unix_ms,
        exports,
        origin,
        snapshots,
        receiving: volume.receiving(),
        space: VolumeSpace {
            available_bytes: volume.available_bytes(),
            used_bytes: space.used + space.by_refreservation,
            by_snapshots_bytes: space.by_snapshots,
            by_volume_bytes: space.by_volume,
            referenced_bytes: space.referenced,
            written_bytes: space.written,
            by_refreservation_bytes: space.by_refreservation,
        },
    }
}

/// Returns the used space of a pool, by kind of owner.
fn allocated(engine: &Engine, bytes: u64) -> Allocated {
    let space = engine.dataset_space();
    let saved_bytes = engine.pool().space().saved_bytes;
    let datasets = space.by_volumes + space.by_snapshots + space.freeing;
    Allocated {
        volumes_bytes: space.by_volumes,
        snapshots_bytes: space.by_snapshots,
        freeing_bytes: space.freeing,
        pool_bytes: (bytes + saved_bytes).saturating_sub(datasets),
        saved_bytes,
    }
}

/// Returns the size before compression divided by the size after it.
fn ratio(used_bytes: u64, stored_bytes: u64) -> f64 {
    if stored_bytes == 0 { 1.0 } else { used_bytes as f64 / stored_bytes as f64 }
}

/// Returns the stored size of a volume divided by the size of its unshared blocks. If the volume
/// shares blocks, the divisor is at least one block, so that it is never zero.
fn own_ratio(stored_bytes: u64, shared_bytes: u64) -> f64 {
    let own = stored_bytes.saturating_sub(shared_bytes);
    ratio(stored_bytes, if shared_bytes > 0 { own.max(BLOCK_BYTES as u64) } else { own })
}

/// Returns the size that live data would have without shared blocks, divided by its actual size.
fn dedupe_ratio(engine: &Engine) -> f64 {
    let space = engine.pool().space();
    ratio(space.live_bytes + space.saved_bytes, space.live_bytes)
}

/// Returns the compression ratio of all volumes of a pool together; see [`ratio`].
pub(crate) fn pool_ratio(engine: &Engine) -> f64 {
    let infos = engine.volumes().into_iter().map(|volume| volume.info());
    let (used, stored) =
        infos.fold((0, 0), |sum, info| (sum.0 + info.used_bytes, sum.1 + info.stored_bytes));
    ratio(used, stored)
}

/// Returns the vdevs in a label, with the disks that were found.
pub(crate) fn label_vdevs(
    label: &weir_format::Label,
    found: &dyn Fn(weir_base::Guid) -> bool,
) -> Vec<VdevStatus> {
    let vdev = |(index, config): (usize, &weir_format::VdevConfig)| {
        let disks: Vec<DiskStatus> = config
            .legs
            .iter()
            .map(|leg| DiskStatus {
                path: leg.path.clone(),
                guid: leg.guid.to_string(),
                state: if found(leg.guid) { Health::Online } else { Health::Unavailable },
                errors: ErrorCounts::default(),
                note: (!found(leg.guid)).then(|| "missing".to_owned()),
                slow: false,
                io: None,
            })
            .collect();
        let there = disks.iter().filter(|disk| disk.state == Health::Online).count();
        VdevStatus {
            name: vdev_name(config.kind, index, &disks),
            kind: api_kind(config.kind),
            role: api_role(config.role),
            leaving: None,
            state: match there {
                few if few < config.data_strips() => Health::Unavailable,
                all if all == disks.len() => Health::Online,
                _ => Health::Degraded,
            },
            errors: ErrorCounts::default(),
            disks,
        }
    };
    let vdevs = label.vdevs.iter().enumerate();
    vdevs.filter(|(_, config)| config.role != FormatRole::Removed).map(vdev).collect()
}

/// Converts the state of a scan.
pub(crate) fn scan(scan: &weir_pool::ScanStatus) -> ScanStatus {
    let ran_ms = scan.ran.as_millis() as u64;
    let running = scan.state == weir_pool::ScanState::Running && scan.examined_bytes > 0;
    let left = scan.total_bytes.saturating_sub(scan.examined_bytes);
    ScanStatus {
        kind: match scan.kind {
            weir_pool::ScanKind::Scrub => ScanKind::Scrub,
            weir_pool::ScanKind::Resilver => ScanKind::Resilver,
        },
        state: match scan.state {
            weir_pool::ScanState::Running => ScanState::Running,
            weir_pool::ScanState::Paused => ScanState::Paused,
            weir_pool::ScanState::Finished => ScanState::Finished,
            weir_pool::ScanState::Stopped => ScanState::Stopped,
        },
        started_unix_ms: scan.started_unix_ms,
        ended_unix_ms: scan.ended_unix_ms,
        ran_ms,
        total_bytes: scan.total_bytes,
        examined_bytes: scan.examined_bytes,
        repaired_bytes: scan.repaired_bytes,
        errors: scan.damaged + scan.unrepaired,
        left_ms: running.then(|| {
            let at_this_speed = u128::from(ran_ms) * u128::from(left);
            (at_this_speed / u128::from(scan.examined_bytes)) as u64
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Regression: if the list of permanent errors was full and further errors were only counted,
    // the status text blamed the metadata of the pool.
    #[test]
    fn counted_damage_recommends_a_scrub() {
        let counted = Damage { more: 3, ..Damage::default() };
        let (what, how) = damage_words("tank", &counted);
        assert!(what.contains("is full") && !what.contains("metadata"), "{what}");
        assert!(how.starts_with("Run 'weir pool scrub tank'"), "{how}");
        let part = DamagedPart { part: "segment table".into(), number: 1, found_unix_ms: 0 };
        let (what, how) = damage_words("tank", &Damage { parts: vec![part], ..counted });
        assert!(what.contains("metadata") && how.contains("pool status -v tank"), "{what} {how}");
    }
}

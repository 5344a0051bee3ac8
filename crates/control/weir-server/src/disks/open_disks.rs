//! Opens disks for a pool, and checks their contents.
//!
//! The checks of one disk are in weir-device, the checks of layouts in the API's requests.
//!
//! Invariants: opening and checking a disk writes nothing to it; a new disk that has a file system
//! or another recognized content is refused unless the caller forces it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};
use weir_api::ApiError;
use weir_api::types::{VdevKind as ApiKind, VdevRole as ApiRole, VdevSpec as ApiVdev};
use weir_base::limits::{LABELS_AT_ONCE, LABELS_WAIT};
use weir_base::size::Human;
use weir_base::{Clock, ErrorKind, Guid};
use weir_device::{Device, DeviceError, DeviceOp, FileDevice, OpenMode, probe_device};
use weir_format::layout::DISK_BYTES_MIN;
use weir_format::{VdevKind, VdevRole};
use weir_pool::{Discovered, Pool, VdevSpec, discover, refuse_owned};

use crate::access::activity::Activity;
use crate::access::caller_files;
use crate::access::caller_files::Place;
use crate::disks::clock::ServerClock;
use crate::disks::identity::IDENTITY;
use crate::disks::mount_directory;

pub(crate) fn device_error(error: &DeviceError) -> ApiError {
    if caller_files::is_refusal(&error.source) {
        return ApiError::new(ErrorKind::Permission, error.source.to_string())
            .with_action(caller_files::REFUSED_ACTION);
    }
    let wire = ApiError::new(error.kind(), error.to_string());
    if error.kind() != ErrorKind::NotFound {
        return wire;
    }
    let path = &error.path;
    wire.with_action(if path.starts_with("/dev/") {
        "lsblk -o NAME,SIZE,SERIAL,MOUNTPOINTS lists the disks".to_owned()
    } else {
        format!("name a disk or an existing file; to create a file: truncate -s 10G {path}")
    })
}

/// Converts the error of a new disk. If the disk belongs to an open pool and the caller may learn
/// the name of this pool, the result names the pool.
fn new_disk_error(error: &DeviceError, activity: &Activity) -> ApiError {
    match error.opened_as().and_then(|known| activity.pool_of(known)) {
        Some(pool) => {
            let message = format!("{} is a disk of pool {pool}", error.path);
            ApiError::new(ErrorKind::Busy, message).with_action(format!("weir pool status {pool}"))
        }
        None => device_error(error),
    }
}

/// Opens a disk at a path from a caller.
fn open(
    path: &Path,
    mode: OpenMode,
    min: u64,
    activity: &Activity,
) -> Result<Arc<dyn Device>, DeviceError> {
    let place = mount_directory::refuse_disk(path).and_then(|()| activity.place(path));
    let place = place.map_err(|source| DeviceError {
        path: path.display().to_string(),
        op: DeviceOp::Open,
        offset: 0,
        source,
    })?;
    let at = place.as_ref().map_or_else(|| path.to_owned(), Place::path);
    open_at(&at, path, mode, min, activity)
}

fn open_at(
    place: &Path,
    path: &Path,
    mode: OpenMode,
    min: u64,
    activity: &Activity,
) -> Result<Arc<dyn Device>, DeviceError> {
    let disk = FileDevice::open_at(place, path, mode, min);
    let disk = disk.map(|disk| Arc::new(disk) as Arc<dyn Device>);
    #[cfg(test)]
    let disk = disk.map(|disk| faulty::front(path, disk));
    activity.opened(disk.as_ref().ok());
    disk
}

/// Fault injection for disks, only compiled for tests of the server.
#[cfg(test)]
pub(crate) mod faulty {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use parking_lot::Mutex;
    use weir_device::{Device, FaultDevice, Faults};

    static FAULTS: Mutex<BTreeMap<PathBuf, Arc<Faults>>> = Mutex::new(BTreeMap::new());

    /// Returns the faults of the disk at `path`; they take effect when the disk is opened the next
    /// time.
    pub(crate) fn faults(path: &Path) -> Arc<Faults> {
        Arc::clone(FAULTS.lock().entry(path.to_owned()).or_default())
    }

    pub(crate) fn front(path: &Path, disk: Arc<dyn Device>) -> Arc<dyn Device> {
        match FAULTS.lock().get(path) {
            Some(faults) => Arc::new(FaultDevice::new(disk, Arc::clone(faults))),
            None => disk,
        }
    }
}

/// Opens all disks of a new pool and checks that the pool may overwrite them.
///
/// Returns the vdevs, and warnings for the user.
pub(crate) async fn open_for_create(
    vdevs: &[ApiVdev],
    force: bool,
    activity: &Activity,
) -> Result<(Vec<VdevSpec>, Vec<String>), ApiError> {
    let (mut specs, mut warnings) = (Vec::new(), Vec::new());
    for vdev in vdevs {
        let mut disks = Vec::new();
        for path in &vdev.disks {
            disks.push(open_new(Path::new(path), force, activity).await?);
        }
        let sizes: Vec<u64> = disks.iter().map(|disk| disk.geometry().len_bytes).collect();
        let (min, max) = (sizes.iter().min(), sizes.iter().max());
        if let (Some(min), Some(max)) = (min, max)
            && min < max
        {
            warnings.push(format!(
                "{} {}: sizes differ; {} of each disk is used",
                vdev.kind.name(),
                vdev.disks.join(" "),
                Human(*min)
            ));
        }
        specs.push(VdevSpec { kind: format_kind(vdev.kind), role: format_role(vdev.role), disks });
    }
    Ok((specs, warnings))
}

/// Opens a disk that will join a pool and checks that the pool may overwrite it. With `force` the
/// disk may have contents, but it must not belong to a pool that another server has open.
pub(crate) async fn open_new(
    path: &Path,
    force: bool,
    activity: &Activity,
) -> Result<Arc<dyn Device>, ApiError> {
    let disk = open(path, OpenMode::ReadWrite, DISK_BYTES_MIN, activity)
        .map_err(|error| new_disk_error(&error, activity))?;
    if !force {
        refuse_content(&*disk).await?;
        return Ok(disk);
    }
    let clock: Arc<dyn Clock> = Arc::new(ServerClock::default());
    let free = refuse_owned(Arc::clone(&disk), &IDENTITY, &clock).await;
    free.map_err(|error| ApiError::new(error.kind(), error.to_string()))?;
    Ok(disk)
}

fn format_kind(kind: ApiKind) -> VdevKind {
    match kind {
        ApiKind::Disk => VdevKind::Disk,
        ApiKind::Mirror => VdevKind::Mirror,
        ApiKind::Raidz1 => VdevKind::Raidz1,
        ApiKind::Raidz2 => VdevKind::Raidz2,
        ApiKind::Raidz3 => VdevKind::Raidz3,
    }
}

fn format_role(role: ApiRole) -> VdevRole {
    match role {
        ApiRole::Data => VdevRole::Data,
        ApiRole::Log => VdevRole::Log,
        ApiRole::Spare => VdevRole::Spare,
    }
}

async fn refuse_content(disk: &dyn Device) -> Result<(), ApiError> {
    let path = disk.path();
    let taken = |what: String| {
        ApiError::new(ErrorKind::Exists, format!("{path} {what}"))
            .with_action("choose another disk, or overwrite this one with --force")
    };
    match discover(disk).await.map_err(|error| device_error(&error))? {
        Ok(Discovered { label, .. }) => {
            return Err(taken(format!("is part of pool {:?}", label.name)));
        }
        Err(error) if error.is_other_version() => {
            return Err(taken(format!("is part of a pool of another Weir version ({error})")));
        }
        Err(_) => {}
    }
    match probe_device(disk).await.map_err(|error| device_error(&error))? {
        Some(content) => Err(taken(format!("holds {content}"))),
        None => Ok(()),
    }
}

/// Opens the disks of an existing pool. Returns the opened disks, and the errors of the other
/// disks. The paths come from the server's own state, so the restrictions on paths that a caller
/// names do not apply. The engine never writes to a disk without a label of the pool.
pub(crate) fn open_known(
    paths: &[PathBuf],
    activity: &Activity,
) -> (Vec<Arc<dyn Device>>, Vec<DeviceError>) {
    let (mut disks, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        match open_at(path, path, OpenMode::ReadWrite, 0, activity) {
            Ok(disk) => disks.push(disk),
            Err(error) => {
                tracing::warn!(%error, "disk not available");
                errors.push(error);
            }
        }
    }
    (disks, errors)
}

/// Opens the disk of a leg again, at a path from a caller (`is_named`) or from the server's state.
pub(crate) fn open_again(
    path: &Path,
    is_named: bool,
    activity: &Activity,
) -> Result<Arc<dyn Device>, DeviceError> {
    if is_named {
        return open(path, OpenMode::ReadWrite, 0, activity);
    }
    let opened = open_at(path, path, OpenMode::ReadWrite, 0, activity);
    opened.inspect_err(|error| tracing::warn!(%error, "disk not available"))
}

/// Returns the leg of `pool` that the label on the disk at a caller's path identifies.
///
/// # Errors
/// `NotFound` if the disk has no label, or a label of another pool.
pub(crate) async fn leg_at(
    path: &Path,
    pool: &Pool,
    activity: &Activity,
) -> Result<Guid, ApiError> {
    let disk = open(path, OpenMode::ReadOnly, 0, activity).map_err(|error| device_error(&error))?;
    let found = discover(&*disk).await.map_err(|error| device_error(&error))?;
    let no = |why: String| {
        let message = format!("{} is not a disk of pool {}: {why}", path.display(), pool.name());
        ApiError::new(ErrorKind::NotFound, message)
            .with_action(format!("see its disks: weir pool status {}", pool.name()))
    };
    match found {
        Ok(Discovered { label, .. }) if label.pool == pool.guid() => Ok(label.disk),
        Ok(Discovered { label, .. }) => Err(no(format!("it is part of pool {:?}", label.name))),
        Err(error) => Err(no(error.to_string())),
    }
}

/// A pool found on unused disks.
pub struct FoundPool {
    /// The newest configuration found on these disks.
    pub newest: Discovered,
    /// Disks of the pool, by guid.
    pub disks: BTreeMap<Guid, PathBuf>,
}

/// Result of a search for pools.
#[derive(Default)]
pub struct Scan {
    /// Pools by guid.
    pub pools: BTreeMap<Guid, FoundPool>,
    /// Errors of disks that could not be read and may belong to a pool.
    pub unknown: Vec<String>,
    /// True if one of the unknown disks has another version of the format.
    pub other_version: bool,
    /// True if another process has one of the unknown disks open.
    pub in_use: bool,
}

/// Searches the given files, devices and directories for pools; an empty list means all block
/// devices.
pub async fn scan(search: &[String], activity: &Activity) -> Scan {
    let mut scan = Scan::default();
    let mut disks = Vec::new();
    for path in candidates(search, activity) {
        let disk = match open(&path, OpenMode::ReadOnly, 0, activity) {
            Ok(disk) => disk,
            Err(error) => {
                scan.in_use |= error.kind() == ErrorKind::Busy;
                if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Permission) {
                    scan.unknown.push(error.to_string());
                }
                continue;
            }
        };
        disks.push((path, disk));
    }
    // The labels are read concurrently: an unresponsive disk must not hide the pools on other
    // disks.
    let looks = disks.into_iter().map(|(path, disk)| async move {
        let found = compio::time::timeout(LABELS_WAIT, discover(&*disk)).await;
        (path, disk, found)
    });
    let mut looks = pin!(stream::iter(looks).buffered(LABELS_AT_ONCE));
    while let Some((path, disk, found)) = looks.next().await {
        let found = match found {
            Err(_) => {
                let seconds = LABELS_WAIT.as_secs();
                scan.unknown.push(format!("{} did not answer within {seconds} s", disk.path()));
                continue;
            }
            Ok(Ok(Ok(found))) => found,
            Ok(Ok(Err(error))) if error.is_other_version() => {
                scan.unknown.push(format!("{}: {error}", disk.path()));
                scan.other_version = true;
                continue;
            }
            Ok(Ok(Err(_)) | Err(_)) => continue,
        };
        let pool = scan
            .pools
            .entry(found.label.pool)
            .or_insert_with(|| FoundPool { newest: found.clone(), disks: BTreeMap::new() });
        pool.disks.insert(found.label.disk, path);
        if (found.label.txg, found.txg) > (pool.newest.label.txg, pool.newest.txg) {
            pool.newest = found;
        }
    }
    scan
}

fn candidates(search: &[String], activity: &Activity) -> Vec<PathBuf> {
    if search.is_empty() {
        // The kernel lists whole disks and partitions.
        let list = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
        let names = list.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
        return names.map(|name| Path::new("/dev").join(name)).collect();
    }
    let mut paths = Vec::new();
    for place in search.iter().map(PathBuf::from) {
        let found = activity.place(&place);
        let at = match &found {
            Ok(Some(found)) => found.path(),
            Ok(None) => place.clone(),
            // Keep the path: a later open of the path returns its error.
            Err(_) => {
                paths.push(place);
                continue;
            }
        };
        match std::fs::read_dir(&at) {
            Ok(entries) => {
                let files = entries.flatten().filter(|entry| !entry.path().is_dir());
                paths.extend(files.map(|entry| place.join(entry.file_name())));
            }
            Err(_) => paths.push(place),
        }
    }
    paths.sort();
    paths
}

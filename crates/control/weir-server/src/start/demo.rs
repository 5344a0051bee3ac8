//! `weir serve --demo`: creates a pool, a volume with an export, and a mounted filesystem for
//! trials at the first start.
//!
//! All steps are ordinary management calls.
//!
//! Invariant: objects that exist are reused and never created again.

use std::fs;
use std::path::{Path, PathBuf};

use weir_api::types::{
    ExportCreate, FilesystemCreate, FilesystemMount, ListMounts, NameCase, PoolCreate,
    PropertyValues, Protocol, ShowFilesystem, ShowPool, ShowVolume, VdevKind, VdevRole, VdevSpec,
    VolumeCreate,
};
use weir_api::{ApiError, Handle as _};
use weir_base::BLOCK_BYTES;
use weir_base::size::Human;

use crate::answer::errors::internal;
use crate::disks::open_disks::device_error;
use crate::start::options::ServeOptions;
use crate::state::server::Manager;

const POOL: &str = "demo";
const VOLUME: &str = "demo/vol1";
const FILESYSTEM: &str = "demo/home";
/// Directory in the state directory at which the filesystem is mounted.
const MOUNTED_AT: &str = "home";
const FILE_RECORD_BYTES: u64 = 128 << 10;
const VOLUME_BYTES: u64 = 1 << 30;
/// Size of each disk: the volume can be overwritten many times before the disks are full.
const DISK_BYTES: u64 = 8 << 30;

/// Creates the missing objects of the demo and prints commands to try.
pub(crate) async fn set_up(
    manager: &Manager,
    options: &ServeOptions,
    say: fn(&str),
) -> Result<(), ApiError> {
    let disks = ["disk1.img", "disk2.img"].map(|name| options.state_dir.join(name));
    let new = manager.handle(ShowPool { name: POOL.to_owned() }).await.is_err();
    if new {
        for disk in disks.iter().filter(|disk| !disk.exists()) {
            weir_device::FileDevice::create_sparse(disk, DISK_BYTES)
                .map_err(|error| device_error(&error))?;
        }
        let paths = disks.iter().map(|disk| disk.display().to_string()).collect();
        let vdevs = vec![VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: paths }];
        let (name, force) = (POOL.to_owned(), false);
        let properties = std::collections::BTreeMap::new();
        manager.handle(PoolCreate { name, vdevs, force, properties }).await?;
    }
    let (name, size_bytes) = (VOLUME.to_owned(), VOLUME_BYTES);
    let (record_bytes, properties) = (BLOCK_BYTES as u64, PropertyValues::default());
    if manager.handle(ShowVolume { name: VOLUME.to_owned() }).await.is_err() {
        let volume = VolumeCreate { name, size_bytes, record_bytes, properties };
        manager.handle(volume).await?;
    }
    let export = ExportCreate {
        protocol: Protocol::Nbd,
        volume: VOLUME.to_owned(),
        name: None,
        read_only: false,
        allow: Vec::new(),
    };
    let made = manager.handle(export).await?;
    let uri = made.export.uris.first().cloned().unwrap_or_default();
    let files = mount(manager, &options.state_dir.join(MOUNTED_AT)).await;
    say(&text(new, &uri, &disks, &files, options));
    Ok(())
}

/// Creates the filesystem and mounts it. Returns the directory.
///
/// # Errors
/// For example, this machine has no FUSE. The rest of the demo works anyway.
async fn mount(manager: &Manager, at: &Path) -> Result<PathBuf, ApiError> {
    let name = FILESYSTEM.to_owned();
    if manager.handle(ShowFilesystem { name: name.clone() }).await.is_err() {
        let (record_bytes, properties) = (FILE_RECORD_BYTES, PropertyValues::default());
        let (name, case) = (name.clone(), NameCase::Sensitive);
        let filesystem = FilesystemCreate { name, record_bytes, case, properties };
        manager.handle(filesystem).await?;
    }
    let mounts = manager.handle(ListMounts {}).await?.mounts;
    if let Some(mount) = mounts.into_iter().find(|mount| mount.name == FILESYSTEM) {
        return Ok(PathBuf::from(mount.directory));
    }
    let directory = fs::create_dir_all(at).and_then(|()| fs::canonicalize(at));
    let directory = directory.map_err(|error| internal("the directory of the mount", &error))?;
    let directory = Some(directory.display().to_string());
    let request = FilesystemMount { name, directory, read_only: false };
    Ok(PathBuf::from(manager.handle(request).await?.mount.directory))
}

fn text(
    new: bool,
    uri: &str,
    disks: &[PathBuf; 2],
    files: &Result<PathBuf, ApiError>,
    options: &ServeOptions,
) -> String {
    let [first, second] = disks;
    let verb = if new { "Made" } else { "Found again:" };
    // Clients find the default socket without `--api`.
    let api = match (&options.default_api_socket, options.api.first()) {
        (None, Some(api)) => format!(" --api {api}"),
        _ => String::new(),
    };
    let here = |path: &Path| path.display().to_string();
    let (mounted, copy) = match files {
        Ok(at) => {
            let at = here(at);
            (format!("mounted at\n  {at}"), format!("  cp -r /etc/apt {at}/\n"))
        }
        Err(error) => (format!("not mounted: {error}"), String::new()),
    };
    format!(
        "\n{verb} pool {POOL}, a mirror of two sparse files of {size}:\n  {a}\n  {b}\n\
         volume {VOLUME}, {volume}, thin, lz4; served as\n  {uri}\n\
         filesystem {FILESYSTEM}, {mounted}\n\n\
         Try in another terminal:\n\
         \x20 nbdinfo '{uri}'\n\
         \x20 nbdcopy --progress '{uri}' /tmp/vol1.img\n\
         \x20 fio --name=try --ioengine=nbd --thread=1 '--uri={uri}' --rw=randwrite --bs=4k \
         --iodepth=32 --size=256m --verify=crc32c\n{copy}\n\
         State: weir{api} pool status    Stop: Ctrl-C\n",
        size = Human(DISK_BYTES),
        volume = Human(VOLUME_BYTES),
        a = here(first),
        b = here(second),
    )
}

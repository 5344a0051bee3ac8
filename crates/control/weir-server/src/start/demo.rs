//! `weir serve --demo`: creates a pool, a volume and an export for trials at the first start.
//!
//! All steps are ordinary management calls.
//!
//! Invariant: objects that exist are reused and never created again.

use std::path::Path;

use weir_api::types::{
    ExportCreate, PoolCreate, PropertyValues, Protocol, ShowPool, ShowVolume, VdevKind, VdevRole,
    VdevSpec, VolumeCreate,
};
use weir_api::{ApiError, Handle as _};
use weir_base::BLOCK_BYTES;
use weir_base::size::Human;

use crate::disks::open_disks::device_error;
use crate::start::options::ServeOptions;
use crate::state::server::Manager;

const POOL: &str = "demo";
const VOLUME: &str = "demo/vol1";
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
    say(&text(new, &uri, &disks, options));
    Ok(())
}

fn text(new: bool, uri: &str, disks: &[std::path::PathBuf; 2], options: &ServeOptions) -> String {
    let [first, second] = disks;
    let verb = if new { "Made" } else { "Found again:" };
    // Clients find the default socket without `--api`.
    let api = match (&options.default_api_socket, options.api.first()) {
        (None, Some(api)) => format!(" --api {api}"),
        _ => String::new(),
    };
    let here = |path: &Path| path.display().to_string();
    format!(
        "\n{verb} pool {POOL}, a mirror of two sparse files of {size}:\n  {a}\n  {b}\n\
         volume {VOLUME}, {volume}, thin, lz4; served as\n  {uri}\n\n\
         Try in another terminal:\n\
         \x20 nbdinfo '{uri}'\n\
         \x20 nbdcopy --progress '{uri}' /tmp/vol1.img\n\
         \x20 fio --name=try --ioengine=nbd --thread=1 '--uri={uri}' --rw=randwrite --bs=4k \
         --iodepth=32 --size=256m --verify=crc32c\n\n\
         State: weir{api} pool status    Stop: Ctrl-C\n",
        size = Human(DISK_BYTES),
        volume = Human(VOLUME_BYTES),
        a = here(first),
        b = here(second),
    )
}

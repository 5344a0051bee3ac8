//! Pools with sample filesystems and forged filesystems.
//!
//! Invariant: nothing is random, so a forgery names the same bytes in each pool.

use std::sync::Arc;

use weir_base::Guid;
use weir_dataset::Engine;
use weir_device::{Device, MemoryDevice};
use weir_format::layout::LABEL_BYTES;
use weir_format::{VdevKind, VdevRole};
use weir_fs::{Filesystem, FsError};
use weir_pool::{CreateOptions, VdevSpec};

use crate::bench::{Bench, drive, now};
use crate::disks::{Disks, options};
use crate::filesystem::editor::Editor;
use crate::filesystem::forgeries::{FILESYSTEM_FORGERIES, FilesystemForgery};
use crate::filesystem::sample::{LAYOUT, Tree, clock, fill};

/// Size of the pool of one sample without labels and log.
const AREA_BYTES: u64 = 8 << 20;
/// Size of the pool of all samples without labels and log.
const POOL_AREA_BYTES: u64 = 96 << 20;
const LOG_BYTES: u64 = 256 << 10;

/// Creates the sample filesystem in a pool and applies a forgery to it.
///
/// # Errors
/// The errors of the engine, or the forgery does not fit the sample.
pub async fn create_filesystem(
    engine: &Arc<Engine>,
    name: &str,
    forgery: Option<&FilesystemForgery>,
) -> Result<Tree, FsError> {
    let files = Filesystem::create(engine, name, LAYOUT, &[], clock()).await?;
    let tree = fill(&files).await?;
    drop(files);
    if let Some(forgery) = forgery {
        let mut editor = Editor::new(engine.volume(name)?, LAYOUT);
        (forgery.apply)(&mut editor, &tree).await?;
        editor.write().await?;
    }
    engine.commit().await?;
    Ok(tree)
}

/// Creates a pool with one filesystem for each forgery, which has the name of the forgery, and the
/// filesystem `sound`. Returns the bytes of its only disk, and the inodes of each filesystem.
///
/// # Panics
/// A forgery does not fit the sample.
pub fn forged_pool() -> (Vec<u8>, Vec<(&'static str, Tree)>) {
    let (device, bench) = empty_pool(POOL_AREA_BYTES);
    let forgeries = FILESYSTEM_FORGERIES.iter().map(|forgery| (forgery.name, Some(forgery)));
    let mut trees = Vec::new();
    for (name, forgery) in forgeries.chain([("sound", None)]) {
        let tree = drive(&bench, create_filesystem(&bench, name, forgery));
        let tree = tree.expect("the pool is not suspended").expect("the forgery fits the sample");
        trees.push((name, tree));
    }
    drop(bench);
    (device.content(), trees)
}

/// Creates a pool on a disk in memory.
fn empty_pool(area_bytes: u64) -> (Arc<MemoryDevice>, Bench) {
    let len = 2 * LABEL_BYTES + LOG_BYTES + area_bytes;
    let device = Arc::new(MemoryDevice::new("disk0", len as usize));
    let sizes = CreateOptions {
        segment_bytes: Some(256 << 10),
        strip_bytes: None,
        log_bytes: Some(LOG_BYTES),
        disk_bytes_min: Some(2 * LABEL_BYTES),
    };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("endless");
    let disks: Vec<Arc<dyn Device>> = vec![Arc::clone(&device) as _];
    let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks }];
    let engine = now(Engine::create("tank", &vdevs, sizes, &options(), &mut guid));
    (device, Bench::new(engine.expect("a sound pool")))
}

/// Creates a pool in memory with one sample filesystem, `home`.
///
/// # Panics
/// The forgery does not fit the sample.
pub fn filesystem_pool(forgery: Option<&FilesystemForgery>) -> (Disks, Tree) {
    let (device, bench) = empty_pool(AREA_BYTES);
    let tree = drive(&bench, create_filesystem(&bench, "home", forgery));
    let tree = tree.expect("the pool is not suspended").expect("the forgery fits the sample");
    drop(bench);
    (Disks { sample: vec![device], forged: Vec::new() }, tree)
}

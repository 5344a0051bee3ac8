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
use crate::filesystem::forgeries::FilesystemForgery;
use crate::filesystem::sample::{LAYOUT, Tree, clock, fill};

/// Size of the pool of one sample without labels and log.
const AREA_BYTES: u64 = 8 << 20;
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

/// Creates a pool in memory with one sample filesystem, `home`.
///
/// # Panics
/// The forgery does not fit the sample.
pub fn filesystem_pool(forgery: Option<&FilesystemForgery>) -> (Disks, Tree) {
    let len = 2 * LABEL_BYTES + LOG_BYTES + AREA_BYTES;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("disk0", len as usize));
    let sizes = CreateOptions {
        segment_bytes: Some(256 << 10),
        strip_bytes: None,
        log_bytes: Some(LOG_BYTES),
        disk_bytes_min: Some(2 * LABEL_BYTES),
    };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("endless");
    let disks = vec![Arc::clone(&device)];
    let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks }];
    let engine = now(Engine::create("tank", &vdevs, sizes, &options(), &mut guid));
    let bench = Bench::new(engine.expect("a sound pool"));
    let tree = drive(&bench, create_filesystem(&bench, "home", forgery));
    let tree = tree.expect("the pool is not suspended").expect("the forgery fits the sample");
    drop(bench);
    (Disks { sample: vec![device], forged: Vec::new() }, tree)
}

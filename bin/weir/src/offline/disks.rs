//! Disks of a pool, opened without a server. The tools that use these disks never write to a disk.
//!
//! Not here: the search of directories for disks (weir-server).
//!
//! Invariants:
//! - disks are opened read-only, each under an overlay, which keeps writes in memory. The writes of
//!   the engine during the import (log replay, a commit) stay in the overlay;
//! - disks of a running server are refused, because they would change while they are read.

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use weir_api::ApiError;
use weir_base::{ErrorKind, SystemClock};
use weir_dataset::{Engine, EngineOptions};
use weir_device::{Device, FileDevice, OpenMode, Overlay};
use weir_fs::FilesystemLayer;
use weir_pool::{ImportOptions, PlantedBug};
use weir_server::open_disks::{self, FoundPool, Scan};
use weir_server::{Activity, api_error};

use crate::cli::base::output;

/// Memory for caches, and for the data of the intent log that the import replays.
const MEMORY_BYTES: u64 = 512 << 20;

/// Maximum time to wait for a disk that another process uses. The kernel keeps the lock of a killed
/// server until its last I/O has completed.
const IN_USE_MAX: Duration = Duration::from_secs(2);
const IN_USE_RETRIES: u32 = 20;

/// Searches for pools. Repeats the search while another process uses one of the disks.
async fn scan(search: &[String]) -> Scan {
    let mut scan = open_disks::scan(search, &Activity::default()).await;
    for _ in 0..IN_USE_RETRIES {
        if !scan.in_use {
            break;
        }
        std::thread::sleep(IN_USE_MAX / IN_USE_RETRIES);
        scan = open_disks::scan(search, &Activity::default()).await;
    }
    scan
}

/// Runs an offline tool on an I/O runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    let runtime = weir_device::new_runtime().map_err(|error| {
        ApiError::new(ErrorKind::Internal, format!("cannot do I/O here: {error}"))
    })?;
    runtime.block_on(work)
}

/// Imports a pool by its name or guid, without a write to its disks. Returns the pool, and the
/// overlays that keep its writes in memory.
pub(crate) async fn open(
    wanted: &str,
    search: &[String],
    force: bool,
) -> Result<(Arc<Engine>, Vec<Arc<Overlay>>), ApiError> {
    let scan = scan(search).await;
    for why in &scan.unknown {
        output::say(&format!("weir: skipped: {why}"));
    }
    let found = scan
        .pools
        .into_iter()
        .filter(|(guid, found)| found.newest.label.name == wanted || guid.to_string() == wanted);
    let mut found: Vec<FoundPool> = found.map(|(_, pool)| pool).collect();
    let pool = match (found.pop(), found.is_empty()) {
        (Some(pool), true) => pool,
        (None, _) => {
            let message = format!("no disk of a pool {wanted:?} in {}", search.join(", "));
            if scan.in_use {
                let message = format!("{message} that is not in use by another process");
                return Err(ApiError::new(ErrorKind::Busy, message).with_action(
                    "stop the server that uses its disks (`weir server show` shows whether one \
                     runs), or scrub there",
                ));
            }
            return Err(ApiError::new(ErrorKind::NotFound, message)
                .with_action("name its disks, or the directories they are in, with -d"));
        }
        (Some(_), false) => {
            let message = format!("there are several pools named {wanted:?}");
            return Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action("give the guid that `weir pool import -d` lists"));
        }
    };
    let mut disks: Vec<Arc<dyn Device>> = Vec::new();
    for path in pool.disks.values() {
        match FileDevice::open(path, OpenMode::ReadOnly, 0) {
            Ok(disk) => disks.push(Arc::new(disk)),
            Err(error) => output::say(&format!("weir: skipped: {error}")),
        }
    }
    open_over(disks, force).await
}

/// Imports the pool that is on these disks, with an overlay over each disk.
async fn open_over(
    disks: Vec<Arc<dyn Device>>,
    force: bool,
) -> Result<(Arc<Engine>, Vec<Arc<Overlay>>), ApiError> {
    let overlays: Vec<Arc<Overlay>> =
        disks.into_iter().map(|disk| Arc::new(Overlay::new(disk))).collect();
    let clock = Arc::new(SystemClock::default());
    let options = EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug: PlantedBug::None };
    let disks = overlays.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
    let how = ImportOptions { force, ..ImportOptions::new(weir_server::guid()) };
    let opened = Engine::open_with_layer(disks, how, &options, &FilesystemLayer).await;
    Ok((opened.map_err(|error| api_error(&error))?, overlays))
}

/// Returns a progress bar; it is hidden if standard error is not a terminal.
pub(crate) fn progress(bytes: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let line = "{bar:30} {percent:>3} %  {bytes} of {total_bytes}  {bytes_per_sec}  ETA {eta}";
    let style = ProgressStyle::with_template(line).expect("the template is constant");
    ProgressBar::new(bytes).with_style(style)
}

//! Tools that work on disks without a server: nothing they do changes a disk.
//!
//! Not here: the server, and what it shares with these (`serve/disks`: finding disks).
//!
//! Invariants:
//! - disks are opened for reading, each under an overlay: what the engine writes while it opens a
//!   pool (the replayed log, a commit) stays in memory;
//! - disks of a running server are refused, since they change under the reader.

pub(crate) mod check;
pub(crate) mod rescue;

use std::io::{self, IsTerminal as _};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use weir_api::ApiError;
use weir_base::{ErrorKind, SystemClock};
use weir_dataset::{Engine, EngineOptions};
use weir_device::{Device, FileDevice, OpenMode, Overlay};
use weir_pool::{ImportOptions, PlantedBug};

use crate::output;
use crate::serve::activity::Activity;
use crate::serve::disks::{self, FoundPool};
use crate::serve::pools::api_error;

/// Memory for caches and for what a replayed log makes dirty.
const MEMORY_BYTES: u64 = 512 << 20;

/// Runs an offline tool on a runtime of its own.
fn block_on<T>(work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    let runtime = weir_device::new_runtime().map_err(|error| {
        ApiError::new(ErrorKind::Internal, format!("cannot do I/O here: {error}"))
    })?;
    runtime.block_on(work)
}

/// Opens a pool by name or guid, as it would be after an import, without changing its disks; also
/// returns what lies over them.
async fn open(
    wanted: &str,
    search: &[String],
    force: bool,
) -> Result<(Arc<Engine>, Vec<Arc<Overlay>>), ApiError> {
    let scan = disks::scan(search, &Activity::default()).await;
    for why in &scan.unknown {
        output::say(&format!("weir: left out: {why}"));
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
            return Err(ApiError::new(ErrorKind::NotFound, message)
                .with_action("name its disks, or the directories they are in, with -d"));
        }
        (Some(_), false) => {
            let message = format!("there are several pools named {wanted:?}");
            return Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action("give the guid that `weir pool import -d` lists"));
        }
    };
    let mut overlays: Vec<Arc<Overlay>> = Vec::new();
    for path in pool.disks.values() {
        match FileDevice::open(path, OpenMode::ReadOnly, 0) {
            Ok(disk) => overlays.push(Arc::new(Overlay::new(Arc::new(disk)))),
            Err(error) => output::say(&format!("weir: left out: {error}")),
        }
    }
    let clock = Arc::new(SystemClock::default());
    let options = EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug: PlantedBug::None };
    let disks = overlays.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
    let opened =
        Engine::open(disks, ImportOptions { force, opening: crate::serve::guid() }, &options).await;
    Ok((opened.map_err(|error| api_error(&error))?, overlays))
}

/// A bar for people; nothing where nobody watches.
fn progress(bytes: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let line = "{bar:30} {percent:>3} %  {bytes} of {total_bytes}  {bytes_per_sec}  ETA {eta}";
    let style = ProgressStyle::with_template(line).expect("the template is constant");
    ProgressBar::new(bytes).with_style(style)
}

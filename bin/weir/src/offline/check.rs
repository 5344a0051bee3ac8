//! `weir check`: verifies everything that a pool stores, without a server and without a write.
//!
//! Not here: repair (`weir pool scrub` of an imported pool), recovery of data (rescue).
//!
//! Invariants:
//! - the check reads and verifies every copy of every block, node and summary and every parity
//!   strip, as of the newest txg. The check counts bad copies and repairs none;
//! - the check walks all trees, and compares the result with the counters of all segments and the
//!   used space of volumes and snapshots. No two blocks may have the same address. A counter that
//!   is too high is no error if unreadable nodes explain the difference. The names, links and
//!   counts of each filesystem agree;
//! - the exit code is 0 only if the check found no error at all.

use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use weir_api::ApiError;
use weir_api::types::Damage;
use weir_base::ErrorKind;
use weir_base::size::Human;
use weir_dataset::{DatasetError, Engine, WrongAccount};
use weir_format::files::TimeStamp;
use weir_format::layout::PACK_BYTES;
use weir_fs::{Filesystem, Finding};
use weir_pool::{LegState, LegStatus, WrongCount};
use weir_server::{api_error, metadata_loss, pool_status};

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::damage;
use crate::offline::disks::{block_on, open, progress};
use crate::offline::rescue_tree;

/// Maximum number of errors in filesystems that the report names; the JSON names all.
const NAMED_MAX: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Disks of the pool, or directories with its disks
    #[arg(short = 'd', value_name = "DIR|DEVICE", required = true)]
    search: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Pool, by name or guid
    #[arg(value_name = "POOL")]
    name: String,
}

/// Result of a check.
#[derive(Serialize)]
pub(super) struct Report {
    pool: String,
    guid: String,
    txg: u64,
    /// Bytes of stored data that were verified; several copies of a block count once.
    examined_bytes: u64,
    /// Sentences that describe the unreadable metadata of the pool.
    lost: Vec<String>,
    /// Number of blocks without an intact copy.
    damaged_blocks: u64,
    /// Names of the volumes and ranges that contain damaged blocks, as far as they are known.
    damage: Damage,
    /// Number of the txg in which the pool first found an unreadable tree node; `None` once the
    /// space below the node no longer counts as used.
    damaged_since_txg: Option<u64>,
    /// Number of bad copies of blocks that also have an intact copy. On raidz, the number of bad
    /// strips.
    bad_copies: u64,
    /// Segments whose counter of live bytes is wrong.
    wrong_counters: Vec<Counter>,
    /// Shared blocks whose reference count is wrong.
    wrong_references: Vec<References>,
    /// Volumes and snapshots whose space accounting is wrong.
    wrong_accounts: Vec<Account>,
    /// Description of two blocks that have the same physical address, or of a block pointer without
    /// an address.
    misplaced: Option<String>,
    /// Inodes of filesystems that are damaged or contradict other inodes.
    wrong_inodes: Vec<WrongInode>,
    disks: Vec<Disk>,
}

#[derive(Serialize)]
struct Counter {
    segment: u64,
    counted_bytes: u64,
    found_bytes: u64,
}

/// Wrong reference count of one block. An entry without segment and offset is the wrong total of
/// the bytes that sharing saves in the pool.
#[derive(Serialize)]
struct References {
    segment: Option<u64>,
    offset: Option<u64>,
    counted: u64,
    found: u64,
}

#[derive(Serialize)]
struct Account {
    name: String,
    what: &'static str,
    counted_bytes: u64,
    found_bytes: u64,
}

#[derive(Serialize)]
struct WrongInode {
    filesystem: String,
    inode: u64,
    what: String,
}

#[derive(Serialize)]
struct Disk {
    path: String,
    state: &'static str,
    read_errors: u64,
    checksum_errors: u64,
}

impl References {
    fn of(wrong: WrongCount) -> Self {
        match wrong {
            WrongCount::References { vseg, offset, counted, found } => {
                Self { segment: Some(vseg.0), offset: Some(offset), counted, found }
            }
            WrongCount::Saved { counted, found } => {
                Self { segment: None, offset: None, counted, found }
            }
        }
    }
}

impl Disk {
    fn of(leg: LegStatus) -> Self {
        let state = match leg.state {
            LegState::Online => "online",
            LegState::Stale => "degraded",
            LegState::Offline => "offline",
            LegState::Faulted => "faulted",
            LegState::Missing => "unavailable",
        };
        let (read_errors, checksum_errors) = (leg.read_errors, leg.checksum_errors);
        Self { path: leg.path, state, read_errors, checksum_errors }
    }
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), ApiError> {
    block_on(async {
        let (engine, overlays) = open(&args.name, &args.search, false).await?;
        // From here on, repair nothing, not even in the overlays in memory: a later read of the
        // same address must find the same error again.
        overlays.iter().for_each(|overlay| overlay.freeze());
        let report = check(&engine).await?;
        tell(&report, args.json)
    })
}

pub(super) async fn check(engine: &Arc<Engine>) -> Result<Report, ApiError> {
    let bar = progress(0);
    let verified = engine.verify(|scan| {
        bar.set_length(scan.total_bytes.max(scan.examined_bytes));
        bar.set_position(scan.examined_bytes);
    });
    let scan = verified.await.map_err(|error| api_error(&error))?;
    bar.finish_and_clear();
    let mut report = Report {
        pool: engine.pool().name().to_owned(),
        guid: engine.pool().guid().to_string(),
        txg: engine.pool().committed_txg().0,
        examined_bytes: scan.examined_bytes,
        lost: Vec::new(),
        damaged_blocks: scan.damaged,
        damage: pool_status::damage(engine),
        damaged_since_txg: engine.pool().damaged_since().map(|txg| txg.0),
        bad_copies: scan.unrepaired,
        wrong_counters: Vec::new(),
        wrong_references: Vec::new(),
        wrong_accounts: Vec::new(),
        misplaced: None,
        wrong_inodes: Vec::new(),
        disks: Vec::new(),
    };
    // The checks below skip everything that is below an unreadable node, so a counter of the pool
    // may be higher than the result of a check.
    let lost = &mut report.damaged_blocks;
    let counters = unless_lost(engine.check_live_bytes().await, lost)?;
    report.wrong_counters = counters
        .into_iter()
        .map(|(segment, counted_bytes, found_bytes)| Counter {
            segment: segment.0,
            counted_bytes,
            found_bytes,
        })
        .collect();
    let references = unless_lost(engine.check_references().await, lost)?;
    report.wrong_references = references.into_iter().map(References::of).collect();
    let accounts = unless_lost(engine.check_accounts().await, lost)?;
    let account = |wrong: WrongAccount| Account {
        name: wrong.name,
        what: wrong.what,
        counted_bytes: wrong.counted.saturating_mul(PACK_BYTES as u64),
        found_bytes: wrong.found.saturating_mul(PACK_BYTES as u64),
    };
    report.wrong_accounts = accounts.into_iter().map(account).collect();
    let places = unless_lost(engine.check_places().await, lost)?;
    report.misplaced = places.map(|(a, b)| format!("{a:?} and {b:?}"));
    report.wrong_inodes = check_filesystems(engine).await?;
    // Add unreadable metadata last: the checks above may have found more of it.
    report.lost = metadata_loss::words(engine);
    let legs = engine.pool().status().vdevs.into_iter().flat_map(|vdev| vdev.legs);
    report.disks = legs.map(Disk::of).collect();
    Ok(report)
}

/// Checks all filesystems of the pool.
async fn check_filesystems(engine: &Arc<Engine>) -> Result<Vec<WrongInode>, ApiError> {
    let mut wrong = Vec::new();
    for volume in engine.volumes() {
        if volume.object_layer().is_none() {
            continue;
        }
        let filesystem = format!("{}/{}", engine.pool().name(), volume.info().name);
        let now = Box::new(TimeStamp::default);
        let files = match Filesystem::open_unchanged(engine, volume, now) {
            Ok(files) => files,
            Err(error) => {
                wrong.push(WrongInode { filesystem, inode: 0, what: error.to_string() });
                continue;
            }
        };
        let found = files.check().await.map_err(|error| rescue_tree::fs_error(&error))?;
        let named = found.into_iter().map(|Finding { inode, what }| {
            let filesystem = filesystem.clone();
            WrongInode { filesystem, inode, what }
        });
        wrong.extend(named);
    }
    Ok(wrong)
}

/// Returns the result of a check. If an unreadable block stopped the check, returns an empty result
/// and counts one more damaged block.
fn unless_lost<T: Default>(found: Result<T, DatasetError>, lost: &mut u64) -> Result<T, ApiError> {
    match found {
        Err(error) if error.kind() == ErrorKind::Data => {
            tracing::error!(%error, "a check cannot run");
            *lost += 1;
            Ok(T::default())
        }
        found => found.map_err(|error| api_error(&error)),
    }
}

pub(super) fn tell(report: &Report, json: bool) -> Result<(), ApiError> {
    if json {
        output::print(&output::json(report)?)?;
    } else {
        let style = Style::new(false);
        let rows: Vec<[String; 4]> = report
            .disks
            .iter()
            .map(|disk| {
                let (read, checksum) = (disk.read_errors, disk.checksum_errors);
                let state = disk.state.to_uppercase();
                [disk.path.clone(), state, read.to_string(), checksum.to_string()]
            })
            .collect();
        output::print(&output::table(["DISK", "STATE", ">READ", ">CKSUM"], &rows, style))?;
        let (examined, txg) = (Human(report.examined_bytes), report.txg);
        output::say(&format!("pool {}, txg {txg}: {examined} verified", report.pool));
        output::print(&damage::list(&report.damage))?;
        if let Some(since) = report.damaged_since_txg {
            output::say(&format!(
                "tree nodes were lost in txg {since}: the space below them counts as used until \
                 the data is overwritten or destroyed and an import or a scrub recounts the space"
            ));
        }
    }
    if !json {
        for WrongInode { filesystem, inode, what } in report.wrong_inodes.iter().take(NAMED_MAX) {
            output::say(&format!("filesystem {filesystem}, inode {inode}: {what}"));
        }
    }
    let mut wrong = report.lost.clone();
    let count = |wrong: &mut Vec<String>, number: u64, what: &str| {
        if number > 0 {
            wrong.push(format!("{number} {what}"));
        }
    };
    count(&mut wrong, report.damaged_blocks, "blocks without a good copy");
    count(&mut wrong, report.bad_copies, "bad copies of blocks that have a good one");
    count(&mut wrong, report.wrong_counters.len() as u64, "segments with a wrong counter");
    count(&mut wrong, report.wrong_references.len() as u64, "wrong reference counts");
    count(
        &mut wrong,
        report.wrong_accounts.len() as u64,
        "volumes or snapshots with wrong space counts",
    );
    count(&mut wrong, u64::from(report.misplaced.is_some()), "blocks at a wrong address");
    let only_files = wrong.is_empty();
    count(&mut wrong, report.wrong_inodes.len() as u64, "errors in filesystems");
    if wrong.is_empty() {
        return Ok(());
    }
    let action = if only_files {
        "take the files from a snapshot or a backup; `weir rescue` copies the readable files"
    } else if report.damaged_blocks > 0 || !report.lost.is_empty() {
        "check again with all disks of the pool; restore data that no disk has from a backup"
    } else {
        "import the pool and run `weir pool scrub`, which repairs bad copies"
    };
    let message = format!("pool {} is damaged: {}", report.pool, wrong.join(", "));
    Err(ApiError::new(ErrorKind::Data, message).with_action(action))
}

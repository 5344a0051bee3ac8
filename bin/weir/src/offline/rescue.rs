//! `weir rescue`: copies a volume or a filesystem from the remaining disks of its pool, without a
//! server.
//!
//! `rescue_volume` and `rescue_tree` copy the data. Not here: repair, because a pool that can be
//! imported repairs itself.
//!
//! Invariant: the target is always new.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use weir_api::{ApiError, types};
use weir_base::ErrorKind;
use weir_dataset::{Engine, Volume};
use weir_server::{api_error, pool_status};

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::damage;
use crate::offline::disks::{block_on, open};
use crate::offline::{rescue_tree, rescue_volume};

#[derive(Debug, Args)]
pub(crate) struct RescueArgs {
    /// Disks of the pool, or directories with its disks
    #[arg(short = 'd', value_name = "DIR|DEVICE", required = true)]
    search: Vec<String>,
    /// File to create for a volume, directory for a filesystem; without it, list both
    #[arg(long, value_name = "FILE|DIR")]
    to: Option<PathBuf>,
    /// Use an older state of the pool if the newest is unreadable
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Pool, or volume or filesystem such as tank/vm1; a pool may also be given by its guid
    #[arg(value_name = "POOL[/NAME]")]
    name: String,
}

/// Volumes and filesystems that can be rescued.
#[derive(Serialize)]
struct Listing {
    pool: String,
    volumes: Vec<Found>,
    /// Permanent errors that the pool had recorded before the rescue.
    damage: types::Damage,
}

#[derive(Serialize)]
struct Found {
    name: String,
    kind: &'static str,
    size_bytes: u64,
    used_bytes: u64,
}

pub(crate) fn run(args: &RescueArgs) -> Result<(), ApiError> {
    let (pool, volume) = match args.name.split_once('/') {
        Some((pool, volume)) => (pool, Some(volume)),
        None => (args.name.as_str(), None),
    };
    block_on(async {
        let (engine, _) = open(pool, &args.search, args.force).await?;
        match (volume, &args.to) {
            (None, None) => list(&engine, args.json),
            (Some(name), Some(target)) => {
                let volume = engine.volume(name).map_err(|error| api_error(&error))?;
                match volume.object_layer() {
                    Some(_) => rescue_tree::copy(&engine, volume, target.clone(), args.json).await,
                    None => rescue_volume::copy(&engine, name, target.clone(), args.json).await,
                }
            }
            (Some(_), None) => Err(ApiError::new(ErrorKind::Invalid, "no output file is given")
                .with_action("name a new file with --to; for a filesystem, a new directory")),
            (None, Some(_)) => {
                Err(ApiError::new(ErrorKind::Invalid, "no volume or filesystem is named")
                    .with_action("name one, such as tank/vm1; without --to they are listed"))
            }
        }
    })
}

fn list(engine: &Engine, json: bool) -> Result<(), ApiError> {
    let (pool, damage) = (engine.pool().name().to_owned(), pool_status::damage(engine));
    let found = |volume: Arc<Volume>| {
        let info = volume.info();
        Found {
            name: format!("{pool}/{}", info.name),
            kind: if volume.object_layer().is_some() { "filesystem" } else { "volume" },
            size_bytes: info.size_bytes,
            used_bytes: info.used_bytes,
        }
    };
    let volumes: Vec<Found> = engine.volumes().into_iter().map(found).collect();
    if json {
        return output::print(&output::json(&Listing { pool, volumes, damage })?);
    }
    let style = Style::new(false);
    let row = |found: &Found| {
        let size = match found.kind {
            "volume" => style.size(found.size_bytes),
            _ => "-".to_owned(),
        };
        [found.name.clone(), found.kind.to_owned(), size, style.size(found.used_bytes)]
    };
    let rows: Vec<[String; 4]> = volumes.iter().map(row).collect();
    output::print(&output::table(["NAME", "KIND", ">SIZE", ">USED"], &rows, style))?;
    output::print(&damage::list(&damage))
}

//! `cargo xtask pictures`: draws the pictures of README.md into docs/pictures.
//!
//! Not here: the table of crates in ARCHITECTURE.md (`cargo xtask tidy --draw`).
//!
//! Invariant: `architecture.svg` depends only on the sources; `demo.svg` records a run of the
//! program on this machine.

mod architecture;
mod demo;
mod svg;
mod terminal;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use weir_command::command;

/// Folder of the pictures, from the workspace root.
const FOLDER: &str = "docs/pictures";

/// Options of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Draw only the architecture; do not build and record the demo
    #[arg(long)]
    architecture: bool,
    /// Record this `weir` instead of a release build
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs `cargo xtask pictures`.
pub(crate) fn main(args: &Args) -> Result<()> {
    let folder = command::root().join(FOLDER);
    fs::create_dir_all(&folder).context(FOLDER)?;
    let save = |name: &str, picture: &str| {
        fs::write(folder.join(name), picture).with_context(|| format!("{FOLDER}/{name}"))?;
        println!("{FOLDER}/{name}: {} bytes", picture.len());
        anyhow::Ok(())
    };
    save("architecture.svg", &architecture::draw())?;
    if !args.architecture {
        save("demo.svg", &terminal::draw(&demo::record(args.binary.as_deref())?))?;
    }
    Ok(())
}

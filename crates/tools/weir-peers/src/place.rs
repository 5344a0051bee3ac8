//! Shared code of the benchmarks that print tables: folders, the program under test, and the output
//! of tables.
//!
//! Not here: measurements (layouts, services, iscsi).
//!
//! Invariant: a run starts with an empty folder and removes it at its end.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use weir_command::command;

use crate::{document, machine};

/// Folder, program and output of a benchmark.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// Write the tables between the markers of this file (created if absent).
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Folder for disks, sockets and samples; default target/bench.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Measure this program instead of building one.
    #[arg(long, value_name = "PROGRAM")]
    weir: Option<PathBuf>,
}

impl Place {
    /// Measures a program in an empty folder, and prints the tables and a description of the
    /// machine. `markers` are the document's begin and end markers.
    pub(crate) fn tables(
        &self,
        name: &str,
        markers: (&str, &str),
        measure: impl FnOnce(&Path, &Path) -> Result<String>,
    ) -> Result<()> {
        let program = match &self.weir {
            Some(program) => std::path::absolute(program)?,
            None => weir_program()?,
        };
        let dir = match &self.dir {
            Some(dir) => std::path::absolute(dir)?,
            None => command::root().join("target/bench"),
        };
        let data = dir.join(name);
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        fs::create_dir_all(&data).with_context(|| data.display().to_string())?;
        let tables = measure(&program, &data);
        let facts = machine::facts(&data, Some(&program))?;
        fs::remove_dir_all(&data)?;
        let text = format!("{}\n{}", tables?, document::facts_table(&facts));
        println!("{text}");
        match &self.out {
            Some(out) => document::write_between(out, markers, &text),
            None => Ok(()),
        }
    }
}

/// Builds the release binary and returns its path.
pub(crate) fn weir_program() -> Result<PathBuf> {
    command::cargo(&["build", "--release", "--package", "weir"])?;
    let line = ["metadata", "--no-deps", "--format-version", "1"];
    let json = command::output(command::command("cargo").args(line))?;
    let metadata: serde_json::Value = serde_json::from_str(&json)?;
    let target = metadata["target_directory"].as_str().context("cargo names no target folder")?;
    Ok(Path::new(target).join("release/weir"))
}

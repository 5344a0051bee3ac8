//! Code that the benchmarks share: folders, the program under test, waits for a server, and the
//! output of tables.
//!
//! `layouts`, `services`, `iscsi` and `files` perform the measurements.
//!
//! Invariant: a run starts with an empty folder, and removes the folder at its end.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use weir_command::command;

use crate::{document, machine};

/// Time limit for the first response of a server.
const START_MAX: Duration = Duration::from_secs(20);

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
    /// Returns the program to measure; builds one if the user named none.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        match &self.weir {
            Some(program) => Ok(std::path::absolute(program)?),
            None => command::weir_program(),
        }
    }

    /// Returns the words that name the program to another process of this benchmark: none if the
    /// user named it already. Builds the program if the user named none.
    pub(crate) fn program_words(&self) -> Result<Vec<OsString>> {
        match &self.weir {
            Some(_) => Ok(Vec::new()),
            None => Ok(vec!["--weir".into(), command::weir_program()?.into()]),
        }
    }

    /// Returns the folder for disks, sockets and samples.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        match &self.dir {
            Some(dir) => Ok(std::path::absolute(dir)?),
            None => Ok(command::root().join("target/bench")),
        }
    }

    /// Prints the tables, and writes them into the document if the user named one.
    pub(crate) fn print(&self, text: &str, markers: (&str, &str)) -> Result<()> {
        println!("{text}");
        match &self.out {
            Some(out) => document::write_between(out, markers, text),
            None => Ok(()),
        }
    }

    /// Measures a program in an empty folder, and prints the tables with a description of the
    /// machine. `markers` are the begin and end markers in the document.
    pub(crate) fn tables(
        &self,
        name: &str,
        markers: (&str, &str),
        measure: impl FnOnce(&Path, &Path) -> Result<String>,
    ) -> Result<()> {
        let program = self.program()?;
        let data = self.folder()?.join(name);
        empty(&data)?;
        let tables = measure(&program, &data);
        let facts = machine::facts(&data, Some(&program), machine::block_peers())?;
        fs::remove_dir_all(&data)?;
        let text = format!("{}\n{}", tables?, document::facts_table(&facts));
        self.print(&text, markers)
    }
}

/// Creates an empty folder. If a killed run left files in the folder, removes these files first.
pub(crate) fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

/// Retries `try_once` until it succeeds or the time limit is reached. `who`: the server that it
/// waits for.
pub(crate) fn wait(who: &str, try_once: impl Fn() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while let Err(error) = try_once() {
        ensure!(start.elapsed() < START_MAX, "{who} does not answer: {error:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

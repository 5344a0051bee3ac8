//! `cargo xtask release`: the program as it ships, with its debug information in a file of its own.
//!
//! Debuggers, perf and the backtraces of a panic read `weir.debug` through the debug link in
//! `weir`, if both files are in one folder.
//!
//! Invariant: `weir` has its new content only when `weir.debug` is complete.

use std::fs;

use anyhow::{Context, Result};
use weir_command::command::{self, target};

const MIB: f64 = 1_048_576.0;

/// Builds `weir` and `weir.debug` in `target/release-files`.
pub(crate) fn main() -> Result<()> {
    let mut build = command::command("cargo");
    build.args(["build", "--release", "--package", "weir"]);
    command::run(&mut build)?;
    let built = target().join("release").join("weir");
    let folder = target().join("release-files");
    fs::create_dir_all(&folder)?;
    let (new, symbols) = (folder.join("weir.new"), folder.join("weir.debug"));
    let mut copy = command::command("objcopy");
    command::run(copy.arg("--only-keep-debug").arg(&built).arg(&symbols))?;
    let mut link = String::from("--add-gnu-debuglink=");
    link.push_str(symbols.to_str().context("the path of the target folder is not UTF-8")?);
    let mut strip = command::command("objcopy");
    command::run(strip.arg("--strip-debug").arg(link).arg(&built).arg(&new))?;
    let program = folder.join("weir");
    fs::rename(&new, &program)?;
    for file in [program, symbols] {
        let bytes = fs::metadata(&file)?.len();
        eprintln!("{:>6.1} MiB  {}", bytes as f64 / MIB, file.display());
    }
    Ok(())
}

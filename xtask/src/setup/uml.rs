//! Builds the library that User-Mode Linux needs on CPUs with AMX (`xtask/uml/xstate.c`).
//!
//! Not here: its use (bin/weir/tests/all/common/uml.rs, which loads it from this path).
//!
//! Invariant: setup builds it on every CPU, so that its test runs everywhere; only guests on CPUs
//! with AMX load it.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use weir_command::command;

/// Builds the library in cargo's target folder, from which the end-to-end tests load it.
pub(super) fn build() -> Result<()> {
    let target = command::target();
    std::fs::create_dir_all(&target)?;
    library(&target.join("uml-xstate.so"))
}

fn library(out: &Path) -> Result<()> {
    compile("xstate.c", &["-shared", "-fPIC"], out)
}

fn compile(source: &str, options: &[&str], out: &Path) -> Result<()> {
    let source = command::root().join("xtask/uml").join(source);
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Werror"]).args(options).arg("-o").arg(out).arg(source);
    command::run(&mut compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: Linux refuses to set a part of the XSAVE area (EFAULT). User-Mode Linux 6.1
    /// therefore panicked at its first process on CPUs with an XSAVE area larger than its own.
    #[test]
    fn only_the_library_can_set_a_part_of_the_xsave_area() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (library_at, check) = (folder.path().join("xstate.so"), folder.path().join("check"));
        library(&library_at).expect("the library builds");
        compile("xstate_check.c", &[], &check).expect("the check builds");
        let plain = Command::new(&check).output().expect("the check starts");
        assert_eq!(plain.status.code(), Some(1), "{plain:?}");
        let with = Command::new(&check).env("LD_PRELOAD", &library_at).output();
        let with = with.expect("the check starts");
        assert_eq!(with.status.code(), Some(0), "{with:?}");
    }
}

//! Builds the library with which User-Mode Linux runs on CPUs with AMX (`xtask/uml/xstate.c`).
//!
//! Not here: the tests that load the library (bin/weir/tests/all/common/uml.rs).
//!
//! Invariant: setup builds the library on every CPU, so that its test runs on every machine; only
//! guests on CPUs with AMX load it.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use weir_command::command;

/// Builds the library in cargo's target folder, where the end-to-end tests find it.
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

    /// Regression: Linux refuses to set only a part of the XSAVE area (EFAULT). So User-Mode Linux
    /// 6.1 panicked at its first process on CPUs with an XSAVE area larger than it supports.
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

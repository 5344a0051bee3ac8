//! The peer passthrough_ll: libfuse's example of a FUSE server, which passes each request to a
//! directory of another filesystem.
//!
//! Invariant: the program is compiled in the folder of the benchmark.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::StatFs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_command::command;
use weir_command::process::{Process, guarded};

use crate::mounted::Mounted;
use crate::place::wait;

/// Source of the program, in Debian's package libfuse3-dev.
pub(super) const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
/// Wanted limit of open files.
const OPENS_MAX: u64 = 1 << 20;
/// Number of open files that are no small files of a load, at most.
const OTHER_OPENS_MAX: u64 = 500;
/// Magic number of a FUSE mount (statfs(2)).
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// A mounted passthrough_ll.
pub(super) struct Passthrough {
    // Dropped first, so that no server is left when the directory is unmounted.
    process: Process,
    mounted: Mounted,
}

impl Passthrough {
    /// Compiles and mounts the program over an empty directory in `dir`.
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let program = dir.join("passthrough_ll");
        compile(&program)?;
        let source = dir.join("source");
        fs::create_dir_all(&source)?;
        let mounted = Mounted::at(dir.join("mount"))?;
        let mut options = format!("source={},", source.display());
        options.push_str("allow_other,default_permissions,cache=auto,xattr");
        let mut command = guarded(&program.display().to_string());
        command.args(["-f", "-o", &options]).arg(mounted.path());
        let process = Process::launch(command, &dir.join("log"))?;
        wait("passthrough_ll", || {
            let StatFs { f_type, .. } = rustix::fs::statfs(mounted.path())?;
            ensure!(f_type == FUSE_SUPER_MAGIC, "not mounted");
            Ok(())
        })?;
        Ok(Self { process, mounted })
    }

    pub(super) fn root(&self) -> &Path {
        self.mounted.path()
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }
}

/// Raises the limit of open files of this process and its children as far as the machine allows,
/// and returns the maximum number of files of a load: the program has each inode open that the
/// kernel knows.
pub(super) fn raise_files_max() -> u64 {
    let old = getrlimit(Resource::Nofile);
    let hard = old.maximum.unwrap_or(OPENS_MAX);
    for opens in [OPENS_MAX.max(hard), hard] {
        let new = Rlimit { current: Some(opens), maximum: Some(opens) };
        if setrlimit(Resource::Nofile, new).is_ok() {
            return opens.saturating_sub(OTHER_OPENS_MAX);
        }
    }
    old.current.unwrap_or(hard).saturating_sub(OTHER_OPENS_MAX)
}

fn compile(program: &Path) -> Result<()> {
    let flags = command::output(Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(program).arg(SOURCE).args(flags.split_whitespace());
    command::output(&mut compiler).map(drop).context("passthrough_ll")
}

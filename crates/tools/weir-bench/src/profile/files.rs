//! Operations on files that a user requests without a profile: one row for each operation.
//!
//! Invariant: the rows are written as the text of a profile, so that the same code checks and
//! expands them as a profile of a user.

use std::fmt::Write as _;

use super::{Options, ProfileError, parse};
use crate::spec::{MetadataSpec, OpKind, RunSpec};
use crate::target::WITH_FILES;

/// Operations on files, with their parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOps {
    /// Operations in the order of the rows: create, extract, stat, remove, rename, readdir or
    /// readdirplus.
    pub ops: Vec<OpKind>,
    /// Number of files of each worker.
    pub files: u32,
    /// Size of each file in bytes.
    pub file_bytes: u32,
    /// True if the files of all workers are in one directory.
    pub shared: bool,
    /// Number of workers, each with one operation in flight.
    pub workers: u32,
}

impl FileOps {
    /// Maximum number of files of each worker.
    pub const FILES_MAX: u32 = MetadataSpec::FILES_MAX;
    /// Maximum size of each file in bytes.
    pub const FILE_BYTES_MAX: u32 = MetadataSpec::FILE_BYTES_MAX;

    /// Names of the operations.
    pub fn names() -> Vec<&'static str> {
        let of_files = OpKind::ALL.into_iter().filter(|op| op.is_of_files());
        of_files.map(OpKind::name).collect()
    }

    /// Operation of this name; `None` if there is no operation on files of this name.
    pub fn op(name: &str) -> Option<OpKind> {
        OpKind::ALL.into_iter().find(|op| op.is_of_files() && op.name() == name)
    }
}

/// Makes a run with one row for each operation.
///
/// # Errors
/// The target has no files, or a parameter is invalid.
pub fn of_files(asked: &FileOps, options: &Options) -> Result<RunSpec, ProfileError> {
    if let Some(used) = options.protocol.filter(|used| !used.has_files()) {
        let (kind, with_files) = (used.name(), WITH_FILES);
        return Err(ProfileError::NoFiles { kind, with_files });
    }
    parse("--op", &text(asked), options)
}

/// Text of the profile.
fn text(asked: &FileOps) -> String {
    let FileOps { ops, files, file_bytes, shared, workers } = asked;
    let directory = if *shared { "shared" } else { "own" };
    let mut text = r#"schema = 1
name = "files"
title = "Operations on files"
assume = ["workers have one operation in flight each, and use their files in ascending order"]
dataset = { files = 1, file_size = "1MiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 42 }
durability = { writes = "none" }
[phases]
fill = { block = "64KiB" }
measure = { warmup = "1s", duration = "10s", runs = 3 }
"#
    .to_owned();
    for op in ops {
        let name = op.name();
        let _infallible = write!(
            text,
            "[[test]]\nname = \"{name}\"\nop = \"{name}\"\nfiles = {files}\nfile_size = \
             \"{file_bytes}B\"\ndirectory = \"{directory}\"\nthreads = [{workers}]\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Protocol;
    use crate::spec::LoadSpec;

    #[test]
    fn each_operation_is_a_row() {
        let ops: Vec<OpKind> =
            FileOps::names().into_iter().map(|name| FileOps::op(name).unwrap()).collect();
        let asked =
            FileOps { ops: ops.clone(), files: 300, file_bytes: 4096, shared: true, workers: 3 };
        let on = |protocol| Options { protocol: Some(protocol), ..Options::default() };
        let spec = of_files(&asked, &on(Protocol::Dir)).unwrap();
        let rows: Vec<OpKind> = spec.cells.iter().filter_map(|cell| cell.streams[0].op).collect();
        assert_eq!(rows, ops);
        let of = MetadataSpec::Files { files: 300, file_bytes: 4096, shared: true };
        assert_eq!(spec.cells[0].streams[0].metadata, Some(of));
        assert_eq!(spec.cells[0].load, LoadSpec::Closed { workers: 3, depth: 1 });
        let error = of_files(&asked, &on(Protocol::Nbd)).unwrap_err().to_string();
        assert!(error.contains("nbd") && error.contains("dir:PATH"), "{error}");
        assert_eq!((FileOps::op("read"), FileOps::op("metadata")), (None, None));
    }

    #[test]
    fn operation_that_is_named_twice_is_refused() {
        let ops = vec![OpKind::Stat, OpKind::Stat];
        let asked = FileOps { ops, files: 300, file_bytes: 0, shared: false, workers: 1 };
        let error = of_files(&asked, &Options::default()).unwrap_err().to_string();
        assert!(error.contains("two tests are called \"stat\""), "{error}");
    }
}

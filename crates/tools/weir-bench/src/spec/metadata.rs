//! Metadata operations of a stream: a percentage of its operations, or all of them.
//!
//! `load` chooses the operations; `target` executes them.
//!
//! Invariant: a stream that has no [`MetadataSpec`] executes no metadata operation.

use serde::{Deserialize, Serialize};

/// Metadata operations of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum MetadataSpec {
    /// A percentage of the operations of a stream of reads and writes. They use the files of the
    /// dataset, and small files that only this stream creates and removes.
    Mix {
        /// Percentage of the stream's operations that are metadata operations, above 0 and up to
        /// 100.
        pct: f64,
        /// Kinds of these operations, with their weights.
        shares: Vec<MetadataShare>,
    },
    /// Every operation of the stream is its `op`: create, extract, stat, remove, rename, readdir or
    /// readdirplus. Each worker has its own files, which exist only during a run of the cell.
    Files {
        /// Number of files of each worker.
        files: u32,
        /// Size of each file in bytes.
        file_bytes: u32,
        /// True if the files of all workers are in one directory. Otherwise each worker has its own
        /// directory.
        shared: bool,
    },
}

/// Weight of one kind of metadata operation in a [`MetadataSpec::Mix`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetadataShare {
    /// Kind of the operation.
    pub op: MetadataKind,
    /// Weight of this kind among the kinds of the stream.
    pub weight: f64,
}

/// Kind of a metadata operation in a mix: an NFSv3 procedure (RFC 1813, section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetadataKind {
    /// GETATTR: returns the attributes of an open file. `fstat` on a directory of this machine.
    Getattr,
    /// LOOKUP: finds a file by its name. `fstatat` on a directory of this machine.
    Lookup,
    /// ACCESS: checks the permissions of the caller. `faccessat` on a directory of this machine.
    Access,
    /// SETATTR: sets the time of the last change. `utimensat` on a directory of this machine.
    Setattr,
    /// READDIR: lists the names in the directory of the dataset.
    Readdir,
    /// READDIRPLUS: lists the names in the directory of the dataset, with the attributes of the
    /// files.
    Readdirplus,
    /// FSSTAT: returns the used and the free space. `fstatvfs` on a directory of this machine.
    Fsstat,
    /// CREATE: creates an empty file.
    Create,
    /// REMOVE: removes a file that this stream created.
    Remove,
}

impl MetadataKind {
    /// All kinds, in numeric order.
    pub const ALL: [Self; 9] = [
        Self::Getattr,
        Self::Lookup,
        Self::Access,
        Self::Setattr,
        Self::Readdir,
        Self::Readdirplus,
        Self::Fsstat,
        Self::Create,
        Self::Remove,
    ];

    /// Name of the kind in profiles and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Getattr => "getattr",
            Self::Lookup => "lookup",
            Self::Access => "access",
            Self::Setattr => "setattr",
            Self::Readdir => "readdir",
            Self::Readdirplus => "readdirplus",
            Self::Fsstat => "fsstat",
            Self::Create => "create",
            Self::Remove => "remove",
        }
    }

    /// True if an operation of this kind adds a file to a directory or removes one.
    pub fn changes_directory(self) -> bool {
        matches!(self, Self::Create | Self::Remove)
    }
}

impl MetadataSpec {
    /// Maximum number of files of each worker; the state of each file takes one byte.
    pub const FILES_MAX: u32 = 10_000_000;
    /// Maximum size of a file in bytes; each operation in flight holds a buffer of this size.
    pub const FILE_BYTES_MAX: u32 = 16 << 20;

    /// Percentage of the stream's operations that are metadata operations of a mix; 0 if the stream
    /// has no mix.
    pub fn mix_pct(spec: Option<&Self>) -> f64 {
        match spec {
            Some(Self::Mix { pct, .. }) => *pct,
            _ => 0.0,
        }
    }
}

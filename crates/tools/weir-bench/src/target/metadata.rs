//! Metadata operations on the files of a target, and the names of the files that a run creates.
//!
//! `load` chooses the operations. A target that has files implements `lane::FileTree`, and its
//! lanes implement `Lane::submit_metadata`.
//!
//! Invariants: a run creates and removes only files and directories whose names are in this file;
//! [`Directory::parse`] and [`FileName::parse`] accept exactly these names.

use std::fmt;

use crate::spec::MetadataKind;

/// Access mode of the files that a run creates.
pub(super) const FILE_MODE: u32 = 0o644;
/// Time of change of extracted files, in seconds since 1970: a time in the past, as in an archive.
pub(super) const EXTRACTED_AT_S: u32 = 1_000_000_000;

/// Start of the names of the directories that a run creates, one for each client.
const ROOT: &str = "weir-bench-files-";

/// A metadata operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataOp {
    /// The operation, with the file or directory that it uses.
    pub call: MetadataCall,
    /// True if a change must be on stable media when it completes. A protocol that requires this of
    /// every change (RFC 1813, section 4.8) ignores it.
    pub durable: bool,
}

/// Kind of a metadata operation, with the file or directory that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataCall {
    /// Returns the attributes of an open file of the dataset. `file` is its index.
    Getattr {
        /// Index of the file in the dataset.
        file: u32,
    },
    /// Finds a file of the dataset by its name.
    Lookup {
        /// Index of the file in the dataset.
        file: u32,
    },
    /// Checks whether the caller may read and write a file of the dataset.
    Access {
        /// Index of the file in the dataset.
        file: u32,
    },
    /// Sets the time of the last change of a file of the dataset to the present.
    Setattr {
        /// Index of the file in the dataset.
        file: u32,
    },
    /// Lists the names in the directory of the dataset.
    Readdir,
    /// Lists the names in the directory of the dataset, with the attributes of the files.
    Readdirplus,
    /// Returns the used and the free space.
    Fsstat,
    /// Creates a file, which must not exist, and writes `bytes` bytes from the start of the slot's
    /// buffer to it.
    Create {
        /// The file.
        file: FileName,
        /// Size of the file in bytes, at most the size of the buffer.
        bytes: u32,
    },
    /// Creates a file as [`Self::Create`], and sets its mode and its time of change.
    Extract {
        /// The file.
        file: FileName,
        /// Size of the file in bytes, at most the size of the buffer.
        bytes: u32,
    },
    /// Returns the attributes of a file, which is found by its name.
    Stat {
        /// The file.
        file: FileName,
    },
    /// Removes a file.
    Remove {
        /// The file.
        file: FileName,
    },
    /// Renames a file within its directory.
    Rename {
        /// Present name.
        from: FileName,
        /// Name after the operation.
        to: FileName,
    },
    /// Lists all names in a directory. Fails if their number is not `files`.
    List {
        /// The directory.
        directory: Directory,
        /// Number of files in the directory.
        files: u32,
    },
    /// Lists all names in a directory, with the attributes of the files. Fails if their number is
    /// not `files`, or if the attributes of a file are missing.
    ListPlus {
        /// The directory.
        directory: Directory,
        /// Number of files in the directory.
        files: u32,
    },
    /// Waits until all earlier changes of files and directories are on stable media.
    Sync,
}

impl MetadataCall {
    /// Kind of the call in a mix; `None` if the call never is a part of a mix.
    pub fn kind(&self) -> Option<MetadataKind> {
        Some(match self {
            Self::Getattr { .. } => MetadataKind::Getattr,
            Self::Lookup { .. } => MetadataKind::Lookup,
            Self::Access { .. } => MetadataKind::Access,
            Self::Setattr { .. } => MetadataKind::Setattr,
            Self::Readdir => MetadataKind::Readdir,
            Self::Readdirplus => MetadataKind::Readdirplus,
            Self::Fsstat => MetadataKind::Fsstat,
            Self::Create { .. } => MetadataKind::Create,
            Self::Remove { .. } => MetadataKind::Remove,
            Self::Extract { .. }
            | Self::Stat { .. }
            | Self::Rename { .. }
            | Self::List { .. }
            | Self::ListPlus { .. }
            | Self::Sync => return None,
        })
    }

    /// True if the call changes a file or a directory.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Self::Setattr { .. }
                | Self::Create { .. }
                | Self::Extract { .. }
                | Self::Remove { .. }
                | Self::Rename { .. }
        )
    }

    /// File that the call creates, with its size in bytes; `None` if the call creates no file.
    pub fn created(&self) -> Option<(FileName, u32)> {
        match self {
            Self::Create { file, bytes } | Self::Extract { file, bytes } => Some((*file, *bytes)),
            _ => None,
        }
    }
}

/// Directory that a run creates. Its path is relative to the root of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Directory {
    /// Number of the client, among the clients that generate one load together.
    pub client: u32,
    /// Index of the stream in the cell.
    pub stream: u32,
    /// Number of the worker whose files the directory contains; `None` for the files of all
    /// workers.
    pub worker: Option<u32>,
}

impl Directory {
    /// Path of the directory that contains all directories of a client.
    pub fn root(client: u32) -> String {
        format!("{ROOT}{client:03}")
    }

    /// Directory of a client with the given name, which is the last component of its path; `None`
    /// if this program creates no such directory.
    pub fn parse(client: u32, name: &str) -> Option<Self> {
        let (stream, worker) = name.strip_prefix('s')?.split_once('-')?;
        let stream = stream.parse().ok()?;
        let worker = match worker {
            "shared" => None,
            own => Some(own.strip_prefix('w')?.parse().ok()?),
        };
        let parsed = Self { client, stream, worker };
        (parsed.name() == name).then_some(parsed)
    }

    fn name(self) -> String {
        match self.worker {
            Some(worker) => format!("s{}-w{worker:04}", self.stream),
            None => format!("s{}-shared", self.stream),
        }
    }
}

impl fmt::Display for Directory {
    /// Formats the path of the directory.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, stream, worker } = self;
        write!(out, "{ROOT}{client:03}/s{stream}-")?;
        match worker {
            Some(worker) => write!(out, "w{worker:04}"),
            None => out.write_str("shared"),
        }
    }
}

/// Name of a file that a run creates, in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName {
    /// Directory of the file.
    pub directory: Directory,
    /// Number of the worker that uses the file.
    pub worker: u32,
    /// Number of the file among the files of its worker.
    pub number: u32,
    /// True for the second name of the file, which an odd number of renames gives it.
    pub renamed: bool,
}

impl FileName {
    /// File with the given name, which is the last component of its path; `None` if this program
    /// creates no such file.
    pub fn parse(directory: Directory, name: &str) -> Option<Self> {
        let (renamed, rest) = match name.split_at_checked(1)? {
            ("f", rest) => (false, rest),
            ("r", rest) => (true, rest),
            _ => return None,
        };
        let (worker, number) = rest.split_once('-')?;
        let (worker, number) = (worker.parse().ok()?, number.parse().ok()?);
        let parsed = Self { directory, worker, number, renamed };
        (parsed.name() == name).then_some(parsed)
    }

    fn name(self) -> String {
        let kind = if self.renamed { 'r' } else { 'f' };
        format!("{kind}{:04}-{:08}", self.worker, self.number)
    }
}

impl fmt::Display for FileName {
    /// Formats the path of the file.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, worker, number, renamed } = self;
        let kind = if *renamed { 'r' } else { 'f' };
        write!(out, "{directory}/{kind}{worker:04}-{number:08}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_program_are_recognized_and_no_others() {
        let own = Directory { client: 2, stream: 1, worker: Some(12) };
        let shared = Directory { worker: None, ..own };
        for directory in [own, shared] {
            let path = directory.to_string();
            let (root, name) = path.split_once('/').unwrap();
            assert_eq!(root, Directory::root(2));
            assert_eq!(Directory::parse(2, name), Some(directory));
            for renamed in [false, true] {
                let file = FileName { directory, worker: 7, number: 123_456_789, renamed };
                let path = file.to_string();
                let name = path.rsplit('/').next().unwrap();
                assert_eq!(FileName::parse(directory, name), Some(file));
            }
        }
        for name in ["", "f", "data", "s1", "s1-w1", "s01-w0001", "s1-w0001x", "s1-sharedx"] {
            assert_eq!(Directory::parse(0, name), None, "{name}");
        }
        for name in ["", "é", "f0001", "f1-1", "x0001-00000001", "f0001-00000001.txt"] {
            assert_eq!(FileName::parse(own, name), None, "{name}");
        }
    }
}

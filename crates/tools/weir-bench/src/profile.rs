//! Profiles: descriptions of measurements. A profile is a TOML file of the user, or built into the
//! program.
//!
//! `run` executes a profile; `reference` has the published rows for comparison.
//!
//! `read` parses a profile strictly: an unknown key is an error with its line and the most similar
//! valid key. `check` refuses impossible values. `expand` turns a profile into a [`RunSpec`] for a
//! scale, a variant and the protocol of the target. `fio` and `icf` import the files of other
//! generators, and `lint` reports the traps of a run. A user's file runs at full length and size
//! unless the user gives a scale; a built-in profile runs at standard scale by default.
//!
//! Invariant: built-in profiles are read, checked and expanded by the same code as users' files.

mod builtin;
mod check;
mod error;
mod expand;
mod files;
mod fio;
mod format;
mod icf;
mod imported;
mod lint;
mod quantity;
mod read;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;

use crate::spec::{CellSpec, DatasetSpec, OpKind, RunSpec, Scale};

pub use error::ProfileError;
use error::{Source, refuse};
pub use files::{FileOps, of_files};
pub use fio::{FIO_TARGET, export_fio, fio_path, import_fio};
pub use icf::import_icf;
pub use imported::{Imported, Skipped};
pub use lint::{Machine, Trap, lint};

/// Smallest I/O size of any target in bytes.
const SECTOR_BYTES: u64 = 512;
/// Size of stamped blocks in bytes, if all I/O sizes are multiples of it; otherwise stamped blocks
/// have [`SECTOR_BYTES`].
const STAMPED_BYTES: u64 = 4096;
/// Maximum size of a profile file in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Protocol or interface of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// A regular file.
    File,
    /// A directory of files.
    Dir,
    /// A block device.
    Block,
    /// An NBD export.
    Nbd,
    /// No storage: the run measures the generator itself.
    Null,
    /// NFS version 3.
    Nfs3,
    /// iSCSI.
    Iscsi,
    /// SMB.
    Smb,
    /// S3.
    S3,
}

impl Protocol {
    /// Name of the protocol in reports and in profiles.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Dir => "dir",
            Self::Block => "block",
            Self::Nbd => "nbd",
            Self::Null => "null",
            Self::Nfs3 => "nfs3",
            Self::Iscsi => "iscsi",
            Self::Smb => "smb",
            Self::S3 => "s3",
        }
    }

    /// True if a target of this protocol has files, and therefore metadata operations.
    pub fn has_files(self) -> bool {
        matches!(self, Self::Dir | Self::Nfs3)
    }
}

/// Parameters for the expansion of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Scale of the run; `None` for the default: standard scale for a built-in profile, full size
    /// for a user's file.
    pub scale: Option<Scale>,
    /// Name of a variant of the profile; `None` for the profile without a variant.
    pub variant: Option<String>,
    /// Protocol of the target; `None` if the target is not known yet.
    pub protocol: Option<Protocol>,
    /// Seed of all random numbers; `None` for the seed in the profile.
    pub seed: Option<u64>,
    /// Smallest I/O size of the target; smaller block sizes are raised to it. `None` if the target
    /// is not known yet.
    pub block_min_bytes: Option<u32>,
    /// Size of the target, from which imported files can derive their sizes; `None` if it is
    /// unknown.
    pub target_bytes: Option<u64>,
    /// Size of the dataset; `None` for the size in the profile.
    pub size_bytes: Option<u64>,
}

/// Names of the built-in profiles.
pub fn names() -> Vec<&'static str> {
    builtin::PROFILES.iter().map(|(name, _)| *name).collect()
}

/// Full name and text of a built-in profile. The profile is found by its full name, or by the part
/// of its name after the document number (`exchange` for `s004-exchange`).
pub fn known(name: &str) -> Option<(&'static str, &'static str)> {
    let short = |known: &str| known.split_once('-').is_some_and(|(_, short)| short == name);
    let exact = builtin::PROFILES.iter().find(|(known, _)| *known == name);
    exact.or_else(|| builtin::PROFILES.iter().find(|(known, _)| short(known))).copied()
}

/// Names of the variants of a profile. [`load`] describes `name_or_path`.
pub fn variants(name_or_path: &str) -> Result<Vec<String>, ProfileError> {
    let (file, text) = open(name_or_path)?;
    let profile = read::read(Source { file: &file, text: &text }, None)?;
    Ok(profile.variant.into_iter().map(|variant| variant.name).collect())
}

/// Loads a built-in profile by name, or a file by path. A name that contains a `/` or a `.` is a
/// path. Files of fio and Iometer are imported; [`import`] also returns the changes that the import
/// made.
pub fn load(name_or_path: &str, options: &Options) -> Result<RunSpec, ProfileError> {
    if let Some(imported) = import(name_or_path, options)? {
        return Ok(imported.spec);
    }
    let (file, text) = open(name_or_path)?;
    let mut options = options.clone();
    if known(name_or_path).is_some() {
        options.scale = options.scale.or(Some(Scale::Standard));
    }
    parse(&file, &text, &options)
}

type Import = fn(&str, &str, &Options) -> Result<Imported, ProfileError>;

/// Imports a job file of fio (`.fio`) or a configuration of Iometer (`.icf`); returns `None` for
/// any other file.
pub fn import(name_or_path: &str, options: &Options) -> Result<Option<Imported>, ProfileError> {
    let extension = Path::new(name_or_path).extension().and_then(|it| it.to_str());
    let extension = extension.map(str::to_ascii_lowercase);
    let (kind, import): (&str, Import) = match extension.as_deref() {
        Some("fio") => ("a job file of fio", import_fio),
        Some("icf") => ("a configuration of Iometer", import_icf),
        _ => return Ok(None),
    };
    let (file, text) = open(name_or_path)?;
    if let Some(name) = options.variant.clone() {
        return Err(ProfileError::Variant { file, name, known: format!("{kind} has none") });
    }
    import(&file, &text, options).map(Some)
}

/// Parses and expands the text of a profile. Errors refer to the text as `file`.
pub fn parse(file: &str, text: &str, options: &Options) -> Result<RunSpec, ProfileError> {
    let source = Source { file, text };
    let profile = read::read(source, options.variant.as_deref())?;
    check::check(source, &profile)?;
    expand::expand(source, &profile, options)
}

/// Describes the first operation for which the dataset is too small; `None` if the dataset is large
/// enough. Each client uses its own range of the dataset. Trims, WRITE SAME and copies leave blocks
/// that cannot be verified, so these operations use only the last quarter of the client's range.
fn too_small(cells: &[CellSpec], dataset: &DatasetSpec) -> Option<String> {
    for cell in cells {
        let part = dataset.total_bytes() / u64::from(cell.clients.max(1));
        for stream in &cell.streams {
            let largest = stream.blocks.iter().map(|block| u64::from(block.bytes)).max();
            let bytes = largest.unwrap_or(0);
            let (times, where_to) = match stream.op {
                Some(OpKind::Trim | OpKind::WriteSame | OpKind::Copy) => {
                    (8, "the last quarter of ")
                }
                Some(OpKind::CompareAndWrite) => (2, "the first three quarters of "),
                _ if cell.clients > 1 => (2, ""),
                _ => (1, ""),
            };
            if part < bytes * times {
                let name = &cell.name;
                return Some(format!(
                    "{name:?}: blocks of {bytes} bytes in {where_to}{part} bytes"
                ));
            }
        }
    }
    None
}

impl Options {
    /// Scale of a user's file: full size, unless the user has given a scale.
    fn scale_of_file(&self) -> Scale {
        self.scale.unwrap_or(Scale::Seed)
    }
}

fn open(name_or_path: &str) -> Result<(String, String), ProfileError> {
    if let Some((name, text)) = known(name_or_path) {
        return Ok((format!("{name}.toml"), text.to_owned()));
    }
    if !name_or_path.contains(['/', '.']) {
        let known = names().join(", ");
        return Err(ProfileError::Unknown { name: name_or_path.to_owned(), known });
    }
    read_text(Path::new(name_or_path)).map(|text| (name_or_path.to_owned(), text))
}

/// Reads a text file. If the file is not UTF-8, the error contains the line of the first bad byte.
fn read_text(path: &Path) -> Result<String, ProfileError> {
    let cannot = |source| ProfileError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    // Limit the length of the read, because the path may name a device or a pipe that never ends.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    let name = || path.display().to_string();
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let what = format!("the file is larger than {} MiB", FILE_BYTES_MAX >> 20);
        return Err(refuse(&name(), 1, what, "name a profile, not data"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let (good, bad) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let line = good.split(|byte| *byte == b'\n').count();
        let what = format!("byte 0x{:02x} is not valid UTF-8", bad.first().copied().unwrap_or(0));
        refuse(&name(), line, what, "save the file as UTF-8")
    })?;
    // Windows editors put a byte order mark at the start of a text file.
    Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
}

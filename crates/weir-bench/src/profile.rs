//! Profiles: what is to be measured, as files that people write, and those that come along.
//!
//! Not here: doing it (run), published rows to compare with (reference).
//!
//! A profile is TOML. It is read strictly (`read`: an unknown key is an error with its line and the
//! key that was probably meant), checked (`check`: what cannot be is refused), and expanded
//! (`expand`) into a [`RunSpec`] for a scale, a variant and the target's protocol.
//!
//! `fio` and `icf` import what other generators are told, `lint` names the traps of a run.
//!
//! Invariant: built-in profiles go through the same doors as files.

mod builtin;
mod check;
mod error;
mod expand;
mod fio;
mod format;
mod icf;
mod lint;
mod quantity;
mod read;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::spec::{RunSpec, Scale};

pub use error::ProfileError;
use error::Source;
pub use fio::{FIO_TARGET, Imported, export_fio, import_fio};
pub use icf::import_icf;
pub use lint::{Machine, Trap, lint};

/// Smallest unit of any target.
const SECTOR_BYTES: u64 = 512;

/// How a target is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// A file.
    File,
    /// A folder of files.
    Dir,
    /// A block device.
    Block,
    /// An NBD export.
    Nbd,
    /// Nothing: measures the generator.
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
    /// As it is printed, and as profiles write it.
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
}

/// What a profile is expanded for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How much of it is done.
    pub scale: Scale,
    /// Named way to differ; `None`: the profile itself.
    pub variant: Option<String>,
    /// Of the target; `None`: not known yet.
    pub protocol: Option<Protocol>,
    /// Of all random numbers, instead of the profile's.
    pub seed: Option<u64>,
    /// Smallest unit of the target, to which smaller blocks are raised; `None`: not known yet.
    pub block_min_bytes: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        let (variant, protocol, seed, block_min_bytes) = (None, None, None, None);
        Self { scale: Scale::Standard, variant, protocol, seed, block_min_bytes }
    }
}

/// Names of the profiles that come along.
pub fn names() -> Vec<&'static str> {
    builtin::PROFILES.iter().map(|(name, _)| *name).collect()
}

/// Name and text of a profile that comes along: by its name, or by what stands behind the number
/// of its document (`exchange` for `s004-exchange`).
pub fn known(name: &str) -> Option<(&'static str, &'static str)> {
    let short = |known: &str| known.split_once('-').is_some_and(|(_, short)| short == name);
    let exact = builtin::PROFILES.iter().find(|(known, _)| *known == name);
    exact.or_else(|| builtin::PROFILES.iter().find(|(known, _)| short(known))).copied()
}

/// Variants of a profile: the `name_or_path` that [`load`] takes.
pub fn variants(name_or_path: &str) -> Result<Vec<String>, ProfileError> {
    let (file, text) = open(name_or_path)?;
    let profile = read::read(Source { file: &file, text: &text }, None)?;
    Ok(profile.variant.into_iter().map(|variant| variant.name).collect())
}

/// Reads a profile that comes along, or a file: whatever has a `/` or a `.` in it is a file. A
/// `.fio` file is imported; [`import_fio`] tells its traps too.
pub fn load(name_or_path: &str, options: &Options) -> Result<RunSpec, ProfileError> {
    let (file, text) = open(name_or_path)?;
    if Path::new(&file).extension().is_some_and(|extension| extension == "fio") {
        return match options.variant.clone() {
            Some(name) => {
                let known = "a job file of fio has none".to_owned();
                Err(ProfileError::Variant { file, name, known })
            }
            None => Ok(import_fio(&file, &text, options)?.spec),
        };
    }
    parse(&file, &text, options)
}

/// Reads the text of a profile; `file` is its name in errors.
pub fn parse(file: &str, text: &str, options: &Options) -> Result<RunSpec, ProfileError> {
    let source = Source { file, text };
    let profile = read::read(source, options.variant.as_deref())?;
    check::check(source, &profile)?;
    expand::expand(source, &profile, options)
}

fn open(name_or_path: &str) -> Result<(String, String), ProfileError> {
    if let Some((name, text)) = known(name_or_path) {
        return Ok((format!("{name}.toml"), text.to_owned()));
    }
    if !name_or_path.contains(['/', '.']) {
        let known = names().join(", ");
        return Err(ProfileError::Unknown { name: name_or_path.to_owned(), known });
    }
    let path = Path::new(name_or_path);
    match fs::read_to_string(path) {
        Ok(text) => Ok((name_or_path.to_owned(), text)),
        Err(source) => Err(ProfileError::Read { path: path.to_owned(), source }),
    }
}

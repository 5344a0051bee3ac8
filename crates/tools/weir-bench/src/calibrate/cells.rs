//! Loads that fio and Weir both run, and the targets of these loads.
//!
//! `fio` and `ours` run the loads.
//!
//! Invariant: on each target, the reading loads run before the writing loads.

use std::path::PathBuf;

use super::{CalibrateError, FILE, Options};
use crate::target::Address;

/// Content that both programs write: different in each write, and incompressible.
pub(super) const CONTENT: &str = "fio: new random bytes for every write (refill_buffers); weir: a \
                                  function of seed, address and generation, with a stamp that \
                                  allows the verification of every block; neither is compressible";

/// Kind of target on which the calibration runs a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Null target: the measured time is the time of the generator itself.
    Null,
    File,
    Nbd,
}

impl Place {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::File => "file",
            Self::Nbd => "nbd",
        }
    }
}

/// Load of one worker whose operations are all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) is_read: bool,
    pub(super) is_random: bool,
    pub(super) block_bytes: u32,
    pub(super) depth: u32,
}

impl Cell {
    const fn random(is_read: bool, depth: u32) -> Self {
        Self { is_read, is_random: true, block_bytes: 4096, depth }
    }

    pub(super) fn name(&self) -> String {
        let kib = self.block_bytes / 1024;
        let access = if self.is_random { "random" } else { "sequential" };
        let kind = if self.is_read { "read" } else { "write" };
        format!("{kib} KiB {access} {kind}, {} in flight", self.depth)
    }
}

const ON_STORAGE: [Cell; 4] = [
    Cell::random(true, 1),
    Cell::random(true, 32),
    Cell { is_read: true, is_random: false, block_bytes: 128 << 10, depth: 8 },
    Cell::random(false, 32),
];
const ON_NULL: [Cell; 2] = [Cell::random(true, 32), Cell::random(false, 32)];

/// Loads that run on this kind of target.
pub(super) fn of(place: Place) -> &'static [Cell] {
    match place {
        Place::Null => &ON_NULL,
        Place::File | Place::Nbd => &ON_STORAGE,
    }
}

/// Returns the null target, and the file and NBD targets that the options name.
pub(super) fn places(options: &Options) -> Result<Vec<(Place, Address)>, CalibrateError> {
    let mut places = vec![(Place::Null, Address::Null { bytes: None })];
    if let Some(directory) = &options.directory {
        places.push((Place::File, Address::File(directory.join(FILE))));
    }
    if let Some(uri) = &options.nbd {
        let address = Address::parse(uri)?;
        if uri.chars().any(char::is_control) || !matches!(address, Address::Nbd(_)) {
            let (text, why) = (uri.clone(), "not the URI of an NBD export".to_owned());
            return Err(crate::target::TargetError::Address { text, why }.into());
        }
        places.push((Place::Nbd, address));
    }
    Ok(places)
}

/// Test file of the calibration; deleted on drop.
pub(super) struct Made(Option<PathBuf>);

impl Made {
    pub(super) fn at(place: Place, address: &Address) -> Self {
        match address {
            Address::File(path) if place == Place::File => Self(Some(path.clone())),
            _ => Self(None),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Ignore the error: the file may not exist yet.
            drop(std::fs::remove_file(path));
        }
    }
}

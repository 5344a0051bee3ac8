//! Parses names of volumes and snapshots, and formats identities.
//!
//! The engine checks whether an object with the name exists.
//!
//! Invariant: no function of this module reads a pool.

use std::fmt::Write as _;

use weir_api::ApiError;
use weir_base::{ErrorKind, Guid};

/// Returns a random guid.
///
/// # Panics
/// If the kernel has no random bytes.
pub fn guid() -> Guid {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel has random bytes");
    Guid(u64::from_le_bytes(bytes))
}

/// Filter that selects exports, logical units and mounts by their dataset.
#[derive(Clone, Copy)]
pub(crate) enum Of<'a> {
    /// Selects everything.
    All,
    /// Selects all datasets of this pool.
    Pool(&'a str),
    /// Selects exactly this dataset or snapshot.
    Dataset(&'a str),
    /// Selects this dataset and its snapshots.
    Volume(&'a str),
}

impl Of<'_> {
    pub(crate) fn is(self, offered: &str) -> bool {
        match self {
            Of::All => true,
            Of::Pool(pool) => offered.split('/').next() == Some(pool),
            Of::Dataset(name) => offered == name,
            Of::Volume(name) => offered.split('@').next() == Some(name),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Of::All => "the server",
            Of::Pool(name) | Of::Dataset(name) | Of::Volume(name) => name,
        }
    }
}

/// Returns the pool in the full name of any object.
pub(crate) fn pool_of(name: &str) -> &str {
    name.split(['/', '@']).next().unwrap_or_default()
}

pub(crate) fn split(volume: &str) -> Result<(&str, &str), ApiError> {
    let parts = weir_base::names::volume(volume);
    parts.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

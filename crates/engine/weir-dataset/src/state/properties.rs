//! Effective values of properties, and the properties of a clone.
//!
//! `properties::change` changes properties.
//!
//! Invariants:
//! - the dataset's own value comes first, then the inherited value, then the default in the
//!   property table;
//! - a clone inherits compression and dedupe from its origin and has defaults otherwise.

use weir_base::property::{COMPRESSION, DEDUPE, Key, Property, Value};
use weir_format::Properties;

/// Effective value of a property. `chain` begins with the dataset itself; the first level that sets
/// the property decides. For a property that is not inherited, only the dataset itself counts.
pub fn effective<T: Value>(key: Key<T>, chain: &[&Properties]) -> T {
    let found = levels(key.row, chain).find_map(|level| level.get(key));
    found.unwrap_or_else(|| key.default_value())
}

/// As [`effective`], for any property: its encoded value, and the number of levels above the
/// dataset at which it is set. `None` for the default.
pub fn found_at<'a>(row: &Property, chain: &'a [&Properties]) -> Option<(&'a [u8], usize)> {
    let mut levels = levels(row, chain).enumerate();
    levels.find_map(|(at, level)| Some((level.bytes(row)?, at)))
}

fn levels<'a>(row: &Property, chain: &'a [&Properties]) -> impl Iterator<Item = &'a Properties> {
    let most = if row.inherits { chain.len() } else { 1 };
    chain.iter().copied().take(most)
}

/// Properties that a clone takes over from its origin's volume: the storage format of blocks.
pub(crate) fn of_clone(origin: &Properties) -> Properties {
    let mut own = Properties::default();
    own.set(COMPRESSION, origin.get(COMPRESSION));
    own.set(DEDUPE, origin.get(DEDUPE));
    own
}

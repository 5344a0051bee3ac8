//! Effective values of properties, and the properties of a clone.
//!
//! Not here: changing properties (`properties`).
//!
//! Invariants:
//! - a value that is set on the dataset itself comes first, then an inherited one, then the default
//!   of the table;
//! - a clone has the compression and dedupe of its origin, and defaults otherwise.

use weir_base::property::{Key, Property, Value};
use weir_format::Properties;

/// The effective value: `chain` begins with the dataset itself, and the first level that sets the
/// property decides. A property that is not inherited is looked up on the dataset alone.
pub fn effective<T: Value>(key: Key<T>, chain: &[&Properties]) -> T {
    let found = levels(key.row, chain).find_map(|level| level.get(key));
    found.unwrap_or_else(|| key.default_value())
}

/// As [`effective`], of any property: the bytes, and how many steps up they are set. `None` for the
/// default.
pub fn found_at(row: &Property, chain: &[&Properties]) -> Option<(Vec<u8>, usize)> {
    let mut levels = levels(row, chain).enumerate();
    levels.find_map(|(at, level)| Some((level.bytes(row)?, at)))
}

fn levels<'a>(row: &Property, chain: &'a [&Properties]) -> impl Iterator<Item = &'a Properties> {
    let most = if row.inherits { chain.len() } else { 1 };
    chain.iter().copied().take(most)
}

/// What a clone keeps of what was set on its origin's volume: how blocks are stored.
pub(crate) fn of_clone(origin: &Properties) -> Properties {
    Properties { compression: origin.compression, dedupe: origin.dedupe, ..Properties::default() }
}

//! Comparison of names, and their keyed hash, so that no client can choose names with equal hashes.
//!
//! `folding` has the form of a name in which a case-insensitive filesystem hashes and compares it.
//!
//! Invariants:
//! - a filesystem never changes its key or its comparison, because cookies of clients and the keys
//!   of all entries depend on them;
//! - equal names have the same hash.

use std::borrow::Cow;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use weir_format::files::{EntryKey, Layout, NameCase};
use weir_pool::PlantedBug;

use super::folding::fold;

/// Comparison and hash function of the names in one filesystem: SipHash-2-4 (Aumasson and
/// Bernstein, 2012).
#[derive(Clone, Copy, Debug)]
pub struct NameHash {
    sip: SipHasher24,
    case: NameCase,
}

impl NameHash {
    /// Hash function with the secret key of a filesystem.
    pub fn new(key: u128, case: NameCase) -> Self {
        Self { sip: SipHasher24::new_with_key(&key.to_le_bytes()), case }
    }

    /// Hash function of the filesystem with this layout.
    pub(crate) fn of(layout: &Layout, bug: PlantedBug) -> Self {
        let case = match bug {
            PlantedBug::NamesNotFolded => NameCase::Sensitive,
            _ => layout.case,
        };
        Self::new(layout.hash_key, case)
    }

    /// Key for another purpose, which no client can compute: no name contains a `/`.
    pub(crate) fn derived_key(&self, purpose: &str) -> u128 {
        let half = |number: u8| {
            let mut hasher = self.sip;
            hasher.write(&[b'/', number]);
            hasher.write(purpose.as_bytes());
            u128::from(hasher.finish())
        };
        half(0) | half(1) << 64
    }

    /// Prepares the search for a name. `None` if no entry can have the name: it is not UTF-8, and
    /// the filesystem is case-insensitive.
    pub fn search<'n>(&self, name: &'n [u8]) -> Option<SearchName<'n>> {
        let form = match self.case {
            NameCase::Sensitive => Cow::Borrowed(name),
            NameCase::Insensitive => fold(name)?,
        };
        let mut hasher = self.sip;
        hasher.write(&form);
        Some(SearchName { first: EntryKey::of_hash(hasher.finish()), form, case: self.case })
    }
}

/// A name for which a directory is searched.
#[derive(Clone, Debug)]
pub struct SearchName<'n> {
    first: EntryKey,
    /// The name, or its folded form in a case-insensitive filesystem.
    form: Cow<'n, [u8]>,
    case: NameCase,
}

impl SearchName<'_> {
    /// A name with a chosen hash, for tests of directories.
    #[cfg(test)]
    pub(crate) fn with_hash(self, first: EntryKey) -> Self {
        Self { first, ..self }
    }

    /// First of the keys that an entry with this name can have.
    pub fn first_key(&self) -> EntryKey {
        self.first
    }

    /// True if the name of an entry equals this name.
    pub fn is_equal(&self, name: &[u8]) -> bool {
        match self.case {
            NameCase::Sensitive => *self.form == *name,
            NameCase::Insensitive => fold(name).is_some_and(|form| form == self.form),
        }
    }
}

//! Keyed hash of names, so that no client can choose names with equal hashes.
//!
//! Invariant: a filesystem never changes its key, because cookies of clients depend on it.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use weir_format::files::EntryKey;

/// Hash function of the names in one filesystem: SipHash-2-4 (Aumasson and Bernstein, 2012).
#[derive(Clone, Copy, Debug)]
pub struct NameHash(SipHasher24);

impl NameHash {
    /// Hash function with the secret key of a filesystem.
    pub fn new(key: u128) -> Self {
        Self(SipHasher24::new_with_key(&key.to_le_bytes()))
    }

    /// First of the keys that an entry with this name can have.
    pub fn key_of(&self, name: &[u8]) -> EntryKey {
        let mut hasher = self.0;
        hasher.write(name);
        EntryKey::of_hash(hasher.finish())
    }
}

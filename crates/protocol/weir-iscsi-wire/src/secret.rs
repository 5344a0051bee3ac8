//! CHAP secrets.
//!
//! Invariant: the memory of a secret is zeroed on drop, and `Debug` never prints the secret.

use std::fmt;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// Shared secret for CHAP.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Wraps the bytes of a secret.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Bytes of the secret.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Compares two secrets in constant time.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(other.0.as_slice()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// CHAP name with its secret.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// CHAP_N.
    pub name: String,
    /// Secret that belongs to this name.
    pub secret: Secret,
}

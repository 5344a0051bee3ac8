//! Secrets of CHAP.
//!
//! Invariant: memory of a secret is zeroed when it is dropped, and `Debug` prints none.

use std::fmt;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// A shared secret of CHAP.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the bytes of a secret.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether two are the same; how long that takes does not tell where they differ.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(other.0.as_slice()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A name and its secret.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// CHAP_N.
    pub name: String,
    /// What proves it.
    pub secret: Secret,
}

//! CHAP: challenges and the answers that prove a secret.
//!
//! Not here: in which order keys come (`login`).
//!
//! Spec: RFC 1994; RFC 7143 9.2.1 and 12.1.3. Algorithm 7 is SHA-256 in the registry of PPP.
//!
//! Invariants:
//! - how long a comparison takes tells nothing of a secret;
//! - a challenge is used once, and one that comes back is not answered.

use md5::{Digest, Md5};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::secret::Secret;

/// Bytes of our challenges: as many as the longest digest.
const CHALLENGE_BYTES: usize = 32;

/// Digest algorithms (CHAP_A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// 5: what every initiator has.
    Md5,
    /// 7.
    Sha256,
}

impl Algorithm {
    /// The best one of the initiator's list, whose order does not count: the order would let a
    /// man in the middle choose.
    pub fn choose(list: &str) -> Option<Self> {
        let has = |number: &str| list.split(',').any(|one| one == number);
        [Self::Sha256, Self::Md5].into_iter().find(|one| has(one.number()))
    }

    /// Its number in CHAP_A.
    pub const fn number(self) -> &'static str {
        match self {
            Self::Md5 => "5",
            Self::Sha256 => "7",
        }
    }

    /// The answer to a challenge.
    pub fn response(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        let parts: [&[u8]; 3] = [&[identifier], secret.bytes(), challenge];
        match self {
            Self::Md5 => digest::<Md5>(parts),
            Self::Sha256 => digest::<Sha256>(parts),
        }
    }
}

fn digest<D: Digest>(parts: [&[u8]; 3]) -> Vec<u8> {
    let mut hasher = D::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().to_vec()
}

/// A challenge to the initiator.
#[derive(Clone, Debug)]
pub struct Challenge {
    /// CHAP_A.
    pub algorithm: Algorithm,
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C.
    pub bytes: [u8; CHALLENGE_BYTES],
}

impl Challenge {
    /// A fresh one; `None` where the system has no randomness.
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        let (mut identifier, mut bytes) = ([0], [0; CHALLENGE_BYTES]);
        getrandom::fill(&mut identifier).ok()?;
        getrandom::fill(&mut bytes).ok()?;
        let [identifier] = identifier;
        Some(Self { algorithm, identifier, bytes })
    }

    /// Whether `response` proves `secret`.
    pub fn is_met(&self, secret: &Secret, response: &[u8]) -> bool {
        let expected = self.algorithm.response(self.identifier, secret, &self.bytes);
        expected.ct_eq(response).into()
    }
}

#[cfg(test)]
mod tests;

//! CHAP: challenges and responses.
//!
//! The logins of weir-iscsi and weir-initiator check the order of the keys.
//!
//! Spec: RFC 1994; RFC 7143 9.2.1 and 12.1.3. Algorithm 7 is SHA-256 in the PPP registry.
//!
//! Invariants:
//! - the duration of a comparison reveals nothing about the secret;
//! - each challenge is fresh random data; a login uses its challenge only once, and does not
//!   respond if the peer sends back the challenge that this side sent.

use md5::{Digest, Md5};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::secret::Secret;

/// Length of a challenge in bytes: the length of the longest digest.
const CHALLENGE_BYTES: usize = 32;

/// Digest algorithms (CHAP_A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Algorithm number 5; every initiator supports it.
    Md5,
    /// Algorithm number 7.
    Sha256,
}

impl Algorithm {
    /// Selects the strongest algorithm that the initiator's list contains, whatever the order of
    /// the list: otherwise a man in the middle could choose a weak one.
    pub fn choose(list: &str) -> Option<Self> {
        let has = |number: &str| list.split(',').any(|one| one == number);
        [Self::Sha256, Self::Md5].into_iter().find(|one| has(one.number()))
    }

    /// Number of the algorithm, as in CHAP_A.
    pub const fn number(self) -> &'static str {
        match self {
            Self::Md5 => "5",
            Self::Sha256 => "7",
        }
    }

    /// Computes the response to a challenge.
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

/// Challenge that the target sends to the initiator.
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
    /// Creates a challenge from fresh random bytes; `None` if the system supplies no random bytes.
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        let (mut identifier, mut bytes) = ([0], [0; CHALLENGE_BYTES]);
        getrandom::fill(&mut identifier).ok()?;
        getrandom::fill(&mut bytes).ok()?;
        let [identifier] = identifier;
        Some(Self { algorithm, identifier, bytes })
    }

    /// Returns true if `response` is the correct response for `secret`.
    pub fn is_met(&self, secret: &Secret, response: &[u8]) -> bool {
        let expected = self.algorithm.response(self.identifier, secret, &self.bytes);
        expected.ct_eq(response).into()
    }
}

#[cfg(test)]
mod tests;

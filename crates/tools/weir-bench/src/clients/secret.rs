//! Shared secret of agents and coordinator, and the proofs that a side knows the secret.
//!
//! `greeting` exchanges the proofs.
//!
//! Invariants: only a key derived from the secret is kept in memory, and the key is never printed;
//! a proof is valid only for one connection and one side; proofs are compared in constant time.

use std::fmt;

use super::wire::Nonce;

/// Context string for the key derivation mode of BLAKE3.
const CONTEXT: &str = "weir-bench 2026-11 coordinator and agent prove that they know a secret";
/// Minimum length of a secret in characters; an eavesdropper could find a shorter secret by brute
/// force.
const CHARACTERS_MIN: usize = 16;

/// Secret that the agents and the coordinator share.
#[derive(Clone)]
pub struct Secret {
    key: [u8; blake3::KEY_LEN],
}

/// Error for a secret that is too short.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret has {CHARACTERS_MIN} characters or more: make one with `openssl rand -hex 16`")]
pub struct SecretTooShort;

/// Side of a connection that proves its knowledge of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Coordinator,
    Agent,
}

impl Secret {
    /// Creates a secret from a text. Ignores white space around the text, so that the text can come
    /// from a file.
    ///
    /// # Errors
    /// The text is shorter than 16 characters.
    pub fn new(text: &str) -> Result<Self, SecretTooShort> {
        let text = text.trim();
        if text.chars().count() < CHARACTERS_MIN {
            return Err(SecretTooShort);
        }
        Ok(Self { key: blake3::derive_key(CONTEXT, text.as_bytes()) })
    }

    /// Computes the proof of one side for this connection.
    pub(super) fn proof(&self, side: Side, coordinator: &Nonce, agent: &Nonce) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(match side {
            Side::Coordinator => b"coordinator",
            Side::Agent => b"agent",
        });
        hasher.update(&[0]).update(&coordinator.0).update(&agent.0);
        Proof(hasher.finalize())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// Proof that one side knows the secret.
#[derive(Clone, Copy)]
pub(super) struct Proof(blake3::Hash);

impl Proof {
    pub(super) fn to_text(self) -> String {
        self.0.to_hex().to_string()
    }

    /// True if `text` is the text of this proof. The comparison takes constant time.
    pub(super) fn is(self, text: &str) -> bool {
        // `Hash` compares in constant time.
        blake3::Hash::from_hex(text).is_ok_and(|theirs| theirs == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_bound_to_secret_side_and_connection() {
        let one = Secret::new("0123456789abcdef").expect("long enough");
        let other = Secret::new("0123456789abcdeg").expect("long enough");
        let [a, b] = [Nonce([1; 32]), Nonce([2; 32])];
        let proof = one.proof(Side::Agent, &a, &b);
        assert!(proof.is(&one.proof(Side::Agent, &a, &b).to_text()));
        for wrong in [
            one.proof(Side::Coordinator, &a, &b),
            one.proof(Side::Agent, &b, &a),
            other.proof(Side::Agent, &a, &b),
        ] {
            assert!(!proof.is(&wrong.to_text()));
        }
        assert!(!proof.is("") && !proof.is("no hash") && !proof.is(&"é".repeat(32)));
        let same = Secret::new("  0123456789abcdef\n").expect("long enough");
        assert!(proof.is(&same.proof(Side::Agent, &a, &b).to_text()));
        assert_eq!(Secret::new("short").err(), Some(SecretTooShort));
        assert!(!format!("{one:?}").contains("0123"));
    }
}

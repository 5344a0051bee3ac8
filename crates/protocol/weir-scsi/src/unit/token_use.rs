//! Use of a ROD token: keeps the token from expiring while a copy reads its data.
//!
//! Creation and storage of tokens are in `rod_tokens`.
//!
//! Invariant: a copy that uses a token fails its next check after the token was revoked.

use std::sync::Arc;
use std::time::Instant;

use subtle::ConstantTimeEq as _;

use crate::codec::sense::Sense;
use crate::fields::be64;
use crate::unit::logical_unit::Unit;
use crate::unit::rod_tokens::{Ended, RodToken, UNKNOWN};

/// A token in use. The token does not expire while this value exists.
pub(crate) struct Use {
    unit: Arc<Unit>,
    token: Arc<RodToken>,
}

impl Use {
    /// Finds the token with these bytes among the tokens of a unit, if it is still valid.
    pub(crate) fn begin(unit: &Arc<Unit>, bytes: &[u8]) -> Result<Self, Sense> {
        let now = Instant::now();
        let token = unit.ranges.tokens.change(|table| {
            table.expire(now);
            let identifier = be64(bytes, 8);
            let at = table.entries.iter().position(|entry| {
                entry.token.identifier() == identifier && bool::from(entry.token.bytes.ct_eq(bytes))
            });
            let mut entry = at.and_then(|at| table.entries.remove(at)).ok_or(UNKNOWN)?;
            let (token, ended) = (Arc::clone(&entry.token), entry.ended);
            if ended.is_none() {
                entry.users += 1;
                entry.used = now;
            }
            table.entries.push_back(entry);
            ended.map_or(Ok(token), |ended| Err(ended.sense()))
        })?;
        Ok(Self { unit: Arc::clone(unit), token })
    }

    /// Logical unit whose data the token represents.
    pub(crate) fn unit(&self) -> &Arc<Unit> {
        &self.unit
    }

    /// The token in use.
    pub(crate) fn token(&self) -> &RodToken {
        &self.token
    }

    /// Checks that the token is still valid. The caller has a stable lock on the token's ranges.
    pub(crate) fn check(&self) -> Result<(), Sense> {
        let mut table = self.unit.ranges.tokens.table.lock();
        let ended = table.find(&self.token).ok_or(UNKNOWN)?.ended;
        ended.map_or(Ok(()), |ended| Err(ended.sense()))
    }

    /// Deletes the token at the request of the initiator.
    pub(crate) fn delete(&self) {
        self.unit.ranges.tokens.change(|table| {
            if let Some(entry) = table.find(&self.token)
                && entry.ended.is_none()
            {
                entry.ended = Some(Ended::Deleted);
            }
        });
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let now = Instant::now();
        self.unit.ranges.tokens.change(|table| {
            if let Some(entry) = table.find(&self.token) {
                entry.users -= 1;
                entry.used = now;
            }
        });
    }
}

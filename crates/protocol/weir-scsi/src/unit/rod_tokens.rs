//! ROD tokens: a token represents ranges of a logical unit with their contents at its creation.
//!
//! `command::token_copy` creates and uses tokens, and checks which initiator may do so.
//!
//! Invariants:
//! - the data of a valid token has not changed since its creation: a command holds the token's
//!   ranges stable while it creates or checks the token, and a writer cancels the token first;
//! - code that changes data other than by SCSI commands calls [`Tokens::revoke`] before the change;
//!   if it cannot, the unit creates no tokens;
//! - a token cannot be guessed, and the duration of a failed comparison reveals nothing about valid
//!   tokens;
//! - while no token is valid, a writer reads only one atomic counter.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::codec::sense::{FAILURE, Sense, key};
use crate::fields::{be64, set};
use crate::limits::TOKENS_MAX;
use crate::unit::range::Range;

/// Length of a token: the minimum that the standard allows (SPC-4 5.17.6.4).
pub(crate) const TOKEN_BYTES: usize = 512;
/// Value of the ROD TOKEN LENGTH field for a token of this length.
pub(crate) const TOKEN_LENGTH: u16 = TOKEN_BYTES as u16 - 8;
/// ROD type: point in time copy - change vulnerable (SPC-4 table 110).
pub(crate) const CHANGE_VULNERABLE: u32 = 0x0080_0001;
/// Offset of the random bytes that make a token unguessable.
const RANDOM_AT: usize = 256;

/// Sense data INVALID TOKEN OPERATION with a qualifier, which gives the reason.
const fn invalid_token(qualifier: u8) -> Sense {
    Sense::new(key::ILLEGAL_REQUEST, 0x23, qualifier)
}

/// CAUSE NOT REPORTABLE: the unit creates no tokens, because other clients can change the medium.
const NOT_MADE: Sense = invalid_token(0x00);
/// UNSUPPORTED TOKEN TYPE.
pub(crate) const UNSUPPORTED: Sense = invalid_token(0x01);
/// REMOTE TOKEN USAGE NOT SUPPORTED: this server does not have the token's logical unit, or the
/// initiator may not use that unit.
pub(crate) const REMOTE: Sense = invalid_token(0x02);
/// TOKEN UNKNOWN.
pub(crate) const UNKNOWN: Sense = invalid_token(0x04);
/// INVALID TOKEN LENGTH.
pub(crate) const WRONG_LENGTH: Sense = invalid_token(0x0A);
/// INSUFFICIENT RESOURCES TO CREATE ROD TOKEN.
const NO_ROOM: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x55, 0x0D);

/// Reason for which a token is no longer valid (SPC-4 5.17.6.5.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The token was revoked by a change of the logical unit that no SCSI command made.
    Revoked,
    /// The token was not used within its inactivity timeout.
    Expired,
    /// A command wrote to the ranges that the token represents.
    Cancelled,
    /// The initiator requested the deletion (DEL_TKN).
    Deleted,
}

impl Ended {
    pub(crate) const fn sense(self) -> Sense {
        invalid_token(match self {
            Self::Revoked => 0x06,
            Self::Expired => 0x07,
            Self::Cancelled => 0x08,
            Self::Deleted => 0x09,
        })
    }
}

/// Immutable contents of a token.
pub(crate) struct RodToken {
    pub(crate) bytes: [u8; TOKEN_BYTES],
    /// Ranges that the token represents, in order.
    ranges: Vec<Range>,
}

impl RodToken {
    /// Creates a token that is not yet valid.
    ///
    /// `body` is the part before the random bytes (SPC-4 table 112) and has at most 256 bytes. This
    /// function replaces the token identifier in `body` with a random one.
    ///
    /// # Errors
    /// The operating system supplies no random numbers.
    pub(crate) fn new(body: &[u8], ranges: Vec<Range>) -> Result<Arc<Self>, Sense> {
        assert!(body.len() <= RANDOM_AT, "{} bytes before the random part", body.len());
        let (mut bytes, mut identifier) = ([0; TOKEN_BYTES], [0; 8]);
        set(&mut bytes, 0, body);
        let random = bytes.get_mut(RANDOM_AT..).unwrap_or_default();
        getrandom::fill(random).map_err(|_| FAILURE)?;
        getrandom::fill(&mut identifier).map_err(|_| FAILURE)?;
        set(&mut bytes, 8, &identifier);
        Ok(Arc::new(Self { bytes, ranges }))
    }

    /// Wire format of the token.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Ranges that the token represents, in order.
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Number of bytes that the token represents.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len_bytes()).sum()
    }

    pub(crate) fn identifier(&self) -> u64 {
        be64(&self.bytes, 8)
    }

    fn overlaps(&self, range: Range) -> bool {
        self.ranges.iter().any(|own| own.overlaps(range))
    }
}

pub(crate) struct Entry {
    pub(crate) token: Arc<RodToken>,
    pub(crate) ended: Option<Ended>,
    /// Number of commands that use the token now.
    pub(crate) users: usize,
    pub(crate) used: Instant,
    timeout: Duration,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        self.users == 0 && now.saturating_duration_since(self.used) > self.timeout
    }
}

#[derive(Default)]
pub(crate) struct Table {
    /// Tokens, the least recently used first.
    pub(crate) entries: VecDeque<Entry>,
    /// True if clients other than SCSI initiators may change the medium.
    is_shared: bool,
}

impl Table {
    pub(crate) fn find(&mut self, token: &Arc<RodToken>) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.token, token))
    }

    fn end_all(&mut self, why: Ended) {
        for entry in self.entries.iter_mut().filter(|entry| entry.ended.is_none()) {
            entry.ended = Some(why);
        }
    }

    /// Expires tokens that were not used within their inactivity timeout, and drops tokens that
    /// ended at least one timeout ago.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.entries.retain(|entry| entry.ended.is_none() || !entry.is_over(now));
        for entry in self.entries.iter_mut().filter(|entry| entry.is_over(now)) {
            entry.ended = Some(Ended::Expired);
            // Restart the timeout: the ended token is dropped when it passes again.
            entry.used = now;
        }
    }

    /// Makes space in the table for one token. Drops the least recently used ended token. If none
    /// has ended, drops the least recently used token. Keeps tokens that a command uses now.
    fn make_room(&mut self) -> Result<(), Sense> {
        if self.entries.len() < TOKENS_MAX {
            return Ok(());
        }
        let idle = |entry: &Entry| entry.users == 0;
        let ended = self.entries.iter().position(|entry| idle(entry) && entry.ended.is_some());
        let at = ended.or_else(|| self.entries.iter().position(idle)).ok_or(NO_ROOM)?;
        self.entries.remove(at);
        Ok(())
    }

    fn alive(&self) -> usize {
        self.entries.iter().filter(|entry| entry.ended.is_none()).count()
    }
}

/// ROD tokens of a logical unit.
///
/// A token is a change-vulnerable point in time copy (SPC-4 5.17.6.2.3.3): it stores no data, and
/// ends before the data that it represents changes. The table keeps an ended token for one more
/// timeout, so that an initiator that still uses the token receives the reason for its end.
#[derive(Default)]
pub(crate) struct Tokens {
    /// Number of valid tokens. If it is 0, a writer needs no lock to check for tokens.
    alive: AtomicUsize,
    pub(crate) table: Mutex<Table>,
}

impl Tokens {
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let result = change(&mut table);
        self.alive.store(table.alive(), Ordering::SeqCst);
        result
    }

    /// Makes a new token valid. The caller has a stable lock on the token's ranges.
    pub(crate) fn publish(&self, token: &Arc<RodToken>, timeout: Duration) -> Result<(), Sense> {
        let now = Instant::now();
        self.change(|table| {
            if table.is_shared {
                return Err(NOT_MADE);
            }
            table.expire(now);
            table.make_room()?;
            let token = Arc::clone(token);
            let entry = Entry { token, ended: None, users: 0, used: now, timeout };
            table.entries.push_back(entry);
            Ok(())
        })
    }

    /// Cancels the tokens that overlap a range. A writer calls this after its range lock was
    /// granted and before it writes.
    pub(crate) fn changing(&self, range: Range) {
        if self.alive.load(Ordering::SeqCst) == 0 {
            return;
        }
        let now = Instant::now();
        self.change(|table| {
            table.expire(now);
            for entry in &mut table.entries {
                if entry.ended.is_none() && entry.token.overlaps(range) {
                    entry.ended = Some(Ended::Cancelled);
                }
            }
        });
    }

    /// Revokes all tokens. The caller changes the medium by other means than SCSI commands, and
    /// calls this function before or during the change.
    pub(crate) fn revoke(&self) {
        self.change(|table| table.end_all(Ended::Revoked));
    }

    /// Revokes all tokens like [`Tokens::revoke`], and refuses new ones: the unit cannot observe
    /// later changes of the medium.
    pub(crate) fn give_up(&self) {
        self.change(|table| {
            table.is_shared = true;
            table.end_all(Ended::Revoked);
        });
    }
}

//! Tokens that stand for ranges of a logical unit as they were when the tokens were made.
//!
//! Not here: the commands that make and use them (`offload`), who may use them.
//!
//! A token is a point in time copy of the kind that is vulnerable to changes (SPC-4 5.17.6.2.3.3):
//! it keeps no data, and ends when what it stands for is about to change. One that ended is
//! remembered until it would have expired, so that who uses it is told why.
//!
//! Invariants:
//! - a token that is alive stands for bytes that nobody changed since it was made: it is made and
//!   looked at while its ranges are held steady, and writers end it before they write;
//! - what is changed by others than commands is told by [`Tokens::revoke`] before it is changed, or
//!   no tokens are made;
//! - a token cannot be guessed, and how long a wrong one is compared tells nothing of a right one;
//! - while none is alive a writer looks at one number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::codec::sense::{FAILURE, Sense, key};
use crate::fields::{be64, set};
use crate::limits::TOKENS_MAX;
use crate::unit::range::Range;

/// Length of a token, the shortest that there are (SPC-4 5.17.6.4).
pub(crate) const TOKEN_BYTES: usize = 512;
/// What the ROD TOKEN LENGTH field of such a token says.
pub(crate) const TOKEN_LENGTH: u16 = TOKEN_BYTES as u16 - 8;
/// Point in time copy - change vulnerable (SPC-4 table 110).
pub(crate) const CHANGE_VULNERABLE: u32 = 0x0080_0001;
/// Where the bytes are that nobody can guess.
const RANDOM_AT: usize = 256;

/// INVALID TOKEN OPERATION, with what is wrong.
const fn invalid_token(qualifier: u8) -> Sense {
    Sense::new(key::ILLEGAL_REQUEST, 0x23, qualifier)
}

/// CAUSE NOT REPORTABLE: of what others change too there are no tokens.
const NOT_MADE: Sense = invalid_token(0x00);
/// UNSUPPORTED TOKEN TYPE.
pub(crate) const UNSUPPORTED: Sense = invalid_token(0x01);
/// REMOTE TOKEN USAGE NOT SUPPORTED: of a logical unit that is not known here, or not to this
/// initiator.
pub(crate) const REMOTE: Sense = invalid_token(0x02);
/// TOKEN UNKNOWN.
pub(crate) const UNKNOWN: Sense = invalid_token(0x04);
/// INVALID TOKEN LENGTH.
pub(crate) const WRONG_LENGTH: Sense = invalid_token(0x0A);
/// INSUFFICIENT RESOURCES TO CREATE ROD TOKEN.
const NO_ROOM: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x55, 0x0D);

/// Why a token is no longer good (SPC-4 5.17.6.5.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By somebody who manages the logical unit.
    Revoked,
    /// Nobody used it.
    Expired,
    /// What it stands for was written to, or its room was needed.
    Cancelled,
    /// At the wish of an initiator.
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

/// What does not change about a token.
pub(crate) struct Token {
    pub(crate) bytes: [u8; TOKEN_BYTES],
    /// What it stands for, in this order.
    ranges: Vec<Range>,
}

impl Token {
    /// Makes one, which nobody knows of yet.
    ///
    /// `body` is what stands before the random part (SPC-4 table 112), at most 256 bytes; the
    /// identifier in it is made random here.
    ///
    /// # Errors
    /// The system has no random numbers.
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

    /// As it travels.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it stands for, in this order.
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// How many bytes it stands for.
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
    pub(crate) token: Arc<Token>,
    pub(crate) ended: Option<Ended>,
    /// Commands that use it now.
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
    /// Those used last at the end.
    pub(crate) entries: VecDeque<Entry>,
    /// Others than commands change the medium too.
    is_shared: bool,
}

impl Table {
    pub(crate) fn find(&mut self, token: &Arc<Token>) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.token, token))
    }

    fn end_all(&mut self, why: Ended) {
        for entry in self.entries.iter_mut().filter(|entry| entry.ended.is_none()) {
            entry.ended = Some(why);
        }
    }

    /// Ends what nobody used for long, and forgets what ended long ago.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.entries.retain(|entry| entry.ended.is_none() || !entry.is_over(now));
        for entry in self.entries.iter_mut().filter(|entry| entry.is_over(now)) {
            entry.ended = Some(Ended::Expired);
            // Remembered for as long again.
            entry.used = now;
        }
    }

    /// Room for one more: what ended goes first, then what was not used for longest.
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

/// The tokens of a logical unit.
#[derive(Default)]
pub(crate) struct Tokens {
    /// How many are alive: all that a writer looks at otherwise.
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

    /// Lets a token be used. The caller holds its ranges steady.
    pub(crate) fn publish(&self, token: &Arc<Token>, timeout: Duration) -> Result<(), Sense> {
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

    /// Ends the tokens of what a writer, who was let in, is about to change.
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

    /// Ends all tokens: the medium changes, or is about to, other than by commands.
    pub(crate) fn revoke(&self) {
        self.change(|table| table.end_all(Ended::Revoked));
    }

    /// As [`Tokens::revoke`], and there will be no others: what changes cannot be seen from now on.
    pub(crate) fn give_up(&self) {
        self.change(|table| {
            table.is_shared = true;
            table.end_all(Ended::Revoked);
        });
    }
}

//! Data operations of a lane: READ or WRITE in pieces of the server's maximum length, and COMMIT.
//!
//! `lane` sends the calls.
//!
//! Invariants: every reply that is shorter than its call makes progress, or ends the operation; an
//! operation ends only after the replies to all its calls.

use std::io;
use std::ops::Range;

use weir_nfs_client::Handle;
use weir_nfs_wire::nfs3::StableHow;

/// Maximum number of calls in flight for one operation: enough to keep a connection busy. More
/// calls would delay the operations of other slots.
pub(super) const PIECES_MAX: u32 = 16;

/// Direction of the data of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    /// WRITE, with the requested stability.
    Write(StableHow),
}

/// A READ or WRITE operation in flight.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) direction: Direction,
    pub(super) handle: Handle,
    /// Index of the file in the dataset; `None` for a file that the run created.
    pub(super) file: Option<usize>,
    /// Offset in the file of the start of the buffer.
    pub(super) offset: u64,
    /// Length of the operation in bytes.
    len: u32,
    /// Maximum length of a piece in bytes.
    piece_bytes: u32,
    /// Start of the next piece.
    next: u32,
    in_flight: u32,
    error: Option<io::Error>,
}

impl Transfer {
    pub(super) fn new(
        direction: Direction,
        handle: Handle,
        file: Option<usize>,
        offset: u64,
        (len, piece_bytes): (u32, u32),
    ) -> Self {
        Self {
            direction,
            handle,
            file,
            offset,
            len,
            piece_bytes,
            next: 0,
            in_flight: 0,
            error: None,
        }
    }

    /// Range of the buffer for the next call; `None` if no call is to be sent now. The first call
    /// of an empty operation has an empty range.
    pub(super) fn next(&mut self) -> Option<Range<u32>> {
        let is_first = self.len == 0 && self.next == 0;
        let is_more = self.next < self.len || is_first;
        if !is_more || self.error.is_some() || self.in_flight >= PIECES_MAX {
            return None;
        }
        let range = self.next..self.end_of(self.next);
        self.next = range.end.max(1);
        self.in_flight += 1;
        Some(range)
    }

    /// Range of the call for the piece from `start`, which is sent again.
    pub(super) fn piece_from(&self, start: u32) -> Range<u32> {
        start..self.end_of(start)
    }

    /// End of the piece that contains the byte `start`.
    fn end_of(&self, start: u32) -> u32 {
        let end = (start / self.piece_bytes).saturating_add(1).saturating_mul(self.piece_bytes);
        end.min(self.len)
    }

    /// Records the reply to the call for the piece from `start`, which transferred `bytes` bytes.
    /// Returns the range that must be requested again because the reply was short.
    pub(super) fn replied(&mut self, start: u32, bytes: u32, eof: bool) -> Option<Range<u32>> {
        let rest = start.saturating_add(bytes)..self.end_of(start);
        if rest.start < rest.end && self.error.is_none() {
            if bytes > 0 && !eof {
                return Some(rest);
            }
            let what = match self.direction {
                Direction::Read if eof => "READ: the file is shorter than the dataset",
                Direction::Read => "READ: the server returned no data",
                Direction::Write(_) => "WRITE: the server wrote no data",
            };
            self.error = Some(io::Error::other(what));
        }
        self.in_flight -= 1;
        None
    }

    /// Records an error that belongs to the operation. The call that found it is still counted.
    pub(super) fn note(&mut self, error: io::Error) {
        self.error.get_or_insert(error);
    }

    /// Records that a call failed.
    pub(super) fn failed(&mut self, error: io::Error) {
        self.note(error);
        self.in_flight -= 1;
    }

    /// Result of the operation, if all its calls have replies.
    pub(super) fn result(&mut self) -> Option<io::Result<()>> {
        let is_sent = self.next >= self.len || self.error.is_some();
        (self.in_flight == 0 && is_sent).then(|| self.error.take().map_or(Ok(()), Err))
    }
}

/// A flush in flight: COMMIT of several files.
#[derive(Debug, Default)]
pub(super) struct Flush {
    /// Files whose COMMIT is not sent yet.
    pub(super) files: Vec<usize>,
    in_flight: u32,
    error: Option<io::Error>,
}

impl Flush {
    pub(super) fn new(files: Vec<usize>) -> Self {
        Self { files, ..Self::default() }
    }

    /// File of the next COMMIT; `None` if no call is to be sent now.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.in_flight >= PIECES_MAX {
            return None;
        }
        let file = self.files.pop()?;
        self.in_flight += 1;
        Some(file)
    }

    /// Records the result of a COMMIT.
    pub(super) fn replied(&mut self, result: io::Result<()>) {
        self.in_flight -= 1;
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    /// Result of the operation, if all its calls have replies.
    pub(super) fn result(&mut self) -> Option<io::Result<()>> {
        let is_done = self.in_flight == 0 && self.files.is_empty();
        is_done.then(|| self.error.take().map_or(Ok(()), Err))
    }
}

#[cfg(test)]
mod tests {
    use weir_nfs_wire::nfs3::FileHandle;

    use super::*;

    fn read(len: u32, piece_bytes: u32) -> Transfer {
        let handle = Handle::new(&FileHandle::EMPTY);
        Transfer::new(Direction::Read, handle, Some(0), 0, (len, piece_bytes))
    }

    #[test]
    fn operation_is_split_and_short_replies_are_completed() {
        let mut op = read(10_000, 4096);
        assert_eq!(
            [op.next(), op.next(), op.next(), op.next()],
            [Some(0..4096), Some(4096..8192), Some(8192..10_000), None]
        );
        assert_eq!(op.replied(8192, 1808, true), None);
        assert_eq!(op.replied(0, 512, false), Some(512..4096));
        assert_eq!(op.replied(4096, 4096, false), None);
        assert!(op.result().is_none());
        assert_eq!(op.replied(512, 3584, false), None);
        assert!(op.result().unwrap().is_ok());
    }

    #[test]
    fn reply_without_progress_fails_the_operation() {
        let mut op = read(8192, 4096);
        assert_eq!((op.next(), op.next()), (Some(0..4096), Some(4096..8192)));
        assert_eq!(op.replied(0, 0, false), None);
        assert!(op.result().is_none(), "one reply is missing");
        assert_eq!(op.replied(4096, 100, true), None);
        assert!(op.result().unwrap().is_err());
        let mut op = read(8192, 4096);
        assert_eq!(op.next(), Some(0..4096));
        op.failed(io::ErrorKind::NotFound.into());
        assert_eq!(op.next(), None);
        assert!(op.result().unwrap().is_err());
    }

    #[test]
    fn pieces_in_flight_are_bounded_and_an_empty_operation_is_one_call() {
        let mut op = read(64 << 20, 1 << 20);
        assert_eq!(std::iter::from_fn(|| op.next()).count(), PIECES_MAX as usize);
        assert_eq!(op.replied(0, 1 << 20, false), None);
        assert_eq!(op.next(), Some(16 << 20..17 << 20));
        let mut empty = read(0, 4096);
        assert_eq!((empty.next(), empty.next()), (Some(0..0), None));
        assert!(empty.result().is_none());
        assert_eq!(empty.replied(0, 0, true), None);
        assert!(empty.result().unwrap().is_ok());
    }
}

//! The receive buffer of a connection.
//!
//! Not here: the socket; the session hands the buffer to it and puts it back.
//!
//! The buffer is small until a receive fills it: a thousand idle connections then hold little. The
//! session asks for memory and lets it grow.
//!
//! Invariants:
//! - a byte is moved at most once after it was received, however the messages fall;
//! - a large message ends where a receive ends, so that what follows it need not be moved.

use crate::limits::{INPUT_BYTES, INPUT_BYTES_MIN, KEEP_BYTES_MAX};

/// Longer messages are received alone.
const ALONE_BYTES: usize = 64 << 10;

/// Bytes received and not yet used.
#[derive(Debug)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    message_bytes_max: usize,
    /// Bytes that a receive of small messages may take.
    room: usize,
    /// The last receive took all it could.
    is_filled: bool,
    /// Bytes that the receive under way may fill the buffer to.
    limit: usize,
}

impl Input {
    /// An empty one, for messages up to this long.
    pub const fn new(message_bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            message_bytes_max,
            room: INPUT_BYTES_MIN,
            is_filled: false,
            limit: 0,
        }
    }

    /// The bytes not yet used.
    pub fn pending(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Marks `len` pending bytes as used.
    pub fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.bytes.len());
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
    }

    /// Bytes of memory that it takes while small messages come.
    pub const fn room(&self) -> usize {
        self.room
    }

    /// Bytes of memory that it takes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity().max(self.room)
    }

    /// Whether more memory would save receives: the last one took all it could.
    pub const fn is_short(&self) -> bool {
        self.is_filled && self.room < INPUT_BYTES
    }

    /// Takes as much memory as a busy connection has use for.
    pub const fn grow(&mut self) {
        self.room = INPUT_BYTES;
    }

    /// Gives memory back that a connection without much to do has no use for.
    pub fn shrink(&mut self) {
        self.room = INPUT_BYTES_MIN;
        if self.bytes.capacity() > INPUT_BYTES_MIN {
            self.bytes.drain(..self.start);
            self.start = 0;
            self.bytes.shrink_to(INPUT_BYTES_MIN);
        }
    }

    /// Makes room for a message of `need` bytes whose beginning is pending. Returns where the
    /// next receive starts in the buffer and how many bytes it may take.
    pub fn make_room(&mut self, need: usize) -> (usize, usize) {
        assert!(need <= self.message_bytes_max, "message lengths are checked before room is made");
        if self.bytes.is_empty() && self.bytes.capacity() > KEEP_BYTES_MAX && need <= INPUT_BYTES {
            self.bytes = Vec::new();
        }
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let len = self.bytes.len();
        let room = need.max(self.room);
        self.bytes.reserve_exact(room.saturating_sub(len));
        let limit = if need > ALONE_BYTES { need } else { self.bytes.capacity() };
        self.limit = limit.max(len + 1);
        (len, self.limit - len)
    }

    /// Takes the buffer out for a receive.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Puts it back, with what was received appended.
    pub fn put_back(&mut self, bytes: Vec<u8>) {
        self.is_filled = bytes.len() >= self.limit;
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(input: &mut Input, need: usize, stream: &[u8]) -> usize {
        let (at, limit) = input.make_room(need);
        let take = limit.min(stream.len());
        let mut bytes = input.take();
        assert_eq!(at, bytes.len());
        assert!(bytes.capacity() >= at + limit, "room for what may be received");
        bytes.extend_from_slice(&stream[..take]);
        input.put_back(bytes);
        take
    }

    #[test]
    fn small_messages_come_in_one_receive_and_a_rest_moves_to_the_front() {
        let mut input = Input::new(64 << 20);
        let stream: Vec<u8> = (0..=255).cycle().take(1000).collect();
        assert_eq!(receive(&mut input, 28, &stream), 1000);
        input.consume(990);
        assert_eq!(input.pending(), &stream[990..]);
        assert_eq!(receive(&mut input, 28, &stream), 1000);
        assert_eq!(input.pending().len(), 1010);
        input.consume(5000);
        assert!(input.pending().is_empty());
    }

    #[test]
    fn buffer_grows_where_receives_fill_it_and_shrinks_without_losing_bytes() {
        let mut input = Input::new(64 << 20);
        let stream: Vec<u8> = (0..=255).cycle().take(INPUT_BYTES).collect();
        assert_eq!(receive(&mut input, 28, &stream[..100]), 100);
        assert!(!input.is_short());
        assert_eq!(receive(&mut input, 28, &stream[100..]), INPUT_BYTES_MIN - 100);
        assert!(input.is_short());
        input.grow();
        assert_eq!(
            receive(&mut input, 28, &stream[INPUT_BYTES_MIN..]),
            stream.len() - INPUT_BYTES_MIN
        );
        assert!(!input.is_short(), "it does not grow further");
        assert!(input.capacity() >= INPUT_BYTES);
        input.consume(stream.len() - 10);
        input.shrink();
        assert_eq!(input.pending(), &stream[stream.len() - 10..]);
        assert_eq!(input.capacity(), INPUT_BYTES_MIN);
    }

    #[test]
    fn a_large_message_is_received_alone() {
        let mut input = Input::new(64 << 20);
        let stream = vec![7; 2 << 20];
        let need = (1 << 20) + 28;
        let mut taken = receive(&mut input, 28, &stream);
        assert!(taken < need);
        taken += receive(&mut input, need, &stream[taken..]);
        assert_eq!(taken, need);
        input.consume(need);
        assert!(input.pending().is_empty());
    }

    #[test]
    fn a_huge_buffer_is_given_back() {
        let mut input = Input::new(64 << 20);
        let need = 32 << 20;
        assert_eq!(receive(&mut input, need, &vec![0; need]), need);
        input.consume(need);
        input.make_room(28);
        assert!(input.bytes.capacity() <= 2 * INPUT_BYTES);
    }
}

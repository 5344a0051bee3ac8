//! Receive buffer of a connection.
//!
//! The session passes the buffer to the socket for each receive and puts it back afterwards.
//!
//! The buffer is small until a receive fills it, so that a thousand idle connections hold little
//! memory. After that, the session requests memory and grows the buffer.
//!
//! Invariants:
//! - a received byte is moved at most once, wherever a message begins in the buffer;
//! - a receive of a large message stops at the end of the message, so that the bytes of the next
//!   message need not be moved.

use crate::limits::{INPUT_BYTES, INPUT_BYTES_MIN, KEEP_BYTES_MAX};

/// Message length above which a receive takes no bytes of the next message.
const ALONE_BYTES: usize = 64 << 10;

/// Received bytes that the session has not consumed yet.
#[derive(Debug)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    message_bytes_max: usize,
    /// Size of the buffer while all messages are small.
    room: usize,
    /// True if the last receive filled the buffer up to `limit`.
    is_filled: bool,
    /// Buffer length up to which the current receive may fill the buffer.
    limit: usize,
}

impl Input {
    /// Creates an empty buffer for messages up to `message_bytes_max`.
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

    /// Received bytes that the session has not consumed yet.
    pub fn pending(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// As [`Self::pending`], for a protocol that joins parts of a message in place.
    pub fn pending_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }

    /// Consumes the first `len` pending bytes.
    pub fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.bytes.len());
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
    }

    /// Takes the first `len` pending bytes, a message, out of the buffer. Copies them, unless a
    /// large message is alone in the buffer and fills most of it.
    pub fn take_message(&mut self, len: usize) -> Vec<u8> {
        let is_alone = self.start == 0 && self.bytes.len() == len;
        if is_alone && len > ALONE_BYTES && len > self.bytes.capacity() / 2 {
            return std::mem::take(&mut self.bytes);
        }
        let message = self.pending().get(..len).unwrap_or(self.pending()).to_vec();
        self.consume(len);
        message
    }

    /// Size of the buffer while all messages are small.
    pub const fn room(&self) -> usize {
        self.room
    }

    /// Current size of the buffer, in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity().max(self.room)
    }

    /// Returns true if the last receive filled the buffer, so that a larger buffer would need fewer
    /// receives.
    pub const fn is_short(&self) -> bool {
        self.is_filled && self.room < INPUT_BYTES
    }

    /// Selects the buffer size of a busy connection.
    pub const fn grow(&mut self) {
        self.room = INPUT_BYTES;
    }

    /// Selects the buffer size of an idle connection.
    pub fn shrink(&mut self) {
        self.room = INPUT_BYTES_MIN;
        if self.bytes.capacity() > INPUT_BYTES_MIN {
            self.bytes.drain(..self.start);
            self.start = 0;
            self.bytes.shrink_to(INPUT_BYTES_MIN);
        }
    }

    /// Makes space for a message of `need` bytes, whose beginning is already in the buffer. Returns
    /// the buffer offset at which the next receive writes, and the maximum number of bytes that it
    /// may receive.
    pub fn make_room(&mut self, need: usize) -> (usize, usize) {
        assert!(need <= self.message_bytes_max, "message lengths are checked before buffers grow");
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

    /// Puts the buffer back, with the received bytes appended.
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
    fn partial_message_moves_to_the_front_of_the_buffer() {
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
    fn full_buffer_grows_and_shrinking_loses_no_bytes() {
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
    fn receive_of_a_large_message_stops_at_its_end() {
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
    fn large_message_takes_the_buffer_and_others_are_copied() {
        let mut input = Input::new(64 << 20);
        let (need, stream) = (100 << 10, vec![7; 100 << 10]);
        let mut taken = receive(&mut input, 28, &stream);
        taken += receive(&mut input, need, &stream[taken..]);
        assert_eq!(taken, need);
        let start = input.pending().as_ptr();
        let message = input.take_message(need);
        assert_eq!((message.as_ptr(), message.len()), (start, need));
        assert!(input.pending().is_empty());
        receive(&mut input, 28, b"one, two");
        assert_eq!(input.take_message(5), b"one, ");
        assert_eq!(input.pending(), b"two");
        assert_eq!(input.take_message(99), b"two");
    }

    #[test]
    fn huge_buffer_is_freed_once_empty() {
        let mut input = Input::new(64 << 20);
        let need = 32 << 20;
        assert_eq!(receive(&mut input, need, &vec![0; need]), need);
        input.consume(need);
        input.make_room(28);
        assert!(input.bytes.capacity() <= 2 * INPUT_BYTES);
    }
}

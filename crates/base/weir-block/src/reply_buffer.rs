//! The buffer that replies are put together in.
//!
//! Not here: when it is sent (`outgoing`), what replies look like (each protocol).
//!
//! Invariant: its bytes are initialised once, when it grows, so that space for read data costs
//! nothing per reply.

/// Buffers double as they grow, up to this: as much as replies gather for one send.
const DOUBLED_BYTES_MAX: usize = 256 << 10;

/// A buffer that only grows and hands out space without clearing it.
#[derive(Debug, Default)]
pub struct OutBuf {
    bytes: Vec<u8>,
    used: usize,
}

impl OutBuf {
    /// An empty one with room for `len` bytes.
    pub fn with_room(len: usize) -> Self {
        Self { bytes: vec![0; len], used: 0 }
    }

    /// Bytes put in.
    pub const fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing was put in.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Bytes it has room for without growing.
    pub const fn room(&self) -> usize {
        self.bytes.len()
    }

    /// What was put in.
    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }

    /// Forgets everything from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.used = self.used.min(len);
    }

    /// Appends `len` bytes of stale content and hands them out to be overwritten.
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        let start = self.used;
        let end = start + len;
        if end > self.bytes.len() {
            self.grow(end);
        }
        self.used = end;
        self.bytes.get_mut(start..end).unwrap_or_default()
    }

    /// Fresh zeroed memory comes from the system for nothing where the buffer is large; clearing
    /// what a reallocation adds would not.
    fn grow(&mut self, len: usize) {
        // Doubling a buffer that is large already would waste more than copying it costs.
        let now = self.bytes.len();
        let doubled = if now < DOUBLED_BYTES_MAX { 2 * now } else { now + now / 4 };
        let mut bytes = vec![0; len.max(doubled).max(4096)];
        if let Some(head) = bytes.get_mut(..self.used) {
            head.copy_from_slice(self.filled());
        }
        self.bytes = bytes;
    }

    /// Gives memory back where there is more than `keep` and less than half of it is used.
    pub fn give_up_room(&mut self, keep: usize) {
        if self.bytes.len() > keep && self.used < self.bytes.len() / 2 {
            self.bytes.truncate(self.used);
            self.bytes.shrink_to_fit();
        }
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends bytes of a known number.
    pub fn put_array<const N: usize>(&mut self, bytes: [u8; N]) {
        self.put(&bytes);
    }
}

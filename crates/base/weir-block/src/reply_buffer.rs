//! Buffer in which a session collects its replies.
//!
//! `outgoing` in weir-net sends the buffer; each protocol encodes its own replies.
//!
//! Invariant: bytes are initialised only once, when the buffer grows, so that a reply spends no
//! time on clearing the space for its data.

/// Size up to which a growing buffer doubles. One send rarely has more bytes of replies than this.
const DOUBLED_BYTES_MAX: usize = 256 << 10;

/// Growing buffer that provides space for data without clearing it first.
#[derive(Debug, Default)]
pub struct OutBuf {
    bytes: Vec<u8>,
    used: usize,
}

impl OutBuf {
    /// Creates an empty buffer with a capacity of `len` bytes.
    pub fn with_room(len: usize) -> Self {
        Self { bytes: vec![0; len], used: 0 }
    }

    /// Number of content bytes.
    pub const fn len(&self) -> usize {
        self.used
    }

    /// True if the buffer has no content.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Capacity of the buffer in bytes.
    pub const fn room(&self) -> usize {
        self.bytes.len()
    }

    /// Content of the buffer.
    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }

    /// Discards the content after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.used = self.used.min(len);
    }

    /// Appends `len` bytes with undefined content, and returns them; the caller must overwrite all
    /// of them.
    #[inline]
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        let start = self.used;
        let end = start + len;
        if end > self.bytes.len() {
            self.grow(end);
        }
        self.used = end;
        self.bytes.get_mut(start..end).unwrap_or_default()
    }

    /// Copies the content into a new buffer instead of extending the old one: the kernel provides
    /// large zeroed buffers at no cost, but clearing the new part of an extended buffer would cost
    /// time.
    #[cold]
    fn grow(&mut self, len: usize) {
        // Doubling a large buffer would waste memory, so a large buffer grows by only a quarter of
        // its size.
        let now = self.bytes.len();
        let doubled = if now < DOUBLED_BYTES_MAX { 2 * now } else { now + now / 4 };
        let mut bytes = vec![0; len.max(doubled).max(4096)];
        if let Some(head) = bytes.get_mut(..self.used) {
            head.copy_from_slice(self.filled());
        }
        self.bytes = bytes;
    }

    /// Frees unused capacity if the capacity exceeds `keep` and less than half of it is used.
    pub fn give_up_room(&mut self, keep: usize) {
        if self.bytes.len() > keep && self.used < self.bytes.len() / 2 {
            self.bytes.truncate(self.used);
            self.bytes.shrink_to_fit();
        }
    }

    /// Appends bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends an array of bytes.
    #[inline]
    pub fn put_array<const N: usize>(&mut self, bytes: [u8; N]) {
        self.put(&bytes);
    }

    /// Overwrites content from offset `at` with the bytes that `write` appends; the content behind
    /// them stays. Panics if they extend beyond the end of the content.
    pub fn rewrite(&mut self, at: usize, write: impl FnOnce(&mut Self)) {
        let end = self.used;
        assert!(at <= end, "offset {at} of {end} bytes");
        self.used = at;
        write(self);
        assert!(self.used <= end, "{} of {end} bytes", self.used);
        self.used = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_part_leaves_the_rest_of_the_content() {
        let mut out = OutBuf::default();
        out.put(b"head data");
        out.rewrite(1, |out| out.put(b"EA"));
        assert_eq!(out.filled(), b"hEAd data");
    }

    #[test]
    #[should_panic(expected = "10 of 9 bytes")]
    fn rewriting_beyond_the_content_panics() {
        let mut out = OutBuf::default();
        out.put(b"head data");
        out.rewrite(7, |out| out.put(b"abc"));
    }
}

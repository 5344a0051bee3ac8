//! Encoder of XDR values.
//!
//! `types` encodes composed types with it.
//!
//! Spec: RFC 4506 sections 4.1 to 4.11.
//!
//! Invariant: padding bytes are zero.

use weir_block::OutBuf;

/// Appends XDR values to a buffer.
///
/// The caller sizes the buffer ([`OutBuf::with_room`]), so that it seldom grows.
#[derive(Debug)]
pub struct Encoder<'b> {
    out: &'b mut OutBuf,
}

/// Number of padding bytes behind an opaque of `len` bytes: 0 to 3.
#[inline]
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() % 4
}

impl<'b> Encoder<'b> {
    /// Creates an encoder that appends to `out`.
    #[inline]
    pub const fn new(out: &'b mut OutBuf) -> Self {
        Self { out }
    }

    /// Length of the buffer in bytes, including the bytes before the first value.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a position in the buffer, no container")]
    pub const fn len(&self) -> usize {
        self.out.len()
    }

    /// Removes the bytes of the buffer after the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// Appends an unsigned integer (4.2), or the number of an enumeration.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.out.put_array(value.to_be_bytes());
    }

    /// Appends an unsigned hyper integer (4.5).
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.out.put_array(value.to_be_bytes());
    }

    /// Appends a Boolean (4.4).
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Appends an opaque of fixed length (4.9) and its padding.
    #[inline]
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.out.put(bytes);
        self.pad(bytes.len());
    }

    /// Appends the length, the bytes and the padding of an opaque or string (4.10, 4.11). `bytes`
    /// is shorter than 4 GiB.
    #[inline]
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("an opaque is shorter than 4 GiB"));
        self.fixed(bytes);
    }

    /// Appends the padding of an opaque of `len` bytes.
    #[inline]
    pub fn pad(&mut self, len: usize) {
        self.out.space(padding(len)).fill(0);
    }

    /// Appends `len` bytes with undefined content. The caller must overwrite all of them.
    #[inline]
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        self.out.space(len)
    }

    /// Overwrites the buffer from offset `at` with the values that `encode` appends; the content
    /// behind them stays. Panics if they extend beyond the end of the content.
    #[inline]
    pub fn rewrite(&mut self, at: usize, encode: impl FnOnce(&mut Encoder<'_>)) {
        self.out.rewrite(at, |out| encode(&mut Encoder { out }));
    }
}

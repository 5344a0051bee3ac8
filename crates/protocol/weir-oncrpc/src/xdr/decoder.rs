//! Decoder of XDR values, which borrows from its input.
//!
//! `types` decodes composed types with it.
//!
//! Spec: RFC 4506 sections 4.1 to 4.11.
//!
//! Invariants:
//! - the decoder checks a length against its bound before it uses the length;
//! - the decoder accepts any padding bytes: RFC 4506 requires zeros, but libtirpc and Linux ignore
//!   the padding of their peers, so a client with other padding works with them.

use super::encoder::padding;
use super::error::XdrError;

/// Reads XDR values from the start of a byte slice.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Creates a decoder at the first byte of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that are not decoded yet.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Ends the decoding of a whole message.
    ///
    /// # Errors
    /// [`XdrError::Trailing`] if bytes are left.
    #[inline]
    pub const fn finish(&self) -> Result<(), XdrError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(XdrError::Trailing { bytes: self.rest.len() })
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        let (head, tail) = self.rest.split_first_chunk().ok_or(XdrError::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    #[inline]
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], XdrError> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or(XdrError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    /// Reads an unsigned integer (4.2), or the number of an enumeration.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads an unsigned hyper integer (4.5).
    #[inline]
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a Boolean (4.4): the numbers 0 and 1.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(XdrError::UnknownValue { name: "bool", value }),
        }
    }

    /// Reads the length of an opaque, string or array: at most `max` bytes or elements.
    #[inline]
    pub fn length(&mut self, max: usize) -> Result<usize, XdrError> {
        let len = self.u32()? as usize;
        if len > max { Err(XdrError::TooLong { len, max }) } else { Ok(len) }
    }

    /// Reads an opaque of fixed length (4.9) and its padding.
    #[inline]
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        let bytes = self.array()?;
        self.bytes(padding(N))?;
        Ok(bytes)
    }

    /// Reads an opaque or string of variable length (4.10, 4.11): at most `max` bytes, and their
    /// padding.
    #[inline]
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], XdrError> {
        let len = self.length(max)?;
        let bytes = self.bytes(len)?;
        self.bytes(padding(len))?;
        Ok(bytes)
    }
}

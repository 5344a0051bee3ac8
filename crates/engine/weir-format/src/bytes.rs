//! Little-endian writer and reader; every structure of this crate is encoded with them.
//!
//! The structures are in the other modules.
//!
//! Invariants: the reader never reads past its slice; a string is a `u16` length and UTF-8.

use crate::error::FormatError;

/// One field of a structure, for the printed documentation.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Width of the field in bytes; 0: variable.
    pub bytes: usize,
    /// Name of the field.
    pub name: &'static str,
    /// Meaning and unit of the value.
    pub meaning: &'static str,
}

/// Shorthand for the `FIELDS` tables.
pub(crate) const fn field(bytes: usize, name: &'static str, meaning: &'static str) -> Field {
    Field { bytes, name, meaning }
}

#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    /// A writer with memory for `bytes` bytes: a structure of this size takes one allocation.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    pub(crate) fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    /// Writes a number of at most 48 bits.
    pub(crate) fn u48(&mut self, v: u64) {
        let [low @ .., high, higher] = v.to_le_bytes();
        assert_eq!((high, higher), (0, 0), "{v} has at most 48 bits");
        self.bytes(&low);
    }

    pub(crate) fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    pub(crate) fn u128(&mut self, v: u128) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    pub(crate) fn str(&mut self, v: &str) {
        let len = u16::try_from(v.len()).expect("names and paths are bounded below 64 KiB");
        self.u16(len);
        self.0.extend_from_slice(v.as_bytes());
    }

    pub(crate) fn bytes(&mut self, v: &[u8]) {
        self.0.extend_from_slice(v);
    }

    /// Writes the length of a part as `u16`, then the part.
    pub(crate) fn sized(&mut self, part: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        part(&mut inner);
        self.u16(u16::try_from(inner.0.len()).expect("a part is shorter than 64 KiB"));
        self.bytes(&inner.0);
    }

    /// Appends zeros until `len` bytes are written.
    pub(crate) fn pad_to(&mut self, len: usize) {
        assert!(self.0.len() <= len, "a structure exceeds its space: {} > {len}", self.0.len());
        self.0.resize(len, 0);
    }
}

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    /// Number of unread bytes.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) =
            self.rest.split_at_checked(len).ok_or(FormatError::Truncated { what: self.what })?;
        self.rest = rest;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, rest) =
            self.rest.split_first_chunk::<N>().ok_or(FormatError::Truncated { what: self.what })?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FormatError> {
        self.fixed::<1>().map(|[b]| b)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.fixed().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.fixed().map(u32::from_le_bytes)
    }

    pub(crate) fn u48(&mut self) -> Result<u64, FormatError> {
        let (low, high) = (self.u32()?, self.u16()?);
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.fixed().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, FormatError> {
        self.fixed().map(u128::from_le_bytes)
    }

    pub(crate) fn str(&mut self, field: &'static str) -> Result<String, FormatError> {
        let len = self.u16()?;
        let bytes = self.take(usize::from(len))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.bad(field, u64::from(len)))
    }

    /// Reads the remaining bytes as text.
    pub(crate) fn rest_str(&mut self, field: &'static str) -> Result<String, FormatError> {
        let bytes = self.take(self.left())?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.bad(field, bytes.len() as u64))
    }

    /// Reads a part that [`Writer::sized`] wrote.
    pub(crate) fn sized(&mut self) -> Result<Self, FormatError> {
        let len = usize::from(self.u16()?);
        Ok(Self { rest: self.take(len)?, what: self.what })
    }

    /// Refuses unread bytes. The error names `field` and the number of these bytes.
    pub(crate) fn end(&self, field: &'static str) -> Result<(), FormatError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.bad(field, self.rest.len() as u64)) }
    }

    /// Skips the next bytes. Refuses them if they are not zero.
    pub(crate) fn skip_zeros(&mut self, bytes: usize) -> Result<(), FormatError> {
        Self { rest: self.take(bytes)?, what: self.what }.zeros()
    }

    /// Refuses unread bytes that are not zero.
    pub(crate) fn zeros(&self) -> Result<(), FormatError> {
        match self.rest.iter().find(|byte| **byte != 0) {
            None => Ok(()),
            Some(byte) => Err(self.bad("zero", *byte)),
        }
    }

    pub(crate) fn bad(&self, field: &'static str, value: impl Into<u64>) -> FormatError {
        FormatError::Field { what: self.what, field, value: value.into() }
    }
}

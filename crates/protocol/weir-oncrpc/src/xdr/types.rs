//! XDR types: the trait, and its implementations for the types of the XDR language.
//!
//! `macros` implements the trait for the structures and enumerations of programs.
//!
//! Spec: RFC 4506 section 4.
//!
//! Invariant: each value of [`Opaque`] and [`Array`] is within its bound, so encoding cannot fail.

use super::decoder::Decoder;
use super::encoder::Encoder;
use super::error::XdrError;

/// Bound of the XDR types `opaque<>` and `string<>`. Such a value borrows from its record, and the
/// limit of the record bounds it.
pub const UNBOUNDED: usize = u32::MAX as usize;

/// Type with an XDR representation. `'a` is the lifetime of the input that the value borrows from.
pub trait Xdr<'a>: Sized {
    /// Reads a value.
    ///
    /// # Errors
    /// The input ends inside the value, or it is no value of this type. The position of the decoder
    /// is then undefined.
    fn decode(input: &mut Decoder<'a>) -> Result<Self, XdrError>;

    /// Appends the value.
    fn encode(&self, out: &mut Encoder<'_>);

    /// Reads a value that is the whole of `bytes`.
    ///
    /// # Errors
    /// As [`Xdr::decode`]; [`XdrError::Trailing`] if bytes follow the value.
    fn decode_whole(bytes: &'a [u8]) -> Result<Self, XdrError> {
        let mut input = Decoder::new(bytes);
        let value = Self::decode(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}

/// `void` (4.16).
impl Xdr<'_> for () {
    fn decode(_: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(())
    }

    fn encode(&self, _: &mut Encoder<'_>) {}
}

/// `unsigned int` (4.2).
impl Xdr<'_> for u32 {
    #[inline]
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        input.u32()
    }

    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(*self);
    }
}

/// `int` (4.1).
impl Xdr<'_> for i32 {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(input.u32()?.cast_signed())
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(self.cast_unsigned());
    }
}

/// `unsigned hyper` (4.5).
impl Xdr<'_> for u64 {
    #[inline]
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        input.u64()
    }

    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.u64(*self);
    }
}

/// `bool` (4.4).
impl Xdr<'_> for bool {
    #[inline]
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        input.bool()
    }

    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.bool(*self);
    }
}

/// `opaque[N]` (4.9).
impl<const N: usize> Xdr<'_> for [u8; N] {
    #[inline]
    fn decode(input: &mut Decoder<'_>) -> Result<Self, XdrError> {
        input.fixed()
    }

    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.fixed(self);
    }
}

/// Optional data `*` (4.19), and a union with a Boolean discriminant and a `void` arm for FALSE.
impl<'a, T: Xdr<'a>> Xdr<'a> for Option<T> {
    #[inline]
    fn decode(input: &mut Decoder<'a>) -> Result<Self, XdrError> {
        if input.bool()? { T::decode(input).map(Some) } else { Ok(None) }
    }

    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.bool(self.is_some());
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

/// `opaque<MAX>` or `string<MAX>` (4.10, 4.11): at most `MAX` bytes, borrowed from the input. A
/// string need not be UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opaque<'a, const MAX: usize>(&'a [u8]);

impl<'a, const MAX: usize> Opaque<'a, MAX> {
    /// Value of length 0.
    pub const EMPTY: Self = Self(&[]);

    /// Creates a value for encoding.
    ///
    /// # Errors
    /// [`XdrError::TooLong`] if `bytes` is longer than `MAX`.
    pub const fn new(bytes: &'a [u8]) -> Result<Self, XdrError> {
        if bytes.len() > MAX {
            return Err(XdrError::TooLong { len: bytes.len(), max: MAX });
        }
        Ok(Self(bytes))
    }

    /// Content: 0 to `MAX` bytes.
    #[inline]
    pub const fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a, const MAX: usize> Xdr<'a> for Opaque<'a, MAX> {
    #[inline]
    fn decode(input: &mut Decoder<'a>) -> Result<Self, XdrError> {
        input.opaque(MAX).map(Self)
    }

    #[inline]
    fn encode(&self, out: &mut Encoder<'_>) {
        out.opaque(self.0);
    }
}

/// Array of variable length `T<MAX>` (4.13): a count, then the elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Default for Array<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Array<T, MAX> {
    /// Creates an array for encoding.
    ///
    /// # Errors
    /// [`XdrError::TooLong`] if it has more than `MAX` elements.
    pub fn new(items: Vec<T>) -> Result<Self, XdrError> {
        if items.len() > MAX {
            return Err(XdrError::TooLong { len: items.len(), max: MAX });
        }
        Ok(Self(items))
    }

    /// Elements: at most `MAX`.
    pub fn items(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T: Xdr<'a>, const MAX: usize> Xdr<'a> for Array<T, MAX> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let count = input.length(MAX)?;
        // The vector grows with the decoded elements: the count is within the bound, but the input
        // may still be too short for it.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::decode(input)?);
        }
        Ok(Self(items))
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(self.0.len() as u32);
        self.0.iter().for_each(|item| item.encode(out));
    }
}

/// Linked list, as RFC 4506 section 4.19 shows: each element follows a Boolean TRUE, and FALSE ends
/// the list. The length of the input bounds the number of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'a, T: Xdr<'a>> Xdr<'a> for List<T> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let mut items = Vec::new();
        while input.bool()? {
            items.push(T::decode(input)?);
        }
        Ok(Self(items))
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        for item in &self.0 {
            out.bool(true);
            item.encode(out);
        }
        out.bool(false);
    }
}

/// Error of a procedure: the default arm of a union over a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed<S, F> {
    /// Status, never the number 0.
    pub status: S,
    /// Content of the default arm.
    pub info: F,
}

/// Union over a status (4.15) in which the number 0 means success and the default arm describes a
/// failure. The enumeration `S` has no value 0.
impl<'a, T: Xdr<'a>, S: Xdr<'a>, F: Xdr<'a>> Xdr<'a> for Result<T, Failed<S, F>> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, XdrError> {
        if input.clone().u32()? == 0 {
            input.u32()?;
            return T::decode(input).map(Ok);
        }
        Ok(Err(Failed { status: S::decode(input)?, info: F::decode(input)? }))
    }

    fn encode(&self, out: &mut Encoder<'_>) {
        match self {
            Ok(value) => {
                out.u32(0);
                value.encode(out);
            }
            Err(failed) => {
                failed.status.encode(out);
                failed.info.encode(out);
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! key=value text: taken apart, put together, gathered over several PDUs.
//!
//! Not here: what keys mean (`terms`, `login`).
//!
//! Spec: RFC 7143 6.1 (text format), 6.2 (negotiation), 13 (keys).
//!
//! Invariants:
//! - text of one negotiation is at most [`TEXT_BYTES_MAX`] long and has at most [`KEYS_MAX`] keys;
//! - a value that is not of its key's kind is an answer of `Reject`, never a guess.

use base64::Engine as _;

use crate::limits::{KEYS_MAX, TEXT_BYTES_MAX};

/// Longest key (6.1).
const KEY_BYTES_MAX: usize = 63;
/// Longest binary value (6.1): a CHAP challenge has 1024 bytes at most.
const BINARY_BYTES_MAX: usize = 1024;

/// An answer to a key that nobody here knows.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// An answer to a value that cannot be.
pub const REJECT: &str = "Reject";
/// An answer to a key that means nothing in this session.
pub const IRRELEVANT: &str = "Irrelevant";
/// An answer, or a list's member: nothing of the kind.
pub const NONE: &str = "None";

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// More than one negotiation needs.
    #[error("text of more than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// More keys than there can be.
    #[error("more than {KEYS_MAX} keys in one text")]
    TooManyKeys,
    /// No text, or no key=value.
    #[error("text that is no list of key=value")]
    Malformed,
}

/// Takes a whole text apart.
///
/// # Errors
/// The text as a whole is to be refused.
pub fn pairs(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    let mut pairs = Vec::new();
    for part in text.split(|byte| *byte == 0).filter(|part| !part.is_empty()) {
        let part = std::str::from_utf8(part).map_err(|_| TextError::Malformed)?;
        let (key, value) = part.split_once('=').ok_or(TextError::Malformed)?;
        let is_key = |c: char| c.is_ascii_alphanumeric() || "._-+@#".contains(c);
        if key.is_empty() || key.len() > KEY_BYTES_MAX || !key.chars().all(is_key) {
            return Err(TextError::Malformed);
        }
        if pairs.len() == KEYS_MAX {
            return Err(TextError::TooManyKeys);
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// Appends one pair.
pub fn put(out: &mut Vec<u8>, key: &str, value: &str) {
    for part in [key, "=", value, "\0"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Text that comes in several PDUs.
#[derive(Debug, Default)]
pub struct Gathered(Vec<u8>);

impl Gathered {
    /// Adds the data of a PDU; keys may be cut anywhere between two of them.
    ///
    /// # Errors
    /// It became longer than any negotiation needs.
    pub fn add(&mut self, data: &[u8]) -> Result<(), TextError> {
        if self.0.len() + data.len() > TEXT_BYTES_MAX {
            return Err(TextError::TooLong);
        }
        self.0.extend_from_slice(data);
        Ok(())
    }

    /// Takes what was gathered.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A boolean value.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// A boolean as text.
pub const fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// A number, decimal or hexadecimal, within a range.
pub fn number(value: &str, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
    let hex = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((value, 10), |digits| (digits, 16));
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok().filter(|number| range.contains(number))
}

/// The first member of the list that `supported` has: the initiator's list is in the order of its
/// preference.
pub fn choose<'a>(list: &str, supported: &[&'a str]) -> Option<&'a str> {
    list.split(',').find_map(|one| supported.iter().find(|known| **known == one).copied())
}

/// A binary value: `0x` and hexadecimal digits, or `0b` and base64.
pub fn binary(value: &str) -> Option<Vec<u8>> {
    let (kind, digits) = value.split_at_checked(2)?;
    let bytes = match kind {
        "0x" | "0X" => from_hex(digits)?,
        "0b" | "0B" if digits.len() <= 2 * BINARY_BYTES_MAX => {
            base64::engine::general_purpose::STANDARD.decode(digits).ok()?
        }
        _ => return None,
    };
    (!bytes.is_empty() && bytes.len() <= BINARY_BYTES_MAX).then_some(bytes)
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    if digits.len() > 2 * BINARY_BYTES_MAX {
        return None;
    }
    let nibble = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    // An odd number of digits has a zero in front that was left out.
    let (first, rest) = digits.as_bytes().split_at(digits.len() % 2);
    let mut bytes = first.iter().map(nibble).collect::<Option<Vec<u8>>>()?;
    let (pairs, _) = rest.as_chunks::<2>();
    for [high, low] in pairs {
        bytes.push(nibble(high)? << 4 | nibble(low)?);
    }
    Some(bytes)
}

/// Bytes as a binary value.
pub fn to_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    "0x".chars().chain(digits).collect()
}

#[cfg(test)]
mod tests;

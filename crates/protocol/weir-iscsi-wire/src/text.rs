//! key=value text: parsing and encoding, and assembly of a text from several PDUs.
//!
//! The logins of weir-iscsi (`negotiated`, `phases`) and weir-initiator interpret the keys.
//!
//! Spec: RFC 7143 6.1 (text format), 6.2 (negotiation), 13 (keys).
//!
//! Invariants:
//! - the text of one negotiation has at most [`TEXT_BYTES_MAX`] bytes and [`KEYS_MAX`] keys;
//! - a value of a wrong type or outside its range is refused, never interpreted in another way.

use base64::Engine as _;

use crate::limits::{KEYS_MAX, TEXT_BYTES_MAX};

/// Longest key name (6.1).
const KEY_BYTES_MAX: usize = 63;
/// Longest binary value (6.1): a CHAP challenge has at most 1024 bytes.
const BINARY_BYTES_MAX: usize = 1024;

/// Response to an unknown key.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// Response to an invalid value.
pub const REJECT: &str = "Reject";
/// Response to a key that is irrelevant in this session.
pub const IRRELEVANT: &str = "Irrelevant";
/// Response to a key, or value in a list, that selects none of the alternatives.
pub const NONE: &str = "None";

/// Error in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text exceeds [`TEXT_BYTES_MAX`].
    #[error("text of more than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// The text has more than [`KEYS_MAX`] keys.
    #[error("more than {KEYS_MAX} keys in one text")]
    TooManyKeys,
    /// The text is not UTF-8, or not a list of key=value pairs.
    #[error("text that is no list of key=value")]
    Malformed,
}

/// Parses a complete text into pairs.
///
/// # Errors
/// The text is invalid, and the caller must refuse all of it.
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

/// Appends one key=value pair.
pub fn put(out: &mut Vec<u8>, key: &str, value: &str) {
    for part in [key, "=", value, "\0"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Text of a negotiation, assembled from several PDUs.
#[derive(Debug, Default)]
pub struct Gathered(Vec<u8>);

impl Gathered {
    /// Appends the data of a PDU; a key or value may continue in the next PDU.
    ///
    /// # Errors
    /// The text exceeds [`TEXT_BYTES_MAX`].
    pub fn add(&mut self, data: &[u8]) -> Result<(), TextError> {
        if self.0.len() + data.len() > TEXT_BYTES_MAX {
            return Err(TextError::TooLong);
        }
        self.0.extend_from_slice(data);
        Ok(())
    }

    /// Takes the assembled text and leaves an empty one.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Returns true if no text was added since the last [`Self::take`].
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Parses a boolean value.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// Formats a boolean value as text.
pub const fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// Parses a decimal or hexadecimal number within a range.
pub fn number(value: &str, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
    let hex = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((value, 10), |digits| (digits, 16));
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok().filter(|number| range.contains(number))
}

/// Selects the first value of `list` that is also in `supported`. The initiator sends its values in
/// the order of its preference.
pub fn choose<'a>(list: &str, supported: &[&'a str]) -> Option<&'a str> {
    list.split(',').find_map(|one| supported.iter().find(|known| **known == one).copied())
}

/// Parses a binary value: `0x` and hexadecimal digits, or `0b` and base64.
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
    // With an odd number of digits, the first digit is a byte on its own: its leading zero is
    // omitted.
    let (first, rest) = digits.as_bytes().split_at(digits.len() % 2);
    let mut bytes = first.iter().map(nibble).collect::<Option<Vec<u8>>>()?;
    let (pairs, _) = rest.as_chunks::<2>();
    for [high, low] in pairs {
        bytes.push(nibble(high)? << 4 | nibble(low)?);
    }
    Some(bytes)
}

/// Encodes bytes as a hexadecimal binary value.
pub fn to_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    "0x".chars().chain(digits).collect()
}

#[cfg(test)]
mod tests;

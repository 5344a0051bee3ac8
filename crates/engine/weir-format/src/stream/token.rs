//! The resume token: the position at which an interrupted stream resumes, as text for users.
//!
//! weir-dataset compares a token with the datasets.
//!
//! Invariant: a changed or truncated token is refused.
//!
//! ```text
//! "weir1-" and in hexadecimal: to:8 | from:8 | next:8 | check:4 (low half of XXH3-64 of the 24)
//! "weir2-", for objects:       to:8 | from:8 | next:8 | object:8 | check:4 (of the 32)
//! ```

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use weir_base::ObjectId;
use weir_codec::checksum::xxh3_64;

const MARK: &str = "weir1-";
/// Mark of a token with an object.
const OBJECT_MARK: &str = "weir2-";
const BODY_BYTES: usize = 24;
const OBJECT_BODY_BYTES: usize = BODY_BYTES + 8;
const CHECK_BYTES: usize = 4;

/// Position at which a stream resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    /// Guid of the snapshot that is being received.
    pub to: u64,
    /// Guid of the stream's base snapshot; `None` for a full stream.
    pub from: Option<u64>,
    /// Object of `next_record`; 0 for a volume, and before the first object of a dataset.
    pub next_object: ObjectId,
    /// The first record that the receiver does not have.
    pub next_record: u64,
}

/// The text is not a resume token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a resume token: copy the complete token that 'weir receive' printed")]
pub struct TokenError;

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [self.to, self.from.unwrap_or(0), self.next_record, self.next_object.0];
        let (mark, count) = if words[3] == 0 { (MARK, 3) } else { (OBJECT_MARK, 4) };
        let body: Vec<u8> = words.into_iter().take(count).flat_map(u64::to_le_bytes).collect();
        let check = xxh3_64(&[&body]) as u32;
        let mut text = String::from(mark);
        for byte in body.into_iter().chain(check.to_le_bytes()) {
            write!(text, "{byte:02x}")?;
        }
        f.pad(&text)
    }
}

impl FromStr for ResumeToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let of_volume = text.strip_prefix(MARK).map(|digits| (digits, BODY_BYTES));
        let of_object = || text.strip_prefix(OBJECT_MARK).map(|rest| (rest, OBJECT_BODY_BYTES));
        let (digits, body_bytes) = of_volume.or_else(of_object).ok_or(TokenError)?;
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        if !rest.is_empty() || pairs.len() != body_bytes + CHECK_BYTES {
            return Err(TokenError);
        }
        let digit = |d: u8| char::from(d).to_digit(16).ok_or(TokenError);
        let bytes = pairs.iter().map(|[high, low]| Ok((digit(*high)? << 4 | digit(*low)?) as u8));
        let bytes = bytes.collect::<Result<Vec<u8>, TokenError>>()?;
        let (body, check) = bytes.split_at_checked(body_bytes).ok_or(TokenError)?;
        if (xxh3_64(&[body]) as u32).to_le_bytes() != *check {
            return Err(TokenError);
        }
        let (words, _) = body.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        let from = Some(word(1)).filter(|from| *from != 0);
        let next_object = ObjectId(word(3));
        if next_object.0 == 0 && body_bytes == OBJECT_BODY_BYTES {
            return Err(TokenError);
        }
        Ok(Self { to: word(0), from, next_object, next_record: word(2) })
    }
}

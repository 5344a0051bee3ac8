//! Sizes as people write them: `10GiB`, `512M`, `4096`.
//!
//! Not here: rounding to blocks; the caller knows its unit and says so in its own error.
//!
//! Invariants:
//! - `GiB`, `G` and `g` are 2^30 bytes, `GB` is 10^9, and so for the other units; no sign, no
//!   overflow, nothing after the unit;
//! - every size that [`Human`] prints can be read: a fraction of a unit that is no whole number of
//!   bytes counts as the next whole number.

use std::fmt;

/// Why a size could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad size {text:?}: {why}; write a number and a unit, such as 10GiB, 512M or 4096")]
pub struct SizeError {
    text: String,
    why: &'static str,
}

/// Reads a size in bytes. A fraction of a unit is rounded up to a whole number of bytes.
///
/// # Errors
/// Empty text, a sign, an unknown unit, a fraction of a byte, or more than 2^64-1 bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let bad = |why| SizeError { text: text.to_owned(), why };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    if number.is_empty() {
        return Err(bad(if trimmed.starts_with('-') {
            "a size cannot be negative"
        } else {
            "it does not start with a number"
        }));
    }
    let unit = unit.trim_start().to_ascii_lowercase();
    let power = |prefix: char| "kmgtp".find(prefix).map(|at| at as u32 + 1);
    let unit_bytes = match unit.as_bytes() {
        [] | [b'b'] => Some(1),
        [prefix] | [prefix, b'i', b'b'] => power(char::from(*prefix)).map(|n| 1 << (10 * n)),
        [prefix, b'b'] => power(char::from(*prefix)).map(|n| 1000_u128.pow(n)),
        _ => None,
    };
    let unit_bytes: u128 = unit_bytes.ok_or_else(|| bad("unknown unit"))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return Err(bad("not a number"));
    }
    let scale = 10_u128.pow(fraction.len() as u32);
    let digits: u128 =
        format!("{whole}{fraction}").parse().map_err(|_| bad("more than 2^64 bytes"))?;
    let scaled = digits.checked_mul(unit_bytes).ok_or_else(|| bad("more than 2^64 bytes"))?;
    if unit_bytes == 1 && scaled % scale != 0 {
        return Err(bad("not a whole number of bytes"));
    }
    u64::try_from(scaled.div_ceil(scale)).map_err(|_| bad("more than 2^64 bytes"))
}

/// True for a size written in a unit of ten or with a fraction, such as `10GB` or `9.31GiB`: it may
/// be no whole number of blocks, and its writer did not mean to count them.
pub fn is_rounded(text: &str) -> bool {
    if text.contains('.') {
        return true;
    }
    let unit = text.trim().trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim();
    let unit = unit.to_ascii_lowercase();
    unit.len() == 2 && unit.ends_with('b')
}

/// Both forms of a size: `10GiB (10,737,418,240 bytes)`.
pub fn both_forms(bytes: u64) -> String {
    let digits = bytes.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{} ({grouped} bytes)", Human(bytes))
}

/// Prints a size with at most two decimals, the way `zpool list` does: `10GiB`, `1.50MiB`, `512B`.
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let step = (0..5).take_while(|s| self.0 >> (10 * (s + 1)) != 0).count();
        let unit = 1_u64 << (10 * step);
        if self.0.is_multiple_of(unit) {
            write!(f, "{}{}", self.0 / unit, UNITS[step])
        } else {
            write!(f, "{:.2}{}", self.0 as f64 / unit as f64, UNITS[step])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("4096", 4096),
            ("10GiB", 10 << 30),
            ("10g", 10 << 30),
            ("1.5M", 3 << 19),
            ("16 TiB", 16 << 40),
            ("10GB", 10_000_000_000),
            ("1.5mb", 1_500_000),
            ("2kB", 2_000),
            ("3P", 3 << 50),
            ("7b", 7),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    // `weir get` printed refreservation=201.58MiB, and `weir set` refused it.
    #[test]
    fn sizes_that_are_printed_can_be_read() {
        assert_eq!(parse("201.58MiB"), Ok(211_371_951));
        for bytes in [1, 1023, 1025, 1500, 211_371_212, (3 << 40) + 1, u64::MAX >> 14] {
            let text = Human(bytes).to_string();
            let read = parse(&text).expect(&text);
            assert!(read.abs_diff(bytes) <= bytes / 100, "{bytes} bytes read as {read}");
        }
    }

    #[test]
    fn refuses_the_rest_and_says_why() {
        for text in ["", "GiB", "10GG", "-1", "1.2.3G", "0.3b", "99999999999P", "1e9", ".5G"] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn units_of_ten_are_told_apart_and_both_forms_are_said() {
        assert!(["10GB", "1.5 tb", "9.31GiB"].iter().all(|text| is_rounded(text)));
        assert!(["10G", "10GiB", "4096", "512b"].iter().all(|text| !is_rounded(text)));
        assert_eq!(both_forms(10 << 30), "10GiB (10,737,418,240 bytes)");
        assert_eq!(both_forms(512), "512B (512 bytes)");
    }

    #[test]
    fn prints_like_zpool() {
        assert_eq!(Human(512).to_string(), "512B");
        assert_eq!(Human(10 << 30).to_string(), "10GiB");
        assert_eq!(Human(3 << 19).to_string(), "1.50MiB");
        assert_eq!(Human(1500).to_string(), "1.46KiB");
    }
}

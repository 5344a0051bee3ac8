//! Text forms of sizes: `10GiB`, `512M`, `4096`.
//!
//! The callers round sizes to whole blocks or records, because only the caller knows which of these
//! units applies, and its errors name the unit.
//!
//! Invariants:
//! - `GiB`, `G` and `g` are 2^30 bytes, `GB` is 10^9 bytes, and so on for the other units. A sign,
//!   an overflow or text after the unit is an error;
//! - every size that [`Human`] prints can be parsed again: a fraction of a unit is rounded up to a
//!   whole number of bytes.

use std::fmt;

/// The text is not a valid size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad size {text:?}: {why}")]
pub struct SizeError {
    text: String,
    why: String,
    meant: Option<String>,
}

impl SizeError {
    /// Size that the user probably meant.
    pub fn meant(&self) -> Option<&str> {
        self.meant.as_deref()
    }
}

/// Prefixes of the units; each unit is 1024 or 1000 times the preceding unit.
const PREFIXES: &str = "kmgtpe";

/// Returns the error for an invalid text, with the cause and the size that the user probably meant.
fn refused(text: &str, why: &str) -> SizeError {
    let example = "write a number and a unit, such as 10GiB, 512M or 4096";
    let error = |why: String, meant: Option<String>| SizeError {
        text: text.to_owned(),
        why,
        meant: meant.filter(|meant| parse(meant).is_ok()),
    };
    let typed = text.trim();
    let end = typed.find(|c: char| !(c.is_ascii_digit() || ".,-+".contains(c)));
    let (number, unit) = typed.split_at(end.unwrap_or(typed.len()));
    if let Some(rest) = typed.strip_prefix('-').filter(|rest| !rest.is_empty()) {
        return error("a size cannot be negative".to_owned(), Some(rest.to_owned()));
    }
    if number.contains(',') {
        // If a number has several commas, they separate thousands.
        let is_decimal = number.matches(',').count() == 1 && !number.contains('.');
        return if is_decimal {
            error("write the decimal point".to_owned(), Some(typed.replace(',', ".")))
        } else {
            error("write the number without commas".to_owned(), Some(typed.replace(',', "")))
        };
    }
    if unit.starts_with('%') {
        return error(format!("a percentage is no size; {example}"), None);
    }
    if why == UNKNOWN_UNIT {
        let first = unit.trim().chars().next().unwrap_or_default().to_ascii_lowercase();
        let known = PREFIXES.contains(first).then(|| first.to_ascii_uppercase());
        let is_clear = unit.trim().chars().all(|c| c.is_ascii_alphabetic())
            && number.chars().all(|c| c.is_ascii_digit() || c == '.');
        let meant = is_clear.then(|| format!("{number}{}iB", known.unwrap_or('G')));
        let why = format!(
            "{UNKNOWN_UNIT} {:?}; the units are K, M, G, T, P and E (KiB to EiB, KB to EB)",
            unit.trim()
        );
        return error(why, meant);
    }
    error(format!("{why}; {example}"), None)
}

const UNKNOWN_UNIT: &str = "unknown unit";

/// Parses a size in bytes. A fraction of a unit is rounded up to a whole number of bytes.
///
/// # Errors
/// The text is empty, or has a sign, an unknown unit or a fraction of a byte, or means more than
/// 2^64-1 bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let bad = |why| refused(text, why);
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    if number.is_empty() {
        return Err(bad("it does not start with a number"));
    }
    let unit = unit.trim_start().to_ascii_lowercase();
    let power = |prefix: char| PREFIXES.find(prefix).map(|at| at as u32 + 1);
    let unit_bytes = match unit.as_bytes() {
        [] | [b'b'] => Some(1),
        [prefix] | [prefix, b'i', b'b'] => power(char::from(*prefix)).map(|n| 1 << (10 * n)),
        [prefix, b'b'] => power(char::from(*prefix)).map(|n| 1000_u128.pow(n)),
        _ => None,
    };
    let unit_bytes: u128 = unit_bytes.ok_or_else(|| bad(UNKNOWN_UNIT))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return Err(bad("not a number"));
    }
    let scale = 10_u128.pow(fraction.len() as u32);
    let digits: u128 =
        format!("{whole}{fraction}").parse().map_err(|_| bad("more than 2^64 bytes"))?;
    let scaled = digits.checked_mul(unit_bytes).ok_or_else(|| bad("more than 2^64 bytes"))?;
    if unit_bytes == 1 && scaled % scale != 0 {
        let mut error = bad("not a whole number of bytes");
        error.meant = Some(format!("{number}GiB")).filter(|_| unit.is_empty());
        return Err(error);
    }
    u64::try_from(scaled.div_ceil(scale)).map_err(|_| bad("more than 2^64 bytes"))
}

/// True if the text is a number of bytes without a unit.
pub fn has_no_unit(text: &str) -> bool {
    text.ends_with(|c: char| c.is_ascii_digit())
}

/// True if the text is a size in a decimal unit or with a fraction, such as `10GB` or `9.31GiB`.
/// With such a size the user does not mean an exact number of blocks, so the size may not be a
/// multiple of a block.
pub fn is_rounded(text: &str) -> bool {
    if text.contains('.') {
        return true;
    }
    let unit = text.trim().trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim();
    let unit = unit.to_ascii_lowercase();
    unit.len() == 2 && unit.ends_with('b')
}

/// Rounded form of a size, followed by the exact form: `10GiB (10,737,418,240 bytes)`.
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

/// Displays a size with at most two decimals, like `zpool list`: `10GiB`, `1.50MiB`, `512B`.
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
    fn common_size_notations_are_parsed() {
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

    // Regression: `weir get` printed refreservation=201.58MiB, and `weir set` refused it.
    #[test]
    fn printed_sizes_can_be_parsed() {
        assert_eq!(parse("201.58MiB"), Ok(211_371_951));
        for bytes in [1, 1023, 1025, 1500, 211_371_212, (3 << 40) + 1, u64::MAX >> 14] {
            let text = Human(bytes).to_string();
            let read = parse(&text).expect(&text);
            assert!(read.abs_diff(bytes) <= bytes / 100, "{bytes} bytes read as {read}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused_with_the_text() {
        for text in ["", "GiB", "10GG", "-1", "1.2.3G", "0.3b", "99999999999P", "1e9", ".5G"] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn error_has_the_cause_and_the_size_that_was_meant() {
        for (text, why, meant) in [
            ("-10GiB", "a size cannot be negative", Some("10GiB")),
            ("1,5GiB", "write the decimal point", Some("1.5GiB")),
            ("10,737,418,240", "write the number without commas", Some("10737418240")),
            ("50%", "a percentage is no size", None),
            ("10XB", "unknown unit \"XB\"; the units are K, M, G, T, P and E", Some("10GiB")),
            ("10Mbyte", "unknown unit \"Mbyte\"", Some("10MiB")),
            ("1.5", "not a whole number of bytes", Some("1.5GiB")),
            ("ten", "it does not start with a number; write a number and a unit", None),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.to_string().starts_with(&format!("bad size {text:?}: {why}")), "{error}");
            assert_eq!(error.meant(), meant, "{text}");
        }
        assert_eq!(parse("1EiB"), Ok(1 << 60));
        assert!(has_no_unit("10") && has_no_unit("1.5") && !has_no_unit("10b"));
    }

    #[test]
    fn decimal_units_are_recognised_and_both_forms_are_printed() {
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

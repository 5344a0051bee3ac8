//! Sizes and times in profiles: `4KiB`, `20GB`, `10m`, `500ms`.
//!
//! `weir_base::size` also accepts `K`, `M` and `G`, for powers of 1024. Published documents use
//! these units for powers of 1000 and of 1024, so a profile must use a unit with a single meaning.
//!
//! Invariants: GB is 10^9 bytes and GiB is 2^30 bytes; a unit is mandatory. `K`, `M` and `G` alone
//! are refused, and so are signs, overflows, and fractions of a byte or a millisecond.

use serde::Deserialize;

/// Size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Size(pub(super) u64);

/// Duration in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Time(pub(super) u64);

/// Reason for which a quantity cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {why}; write {example}")]
pub(super) struct QuantityError {
    text: String,
    why: &'static str,
    example: &'static str,
}

const SIZES: [(&str, u64); 11] = [
    ("B", 1),
    ("KB", 1000),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
];
const TIMES: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

impl TryFrom<String> for Size {
    type Error = QuantityError;

    fn try_from(text: String) -> Result<Self, QuantityError> {
        let example = "a number and a unit, such as 4KiB (4096 bytes) or 4KB (4000)";
        read(&text, &SIZES).map(Self).map_err(|why| QuantityError { text, why, example })
    }
}

impl TryFrom<String> for Time {
    type Error = QuantityError;

    fn try_from(text: String) -> Result<Self, QuantityError> {
        let example = "a number and a unit, such as 500ms, 10s, 5m or 2h";
        read(&text, &TIMES).map(Self).map_err(|why| QuantityError { text, why, example })
    }
}

fn read(text: &str, units: &[(&str, u64)]) -> Result<u64, &'static str> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    if number.is_empty() {
        return Err("does not start with a number");
    }
    let unit = unit.trim();
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(match unit {
            "" => "has no unit",
            "K" | "k" | "M" | "G" | "T" => "has a unit that may mean 1000 or 1024",
            _ => "has a unit that is not known",
        });
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return Err("is not a number");
    }
    let scale = 10_u128.pow(fraction.len() as u32);
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| "is too large")?;
    let scaled = digits.checked_mul(u128::from(*factor)).ok_or("is too large")?;
    if !scaled.is_multiple_of(scale) {
        return Err("is not a whole number of the smallest unit");
    }
    u64::try_from(scaled / scale).map_err(|_| "is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_units_differ() {
        let sizes = [
            ("4KiB", 4096),
            ("4KB", 4000),
            ("20GB", 20_000_000_000),
            ("1.5 GiB", 3 << 29),
            ("512B", 512),
            ("0B", 0),
        ];
        for (text, bytes) in sizes {
            assert_eq!(Size::try_from(text.to_owned()), Ok(Size(bytes)), "{text}");
        }
        for (text, ms) in [("10m", 600_000), ("1.5s", 1500), ("2h", 7_200_000), ("500ms", 500)] {
            assert_eq!(Time::try_from(text.to_owned()), Ok(Time(ms)), "{text}");
        }
    }

    #[test]
    fn ambiguous_or_malformed_quantity_is_refused() {
        for text in ["", "4K", "10G", "4096", "-1B", "KiB", "0.3B", "1.2.3GB", "99999999TiB", "1X"]
        {
            let error = Size::try_from(text.to_owned()).expect_err(text).to_string();
            assert!(error.starts_with(&format!("{text:?}")) && error.contains("4KiB"), "{error}");
        }
        for text in ["", "10", "10min", "0.0001ms", "-1s"] {
            assert!(Time::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}

//! Values of a job, parsed as fio parses them: numbers, sizes and times, one for each direction.
//!
//! `words` lists the options.
//!
//! Invariants: a number of which fio would parse only a part, such as 1.5g or 1h30m, is refused;
//! each error contains the line of the value.

use super::super::error::ProfileError;
use super::parse::{Job, Value};

/// Directions in the order in which fio lists their values: reads, writes, trims.
pub(super) const DIRECTIONS: [&str; 3] = ["reads", "writes", "trims"];

/// Size of a file, in bytes or in percent of the target's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Bytes(u64),
    /// Percentage of the target's size, 1 to 100.
    Percent(u64),
}

impl Value {
    /// Splits the value into values for reads, writes and trims. If the list has fewer values, the
    /// last value applies to the remaining directions. An empty value becomes `None`.
    pub(super) fn directions(&self) -> Result<[Option<&str>; 3], ProfileError> {
        let parts: Vec<&str> = self.text.split(',').map(str::trim).collect();
        if parts.len() > DIRECTIONS.len() {
            let what = format!("{:?} has more than three values", self.text);
            return Err(self.place.refuse(what, "give one for reads, writes and trims each"));
        }
        let last = parts.last().copied().unwrap_or_default();
        let part = |index: usize| Some(parts.get(index).copied().unwrap_or(last));
        Ok([0, 1, 2].map(|index| part(index).filter(|text| !text.is_empty())))
    }

    /// Returns an error that an option has this invalid value.
    pub(super) fn bad(&self, word: &str, action: &str) -> ProfileError {
        let action = if self.text.contains('$') {
            "fio takes this value from the environment or the machine; write the value itself"
        } else {
            action
        };
        self.place.refuse(format!("`{word}` is {:?}", self.text), action)
    }
}

impl Job {
    /// Parses an option as a number that is at least `least`; `None` if the job does not set the
    /// option.
    pub(super) fn number(&self, word: &str, least: u32) -> Result<Option<u32>, ProfileError> {
        let Some(value) = self.value(word) else { return Ok(None) };
        let number = self.bytes(&value.text).and_then(|number| u32::try_from(number).ok());
        let good = number.filter(|number| *number >= least);
        let action = format!("give one number of at least {least}");
        good.map(Some).ok_or_else(|| value.bad(word, &action))
    }

    /// Parses an option as one number for each direction; 0 means that the direction has no value.
    pub(super) fn numbers(&self, word: &str) -> Result<[Option<u64>; 3], ProfileError> {
        let Some(value) = self.value(word) else { return Ok([None; 3]) };
        let mut numbers = [None; 3];
        for (number, text) in numbers.iter_mut().zip(value.directions()?) {
            let Some(text) = text else { continue };
            let bad = || value.bad(word, "give a number, or one for reads and one for writes");
            *number = Some(self.bytes(text).ok_or_else(bad)?);
        }
        Ok(numbers)
    }

    /// True if an option is switched on; `default` if the job does not set the option.
    pub(super) fn flag(&self, word: &str, default: bool) -> Result<bool, ProfileError> {
        let Some(value) = self.value(word) else { return Ok(default) };
        match value.text.as_str() {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(value.bad(word, "give 0 or 1")),
        }
    }

    /// Parses an option as a file size.
    pub(super) fn amount(&self, word: &str) -> Result<Option<Amount>, ProfileError> {
        let Some(value) = self.value(word) else { return Ok(None) };
        let bad = || value.bad(word, "give one size, such as 4k or 10g, or 1% to 100%");
        if let Some(pct) = value.text.strip_suffix('%') {
            let pct = pct.parse::<u64>().ok().filter(|pct| *pct <= 100);
            return pct.map(|pct| Some(Amount::Percent(pct))).ok_or_else(bad);
        }
        self.bytes(&value.text).map(|bytes| Some(Amount::Bytes(bytes))).ok_or_else(bad)
    }

    /// Parses an option as a time and returns milliseconds. A time without a unit is in seconds.
    pub(super) fn time(&self, word: &str) -> Result<Option<u64>, ProfileError> {
        let Some(value) = self.value(word) else { return Ok(None) };
        let bad = || value.bad(word, "give one time of at most a year, such as 60, 5m or 500ms");
        time_ms(&value.text).map(Some).ok_or_else(bad)
    }

    /// Parses a number of bytes, with the `kb_base` that this job sets.
    pub(super) fn bytes(&self, text: &str) -> Option<u64> {
        let decimal = self.value("kb_base").is_some_and(|value| value.text == "1000");
        size_bytes(text, if decimal { 1000 } else { 1024 })
    }
}

/// Parses a time and returns milliseconds; `None` if fio would parse a different time, or if the
/// time exceeds 366 days.
pub(super) fn time_ms(text: &str) -> Option<u64> {
    const YEAR_MS: u64 = 366 * 86_400_000;
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor_us = match unit.to_ascii_lowercase().as_str() {
        "us" | "usec" => 1,
        "ms" | "msec" => 1000,
        "" | "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    let us = number.parse::<u64>().ok()?.checked_mul(factor_us)?;
    // Weir stores whole milliseconds, so refuse a fraction of a millisecond.
    Some(us / 1000).filter(|ms| us.is_multiple_of(1000) && *ms <= YEAR_MS)
}

/// Parses a number with a unit. If the base is 1024, `k`, `kb` and `ki` mean 1024 and `kib` means
/// 1000; if the base is 1000, the two meanings are swapped.
pub(super) fn size_bytes(text: &str, kb_base: u64) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number = number.parse::<u64>().ok()?;
    let mut letters = unit.chars();
    let power = match letters.next() {
        None => return Some(number),
        Some('b') if unit == "b" => return Some(number),
        Some('k') => 1,
        Some('m') => 2,
        Some('g') => 3,
        Some('t') => 4,
        Some('p') => 5,
        _ => return None,
    };
    let base = match letters.as_str() {
        "" | "b" | "i" => kb_base,
        "ib" if kb_base == 1000 => 1024,
        "ib" => 1000,
        _ => return None,
    };
    number.checked_mul(base.checked_pow(power)?)
}

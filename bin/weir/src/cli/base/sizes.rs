//! Sizes on the command line of `weir volume`: the size of a volume, its records and properties.
//!
//! Not here: the text forms of a size (weir-base), the server's rules for sizes (weir-api).
//!
//! Invariant: an error has the typed command with the size that the user probably meant, if the
//! code can guess that size.

use weir_api::ApiError;
use weir_api::types::{ShowPool, ShowVolume};
use weir_base::{ErrorKind, RecordSize, names, size};

use crate::cli::base::session::Session;
use crate::cli::base::typed;

/// Rejects a size that the user typed before the name of the volume.
pub(crate) fn check_order(verb: &str, name: &str, size: &str) -> Result<(), ApiError> {
    if names::volume(name).is_ok() || names::volume(size).is_err() {
        return Ok(());
    }
    let message = format!("{name:?} is no volume: the name of the volume comes before its size");
    Err(ApiError::new(ErrorKind::Invalid, message)
        .with_action(format!("weir volume {verb} {size} {name}")))
}

/// Rejects a size among the properties of a new volume, because the size is an argument of its own.
pub(crate) fn check_size_once(properties: &[String]) -> Result<(), ApiError> {
    let is_size = |text: &&String| text.starts_with("size=") || text.starts_with("volsize=");
    let Some(text) = properties.iter().find(is_size) else { return Ok(()) };
    let line = typed::rewritten(|mut words| {
        if let Some(at) = words.iter().position(|word| word.ends_with(text.as_str())) {
            let is_option = at > 0 && words[at - 1] == "-o";
            words.drain(at - usize::from(is_option)..=at);
        }
        words
    });
    Err(ApiError::new(ErrorKind::Invalid, "the size is given twice").with_action(line))
}

/// Rejects a percentage as a size. The error names the free space of the pool, and has the typed
/// command with this percentage as a number of bytes.
pub(crate) fn check_percentage(name: &str, text: &str, session: &Session) -> Result<(), ApiError> {
    const MIB: u64 = 1 << 20;
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<u64>().ok());
    let Some(percent) = percent.filter(|percent| *percent <= 100) else { return Ok(()) };
    let pool = name.split('/').next().unwrap_or_default();
    let free = session.call(ShowPool { name: pool.to_owned() })?.free_bytes;
    let bytes = (free / 100 * percent / MIB).max(1) * MIB;
    let message = format!(
        "a percentage is no size of a volume; pool {pool} has {} available",
        size::Human(free)
    );
    let error = ApiError::new(ErrorKind::Invalid, message);
    Err(typed::with_line(error, typed::line_with(text, &size::Human(bytes).to_string())))
}

/// Parses a size. An error has the typed command with the size that the user probably meant.
fn parse_size(text: &str) -> Result<u64, ApiError> {
    size::parse(text).map_err(|why| {
        let error = ApiError::new(ErrorKind::Invalid, why.to_string());
        typed::with_line(error, why.meant().and_then(|meant| typed::line_with(text, meant)))
    })
}

/// A size without a unit that is below this number is probably not meant in bytes.
const UNITLESS_BYTES_MIN: u64 = 1 << 20;

/// Rejects a small size without a unit, because it is probably not meant in bytes.
pub(crate) fn check_unit(text: &str) -> Result<(), ApiError> {
    let digits = text.trim_start_matches('+');
    let small = size::parse(digits).ok().filter(|bytes| (1..UNITLESS_BYTES_MIN).contains(bytes));
    let Some(bytes) = small.filter(|_| size::has_no_unit(digits)) else { return Ok(()) };
    if bytes.is_multiple_of(RecordSize::BLOCK.bytes() as u64) {
        return Ok(());
    }
    let noun = if bytes == 1 { "byte" } else { "bytes" };
    let message = format!("bad size {text}: it has no unit and would be {bytes} {noun}");
    let error = ApiError::new(ErrorKind::Invalid, message);
    Err(typed::with_line(error, typed::line_with(text, &format!("{text}GiB"))))
}

/// Parses the record size of a new volume of size `size`. An error has the typed command with the
/// record size that the user probably meant.
pub(crate) fn record_bytes(text: &str, size: &str) -> Result<u64, ApiError> {
    let bytes = parse_size(text)?;
    if RecordSize::from_bytes(bytes).is_some() {
        return Ok(bytes);
    }
    let error = ApiError::from(weir_api::Error::RecordSize { bytes });
    let is_record = |bytes: u64| RecordSize::from_bytes(bytes).is_some();
    if size::has_no_unit(text) && is_record(bytes.saturating_mul(1024)) {
        let message = format!("bad record size {text}: it has no unit and would be {bytes} bytes");
        let error = ApiError::new(ErrorKind::Invalid, message);
        return Err(typed::with_line(error, typed::line_with(text, &format!("{text}KiB"))));
    }
    if size::parse(size).is_ok_and(is_record) && bytes > RecordSize::MAX.bytes() as u64 {
        let message =
            format!("record size {text} is larger than 1MiB; is it the size of the volume?");
        let error = ApiError::new(ErrorKind::Invalid, message);
        return Err(typed::with_line(error, typed::swapped(text, size)));
    }
    let below =
        RecordSize::all().map(|size| size.bytes() as u64).filter(|size| *size < bytes).max();
    let above =
        RecordSize::all().map(|size| size.bytes() as u64).filter(|size| *size > bytes).min();
    let near: Vec<String> = [below, above]
        .into_iter()
        .flatten()
        .map(|near| format!("-b {}", size::Human(near)))
        .collect();
    Err(error.with_action(near.join(", or ")))
}

/// Parses a volume size. A size in a decimal unit or with a fraction is rounded up to whole
/// records.
pub(crate) fn whole_records(text: &str, record_bytes: u64) -> Result<u64, ApiError> {
    let bytes = parse_size(text)?;
    let rounded = bytes.checked_next_multiple_of(record_bytes.max(1));
    Ok(rounded.filter(|_| size::is_rounded(text)).unwrap_or(bytes))
}

/// Returns the new size of a volume. `text` is the size, or `+` and the number of bytes to add.
pub(crate) fn new_size(name: &str, text: &str, session: &Session) -> Result<u64, ApiError> {
    check_unit(text)?;
    if let Some(less) = text.strip_prefix('-').and_then(|less| size::parse(less).ok()) {
        return Err(smaller(name, text, less, session)?);
    }
    let (growth, text) = text.strip_prefix('+').map_or((false, text), |text| (true, text));
    if !growth && !size::is_rounded(text) {
        return parse_size(text);
    }
    let volume = session.call(ShowVolume { name: name.to_owned() })?;
    let bytes = whole_records(text, volume.record_bytes)?;
    Ok(if growth { volume.size_bytes.saturating_add(bytes) } else { bytes })
}

/// Returns the error for a size with `-`, which would shrink the volume. The error has the command
/// with the resulting size.
fn smaller(name: &str, text: &str, less: u64, session: &Session) -> Result<ApiError, ApiError> {
    let volume = session.call(ShowVolume { name: name.to_owned() })?;
    let message = format!("bad size {text:?}: a volume is not shrunk by a difference");
    let error = ApiError::new(ErrorKind::Invalid, message);
    let size = volume.size_bytes.checked_sub(less).filter(|size| *size > 0);
    let line = size.and_then(|size| typed::line_with(text, &size::Human(size).to_string()));
    Ok(typed::with_line(error, line))
}

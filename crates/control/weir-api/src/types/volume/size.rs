//! Checks of volume sizes and record sizes.
//!
//! The pool checks whether its segments are large enough for a record.
//!
//! Invariants:
//! - a size that passes [`check_volume_size`] is a whole number of records, and all its blocks can
//!   be addressed;
//! - [`record_size`] returns only valid record sizes.

use weir_base::limits::VOLUME_BYTES_MAX;
use weir_base::size::Human;
use weir_base::{BLOCK_BYTES, RecordSize};

use crate::Error;

/// Checks the size of a volume whose records have the size `record`.
///
/// # Errors
/// [`Error::VolumeSize`] with the rule that the size breaks. If the size is not a multiple of the
/// record size, the error also names the next larger multiple.
pub fn check_volume_size(bytes: u64, record: RecordSize) -> Result<(), Error> {
    let record_bytes = record.bytes() as u64;
    let why = if bytes == 0 {
        "a volume cannot be empty".to_owned()
    } else if bytes > VOLUME_BYTES_MAX {
        format!("it is more than the largest volume, {}", Human(VOLUME_BYTES_MAX))
    } else if !bytes.is_multiple_of(record_bytes) {
        let next = bytes.next_multiple_of(record_bytes);
        format!("it is not a multiple of the record size, {record}; the next larger is {next}")
    } else {
        return Ok(());
    };
    Err(Error::VolumeSize { bytes, why })
}

/// Returns the record size of `bytes` bytes.
///
/// # Errors
/// [`Error::RecordSize`] if `bytes` is not a valid record size.
pub fn record_size(bytes: u64) -> Result<RecordSize, Error> {
    RecordSize::from_bytes(bytes).ok_or(Error::RecordSize { bytes })
}

/// Returns the default record size.
pub(in crate::types) const fn one_block() -> u64 {
    BLOCK_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_records_that_can_be_addressed() {
        for record in RecordSize::all() {
            let bytes = record.bytes() as u64;
            for size in [bytes, 1 << 30, VOLUME_BYTES_MAX] {
                check_volume_size(size, record).expect("a usual size");
            }
            for size in [0, 1, bytes - 1, bytes + 1, VOLUME_BYTES_MAX + bytes, u64::MAX] {
                let error = check_volume_size(size, record).expect_err("refused").to_string();
                assert!(error.contains(&size.to_string()), "{error}");
            }
        }
    }
}

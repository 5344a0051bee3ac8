//! Dataset of a job: its files and bytes.
//!
//! `streams` chooses the addresses of operations.
//!
//! Invariants: `size` is the size that each copy of a job uses; if a job names its files, its
//! copies share these files, otherwise each copy has its own files.

use crate::spec::DatasetSpec;

use super::super::Options;
use super::super::error::ProfileError;
use super::load::engine;
use super::parse::Job;
use super::values::Amount;

/// Files, and ranges of the files, that a job uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) dataset: DatasetSpec,
    /// Number of bytes of data that each copy of the job uses.
    pub(super) copy_bytes: u64,
    pub(super) workers: u32,
    /// True if each copy of the job has its own data: its own file, or its own range of a shared
    /// file. False if all copies use the same data.
    pub(super) is_parted: bool,
    /// True if each copy of the job uses more than one file.
    pub(super) lists_files: bool,
}

impl Region {
    pub(super) fn of(job: &Job, workers: u32, options: &Options) -> Result<Self, ProfileError> {
        if job.amount("offset")?.unwrap_or(Amount::Bytes(0)) != Amount::Bytes(0) {
            let what = "`offset` is not 0";
            return Err(job.refuse(
                "offset",
                what,
                "in weir bench the data begins at the start of the target",
            ));
        }
        let named = match job.value("filename") {
            Some(value) => Some(names(&value.text)),
            // A job with the NBD engine names no file, but all its copies use the same NBD export.
            None if engine(job) == "nbd" => Some(1),
            None => None,
        };
        // If a job names its files, fio ignores `nrfiles`.
        let listed = match named {
            Some(count) => count,
            None => job.number("nrfiles", 1)?.unwrap_or(1),
        };
        let lists_files = listed > 1;
        let amount = job.amount("size")?;
        let size_bytes = resolved(job, amount, named.is_some(), options)?;
        let file_bytes = size_bytes / u64::from(listed);
        if let Some(each) = job.amount("filesize")?
            && each != Amount::Bytes(file_bytes)
        {
            let what = "`filesize` is not `size` divided by the number of files";
            return Err(job.refuse("filesize", what, "omit it: files have the size `size`"));
        }
        let increment = job.amount("offset_increment")?.unwrap_or(Amount::Bytes(0));
        let is_parted = match increment {
            Amount::Bytes(0) => named.is_none() && workers > 1,
            // The only copy of the job starts at offset 0, so `offset_increment` has no effect.
            _ if workers == 1 => false,
            same if Some(same) == amount && named == Some(1) => true,
            _ => {
                let what = "`offset_increment` differs from `size`, or the job has several files";
                let action = "give both the same size and one `filename`, or omit it";
                return Err(job.refuse("offset_increment", what, action));
            }
        };
        let files = if is_parted { workers.checked_mul(listed) } else { Some(listed) };
        let total = files.and_then(|files| u64::from(files).checked_mul(file_bytes));
        let (Some(files), Some(total)) = (files, total) else {
            let what = "all files together are larger than 2^64 bytes";
            return Err(job.refuse("size", what, "give a smaller `size`"));
        };
        if let (Some(Amount::Percent(_)), Some(target)) = (amount, options.target_bytes)
            && total > target
        {
            let what = format!("{total} bytes in total exceed the target's {target}");
            return Err(job.refuse("size", what, "give a smaller share"));
        }
        let dataset = DatasetSpec { files, file_bytes };
        Ok(Self { dataset, copy_bytes: size_bytes, workers, is_parted, lists_files })
    }
}

/// Returns the number of bytes that the option `size` means. A percentage refers to the size of the
/// target.
fn resolved(
    job: &Job,
    amount: Option<Amount>,
    is_named: bool,
    options: &Options,
) -> Result<u64, ProfileError> {
    let zero = || {
        let what = "`size` is 0";
        job.refuse("size", what, "give a size, such as 10g")
    };
    let (pct, what) = match amount {
        Some(Amount::Bytes(bytes)) => return Some(bytes).filter(|it| *it > 0).ok_or_else(zero),
        Some(Amount::Percent(0)) => return Err(zero()),
        Some(Amount::Percent(pct)) => (pct, format!("`size` is {pct}% of the target")),
        None => (100, format!("job {:?} has no `size`, so it uses the whole target", job.name)),
    };
    // The option --size of the command line overrides the size in the job.
    if let Some(bytes) = options.size_bytes {
        return Ok(bytes.max(1));
    }
    if !is_named {
        let action = "give `size` in bytes, or a `filename` that exists";
        return Err(job.refuse("size", what, action));
    }
    let Some(target_bytes) = options.target_bytes else {
        let what = format!("{what}, whose size is not known");
        return Err(job.refuse("size", what, "give `size` in bytes, or --size"));
    };
    let bytes = u128::from(target_bytes) * u128::from(pct) / 100;
    // Round down to whole pages, because fio rounds down to whole blocks.
    Ok((bytes as u64) / 4096 * 4096)
        .and_then(|bytes| Some(bytes).filter(|it| *it > 0).ok_or_else(zero))
}

/// Number of files in a list. A colon that is part of a name has a backslash before it.
fn names(text: &str) -> u32 {
    let plain = text.replace("\\:", "");
    plain.split(':').filter(|name| !name.is_empty()).count().max(1) as u32
}

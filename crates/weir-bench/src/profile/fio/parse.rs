//! Sections and values of a job file.
//!
//! Not here: what they mean together (import).
//!
//! Invariant: every value keeps the line it stands in.

use std::collections::BTreeMap;

use super::super::error::{ProfileError, nearest, refuse};

/// A job with the values of the `[global]` sections before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) values: BTreeMap<String, Value>,
}

#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) text: String,
    pub(super) line: usize,
}

/// What changes the load, and is understood.
const KNOWN: [&str; 24] = [
    "bs",
    "bssplit",
    "buffer_compress_percentage",
    "dedupe_percentage",
    "direct",
    "fdatasync",
    "filename",
    "fsync",
    "ioengine",
    "iodepth",
    "numjobs",
    "ramp_time",
    "random_distribution",
    "randseed",
    "rate_iops",
    "rate_process",
    "runtime",
    "rw",
    "rwmixread",
    "rwmixwrite",
    "size",
    "stonewall",
    "sync",
    "time_based",
];

/// What does not change what is measured here.
const HARMLESS: [&str; 10] = [
    "description",
    "directory",
    "group_reporting",
    "invalidate",
    "log_avg_msec",
    "norandommap",
    "randrepeat",
    "refill_buffers",
    "thread",
    "write_lat_log",
];

const ALIASES: [(&str, &str); 4] = [
    ("blocksize", "bs"),
    ("readwrite", "rw"),
    ("numjob", "numjobs"),
    ("wait_for_previous", "stonewall"),
];

/// Jobs of a file, in its order.
pub(super) fn jobs(file: &str, text: &str) -> Result<Vec<Job>, ProfileError> {
    let mut global = BTreeMap::new();
    let mut jobs: Vec<Job> = Vec::new();
    let mut in_global = None;
    for (number, raw) in (1..).zip(text.lines()) {
        let line = raw.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some(name) = rest.strip_suffix(']') else {
                let what = format!("the name of a section does not end: {line:?}");
                return Err(refuse(file, number, what, "close it with `]`"));
            };
            in_global = Some(name == "global");
            if name != "global" {
                jobs.push(Job { name: name.to_owned(), line: number, values: global.clone() });
            }
            continue;
        }
        let (key, value) = setting(file, number, line)?;
        let values = match (in_global, jobs.last_mut()) {
            (Some(true), _) => &mut global,
            (Some(false), Some(job)) => &mut job.values,
            _ => {
                let what = format!("`{key}` stands before the first section");
                return Err(refuse(file, number, what, "put it below `[global]` or a job"));
            }
        };
        values.insert(key, value);
    }
    Ok(jobs)
}

fn setting(file: &str, line: usize, text: &str) -> Result<(String, Value), ProfileError> {
    // An option without a value is switched on.
    let (key, value) = text.split_once('=').unwrap_or((text, "1"));
    let key = key.trim();
    let key = ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, name)| name);
    if KNOWN.contains(&key) || HARMLESS.contains(&key) {
        return Ok((key.to_owned(), Value { text: value.trim().to_owned(), line }));
    }
    let (file, word) = (file.to_owned(), key.to_owned());
    let nearest = nearest(key, &KNOWN);
    Err(ProfileError::UnknownWord { file, line, word, nearest, known: KNOWN.join(", ") })
}

impl Job {
    /// A number of at least `least`; `None` where it is not given.
    pub(super) fn number(
        &self,
        file: &str,
        key: &str,
        least: u32,
    ) -> Result<Option<u32>, ProfileError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match value.text.parse::<u32>() {
            Ok(number) if number >= least => Ok(Some(number)),
            _ => {
                let what = format!("`{key}` is {:?}", value.text);
                Err(refuse(file, value.line, what, format!("give one number of at least {least}")))
            }
        }
    }

    /// Whether something is switched on.
    pub(super) fn on(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|value| value.text != "0")
    }

    /// A size in bytes.
    pub(super) fn size(&self, file: &str, key: &str) -> Result<Option<u64>, ProfileError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let bad = || {
            let what = format!("`{key}` is {:?}", value.text);
            refuse(file, value.line, what, "give one size, such as 4k or 10g")
        };
        size_bytes(&value.text).filter(|bytes| *bytes > 0).map(Some).ok_or_else(bad)
    }

    /// A time in milliseconds; seconds where it has no unit.
    pub(super) fn time(&self, file: &str, key: &str) -> Result<Option<u64>, ProfileError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let split = value.text.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.text.len());
        let (number, unit) = value.text.split_at(split);
        let factor = match unit.trim() {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => 0,
        };
        let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        let bad = || {
            let what = format!("`{key}` is {:?}", value.text);
            refuse(file, value.line, what, "give a time above 0, such as 60, 5m or 500ms")
        };
        let zero_is_fine = key == "ramp_time";
        ms.filter(|ms| factor > 0 && (*ms > 0 || zero_is_fine)).map(Some).ok_or_else(bad)
    }
}

/// As fio reads it: `k`, `kb` and `ki` are 1024, and `kib` is 1000: its `kb_base` turns them.
pub(super) fn size_bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let mut letters = unit.chars();
    let power = match letters.next() {
        None => return number.parse().ok(),
        Some('b') if unit == "b" => return number.parse().ok(),
        Some('k') => 1,
        Some('m') => 2,
        Some('g') => 3,
        Some('t') => 4,
        _ => return None,
    };
    let base = match letters.as_str() {
        "" | "b" | "i" => 1024_u64,
        "ib" => 1000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(base.pow(power))
}

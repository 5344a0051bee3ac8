//! Operations of a job: their kinds, sizes and addresses.
//!
//! `load` reads the depth and the rate, `region` the size of the dataset.
//!
//! Invariants, which were compared with fio 3.33:
//! - reads and writes become two streams if they differ in size or access order, or if the job is
//!   sequential, because fio keeps a separate position for each direction;
//! - operations start at multiples of the smallest block size, or of `ba`;
//! - a sequential operation starts at the end of the preceding operation.

use crate::spec::{Access, BlockShare, OpKind, StreamSpec};

use super::super::error::ProfileError;
use super::super::lint::{Trap, trap};
use super::super::{SECTOR_BYTES, STAMPED_BYTES};
use super::parse::{Job, Value};
use super::region::Region;
use super::values::DIRECTIONS;

const READS: usize = 0;
const WRITES: usize = 1;
const TRIMS: usize = 2;
/// Size of the largest operation in bytes; each operation in flight holds a buffer of this size.
const BLOCK_BYTES_MAX: u64 = 64 << 20;

/// Directions of the operations of a job, and whether the access order is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) random: bool,
    /// True for each direction (reads, writes, trims, in this order) in which the job has
    /// operations.
    pub(super) does: [bool; 3],
}

impl Pattern {
    /// Parses the option `rw` of a job.
    pub(super) fn of(job: &Job) -> Result<Self, ProfileError> {
        let value = job.value("rw");
        let text = value.map_or("read", |value| value.text.as_str());
        let (random, what) = match text.strip_prefix("rand") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let does = match what {
            "read" => [true, false, false],
            "write" => [false, true, false],
            "trim" => [false, false, true],
            "rw" => [true, true, false],
            "readwrite" if !random => [true, true, false],
            other => {
                let action = if other.contains(':') {
                    "an order with a number after it is not supported; omit the number"
                } else {
                    "known are read, write, rw, trim, randread, randwrite, randrw and randtrim"
                };
                return Err(job.refuse("rw", format!("`rw` is {text:?}"), action));
            }
        };
        Ok(Self { random, does })
    }

    /// True if the job has both reads and writes.
    pub(super) fn is_mixed(self) -> bool {
        self.does[READS] && self.does[WRITES]
    }

    /// True if the job has writes.
    pub(super) fn writes(self) -> bool {
        self.does[WRITES]
    }
}

/// Block sizes of the operations in one direction of a job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sizes {
    blocks: Vec<BlockShare>,
    /// True if the two block sizes are the ends of a range of sizes.
    between: bool,
}

impl Sizes {
    pub(super) fn smallest(&self) -> u32 {
        self.blocks.iter().map(|block| block.bytes).min().unwrap_or(4096)
    }

    /// The block size if there is only one; `None` if there are several sizes.
    pub(super) fn only(&self) -> Option<u32> {
        match self.blocks.as_slice() {
            [one] => Some(one.bytes),
            _ => None,
        }
    }
}

/// Derives the streams of a job. `weights` are the weights of reads and writes in a mixed job.
pub(super) fn streams(
    job: &Job,
    pattern: Pattern,
    region: &Region,
    weights: [u32; 2],
    traps: &mut Vec<Trap>,
) -> Result<Vec<StreamSpec>, ProfileError> {
    let one = |direction: usize| {
        let sizes = sizes(job, direction)?;
        let access = access(job, pattern, region, direction, &sizes)?;
        Ok::<_, ProfileError>(StreamSpec {
            name: String::new(),
            access,
            blocks: sizes.blocks,
            read_pct: if direction == READS { 100.0 } else { 0.0 },
            op: (direction == TRIMS).then_some(OpKind::Trim),
            metadata: None,
            share: 1,
        })
    };
    if !pattern.is_mixed() {
        let direction = pattern.does.iter().position(|does| *does).unwrap_or(READS);
        let stream = one(direction)?;
        tell(job, region, &stream, traps);
        return Ok(vec![stream]);
    }
    let (reads, writes) = (one(READS)?, one(WRITES)?);
    tell(job, region, &reads, traps);
    let alike = reads.access == writes.access && reads.blocks == writes.blocks;
    let keeps_no_place = match reads.access {
        Access::Sequential => false,
        Access::Random | Access::Zipf { .. } | Access::Hotspot { .. } => true,
        Access::Walk { random_pct, .. } => random_pct >= 100.0,
    };
    if alike && keeps_no_place {
        let [read, write] = weights.map(f64::from);
        let read_pct = 100.0 * read / (read + write).max(1.0);
        return Ok(vec![StreamSpec { read_pct, ..reads }]);
    }
    let named = |stream: StreamSpec, direction: usize| {
        let (name, share) = (DIRECTIONS[direction].to_owned(), weights[direction]);
        StreamSpec { name, share, ..stream }
    };
    let both = [named(reads, READS), named(writes, WRITES)];
    Ok(both.into_iter().filter(|stream| stream.share > 0).collect())
}

/// Derives the block sizes of the operations in one direction.
pub(super) fn sizes(job: &Job, direction: usize) -> Result<Sizes, ProfileError> {
    // `bssplit` overrides `bs` and `bsrange`. If the job has both `bs` and `bsrange`, the later one
    // applies.
    if let Some(split) = job.value("bssplit")
        && let Some(text) = split.directions()?[direction]
    {
        return shares(job, split, text);
    }
    if job.order("bsrange") > job.order("bs")
        && let Some(value) = job.value("bsrange")
        && let Some(text) = value.directions()?[direction]
    {
        return between(job, value, text);
    }
    let bytes = match job.value("bs") {
        Some(value) => match value.directions()?[direction] {
            Some(text) => {
                let bytes = job.bytes(text);
                let bad = || value.bad("bs", "give a size, or one for reads and one for writes");
                checked(value, bytes.filter(|bytes| *bytes > 0).ok_or_else(bad)?)?
            }
            None => 4096,
        },
        None => 4096,
    };
    Ok(Sizes { blocks: vec![BlockShare { bytes, weight: 1 }], between: false })
}

/// Parses a set of sizes, such as `4k/60:64k/40`. Sizes without a percentage divide the remaining
/// percentage evenly.
fn shares(job: &Job, split: &Value, text: &str) -> Result<Sizes, ProfileError> {
    let bad = || {
        let action = "give sizes with shares that add up to 100, such as 4k/60:64k/40";
        split.bad("bssplit", action)
    };
    let mut shares: Vec<(u32, Option<u32>)> = Vec::new();
    for part in text.split(':') {
        let (size, share) = part.split_once('/').unwrap_or((part, ""));
        let bytes = job.bytes(size).filter(|bytes| *bytes > 0).ok_or_else(bad)?;
        let share = match share.trim() {
            "" => None,
            share => Some(share.parse::<u32>().ok().filter(|pct| *pct <= 100).ok_or_else(bad)?),
        };
        shares.push((checked(split, bytes)?, share));
    }
    let given: u32 = shares.iter().filter_map(|(_, share)| *share).sum();
    let open = shares.iter().filter(|(_, share)| share.is_none()).count() as u32;
    if given > 100 || (open == 0) != (given == 100) {
        return Err(bad());
    }
    // Multiply all weights by the number of sizes without a percentage, so that the remaining
    // percentage can be divided into integers.
    let parts = open.max(1);
    let weight = |share: Option<u32>| share.map_or(100 - given, |share| share * parts);
    let block = |(bytes, share): (u32, Option<u32>)| BlockShare { bytes, weight: weight(share) };
    let blocks: Vec<BlockShare> = shares.into_iter().map(block).collect();
    let blocks = blocks.into_iter().filter(|block| block.weight > 0).collect();
    Ok(Sizes { blocks, between: false })
}

/// Parses a range of sizes, such as `4k-16k` or `4k:16k`.
fn between(job: &Job, range: &Value, text: &str) -> Result<Sizes, ProfileError> {
    let bad = || range.bad("bsrange", "give a range, such as 4k-64k, or one for each direction");
    let (low, high) = text.split_once(['-', ':']).ok_or_else(bad)?;
    let end = |text: &str| job.bytes(text).filter(|bytes| *bytes > 0).ok_or_else(bad);
    let (low, high) = (checked(range, end(low)?)?, checked(range, end(high)?)?);
    let block = |bytes: u32| BlockShare { bytes, weight: 1 };
    let (low, high) = (low.min(high), low.max(high));
    if low == high {
        return Ok(Sizes { blocks: vec![block(low)], between: false });
    }
    Ok(Sizes { blocks: vec![block(low), block(high)], between: true })
}

/// Checks a size for direct I/O: the size must be a multiple of 512 bytes and at most 64 MiB.
fn checked(value: &Value, bytes: u64) -> Result<u32, ProfileError> {
    match u32::try_from(bytes) {
        Ok(small) if bytes.is_multiple_of(SECTOR_BYTES) && bytes <= BLOCK_BYTES_MAX => Ok(small),
        _ => {
            let what = format!("direct I/O does not support a block of {bytes} bytes");
            let action = "give a multiple of 512 up to 64m; to fio 4kib is 4000, and 4k is 4096";
            Err(value.place.refuse(what, action))
        }
    }
}

/// Access pattern of a job in one direction.
fn access(
    job: &Job,
    pattern: Pattern,
    region: &Region,
    direction: usize,
    sizes: &Sizes,
) -> Result<Access, ProfileError> {
    let align_bytes = alignment(job, direction, sizes)?;
    let (only, between) = (sizes.only().filter(|bytes| *bytes == align_bytes), sizes.between);
    let walk = |random_pct: f64| Access::Walk { random_pct, align_bytes, between };
    if !pattern.random {
        if region.lists_files {
            let what = "a sequential job uses several files in turn";
            let word = if job.value("filename").is_some() { "filename" } else { "nrfiles" };
            return Err(job.refuse(word, what, "give it one file"));
        }
        return match (region.workers, region.is_parted, only) {
            (1, _, Some(_)) | (_, true, Some(_)) => Ok(Access::Sequential),
            (1, _, None) | (_, false, _) => Ok(walk(0.0)),
            (_, true, None) => {
                let what = "several sequential jobs use several sizes, each job on a separate part";
                let word = if sizes.between { "bsrange" } else { "bssplit" };
                Err(job.refuse(word, what, "give one size, or `numjobs=1`"))
            }
        };
    }
    let random_pct = percentage(job, direction)?;
    let skewed = distribution(job)?;
    match (skewed, only) {
        (Access::Random, Some(_)) if random_pct >= 100.0 => Ok(Access::Random),
        (Access::Random, _) => Ok(walk(random_pct)),
        (skewed, _) if random_pct >= 100.0 && !between => Ok(skewed),
        _ => {
            let what = "a distribution is combined with a range of sizes or a sequential share";
            let action = "give `bs` or `bssplit`, and no `percentage_random`";
            Err(job.refuse("random_distribution", what, action))
        }
    }
}

/// Alignment of the operations in one direction, in bytes.
fn alignment(job: &Job, direction: usize, sizes: &Sizes) -> Result<u32, ProfileError> {
    let smallest = sizes.smallest();
    let Some(value) = job.value("ba") else { return Ok(smallest) };
    let Some(text) = value.directions()?[direction] else { return Ok(smallest) };
    let bytes = job.bytes(text).filter(|bytes| *bytes > 0);
    let whole = |bytes: &u64| {
        bytes.is_multiple_of(STAMPED_BYTES) || bytes.is_multiple_of(u64::from(smallest))
    };
    let bytes = bytes.filter(whole).and_then(|bytes| u32::try_from(bytes).ok());
    let action = "give a multiple of 4k, or of the smallest size";
    bytes
        .filter(|bytes| u64::from(*bytes) <= BLOCK_BYTES_MAX)
        .ok_or_else(|| value.bad("ba", action))
}

/// Percentage of random operations in a job with random access.
fn percentage(job: &Job, direction: usize) -> Result<f64, ProfileError> {
    let given = job.numbers("percentage_random")?[direction];
    match given.map(u32::try_from) {
        None => Ok(100.0),
        Some(Ok(pct)) if pct <= 100 => Ok(f64::from(pct)),
        Some(_) => {
            let what = "`percentage_random` is over 100";
            Err(job.refuse("percentage_random", what, "give a share from 0 to 100"))
        }
    }
}

/// Address distribution of a job with random access.
fn distribution(job: &Job) -> Result<Access, ProfileError> {
    let Some(value) = job.value("random_distribution") else { return Ok(Access::Random) };
    let action = "known are random, zipf:theta and zoned:ops/data:ops/data of 100 percent each";
    let bad = || value.bad("random_distribution", action);
    let (name, rest) = value.text.split_once(':').unwrap_or((&value.text, ""));
    match (name, rest) {
        ("random", "") => Ok(Access::Random),
        ("zipf", "") => Ok(Access::Zipf { theta: 1.1 }),
        ("zipf", theta) => match theta.parse::<f64>() {
            // fio refuses a theta of exactly 1.0, so refuse it as well.
            Ok(theta) if theta > 0.0 && theta < 5.0 && (theta - 1.0).abs() > f64::EPSILON => {
                Ok(Access::Zipf { theta })
            }
            _ => Err(bad()),
        },
        ("zoned", parts) => {
            let part = |text: &str| {
                let (ops, data) = text.split_once('/')?;
                Some([ops.parse::<u32>().ok()?, data.parse::<u32>().ok()?])
            };
            let parts: Option<Vec<[u32; 2]>> = parts.split(':').map(part).collect();
            match parts.as_deref() {
                Some([[ops, data], [rest, cold]])
                    if [ops, data].iter().all(|pct| (1..100).contains(*pct))
                        && rest.checked_add(*ops) == Some(100)
                        && cold.checked_add(*data) == Some(100) =>
                {
                    let (ops_pct, data_pct) = (f64::from(*ops), f64::from(*data));
                    Ok(Access::Hotspot { ops_pct, data_pct })
                }
                _ => Err(bad()),
            }
        }
        _ => Err(bad()),
    }
}

/// Reports a warning ([`Trap`]) if fio would choose other addresses than this stream does.
fn tell(job: &Job, region: &Region, stream: &StreamSpec, traps: &mut Vec<Trap>) {
    let (name, place) = (&job.name, &job.place);
    if matches!(stream.access, Access::Zipf { .. } | Access::Hotspot { .. }) {
        if region.is_parted || region.lists_files {
            traps.push(trap(
                format!("{place}: job {name:?}: one distribution covers all files"),
                "fio uses a separate distribution for each job and file",
                "give one file with `filename`",
            ));
        }
        if stream.blocks.len() > 1 {
            traps.push(trap(
                format!("{place}: job {name:?}: operations are aligned to their size"),
                "fio aligns them to the smallest size, which is slower on storage with larger \
                 blocks",
                "give one size",
            ));
        }
    }
    if stream.op == Some(OpKind::Trim) {
        traps.push(trap(
            format!("{place}: job {name:?}: trims go to the last quarter of the data"),
            "the rest keeps blocks that can be verified; fio trims all data",
            "make the size four times as large to trim the same amount",
        ));
    }
}

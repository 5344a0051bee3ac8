//! Validates a task that came from another host.
//!
//! `session` executes the task.
//!
//! Invariant: a validated task causes neither an overflow nor an unbounded allocation.

use super::wire::Task;
use crate::spec::{Access, LoadSpec, MetadataSpec, OpKind};

const WORKERS_MAX: u32 = 1024;
/// Maximum queue depth of a task, summed over all workers.
const SLOTS_MAX: u64 = 1 << 18;
/// Maximum total size of the buffers of all workers, in bytes.
const BUFFERS_BYTES_MAX: u64 = 64 << 30;
const BLOCK_BYTES_MAX: u32 = 256 << 20;
/// Maximum number of streams in a task, and maximum number of block sizes in a stream.
const LIST_MAX: usize = 256;
const WEIGHT_MAX: u32 = 1 << 20;
const FILES_MAX: u32 = 1 << 20;
/// Maximum number of files that all workers of a task create; the state of each takes one byte.
const CREATED_FILES_MAX: u64 = 1 << 28;
const RATE_MAX: f64 = 1e8;
const BACKLOG_MAX: u64 = 1 << 26;
const CLIENTS_MAX: u32 = 1024;
/// Maximum duration of a task: one week.
const TIME_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// Validates a task. If the task is invalid, returns the reason for the refusal as `Err`.
pub(super) fn check(task: &Task) -> Result<(), &'static str> {
    let dataset = &task.dataset;
    let total_bytes = u64::from(dataset.files).checked_mul(dataset.file_bytes);
    let is = |fine: bool, why| if fine { Ok(()) } else { Err(why) };
    is(total_bytes.is_some_and(|bytes| bytes > 0), "the size of the dataset is invalid")?;
    is(dataset.files <= FILES_MAX, "the dataset has too many files")?;
    is([512, 4096].contains(&task.block_bytes), "the block size is neither a sector nor a page")?;
    is((1..=CLIENTS_MAX).contains(&task.of), "there are too many clients")?;
    is(task.number < task.of, "the client's number is invalid")?;
    let time_ms = task.warmup_ms.checked_add(task.duration_ms);
    is(time_ms.is_some_and(|ms| ms <= TIME_MS_MAX), "the run takes more than a week")?;
    is((1..=LIST_MAX).contains(&task.streams.len()), "the number of streams is 0 or too large")?;
    for stream in &task.streams {
        is(stream.blocks.len() <= LIST_MAX, "a stream has too many sizes")?;
        is(stream.is_consistent(), "the operations of a stream contradict each other")?;
        is((0.0..=100.0).contains(&stream.read_pct), "a share of reads is invalid")?;
        let plain = |op: OpKind| matches!(op, OpKind::Read | OpKind::Write | OpKind::Flush);
        is(!stream.op.is_some_and(plain), "a stream's special operation is a plain read or write")?;
        is((1..=WEIGHT_MAX).contains(&stream.share), "a stream's share is invalid")?;
        // Operations of a walk start at multiples of the walk's alignment, all other operations at
        // multiples of their own size.
        let align_bytes = match stream.access {
            Access::Walk { align_bytes, .. } => align_bytes,
            _ => 0,
        };
        let is_walk = matches!(stream.access, Access::Walk { .. });
        is(!is_walk || (1..=BLOCK_BYTES_MAX).contains(&align_bytes), "an alignment is invalid")?;
        for block in &stream.blocks {
            is(block.weight <= WEIGHT_MAX, "a weight is too large")?;
            let bytes = block.bytes;
            let fits = bytes > 0
                && bytes <= BLOCK_BYTES_MAX
                && bytes.is_multiple_of(task.block_bytes)
                && stream.access.fits(bytes, dataset.file_bytes);
            is(fits, "an operation does not fit the dataset")?;
            let clients = u64::from(task.of);
            let part_bytes = total_bytes.unwrap_or_default() / clients;
            let needed = u64::from(align_bytes) + 2 * u64::from(bytes) + 4096;
            let room = clients == 1 || part_bytes >= needed;
            is(room, "the dataset is too small to give each client a part of it")?;
        }
    }
    check_load(task)?;
    let workers = u64::from(task.load.workers());
    let files = task.streams.iter().map(|stream| match &stream.metadata {
        Some(MetadataSpec::Files { files, .. }) => u64::from(*files) * workers,
        _ => 0,
    });
    is(files.sum::<u64>() <= CREATED_FILES_MAX, "the run creates too many files")
}

fn check_load(task: &Task) -> Result<(), &'static str> {
    let is = |fine: bool, why| if fine { Ok(()) } else { Err(why) };
    let (workers, slots) = match task.load {
        LoadSpec::Closed { workers, depth } => (workers, u64::from(workers) * u64::from(depth)),
        LoadSpec::Open { workers, rate, in_flight_max, backlog_max, .. } => {
            is(rate > 0.0 && rate <= RATE_MAX, "the rate is invalid")?;
            is(backlog_max <= BACKLOG_MAX, "the limit of waiting operations is too large")?;
            (workers, u64::from(in_flight_max) + u64::from(workers))
        }
    };
    is((1..=WORKERS_MAX).contains(&workers), "the number of workers is 0 or too large")?;
    is(slots <= SLOTS_MAX, "too many operations are in flight")?;
    let blocks = task.streams.iter().flat_map(|stream| &stream.blocks);
    let blocks = blocks.map(|block| u64::from(block.bytes));
    let files = task.streams.iter().map(|stream| match &stream.metadata {
        Some(MetadataSpec::Files { file_bytes, .. }) => u64::from(*file_bytes),
        _ => 0,
    });
    let largest = blocks.chain(files).max().unwrap_or(0);
    // COMPARE AND WRITE uses twice its block size in one buffer.
    is(2 * slots * largest <= BUFFERS_BYTES_MAX, "the buffers do not fit into memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::tests::task;
    use crate::spec::{Arrival, DatasetSpec};

    #[test]
    fn invalid_tasks_are_refused() {
        assert_eq!(check(&task()), Ok(()));
        let open = |rate| LoadSpec::Open {
            workers: 1,
            rate,
            arrival: Arrival::Poisson,
            in_flight_max: 8,
            backlog_max: 8,
        };
        let closed = |workers, depth| LoadSpec::Closed { workers, depth };
        let files = |files| Some(MetadataSpec::Files { files, file_bytes: 0, shared: false });
        let bad: [&dyn Fn(&mut Task); 19] = [
            &|task| task.dataset = DatasetSpec { files: u32::MAX, file_bytes: u64::MAX },
            &|task| task.dataset.files = 0,
            &|task| task.block_bytes = 1000,
            &|task| task.number = task.of,
            &|task| task.of = 0,
            &|task| task.duration_ms = u64::MAX,
            &|task| task.streams.clear(),
            &|task| task.streams[0].blocks.clear(),
            &|task| task.streams[0].blocks[0].bytes = 0,
            &|task| task.streams[0].read_pct = f64::NAN,
            &|task| task.streams[0].op = Some(OpKind::Flush),
            &|task| task.streams[0].op = Some(OpKind::Create),
            &|task| task.streams[0].metadata = files(8),
            &|task| {
                task.streams[0].op = Some(OpKind::Create);
                task.streams[0].blocks.clear();
                task.streams[0].metadata = files(u32::MAX);
            },
            &|task| task.load = closed(u32::MAX, u32::MAX),
            &|task| task.load = closed(1024, 1 << 20),
            &|task| task.load = open(f64::INFINITY),
            &|task| task.load = open(f64::NAN),
            &|task| task.dataset.file_bytes = 8192,
        ];
        for (number, spoil) in bad.iter().enumerate() {
            let mut task = task();
            spoil(&mut task);
            assert!(check(&task).is_err(), "{number}");
        }
    }

    // Regression: an agent refused a walk if the file size is no multiple of the walk's operation
    // size. The coordinator accepts such a walk and runs it on one host.
    #[test]
    fn walks_follow_the_rule_of_the_coordinator() {
        let walk = |bytes: u32, align_bytes: u32| {
            let mut task = task();
            task.dataset = DatasetSpec { files: 2, file_bytes: 1 << 20 };
            let stream = &mut task.streams[0];
            stream.access = Access::Walk { random_pct: 50.0, align_bytes, between: false };
            stream.blocks[0].bytes = bytes;
            check(&task)
        };
        assert_eq!(walk(12 << 10, 4096), Ok(()), "12 KiB do not divide 1 MiB");
        assert_eq!(walk(300 << 10, 300 << 10), Ok(()));
        for (bytes, align_bytes) in
            [(12 << 10, 0), (12 << 10, u32::MAX), (2 << 20, 4096), (300 << 10, 512 << 10)]
        {
            assert!(walk(bytes, align_bytes).is_err(), "{bytes} {align_bytes}");
        }
        for access in [Access::Random, Access::Sequential] {
            let mut task = task();
            task.streams[0].access = access;
            task.streams[0].blocks[0].bytes = 12 << 10;
            assert!(check(&task).is_err(), "{access:?}");
        }
    }
}

//! File I/O through io_uring, with one ring per lane.
//!
//! `file` and `directory` choose the files.
//!
//! Invariants:
//! - a new ring is disabled; the thread that first uses the ring enables it (any thread may);
//! - the lane does not touch the buffer of a slot while an operation of the slot is in flight;
//! - a short read or write continues where it stopped and counts as one operation;
//! - the ring polls for the completions of `calls`, so that one wait covers all operations;
//! - every wait has a limit: a lane without a completion within [`ANSWER_LIMIT`] is lost, and the
//!   memory that its operations may still use is leaked;
//! - files are registered with the ring, and buffers up to `REGISTERED_BYTES_MAX` too.

#![expect(unsafe_code, reason = "the kernel gets pointers into the lane's buffers")]

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::buffers::Buffers;
use super::calls::Calls;
use super::error::TargetError;
use super::lane::{Done, Lane, Op, Wait};
use super::metadata::MetadataOp;
use super::parts::{ANSWER_LIMIT, Files, Unflushed, check_limit};
use super::tree::Tree;
use crate::spec::OpKind;

/// `RWF_DSYNC` of linux/fs.h: the write is on stable media when it completes.
const DSYNC: i32 = 0x2;
/// Maximum total size of the registered buffers of a lane, which the kernel pins in memory; a lane
/// with larger buffers registers none.
const REGISTERED_BYTES_MAX: usize = 64 << 20;

/// User data of the poll that completes when a metadata operation completes. No slot has this
/// number.
const POLL: u64 = u64::MAX;
/// `POLLIN` of poll(2).
const POLL_IN: u32 = 1;

/// True if the kernel allows this process to use io_uring.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| IoUring::new(2).is_ok_and(|ring| ring.params().is_feature_ext_arg()))
}

/// An operation in flight.
#[derive(Clone, Copy)]
struct UnderWay {
    op: Op,
    /// Number of bytes transferred; for a flush, number of files flushed.
    done: u32,
}

struct UringLane {
    // Declared before `buffers`, so that the ring is dropped first: operations end before their
    // buffers are freed.
    ring: IoUring,
    address: String,
    files: Arc<Files>,
    buffers: Buffers,
    /// True if the buffers are registered with the ring.
    is_registered: bool,
    under_way: Vec<Option<UnderWay>>,
    /// Files that this lane wrote to since its last flush.
    unflushed: Unflushed,
    /// For each slot with a flush in flight: the files that the flush covers.
    flushing: Vec<Vec<usize>>,
    /// Threads that execute metadata operations; `None` if the lane has none.
    calls: Option<Calls>,
    /// True if the ring polls the event descriptor of `calls`.
    polls: bool,
    /// Number of slots with an operation in flight.
    busy: usize,
    /// Time of the last completion, or of the last submission to an idle lane.
    answered: Instant,
    /// True if the ring is enabled; enabling a ring binds it to a thread.
    is_enabled: bool,
    /// Completions taken from the ring, kept to reuse the memory; empty between calls.
    answers: Vec<(usize, i32)>,
}

pub(super) fn lane(
    address: &str,
    files: Arc<Files>,
    slots: usize,
    buffer_bytes: usize,
    calls: Option<(Arc<Tree>, usize)>,
) -> Result<Box<dyn Lane>, TargetError> {
    let failed = |source| {
        let address = address.to_owned();
        TargetError::Io { address, what: "set up io_uring for", source }
    };
    let ring = ring(slots.next_power_of_two().max(2) as u32).map_err(failed)?;
    let descriptors: Vec<RawFd> = files.files.iter().map(AsRawFd::as_raw_fd).collect();
    ring.submitter().register_files(&descriptors).map_err(failed)?;
    let mut buffers = Buffers::new(slots, buffer_bytes);
    // The memlock limit of the process may be too low to register the buffers; the kernel then pins
    // memory for each operation.
    let is_registered = register(&ring, &mut buffers).is_ok_and(|done| done);
    let calls = calls.map(|(tree, depth)| Calls::new(tree, depth)).transpose().map_err(failed)?;
    Ok(Box::new(UringLane {
        ring,
        address: address.to_owned(),
        files,
        buffers,
        is_registered,
        under_way: vec![None; slots],
        unflushed: Unflushed::default(),
        flushing: vec![Vec::new(); slots],
        calls,
        polls: false,
        busy: 0,
        answered: Instant::now(),
        is_enabled: false,
        answers: Vec::with_capacity(slots),
    }))
}

/// Registers all buffers with the ring, unless they are too large to pin. Returns true if it
/// registered them.
fn register(ring: &IoUring, buffers: &mut Buffers) -> std::io::Result<bool> {
    let slices: Vec<IoSliceMut<'_>> = buffers.all().map(IoSliceMut::new).collect();
    if slices.iter().map(|slice| slice.len()).sum::<usize>() > REGISTERED_BYTES_MAX {
        return Ok(false);
    }
    // SAFETY: the standard library guarantees that `IoSliceMut` has the layout of iovec, the type
    // of the cast, and the slices live as long as the call. The memory of the slices outlives the
    // ring, because the lane declares the buffers after the ring.
    unsafe {
        let vectors = std::slice::from_raw_parts(slices.as_ptr().cast(), slices.len());
        ring.submitter().register_buffers(vectors)?;
    }
    Ok(true)
}

/// Creates a disabled ring. Where the kernel supports it (Linux 6.1), the kernel processes
/// completions only when the thread reaps them, instead of interrupting the thread.
fn ring(entries: u32) -> std::io::Result<IoUring> {
    let mut quick = IoUring::builder();
    quick.setup_r_disabled().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    quick.build(entries).or_else(|_| IoUring::builder().setup_r_disabled().build(entries))
}

impl UringLane {
    fn lost(&self, source: std::io::Error) -> TargetError {
        TargetError::Io { address: self.address.clone(), what: "wait for", source }
    }

    fn entry(&mut self, slot: usize, UnderWay { op, done }: UnderWay) -> squeue::Entry {
        if op.kind == OpKind::Flush {
            let file = Fixed(self.flushing[slot][done as usize] as u32);
            let flush = opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC);
            return flush.build().user_data(slot as u64);
        }
        let (file, offset) = self.files.place(op.offset);
        let (file, at) = (Fixed(file as u32), offset + u64::from(done));
        let rest = op.len_bytes - done;
        let buffer = self.buffers.of(slot)[done as usize..].as_mut_ptr();
        let (own, flags) = (slot as u16, if op.durable { DSYNC } else { 0 });
        let entry = match (op.kind, self.is_registered) {
            (OpKind::Read, true) => {
                opcode::ReadFixed::new(file, buffer, rest, own).offset(at).build()
            }
            (OpKind::Read, false) => opcode::Read::new(file, buffer, rest).offset(at).build(),
            (OpKind::Write, true) => {
                opcode::WriteFixed::new(file, buffer, rest, own).offset(at).rw_flags(flags).build()
            }
            (OpKind::Write, false) => {
                opcode::Write::new(file, buffer, rest).offset(at).rw_flags(flags).build()
            }
            (OpKind::Flush, _) => unreachable!("returned above"),
            (OpKind::Trim, _) => {
                let mode =
                    rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                opcode::Fallocate::new(file, u64::from(rest))
                    .offset(at)
                    .mode(mode.bits().cast_signed())
                    .build()
            }
            _ => unreachable!("a run with an operation that its target has not is refused"),
        };
        entry.user_data(slot as u64)
    }

    fn push(&mut self, slot: usize, work: UnderWay) -> Result<(), TargetError> {
        self.under_way[slot] = Some(work);
        self.busy += 1;
        let entry = self.entry(slot, work);
        self.enqueue(&entry)
    }

    /// Polls the event descriptor of the metadata operations, if the ring does not poll it already.
    fn poll_calls(&mut self) -> Result<(), TargetError> {
        let Some(calls) = self.calls.as_ref().filter(|_| !self.polls) else { return Ok(()) };
        let event = Fd(calls.event().as_raw_fd());
        self.polls = true;
        self.enqueue(&opcode::PollAdd::new(event, POLL_IN).build().user_data(POLL))
    }

    /// Adds an entry to the submission queue.
    fn enqueue(&mut self, entry: &squeue::Entry) -> Result<(), TargetError> {
        if !self.is_enabled {
            let enabled = self.ring.submitter().register_enable_rings();
            enabled.map_err(|source| self.lost(source))?;
            self.is_enabled = true;
        }
        loop {
            // SAFETY: the buffer belongs to the slot, outlives the ring (declared before the
            // buffers), and is not handed out while `under_way` holds the slot's operation; `files`
            // owns the descriptors. A poll has no buffer, and `calls` owns its descriptor.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit().map_err(|source| self.lost(source))?;
        }
    }

    fn wait(&mut self, wait: Wait) -> Result<(), TargetError> {
        let waited = match wait {
            Wait::No => self.ring.submit(),
            Wait::One | Wait::Until(_) => {
                let limit = self.answered + ANSWER_LIMIT;
                let until = match wait {
                    Wait::Until(until) if self.busy == 0 => until,
                    Wait::Until(until) => until.min(limit),
                    Wait::One | Wait::No => limit,
                };
                let left = until.saturating_duration_since(Instant::now());
                let left = Timespec::from(left.max(Duration::from_nanos(1)));
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&left))
            }
        };
        match waited {
            Ok(_) => Ok(()),
            // The wait ended by timeout, signal or busy ring: ETIME, EINTR, EBUSY.
            Err(error) if matches!(error.raw_os_error(), Some(62 | 4 | 16)) => Ok(()),
            Err(source) => Err(self.lost(source)),
        }
    }
}

impl Lane for UringLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(self.under_way[slot].is_none(), "the kernel has this buffer");
        self.buffers.of(slot)
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        assert!(self.under_way[slot].is_none(), "one operation per slot");
        assert!(op.len_bytes as usize <= self.buffers.of(slot).len(), "it fits its buffer");
        if op.kind == OpKind::Flush {
            self.flushing[slot] = self.unflushed.take();
        }
        if self.busy == 0 {
            self.answered = Instant::now();
        }
        self.push(slot, UnderWay { op: *op, done: 0 })?;
        // Submit immediately: an operation that waits for a batch would count as in flight although
        // the kernel does not have it, and fast storage would look slower by a tenth.
        self.wait(Wait::No)
    }

    fn submit_metadata(&mut self, slot: usize, op: &MetadataOp) -> Result<(), TargetError> {
        assert!(self.under_way[slot].is_none(), "one operation per slot");
        let data = match op.call.created() {
            Some((_, bytes)) => self.buffers.of(slot)[..bytes as usize].to_vec(),
            None => Vec::new(),
        };
        if self.busy == 0 {
            self.answered = Instant::now();
        }
        let sent = match &mut self.calls {
            Some(calls) => calls.submit(slot, *op, data),
            None => Err(std::io::ErrorKind::Unsupported.into()),
        };
        sent.map_err(|source| self.lost(source))?;
        self.busy += 1;
        self.poll_calls()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        match wait {
            Wait::Until(until) if self.busy == 0 => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return Ok(());
            }
            _ if self.busy == 0 => return Ok(()),
            _ => self.wait(wait)?,
        }
        let at = Instant::now();
        let mut answers = std::mem::take(&mut self.answers);
        let completions = self.ring.completion();
        answers.extend(completions.map(|c| (c.user_data() as usize, c.result())));
        if !answers.is_empty() {
            self.answered = at;
        } else if wait != Wait::No && self.busy > 0 {
            check_limit(&self.address, self.answered)?;
        }
        for (slot, result) in answers.drain(..) {
            if slot as u64 == POLL {
                self.polls = false;
                continue;
            }
            let work = self.under_way[slot].take().expect("the kernel answers once");
            self.busy -= 1;
            let UnderWay { op, done: done_before } = work;
            let moves = matches!(op.kind, OpKind::Read | OpKind::Write);
            let now_done = done_before + result.max(0).cast_unsigned();
            let flushed = done_before as usize + 1;
            let result = match result {
                0 if op.kind == OpKind::Flush && flushed < self.flushing[slot].len() => {
                    self.push(slot, UnderWay { op, done: flushed as u32 })?;
                    continue;
                }
                0 if moves => Err(std::io::ErrorKind::UnexpectedEof.into()),
                1.. if moves && now_done < op.len_bytes => {
                    self.push(slot, UnderWay { op, done: now_done })?;
                    continue;
                }
                0.. => Ok(()),
                error => Err(std::io::Error::from_raw_os_error(-error)),
            };
            self.unflushed.note(&self.files, &op);
            done.push(Done { slot, result, at });
        }
        self.answers = answers;
        if let Some(calls) = self.calls.as_mut().filter(|calls| calls.in_flight() > 0) {
            let before = done.len();
            calls.take(done);
            self.busy -= done.len() - before;
            if calls.in_flight() > 0 {
                self.poll_calls()?;
            }
        }
        Ok(())
    }
}

impl Drop for UringLane {
    fn drop(&mut self) {
        // The kernel may still write to the buffers, so wait for the operations in flight.
        while self.busy > 0 {
            let mut done = Vec::new();
            if self.reap(Wait::One, &mut done).is_err() {
                // Some operations did not end, so leak the buffers instead of freeing them.
                self.buffers.leak();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::{DatasetSpec, OpKind};
    use crate::target::{Address, Lane, Op, Target, Wait, open};

    fn one(lane: &mut dyn Lane, kind: OpKind, offset: u64) {
        let len_bytes = if kind == OpKind::Flush { 0 } else { 4096 };
        let durable = kind == OpKind::Write;
        lane.submit(0, &Op { kind, offset, len_bytes, durable, source: 0 })
            .expect("the ring takes it");
        let mut done = Vec::new();
        while done.is_empty() {
            lane.reap(Wait::One, &mut done).expect("the ring answers");
        }
        assert!(done.len() == 1 && done[0].result.is_ok(), "{done:?}");
    }

    #[test]
    fn flush_of_several_files_is_one_operation() {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Directory(directory.path().to_owned());
        let dataset = DatasetSpec { files: 3, file_bytes: 8192 };
        let target: Box<dyn Target> = open(&address, &dataset).unwrap();
        let mut lane = target.lane(2, 4096).unwrap();
        for file in 0..3 {
            one(&mut *lane, OpKind::Write, file * 8192);
        }
        one(&mut *lane, OpKind::Flush, 0);
        one(&mut *lane, OpKind::Flush, 0);
    }

    /// As in a benchmark run, one thread creates the lane and another thread uses it.
    #[test]
    fn lane_works_in_a_thread_other_than_its_creator() {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::File(directory.path().join("data"));
        let dataset = DatasetSpec { files: 1, file_bytes: 1 << 20 };
        let target: Box<dyn Target> = open(&address, &dataset).unwrap();
        let mut lane = target.lane(2, 4096).unwrap();
        let used = std::thread::spawn(move || {
            lane.buffer(0).fill(7);
            one(&mut *lane, OpKind::Write, 8192);
            one(&mut *lane, OpKind::Flush, 0);
            lane.buffer(0).fill(0);
            one(&mut *lane, OpKind::Read, 8192);
            assert!(lane.buffer(0).iter().all(|byte| *byte == 7));
            one(&mut *lane, OpKind::Read, 4096);
            assert!(lane.buffer(0).iter().all(|byte| *byte == 0), "never written");
        });
        used.join().expect("as it was written");
        drop(target.lane(2, 4096).expect("a lane that is never used goes as well"));
    }
}

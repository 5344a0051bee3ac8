//! File I/O by one blocking thread per slot, for kernels without io_uring.
//!
//! Invariants: while an operation of a slot is in flight, the buffer of the slot belongs to the
//! thread of the slot; every wait has a limit.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use rustix::io::{IoSlice, ReadWriteFlags};
use weir_block::IoBuf;

use super::file::{ANSWER_LIMIT, Files, Unflushed, check_limit};
use super::{Done, Lane, Op, TargetError, Wait};
use crate::spec::OpKind;

/// Work for a thread: an operation, the buffer of its slot and, for a flush, the indexes of the
/// files to flush.
type Work = (Op, IoBuf, Vec<usize>);

/// Completion that a thread reports to the lane.
struct Answer {
    slot: usize,
    op: Op,
    buffer: IoBuf,
    result: Result<(), std::io::Error>,
    at: Instant,
}

struct PsyncLane {
    address: String,
    /// Buffers by slot; `None` while the thread of the slot has the buffer.
    buffers: Vec<Option<IoBuf>>,
    threads: Vec<Sender<Work>>,
    answers: Receiver<Answer>,
    files: Arc<Files>,
    /// Time of the last completion, or of the last submission to an idle lane.
    answered: Instant,
    /// Files that this lane wrote to since its last flush.
    unflushed: Unflushed,
}

pub(super) fn lane(
    address: &str,
    files: &Arc<Files>,
    slots: usize,
    buffer_bytes: usize,
) -> Box<dyn Lane> {
    let (answer, answers) = channel();
    let threads = (0..slots).map(|slot| {
        let (work, works) = channel::<Work>();
        let (files, answer) = (Arc::clone(files), answer.clone());
        // The thread ends when the lane drops its sender of the `works` channel.
        std::thread::spawn(move || {
            for (op, mut buffer, written) in works {
                let result = perform(&files, &op, &mut buffer, &written);
                let at = Instant::now();
                if answer.send(Answer { slot, op, buffer, result, at }).is_err() {
                    return;
                }
            }
        });
        work
    });
    let threads = threads.collect();
    let buffers = (0..slots).map(|_| Some(IoBuf::zeroed(buffer_bytes))).collect();
    let (files, unflushed) = (Arc::clone(files), Unflushed::default());
    let (address, answered) = (address.to_owned(), Instant::now());
    Box::new(PsyncLane { address, buffers, threads, answers, files, answered, unflushed })
}

fn perform(
    files: &Files,
    op: &Op,
    buffer: &mut [u8],
    written: &[usize],
) -> Result<(), std::io::Error> {
    let (file, offset) = files.place(op.offset);
    let file = &files.files[file];
    let bytes = &mut buffer[..op.len_bytes as usize];
    match op.kind {
        OpKind::Read => file.read_exact_at(bytes, offset),
        OpKind::Write if op.durable => {
            let mut done = 0;
            while done < bytes.len() {
                let (rest, at) = ([IoSlice::new(&bytes[done..])], offset + done as u64);
                done += rustix::io::pwritev2(file, &rest, at, ReadWriteFlags::DSYNC)?;
            }
            Ok(())
        }
        OpKind::Write => file.write_all_at(bytes, offset),
        OpKind::Flush => written.iter().try_for_each(|index| files.files[*index].sync_data()),
        OpKind::Trim => {
            let flags =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(file, flags, offset, u64::from(op.len_bytes))?)
        }
        OpKind::WriteSame | OpKind::CompareAndWrite | OpKind::Copy => {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }
}

impl Lane for PsyncLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.buffers[slot].as_mut().expect("its thread has this buffer")
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        if self.buffers.iter().all(Option::is_some) {
            self.answered = Instant::now();
        }
        let buffer = self.buffers[slot].take().expect("one operation per slot");
        let written = if op.kind == OpKind::Flush { self.unflushed.take() } else { Vec::new() };
        let sent = self.threads[slot].send((*op, buffer, written));
        sent.map_err(|_| self.lost())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let any = self.buffers.iter().any(Option::is_none);
        let limit = self.answered + ANSWER_LIMIT;
        let until = match wait {
            Wait::Until(until) if any => Some(until.min(limit)),
            Wait::Until(until) => Some(until),
            Wait::One => any.then_some(limit),
            Wait::No => None,
        };
        let mut first = None;
        if let Some(until) = until {
            let left = until.saturating_duration_since(Instant::now());
            first = match self.answers.recv_timeout(left) {
                Ok(answer) => Some(answer),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost()),
            };
        }
        let more: Vec<Answer> = self.answers.try_iter().collect();
        if any && wait != Wait::No && first.is_none() && more.is_empty() {
            check_limit(&self.address, self.answered)?;
        }
        for Answer { slot, op, buffer, result, at } in first.into_iter().chain(more) {
            self.answered = Instant::now();
            self.unflushed.note(&self.files, &op);
            self.buffers[slot] = Some(buffer);
            done.push(Done { slot, result, at });
        }
        Ok(())
    }
}

impl PsyncLane {
    fn lost(&self) -> TargetError {
        let source = std::io::Error::other("a thread of the generator ended");
        TargetError::Io { address: self.address.clone(), what: "wait for", source }
    }
}

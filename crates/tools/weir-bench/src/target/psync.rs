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

use super::error::TargetError;
use super::lane::{Done, Lane, Op, Wait};
use super::metadata::MetadataOp;
use super::parts::{ANSWER_LIMIT, Files, Unflushed, check_limit};
use super::tree::Tree;
use crate::spec::OpKind;

/// Work for a thread: an operation and the buffer of its slot.
type Work = (Task, IoBuf);

/// Operation of a slot.
enum Task {
    /// Data operation and, for a flush, the indexes of the files to flush.
    Data(Op, Vec<usize>),
    Metadata(MetadataOp),
}

/// Completion that a thread reports to the lane.
struct Answer {
    slot: usize,
    /// Data operation; `None` for a metadata operation.
    op: Option<Op>,
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
    tree: Option<&Arc<Tree>>,
    slots: usize,
    buffer_bytes: usize,
) -> Box<dyn Lane> {
    let (answer, answers) = channel();
    let threads = (0..slots).map(|slot| {
        let (work, works) = channel::<Work>();
        let (files, tree, answer) = (Arc::clone(files), tree.cloned(), answer.clone());
        // The thread ends when the lane drops its sender of the `works` channel.
        std::thread::spawn(move || {
            for (task, mut buffer) in works {
                let (op, result) = match task {
                    Task::Data(op, written) => {
                        (Some(op), perform(&files, &op, &mut buffer, &written))
                    }
                    Task::Metadata(op) => {
                        let unsupported = || Err(std::io::ErrorKind::Unsupported.into());
                        let tree = tree.as_ref();
                        (None, tree.map_or_else(unsupported, |tree| tree.perform(&op, &buffer)))
                    }
                };
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
        _ => Err(std::io::ErrorKind::Unsupported.into()),
    }
}

impl Lane for PsyncLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.buffers[slot].as_mut().expect("its thread has this buffer")
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        let written = if op.kind == OpKind::Flush { self.unflushed.take() } else { Vec::new() };
        self.send(slot, Task::Data(*op, written))
    }

    fn submit_metadata(&mut self, slot: usize, op: &MetadataOp) -> Result<(), TargetError> {
        self.send(slot, Task::Metadata(*op))
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
            op.inspect(|op| self.unflushed.note(&self.files, op));
            self.buffers[slot] = Some(buffer);
            done.push(Done { slot, result, at });
        }
        Ok(())
    }
}

impl PsyncLane {
    fn send(&mut self, slot: usize, task: Task) -> Result<(), TargetError> {
        if self.buffers.iter().all(Option::is_some) {
            self.answered = Instant::now();
        }
        let buffer = self.buffers[slot].take().expect("one operation per slot");
        self.threads[slot].send((task, buffer)).map_err(|_| self.lost())
    }

    fn lost(&self) -> TargetError {
        let source = std::io::Error::other("a thread of the generator ended");
        TargetError::Io { address: self.address.clone(), what: "wait for", source }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::spec::DatasetSpec;
    use crate::target::metadata::{Directory, EXTRACTED_AT_S, FileName, MetadataCall};

    #[test]
    fn threads_execute_data_and_metadata_operations() {
        let path = tempfile::tempdir().unwrap();
        let dataset = DatasetSpec { files: 1, file_bytes: 1 << 20 };
        drop(crate::target::directory::open(path.path(), &dataset).unwrap());
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(path.path().join("weir-bench-00000.dat"))
            .unwrap();
        let files = Arc::new(Files { files: vec![Arc::new(file)], part_bytes: 1 << 20 });
        let tree = Arc::new(Tree::open(path.path(), Arc::clone(&files)).unwrap());
        tree.make_directory(&Directory::root(0)).unwrap();
        let directory = Directory { client: 0, stream: 0, worker: None };
        tree.make_directory(&directory.to_string()).unwrap();
        let mut lane = lane("path", &files, Some(&tree), 4, 4096);
        let file = |number| FileName { directory, worker: 0, number, renamed: false };
        for slot in 0..3 {
            lane.buffer(slot).fill(7);
            let call = MetadataCall::Create { file: file(slot as u32), bytes: 100 };
            lane.submit_metadata(slot, &MetadataOp { call, durable: true }).unwrap();
        }
        let (kind, offset, len_bytes, source) = (OpKind::Write, 0, 4096, 0);
        lane.submit(3, &Op { kind, offset, len_bytes, durable: false, source }).unwrap();
        let mut done = Vec::new();
        while done.len() < 4 {
            lane.reap(Wait::One, &mut done).unwrap();
        }
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
        let call = MetadataCall::List { directory, files: 3 };
        lane.submit_metadata(0, &MetadataOp { call, durable: false }).unwrap();
        done.clear();
        lane.reap(Wait::One, &mut done).unwrap();
        assert!(done[0].result.is_ok(), "{done:?}");
        let written = std::fs::read(path.path().join(file(2).to_string())).unwrap();
        assert_eq!(written, [7; 100]);
        let call = MetadataCall::Extract { file: file(3), bytes: 50 };
        let wrong = MetadataCall::ListPlus { directory, files: 3 };
        for (call, is_right) in [(call, true), (wrong, false)] {
            lane.submit_metadata(0, &MetadataOp { call, durable: false }).unwrap();
            done.clear();
            lane.reap(Wait::One, &mut done).unwrap();
            assert_eq!(done[0].result.is_ok(), is_right, "{done:?}");
        }
        let extracted = std::fs::metadata(path.path().join(file(3).to_string())).unwrap();
        assert_eq!((extracted.len(), extracted.mtime()), (50, EXTRACTED_AT_S.into()));
    }
}

//! Chooses the metadata operations of one worker in one stream, and tracks the state of its files.
//!
//! `scratch` creates, checks and removes the files; `worker` sends the operations.
//!
//! Invariants: a worker changes only its own files, and a file has at most one change in flight, so
//! that the state of each file is known when its last change completes; equal seeds and equal
//! worker numbers give equal operations.

use std::collections::{BTreeSet, VecDeque};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::spec::{MetadataKind, MetadataShare, MetadataSpec, OpKind, StreamSpec};
use crate::target::MetadataCall;
use crate::target::metadata::{Directory, FileName};

/// Maximum number of files that exist in a mix, for each worker and stream. If this number exists,
/// the worker removes a file in place of the next create.
const MIX_FILES_MAX: usize = 256;
/// Number of files that exist at the start of a mix, for each worker and stream, so that the first
/// removes have a file to remove.
const MIX_FILES_FIRST: u32 = 8;

/// State of a file: it exists.
const PRESENT: u8 = 1;
/// It has its second name.
const RENAMED: u8 = 2;
/// A change of the file is chosen, and its outcome is not known yet.
const BUSY: u8 = 4;
/// A change failed, so the file may exist or not.
const UNKNOWN: u8 = 8;
/// The check after the run found the file in its directory.
const SEEN: u8 = 16;

/// Result of a draw.
pub(super) enum Drawn {
    /// The next operation of the stream is this metadata operation.
    Call(OpKind, MetadataCall),
    /// The next operation of the stream is a data operation.
    Data,
    /// The stream has no further operation.
    End,
}

/// Outcome of a chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The operation succeeded.
    Done,
    /// The operation failed. A change may have reached the target or not.
    Failed,
    /// The operation was not sent.
    NotSent,
}

/// Result of the check of a name that a directory lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The file exists with this name.
    Expected,
    /// The file was removed or renamed, or never created.
    Unexpected,
    /// The state of the file is unknown.
    Unknown,
}

/// Metadata operations of one worker in one stream.
pub(super) struct Metadata {
    directory: Directory,
    worker: u32,
    kind: Kind,
}

enum Kind {
    Files(Files),
    Mix(Mix),
}

/// Operations of one kind on a fixed set of files.
struct Files {
    op: OpKind,
    file_bytes: u32,
    /// Number of files that the directory lists.
    listed: u32,
    order: Order,
    next: u32,
    /// State of each file, as a sum of the constants of this module.
    states: Vec<u8>,
}

/// Order in which the operations use the files.
enum Order {
    Ascending,
    /// A random order, in which each file occurs once.
    Shuffled(Vec<u32>),
    /// Each file is equally likely at each operation.
    Random,
}

/// Mix of metadata operations of several kinds.
struct Mix {
    pct: f64,
    shares: Vec<MetadataShare>,
    weights: f64,
    /// Number of files of the dataset.
    dataset_files: u32,
    /// Files that this worker created and did not remove, oldest first.
    present: VecDeque<u32>,
    /// Files whose last change is in flight or failed.
    unsettled: BTreeSet<u32>,
    created: u32,
    seen: BTreeSet<u32>,
}

impl Metadata {
    /// Creates the metadata operations of a worker, `(worker, workers)`, in the stream of number
    /// `stream`; `None` if the stream has none.
    pub(super) fn new(
        spec: &StreamSpec,
        stream: usize,
        (worker, workers): (u32, u32),
        dataset_files: u32,
        seed: u64,
    ) -> Option<Self> {
        let stream = stream as u32;
        let (kind, is_shared) = match spec.metadata.as_ref()? {
            MetadataSpec::Mix { pct, shares } => {
                let weights = shares.iter().map(|share| share.weight).sum();
                let removes = shares.iter().any(|share| share.op == MetadataKind::Remove);
                let first = if removes { MIX_FILES_FIRST } else { 0 };
                let mix = Mix {
                    pct: *pct,
                    shares: shares.clone(),
                    weights,
                    dataset_files: dataset_files.max(1),
                    present: (0..first).collect(),
                    unsettled: BTreeSet::new(),
                    created: first,
                    seen: BTreeSet::new(),
                };
                (Kind::Mix(mix), false)
            }
            MetadataSpec::Files { files, file_bytes, shared } => {
                let op = spec.op.unwrap_or(OpKind::Stat);
                let owners = if *shared { workers.max(1) } else { 1 };
                let seed = seed ^ (u64::from(worker) << 32) ^ (u64::from(stream) << 16) ^ 0xf11e5;
                let files = Files {
                    op,
                    file_bytes: *file_bytes,
                    listed: files.saturating_mul(owners),
                    order: Order::of(op, spec.access.is_random(), *files, seed),
                    next: 0,
                    states: vec![if op.creates_files() { 0 } else { PRESENT }; *files as usize],
                };
                (Kind::Files(files), *shared)
            }
        };
        let own = (!is_shared).then_some(worker);
        Some(Self { directory: Directory { client: 0, stream, worker: own }, worker, kind })
    }

    /// Sets the number of the client that creates the files.
    pub(super) fn for_client(&mut self, client: u32) {
        self.directory.client = client;
    }

    /// Directory of the files.
    pub(super) fn directory(&self) -> Directory {
        self.directory
    }

    /// Number of the worker that uses the files.
    pub(super) fn worker(&self) -> u32 {
        self.worker
    }

    /// True if the operations create, rename or remove files, so that they need a directory.
    pub(super) fn needs_directory(&self) -> bool {
        match &self.kind {
            Kind::Files(_) => true,
            Kind::Mix(mix) => mix.shares.iter().any(|share| share.op.changes_directory()),
        }
    }

    /// Calls that create the files which must exist at the start of the run.
    pub(super) fn initial(&self) -> impl Iterator<Item = MetadataCall> + '_ {
        let (bytes, numbers) = match &self.kind {
            Kind::Files(files) if files.op.creates_files() => (0, 0),
            Kind::Files(files) => (files.file_bytes, files.states.len() as u32),
            Kind::Mix(mix) => (0, mix.created),
        };
        let create = move |number| MetadataCall::Create { file: self.file(number, false), bytes };
        (0..numbers).map(create)
    }

    fn file(&self, number: u32, renamed: bool) -> FileName {
        FileName { directory: self.directory, worker: self.worker, number, renamed }
    }

    /// Draws the next operation of the stream.
    pub(super) fn draw(&mut self, rng: &mut SmallRng) -> Drawn {
        let own = self.file(0, false);
        let file = |number, renamed| FileName { number, renamed, ..own };
        match &mut self.kind {
            Kind::Files(files) => match files.draw(own, rng) {
                Some(call) => Drawn::Call(files.op, call),
                None => Drawn::End,
            },
            Kind::Mix(mix) => match mix.draw(file, rng) {
                Some(call) => Drawn::Call(OpKind::Metadata, call),
                None => Drawn::Data,
            },
        }
    }

    /// Records the outcome of a drawn operation.
    pub(super) fn settle(&mut self, call: &MetadataCall, outcome: Outcome) {
        match &mut self.kind {
            Kind::Files(files) => files.settle(call, outcome),
            Kind::Mix(mix) => mix.settle(call, outcome),
        }
    }

    /// Checks a name that the directory lists after the run.
    pub(super) fn look(&mut self, number: u32, renamed: bool) -> Found {
        match &mut self.kind {
            Kind::Files(files) => {
                let Some(state) = files.states.get_mut(number as usize) else {
                    return Found::Unexpected;
                };
                if *state & (BUSY | UNKNOWN) != 0 {
                    return Found::Unknown;
                }
                let is_there = *state & PRESENT != 0 && renamed == (*state & RENAMED != 0);
                if is_there {
                    *state |= SEEN;
                }
                if is_there { Found::Expected } else { Found::Unexpected }
            }
            Kind::Mix(mix) if mix.unsettled.contains(&number) => Found::Unknown,
            Kind::Mix(mix) if !renamed && mix.present.contains(&number) => {
                mix.seen.insert(number);
                Found::Expected
            }
            Kind::Mix(_) => Found::Unexpected,
        }
    }

    /// Files that must exist and that [`Self::look`] was not called for.
    pub(super) fn missing(&self) -> Vec<FileName> {
        match &self.kind {
            Kind::Files(files) => {
                let states = files.states.iter().zip(0_u32..);
                let missing = states
                    .filter(|(state, _)| *state & (PRESENT | BUSY | UNKNOWN | SEEN) == PRESENT);
                missing.map(|(state, number)| self.file(number, state & RENAMED != 0)).collect()
            }
            Kind::Mix(mix) => {
                let missing = mix.present.iter().filter(|number| !mix.seen.contains(number));
                missing.map(|number| self.file(*number, false)).collect()
            }
        }
    }
}

impl Order {
    fn of(op: OpKind, is_random: bool, files: u32, seed: u64) -> Self {
        match op {
            _ if !is_random => Self::Ascending,
            OpKind::Create | OpKind::Extract | OpKind::Remove => {
                let mut order: Vec<u32> = (0..files).collect();
                order.shuffle(&mut SmallRng::seed_from_u64(seed));
                Self::Shuffled(order)
            }
            _ => Self::Random,
        }
    }
}

impl Files {
    fn draw(&mut self, own: FileName, rng: &mut SmallRng) -> Option<MetadataCall> {
        let files = self.states.len() as u32;
        let file = |number, renamed| FileName { number, renamed, ..own };
        match self.op {
            OpKind::Create | OpKind::Extract | OpKind::Remove => {
                let number = match &self.order {
                    Order::Shuffled(order) => *order.get(self.next as usize)?,
                    _ => Some(self.next).filter(|next| *next < files)?,
                };
                self.next += 1;
                self.states[number as usize] |= BUSY;
                let (file, bytes) = (file(number, false), self.file_bytes);
                Some(match self.op {
                    OpKind::Create => MetadataCall::Create { file, bytes },
                    OpKind::Extract => MetadataCall::Extract { file, bytes },
                    _ => MetadataCall::Remove { file },
                })
            }
            OpKind::Rename => {
                let first = self.pick(rng)?;
                let from_there = (first..files).chain(0..first);
                let is_free = |number: &u32| self.states[*number as usize] & (BUSY | UNKNOWN) == 0;
                let number = from_there.into_iter().find(is_free)?;
                let state = &mut self.states[number as usize];
                *state |= BUSY;
                let is_renamed = *state & RENAMED != 0;
                let (from, to) = (file(number, is_renamed), file(number, !is_renamed));
                Some(MetadataCall::Rename { from, to })
            }
            OpKind::Readdir => {
                Some(MetadataCall::List { directory: own.directory, files: self.listed })
            }
            OpKind::Readdirplus => {
                Some(MetadataCall::ListPlus { directory: own.directory, files: self.listed })
            }
            _ => Some(MetadataCall::Stat { file: file(self.pick(rng)?, false) }),
        }
    }

    /// Chooses a file of a set that the operations use again and again.
    fn pick(&mut self, rng: &mut SmallRng) -> Option<u32> {
        let files = self.states.len() as u32;
        if files == 0 {
            return None;
        }
        if matches!(self.order, Order::Random) {
            return Some(rng.random_range(0..files));
        }
        let number = self.next;
        self.next = (self.next + 1) % files;
        Some(number)
    }

    fn settle(&mut self, call: &MetadataCall, outcome: Outcome) {
        let (number, change) = match call {
            MetadataCall::Create { file, .. }
            | MetadataCall::Extract { file, .. }
            | MetadataCall::Remove { file } => (file.number, PRESENT),
            MetadataCall::Rename { from, .. } => (from.number, RENAMED),
            _ => return,
        };
        let state = &mut self.states[number as usize];
        *state &= !BUSY;
        match outcome {
            Outcome::Done => *state ^= change,
            Outcome::Failed => *state |= UNKNOWN,
            Outcome::NotSent => {}
        }
    }
}

impl Mix {
    /// Draws a metadata operation; `None` for a data operation.
    fn draw(
        &mut self,
        file: impl Fn(u32, bool) -> FileName,
        rng: &mut SmallRng,
    ) -> Option<MetadataCall> {
        if rng.random_range(0.0..100.0) >= self.pct {
            return None;
        }
        let mut drawn = rng.random_range(0.0..self.weights.max(f64::MIN_POSITIVE));
        let mut kinds = self.shares.iter().filter(|share| share.weight > 0.0);
        let kind = kinds.find(|share| {
            drawn -= share.weight;
            drawn < 0.0
        });
        let number = rng.random_range(0..self.dataset_files);
        Some(match kind.or(self.shares.last())?.op {
            MetadataKind::Getattr => MetadataCall::Getattr { file: number },
            MetadataKind::Lookup => MetadataCall::Lookup { file: number },
            MetadataKind::Access => MetadataCall::Access { file: number },
            MetadataKind::Setattr => MetadataCall::Setattr { file: number },
            MetadataKind::Readdir => MetadataCall::Readdir,
            MetadataKind::Readdirplus => MetadataCall::Readdirplus,
            MetadataKind::Fsstat => MetadataCall::Fsstat,
            MetadataKind::Create if self.present.len() < MIX_FILES_MAX => self.create(&file),
            MetadataKind::Remove | MetadataKind::Create => match self.present.pop_front() {
                Some(number) => {
                    self.unsettled.insert(number);
                    MetadataCall::Remove { file: file(number, false) }
                }
                None => self.create(&file),
            },
        })
    }

    fn create(&mut self, file: impl Fn(u32, bool) -> FileName) -> MetadataCall {
        let number = self.created;
        self.created += 1;
        self.unsettled.insert(number);
        MetadataCall::Create { file: file(number, false), bytes: 0 }
    }

    fn settle(&mut self, call: &MetadataCall, outcome: Outcome) {
        let (number, is_there) = match call {
            MetadataCall::Create { file, .. } => (file.number, outcome == Outcome::Done),
            MetadataCall::Remove { file } => (file.number, outcome == Outcome::NotSent),
            _ => return,
        };
        // A file whose change failed stays unsettled.
        if outcome != Outcome::Failed {
            self.unsettled.remove(&number);
        }
        if is_there {
            self.present.push_back(number);
        }
    }
}

#[cfg(test)]
mod tests;

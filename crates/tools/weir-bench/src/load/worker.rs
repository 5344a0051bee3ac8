//! Worker: a thread with one lane, its operations and their results.
//!
//! Invariants:
//! - in a closed loop, the worker sends the next operation as soon as one completes, before any
//!   other work; the latency of an operation counts from its send time;
//! - the worker chooses operations and generates their contents while other operations are in
//!   flight, so that generating content does not reduce the queue depth;
//! - in an open loop, the intended times are chosen in advance and do not depend on the target; the
//!   latency counts from the intended time, even if the operation waited for a slot;
//! - the rate counts an operation if the operation completes inside the measured window;
//! - a latency counts if the intended time of its operation (in a closed loop: its completion) is
//!   inside the measured window.

mod metadata;
mod reads;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Exp1};

use super::board::{Board, STALL_MIN, Second};
use super::files::{Metadata, Outcome};
use super::{Chooser, Ground, ReadChecks, Slots};
use crate::histogram::Latencies;
use crate::load::access::Choice;
use crate::result::Coverage;
use crate::spec::{Arrival, Durability, LoadSpec, MetadataKind, OpKind};
use crate::target::{Done, Lane, MetadataCall, Op, TargetError, Wait};

/// Maximum time to wait for the operations in flight after the end of a run. After this time, the
/// target counts as hung.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// One read in this number, chosen at random, is compared byte by byte in all its blocks. Of the
/// other reads, only the stamp of the first block is checked.
const COMPARE_ONE_IN: u64 = 64;
/// Maximum number of attempts to find a block that has no write in flight.
const TRIES_MAX: u32 = 64;
/// Time before a deadline at which the worker changes from sleeping to spinning, because a sleep is
/// inexact.
const SLEEP_SLACK: Duration = Duration::from_micros(150);
/// Interval at which a worker that waits for the start checks whether the run was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of operation kinds. Each stream has one class for each kind.
const KINDS: usize = OpKind::ALL.len();

/// Times of a run: its start, the measured window and its end.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) start: Instant,
    pub(super) counts_from: Instant,
    /// End of the run; `None` if the run ends when all workers have finished.
    pub(super) ends: Option<Instant>,
}

impl Times {
    pub(super) fn from(start: Instant, warmup: Duration, duration: Option<Duration>) -> Self {
        let counts_from = start + warmup;
        Self { start, counts_from, ends: duration.map(|duration| counts_from + duration) }
    }

    fn over(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| now >= ends)
    }

    fn counts(&self, at: Instant) -> bool {
        at >= self.counts_from && !self.over(at)
    }

    /// Part of a stall that is inside the measured window, if this part has the minimum length.
    /// `at` is the time of the completion that ended the stall.
    fn counted_part(&self, at: Instant, stall: Duration) -> Option<Duration> {
        let from = at.checked_sub(stall)?.max(self.counts_from);
        let to = self.ends.map_or(at, |ends| ends.min(at));
        Some(to.saturating_duration_since(from)).filter(|part| *part >= STALL_MIN)
    }
}

/// Rule for the times at which a worker sends operations.
pub(super) enum Pace {
    Closed,
    Open {
        gap_s: f64,
        /// Fraction of `gap_s` after which the first operation of constant arrivals is due. Each
        /// worker has another fraction, so that the arrivals of all workers together are evenly
        /// spaced.
        first: f64,
        arrival: Arrival,
        rng: Box<SmallRng>,
        backlog_max: u64,
    },
}

impl Pace {
    pub(super) fn of(load: &LoadSpec, seed: u64, worker: u32) -> Self {
        match *load {
            LoadSpec::Closed { .. } => Self::Closed,
            LoadSpec::Open { workers, rate, arrival, backlog_max, .. } => Self::Open {
                gap_s: f64::from(workers.max(1)) / rate.max(1e-6),
                first: f64::from(worker + 1) / f64::from(workers.max(1)),
                arrival,
                rng: Box::new(SmallRng::seed_from_u64(seed ^ (u64::from(worker) << 32) ^ 0xa11)),
                backlog_max: backlog_max / u64::from(workers.max(1)) + 1,
            },
        }
    }
}

/// Results that one worker measured.
pub(super) struct Tally {
    /// Figures by stream and kind of operation; `None` if there was no operation.
    pub(super) classes: Vec<Option<ClassTally>>,
    /// Number of metadata operations in mixes, by kind.
    pub(super) metadata_ops: BTreeMap<MetadataKind, u64>,
    /// Metadata operations, with the final states of the worker's files.
    pub(super) metadata: Vec<Metadata>,
    pub(super) lag: Latencies,
    pub(super) backlog_max: u64,
    pub(super) overloaded: bool,
    /// Number of operations of an open loop that were due in the measured window.
    pub(super) due: u64,
    /// Number of operations that completed in the measured window.
    pub(super) answered: u64,
    /// Lengths of the stalls that a completion of this worker ended.
    pub(super) stalls: Latencies,
    /// Time for which the worker waited for a CPU core.
    pub(super) cpu_wait: Duration,
    pub(super) corrupt: u64,
    pub(super) other_run: u64,
    pub(super) zero_reads: u64,
    pub(super) coverage: Coverage,
    pub(super) began: Instant,
    pub(super) ended: Instant,
}

#[derive(Default)]
pub(super) struct ClassTally {
    pub(super) ops: u64,
    pub(super) bytes: u64,
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) latency: Latencies,
    pub(super) service: Option<Latencies>,
}

/// Operation that is prepared. If it is a write, its data is in the buffer of its slot.
#[derive(Clone, Copy)]
struct Ready {
    slot: usize,
    choice: Choice,
    compare: bool,
}

/// Operation that is in flight.
#[derive(Clone, Copy)]
struct UnderWay {
    choice: Choice,
    intended: Instant,
    sent: Instant,
    compare: bool,
}

pub(super) struct Worker<'a> {
    ground: &'a Ground<'a>,
    lane: Box<dyn Lane>,
    chooser: Chooser,
    pace: Pace,
    times: Times,
    board: &'a Board,
    stop: &'a AtomicBool,
    slots: Slots,
    under_way: Vec<Option<UnderWay>>,
    /// For each slot with a metadata operation that is prepared or in flight: the operation.
    calls: Vec<Option<MetadataCall>>,
    /// For each slot with a read in flight: the oldest generation that each block to check may
    /// have.
    oldest: Vec<Vec<u32>>,
    /// Number of operations that were sent and have not completed.
    in_flight: usize,
    /// Value of `in_flight` at the end of the run, before the worker waits for the last
    /// completions.
    in_flight_at_end: Option<usize>,
    /// Prepared operations, in the order in which they will be sent.
    ready: VecDeque<Ready>,
    /// Slots whose operation is neither prepared nor in flight.
    free: Vec<usize>,
    tally: Tally,
    second: (u32, Second),
    waiting: u64,
    scratch: Vec<u8>,
    /// Weight of the writes since the last flush.
    writes_unflushed: u64,
    /// Weight of the changes of files and directories since the last flush.
    changes_unflushed: u64,
    /// Generation of the next write, used if the generations of blocks are not tracked.
    generation: u32,
    exhausted: bool,
    /// Number of bytes that further operations may transfer; `None` if the number is not limited.
    pub(super) bytes_left: Option<u64>,
    /// Share of the read data that the worker verifies.
    read_checks: ReadChecks,
}

impl<'a> Worker<'a> {
    #[expect(clippy::too_many_arguments, reason = "one caller, which has them all at hand")]
    pub(super) fn new(
        ground: &'a Ground<'a>,
        lane: Box<dyn Lane>,
        slots: Slots,
        chooser: Chooser,
        pace: Pace,
        times: Times,
        board: &'a Board,
        stop: &'a AtomicBool,
    ) -> Self {
        let tally = Tally {
            classes: Vec::new(),
            metadata_ops: BTreeMap::new(),
            metadata: Vec::new(),
            lag: Latencies::default(),
            backlog_max: 0,
            overloaded: false,
            due: 0,
            answered: 0,
            stalls: Latencies::default(),
            cpu_wait: Duration::ZERO,
            corrupt: 0,
            other_run: 0,
            zero_reads: 0,
            coverage: Coverage::default(),
            began: times.start,
            ended: times.start,
        };
        Self {
            ground,
            lane,
            chooser,
            pace,
            times,
            board,
            stop,
            slots,
            under_way: vec![None; slots.all()],
            calls: vec![None; slots.all()],
            oldest: vec![Vec::new(); slots.all()],
            in_flight: 0,
            in_flight_at_end: None,
            ready: VecDeque::with_capacity(slots.spares),
            free: (0..slots.all()).rev().collect(),
            tally,
            second: (0, Second::default()),
            waiting: 0,
            scratch: vec![0; ground.content.block_bytes()],
            writes_unflushed: 0,
            changes_unflushed: 0,
            generation: 1,
            exhausted: false,
            bytes_left: None,
            read_checks: if ground.target.keeps_data() {
                ground.read_checks
            } else {
                ReadChecks::Off
            },
        }
    }

    pub(super) fn run(mut self) -> Result<Tally, TargetError> {
        // Prepare operations before the start, because all clients start at the same time.
        while Instant::now() < self.times.start
            && self.ready.len() < self.slots.spares
            && self.make_one()
        {}
        self.wait_for_start();
        self.tally.began = Instant::now();
        let waited = cpu_wait();
        match std::mem::replace(&mut self.pace, Pace::Closed) {
            Pace::Closed => self.closed()?,
            Pace::Open { gap_s, first, arrival, rng, backlog_max } => {
                self.open(gap_s, first, arrival, *rng, backlog_max)?;
            }
        }
        self.tally.cpu_wait = cpu_wait().saturating_sub(waited);
        self.drain()?;
        self.give_up_ready();
        // Before `tally.ended`: a load without a time limit, such as the fill, includes this time.
        self.lane.finish()?;
        if let Some(ends) = self.times.ends.filter(|_| !self.stop.load(Ordering::Acquire)) {
            // Also report the seconds after the last completion.
            self.turn_second(ends);
        }
        self.tell_second();
        self.tally.ended = Instant::now();
        self.tally.metadata.extend(self.chooser.into_metadata());
        Ok(self.tally)
    }

    /// Waits for the start of the run, which may be in the future. Spins before the start, because
    /// a sleep is inexact.
    fn wait_for_start(&self) {
        loop {
            let left = self.times.start.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.load(Ordering::Acquire) {
                return;
            }
            if left > SLEEP_SLACK {
                std::thread::sleep(left.saturating_sub(SLEEP_SLACK).min(POLL_INTERVAL));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let is_through = self.exhausted && self.ready.is_empty();
        self.times.over(now) || is_through || self.stop.load(Ordering::Acquire)
    }

    fn closed(&mut self) -> Result<(), TargetError> {
        let mut done = Vec::new();
        loop {
            let now = Instant::now();
            if self.is_over(now) {
                break;
            }
            // Send the prepared operations at once. Then process the completions, which free slots,
            // and send the operations that needed a free slot.
            while self.send_next(None)? {}
            self.finish_all(&mut done);
            while self.send_next(None)? {}
            self.turn_second(now);
            self.make_ready();
            self.reap(Wait::One, &mut done)?;
        }
        self.in_flight_at_end = Some(self.in_flight);
        self.finish_all(&mut done);
        Ok(())
    }

    fn open(
        &mut self,
        gap_s: f64,
        first: f64,
        arrival: Arrival,
        mut rng: SmallRng,
        backlog_max: u64,
    ) -> Result<(), TargetError> {
        let mut gap = move || {
            let factor: f64 = match arrival {
                Arrival::Constant => 1.0,
                Arrival::Poisson => Exp1.sample(&mut rng),
            };
            gap_s * factor
        };
        // Compute each due time from the start of the run, so that rounding errors do not
        // accumulate.
        let mut next_s = match arrival {
            Arrival::Constant => gap_s * first,
            Arrival::Poisson => gap(),
        };
        let mut waiting: VecDeque<Instant> = VecDeque::new();
        let mut done = Vec::new();
        loop {
            let now = Instant::now();
            if self.is_over(now) {
                break;
            }
            let elapsed_s = now.duration_since(self.times.start).as_secs_f64();
            while next_s <= elapsed_s {
                waiting.push_back(self.due(next_s));
                next_s += gap();
            }
            self.send_due(&mut waiting)?;
            self.waiting = waiting.len() as u64;
            self.tally.backlog_max = self.tally.backlog_max.max(self.waiting);
            if self.waiting > backlog_max {
                self.tally.overloaded = true;
                self.stop.store(true, Ordering::Release);
                break;
            }
            self.turn_second(now);
            self.make_ready();
            let next = self.times.start + Duration::from_secs_f64(next_s);
            self.reap(Wait::Until(next), &mut done)?;
            self.finish_all(&mut done);
        }
        self.in_flight_at_end = Some(self.in_flight);
        if self.exhausted {
            // A worker that has reached its number of bytes sends no more operations, so the
            // waiting due times do not count.
            let unsent = waiting.iter().filter(|at| self.times.counts(**at)).count();
            self.tally.due -= unsent as u64;
            return Ok(());
        }
        if !self.tally.overloaded && !self.stop.load(Ordering::Acquire) {
            // Add the operations that became due after the last pass of the loop above.
            let until = self.times.ends.unwrap_or_else(Instant::now);
            let until_s = until.saturating_duration_since(self.times.start).as_secs_f64();
            while next_s < until_s {
                waiting.push_back(self.due(next_s));
                next_s += gap();
            }
        }
        self.send_rest(waiting)
    }

    /// Records that an operation is due `at_s` seconds after the start of the run.
    fn due(&mut self, at_s: f64) -> Instant {
        let at = self.times.start + Duration::from_secs_f64(at_s);
        self.tally.due += u64::from(self.times.counts(at));
        at
    }

    /// Sends the operations that are due, while slots are free.
    fn send_due(&mut self, waiting: &mut VecDeque<Instant>) -> Result<(), TargetError> {
        while let Some(intended) = waiting.front().copied() {
            if !self.send_next(Some(intended))? {
                break;
            }
            waiting.pop_front();
        }
        Ok(())
    }

    /// Sends the operations that became due before the end but were not sent, as slots become free,
    /// for a limited time. These operations still count.
    fn send_rest(&mut self, mut waiting: VecDeque<Instant>) -> Result<(), TargetError> {
        let (give_up, mut done) = (Instant::now() + DRAIN_MAX, Vec::new());
        while !waiting.is_empty() && !self.tally.overloaded && !self.stop.load(Ordering::Acquire) {
            self.send_due(&mut waiting)?;
            self.reap(Wait::Until(give_up), &mut done)?;
            self.finish_all(&mut done);
            if Instant::now() >= give_up {
                self.tally.overloaded = true;
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), TargetError> {
        let (give_up, mut done) = (Instant::now() + DRAIN_MAX, Vec::new());
        while self.in_flight > 0 {
            if Instant::now() >= give_up {
                for slot in 0..self.under_way.len() {
                    if let Some(work) = self.under_way[slot].take() {
                        let errors = &mut self.class(&work.choice).errors;
                        *errors.entry("no answer".to_owned()).or_default() += 1;
                    }
                }
                return Ok(());
            }
            self.reap(Wait::Until(give_up), &mut done)?;
            self.finish_all(&mut done);
        }
        Ok(())
    }

    /// Cancels prepared operations, which will never be sent.
    fn give_up_ready(&mut self) {
        for Ready { slot, choice, .. } in self.ready.drain(..) {
            if let Some(call) = self.calls[slot].take() {
                self.chooser.settle(choice.stream, &call, Outcome::NotSent);
            }
            if let (true, Some(known)) = (changes(choice.kind), self.ground.generations) {
                known.give_up(choice.offset, choice.len_bytes);
            }
        }
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        self.lane.reap(wait, done)?;
        self.in_flight -= done.len();
        Ok(())
    }

    fn finish_all(&mut self, done: &mut Vec<Done>) {
        for done in done.drain(..) {
            self.finish(done);
        }
    }

    /// Sends the next operation. Returns false if the queue depth is reached or no operation is
    /// available.
    fn send_next(&mut self, intended: Option<Instant>) -> Result<bool, TargetError> {
        if self.in_flight >= self.slots.depth || (self.ready.is_empty() && !self.make_one()) {
            return Ok(false);
        }
        let Some(next) = self.ready.pop_front() else { return Ok(false) };
        self.start(next, intended).map(|()| true)
    }

    /// Prepares operations until no spare slot is free.
    fn make_ready(&mut self) {
        while self.ready.len() < self.slots.spares && self.make_one() {}
    }

    /// Prepares the next operation. Returns false if no slot is free or no operation is available.
    fn make_one(&mut self) -> bool {
        let Some(slot) = self.free.pop() else { return false };
        let Some(choice) = self.choose() else {
            self.free.push(slot);
            return false;
        };
        if matches!(choice.kind, OpKind::Write | OpKind::CompareAndWrite) {
            self.make_content(slot, &choice);
        }
        if choice.has_call {
            self.prepare_call(slot);
        }
        if changes(choice.kind) {
            self.writes_unflushed += self.ground.durability.weight(choice.len_bytes.into());
        }
        let drawn = self.chooser.draw().is_multiple_of(COMPARE_ONE_IN);
        let compare = drawn || self.read_checks == ReadChecks::Full;
        self.ready.push_back(Ready { slot, choice, compare });
        true
    }

    fn make_content(&mut self, slot: usize, choice: &Choice) {
        let Choice { offset, len_bytes, .. } = *choice;
        let content = self.ground.content;
        let block_bytes = content.block_bytes();
        let mut next = self.ground.generations.map(|known| known.next(offset, len_bytes));
        let mut buffer = self.lane.buffer(slot);
        if choice.kind == OpKind::CompareAndWrite {
            let (here, rest) = buffer.split_at_mut(len_bytes as usize);
            let mut now = self.ground.generations.map(|known| known.next(offset, len_bytes));
            for (block, address) in
                here.chunks_exact_mut(block_bytes).zip((offset..).step_by(block_bytes))
            {
                let next = now.as_mut().and_then(Iterator::next).expect("it was looked at");
                content.fill_block(block, address, next - 1);
            }
            buffer = rest;
        }
        let buffer = &mut buffer[..len_bytes as usize];
        let addresses = (offset..).step_by(block_bytes);
        for (block, address) in buffer.chunks_exact_mut(block_bytes).zip(addresses) {
            let known = next.as_mut().and_then(Iterator::next);
            content.fill_block(block, address, known.unwrap_or(self.generation));
        }
        self.generation = self.generation.wrapping_add(1).max(1);
    }

    /// Resets the counter of a flush that is due, and returns true for a flush of changed files and
    /// directories, false for a flush of written data.
    fn due_flush(&mut self) -> Option<bool> {
        let every = self.ground.durability.flush_every()?;
        let has_call = self.changes_unflushed >= every;
        if !has_call && self.writes_unflushed < every {
            return None;
        }
        *(if has_call { &mut self.changes_unflushed } else { &mut self.writes_unflushed }) = 0;
        Some(has_call)
    }

    /// Chooses the next operation: a flush if one is due, otherwise an operation that does not
    /// conflict with a write in flight.
    fn choose(&mut self) -> Option<Choice> {
        if let Some(has_call) = self.due_flush() {
            let (kind, offset, len_bytes, source) = (OpKind::Flush, 0, 0, 0);
            return Some(Choice { stream: 0, kind, offset, len_bytes, source, has_call });
        }
        if self.bytes_left == Some(0) {
            self.exhausted = true;
            return None;
        }
        let mut choice = self.chooser.next_op();
        for _ in 0..TRIES_MAX {
            let Some(found) = choice else {
                self.exhausted = true;
                return None;
            };
            if let Some(found) = self.with_source(found)
                && self.begin(&found)
            {
                if let Some(left) = &mut self.bytes_left {
                    *left = left.saturating_sub(u64::from(found.len_bytes));
                }
                return Some(found);
            }
            choice = self.chooser.elsewhere(found);
        }
        None
    }

    /// Chooses the source of a copy, which must not overlap the copy's destination.
    fn with_source(&mut self, found: Choice) -> Option<Choice> {
        if found.kind != OpKind::Copy {
            return Some(found);
        }
        let source = self.chooser.elsewhere(found)?.offset;
        let is_apart = source.abs_diff(found.offset) >= u64::from(found.len_bytes);
        is_apart.then_some(Choice { source, ..found })
    }

    /// Begins an operation. Returns false if a change to its blocks is in flight, or if the
    /// operation compares blocks whose contents are not known.
    fn begin(&self, choice: &Choice) -> bool {
        let Choice { kind, offset, len_bytes, .. } = *choice;
        let Some(known) = self.ground.generations else {
            return kind != OpKind::CompareAndWrite;
        };
        match kind {
            OpKind::Write => known.begin(offset, len_bytes),
            OpKind::CompareAndWrite => known.begin_known(offset, len_bytes),
            OpKind::Trim | OpKind::WriteSame | OpKind::Copy => {
                known.begin_unjudged(offset, len_bytes)
            }
            // Reads, flushes and metadata operations change no blocks.
            _ => true,
        }
    }

    fn start(&mut self, next: Ready, intended: Option<Instant>) -> Result<(), TargetError> {
        let Ready { slot, choice, compare } = next;
        let Choice { kind, offset, len_bytes, source, has_call, .. } = choice;
        let is_write = matches!(kind, OpKind::Write | OpKind::CompareAndWrite);
        let durable = is_write && self.ground.durability == Durability::Fua;
        if let (Some(known), OpKind::Read) = (self.ground.generations, kind) {
            let blocks = (0..self.checked_bytes(len_bytes, compare) as u64)
                .step_by(self.ground.content.block_bytes());
            self.oldest[slot].clear();
            self.oldest[slot].extend(blocks.map(|start| known.oldest(offset + start)));
        }
        let sent = Instant::now();
        let intended_at = intended.unwrap_or(sent);
        if intended.is_some() && self.times.counts(intended_at) {
            self.tally.lag.record_ns(nanoseconds(intended_at, sent));
        }
        self.under_way[slot] = Some(UnderWay { choice, intended: intended_at, sent, compare });
        self.in_flight += 1;
        if has_call {
            return self.send_call(slot);
        }
        self.lane.submit(slot, &Op { kind, offset, len_bytes, durable, source })
    }

    fn class(&mut self, choice: &Choice) -> &mut ClassTally {
        // The classes of a stream have the order of `OpKind::ALL`, which is the order in which
        // `OpKind` declares its variants.
        let index = choice.stream * KINDS + choice.kind as usize;
        if self.tally.classes.len() <= index {
            self.tally.classes.resize_with(index + 1, || None);
        }
        self.tally.classes[index].get_or_insert_default()
    }

    fn finish(&mut self, Done { slot, result, at }: Done) {
        let work = self.under_way[slot].take().expect("it was sent");
        self.free.push(slot);
        let UnderWay { choice, intended, sent, .. } = work;
        let is_open = intended != sent;
        let in_time = self.times.counts(at);
        if choice.has_call {
            self.settle_call(slot, &choice, result.is_ok(), in_time);
        }
        let stall = self.board.answered(self.times.start, sent, at);
        if let Some(stall) = stall.and_then(|stall| self.times.counted_part(at, stall)) {
            self.tally.stalls.record_ns(stall.as_nanos() as u64);
        }
        self.tally.answered += u64::from(in_time);
        // From here on, reads of the operation's blocks are not judged, whether the operation
        // succeeded or failed.
        if let (OpKind::Trim | OpKind::WriteSame | OpKind::Copy, Some(known)) =
            (choice.kind, self.ground.generations)
        {
            known.give_up(choice.offset, choice.len_bytes);
        }
        if let Err(error) = result {
            *self.class(&choice).errors.entry(error.to_string()).or_default() += 1;
            if let (OpKind::Write | OpKind::CompareAndWrite, Some(known)) =
                (choice.kind, self.ground.generations)
            {
                known.fail(choice.offset, choice.len_bytes);
            }
            return;
        }
        match choice.kind {
            OpKind::Read => self.look_at(slot, &work),
            OpKind::Write | OpKind::CompareAndWrite => {
                if let Some(known) = self.ground.generations {
                    known.end(choice.offset, choice.len_bytes);
                }
            }
            _ => {}
        }
        let response = nanoseconds(intended, at);
        let counts = if is_open { self.times.counts(intended) } else { in_time };
        if !(counts || in_time) {
            return;
        }
        let class = self.class(&choice);
        if in_time {
            class.ops += 1;
            class.bytes += u64::from(choice.len_bytes);
        }
        if counts {
            class.latency.record_ns(response);
        }
        if counts && is_open {
            class.service.get_or_insert_default().record_ns(nanoseconds(sent, at));
        }
        if in_time && choice.kind != OpKind::Flush {
            self.turn_second(at);
            self.second.1.latency.record_ns(response);
            self.second.1.bytes += u64::from(choice.len_bytes);
        }
    }

    /// Reports the seconds that have ended to the board.
    fn turn_second(&mut self, now: Instant) {
        let Some(into) = now.checked_duration_since(self.times.counts_from) else { return };
        let current = into.as_secs() as u32;
        let last = self.times.ends.map_or(u32::MAX, |ends| {
            // The last interval of a run may be shorter than a second.
            let length = ends.saturating_duration_since(self.times.counts_from);
            (length.as_millis().div_ceil(1000) as u32).max(1) - 1
        });
        while self.second.0 < current.min(last) {
            self.tell_second();
            self.second.0 += 1;
        }
    }

    /// Reports the figures of the current second to the board.
    fn tell_second(&mut self) {
        let (second, seen) = &mut self.second;
        seen.backlog = self.waiting;
        seen.in_flight = self.in_flight_at_end.unwrap_or(self.in_flight) as u64;
        self.board.tell(*second, seen);
    }
}

/// True if an operation of this kind changes blocks of the target.
fn changes(kind: OpKind) -> bool {
    kind.is_data() && kind != OpKind::Read
}

/// Time that this thread has waited for a CPU core so far (schedstat); zero if the kernel does not
/// report this time.
fn cpu_wait() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_nanos() as u64
}

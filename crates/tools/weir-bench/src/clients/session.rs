//! Agent's side of one run of one cell.
//!
//! `greeting` authenticates the coordinator, `agent` listens, `check` validates tasks.
//!
//! Invariants:
//! - the agent sends heartbeats while it works, and stops if the coordinator does not answer them,
//!   so that it never writes for a coordinator that is lost;
//! - the agent writes to a target only if the target contains the data of the coordinator's fill.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::SILENCE_MAX;
use super::blocks::{Taker, pieces};
use super::check::check;
use super::link::{Link, LinkError};
use super::wire::{Answer, Measured, Order, Task};
use crate::content::Content;
use crate::load::{Generations, Ground, Offer, Place, Prepared, ReadChecks};
use crate::spec::{DatasetSpec, OpKind};
use crate::target::{self, Address, Op, Target, TargetError, Wait};

/// Interval between two heartbeats.
const ALIVE_EVERY: Duration = Duration::from_millis(250);
/// Maximum time that a ready agent waits for the start; other clients may still be receiving block
/// states.
const BARRIER_MAX: Duration = Duration::from_mins(10);
/// Maximum time that a start time may lie in the future.
const AHEAD_MAX: Duration = Duration::from_mins(1);
/// Number of blocks that a session checks before its first write, in the client's part of the
/// dataset.
const BLOCKS_CHECKED: u64 = 8;

/// Function that opens a target, given the target's address.
pub(super) type Opener =
    dyn Fn(&str, &DatasetSpec) -> Result<Box<dyn Target>, TargetError> + Send + Sync;

/// Reason for which a session ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0}")]
    Task(&'static str),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("{address} does not hold the data that the coordinator wrote: {why}")]
    OtherStorage { address: String, why: String },
    #[error("the run was cancelled")]
    CalledOff,
}

/// Opens a target, given the address on the coordinator's command line. Never creates a file.
pub(super) fn open_existing(
    text: &str,
    dataset: &DatasetSpec,
) -> Result<Box<dyn Target>, TargetError> {
    let address = Address::parse(text)?;
    if let Address::File(path) | Address::Directory(path) = &address {
        let first = path.join("weir-bench-00000.dat");
        let looked_at: &Path = if matches!(address, Address::File(_)) { path } else { &first };
        looked_at.metadata().map_err(|source| TargetError::Io {
            address: text.to_owned(),
            what: "check the data that the coordinator wrote",
            source,
        })?;
    }
    target::open_existing(&address, dataset)
}

/// Executes the task of a coordinator and returns the task; `None` if the coordinator only checked
/// whether the agent answers.
///
/// # Errors
/// The task failed. If the connection still worked, the coordinator received the reason.
pub(super) fn serve(link: &mut Link, open: &Opener) -> Result<Option<Task>, SessionError> {
    let task = match link.receive(SILENCE_MAX) {
        Ok((Order::Prepare(task), _)) => *task,
        Ok(_) => return Err(LinkError::Unexpected.into()),
        Err(LinkError::Closed) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let done = do_task(link, &task, open);
    if let Err(error) = &done
        && !matches!(error, SessionError::Link(LinkError::Closed | LinkError::Broken(_)))
    {
        link.send(&Answer::Failed { why: error.to_string() }).ok();
    }
    done.map(|()| Some(task))
}

fn do_task(link: &mut Link, task: &Task, open: &Opener) -> Result<(), SessionError> {
    check(task).map_err(SessionError::Task)?;
    let (clock, total_bytes) = (Instant::now(), task.dataset.total_bytes());
    let known = task.is_known.then(|| Generations::new(total_bytes, task.block_bytes as usize));
    let known = match known {
        Some(None) => return Err(SessionError::Task("the dataset is too large to verify")),
        known => known.flatten(),
    };
    let place = Place { number: task.number, of: task.of };
    let part = place.part(&task.dataset);
    if let Some(known) = &known {
        let mut taker = Taker::new(known, known.numbers(&part));
        loop {
            let (Order::Blocks(piece), _) = link.receive(SILENCE_MAX)? else {
                return Err(LinkError::Unexpected.into());
            };
            if taker.take(&piece).map_err(SessionError::Task)? {
                break;
            }
        }
    }
    let opened = busy(link, |_| {
        let target = open(&task.target, &task.dataset)?;
        let content = Content::new(&task.content, task.block_bytes, total_bytes).of_run(task.run);
        look_at(&*target, &content, known.as_ref(), part.clone())?;
        Ok((target, content))
    })?;
    let (target, content) = opened;
    let ground = Ground {
        target: &*target,
        dataset: &task.dataset,
        content: &content,
        generations: known.as_ref(),
        durability: task.durability,
        seed: task.content.seed,
        read_checks: ReadChecks::full_if(task.verify_full),
    };
    let offer = Offer {
        streams: &task.streams,
        load: task.load,
        warmup: Duration::from_millis(task.warmup_ms),
        duration: Some(Duration::from_millis(task.duration_ms)),
        worker_bytes: None,
    };
    let prepared = busy(link, |ended| {
        let mut goes_on = || !ended.load(Ordering::Acquire);
        Ok(Prepared::new(&ground, &offer, place, &mut goes_on)?)
    })?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    link.send(&Answer::Ready { cores })?;
    let start = await_start(link, clock)?;
    let measured = busy(link, |ended| {
        let mut tell = |_| !ended.load(Ordering::Acquire);
        let offered = prepared.start(start, &mut tell)?;
        if task.writes() {
            flush(&*target)?;
        }
        let began_ns = offered.began.saturating_duration_since(clock).as_nanos() as u64;
        Ok(Measured { run: offered.run, began_ns })
    })?;
    link.send(&Answer::Done(Box::new(measured)))?;
    if let Some(known) = known.as_ref().filter(|_| task.writes()) {
        for piece in pieces(known, known.numbers(&part)) {
            link.send(&Answer::Blocks(piece))?;
        }
    }
    Ok(link.send(&Answer::End)?)
}

/// Runs `work` and sends heartbeats at the same time. Sets the stop flag of `work` if the
/// coordinator orders a stop or is lost.
fn busy<T>(
    link: &mut Link,
    work: impl FnOnce(&AtomicBool) -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    let (ended, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let heart = scope.spawn(|| {
            let beat = beat(link, &ended, &over);
            // If the connection is broken, set the stop flag, as after an order to stop.
            if beat.is_err() {
                ended.store(true, Ordering::Release);
            }
            beat
        });
        let done = work(&ended);
        over.store(true, Ordering::Release);
        heart.thread().unpark();
        heart.join().expect("it does not panic")?;
        if ended.load(Ordering::Acquire) { Err(SessionError::CalledOff) } else { done }
    })
}

fn beat(link: &mut Link, ended: &AtomicBool, over: &AtomicBool) -> Result<(), LinkError> {
    while !over.load(Ordering::Acquire) {
        link.send(&Answer::Alive)?;
        match link.receive(SILENCE_MAX)?.0 {
            Order::GoOn => {}
            Order::Stop => ended.store(true, Ordering::Release),
            _ => return Err(LinkError::Unexpected),
        }
        std::thread::park_timeout(ALIVE_EVERY);
    }
    Ok(())
}

/// Answers pings until the start message arrives. Returns the start time.
fn await_start(link: &mut Link, clock: Instant) -> Result<Instant, SessionError> {
    let now_ns = |at: Instant| at.saturating_duration_since(clock).as_nanos() as u64;
    loop {
        let (order, at) = link.receive(BARRIER_MAX)?;
        match order {
            Order::Ping => {
                let received_ns = now_ns(at);
                link.send(&Answer::Pong { received_ns, sent_ns: now_ns(Instant::now()) })?;
            }
            Order::Start { at_ns } => {
                let latest_ns = now_ns(at).saturating_add(AHEAD_MAX.as_nanos() as u64);
                return match at_ns {
                    at_ns if at_ns <= latest_ns => Ok(clock + Duration::from_nanos(at_ns)),
                    _ => Err(SessionError::Task("the start time is too far in the future")),
                };
            }
            Order::Stop => return Err(SessionError::CalledOff),
            _ => return Err(LinkError::Unexpected.into()),
        }
    }
}

/// Checks that the client's part of the target contains the coordinator's data.
fn look_at(
    target: &dyn Target,
    content: &Content,
    known: Option<&Generations>,
    part: std::ops::Range<u64>,
) -> Result<(), SessionError> {
    let info = target.info();
    if !target.keeps_data() {
        return Ok(());
    }
    let unit = content.block_bytes().max(info.block_bytes as usize);
    let blocks = (part.end - part.start) / unit as u64;
    let mut lane = target.lane(1, unit)?;
    for look in 0..BLOCKS_CHECKED.min(blocks) {
        let offset =
            (part.start + blocks * look / BLOCKS_CHECKED * unit as u64) / unit as u64 * unit as u64;
        let kind = OpKind::Read;
        let op = Op { kind, offset, len_bytes: unit as u32, durable: false, source: 0 };
        do_one(&mut *lane, &info.address, &op, "read")?;
        if known.is_some_and(|known| !known.is_judged_now(offset)) {
            continue;
        }
        let wanted = known.and_then(|known| known.now(offset));
        let block = &lane.buffer(0)[..content.block_bytes()];
        if let Err(mismatch) = content.check_stamp(block, offset, wanted) {
            let (address, why) = (info.address.clone(), format!("at offset {offset}: {mismatch}"));
            return Err(SessionError::OtherStorage { address, why });
        }
    }
    Ok(())
}

/// Flushes the target, so that later readers see the earlier writes.
pub(super) fn flush(target: &dyn Target) -> Result<(), TargetError> {
    // A flush operation covers only the files to which its lane wrote, and the lanes of the load
    // are closed.
    if target.flush_files()? {
        return Ok(());
    }
    let (address, kind) = (&target.info().address, OpKind::Flush);
    let mut lane = target.lane(1, 4096)?;
    do_one(
        &mut *lane,
        address,
        &Op { kind, offset: 0, len_bytes: 0, durable: false, source: 0 },
        "flush",
    )
}

fn do_one(
    lane: &mut dyn target::Lane,
    address: &str,
    op: &Op,
    what: &'static str,
) -> Result<(), TargetError> {
    lane.submit(0, op)?;
    let mut done = Vec::new();
    while done.is_empty() {
        lane.reap(Wait::One, &mut done)?;
    }
    let address = address.to_owned();
    done.remove(0).result.map_err(|source| TargetError::Io { address, what, source })
}

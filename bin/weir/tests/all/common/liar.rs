//! A disk for tests of `weir bench`, in this process, whose behaviour is known: a liar, which
//! returns wrong data or wrong timing, or an honest disk. The disk is an NBD export, or a file that
//! nbdfuse mounts from that export.
//!
//! Not here: the expected verdicts (liars, steady), the protocol (nbd), the mount (file). A real
//! disk would be too fast or too slow for a known verdict.
//!
//! Invariant: all connections to a disk share its data, its rate and its counters.

mod file;
mod nbd;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) use file::Mount;

/// Size of the disk in bytes.
pub(crate) const BYTES: usize = 8 << 20;

/// Error numbers of NBD, equal to the error numbers of Linux.
pub(crate) const EIO: u32 = 5;
pub(crate) const ENOSPC: u32 = 28;

/// Number of reads of the probe that `weir bench` makes between the fill and the load.
pub(crate) const PROBE_READS: u64 = 64;

/// Kind of operation that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
}

/// An operation as it arrives at the disk.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// True if the fill has ended: the client has written as many bytes as the disk has.
    pub(crate) filled: bool,
    /// Number of this operation among the operations of its kind, counted from 1 after the end of
    /// the fill; 0 during the fill.
    pub(crate) number: u64,
    /// Time since the first read after the [`PROBE_READS`], which starts the load; 0 before that
    /// read.
    pub(crate) since: Duration,
    /// Number of other operations in flight.
    pub(crate) in_flight: usize,
}

/// Action of the disk for an operation: perform it, or apply a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Performs the operation correctly.
    Right,
    /// Performs the operation correctly after an additional delay.
    Late(Duration),
    /// Flips a bit in the middle of the stored or returned data.
    Flip,
    /// Acknowledges a write and discards its data.
    Lose,
    /// Stores only the first half of a write.
    Tear,
    /// Writes to or reads from this offset instead of the requested one.
    At(usize),
    /// Returns the data that the range had before the last write.
    Old,
    /// Returns zeros instead of the data.
    Zeros,
    /// Returns only half of the requested bytes.
    Short,
    /// Fails the operation with this error number.
    Fail(u32),
    /// Never replies to the operation.
    Silent,
    /// Replies twice to the operation.
    Twice,
    /// Replies with the cookie of an operation that no client sent.
    Stranger,
    /// Closes the connection; the client can connect again.
    HangUp,
    /// Closes the connection and accepts no further connection.
    Vanish,
}

/// Behaviour of a disk.
#[derive(Clone, Copy)]
pub(crate) struct Liar {
    /// Latency of each operation.
    pub(crate) latency: Duration,
    /// Maximum number of operations per second of all clients together.
    pub(crate) rate: f64,
    /// Function that chooses the action for each operation.
    pub(crate) lie: fn(&Op) -> Act,
}

/// State of a disk, which all connections share.
struct Disk {
    how: Liar,
    data: Vec<u8>,
    /// For each byte of the disk, the value before the last write to it.
    old: Vec<u8>,
    free_at: Instant,
    /// Times at which the disk will send the replies to the operations in flight.
    due: Vec<Instant>,
    bytes_written: usize,
    is_filled: bool,
    /// Time of the first read after the [`PROBE_READS`].
    loaded_at: Option<Instant>,
    /// Number of operations of each kind since the end of the fill.
    numbers: [u64; 3],
    is_gone: bool,
}

impl Liar {
    /// Returns a disk that performs every operation correctly.
    pub(crate) fn honest(latency: Duration, rate: f64) -> Self {
        Self { latency, rate, lie: |_| Act::Right }
    }

    /// Returns a disk with this latency and no limit of its rate. The function `lie` chooses its
    /// faults.
    pub(crate) fn lying(latency: Duration, lie: fn(&Op) -> Act) -> Self {
        Self { lie, ..Self::honest(latency, 1e6) }
    }

    /// Serves the disk until the process ends; returns its address for `weir bench`.
    pub(crate) fn serve(self, socket: &Path) -> String {
        let listener = UnixListener::bind(socket).unwrap();
        let disk = Arc::new(Mutex::new(Disk::new(self)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if disk.lock().unwrap().is_gone {
                    break;
                }
                let disk = Arc::clone(&disk);
                // Ignore the result: an error of the connection only ends this thread.
                std::thread::spawn(move || nbd::serve(stream, &disk).ok());
            }
        });
        format!("nbd+unix:///liar?socket={}", socket.display())
    }
}

impl Disk {
    fn new(how: Liar) -> Self {
        let now = Instant::now();
        Self {
            how,
            data: vec![0; BYTES],
            old: vec![0; BYTES],
            free_at: now,
            due: Vec::new(),
            bytes_written: 0,
            is_filled: false,
            loaded_at: None,
            numbers: [0; 3],
            is_gone: false,
        }
    }

    /// Returns the action for an operation that arrives now, and updates the counters.
    fn decide(&mut self, kind: Kind, start: usize, len: usize) -> Act {
        let now = Instant::now();
        self.due.retain(|due| *due > now);
        let number = &mut self.numbers[kind as usize];
        *number += u64::from(self.is_filled);
        if kind == Kind::Read && *number > PROBE_READS {
            self.loaded_at.get_or_insert(now);
        }
        let op = Op {
            kind,
            start,
            len,
            filled: self.is_filled,
            number: *number,
            since: self.loaded_at.map_or(Duration::ZERO, |at| now - at),
            in_flight: self.due.len(),
        };
        if kind == Kind::Write {
            self.bytes_written += len;
            self.is_filled |= self.bytes_written >= BYTES;
        }
        (self.how.lie)(&op)
    }

    /// Returns the time at which the reply to the next operation will be sent.
    fn due(&mut self, act: Act) -> Instant {
        let gap = Duration::from_secs_f64(1.0 / self.how.rate);
        self.free_at = self.free_at.max(Instant::now()) + gap;
        let mut due = self.free_at + self.how.latency;
        if let Act::Late(more) = act {
            due += more;
        }
        self.due.push(due);
        due
    }

    fn read(&self, start: usize, len: usize, act: Act) -> Vec<u8> {
        let from = |bytes: &[u8], at: usize| bytes[at..at + len].to_vec();
        match act {
            Act::At(other) => from(&self.data, other.min(BYTES - len)),
            Act::Old => from(&self.old, start),
            Act::Zeros => vec![0; len],
            Act::Short => self.data[start..start + len / 2].to_vec(),
            Act::Flip => {
                let mut read = from(&self.data, start);
                read[len / 2] ^= 1;
                read
            }
            _ => from(&self.data, start),
        }
    }

    fn write(&mut self, start: usize, payload: &[u8], act: Act) {
        let (start, kept) = match act {
            Act::Lose => return,
            Act::Tear => (start, &payload[..payload.len() / 2]),
            Act::At(other) => (other.min(BYTES - payload.len()), payload),
            _ => (start, payload),
        };
        let place = start..start + kept.len();
        self.old[place.clone()].copy_from_slice(&self.data[place.clone()]);
        self.data[place].copy_from_slice(kept);
        if act == Act::Flip {
            // Flip a bit in the middle of the data, so that the stamp in its first bytes stays
            // correct.
            self.data[start + kept.len() / 2] ^= 1;
        }
    }
}

//! A disk of known behaviour in this process, honest or lying, for tests of `weir bench`: an NBD
//! export, or a file that nbdfuse mounts from it.
//!
//! Not here: the expected verdicts (liars, steady), the protocol (nbd), the mount (file). A disk of
//! the machine would be too fast or too slow to have a known verdict.
//!
//! Invariant: all connections share the data, the rate and the counters of one disk.

mod file;
mod nbd;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) use file::Mount;

/// Size of the disk in bytes.
pub(crate) const BYTES: usize = 8 << 20;

/// Error numbers of NBD, equal to Linux's.
pub(crate) const EIO: u32 = 5;
pub(crate) const ENOSPC: u32 = 28;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
}

/// An operation as the disk sees it.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Whether the fill has ended: the client has written as many bytes as the disk has.
    pub(crate) filled: bool,
    /// Number of this operation among the operations of its kind since the fill ended, from 1; 0
    /// during the fill.
    pub(crate) number: u64,
    /// Time since the fill ended.
    pub(crate) since: Duration,
    /// Number of operations in flight, without this one.
    pub(crate) in_flight: usize,
}

/// Fault that the disk applies to an operation, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Performs the operation.
    Right,
    /// Performs the operation with this delay.
    Late(Duration),
    /// Flips a bit in the middle of the stored or returned data.
    Flip,
    /// Acknowledges a write and discards it.
    Lose,
    /// Stores the first half of a write.
    Tear,
    /// Writes to or reads from another address.
    At(usize),
    /// Returns the data from before the last write.
    Old,
    /// Returns zeros.
    Zeros,
    /// Returns half of the bytes.
    Short,
    /// Fails with an error number.
    Fail(u32),
    /// Never replies.
    Silent,
    /// Replies twice.
    Twice,
    /// Replies to an operation that no client sent.
    Stranger,
    /// Closes the connection.
    HangUp,
    /// Closes the connection and accepts no other.
    Vanish,
}

/// Behaviour of a disk.
#[derive(Clone, Copy)]
pub(crate) struct Liar {
    /// Latency of each operation.
    pub(crate) latency: Duration,
    /// Operations per second of all clients together.
    pub(crate) rate: f64,
    /// Chooses the action for each operation.
    pub(crate) lie: fn(&Op) -> Act,
}

/// State shared by all connections.
struct Disk {
    how: Liar,
    data: Vec<u8>,
    /// Contents of the disk before the last write of each byte.
    old: Vec<u8>,
    free_at: Instant,
    /// Times of the pending replies.
    due: Vec<Instant>,
    bytes_written: usize,
    filled_at: Option<Instant>,
    /// Number of operations since the fill ended, by kind.
    numbers: [u64; 3],
    is_gone: bool,
}

impl Liar {
    /// Returns a disk that applies no fault.
    pub(crate) fn honest(latency: Duration, rate: f64) -> Self {
        Self { latency, rate, lie: |_| Act::Right }
    }

    /// Returns a disk with this latency and an unlimited rate that applies the faults of `lie`.
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
                // An error ends only this connection.
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
            filled_at: None,
            numbers: [0; 3],
            is_gone: false,
        }
    }

    /// Decides which fault applies to an operation that arrives now.
    fn decide(&mut self, kind: Kind, start: usize, len: usize) -> Act {
        let now = Instant::now();
        self.due.retain(|due| *due > now);
        let number = &mut self.numbers[kind as usize];
        *number += u64::from(self.filled_at.is_some());
        let op = Op {
            kind,
            start,
            len,
            filled: self.filled_at.is_some(),
            number: *number,
            since: self.filled_at.map_or(Duration::ZERO, |at| now - at),
            in_flight: self.due.len(),
        };
        if kind == Kind::Write {
            self.bytes_written += len;
            if self.bytes_written >= BYTES {
                self.filled_at.get_or_insert(now);
            }
        }
        (self.how.lie)(&op)
    }

    /// Returns the time of the reply to the next operation.
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
            // The bit is in the middle of the data, beyond the stamp in the first bytes.
            self.data[start + kept.len() / 2] ^= 1;
        }
    }
}

//! Target that is an NBD export. Each lane has one client connection.
//!
//! Spec: NetworkBlockDevice/nbd doc/proto.md: fixed newstyle negotiation, `NBD_OPT_GO`, simple
//! replies.
//! The client supports no TLS and no structured replies.
//!
//! Invariants:
//! - the client validates data from the server before use: it ends the connection after a cookie of
//!   a slot that has no request in flight, and after an option reply over `OPTION_BYTES_MAX`;
//! - the client never reuses a connection on which it lost its position in the byte stream;
//! - every wait has a limit: connecting and negotiating end within [`ANSWER_LIMIT`], even if the
//!   server keeps sending slowly, and a lane without a completion for that long is lost.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, socket_with,
};

use super::address::{Address, NbdAddress, Server};
use super::buffers::Buffers;
use super::error::TargetError;
use super::lane::{ANSWER_LIMIT, Done, Lane, Op, Target, Wait};
use crate::result::TargetInfo;
use crate::spec::OpKind;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const COMMAND_FLAG_FUA: u16 = 1;
const EXPORT_READ_ONLY: u16 = 1 << 1;
const EXPORT_FLUSH: u16 = 1 << 2;
const EXPORT_FUA: u16 = 1 << 3;
const EXPORT_TRIM: u16 = 1 << 5;
const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 16;
/// Maximum length of the data in an option reply.
const OPTION_BYTES_MAX: u32 = 8192;
/// Interval between two connection attempts while the listen backlog of the server is full.
const CONNECT_AGAIN: Duration = Duration::from_millis(20);
/// Maximum sleep between two checks for a server that does not answer.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Size of the buffer that receives replies and small payloads.
const RECEIVE_BYTES: usize = 64 << 10;

/// An NBD export.
pub(super) struct Nbd {
    address: NbdAddress,
    info: TargetInfo,
    flags: u16,
    server_process: Option<u32>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// PID of the server behind a Unix socket; `None` for a process of another PID namespace.
    fn server_process(&self) -> Option<u32> {
        let Self::Unix(unix) = self else { return None };
        let peer = rustix::net::sockopt::socket_peercred(unix).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }
}

/// Properties of an export, as the server sent them.
struct Export {
    bytes: u64,
    flags: u16,
    block_bytes: u32,
}

impl Nbd {
    pub(super) fn open(address: NbdAddress) -> Result<Self, TargetError> {
        let (stream, export) = connect(&address)?;
        let yes = |flag: u16| if export.flags & flag == 0 { "no" } else { "yes" };
        let facts = [("flush", EXPORT_FLUSH), ("fua", EXPORT_FUA), ("trim", EXPORT_TRIM)];
        let info = TargetInfo {
            address: Address::Nbd(address.clone()).to_string(),
            kind: "nbd".to_owned(),
            bytes: export.bytes,
            block_bytes: export.block_bytes,
            driver: "own NBD client, a connection per worker".to_owned(),
            facts: facts.iter().map(|(n, flag)| ((*n).to_owned(), yes(*flag).to_owned())).collect(),
            ..TargetInfo::default()
        };
        let refused = |why: &str| {
            let address = info.address.clone();
            Err(TargetError::Protocol { address, why: why.to_owned() })
        };
        if export.flags & EXPORT_READ_ONLY != 0 {
            return refused("the export is read-only, and the run must write every block first");
        }
        if export.flags & EXPORT_FLUSH == 0 {
            return refused("the export does not support flush, so durability is unknown");
        }
        let server_process = stream.server_process();
        Ok(Self { address, info, flags: export.flags, server_process })
    }
}

impl Target for Nbd {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn server_process(&self) -> Option<u32> {
        self.server_process
    }

    fn op_bytes_max(&self, kind: OpKind) -> u64 {
        match kind {
            OpKind::Read | OpKind::Write | OpKind::Flush => u64::MAX,
            OpKind::Trim if self.flags & EXPORT_TRIM != 0 => u32::MAX.into(),
            _ => 0,
        }
    }

    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        let (stream, _) = connect(&self.address)?;
        let nonblocking = match &stream {
            Stream::Tcp(tcp) => tcp.set_nonblocking(true),
            Stream::Unix(unix) => unix.set_nonblocking(true),
        };
        let lane = NbdLane {
            stream,
            address: self.info.address.clone(),
            fua: self.flags & EXPORT_FUA != 0,
            buffers: Buffers::new(slots, buffer_bytes),
            under_way: vec![None; slots],
            to_send: VecDeque::new(),
            received: vec![0; RECEIVE_BYTES],
            from: 0,
            to: 0,
            payload: None,
            answered: Instant::now(),
        };
        nonblocking.map_err(|source| lane.lost(source))?;
        Ok(Box::new(lane))
    }
}

fn connect(address: &NbdAddress) -> Result<(Stream, Export), TargetError> {
    let named = Address::Nbd(address.clone()).to_string();
    let deadline = Instant::now() + ANSWER_LIMIT;
    let failed = |what: &'static str| {
        let address = named.clone();
        move |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let seconds = ANSWER_LIMIT.as_secs();
                TargetError::NoAnswer { address, what: "the negotiation", seconds }
            }
            _ => TargetError::Io { address, what, source },
        }
    };
    let stream = match &address.server {
        Server::Tcp(host, port) => {
            let tcp = connect_tcp(host, *port, deadline).map_err(failed("connect to"))?;
            tcp.set_nodelay(true).map_err(failed("set up"))?;
            Stream::Tcp(tcp)
        }
        Server::Unix(path) => {
            Stream::Unix(connect_unix(path, deadline).map_err(failed("connect to"))?)
        }
    };
    let mut stream = Patient { stream, deadline };
    match negotiate(&mut stream, &address.export) {
        Ok(Ok(export)) => Ok((stream.stream, export)),
        Ok(Err(why)) => Err(TargetError::Protocol { address: named, why }),
        Err(source) => Err(failed("talk to")(source)),
    }
}

fn connect_tcp(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::NotFound.into();
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects without blocking: if the listen backlog of the server is full, a blocking connect would
/// wait without limit.
fn connect_unix(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect_to(&socket, &address) {
            Ok(()) => break,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                std::thread::sleep(CONNECT_AGAIN.min(left(deadline)?));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Time left until `deadline`.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket with one deadline for all sends and receives together, so that a server cannot extend
/// the deadline by sending single bytes or many replies.
struct Patient {
    stream: Stream,
    deadline: Instant,
}

impl Patient {
    fn set_timeouts(&self) -> io::Result<()> {
        let left = Some(left(self.deadline)?);
        match &self.stream {
            Stream::Tcp(tcp) => {
                tcp.set_read_timeout(left).and_then(|()| tcp.set_write_timeout(left))
            }
            Stream::Unix(unix) => {
                unix.set_read_timeout(left).and_then(|()| unix.set_write_timeout(left))
            }
        }
    }
}

impl Read for Patient {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.set_timeouts()?;
        self.stream.read(buf)
    }
}

impl Write for Patient {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.set_timeouts()?;
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Negotiates the export. The inner error means that the server refused the export, or does not
/// speak NBD.
fn negotiate(stream: &mut (impl Read + Write), export: &str) -> io::Result<Result<Export, String>> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let word = |at: usize| u64::from_be_bytes(greeting[at..at + 8].try_into().expect("8 bytes"));
    if word(0) != MAGIC || word(8) != OPTION_MAGIC {
        return Ok(Err("not an NBD server, or one with oldstyle negotiation".to_owned()));
    }
    let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
    if flags & FLAG_FIXED_NEWSTYLE == 0 {
        return Ok(Err("the server does not support fixed newstyle negotiation".to_owned()));
    }
    let ours = u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES));
    let mut go = ours.to_be_bytes().to_vec();
    go.extend(OPTION_MAGIC.to_be_bytes());
    go.extend(OPT_GO.to_be_bytes());
    go.extend((4 + export.len() as u32 + 4).to_be_bytes());
    go.extend((export.len() as u32).to_be_bytes());
    go.extend(export.as_bytes());
    go.extend(1_u16.to_be_bytes());
    go.extend(INFO_BLOCK_SIZE.to_be_bytes());
    stream.write_all(&go)?;
    let mut found: Option<Export> = None;
    let mut block_bytes = 512;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let magic = u64::from_be_bytes(head[..8].try_into().expect("8 bytes"));
        let (kind, len) = (number(12), number(16));
        if magic != REPLY_MAGIC || number(8) != OPT_GO || len > OPTION_BYTES_MAX {
            return Ok(Err("the server's reply is not NBD".to_owned()));
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        match kind {
            REP_ACK => break,
            REP_INFO if data.len() >= 12 && data[..2] == INFO_EXPORT.to_be_bytes() => {
                let bytes = u64::from_be_bytes(data[2..10].try_into().expect("8 bytes"));
                let flags = u16::from_be_bytes([data[10], data[11]]);
                found = Some(Export { bytes, flags, block_bytes });
            }
            REP_INFO if data.len() >= 14 && data[..2] == INFO_BLOCK_SIZE.to_be_bytes() => {
                block_bytes = u32::from_be_bytes(data[2..6].try_into().expect("4 bytes")).max(1);
            }
            REP_INFO => {}
            error if error & REP_ERROR != 0 => {
                let text = String::from_utf8_lossy(&data).into_owned();
                let text = if text.is_empty() { format!("error {error:#x}") } else { text };
                return Ok(Err(format!("the server rejects export {export:?}: {text}")));
            }
            other => return Ok(Err(format!("the server answers with reply {other}"))),
        }
    }
    let found = found.ok_or_else(|| "the server does not report the size of the export".to_owned());
    Ok(found.map(|export| Export { block_bytes, ..export }))
}

struct NbdLane {
    stream: Stream,
    address: String,
    fua: bool,
    buffers: Buffers,
    under_way: Vec<Option<Op>>,
    /// Slots whose requests are not sent completely, each with the number of request bytes already
    /// sent.
    to_send: VecDeque<(usize, usize)>,
    received: Vec<u8>,
    /// Start of the unprocessed bytes in the receive buffer.
    from: usize,
    /// End of the unprocessed bytes in the receive buffer.
    to: usize,
    /// Read whose payload is arriving: its slot, and the number of payload bytes received.
    payload: Option<(usize, usize)>,
    /// Time of the last completion, or of the last submission to an idle lane.
    answered: Instant,
}

impl NbdLane {
    fn lost(&self, source: io::Error) -> TargetError {
        TargetError::Io { address: self.address.clone(), what: "talk to", source }
    }

    fn broken(&self, why: &str) -> TargetError {
        TargetError::Protocol { address: self.address.clone(), why: why.to_owned() }
    }

    /// Returns an error if the server has completed no operation within [`ANSWER_LIMIT`].
    fn check_limit(&self) -> Result<(), TargetError> {
        if self.answered.elapsed() < ANSWER_LIMIT {
            return Ok(());
        }
        let (what, seconds) = ("any operation", ANSWER_LIMIT.as_secs());
        Err(TargetError::NoAnswer { address: self.address.clone(), what, seconds })
    }

    /// Sends as many request bytes as the socket accepts.
    fn send(&mut self) -> Result<(), TargetError> {
        while let Some((slot, sent)) = self.to_send.front().copied() {
            let op = self.under_way[slot].expect("it was submitted");
            let head = request(slot, &op);
            let payload: &[u8] = match op.kind {
                OpKind::Write => &self.buffers.of(slot)[..op.len_bytes as usize],
                _ => &[],
            };
            let all = REQUEST_BYTES + payload.len();
            let parts = [
                IoSlice::new(head.get(sent..).unwrap_or_default()),
                IoSlice::new(&payload[sent.saturating_sub(REQUEST_BYTES)..]),
            ];
            match self.stream.write_vectored(&parts) {
                Ok(0) => return Err(self.lost(io::ErrorKind::WriteZero.into())),
                Ok(now) if sent + now == all => drop(self.to_send.pop_front()),
                Ok(now) => self.to_send[0].1 = sent + now,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error)),
            }
        }
        Ok(())
    }

    /// Receives the data that is available; returns false if no data was available.
    fn receive(&mut self, done: &mut Vec<Done>) -> Result<bool, TargetError> {
        let got = match self.payload {
            // Receive the remaining bytes of a large payload directly into the slot's buffer.
            Some((slot, have)) if self.from == self.to => {
                let len = self.under_way[slot].map_or(0, |op| op.len_bytes as usize);
                let got = self.stream.read(&mut self.buffers.of(slot)[have..len]);
                if let Ok(got) = &got {
                    self.payload = Some((slot, have + got));
                }
                got
            }
            _ => {
                self.received.copy_within(self.from..self.to, 0);
                (self.from, self.to) = (0, self.to - self.from);
                let got = self.stream.read(&mut self.received[self.to..]);
                self.to += *got.as_ref().unwrap_or(&0);
                got
            }
        };
        match got {
            Ok(0) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => self.take_replies(done).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn take_replies(&mut self, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let at = Instant::now();
        loop {
            if let Some((slot, have)) = self.payload {
                let len = self.under_way[slot].map_or(0, |op| op.len_bytes as usize);
                let now = (len - have).min(self.to - self.from);
                let from = &self.received[self.from..self.from + now];
                self.buffers.of(slot)[have..have + now].copy_from_slice(from);
                self.from += now;
                if have + now < len {
                    self.payload = Some((slot, have + now));
                    return Ok(());
                }
                self.payload = None;
                self.under_way[slot] = None;
                done.push(Done { slot, result: Ok(()), at });
            }
            let Some(head) = self.received[self.from..self.to].first_chunk::<REPLY_BYTES>() else {
                return Ok(());
            };
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4"));
            let (magic, error) = (number(0), number(4));
            let cookie = u64::from_be_bytes(head[8..].try_into().expect("8 bytes"));
            self.from += REPLY_BYTES;
            let known = usize::try_from(cookie).ok().filter(|slot| *slot < self.under_way.len());
            let op = known.and_then(|slot| Some((slot, self.under_way[slot]?)));
            let Some((slot, op)) = op.filter(|_| magic == SIMPLE_REPLY_MAGIC) else {
                return Err(self.broken("the server sent a reply to an unknown request"));
            };
            if error == 0 && op.kind == OpKind::Read {
                self.payload = Some((slot, 0));
                continue;
            }
            self.under_way[slot] = None;
            let result = match error {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno.cast_signed())),
            };
            done.push(Done { slot, result, at });
        }
    }
}

impl Lane for NbdLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(self.under_way[slot].is_none(), "the server's answer goes into this buffer");
        self.buffers.of(slot)
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        assert!(self.under_way[slot].is_none(), "one operation per slot");
        if op.durable && !self.fua {
            return Err(
                self.broken("the export does not support FUA; use flushes for durable writes")
            );
        }
        if self.under_way.iter().all(Option::is_none) {
            self.answered = Instant::now();
        }
        self.under_way[slot] = Some(*op);
        self.to_send.push_back((slot, 0));
        self.send()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let before = done.len();
        loop {
            self.send()?;
            // Receive until the socket has no data left or there is a completion for each slot.
            while self.receive(done)? && done.len() - before < self.under_way.len() {}
            let none_under_way = self.under_way.iter().all(Option::is_none);
            if done.len() > before || none_under_way {
                self.answered = Instant::now();
            }
            if done.len() > before || wait == Wait::No || (none_under_way && wait == Wait::One) {
                return Ok(());
            }
            self.check_limit()?;
            let mut timeout = POLL_INTERVAL;
            if let Wait::Until(until) = wait {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                timeout = timeout.min(left);
            }
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, !self.to_send.is_empty());
            let spec = rustix::fs::Timespec {
                tv_sec: timeout.as_secs().cast_signed(),
                tv_nsec: i64::from(timeout.subsec_nanos()),
            };
            match poll(&mut [PollFd::new(&self.stream, wanted)], Some(&spec)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.lost(error.into())),
            }
        }
    }
}

fn request(slot: usize, op: &Op) -> [u8; REQUEST_BYTES] {
    let (command, flags) = match op.kind {
        OpKind::Read => (0_u16, 0),
        OpKind::Write => (1, if op.durable { COMMAND_FLAG_FUA } else { 0 }),
        OpKind::Flush => (3, 0),
        OpKind::Trim => (4, 0),
        _ => unreachable!("a run with an operation that its target has not is refused"),
    };
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    request[4..6].copy_from_slice(&flags.to_be_bytes());
    request[6..8].copy_from_slice(&command.to_be_bytes());
    request[8..16].copy_from_slice(&(slot as u64).to_be_bytes());
    request[16..24].copy_from_slice(&op.offset.to_be_bytes());
    request[24..].copy_from_slice(&op.len_bytes.to_be_bytes());
    request
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Unix(unix) => unix.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(buf),
            Self::Unix(unix) => unix.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write(buf),
            Self::Unix(unix) => unix.write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write_vectored(bufs),
            Self::Unix(unix) => unix.write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! The NBD server of a liar: handles options and requests, and sends replies.
//!
//! Not here: the actions of the disk (the parent module).
//!
//! Spec: NBD proto.md, "Fixed newstyle negotiation", "Simple reply message".
//!
//! Invariant: as the protocol demands, the server refuses each option that it does not know; the
//! client continues without the option.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::{Act, BYTES, Disk, Kind};

const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_ERR_UNSUP: u32 = (1 << 31) | 1;
/// Flags of the export: it has flags, and supports FLUSH and FUA.
const FLAGS: u16 = 1 | 1 << 2 | 1 << 3;
const DISCONNECT: u8 = 2;
/// Error number for a command that the server does not support.
const EINVAL: u32 = 22;
/// Time after which the sending thread wakes up even if it has no reply to send.
const LONG: Duration = Duration::from_hours(1);

/// Serves one connection until the client disconnects.
pub(super) fn serve(mut stream: UnixStream, disk: &Mutex<Disk>) -> io::Result<()> {
    if !negotiate(&mut stream)? {
        return Ok(());
    }
    let (replies, to_send) = channel::<(Instant, Vec<u8>)>();
    let out = stream.try_clone()?;
    std::thread::spawn(move || send(out, &to_send));
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        let number = |at: usize| u32::from_be_bytes(request[at..at + 4].try_into().unwrap());
        let (start, len) = (number(20) as usize, number(24) as usize);
        let mut payload = vec![0; if request[7] == 1 { len } else { 0 }];
        stream.read_exact(&mut payload)?;
        let kind = match request[7] {
            0 => Kind::Read,
            1 => Kind::Write,
            3 => Kind::Flush,
            DISCONNECT => return Ok(()),
            _ => {
                drop(replies.send((Instant::now(), head(&request, EINVAL))));
                continue;
            }
        };
        let mut disk = disk.lock().unwrap();
        let act = disk.decide(kind, start, len);
        let mut reply = head(&request, if let Act::Fail(error) = act { error } else { 0 });
        match (kind, act) {
            (_, Act::Silent) => continue,
            (_, Act::Fail(_)) => {}
            (_, Act::HangUp | Act::Vanish) => {
                disk.is_gone |= act == Act::Vanish;
                return stream.shutdown(Shutdown::Both);
            }
            (Kind::Read, _) => reply.extend(disk.read(start, len, act)),
            (Kind::Write, _) => disk.write(start, &payload, act),
            (Kind::Flush, _) => {}
        }
        match act {
            Act::Stranger => reply[8..16].fill(0xee),
            Act::Twice => reply.extend(reply.clone()),
            _ => {}
        }
        let due = disk.due(act);
        if disk.is_gone || replies.send((due, reply)).is_err() {
            return stream.shutdown(Shutdown::Both);
        }
    }
}

/// Returns the header of a simple reply to a request.
fn head(request: &[u8; 28], error: u32) -> Vec<u8> {
    [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &request[8..16]].concat()
}

/// Negotiates with the client; returns false if the client opens no export.
fn negotiate(stream: &mut UnixStream) -> io::Result<bool> {
    // The greeting: fixed newstyle negotiation with the no-zeroes flag.
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    stream.read_exact(&mut [0; 4])?;
    let export = [&(BYTES as u64).to_be_bytes()[..], &FLAGS.to_be_bytes()].concat();
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let option = number(8);
        let mut data = vec![0; number(12) as usize];
        stream.read_exact(&mut data)?;
        let reply = |kind: u32, data: &[u8]| {
            let mut reply = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
            reply.extend([option, kind, data.len() as u32].map(u32::to_be_bytes).as_flattened());
            [&reply, data].concat()
        };
        let info = reply(REP_INFO, &[&[0, 0][..], &export].concat());
        let name = [&4_u32.to_be_bytes()[..], b"liar"].concat();
        let ack = reply(REP_ACK, &[]);
        let answer = match option {
            OPT_EXPORT_NAME => export.clone(),
            OPT_ABORT => ack,
            OPT_LIST => [reply(REP_SERVER, &name), ack].concat(),
            OPT_INFO | OPT_GO => [info, ack].concat(),
            _ => reply(REP_ERR_UNSUP, &[]),
        };
        stream.write_all(&answer)?;
        match option {
            OPT_EXPORT_NAME | OPT_GO => return Ok(true),
            OPT_ABORT => return Ok(false),
            _ => {}
        }
    }
}

/// Sends each reply at its due time, in the order of these times.
fn send(mut out: UnixStream, replies: &Receiver<(Instant, Vec<u8>)>) -> io::Result<()> {
    let (mut waiting, mut number) = (BTreeMap::<(Instant, u64), Vec<u8>>::new(), 0);
    loop {
        let now = Instant::now();
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) {
            out.write_all(&first.remove())?;
        }
        let next = waiting.first_key_value().map(|((due, _), _)| *due);
        let wait = next.map_or(LONG, |due| due.saturating_duration_since(Instant::now()));
        match replies.recv_timeout(wait) {
            Ok((due, reply)) => {
                number += 1;
                waiting.insert((due, number), reply);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

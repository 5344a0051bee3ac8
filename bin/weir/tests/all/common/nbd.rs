//! Small NBD client with which a test sees each acknowledgement separately.
//!
//! Not here: checks of the replies. The client does not request structured replies.
//!
//! Spec: NBD proto.md, "Fixed newstyle negotiation", "Simple reply message".
//!
//! Invariant: every read has a time limit, so that a hung server fails the test.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const FUA: u16 = 1;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;

/// Time limit for a reply. If the server is slower, the test fails.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A connection to one export.
pub(crate) struct Client {
    stream: UnixStream,
    cookie: u64,
    /// For each pending read, the number of data bytes that its reply has if the read succeeds.
    reads: HashMap<u64, usize>,
    pub(crate) size_bytes: u64,
}

/// The reply to one request.
pub(crate) struct Answer {
    pub(crate) cookie: u64,
    /// 0 for success, or an error number of NBD.
    pub(crate) errno: u32,
    pub(crate) data: Vec<u8>,
}

fn other(text: String) -> io::Error {
    io::Error::other(text)
}

/// Connects to the server and reads its greeting.
pub(crate) fn greeted(socket: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(other(format!("no NBD server: {greeting:?}")));
    }
    Ok(stream)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Client {
    /// Connects to an export. If the server refuses the export, returns an error with the server's
    /// text.
    pub(crate) fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = greeted(socket)?;
        let mut hello = Vec::new();
        hello.extend(3_u32.to_be_bytes()); // fixed newstyle, no zeroes
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPT_GO.to_be_bytes());
        hello.extend((export.len() as u32 + 6).to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        hello.extend(0_u16.to_be_bytes());
        stream.write_all(&hello)?;
        let mut size_bytes = None;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            assert_eq!(head[..8], OPTION_REPLY_MAGIC.to_be_bytes(), "option reply magic");
            let (kind, len) = (u32_at(&head, 12), u32_at(&head, 16));
            let mut body = vec![0; len as usize];
            stream.read_exact(&mut body)?;
            match kind {
                REPLY_ACK => break,
                REPLY_INFO if body[..2] == [0, 0] => {
                    size_bytes = Some(u64::from_be_bytes(body[2..10].try_into().unwrap()));
                }
                REPLY_INFO => {}
                _ => return Err(other(String::from_utf8_lossy(&body).into_owned())),
            }
        }
        let size_bytes = size_bytes.ok_or_else(|| other("no size".to_owned()))?;
        Ok(Self { stream, cookie: 0, reads: HashMap::new(), size_bytes })
    }

    /// Sends a request without waiting for the reply. The request names `len` as its length, even
    /// if `data` has another length.
    pub(crate) fn send(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> io::Result<u64> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        if kind == READ {
            self.reads.insert(self.cookie, len as usize);
        }
        self.stream.write_all(&request)?;
        Ok(self.cookie)
    }

    /// Waits for the next reply to any request.
    pub(crate) fn receive(&mut self) -> io::Result<Answer> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        assert_eq!(u32_at(&head, 0), REPLY_MAGIC, "reply magic");
        let errno = u32_at(&head, 4);
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let len = self.reads.remove(&cookie).filter(|_| errno == 0).unwrap_or(0);
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data)?;
        Ok(Answer { cookie, errno, data })
    }

    /// Sends one request and waits for its reply. No other request may be in flight. Returns `Err`
    /// with the error number if the server refuses the request.
    pub(crate) fn call(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let cookie = self.send(kind, flags, offset, len, data).unwrap();
        let answer = self.receive().unwrap();
        assert_eq!(answer.cookie, cookie, "an answer to another request");
        if answer.errno == 0 { Ok(answer.data) } else { Err(answer.errno) }
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.call(READ, 0, offset, len, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.call(WRITE, 0, offset, data.len() as u32, data).map(drop)
    }

    pub(crate) fn flush(&mut self) -> Result<(), u32> {
        self.call(FLUSH, 0, 0, 0, &[]).map(drop)
    }

    pub(crate) fn trim(&mut self, offset: u64, len: u32) -> Result<(), u32> {
        self.call(TRIM, 0, offset, len, &[]).map(drop)
    }
}

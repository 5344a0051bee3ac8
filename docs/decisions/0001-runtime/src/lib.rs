//! The part the three null servers share: an NBD parser without any I/O.
//!
//! Bytes go in through [`Session::feed`]; replies are appended to one output
//! buffer, so that a server makes one receive and one send for each batch.
//! Reads answer zeros, writes are thrown away, flush is acknowledged.

/// Size of the receive buffer and first size of the send buffer.
pub const BUF: usize = 256 * 1024;
const EXPORT_SIZE: u64 = 1 << 30;
/// HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN
const EXPORT_FLAGS: u16 = 1 | 4 | 8 | 256;
const MAX_REQUEST: usize = 32 << 20;
const OPT_REPLY: u64 = 0x0003_e889_0455_65a9;
static ZEROS: [u8; 4096] = [0; 4096];

/// Where to listen, from the first command-line argument.
pub enum Address {
    Unix(String),
    Tcp(u16),
}

impl Address {
    /// `unix:/path` or `tcp:PORT`. An old socket file is removed.
    pub fn from_args() -> Address {
        let arg = std::env::args().nth(1).unwrap_or_default();
        match arg.split_once(':') {
            Some(("unix", path)) => {
                let _ = std::fs::remove_file(path);
                Address::Unix(path.to_string())
            }
            Some(("tcp", port)) => Address::Tcp(port.parse().expect("port")),
            _ => panic!("usage: SERVER unix:/path | tcp:PORT"),
        }
    }
}

enum Phase {
    ClientFlags,
    Options,
    Transmission,
}

/// One connection's protocol state.
pub struct Session {
    phase: Phase,
    /// Bytes of a write payload still to be thrown away, and its cookie.
    skip: usize,
    cookie: [u8; 8],
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(b[at..at + 4].try_into().unwrap())
}

fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPT_REPLY.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

fn simple_reply(out: &mut Vec<u8>, error: u32, cookie: &[u8]) {
    out.extend_from_slice(&0x6744_6698u32.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(cookie);
}

impl Session {
    /// A new connection; the greeting is put into `out`.
    pub fn new(out: &mut Vec<u8>) -> Session {
        out.extend_from_slice(b"NBDMAGICIHAVEOPT\x00\x03");
        Session { phase: Phase::ClientFlags, skip: 0, cookie: [0; 8] }
    }

    /// Handle every whole message in `input`. Returns how many bytes were used
    /// and whether the connection continues.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, bool) {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let step = match self.phase {
                Phase::ClientFlags if rest.len() >= 4 => {
                    self.phase = Phase::Options;
                    Some(4)
                }
                Phase::ClientFlags => return (used, true),
                Phase::Options => self.option(rest, out),
                Phase::Transmission => self.request(rest, out),
            };
            match step {
                Some(0) => return (used, true),
                Some(n) => used += n,
                None => return (used, false),
            }
        }
    }

    /// Bytes used, 0 when more must arrive, `None` to close.
    fn option(&mut self, b: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        if b.len() < 16 {
            return Some(0);
        }
        let (option, len) = (be32(b, 8), be32(b, 12) as usize);
        if len > 4096 {
            return None;
        }
        if b.len() < 16 + len {
            return Some(0);
        }
        let mut info = [0u8; 12];
        info[2..10].copy_from_slice(&EXPORT_SIZE.to_be_bytes());
        info[10..].copy_from_slice(&EXPORT_FLAGS.to_be_bytes());
        match option {
            1 => {
                // EXPORT_NAME: clients here always set NO_ZEROES.
                out.extend_from_slice(&info[2..]);
                self.phase = Phase::Transmission;
            }
            2 => {
                option_reply(out, option, 1, &[]);
                return None;
            }
            3 => {
                option_reply(out, option, 2, &[0; 4]);
                option_reply(out, option, 1, &[]);
            }
            6 | 7 => {
                option_reply(out, option, 3, &info);
                option_reply(out, option, 1, &[]);
                if option == 7 {
                    self.phase = Phase::Transmission;
                }
            }
            _ => option_reply(out, option, 0x8000_0001, &[]),
        }
        Some(16 + len)
    }

    /// As [`Session::option`], for the transmission phase.
    fn request(&mut self, b: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        if self.skip > 0 {
            let n = self.skip.min(b.len());
            self.skip -= n;
            if self.skip == 0 {
                simple_reply(out, 0, &self.cookie);
            }
            return Some(n);
        }
        if b.len() < 28 {
            return Some(0);
        }
        let (kind, len) = (u16::from_be_bytes([b[6], b[7]]), be32(b, 24) as usize);
        if be32(b, 0) != 0x2560_9513 || len > MAX_REQUEST {
            return None;
        }
        match kind {
            0 => {
                simple_reply(out, 0, &b[8..16]);
                let mut left = len;
                while left > 0 {
                    let n = left.min(ZEROS.len());
                    out.extend_from_slice(&ZEROS[..n]);
                    left -= n;
                }
            }
            1 if len > 0 => {
                self.skip = len;
                self.cookie.copy_from_slice(&b[8..16]);
            }
            2 => return None,
            1 | 3 => simple_reply(out, 0, &b[8..16]),
            _ => simple_reply(out, 22, &b[8..16]),
        }
        Some(28)
    }
}

//! Fuzzes the NBD handshake: any bytes that a client sends before its first request.
//!
//! `nbd_request` fuzzes requests.
//!
//! Invariants: no panic; a message uses at least one byte; if the negotiation requests a length,
//! the length exceeds the length of the input; each reply has at most `ANSWER_BYTES_MAX` bytes; TLS
//! starts only if no byte follows STARTTLS.

use std::net::IpAddr;
use std::sync::Arc;

use weir_base::ErrorKind;
use weir_block::{Block, Export, ExportError, ExportFuture, Exports, Extent};
use weir_nbd::negotiate::{Negotiation, Step};
use weir_nbd::wire::{OPTION_MAGIC, option};

/// Maximum length of a reply to an option. The longest valid reply is a list of two exports.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    negotiate(data, false);
    negotiate(data, true);
}

/// Handshakes that common clients send.
pub fn seeds() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        let magic = OPTION_MAGIC.to_be_bytes();
        [&magic, &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    // Length of the name, the name, the number of information requests, and the requests.
    let name = b"\0\0\0\x06tank/b\0\x02\0\x01\0\x03";
    let contexts = b"\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation";
    let flags = [0, 0, 0, 3];
    let options = [
        option(option::LIST, &[]),
        option(option::STRUCTURED_REPLY, &[]),
        option(option::LIST_META_CONTEXT, contexts),
        option(option::SET_META_CONTEXT, contexts),
        option(option::INFO, name),
        option(option::GO, b"\0\0\0\x01a\0\0"),
    ];
    vec![
        [&flags, &options.concat()[..]].concat(),
        [&flags, &option(option::EXPORT_NAME, b"a")[..]].concat(),
        [&flags, &option(option::STARTTLS, &[])[..]].concat(),
        [&flags, &option(option::GO, name)[..], &option(option::ABORT, &[])].concat(),
        [&[0, 0, 0, 0], &option(option::EXPORT_NAME, b"tank/b")[..]].concat(),
    ]
}

fn negotiate(data: &[u8], is_tls_required: bool) {
    let mut out = Vec::new();
    let mut negotiation = if is_tls_required {
        Negotiation::requiring_tls(&mut out)
    } else {
        Negotiation::new(&mut out)
    };
    let mut input = data;
    loop {
        let before = out.len();
        let (used, step) = negotiation.feed(input, &Two, &mut out);
        assert!(used <= input.len() && out.len() - before <= ANSWER_BYTES_MAX);
        match step {
            Step::Need(bytes) => {
                assert!(used == 0 && bytes > input.len(), "{bytes} of {}", input.len());
                return;
            }
            Step::Next => assert!(used > 0),
            Step::More => panic!("a list of two names in parts"),
            Step::StartTls => {
                assert!(is_tls_required && used == input.len(), "clear text behind STARTTLS");
                return;
            }
            Step::Ready(ready) => {
                assert!(!is_tls_required, "an export without TLS");
                assert_eq!(ready.negotiated.size_bytes, ready.export.size_bytes());
                assert_eq!(ready.negotiated.read_only, ready.export.read_only());
                return;
            }
            Step::Done | Step::Close(_) => return,
        }
        input = &input[used..];
    }
}

/// List of two exports, one of which is read-only. The handshake never accesses their data.
struct Two;

impl Exports for Two {
    fn names_after(&self, after: &str, _: Option<IpAddr>, show: &mut dyn FnMut(&str) -> bool) {
        for name in ["a", "tank/b"].into_iter().filter(|name| *name > after) {
            if !show(name) {
                break;
            }
        }
    }

    fn open(&self, name: &str, _: Option<IpAddr>) -> Result<Arc<dyn Export>, ExportError> {
        match name {
            "" | "a" => Ok(Arc::new(Empty { read_only: false })),
            "tank/b" => Ok(Arc::new(Empty { read_only: true })),
            _ => Err(ExportError::new(ErrorKind::NotFound, "no such export")),
        }
    }
}

/// Export that reads as zeros and stores no data.
struct Empty {
    read_only: bool,
}

impl Export for Empty {
    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn block_bytes_preferred(&self) -> u32 {
        4096
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn description(&self) -> String {
        "empty".to_owned()
    }

    fn try_read(&self, _offset: u64, out: &mut [u8]) -> Result<bool, ExportError> {
        out.fill(0);
        Ok(true)
    }

    fn try_share(&self, _: u64, _: u64, _: &mut Vec<Block>) -> Result<bool, ExportError> {
        Ok(false)
    }

    fn read<'a>(&'a self, _offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()> {
        out.fill(0);
        Box::pin(async { Ok(()) })
    }

    fn try_write(&self, _offset: u64, _data: &[u8]) -> Result<bool, ExportError> {
        Err(full())
    }

    fn write<'a>(&'a self, _offset: u64, _data: &'a [u8]) -> ExportFuture<'a, ()> {
        Box::pin(async { Err(full()) })
    }

    fn try_write_blocks(&self, _: u64, _: &mut Vec<Block>) -> Result<bool, ExportError> {
        Err(full())
    }

    fn write_blocks(&self, _: u64, _: Vec<Block>) -> ExportFuture<'_, ()> {
        Box::pin(async { Err(full()) })
    }

    fn try_zero(&self, _offset: u64, _len: u64, _punch: bool) -> Result<bool, ExportError> {
        Ok(true)
    }

    fn zero(&self, _offset: u64, _len_bytes: u64, _punch: bool) -> ExportFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn zero_is_fast(&self, _punch: bool) -> bool {
        true
    }

    fn flush(&self) -> ExportFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn cache(&self, _offset: u64, _len_bytes: u64) -> ExportFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn extents(&self, _offset: u64, len_bytes: u64, _max: usize) -> ExportFuture<'_, Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len_bytes, hole: true }]) })
    }
}

fn full() -> ExportError {
    ExportError::new(ErrorKind::NoSpace, "no room")
}

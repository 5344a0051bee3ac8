//! Fuzzes NBD requests: a byte stream of requests. The first byte of the input selects the
//! negotiated parameters.
//!
//! The fuzz target parses requests; it neither executes them nor builds replies.
//!
//! Invariants: no panic; a message uses at least one byte, and a request lies inside the export; if
//! the parser requests a length, the length exceeds the length of the input.

use weir_nbd::request::{Command, Negotiated, Parsed, parse};
use weir_nbd::wire::{REQUEST_MAGIC, command, command_flag};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Some((choice, mut input)) = data.split_first() else { return };
    let negotiated = Negotiated {
        size_bytes: if choice & 8 == 0 { 1 << 20 } else { 16 << 40 },
        read_only: choice & 1 != 0,
        structured: choice & 2 != 0,
        block_status: choice & 4 != 0,
    };
    loop {
        let whole_bytes_max = if choice & 16 == 0 { 128 << 10 } else { 4096 };
        let used = match parse(input, &negotiated, whole_bytes_max) {
            Parsed::Need(bytes) => {
                assert!(bytes > input.len(), "{bytes} of {}", input.len());
                return;
            }
            Parsed::Close(_) => return,
            Parsed::Refuse { skip, .. } => skip,
            Parsed::LongWrite(request) => {
                let end = request.offset.checked_add(u64::from(request.len));
                assert!(
                    !negotiated.read_only && end.is_some_and(|end| end <= negotiated.size_bytes)
                );
                28 + request.len as usize
            }
            Parsed::Request(request, payload, used) => {
                let end = request.offset.checked_add(u64::from(request.len));
                let bare = matches!(request.command, Command::Flush | Command::Disconnect);
                assert!(bare || end.is_some_and(|end| end <= negotiated.size_bytes), "{request:?}");
                if matches!(request.command, Command::Write { .. }) {
                    assert!(!negotiated.read_only);
                    assert_eq!(payload.len(), request.len as usize);
                } else {
                    assert!(payload.is_empty());
                }
                assert!(used <= input.len());
                used
            }
        };
        assert!(used > 0);
        let Some(rest) = input.get(used..) else { return };
        input = rest;
    }
}

/// Requests of each kind, with several sets of negotiated parameters.
pub fn seeds() -> Vec<Vec<u8>> {
    let request = |kind: u16, flags: u16, offset: u64, len: u32, payload: usize| {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.resize(bytes.len() + payload, 0x5a);
        bytes
    };
    let requests = [
        request(command::READ, 0, 0, 4096, 0),
        request(command::WRITE, command_flag::FUA, 512, 512, 512),
        request(command::FLUSH, 0, 0, 0, 0),
        request(command::TRIM, 0, 4096, 8192, 0),
        request(command::WRITE_ZEROES, command_flag::FUA, 0, 1 << 20, 0),
        request(command::CACHE, 0, 0, 65536, 0),
        request(command::BLOCK_STATUS, 0, 0, 65536, 0),
        request(command::DISC, 0, 0, 0, 0),
    ]
    .concat();
    [0, 1, 6, 14, 16].into_iter().map(|choice| [&[choice], &requests[..]].concat()).collect()
}

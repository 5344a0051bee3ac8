//! Fuzzes NBD requests: a stream of them, under terms that the first byte chooses.
//!
//! Not here: running them, and replies.
//!
//! Invariants: no panic; a message takes at least one byte and a request lies inside the export; a
//! parser that asks for more asks for more than it has.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_nbd::request::{Command, Parsed, Terms, parse};

fuzz_target!(|data: &[u8]| {
    let Some((choice, mut input)) = data.split_first() else { return };
    let terms = Terms {
        size_bytes: if choice & 8 == 0 { 1 << 20 } else { 16 << 40 },
        read_only: choice & 1 != 0,
        structured: choice & 2 != 0,
        block_status: choice & 4 != 0,
    };
    loop {
        let whole_bytes_max = if choice & 16 == 0 { 128 << 10 } else { 4096 };
        let used = match parse(input, &terms, whole_bytes_max) {
            Parsed::Need(bytes) => {
                assert!(bytes > input.len(), "{bytes} of {}", input.len());
                return;
            }
            Parsed::Close(_) => return,
            Parsed::Refuse { skip, .. } => skip,
            Parsed::LongWrite(request) => {
                let end = request.offset.checked_add(u64::from(request.len));
                assert!(!terms.read_only && end.is_some_and(|end| end <= terms.size_bytes));
                28 + request.len as usize
            }
            Parsed::Request(request, payload, used) => {
                let end = request.offset.checked_add(u64::from(request.len));
                let bare = matches!(request.command, Command::Flush | Command::Disconnect);
                assert!(bare || end.is_some_and(|end| end <= terms.size_bytes), "{request:?}");
                if matches!(request.command, Command::Write { .. }) {
                    assert!(!terms.read_only);
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
});

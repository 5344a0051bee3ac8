//! Fuzzes iSCSI PDUs: a stream of them, with digests that the first byte chooses.
//!
//! Not here: login, and what requests do.
//!
//! Invariants: no panic; a PDU takes at least a header and not more than there is; a decoder that
//! asks for more asks for more than it has.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_iscsi::pdu::{Digests, Framed, HEADER_BYTES, Login, Request, frame};
use weir_iscsi::text;

const DATA_BYTES_MAX: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((choice, mut input)) = data.split_first() else { return };
    let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    loop {
        match frame(input, digests, DATA_BYTES_MAX) {
            Err(_) => return,
            Ok(Framed::Need(bytes)) => {
                assert!(bytes > input.len(), "{bytes} of {}", input.len());
                return;
            }
            Ok(Framed::Pdu(pdu, used)) => {
                assert!((HEADER_BYTES..=input.len()).contains(&used));
                assert!(pdu.data.len() <= DATA_BYTES_MAX);
                if let Some(login) = Login::decode(&pdu.header) {
                    assert_eq!(Login::decode(&login.encode()), Some(login));
                }
                if let Ok(Request::Command(command)) = Request::decode(&pdu) {
                    assert!((16..=260).contains(&command.cdb.bytes().len()));
                }
                if let Ok(pairs) = text::pairs(pdu.data) {
                    for (_, value) in pairs {
                        if let Some(bytes) = text::binary(value) {
                            assert!(bytes.len() <= 1024);
                            assert_eq!(text::binary(&text::to_hex(&bytes)), Some(bytes));
                        }
                    }
                }
                input = &input[used..];
            }
        }
    }
});

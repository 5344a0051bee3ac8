//! Fuzzes iSCSI PDUs: a byte stream of PDUs. The first byte of the input selects the digests.
//!
//! `iscsi_login` fuzzes logins; `iscsi_session` fuzzes the execution of requests.
//!
//! Invariants: no panic; a PDU uses at least a header and at most the whole input; if the decoder
//! requests a length, the length exceeds the length of the input.

use weir_iscsi_wire::pdu::{Digests, Framed, HEADER_BYTES, Login, Request, frame};
use weir_iscsi_wire::text;

use crate::valid;

const DATA_BYTES_MAX: usize = 4096;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
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
}

/// PDUs of each kind, with each selection of digests.
pub fn seeds() -> Vec<Vec<u8>> {
    let with = |choice: u8| {
        let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
        let pdu = |header, data: &[u8]| valid::pdu(header, data, digests);
        let text = pdu(valid::text(1), b"SendTargets=All\0CHAP_R=0xaabb\0CHAP_C=0bYWJj\0");
        [&[choice], &valid::requests(digests)[..], &text].concat()
    };
    let login = valid::pdu(valid::login(0, 1), b"InitiatorName=i\0", Digests::default());
    (0..4).map(with).chain([[&[0], &login[..]].concat()]).collect()
}

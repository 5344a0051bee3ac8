//! Fuzzes replies of NFSv3, which a client decodes. The first byte of the input selects the
//! procedure of the call; with 128 or more, an RPC header precedes the results.
//!
//! `nfs3_call` fuzzes the calls.
//!
//! Invariants: no panic; decoded results survive encoding; a directory listing has no more entries
//! than its bytes can contain.

use weir_nfs_wire::nfs3::{Procedure, Results};
use weir_oncrpc::Decoder;
use weir_oncrpc::message::{AcceptStat, Reply, ReplyBody};

use super::samples::{self, check_message};

/// Minimum length of an entry of READDIR: the Boolean, the number, an empty name and the cookie.
const ENTRY_BYTES_MIN: usize = 4 + 8 + 4 + 8;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Some((choice, mut bytes)) = data.split_first() else { return };
    let count = Procedure::ALL.len();
    let Some(procedure) = Procedure::ALL.get(usize::from(choice & 0x7f) % count) else { return };
    if choice & 0x80 != 0 {
        let Ok((reply, input)) = Reply::decode(bytes) else { return };
        let ReplyBody::Accepted { stat: AcceptStat::Success, .. } = reply.body else { return };
        bytes = input.rest();
    }
    check_message!(bytes, |input| Results::decode(*procedure, input));
    let entries = match Results::decode(*procedure, &mut Decoder::new(bytes)) {
        Ok(Results::Readdir(Ok(listing))) => listing.entries.0.len(),
        Ok(Results::Readdirplus(Ok(listing))) => listing.entries.0.len(),
        _ => 0,
    };
    assert!(entries * ENTRY_BYTES_MIN <= bytes.len(), "{entries} entries");
}

/// Results of each procedure, with and without an RPC header.
pub fn seeds() -> Vec<Vec<u8>> {
    let header = Reply::accepted(7, AcceptStat::Success);
    let header = samples::encoded(|out| header.encode(out));
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for (index, results) in samples::results().into_iter().enumerate() {
        let number = results.procedure().number() as u8;
        let bytes = samples::encoded(|out| results.encode(out));
        seeds.push(match index % 2 {
            0 => [&[number], &bytes[..]].concat(),
            _ => [&[0x80 | number], &header[..], &bytes].concat(),
        });
    }
    seeds
}

//! Sends the call NULL of NFS to a server in the same process: record, header, credential, reply
//! (RFC 5531).
//!
//! `cargo run -p weir-oncrpc --example null_call`
//!
//! The example `list_directory` of weir-nfs-wire encodes results.
//!
//! Invariant: the reply has the transaction id of the call.

#![expect(clippy::print_stdout, reason = "the messages are the result")]

use std::error::Error;

use weir_block::OutBuf;
use weir_oncrpc::message::{AcceptStat, Call, Credential, OpaqueAuth, Reply};
use weir_oncrpc::record::{Framed, RecordStart, frame};
use weir_oncrpc::{Encoder, XdrError};

fn main() -> Result<(), Box<dyn Error>> {
    let call = Call {
        xid: 7,
        program: 100_003,
        version: 3,
        procedure: 0,
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    };
    let mut sent = OutBuf::default();
    let start = RecordStart::begin(&mut sent);
    call.encode(&mut Encoder::new(&mut sent));
    start.finish(&mut sent, 0);
    println!("call of {} bytes with its record mark", sent.len());

    // The server has received a part of the call.
    let mut received = sent.filled()[..20].to_vec();
    let Framed::Need { bytes, .. } = frame(&mut received, 4096)? else { panic!("incomplete") };
    println!("20 bytes received, {bytes} needed");
    received = sent.filled().to_vec();
    let Framed::Record { record, .. } = frame(&mut received, 4096)? else { panic!("complete") };
    let (call, _arguments) = Call::decode(record)?;
    assert_eq!(call.credential.credential(), Ok(Credential::None));

    let mut reply = OutBuf::default();
    Reply::accepted(call.xid, AcceptStat::Success).encode(&mut Encoder::new(&mut reply));
    let (reply, results) = Reply::decode(reply.filled())?;
    println!("{reply:?}");
    assert_eq!(reply.xid, 7);
    assert_eq!(results.finish(), Ok::<(), XdrError>(()));
    Ok(())
}

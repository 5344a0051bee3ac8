//! Fuzzes record marking and RPC headers: a byte stream of records. The first byte of the input
//! selects the limit of a record, the second the number of bytes that arrive at a time.
//!
//! `nfs3_call` and the other targets fuzz the arguments behind the headers.
//!
//! Invariants: no panic; a stream has the same records at each number of bytes that arrive at a
//! time; an incomplete record needs more bytes; a decoded header survives encoding.

use weir_block::OutBuf;
use weir_oncrpc::limits::FRAGMENTS_MAX;
use weir_oncrpc::message::{AuthStat, Call, CallError, Reply};
use weir_oncrpc::record::{Framed, MARK_BYTES, RecordError, RecordStart, frame};

use super::samples;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let [limit, piece, stream @ ..] = data else { return };
    let record_bytes_max = 16 << (limit % 8);
    let all = records(stream, record_bytes_max, stream.len().max(1));
    let in_pieces = records(stream, record_bytes_max, usize::from(*piece) + 1);
    assert_eq!(all, in_pieces);
    for record in all.0 {
        assert!(record.len() <= record_bytes_max);
        headers(&record);
    }
}

/// Frames a stream that arrives in pieces. Returns the records, and the error that ends the stream.
fn records(
    stream: &[u8],
    record_bytes_max: usize,
    piece_bytes: usize,
) -> (Vec<Vec<u8>>, Option<RecordError>) {
    let mut records = Vec::new();
    let mut input = Vec::new();
    for piece in stream.chunks(piece_bytes) {
        input.extend_from_slice(piece);
        loop {
            let received = input.len();
            match frame(&mut input, record_bytes_max) {
                Err(error) => return (records, Some(error)),
                Ok(Framed::Need { bytes, head }) => {
                    assert!(bytes > received, "{bytes} of {received}");
                    assert!(bytes <= record_bytes_max + MARK_BYTES * FRAGMENTS_MAX);
                    assert!(head.len() < record_bytes_max.max(1));
                    break;
                }
                Ok(Framed::Record { record, used }) => {
                    assert!(record.len() + MARK_BYTES <= used && used <= received);
                    records.push(record.to_vec());
                    input.drain(..used);
                }
            }
        }
    }
    (records, None)
}

/// Decodes a record as a call and as a reply.
fn headers(record: &[u8]) {
    match Call::decode(record) {
        Ok((call, arguments)) => {
            let again = samples::encoded(|out| call.encode(out));
            assert_eq!(again.len() + arguments.rest().len(), record.len());
            assert_eq!(Call::decode(&again).map(|(call, _)| call), Ok(call));
            assert!(matches!(call.credential.credential(), Ok(_) | Err(AuthStat::BadCred)));
        }
        Err(error) => {
            let denied = matches!(error, CallError::Denied { .. });
            assert_eq!(error.reply().is_some(), denied);
            if let Some(reply) = error.reply() {
                let again = samples::encoded(|out| reply.encode(out));
                assert_eq!(Reply::decode(&again).map(|(reply, _)| reply), Ok(reply));
            }
        }
    }
    if let Ok((reply, results)) = Reply::decode(record) {
        let again = samples::encoded(|out| reply.encode(out));
        assert_eq!(again.len() + results.rest().len(), record.len());
        assert_eq!(Reply::decode(&again).map(|(reply, _)| reply), Ok(reply));
    }
}

/// Streams of calls and replies, one of them in several fragments.
pub fn seeds() -> Vec<Vec<u8>> {
    let stream = |messages: &[Vec<u8>]| {
        let mut out = OutBuf::default();
        for message in messages {
            let start = RecordStart::begin(&mut out);
            out.put(message);
            start.finish(&mut out, 0);
        }
        [&[7, 12], out.filled()].concat()
    };
    let calls = [samples::call(100_003, 3, 1), samples::call(100_005, 3, 0)];
    let replies: Vec<Vec<u8>> =
        samples::replies().iter().map(|reply| samples::encoded(|out| reply.encode(out))).collect();
    let call = &calls[0];
    let (head, tail) = call.split_at(30);
    let mark = |part: &[u8], last: u32| (last << 31 | part.len() as u32).to_be_bytes();
    let fragments =
        [&[7, 12], &mark(head, 0)[..], head, &mark(&[], 0), &mark(tail, 1), tail].concat();
    vec![stream(&calls), stream(&replies), fragments, stream(&[Vec::new()])]
}

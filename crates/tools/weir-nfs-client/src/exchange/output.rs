//! Output queue: the bytes to send, in order. Headers, arguments and padding are in the queue's own
//! buffer; the data of WRITE stays in the buffers of the caller.
//!
//! Invariant: bytes are sent in queue order. A range of a caller's buffer is the data of one WRITE;
//! its padding is the next part of the queue's own buffer.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use weir_block::OutBuf;
use weir_oncrpc::message::{Call, OpaqueAuth};
use weir_oncrpc::record::RecordStart;
use weir_oncrpc::xdr::padding;
use weir_oncrpc::{Encoder, Xdr as _};

use super::identity::Identity;
use super::request::{Buffers, Request, Target};

/// Sent bytes of the own buffer are removed when there are this many: moving the rest then costs
/// less than the system calls that sent them.
const SENT_BYTES_MAX: usize = 64 << 10;

/// Entry of the output queue.
enum Item {
    /// The next bytes of the queue's own buffer; the number is their count.
    Own(usize),
    /// A range of the buffer of a slot, and the index of its call.
    Piece { slot: usize, range: Range<usize>, call: usize },
}

#[derive(Default)]
pub(super) struct Output {
    own: Vec<u8>,
    /// Number of bytes at the start of `own` that were sent.
    own_sent: usize,
    items: VecDeque<Item>,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Queues bytes of the own buffer.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
        match self.items.back_mut() {
            Some(Item::Own(len)) => *len += bytes.len(),
            _ if bytes.is_empty() => {}
            _ => self.items.push_back(Item::Own(bytes.len())),
        }
    }

    /// Queues the data of a WRITE and its padding.
    pub(super) fn put_piece(&mut self, slot: usize, range: Range<usize>, call: usize) {
        let zeros = [0; 4];
        let after = zeros.get(..padding(range.len())).unwrap_or_default();
        self.items.push_back(Item::Piece { slot, range, call });
        self.put(after);
    }

    pub(super) fn pieces<'a>(
        &'a self,
        buffers: &'a impl Buffers,
        pieces: &mut [IoSlice<'a>],
    ) -> usize {
        let (mut own, mut count) = (self.own_sent, 0);
        for (place, item) in pieces.iter_mut().zip(&self.items) {
            let bytes = match item {
                Item::Own(len) => {
                    own += len;
                    self.own.get(own - len..own)
                }
                Item::Piece { slot, range, .. } => buffers.data(*slot).get(range.clone()),
            };
            *place = IoSlice::new(bytes.unwrap_or_default());
            count += 1;
        }
        count
    }

    /// Removes sent bytes from the front of the queue. Returns the index of the call whose data has
    /// now been sent completely, if there is one.
    pub(super) fn sent(&mut self, bytes: &mut usize) -> Option<usize> {
        let Some(item) = self.items.front_mut() else {
            *bytes = 0;
            return None;
        };
        let ended = match item {
            Item::Own(len) => {
                let now = (*len).min(*bytes);
                *len -= now;
                *bytes -= now;
                self.own_sent += now;
                if *len > 0 {
                    return None;
                }
                None
            }
            Item::Piece { range, call, .. } => {
                let now = range.len().min(*bytes);
                range.start += now;
                *bytes -= now;
                if range.start < range.end {
                    return None;
                }
                Some(*call)
            }
        };
        self.items.pop_front();
        if self.own_sent == self.own.len() {
            self.own.clear();
            self.own_sent = 0;
        } else if self.own_sent > SENT_BYTES_MAX {
            self.own.drain(..self.own_sent);
            self.own_sent = 0;
        }
        ended
    }
}

/// Appends the record of a call, up to the data of a WRITE from the buffer of a slot.
pub(super) fn encode(
    out: &mut OutBuf,
    xid: u32,
    (program, version, procedure): Target,
    identity: &Identity,
    request: &Request<'_>,
) {
    let start = RecordStart::begin(out);
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let none_bytes = 2 * 8;
    Call { xid, program, version, procedure, credential, verifier }.encode(&mut Encoder::new(out));
    // The header ends with two empty authentication fields; replace them by the encoded credential
    // and an empty verifier.
    out.truncate(out.len() - none_bytes);
    out.put(identity.bytes());
    let mut encoder = Encoder::new(out);
    verifier.encode(&mut encoder);
    let mut following = 0;
    match request {
        Request::Nfs(args) => args.encode(&mut encoder),
        Request::Read { file, offset, range, .. } => {
            file.wire().encode(&mut encoder);
            encoder.u64(*offset);
            encoder.u32(range.len() as u32);
        }
        Request::Write { file, offset, stable, range, .. } => {
            let bytes = range.len() as u32;
            file.wire().encode(&mut encoder);
            encoder.u64(*offset);
            encoder.u32(bytes);
            stable.encode(&mut encoder);
            encoder.u32(bytes);
            following = range.len() + padding(range.len());
        }
        Request::Other { args, .. } => out.put(args),
    }
    start.finish(out, following);
}

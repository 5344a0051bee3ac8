//! Output queue: the bytes to send to the target, in order. Headers, padding and digests are in the
//! queue's own buffer; the data of commands stays in the caller's buffers.
//!
//! Invariant: bytes are sent in queue order. Each range of a caller's buffer is one data segment;
//! its padding and its digest are the next bytes in the queue's own buffer.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use weir_iscsi_wire::pdu::{Digests, Header, digest, padded};

use super::Buffers;

/// Entry of the output queue.
enum Item {
    /// The next bytes of the queue's own buffer; the number is their count.
    Own(usize),
    /// A range of the buffer of a slot.
    Piece { slot: usize, range: Range<usize>, ends_r2t: bool },
}

/// A range of a slot's buffer that has been sent completely.
pub(super) struct Sent {
    pub(super) slot: usize,
    pub(super) ends_r2t: bool,
}

#[derive(Default)]
pub(super) struct Output {
    /// Own buffer with headers, padding and digests. The first `own_sent` bytes were already sent.
    own: Vec<u8>,
    own_sent: usize,
    items: VecDeque<Item>,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Number of bytes in the own buffer that were not sent yet.
    pub(super) fn own_bytes(&self) -> usize {
        self.own.len() - self.own_sent
    }

    fn put_own(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
        match self.items.back_mut() {
            Some(Item::Own(len)) => *len += bytes.len(),
            _ if bytes.is_empty() => {}
            _ => self.items.push_back(Item::Own(bytes.len())),
        }
    }

    fn put_head(&mut self, mut header: Header, data_bytes: usize, digests: Digests) {
        header.set_data_bytes(data_bytes);
        self.put_own(&header.0);
        if digests.header {
            self.put_own(&digest(&header.0));
        }
    }

    /// Queues the padding and the digest that follow data.
    fn put_tail(&mut self, data: &[u8], digests: Digests) {
        let zeros = [0; 4];
        let padding = zeros.get(..padded(data.len()) - data.len()).unwrap_or_default();
        self.put_own(padding);
        if digests.data {
            let sum = crc32c::crc32c_append(crc32c::crc32c(data), padding);
            self.put_own(&sum.to_le_bytes());
        }
    }

    /// Queues a whole PDU and copies its data.
    pub(super) fn put(&mut self, header: Header, data: &[u8], digests: Digests) {
        self.put_head(header, data.len(), digests);
        if !data.is_empty() {
            self.put_own(data);
            self.put_tail(data, digests);
        }
    }

    /// Queues a whole PDU whose data is a range of a slot's buffer. `data` is the content of this
    /// range, which is not copied.
    pub(super) fn put_piece(
        &mut self,
        header: Header,
        slot: usize,
        range: Range<usize>,
        data: &[u8],
        ends_r2t: bool,
        digests: Digests,
    ) {
        self.put_head(header, range.len(), digests);
        self.items.push_back(Item::Piece { slot, range, ends_r2t });
        self.put_tail(data, digests);
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

    /// Removes sent bytes from the front of the queue. Returns the range of a slot's buffer that
    /// has now been sent completely, if there is one.
    pub(super) fn sent(&mut self, bytes: &mut usize) -> Option<Sent> {
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
            Item::Piece { slot, range, ends_r2t } => {
                let now = range.len().min(*bytes);
                range.start += now;
                *bytes -= now;
                if range.start < range.end {
                    return None;
                }
                Some(Sent { slot: *slot, ends_r2t: *ends_r2t })
            }
        };
        self.items.pop_front();
        // Drop the sent bytes of the own buffer if all its bytes were sent, or if they are most of
        // it.
        if self.own_sent == self.own.len() {
            self.own.clear();
            self.own_sent = 0;
        } else if self.own_sent > 64 << 10 && self.own_sent > self.own.len() / 2 {
            self.own.drain(..self.own_sent);
            self.own_sent = 0;
        }
        ended
    }
}

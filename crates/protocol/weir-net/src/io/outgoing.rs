//! Contents of one send, and the send itself.
//!
//! Each protocol decides which replies to send, and calls [`Outgoing::send`] for them.
//!
//! Invariants:
//! - blocks are sent without a copy in user space;
//! - if a plain socket accepts the data immediately, the send costs one system call and no io_uring
//!   operation.

use std::io::{ErrorKind, IoSlice};
use std::time::Duration;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf, IoVectoredBuf};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use weir_base::BLOCK_BYTES;
use weir_block::{Block, OutBuf};

use crate::io::socket::Socket;

/// Replies to send: encoded bytes, and blocks that follow them or lie between them.
#[derive(Default)]
pub struct Outgoing {
    /// Encoded bytes of this send: reply headers and data that was copied.
    pub head: OutBuf,
    /// Blocks to send without copying. The blocks follow all of `head`, unless [`Outgoing::cut`]
    /// places them.
    pub blocks: Vec<Block>,
    /// Positions in the output at which blocks are inserted, ascending.
    cuts: Vec<Cut>,
}

/// Position in the output at which blocks are inserted. Both counts start at the beginning of the
/// output.
#[derive(Clone, Copy)]
struct Cut {
    head_bytes: usize,
    blocks: usize,
}

impl From<OutBuf> for Outgoing {
    fn from(head: OutBuf) -> Self {
        Self { head, ..Self::default() }
    }
}

/// Buffer in a form that the runtime can send.
pub struct SendBuf(pub OutBuf);

impl IoBuf for SendBuf {
    fn as_init(&self) -> &[u8] {
        self.0.filled()
    }
}

impl IoVectoredBuf for Outgoing {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        let end = Cut { head_bytes: self.head.len(), blocks: self.blocks.len() };
        let mut from = Cut { head_bytes: 0, blocks: 0 };
        let parts = self.cuts.iter().copied().chain([end]).flat_map(move |to| {
            let head = self.head.filled().get(from.head_bytes..to.head_bytes);
            let blocks = self.blocks.get(from.blocks..to.blocks).unwrap_or_default();
            from = to;
            head.into_iter().chain(blocks.iter().map(|block| &block[..]))
        });
        parts.filter(|part| !<[u8]>::is_empty(part))
    }

    fn total_len(&self) -> usize {
        self.len_bytes()
    }
}

impl Outgoing {
    /// Creates an output from a head that is followed by blocks.
    pub fn new(head: OutBuf, blocks: Vec<Block>) -> Self {
        Self { head, blocks, cuts: Vec::new() }
    }

    /// Places the first `blocks` blocks, counted from the start of the output, after the head bytes
    /// added so far. Head bytes that are added later follow these blocks.
    pub fn cut(&mut self, blocks: usize) {
        self.cuts.push(Cut { head_bytes: self.head.len(), blocks });
    }

    /// Total number of bytes to send, in head and blocks.
    pub fn len_bytes(&self) -> usize {
        self.head.len() + self.blocks.len() * BLOCK_BYTES
    }

    /// Bytes of memory that head and blocks take.
    pub fn room_bytes(&self) -> usize {
        self.head.room() + self.blocks.len() * BLOCK_BYTES
    }

    /// Sends head and blocks completely, and returns the buffers. Calls `moved` with the number of
    /// bytes of each send. If the socket accepts nothing for `stall_limit`, fails with `TimedOut`
    /// and does not return the buffers.
    pub async fn send<S: Socket>(
        self,
        socket: &mut S,
        stall_limit: Duration,
        moved: impl Fn(usize),
    ) -> BufResult<(), Self> {
        let now = if S::IS_PLAIN { self.send_now(socket) } else { Ok(0) };
        let mut sent = match now {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return BufResult(Err(error.into()), self),
        };
        moved(sent);
        let total = self.len_bytes();
        let mut outgoing = self;
        while sent < total {
            let part = compio::time::timeout(stall_limit, outgoing.send_from(socket, sent));
            let Ok(BufResult(result, back)) = part.await else {
                return BufResult(Err(ErrorKind::TimedOut.into()), Self::default());
            };
            outgoing = back;
            match result {
                Ok(0) => return BufResult(Err(ErrorKind::WriteZero.into()), outgoing),
                Ok(taken) => {
                    moved(taken);
                    sent += taken;
                }
                Err(error) => return BufResult(Err(error), outgoing),
            }
        }
        BufResult(Ok(()), outgoing)
    }

    /// Waits until the socket accepts bytes, then sends as many bytes as the socket accepts.
    async fn send_from<S: Socket>(self, socket: &mut S, sent: usize) -> BufResult<usize, Self> {
        if self.blocks.is_empty() {
            let BufResult(result, rest) = socket.write(SendBuf(self.head).slice(sent..)).await;
            return BufResult(result, rest.into_inner().0.into());
        }
        let BufResult(result, rest) = socket.write_vectored(self.slice(sent)).await;
        BufResult(result, rest.into_inner())
    }

    /// Sends the bytes that the socket accepts without waiting.
    fn send_now(&self, socket: &impl Socket) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if self.blocks.is_empty() {
            return rustix::net::send(socket, self.head.filled(), flags);
        }
        let parts: Vec<IoSlice<'_>> = self.iter_slice().map(IoSlice::new).collect();
        rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags)
    }
}

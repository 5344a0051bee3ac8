//! What one send is made of, and how it is sent.
//!
//! Not here: which reply is sent when, and the loop that sends them (each protocol).
//!
//! Invariants:
//! - blocks are sent from where they are: nothing copies them but the kernel;
//! - what the socket takes at once costs one system call and no turn of the ring.

use std::io::IoSlice;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf, IoVectoredBuf};
use compio::io::AsyncWriteExt;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use weir_device::Block;

use crate::outbuf::OutBuf;
use crate::socket::Socket;

/// Replies, and the blocks that follow the last of them.
#[derive(Default)]
pub struct Outgoing {
    /// Sent first.
    pub head: OutBuf,
    /// Sent after it, each from where it is.
    pub blocks: Vec<Block>,
}

impl From<OutBuf> for Outgoing {
    fn from(head: OutBuf) -> Self {
        Self { head, blocks: Vec::new() }
    }
}

impl IoBuf for OutBuf {
    fn as_init(&self) -> &[u8] {
        self.filled()
    }
}

impl IoVectoredBuf for Outgoing {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.head.filled()).chain(self.blocks.iter().map(|block| &block[..]))
    }
}

impl Outgoing {
    /// Sends all of it and gives the buffers back.
    pub async fn send<S: Socket>(self, socket: &mut S) -> BufResult<(), Self> {
        let sent = match self.send_now(socket) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return BufResult(Err(error.into()), self),
        };
        if sent == self.total_len() {
            return BufResult(Ok(()), self);
        }
        if self.blocks.is_empty() {
            let BufResult(result, rest) = socket.write_all(self.head.slice(sent..)).await;
            return BufResult(result, rest.into_inner().into());
        }
        let BufResult(result, rest) = socket.write_vectored_all(self.slice(sent)).await;
        BufResult(result, rest.into_inner())
    }

    /// Sends what the socket takes without waiting.
    fn send_now(&self, socket: &impl Socket) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if self.blocks.is_empty() {
            return rustix::net::send(socket, self.head.filled(), flags);
        }
        let parts: Vec<IoSlice<'_>> = self.iter_slice().map(IoSlice::new).collect();
        rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags)
    }
}

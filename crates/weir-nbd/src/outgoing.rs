//! Sending: what one send is made of, and the busy wait for the request that follows a reply.
//!
//! Not here: which reply is sent when (`connection`), the loop that sends them (`session`).
//!
//! Invariants:
//! - blocks are sent from where they are: nothing copies them but the kernel;
//! - what the socket takes at once costs one system call and no turn of the ring;
//! - a busy wait gives way to every other task of the thread, and ends after [`LINGER_MAX`].

use std::cell::Cell;
use std::future::poll_fn;
use std::io::IoSlice;
use std::task::Poll;
use std::time::{Duration, Instant};

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf, IoVectoredBuf};
use compio::io::AsyncWriteExt;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use weir_device::Block;

use crate::limits::{LINGER_MAX, LINGER_MIN};
use crate::reply::OutBuf;
use crate::session::Socket;

/// Replies, and the blocks that follow the last of them.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) head: OutBuf,
    pub(crate) blocks: Vec<Block>,
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
    pub(crate) async fn send<S: Socket>(self, socket: &mut S) -> BufResult<(), Self> {
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

/// Waits awake for a client that sends its next request once it has the last reply.
///
/// Sleeping and waking costs both sides more than such a client needs to answer (the reason for
/// which hypervisors poll before they halt). The wait is as long as it may be while it pays, and
/// halves, down to nothing, while it does not; from nothing it is tried again when a request came
/// soon after all.
pub(crate) struct Linger {
    budget: Cell<Duration>,
    /// When the last wait ended in vain.
    gave_up: Cell<Option<Instant>>,
}

impl Default for Linger {
    fn default() -> Self {
        Self { budget: Cell::new(LINGER_MAX), gave_up: Cell::new(None) }
    }
}

impl Linger {
    /// To be told of every receive, waited for or not.
    pub(crate) fn request_came(&self) {
        let Some(gave_up) = self.gave_up.take() else { return };
        self.budget.set(if gave_up.elapsed() < LINGER_MAX {
            LINGER_MAX
        } else if self.budget.get() > LINGER_MIN {
            self.budget.get() / 2
        } else {
            Duration::ZERO
        });
    }

    /// Waits awake while it is `quiet`, as long as that lately paid.
    pub(crate) async fn wait(&self, quiet: impl Fn() -> bool) {
        let start = Instant::now();
        while quiet() {
            if start.elapsed() >= self.budget.get() {
                self.gave_up.set(Some(Instant::now()));
                return;
            }
            give_way().await;
        }
    }
}

/// Lets the other tasks of the thread, and the ring, have a turn.
async fn give_way() {
    let mut waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_does_not_pay_is_given_up_and_tried_again_for_a_quick_client() {
        let linger = Linger::default();
        let late = |linger: &Linger| {
            linger.gave_up.set(Instant::now().checked_sub(2 * LINGER_MAX));
            linger.request_came();
        };
        for _ in 0..10 {
            late(&linger);
        }
        assert_eq!(linger.budget.get(), Duration::ZERO);
        linger.gave_up.set(Some(Instant::now()));
        linger.request_came();
        assert_eq!(linger.budget.get(), LINGER_MAX);
    }

    #[test]
    fn a_wait_lets_other_tasks_run_and_ends() {
        weir_device::new_runtime().unwrap().block_on(async {
            let ran = std::rc::Rc::new(Cell::new(false));
            let flag = std::rc::Rc::clone(&ran);
            compio::runtime::spawn(async move { flag.set(true) }).detach();
            let linger = Linger::default();
            linger.wait(|| !ran.get()).await;
            assert!(ran.get() && linger.gave_up.get().is_none());
            linger.wait(|| true).await;
            assert!(linger.gave_up.get().is_some());
        });
    }
}

//! The byte stream of a management connection, with a check that the client reads its responses.
//!
//! `slots` evicts connections without progress; `server` speaks HTTP over this stream.
//!
//! Invariants:
//! - a client that reads less than [`STALL_BYTES`] within the time limit of its slot loses the
//!   connection, and the memory of its response is released;
//! - the call that holds a slot ends only when the kernel has taken all bytes of the response.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::connection::Duplex;
use crate::limits::STALL_BYTES;
use crate::slots::Slot;

/// A connection whose writes fail if the client reads too little for too long.
pub(crate) struct Watched {
    stream: Box<dyn Duplex>,
    /// Slot of the connection; absent if it has none, as in tests.
    slot: Option<Arc<Slot>>,
    /// Time by which the client must have read [`STALL_BYTES`] more; set while a write waits for
    /// the client.
    limit: Option<Pin<Box<Sleep>>>,
    moved_bytes: usize,
}

impl Watched {
    pub(crate) fn new(stream: Box<dyn Duplex>, slot: Option<Arc<Slot>>) -> Self {
        Self { stream, slot, limit: None, moved_bytes: 0 }
    }

    fn moved(&mut self, bytes: usize) {
        self.moved_bytes += bytes;
        if self.moved_bytes >= STALL_BYTES {
            (self.limit, self.moved_bytes) = (None, 0);
        }
        if let Some(slot) = &self.slot {
            slot.moved();
        }
    }

    /// Starts the time limit, because the client is not reading at the moment.
    fn waits<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let Some(slot) = &self.slot else { return Poll::Pending };
        let limit = self.limit.get_or_insert_with(|| {
            self.moved_bytes = 0;
            Box::pin(tokio::time::sleep_until(Instant::now() + slot.stall_limit()))
        });
        ready!(limit.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.moved(bytes);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.waits(context),
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            // hyper flushes only after the last byte of a response, so the whole response was sent.
            Poll::Ready(Ok(())) => {
                (self.limit, self.moved_bytes) = (None, 0);
                if let Some(slot) = &self.slot {
                    slot.flushed();
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.waits(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Pending => self.waits(context),
            ended @ Poll::Ready(_) => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::limits::{STALL_LIMIT, STREAM_STALL_LIMIT};
    use crate::slots::{Entrance, SlotOwner, Slots};

    fn watched(stream: tokio::io::DuplexStream) -> (Watched, crate::slots::Taken) {
        let slots = Arc::new(Slots::default());
        let Entrance::Taken(taken) = slots.knock(SlotOwner::Root) else { panic!("no free slot") };
        (Watched::new(Box::new(stream), Some(taken.slot())), taken)
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_client_is_disconnected_and_slow_client_is_served() {
        let answer = vec![7; 10 * STALL_BYTES];
        let (ours, _theirs) = tokio::io::duplex(1024);
        let (mut stream, _taken) = watched(ours);
        let begun = Instant::now();
        let error = stream.write_all(&answer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!((STALL_LIMIT..2 * STALL_LIMIT).contains(&begun.elapsed()));

        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (mut stream, _taken) = watched(ours);
        let reader = tokio::spawn(async move {
            let mut part = vec![0; STALL_BYTES + 1024];
            for _ in 0..9 {
                tokio::time::sleep(STALL_LIMIT.mul_f32(0.9)).await;
                theirs.read_exact(&mut part).await.unwrap();
            }
            theirs.read_to_end(&mut part).await.unwrap()
        });
        stream.write_all(&answer).await.unwrap();
        stream.flush().await.unwrap();
        drop(stream);
        reader.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_stream_client_is_disconnected_after_two_minutes() {
        let (ours, _theirs) = tokio::io::duplex(1024);
        let (mut stream, taken) = watched(ours);
        taken.slot().set_stall_limit(STREAM_STALL_LIMIT);
        let begun = Instant::now();
        let error = stream.write_all(&vec![7; 10 * STALL_BYTES]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 120);
    }

    // Regression: a client that read one byte per second kept its connection for ever.
    #[tokio::test(start_paused = true)]
    async fn client_that_reads_one_byte_per_second_is_disconnected() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (mut stream, _taken) = watched(ours);
        let reader = tokio::spawn(async move {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let error = stream.write_all(&vec![7; 10 * STALL_BYTES]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        reader.abort();
    }
}

//! TLS on a connection's socket, server side.
//!
//! The caller supplies certificates in a [`ServerConfig`]; the protocol decides when TLS begins.
//! One task reads and one task writes, each on its own clone of the socket; the clones share the
//! session state. Only the writing task sends. A TLS message that must be sent after the handshake
//! (a response to a key update) goes out with the next write.
//!
//! Invariants:
//! - bytes received before the handshake never become session data;
//! - bytes are sent in the order in which they were encrypted;
//! - in addition to the session state, TLS holds at most [`TLS_BYTES`] for a connection;
//! - no task holds a borrow of the session across an await.

use std::cell::RefCell;
use std::io::{self, BufRead as _, ErrorKind, IoSlice, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use compio::BufResult;
use compio::buf::{IoBuf, IoBufMut, IoVectoredBuf};
use compio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use futures_util::FutureExt as _;
use rustls::{ServerConfig, ServerConnection};

use crate::io::socket::Socket;
#[cfg(doc)]
use crate::limits::TLS_BYTES;
use crate::limits::{TLS_END_LIMIT, TLS_RECEIVE_BYTES, TLS_SEND_BYTES};

/// Socket with TLS; clones share the TLS session.
pub struct TlsSocket<S> {
    socket: S,
    session: Rc<RefCell<ServerConnection>>,
    /// Received encrypted bytes. The first `taken` of them were passed to the TLS session. Only the
    /// clone of the reading task has received bytes.
    received: Vec<u8>,
    taken: usize,
}

impl<S: Clone> Clone for TlsSocket<S> {
    fn clone(&self) -> Self {
        let (socket, session) = (self.socket.clone(), Rc::clone(&self.session));
        Self { socket, session, received: Vec::new(), taken: 0 }
    }
}

impl<S: AsFd> AsFd for TlsSocket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S: Socket> TlsSocket<S> {
    /// Runs the server side of the TLS handshake, from the next byte of the socket. The caller
    /// limits the duration.
    ///
    /// # Errors
    /// The socket failed, or the client sent an unacceptable handshake message. After such a
    /// message the client has received an alert.
    pub async fn accept(socket: S, config: &Arc<ServerConfig>) -> io::Result<Self> {
        let mut session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        session.set_buffer_limit(Some(TLS_SEND_BYTES));
        let session = Rc::new(RefCell::new(session));
        let mut tls = Self { socket, session, received: Vec::new(), taken: 0 };
        while tls.session.borrow().is_handshaking() {
            if tls.receive().await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            while tls.has_received() && tls.session.borrow().is_handshaking() {
                let fed = tls.feed();
                // Send the response or, after an error, the alert for the client.
                let sent = tls.send_records().await;
                fed.and(sent)?;
            }
        }
        tls.send_records().await?;
        Ok(tls)
    }

    const fn has_received(&self) -> bool {
        self.taken < self.received.len()
    }

    /// Receives encrypted bytes once; returns 0 at the end of the stream.
    async fn receive(&mut self) -> io::Result<usize> {
        let mut buffer = std::mem::take(&mut self.received);
        buffer.clear();
        buffer.reserve_exact(TLS_RECEIVE_BYTES);
        let BufResult(result, buffer) = self.socket.read(buffer).await;
        (self.received, self.taken) = (buffer, 0);
        result
    }

    /// Passes received bytes to the TLS session once; the session may leave some of them for later.
    fn feed(&mut self) -> io::Result<()> {
        let mut session = self.session.borrow_mut();
        let mut rest = self.received.get(self.taken..).unwrap_or_default();
        let taken = session.read_tls(&mut rest)?;
        self.taken += taken;
        let processed = session.process_new_packets();
        processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        Ok(())
    }

    /// Sends all encrypted bytes of the TLS session.
    async fn send_records(&mut self) -> io::Result<()> {
        let mut records = Vec::new();
        {
            let mut session = self.session.borrow_mut();
            while session.wants_write() {
                session.write_tls(&mut records)?;
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        self.socket.write_all(records).await.0
    }

    /// Encrypts and sends as much of `parts` as the TLS session accepts. Returns the number of
    /// plaintext bytes sent.
    async fn send_parts(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.session.borrow_mut().writer().write_vectored(parts)?;
        self.send_records().await?;
        Ok(taken)
    }
}

impl<S: Socket> AsyncRead for TlsSocket<S> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        loop {
            {
                let mut session = self.session.borrow_mut();
                let mut reader = session.reader();
                match reader.fill_buf() {
                    Ok(mut bytes) => {
                        let copied = bytes.read(buf).now_or_never();
                        let BufResult(result, buf) = copied.expect("a copy does not wait");
                        if let Ok(count) = result {
                            reader.consume(count);
                        }
                        return BufResult(result, buf);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return BufResult(Err(error), buf),
                }
            }
            let more = if self.has_received() {
                self.feed().map(|()| true)
            } else {
                // Accept a stream that ends without close_notify: the messages of the block
                // protocol contain their own length.
                self.receive().await.map(|count| count > 0)
            };
            match more {
                Ok(true) => {}
                Ok(false) => return BufResult(Ok(0), buf),
                Err(error) => return BufResult(Err(error), buf),
            }
        }
    }
}

impl<S: Socket> AsyncWrite for TlsSocket<S> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        let result = self.send_parts(&[IoSlice::new(buf.as_init())]).await;
        BufResult(result, buf)
    }

    async fn write_vectored<B: IoVectoredBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        let mut bytes = 0;
        let some = buf.iter_slice().take_while(|part| {
            let is_wanted = bytes < TLS_SEND_BYTES;
            bytes += part.len();
            is_wanted
        });
        let parts: Vec<IoSlice<'_>> = some.map(IoSlice::new).collect();
        let result = self.send_parts(&parts).await;
        drop(parts);
        BufResult(result, buf)
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.send_records().await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.say_end().await;
        self.socket.shutdown().await
    }
}

impl<S: Socket> Socket for TlsSocket<S> {
    const IS_PLAIN: bool = false;

    async fn say_end(&mut self) {
        self.session.borrow_mut().send_close_notify();
        // Try to send close_notify, but ignore a failure: the client may be stalled or
        // disconnected.
        drop(compio::time::timeout(TLS_END_LIMIT, self.send_records()).await);
    }
}

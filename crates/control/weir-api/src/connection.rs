//! Client connections: the client keeps an idle connection for its next call.
//!
//! `client` and `peer::link` make the connections and the requests.
//!
//! Invariants:
//! - the client sends a request again only if no byte of the request was sent before. Otherwise the
//!   call may have run, and only the caller can decide whether the call may run twice;
//! - a connection that its server is about to close is not reused.

use std::sync::Arc;

use axum::http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::limits::{ANSWER_BYTES_MAX, CONNECTION_KEPT};

/// A connection that transfers bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An error of a connection.
pub(crate) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// The sending half of a connection.
type Sender = SendRequest<Full<Bytes>>;

/// The idle connection, and the time at which it became idle.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Option<(Sender, Instant)>>>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept(..)")
    }
}

/// A response whose header has arrived. After the body was read completely, the connection is kept.
pub(crate) struct Exchange {
    pub(crate) response: Response<Incoming>,
    sender: Sender,
    kept: Kept,
}

impl Kept {
    async fn take(&self) -> Option<Sender> {
        let (mut sender, since) = self.0.lock().take()?;
        (since.elapsed() < CONNECTION_KEPT && sender.ready().await.is_ok()).then_some(sender)
    }

    /// Sends a request over the idle connection, or over a new one from `connect`.
    ///
    /// # Errors
    /// The errors of `connect`; if a connection broke, the error that `broken` returns.
    pub(crate) async fn exchange<S: Duplex + 'static, E>(
        &self,
        mut request: Request<Full<Bytes>>,
        connect: impl Future<Output = Result<S, E>>,
        broken: impl Fn(Broken) -> E,
    ) -> Result<Exchange, E> {
        if let Some(mut sender) = self.take().await {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(Exchange { response, sender, kept: self.clone() }),
                Err(mut error) => match error.take_message() {
                    // The server had closed the idle connection before any byte was sent, so use a
                    // new connection.
                    Some(unsent) => request = unsent,
                    None => return Err(broken(error.into_error().into())),
                },
            }
        }
        let stream = TokioIo::new(connect.await?);
        let (mut sender, connection) =
            http1::handshake(stream).await.map_err(|error| broken(error.into()))?;
        // The task that drives the connection ends when the connection ends, so its handle is not
        // needed.
        drop(tokio::spawn(connection));
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|error| broken(error.into()))?;
        Ok(Exchange { response, sender, kept: self.clone() })
    }
}

impl Exchange {
    /// Reads the complete body of a response, up to [`ANSWER_BYTES_MAX`].
    pub(crate) async fn whole(mut self) -> Result<(StatusCode, Bytes), Broken> {
        let status = self.response.status();
        let whole = Limited::new(self.response.body_mut(), ANSWER_BYTES_MAX).collect().await?;
        self.keep();
        Ok((status, whole.to_bytes()))
    }

    /// Reads the next bytes of the response; `None` at its end.
    pub(crate) async fn part(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        while let Some(frame) = self.response.body_mut().frame().await {
            if let Ok(bytes) = frame?.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Keeps the connection for the next call. The response must have been read completely.
    pub(crate) fn keep(self) {
        *self.kept.0.lock() = Some((self.sender, Instant::now()));
    }
}

//! Connections of a client: one that nobody uses is kept for the next call.
//!
//! Not here: how a connection is made (client, peer link), what is asked over it.
//!
//! Invariants:
//! - a request is sent again only if nothing of it was sent: whoever made a call that failed
//!   half-way knows what doing it twice would do;
//! - no connection is kept that its server is about to close.

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

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// What goes wrong on a connection.
pub(crate) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// The end of a connection that requests go into.
type Sender = SendRequest<Full<Bytes>>;

/// The connection that nobody uses now, and since when.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Option<(Sender, Instant)>>>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept(..)")
    }
}

/// An answer that begins; its connection is kept once it was read to its end.
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

    /// Sends a request over the connection that is there, or else over what `connect` makes.
    ///
    /// # Errors
    /// Those of `connect`, and what `broken` makes of a connection that broke.
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
                    // It was closed, and nothing of the request went out.
                    Some(unsent) => request = unsent,
                    None => return Err(broken(error.into_error().into())),
                },
            }
        }
        let stream = TokioIo::new(connect.await?);
        let (mut sender, connection) =
            http1::handshake(stream).await.map_err(|error| broken(error.into()))?;
        // Ends with the connection.
        drop(tokio::spawn(connection));
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|error| broken(error.into()))?;
        Ok(Exchange { response, sender, kept: self.clone() })
    }
}

impl Exchange {
    /// Status and body of an answer that fits into memory.
    pub(crate) async fn whole(mut self) -> Result<(StatusCode, Bytes), Broken> {
        let status = self.response.status();
        let whole = Limited::new(self.response.body_mut(), ANSWER_BYTES_MAX).collect().await?;
        self.keep();
        Ok((status, whole.to_bytes()))
    }

    /// The next bytes of the answer; `None` at its end.
    pub(crate) async fn part(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        while let Some(frame) = self.response.body_mut().frame().await {
            if let Ok(bytes) = frame?.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Leaves the connection to the next call: the answer was read to its end.
    pub(crate) fn keep(self) {
        *self.kept.0.lock() = Some((self.sender, Instant::now()));
    }
}

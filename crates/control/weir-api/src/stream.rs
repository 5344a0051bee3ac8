//! Streams that a server sends or receives, part by part.
//!
//! The format of a stream is in weir-format, the calls that start and end it are in `calls`.
//!
//! Invariants:
//! - the server reads a part only when the client requests it, so that a slow client slows the
//!   stream;
//! - a broken stream ends with an error, so it never looks like a complete stream;
//! - dropping a stream before its end ends its session.

use std::sync::Arc;

use axum::body::Body;
use futures_util::stream::try_unfold;

pub use hyper::body::Bytes;

use crate::calls::call::Pending;
use crate::types::ReceiveProgress;

/// The data of a session that sends a stream.
pub trait SendStream: Send {
    /// Returns the next part, however long that takes, or `None` at the end of a complete stream.
    /// After `None` or an error, the function must not be called again.
    ///
    /// # Errors
    /// The error that stopped the stream; `NotFound` for a session that has ended.
    ///
    /// # Cancel safety
    /// No part is lost.
    fn next(&mut self) -> Pending<'_, Option<Bytes>>;
}

/// The calls whose request or response is a stream.
pub trait Streams: Send + Sync + 'static {
    /// Returns the stream of a session to one caller. The server reads each part when the caller
    /// requests it. The session ends with the stream.
    ///
    /// # Errors
    /// `Busy` if another call already got the stream of the session.
    fn send_stream(&self, session: String) -> Pending<'_, Box<dyn SendStream>>;

    /// Receives the next part of a stream. The server has applied the previous part when this call
    /// returns. An error ends the session.
    ///
    /// # Errors
    /// Errors of this part or the previous one: `Busy` for a volume that was changed, `NotFound` if
    /// the volume lacks the base snapshot of the incremental stream, `Data` for a damaged stream.
    fn receive_part(
        self: Arc<Self>,
        session: String,
        part: Bytes,
    ) -> Pending<'static, ReceiveProgress>;
}

/// Converts the stream to the body of a response; an error breaks the connection.
pub(crate) fn body(stream: Box<dyn SendStream>) -> Body {
    Body::from_stream(try_unfold(stream, |mut stream| async move {
        let part = stream.next().await?;
        Ok::<_, crate::ApiError>(part.map(|part| (part, stream)))
    }))
}

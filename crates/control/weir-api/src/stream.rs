//! A stream that is sent, on its way to whoever takes it: part after part.
//!
//! Not here: the format of a stream (weir-format), the calls that begin and end it (`calls`).
//!
//! Invariants:
//! - a part is made when it is asked for: whoever takes slowly is given slowly;
//! - a stream that broke ends with an error, never as if it were whole;
//! - dropping it before its end ends its session.

use std::sync::Arc;

use axum::body::Body;
use futures_util::stream::try_unfold;

pub use hyper::body::Bytes;

use crate::calls::call::Pending;
use crate::types::ReceiveProgress;

/// The bytes of a session that sends.
pub trait SendStream: Send {
    /// The next part, however long that takes; `None` when that was all, and then the stream is
    /// whole. To be asked no more after that or an error.
    ///
    /// # Errors
    /// What keeps the snapshot from being sent; `NotFound` for a session that was ended.
    ///
    /// # Cancel safety
    /// No part is lost.
    fn next(&mut self) -> Pending<'_, Option<Bytes>>;
}

/// The calls whose body is a stream.
pub trait Streams: Send + Sync + 'static {
    /// Takes the stream of a session, once: the server reads each part when the caller asks for it.
    /// The session ends with the stream.
    ///
    /// # Errors
    /// `Busy` if the stream of the session was taken before.
    fn send_stream(&self, session: String) -> Pending<'_, Box<dyn SendStream>>;

    /// Gives the next part of a stream. The server has applied the part before when it answers.
    /// After an error the session is over.
    ///
    /// # Errors
    /// Of this part or the one before: `Busy` for a volume that was changed, `NotFound` without the
    /// snapshot that the stream is a difference to, `Data` for a damaged stream.
    fn receive_part(
        self: Arc<Self>,
        session: String,
        part: Bytes,
    ) -> Pending<'static, ReceiveProgress>;
}

/// The stream as the body of an answer; an error breaks the connection.
pub(crate) fn body(stream: Box<dyn SendStream>) -> Body {
    Body::from_stream(try_unfold(stream, |mut stream| async move {
        let part = stream.next().await?;
        Ok::<_, crate::ApiError>(part.map(|part| (part, stream)))
    }))
}

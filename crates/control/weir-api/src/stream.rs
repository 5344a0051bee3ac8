//! A stream that is sent, on its way to whoever takes it: part after part.
//!
//! Not here: what is in it, and the calls around it ([`crate::Control`]).
//!
//! Invariants:
//! - a part is made when it is asked for: whoever takes slowly is given slowly;
//! - a stream that broke ends with an error, never as if it were whole;
//! - dropping it before its end ends its session.

use axum::body::Body;
use futures_util::stream::try_unfold;

pub use hyper::body::Bytes;

use crate::control::Answer;

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
    fn next(&mut self) -> Answer<'_, Option<Bytes>>;
}

/// The stream as the body of an answer; an error breaks the connection.
pub(crate) fn body(stream: Box<dyn SendStream>) -> Body {
    Body::from_stream(try_unfold(stream, |mut stream| async move {
        let part = stream.next().await?;
        Ok::<_, crate::ApiError>(part.map(|part| (part, stream)))
    }))
}

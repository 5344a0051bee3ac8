//! Download of a stream that the server sends, on the client.
//!
//! The caller of [`SendStream::next`] decides where the bytes go.
//!
//! Invariants:
//! - a download waits for a slow source disk as long as the server reports that it has sent nothing
//!   new;
//! - an absent server, or a connection that transfers nothing, is detected within the client's
//!   timeout;
//! - if the connection breaks, the download asks the server over a second connection for the error
//!   that ended the stream. The download returns this error, or the connection error if the server
//!   reports none.

use tokio::time::Instant;
use weir_base::ErrorKind;

use super::{Client, JSON, Outgoing, fields, of_session, outgoing};
use crate::Error;
use crate::calls::call::{Call as _, Pending};
use crate::calls::table::SEND_STREAM;
use crate::connection::Exchange;
use crate::limits::SEND_POLL_INTERVAL;
use crate::stream::{Bytes, SendStream};
use crate::types::ShowSend;
use crate::wire::ApiError;

/// A stream that is being downloaded.
struct Arriving {
    client: Client,
    session: String,
    /// The HTTP response with the stream; absent after the end of the stream.
    answer: Option<Exchange>,
    received_bytes: u64,
    /// Last time at which the client had received all data that the server had sent until then.
    level_at: Instant,
}

impl Client {
    /// Starts to download the stream of a session.
    pub(super) async fn arriving(&self, session: String) -> Result<Box<dyn SendStream>, ApiError> {
        let call =
            Outgoing { content: JSON, ..of_session(&SEND_STREAM, session.clone(), Bytes::new()) };
        let begun = self.in_time(self.exchange(call)).await?;
        let status = begun.response.status();
        if !status.is_success() {
            let read = self.in_time(async { begun.whole().await.map_err(|e| self.broken(e)) });
            return Err(self.refusal(status, &read.await?.1));
        }
        let (client, answer) = (self.clone(), Some(begun));
        let level_at = Instant::now();
        Ok(Box::new(Arriving { client, session, answer, received_bytes: 0, level_at }))
    }
}

impl Arriving {
    fn show(&self) -> ShowSend {
        ShowSend { session: self.session.clone() }
    }

    async fn next_part(&mut self) -> Result<Option<Bytes>, ApiError> {
        let look = SEND_POLL_INTERVAL.min(self.client.timeout);
        loop {
            let Some(answer) = &mut self.answer else { return Ok(None) };
            match tokio::time::timeout(look, answer.part()).await {
                Ok(Ok(Some(part))) => {
                    self.received_bytes += part.len() as u64;
                    self.level_at = Instant::now();
                    return Ok(Some(part));
                }
                Ok(Ok(None)) => {
                    if let Some(answer) = self.answer.take() {
                        answer.keep();
                    }
                    return Ok(None);
                }
                Ok(Err(error)) => return Err(self.why_broken(error).await),
                Err(_) => self.check_alive().await?,
            }
        }
    }

    /// Asks the server over another connection whether it has sent data that did not arrive.
    async fn check_alive(&mut self) -> Result<(), ApiError> {
        let on_its_way = match self.client.call(self.show()).await {
            Ok(told) => told.sent_bytes > self.received_bytes,
            // The session has ended, so the end of the stream must still arrive.
            Err(error) if error.kind == ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        };
        if !on_its_way {
            self.level_at = Instant::now();
        } else if self.level_at.elapsed() >= self.client.timeout {
            return Err(self.client.late().into());
        }
        Ok(())
    }

    /// Asks the server, if it responds, for the error that broke the stream.
    async fn why_broken(&self, error: hyper::Error) -> ApiError {
        match self.client.answered(outgoing(ShowSend::OPERATION, fields(&self.show()))).await {
            Ok((status, answer)) if !status.is_success() => self.client.refusal(status, &answer),
            _ => Error::into(self.client.broken(error)),
        }
    }
}

impl SendStream for Arriving {
    fn next(&mut self) -> Pending<'_, Option<Bytes>> {
        Box::pin(self.next_part())
    }
}

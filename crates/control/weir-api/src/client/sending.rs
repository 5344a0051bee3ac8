//! The calling side of a stream that is sent: one answer, taken as it comes.
//!
//! Not here: what is done with the bytes.
//!
//! Invariants:
//! - a stream that waits for a slow disk is waited for, as long as the server says so;
//! - a server that is gone, or a connection that lets nothing through, is noticed within the
//!   client's timeout;
//! - of a stream that broke the server's own error is told, where there is one.

use tokio::time::Instant;
use weir_base::ErrorKind;

use super::{Client, JSON, Outgoing, fields, of_session, outgoing};
use crate::Error;
use crate::calls::call::{Call as _, Pending};
use crate::calls::table::SEND_STREAM;
use crate::connection::Exchange;
use crate::limits::SEND_LOOK;
use crate::stream::{Bytes, SendStream};
use crate::types::ShowSend;
use crate::wire::ApiError;

/// A stream on its way here.
struct Arriving {
    client: Client,
    session: String,
    /// Gone at the stream's end.
    answer: Option<Exchange>,
    received_bytes: u64,
    /// When all was here that the server had given.
    level_at: Instant,
}

impl Client {
    /// Begins to take the stream of a session.
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
        let look = SEND_LOOK.min(self.client.timeout);
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

    /// Asks the server, over another connection, why nothing comes.
    async fn check_alive(&mut self) -> Result<(), ApiError> {
        let on_its_way = match self.client.call(self.show()).await {
            Ok(told) => told.sent_bytes > self.received_bytes,
            // It ended, and the end must come.
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

    /// What broke the stream: the server knows, if it lives.
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

//! Calls that send streams, in sessions between the engine and the receiver of the bytes.
//!
//! The streams are in weir-dataset, their network transport is in weir-api.
//!
//! Invariants:
//! - at most a few frames wait in memory: a slow receiver blocks the engine;
//! - a frame is moved from the engine to the socket without a copy;
//! - a session ends with its stream, when its receiver goes away, or when no part is taken for
//!   long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use weir_api::access::Scope;
use weir_api::calls::lookup;
use weir_api::limits::REQUEST_BYTES_MAX;
use weir_api::stream::{Bytes, SendStream};
use weir_api::types::{
    ListStreams, Outcome, Removed, SendProgress, SendStart, SendStarted, SendStop, ShowSend,
    StreamCancel, StreamList,
};
use weir_api::{ApiError, Handle, Pending};
use weir_base::ErrorKind;
use weir_dataset::{SendFrom, SendSpec};
use weir_format::stream::ResumeToken;

use crate::answer::errors::internal;
use crate::snapshots::bookmark_calls::bookmark_id;
use crate::state::sends::{FRAMES_WAITING, Frames, Listed, Outgoing, id, send};
use crate::state::server::Manager;
use crate::state::stream_session::{About, over};
use crate::state::transfers::{Transfers, session_name};

/// Time after which a replication run that waits for a part of a stream gets an empty part.
const PART_WAIT: Duration = Duration::from_secs(5);

fn send_spec(request: &SendStart) -> Result<(String, SendSpec), ApiError> {
    let (pool, snapshot) = id(&request.snapshot)?;
    let from = match &request.from {
        None => None,
        Some(from) => {
            let (from_pool, from) = if from.contains('#') {
                let (pool, from) = bookmark_id(from)?;
                (pool, SendFrom::Bookmark(from))
            } else {
                let (pool, from) = id(from)?;
                (pool, SendFrom::Snapshot(from))
            };
            if from_pool != pool {
                let message = format!("{} is in another pool", request.snapshot);
                return Err(ApiError::new(ErrorKind::Invalid, message)
                    .with_action("name an older snapshot of the same pool"));
            }
            Some(from)
        }
    };
    let resume = request.token.as_deref().map(str::parse::<ResumeToken>).transpose();
    let resume = resume.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))?;
    Ok((pool.to_owned(), SendSpec { snapshot, from, resume }))
}

/// A session whose stream is being downloaded. The session ends when this is dropped.
struct Taken {
    transfers: Arc<Transfers>,
    session: String,
}

impl SendStream for Taken {
    fn next(&mut self) -> Pending<'_, Option<Bytes>> {
        Box::pin(async move {
            let send = self.transfers.sends.lock().find(&self.session)?;
            let _using = send.about.used.begin();
            let mut frames = send.frames.lock().await;
            let frame = self.transfers.next_frame(&self.session, &send, &mut frames).await?;
            Ok(frame.map(Bytes::from))
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // A completed session has already been removed.
        self.transfers.sends.lock().sessions.remove(&self.session);
    }
}

impl Transfers {
    async fn next_frame(
        &self,
        session: &str,
        send: &Outgoing,
        frames: &mut Frames,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        let frame = tokio::select! {
            biased;
            () = send.ended_early.notified() => return Err(over(session)),
            frame = frames.come.recv() => frame,
        };
        if let Some(frame) = frame {
            send.sent_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
            return Ok(Some(frame));
        }
        let ended = (&mut frames.ended).await;
        let done = ended.unwrap_or_else(|error| Err(internal("the stream failed", &error)));
        self.sends.lock().end(session, &done);
        done.map(|()| None)
    }
}

impl Handle<SendStart> for Manager {
    /// Starts to send a snapshot as a stream: all of it, or the changes since an older snapshot or
    /// a bookmark.
    ///
    /// # Errors
    /// `Invalid` if neither snapshot is an ancestor of the other, or for a token of another stream;
    /// `Busy` while the server has too many streams.
    async fn handle(&self, request: SendStart) -> Result<SendStarted, ApiError> {
        let (pool, spec) = send_spec(&request)?;
        self.transfers.refuse_more(None)?;
        let open = self.pool(&pool)?;
        let (begun, begins) = oneshot::channel();
        let (give, come) = mpsc::channel(FRAMES_WAITING);
        let ended =
            tokio::spawn(
                async move { open.call(move |engine| send(engine, spec, begun, give)).await },
            );
        let Ok(begun) = begins.await else {
            return Err(match ended.await {
                Ok(Err(error)) => error,
                _ => ApiError::new(ErrorKind::Internal, "the stream ended before it started"),
            });
        };
        let session = session_name();
        let send = Outgoing {
            about: About::new(&pool, &request.snapshot),
            ended_early: Notify::new(),
            is_taken: AtomicBool::new(false),
            sent_bytes: AtomicU64::new(0),
            frames: Mutex::new(Frames { come, next: None, ended }),
        };
        let listed = Listed(Arc::new(send));
        self.transfers.sends.lock().sessions.insert(session.clone(), listed);
        Ok(SendStarted {
            session,
            guid: begun.guid.to_string(),
            from_guid: begun.from.map(|from| from.to_string()),
            first_byte: begun.first_byte,
            size_bytes: begun.size_bytes,
            estimate_bytes: begun.estimate_bytes,
        })
    }
}

impl Manager {
    /// Returns the stream of a session, to one caller only.
    pub(crate) fn take_send(&self, session: String) -> Result<Box<dyn SendStream>, ApiError> {
        let send = self.transfers.sends.lock().find(&session)?;
        if send.is_taken.swap(true, Ordering::AcqRel) {
            let message = format!("the stream of session {session} is being fetched already");
            return Err(ApiError::new(ErrorKind::Busy, message)
                .with_action("start another session; a stream can be fetched once"));
        }
        Ok(Box::new(Taken { transfers: Arc::clone(&self.transfers), session }))
    }

    /// Returns the next bytes of a stream for another server, at most as many as one call accepts:
    /// empty if none arrived for [`PART_WAIT`], `None` at the end of the stream.
    pub(crate) async fn next_part(&self, session: &str) -> Result<Option<Bytes>, ApiError> {
        let send = self.transfers.sends.lock().find(session)?;
        let _using = send.about.used.begin();
        let mut frames = send.frames.lock().await;
        let mut part = match frames.next.take() {
            Some(part) => part,
            None => {
                let next = self.transfers.next_frame(session, &send, &mut frames);
                match tokio::time::timeout(PART_WAIT, next).await {
                    Err(_) => return Ok(Some(Bytes::new())),
                    Ok(part) => match part? {
                        Some(part) => part,
                        None => return Ok(None),
                    },
                }
            }
        };
        if part.len() > REQUEST_BYTES_MAX {
            // A frame with large records may exceed the size limit of one part.
            frames.next = Some(part.split_off(REQUEST_BYTES_MAX));
            return Ok(Some(part.into()));
        }
        while let Ok(frame) = frames.come.try_recv() {
            if part.len() + frame.len() > REQUEST_BYTES_MAX {
                frames.next = Some(frame);
                break;
            }
            part.extend(frame);
        }
        Ok(Some(part.into()))
    }
}

impl Handle<ShowSend> for Manager {
    /// Shows the progress of a session.
    ///
    /// # Errors
    /// The error that ended the stream of the session; the server keeps it for a while.
    async fn handle(&self, call: ShowSend) -> Result<SendProgress, ApiError> {
        let session = &call.session;
        let send = self.transfers.sends.lock().find(session)?;
        Ok(SendProgress { sent_bytes: send.sent_bytes.load(Ordering::Relaxed) })
    }
}

impl Manager {
    pub(crate) fn stop_send(&self, session: String) -> Result<Removed, ApiError> {
        match self.transfers.sends.lock().sessions.remove(&session) {
            Some(_) => Ok(Removed { outcome: Outcome::Removed, name: session }),
            None => Err(over(&session)),
        }
    }
}

impl Handle<SendStop> for Manager {
    /// Ends a session before the end of its stream.
    async fn handle(&self, call: SendStop) -> Result<Removed, ApiError> {
        self.stop_send(call.session)
    }
}

impl Handle<ListStreams> for Manager {
    /// Lists the running streams, the oldest first.
    async fn handle(&self, _call: ListStreams) -> Result<StreamList, ApiError> {
        Ok(self.transfers.list())
    }
}

impl Handle<StreamCancel> for Manager {
    /// Cancels a stream. The received part of a stream is kept, so that it can be resumed.
    ///
    /// # Errors
    /// `NotFound` for a stream that has ended; `Permission` for a stream of another caller, except
    /// for admins.
    async fn handle(&self, call: StreamCancel) -> Result<Removed, ApiError> {
        self.transfers.cancel(call).await
    }

    async fn authorize(&self, call: &StreamCancel, scope: &Scope) -> Result<(), ApiError> {
        lookup::stream(self, call, scope).await
    }

    fn about(&self, call: &StreamCancel) -> String {
        self.transfers.name_of(call.id)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn idle_sent_stream_ends_after_two_minutes() {
        let transfers = Transfers::default();
        let (give, come) = mpsc::channel(FRAMES_WAITING);
        let ended = tokio::spawn(async { Ok(()) });
        let send = Arc::new(Outgoing {
            about: About::new("tank", "tank/v@s"),
            ended_early: Notify::new(),
            is_taken: AtomicBool::new(false),
            sent_bytes: AtomicU64::new(0),
            frames: Mutex::new(Frames { come, next: None, ended }),
        });
        let listed = Listed(Arc::clone(&send));
        transfers.sends.lock().sessions.insert("session".to_owned(), listed);
        let using = send.about.used.begin();
        transfers.end_idle_at(Instant::now() + Duration::from_mins(2));
        assert_eq!(transfers.sends.lock().len(), 1, "a part is being asked for");
        drop(using);
        let used = *send.about.used.at.lock();
        drop(send);
        transfers.end_idle_at(used + Duration::from_secs(119));
        assert_eq!(transfers.sends.lock().len(), 1);
        transfers.end_idle_at(used + Duration::from_mins(2));
        assert_eq!(transfers.sends.lock().len(), 0);
        assert!(give.is_closed(), "the engine makes no further frame");
    }
}

//! Calls that send streams. A session passes frames from the engine to the receiver of the stream.
//!
//! weir-dataset creates the streams, weir-api transports them over the network.
//!
//! Invariants:
//! - at most a few frames wait in memory: a slow receiver blocks the engine;
//! - a frame is passed from the engine to the socket without a copy;
//! - a session counts against the limits, and is listed, from the start of its call to its end;
//! - a session ends with its stream, when its receiver closes the connection, or when its receiver
//!   requests no part for [`SEND_IDLE`].

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
use crate::state::sends::{Begun, FRAMES_WAITING, Frames, Listed, Outgoing, id, send};
use crate::state::server::Manager;
use crate::state::stream_session::{About, over};
use crate::state::transfers::{Transfers, session_name};

/// Time that a replication run waits for the next part of its stream before it gets an empty part.
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

/// A session whose stream a client downloads. Dropping the value ends the session.
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
        // Does nothing for a session that completed, because it is no longer in the table.
        self.transfers.sends.lock().sessions.remove(&self.session);
    }
}

/// A session whose `SendStart` call has not returned. Dropping the value ends the session.
struct Starting<'t> {
    transfers: &'t Transfers,
    session: Option<String>,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.transfers.sends.lock().sessions.remove(&session);
        }
    }
}

impl Transfers {
    /// Adds a session that sends to the table, and waits until the engine has estimated its stream.
    /// The session is added first, because the estimate reads the disks: meanwhile the session must
    /// count against the limits and be listed.
    async fn start_send(
        &self,
        about: About,
        engine: impl FnOnce() -> (oneshot::Receiver<Begun>, Frames),
    ) -> Result<(String, Begun), ApiError> {
        self.refuse_more(None)?;
        let (begins, frames) = engine();
        let send = Arc::new(Outgoing {
            about,
            ended_early: Notify::new(),
            is_taken: AtomicBool::new(false),
            sent_bytes: AtomicU64::new(0),
            frames: Mutex::new(frames),
        });
        let session = session_name();
        self.sends.lock().sessions.insert(session.clone(), Listed(Arc::clone(&send)));
        let mut starting = Starting { transfers: self, session: Some(session.clone()) };
        let _using = send.about.used.begin();
        let Ok(begun) = begins.await else {
            let mut frames = send.frames.lock().await;
            return Err(match (&mut frames.ended).await {
                Ok(Err(error)) => error,
                _ => ApiError::new(ErrorKind::Internal, "the stream ended before it started"),
            });
        };
        // If an administrator cancelled the stream during the estimate, `find` returns an error.
        self.sends.lock().find(&session)?;
        starting.session = None;
        Ok((session, begun))
    }

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
        let open = self.pool(&pool)?;
        let engine = || {
            let (begun, begins) = oneshot::channel();
            let (give, come) = mpsc::channel(FRAMES_WAITING);
            let call =
                async move { open.call(move |engine| send(engine, spec, begun, give)).await };
            (begins, Frames { come, next: None, ended: tokio::spawn(call) })
        };
        let about = About::new(&pool, &request.snapshot);
        let (session, begun) = self.transfers.start_send(about, engine).await?;
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
    /// Returns the stream of a session. Only the first caller gets the stream.
    pub(crate) fn take_send(&self, session: String) -> Result<Box<dyn SendStream>, ApiError> {
        let send = self.transfers.sends.lock().find(&session)?;
        if send.is_taken.swap(true, Ordering::AcqRel) {
            let message = format!("the stream of session {session} is being fetched already");
            return Err(ApiError::new(ErrorKind::Busy, message)
                .with_action("start another session; a stream can be fetched once"));
        }
        Ok(Box::new(Taken { transfers: Arc::clone(&self.transfers), session }))
    }

    /// Returns the next bytes of a stream for another server, at most as many as one request may
    /// have: no bytes if none were ready within [`PART_WAIT`], `None` at the end of the stream.
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
            // A frame with large records may exceed the size limit of one part; keep its rest for
            // the next part.
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
    /// Shows the progress of a sending session.
    ///
    /// # Errors
    /// The error that ended the stream of the session, while the server still has that error.
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
    /// Ends a sending session before the end of its stream.
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
    /// Cancels a stream. The receiver keeps the part that it has received, so the stream can be
    /// resumed.
    ///
    /// # Errors
    /// `NotFound` for a stream that has ended; `Permission` for a stream that another caller
    /// started, except for admins.
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

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use weir_api::access::{Files, Rights};
    use weir_api::caller::{self, Caller};

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

    /// Returns an engine that begins its stream at once and creates frames until the receiver
    /// closes.
    fn endless() -> (oneshot::Receiver<Begun>, Frames) {
        let (begun, begins) = oneshot::channel();
        drop(begun.send(begun_stream()));
        let (give, come) = mpsc::channel(FRAMES_WAITING);
        let ended = tokio::spawn(async move {
            while give.send(vec![7; 256 << 10]).await.is_ok() {}
            Ok(())
        });
        (begins, Frames { come, next: None, ended })
    }

    fn begun_stream() -> Begun {
        Begun { guid: 1, from: None, first_byte: 0, size_bytes: 1 << 30, estimate_bytes: 1 << 30 }
    }

    fn user(name: &str) -> Caller {
        Caller::new(name, Rights { files: Files::Named, ..Rights::everything() })
    }

    /// Downloads a stream: requests the next part when the socket has accepted the previous part.
    async fn download(mut stream: Taken, mut socket: DuplexStream) {
        while let Ok(Some(part)) = stream.next().await {
            if socket.write_all(&part).await.is_err() {
                return;
            }
        }
    }

    // Regression: a stream counted against the limits, and was listed, only after its estimate, so
    // that concurrent calls could exceed the limits.
    #[tokio::test]
    async fn stream_is_counted_and_listed_while_it_is_estimated() {
        let transfers = Arc::new(Transfers::default());
        let start = |name: String| {
            let transfers = Arc::clone(&transfers);
            let (begun, begins) = oneshot::channel();
            let (_, come) = mpsc::channel(FRAMES_WAITING);
            let call = async move {
                let frames = || {
                    let ended = tokio::spawn(async { Ok(()) });
                    (begins, Frames { come, next: None, ended })
                };
                transfers.start_send(About::new("tank", "tank/v@s"), frames).await
            };
            (begun, tokio::spawn(caller::on_behalf_of(user(&name), call)))
        };
        let (estimates, calls): (Vec<_>, Vec<_>) =
            (0..12).map(|n| start(format!("user {}", n % 2))).unzip();
        tokio::task::yield_now().await;
        assert_eq!(transfers.list().streams.len(), 8);
        for estimate in estimates {
            drop(estimate.send(begun_stream()));
        }
        let mut begun = 0;
        for call in calls {
            match call.await.expect("no panic") {
                Ok(_) => begun += 1,
                Err(error) => assert_eq!(error.kind, ErrorKind::Busy),
            }
        }
        assert_eq!((begun, transfers.list().streams.len()), (8, 8));
        // The server lists no stream after a failed estimate, or after the caller closed the
        // connection.
        transfers.end_all();
        let (estimate, call) = start("user 0".to_owned());
        drop(estimate);
        assert!(call.await.expect("no panic").is_err());
        let (_estimate, call) = start("user 0".to_owned());
        tokio::task::yield_now().await;
        assert_eq!(transfers.list().streams.len(), 1);
        call.abort();
        assert!(call.await.is_err());
        assert_eq!(transfers.list().streams.len(), 0);
        // A stream that an administrator cancels during its estimate does not start.
        let (estimate, call) = start("user 0".to_owned());
        tokio::task::yield_now().await;
        transfers.end_sends();
        drop(estimate.send(begun_stream()));
        assert_eq!(call.await.expect("no panic").err().map(|e| e.kind), Some(ErrorKind::NotFound));
    }

    #[tokio::test]
    async fn streams_of_stalling_clients_are_listed_until_they_end() {
        let transfers = Arc::new(Transfers::default());
        let start = || {
            let transfers = &transfers;
            let begin =
                async move { transfers.start_send(About::new("tank", "tank/v@s"), endless).await };
            caller::on_behalf_of(user("hostile"), begin)
        };
        let mut clients = Vec::new();
        for _ in 0..4 {
            let (session, _) = start().await.expect("within the share");
            let (server, client) = tokio::io::duplex(64 << 10);
            let stream = Taken { transfers: Arc::clone(&transfers), session };
            clients.push((client, tokio::spawn(download(stream, server))));
        }
        assert_eq!(start().await.err().map(|error| error.kind), Some(ErrorKind::Busy));
        // Two clients read nothing. The other two read one byte a second for two minutes, too
        // little for the server to send a second part.
        let mut byte = [0; 1];
        for _ in 0..120 {
            for (client, _) in clients.iter_mut().skip(2) {
                client.read_exact(&mut byte).await.expect("the connection is open");
            }
            tokio::task::yield_now().await;
        }
        let listed = transfers.list().streams;
        assert!(listed.iter().all(|it| it.caller == "hostile" && it.moved_bytes == 256 << 10));
        let used: Vec<Instant> = {
            let sends = transfers.sends.lock();
            sends.sessions.values().map(|send| *send.0.about.used.at.lock()).collect()
        };
        let (first, last) = (used.iter().min().copied(), used.iter().max().copied());
        let (first, last) = (first.expect("four streams"), last.expect("four streams"));
        transfers.end_idle_at(first + Duration::from_secs(119));
        assert_eq!(transfers.list().streams.len(), 4);
        assert_eq!(start().await.err().map(|error| error.kind), Some(ErrorKind::Busy));
        transfers.end_idle_at(last + Duration::from_mins(2));
        assert_eq!(transfers.list().streams.len(), 0);
        start().await.expect("the share is free");
        // The downloads end when their clients close the connection.
        for (client, download) in clients {
            drop(client);
            download.await.expect("no panic");
        }
        assert_eq!(transfers.list().streams.len(), 1, "a late end removes no other stream");
    }
}

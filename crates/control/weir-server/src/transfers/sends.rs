//! Streams that are sent: sessions between the engine and whoever takes the bytes.
//!
//! Not here: the streams (weir-dataset), their way over the network (weir-api), receiving.
//!
//! Invariants:
//! - a few frames wait at most: a slow taker stops the engine;
//! - a frame is moved from the engine to the socket, not copied;
//! - a session ends with its stream, with whoever takes it, or when nobody takes anything for long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use weir_api::limits::REQUEST_BYTES_MAX;
use weir_api::stream::{Bytes, SendStream};
use weir_api::types::{
    Outcome, Removed, SendProgress, SendStart, SendStarted, Stream, StreamDirection,
};
use weir_api::{Answer, ApiError};
use weir_base::{ErrorKind, names};
use weir_dataset::{DatasetError, Engine, SendFrom, SendSpec, SnapshotId};
use weir_format::stream::ResumeToken;

use super::super::bookmarks::bookmark_id;
use super::super::control::{Manager, split};
use super::super::internal;
use super::{About, Transfers, over, session_name};

/// Frames that wait to be taken: a quarter of a MiB each, or a record more.
const FRAMES_WAITING: usize = 4;
/// Who asks for a part for another server is answered within this, with an empty one if need be.
const PART_WAIT: Duration = Duration::from_secs(5);
/// Streams that broke of which it is known why: whoever took one asks at once.
const BROKEN_KEPT: usize = 16;

/// A stream that is sent.
struct Outgoing {
    about: About,
    /// Told when the session ends before its stream.
    ended_early: Notify,
    is_taken: AtomicBool,
    sent_bytes: AtomicU64,
    frames: Mutex<Frames>,
}

struct Frames {
    come: mpsc::Receiver<Vec<u8>>,
    /// Fetched, and too much for the part before.
    next: Option<Vec<u8>>,
    ended: JoinHandle<Result<(), ApiError>>,
}

/// A session in the table; whoever waits for its frames is told when it leaves.
struct Listed(Arc<Outgoing>);

impl Drop for Listed {
    fn drop(&mut self) {
        self.0.ended_early.notify_one();
    }
}

/// Sessions that send, by name.
#[derive(Default)]
pub(super) struct Sends {
    sessions: BTreeMap<String, Listed>,
    /// Why streams broke, the newest first.
    broken: VecDeque<(String, ApiError)>,
}

impl Sends {
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions of one account.
    pub(super) fn of(&self, account: &str) -> usize {
        self.sessions.values().filter(|send| send.0.about.account == account).count()
    }

    /// Ends the sessions for which `stays` is false.
    pub(super) fn retain(&mut self, stays: impl Fn(&About) -> bool) {
        self.sessions.retain(|_, send| stays(&send.0.about));
    }

    pub(super) fn show(&self) -> Vec<Stream> {
        let show = |send: &Listed| {
            let sent_bytes = send.0.sent_bytes.load(Ordering::Relaxed);
            send.0.about.show(StreamDirection::Send, sent_bytes)
        };
        self.sessions.values().map(show).collect()
    }

    pub(super) fn end_all(&mut self) {
        self.sessions.clear();
    }

    fn find(&self, session: &str) -> Result<Arc<Outgoing>, ApiError> {
        if let Some(found) = self.sessions.get(session) {
            return Ok(Arc::clone(&found.0));
        }
        let why = self.broken.iter().find(|(name, _)| name == session);
        Err(why.map_or_else(|| over(session), |(_, why)| why.clone()))
    }

    /// Forgets a session whose stream came to an end, and keeps why that was none.
    fn end(&mut self, session: &str, done: &Result<(), ApiError>) {
        self.sessions.remove(session);
        if let Err(error) = done {
            self.broken.truncate(BROKEN_KEPT - 1);
            self.broken.push_front((session.to_owned(), error.clone()));
        }
    }
}

/// Pool, and snapshot in the pool.
fn id(full: &str) -> Result<(&str, SnapshotId), ApiError> {
    let parts = names::snapshot(full);
    let (volume, name) =
        parts.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))?;
    let (pool, own) = split(volume)?;
    Ok((pool, SnapshotId { volume: own.to_owned(), name: name.to_owned() }))
}

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
                let message = format!("{} is of another pool", request.snapshot);
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

/// What a session says of itself at its start.
struct Begun {
    guid: u64,
    from: Option<u64>,
    first_byte: u64,
    size_bytes: u64,
    estimate_bytes: u64,
}

async fn send(
    engine: Arc<Engine>,
    spec: SendSpec,
    begun: oneshot::Sender<Begun>,
    frames: mpsc::Sender<Vec<u8>>,
) -> Result<(), DatasetError> {
    let sending = engine.prepare_send(&spec)?;
    let estimate_bytes = engine.estimate_send(&sending).await?;
    let begin = sending.begin();
    let about = Begun {
        guid: begin.to,
        from: begin.from,
        first_byte: begin.first_record * begin.record_size.bytes() as u64,
        size_bytes: begin.size_bytes,
        estimate_bytes,
    };
    let given_up = || {
        let SnapshotId { volume, name } = &spec.snapshot;
        DatasetError::GivenUp { name: format!("{}/{volume}@{name}", engine.pool().name()) }
    };
    begun.send(about).map_err(|_| given_up())?;
    let put = async |frame| frames.send(frame).await.map_err(|_| given_up());
    engine.send(&sending, put).await.map(drop)
}

/// A session that somebody takes the stream of; ends with it.
struct Taken {
    transfers: Arc<Transfers>,
    session: String,
}

impl SendStream for Taken {
    fn next(&mut self) -> Answer<'_, Option<Bytes>> {
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
        // One that came to its end is gone already.
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
        let done = ended.unwrap_or_else(|error| Err(internal("the stream broke", &error)));
        self.sends.lock().end(session, &done);
        done.map(|()| None)
    }
}

impl Manager {
    pub(crate) async fn start_send(&self, request: SendStart) -> Result<SendStarted, ApiError> {
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
                _ => ApiError::new(ErrorKind::Internal, "the stream ended before it began"),
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

    /// The stream of a session, for one taker.
    pub(crate) fn take_send(&self, session: String) -> Result<Box<dyn SendStream>, ApiError> {
        let send = self.transfers.sends.lock().find(&session)?;
        if send.is_taken.swap(true, Ordering::AcqRel) {
            let message = format!("the stream of session {session} is being fetched already");
            return Err(ApiError::new(ErrorKind::Busy, message)
                .with_action("begin another session; a stream is fetched once"));
        }
        Ok(Box::new(Taken { transfers: Arc::clone(&self.transfers), session }))
    }

    /// The next bytes for another server, at most what one call takes: empty where nothing came for
    /// a while, `None` at the stream's end.
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
            // A frame of large records: whoever takes it bounds what comes at once.
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

    pub(crate) fn show_send(&self, session: &str) -> Result<SendProgress, ApiError> {
        let send = self.transfers.sends.lock().find(session)?;
        Ok(SendProgress { sent_bytes: send.sent_bytes.load(Ordering::Relaxed) })
    }

    pub(crate) fn stop_send(&self, session: String) -> Result<Removed, ApiError> {
        match self.transfers.sends.lock().sessions.remove(&session) {
            Some(_) => Ok(Removed { outcome: Outcome::Removed, name: session }),
            None => Err(over(&session)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn sent_stream_whose_caller_takes_no_part_for_two_minutes_is_ended() {
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

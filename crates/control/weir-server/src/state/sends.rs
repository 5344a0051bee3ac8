//! Sessions that send streams: frames of a stream wait in memory between the engine and the caller.
//!
//! The calls are in `send_calls`, the streams are in weir-dataset.
//!
//! Invariant: a session holds at most a few frames, whatever the caller of the session does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use weir_api::ApiError;
use weir_api::types::{Stream, StreamDirection};
use weir_base::{ErrorKind, names};
use weir_dataset::{DatasetError, Engine, SendSpec, SnapshotId};

use crate::answer::names::split;
use crate::state::stream_session::{About, over};

/// Maximum number of frames of one session that wait to be sent. A frame has up to 256 KiB and one
/// more record.
pub(crate) const FRAMES_WAITING: usize = 4;

/// Maximum number of errors of broken streams in memory. A caller asks for the error of its stream
/// as soon as the stream breaks.
const BROKEN_KEPT: usize = 16;

/// A stream that is being sent.
pub(crate) struct Outgoing {
    pub(crate) about: About,
    /// Notified when the session is removed from the table; a stream that still runs then ends.
    pub(crate) ended_early: Notify,
    pub(crate) is_taken: AtomicBool,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) frames: Mutex<Frames>,
}

pub(crate) struct Frames {
    pub(crate) come: mpsc::Receiver<Vec<u8>>,
    /// Frame data that did not fit in the previous part of the stream.
    pub(crate) next: Option<Vec<u8>>,
    pub(crate) ended: JoinHandle<Result<(), ApiError>>,
}

/// A session in the table; when it is removed, the task that waits for its frames is notified.
pub(crate) struct Listed(pub(crate) Arc<Outgoing>);

impl Drop for Listed {
    fn drop(&mut self) {
        self.0.ended_early.notify_one();
    }
}

/// Sending sessions, by session id.
#[derive(Default)]
pub(crate) struct Sends {
    pub(crate) sessions: BTreeMap<String, Listed>,
    /// Errors of broken streams, the newest first.
    broken: VecDeque<(String, ApiError)>,
}

impl Sends {
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the number of sessions of one account.
    pub(crate) fn of(&self, account: &str) -> usize {
        self.sessions.values().filter(|send| send.0.about.account == account).count()
    }

    /// Ends the sessions for which `stays` is false.
    pub(crate) fn retain(&mut self, stays: impl Fn(&About) -> bool) {
        self.sessions.retain(|_, send| stays(&send.0.about));
    }

    pub(crate) fn show(&self) -> Vec<Stream> {
        let show = |send: &Listed| {
            let sent_bytes = send.0.sent_bytes.load(Ordering::Relaxed);
            send.0.about.show(StreamDirection::Send, sent_bytes)
        };
        self.sessions.values().map(show).collect()
    }

    pub(crate) fn end_all(&mut self) {
        self.sessions.clear();
    }

    pub(crate) fn find(&self, session: &str) -> Result<Arc<Outgoing>, ApiError> {
        if let Some(found) = self.sessions.get(session) {
            return Ok(Arc::clone(&found.0));
        }
        let why = self.broken.iter().find(|(name, _)| name == session);
        Err(why.map_or_else(|| over(session), |(_, why)| why.clone()))
    }

    /// Removes a session whose stream has ended, and keeps the error of a broken stream.
    pub(crate) fn end(&mut self, session: &str, done: &Result<(), ApiError>) {
        self.sessions.remove(session);
        if let Err(error) = done {
            self.broken.truncate(BROKEN_KEPT - 1);
            self.broken.push_front((session.to_owned(), error.clone()));
        }
    }
}

/// Splits the full name of a snapshot into its pool and the snapshot's id in the pool.
pub(crate) fn id(full: &str) -> Result<(&str, SnapshotId), ApiError> {
    let parts = names::snapshot(full);
    let (volume, name) =
        parts.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))?;
    let (pool, own) = split(volume)?;
    Ok((pool, SnapshotId::new(own, name)))
}

/// Properties of a stream, known at its start.
pub(crate) struct Begun {
    pub(crate) guid: u64,
    pub(crate) from: Option<u64>,
    pub(crate) first_byte: u64,
    pub(crate) size_bytes: u64,
    pub(crate) estimate_bytes: u64,
}

pub(crate) async fn send(
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

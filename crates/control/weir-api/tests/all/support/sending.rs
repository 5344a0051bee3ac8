//! Streams that the fake server sends: complete, slow and broken streams.
//!
//! The other responses of the fake server are in `answers`.
//!
//! Invariant: the name of a snapshot selects the behaviour of its stream: `damaged` breaks after
//! the first part, `slow` takes long for each part, `stuck` reports more bytes than ever arrive.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_api::stream::Bytes;
use weir_api::types::{SendProgress, SendStarted};
use weir_api::{ApiError, Pending, SendStream};
use weir_base::ErrorKind;

use super::state::{State, not_found};

/// State of a session that sends a stream.
pub(crate) struct Session {
    snapshot: String,
    is_taken: bool,
    told: Result<SendProgress, ApiError>,
}

struct Stream {
    state: Arc<Mutex<State>>,
    session: String,
    parts: VecDeque<Result<Vec<u8>, ApiError>>,
    wait: Duration,
    is_stuck: bool,
}

impl SendStream for Stream {
    fn next(&mut self) -> Pending<'_, Option<Bytes>> {
        Box::pin(async move {
            tokio::time::sleep(self.wait).await;
            if self.is_stuck && self.parts.is_empty() {
                std::future::pending::<()>().await;
            }
            let next = self.parts.pop_front();
            let mut state = self.state.lock().unwrap();
            let known = state.sends.get_mut(&self.session);
            let known = known.ok_or_else(|| not_found("session", &self.session))?;
            match next {
                None => Ok(None),
                Some(Err(error)) => {
                    known.told = Err(error.clone());
                    Err(error)
                }
                Some(Ok(part)) => {
                    if let Ok(told) = &mut known.told {
                        told.sent_bytes += part.len() as u64 + u64::from(self.is_stuck);
                    }
                    Ok(Some(part.into()))
                }
            }
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap();
        if state.sends.get(&self.session).is_some_and(|known| known.told.is_ok()) {
            state.sends.remove(&self.session);
        }
    }
}

/// Starts a session.
pub(crate) fn start(state: &mut State, snapshot: String, is_difference: bool) -> SendStarted {
    let session = format!("s{}", state.sends.len());
    let told = Ok(SendProgress { sent_bytes: 0 });
    state.sends.insert(session.clone(), Session { snapshot, is_taken: false, told });
    SendStarted {
        session,
        guid: "7".into(),
        from_guid: is_difference.then(|| "6".into()),
        first_byte: 0,
        size_bytes: 1 << 30,
        estimate_bytes: 1 << 20,
    }
}

/// Returns the stream of a session, and marks it as taken.
pub(crate) fn take(
    shared: &Arc<Mutex<State>>,
    session: String,
) -> Result<Box<dyn SendStream>, ApiError> {
    let mut state = shared.lock().unwrap();
    let known = state.sends.get_mut(&session).ok_or_else(|| not_found("session", &session))?;
    if std::mem::replace(&mut known.is_taken, true) {
        return Err(ApiError::new(ErrorKind::Busy, "somebody takes it"));
    }
    let own = known.snapshot.split_once('@').map_or("", |(_, own)| own).to_owned();
    let mut parts = VecDeque::from([Ok(b"stream".to_vec()), Ok(vec![0xff; 3 << 20])]);
    if own == "damaged" {
        parts.truncate(1);
        parts.push_back(Err(ApiError::new(ErrorKind::Data, "block 7 is damaged")));
    }
    let wait = if own == "slow" { Duration::from_secs(100) } else { Duration::ZERO };
    let state = Arc::clone(shared);
    Ok(Box::new(Stream { state, session, parts, wait, is_stuck: own == "stuck" }))
}

/// Returns the progress of a session.
pub(crate) fn show(state: &State, session: &str) -> Result<SendProgress, ApiError> {
    let known = state.sends.get(session).ok_or_else(|| not_found("session", session))?;
    known.told.clone()
}

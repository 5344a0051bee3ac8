//! `weir stream`: the streams that the server currently sends or receives.
//!
//! Not here: the verbs that send and receive (transfer).
//!
//! Invariant: the caller of a cancelled stream gets an error; the server logs none.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{ListStreams, Stream, StreamCancel};

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::output;
use crate::cli::base::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum StreamVerb {
    /// List active streams: caller, bytes so far, time without progress
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Cancel a stream; a received stream can be resumed with the token of `weir receive`
    Cancel {
        /// Number of the stream, as `weir stream list` prints it
        id: u64,
    },
}

pub(crate) fn run(verb: &StreamVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        StreamVerb::List { list } => self::list(session, list),
        StreamVerb::Cancel { id } => {
            let id = *id;
            let ended = session.call(StreamCancel { id })?;
            session.say(&format!("stream {id} of {}: cancelled", ended.name));
            session.print(&ended, |_| String::new())
        }
    }
}

fn list(session: &Session, list: &ListArgs) -> Result<(), ApiError> {
    let titles = [">ID", "DIRECTION", "NAME", "CALLER", "BEGUN", ">MOVED", ">IDLE"];
    let Some(list) = list.list(&titles, &[])? else { return Ok(()) };
    let answer = session.call(ListStreams {})?;
    if answer.streams.is_empty() {
        session.say("there are no streams");
    }
    let row = |stream: &Stream| {
        [
            Cell::number(stream.id),
            stream.direction.name().into(),
            stream.name.clone().into(),
            stream.caller.clone().into(),
            Cell::date(stream.begun_unix_ms),
            Cell::Size(stream.moved_bytes),
            Cell::Keyed(output::duration(stream.idle_ms), stream.idle_ms as f64),
        ]
    };
    session.print(&answer, |all| list.table(all.streams.iter().map(row)))
}

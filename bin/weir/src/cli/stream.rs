//! `weir stream`: the active streams.
//!
//! Not here: sending and receiving (transfer).
//!
//! Invariant: the server logs no error for a cancelled stream; the caller of the stream gets one.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{ListStreams, Stream, StreamCancel};
use weir_base::size::Human;

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum StreamVerb {
    /// List active streams: caller, bytes so far, time without progress
    List {
        /// Print for scripts: no header, tab-separated columns
        #[arg(short = 'H')]
        script: bool,
    },
    /// Cancel a stream; a received stream can be resumed with the token of `weir receive`
    Cancel {
        /// Number of the stream, as `weir stream list` prints it
        id: u64,
    },
}

pub(crate) fn run(verb: &StreamVerb, session: &Session) -> Result<(), ApiError> {
    match *verb {
        StreamVerb::List { script } => list(session, Style::new(script)),
        StreamVerb::Cancel { id } => {
            let ended = session.call(StreamCancel { id })?;
            session.say(&format!("stream {id} of {}: cancelled", ended.name));
            session.print(&ended, |_| String::new())
        }
    }
}

fn list(session: &Session, style: Style) -> Result<(), ApiError> {
    let answer = session.call(ListStreams {})?;
    if answer.streams.is_empty() {
        session.say("there are no streams");
    }
    let row = |stream: &Stream| {
        [
            stream.id.to_string(),
            stream.direction.name().to_owned(),
            stream.name.clone(),
            stream.caller.clone(),
            output::date(stream.begun_unix_ms),
            Human(stream.moved_bytes).to_string(),
            output::duration(stream.idle_ms),
        ]
    };
    session.print(&answer, |all| {
        let rows: Vec<_> = all.streams.iter().map(row).collect();
        let header = [">ID", "DIRECTION", "NAME", "CALLER", "BEGUN", ">MOVED", ">IDLE"];
        if rows.is_empty() { String::new() } else { output::table(header, &rows, style) }
    })
}

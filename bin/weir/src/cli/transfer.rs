//! `weir send` and `weir receive`: snapshots as streams on standard output and standard input.
//!
//! Not here: the format of streams; replication between servers (replicate).
//!
//! Invariants:
//! - a stream is never written to a terminal or read from a terminal;
//! - all messages go to standard error.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use weir_api::ApiError;
use weir_api::types::{
    ReceiveAbort, ReceiveDone, ReceiveFinish, ReceiveStart, ReceiveStop, Request as _, SendStart,
    SendStarted, SendStop, ShowReceive,
};
use weir_base::size::Human;
use weir_base::{ErrorKind, names};

use crate::cli::base::remote::Remote;
use crate::cli::base::session::Session;
use crate::cli::base::typed;

/// Number of bytes of the stream in one call: the maximum that a call accepts.
const PART_BYTES: usize = weir_api::limits::REQUEST_BYTES_MAX;

/// Number of parts of the stream that the command reads while the server processes another part.
const PARTS_AHEAD: usize = 2;

/// Maximum time between two parts. If standard input has no data for this time, the command sends
/// an empty part to show the server that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// Full name of the snapshot, such as tank/vm1@tuesday
    name: String,
    /// Send only the changes since this older snapshot, which the receiver has: @monday, a bookmark
    /// of it such as '#monday', or the full name of the origin of a clone
    #[arg(short = 'i', long = "from", value_name = "SNAPSHOT")]
    from: Option<String>,
    /// Resume an interrupted stream with the token that `weir receive --token` prints
    #[arg(short, long, value_name = "TOKEN", conflicts_with = "from")]
    token: Option<String>,
    /// Send nothing; print the estimated size
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print the snapshot and the number of bytes sent
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of the command line")]
pub(crate) struct ReceiveArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// Full name of the volume, such as tank/copy; a full stream creates it, an incremental stream
    /// updates it
    volume: String,
    /// If the volume was changed since the snapshot on which the stream is based, roll it back
    /// first; newer snapshots are destroyed
    #[arg(short = 'F', long)]
    rollback: bool,
    /// Change nothing; read and check the stream, and print the expected result
    #[arg(short = 'n', long, conflicts_with_all = ["token", "abort"])]
    dry_run: bool,
    /// Print the token with which `weir send` resumes an interrupted stream
    #[arg(long, conflicts_with_all = ["rollback", "abort"])]
    token: bool,
    /// Abort an interrupted stream: an existing volume returns to its state before the stream, a
    /// new one is deleted
    #[arg(long, conflicts_with = "rollback")]
    abort: bool,
}

/// Result of a send.
#[derive(Serialize)]
struct SendDone {
    snapshot: String,
    guid: String,
    from_guid: Option<String>,
    sent_bytes: u64,
}

/// Result of a dry run of `weir send`.
#[derive(Serialize)]
struct WouldSend {
    snapshot: String,
    estimate_bytes: u64,
}

fn invalid(message: &str, action: &str) -> ApiError {
    ApiError::new(ErrorKind::Invalid, message).with_action(action)
}

fn unavailable(what: &str, error: &io::Error) -> ApiError {
    ApiError::new(ErrorKind::Unavailable, format!("{what}: {error}"))
}

/// Returns the full name of the older snapshot or bookmark. `@monday` and `#monday` belong to the
/// volume whose snapshot is sent.
fn full_from(name: &str, from: &str) -> Result<String, ApiError> {
    if !from.starts_with(['@', '#']) {
        return Ok(from.to_owned());
    }
    let parts = names::snapshot(name);
    let (volume, _) =
        parts.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))?;
    Ok(format!("{volume}{from}"))
}

/// Rejects the name of a volume in the place of a snapshot. The error names the snapshots of the
/// volume.
fn check_sent(name: &str, session: &Session) -> Result<(), ApiError> {
    if names::volume(name).is_err() {
        return Ok(());
    }
    let snapshots = session.snapshots_of(name);
    let Some(newest) = snapshots.last() else {
        let action = format!("weir snapshot create {name}@NAME");
        return Err(invalid(&format!("{name} is a volume without snapshots"), &action));
    };
    let own: Vec<&str> = snapshots.iter().filter_map(|full| full.get(name.len()..)).collect();
    let message = format!("{name} is a volume; its snapshots are {}", own.join(", "));
    let line = typed::line_with(name, newest).unwrap_or_default();
    Err(invalid(&message, &line))
}

/// Describes the result of a receive or of its dry run.
fn told(done: &ReceiveDone) -> String {
    let ReceiveDone { snapshot, received_bytes, data_bytes, hole_bytes, .. } = done;
    if !done.dry_run {
        return format!("received {snapshot}: {}", Human(*received_bytes));
    }
    let volume = snapshot.split('@').next().unwrap_or_default();
    let first = match (done.is_new, done.rolled_back) {
        (true, _) => format!("would create volume {volume} and receive {snapshot}"),
        (false, true) => {
            format!("would roll {volume} back, destroy newer snapshots, and receive {snapshot}")
        }
        (false, false) => format!("would receive {snapshot}"),
    };
    let (data, holes) = (Human(*data_bytes), Human(*hole_bytes));
    format!("{first}: {data} of data, {holes} of holes; the stream is intact")
}

fn bar(session: &Session, total: Option<u64>) -> ProgressBar {
    if !session.is_watched() {
        return ProgressBar::hidden();
    }
    let template = match total {
        Some(_) => "{bytes} of about {total_bytes}, {bytes_per_sec}, {eta} left",
        None => "{bytes}, {bytes_per_sec}",
    };
    let style = ProgressStyle::with_template(template).expect("a template that is tested");
    ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_style(style)
}

pub(crate) fn send(arguments: SendArgs, session: &Session) -> Result<(), ApiError> {
    let SendArgs { name, from, token, dry_run, verbose, .. } = arguments;
    check_sent(&name, session)?;
    let from = from.map(|from| full_from(&name, &from)).transpose()?;
    let request = SendStart { snapshot: name.clone(), from, token };
    request.check()?;
    if !dry_run && io::stdout().is_terminal() {
        return Err(invalid(
            "a stream cannot be written to a terminal",
            "redirect it to a file (> FILE), or pipe it to 'weir receive'",
        ));
    }
    let started = session.call(request)?;
    if dry_run {
        session.call(SendStop { session: started.session.clone() })?;
        let would = WouldSend { snapshot: name, estimate_bytes: started.estimate_bytes };
        return session.print(&would, |would| {
            format!("would send {}: about {}\n", would.snapshot, Human(would.estimate_bytes))
        });
    }
    let SendStarted { guid, from_guid, estimate_bytes, .. } = started;
    let bar = bar(session, Some(estimate_bytes));
    let mut out = io::stdout().lock();
    let mut sent_bytes = 0;
    let mut stream = session.wait(session.client().send_stream(started.session.clone()))?;
    while let Some(part) = session.wait(stream.next())? {
        if let Err(error) = out.write_all(&part) {
            drop(session.call(SendStop { session: started.session.clone() }));
            return Err(unavailable("the stream cannot be written", &error));
        }
        sent_bytes += part.len() as u64;
        bar.inc(part.len() as u64);
    }
    out.flush().map_err(|error| unavailable("the stream cannot be written", &error))?;
    bar.finish_and_clear();
    if verbose {
        session.say(&format!("sent {name}: {}", Human(sent_bytes)));
    }
    // Standard output has the stream, so print the result to standard error.
    session.print_aside(&SendDone { snapshot: name, guid, from_guid, sent_bytes })
}

pub(crate) fn receive(arguments: ReceiveArgs, session: &Session) -> Result<(), ApiError> {
    let ReceiveArgs { volume, rollback, dry_run, token, abort, .. } = arguments;
    let request = ReceiveStart { volume: volume.clone(), roll_back: rollback, dry_run };
    request.check()?;
    if token {
        let token = session.call(ShowReceive { volume })?;
        return session.print(&token, |told| format!("{}\n", told.token));
    }
    if abort {
        let gone = session.call(ReceiveAbort { volume })?;
        session.say(&format!("the stream into {} was aborted", gone.name));
        return session.print(&gone, |_| String::new());
    }
    if io::stdin().is_terminal() {
        return Err(invalid(
            "a stream cannot be read from a terminal",
            "redirect it from a file (< FILE), or pipe it from 'weir send'",
        ));
    }
    let started = session.call(request)?;
    let given = give(session, &started.session);
    let done = match given {
        Ok(()) => session.call(ReceiveFinish { session: started.session })?,
        Err(Given::Server(error)) => return Err(error),
        Err(Given::Input(error)) => {
            drop(session.call(ReceiveStop { session: started.session }));
            return Err(unavailable("the stream cannot be read", &error));
        }
    };
    session.say(&told(&done));
    session.print(&done, |_| String::new())
}

/// Reason why the command did not send standard input to the server completely.
enum Given {
    Server(ApiError),
    Input(io::Error),
}

/// Sends standard input to a receive of the server, until the input ends.
fn give(session: &Session, to: &str) -> Result<(), Given> {
    let (read, parts) = mpsc::sync_channel(PARTS_AHEAD);
    // Standard input may have no data for a long time, so a separate thread reads it and the main
    // thread can send empty parts.
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut part = Vec::with_capacity(PART_BYTES);
            let done = (&mut input).take(PART_BYTES as u64).read_to_end(&mut part);
            let last = part.is_empty() || done.is_err();
            if read.send(done.map(|_| part)).is_err() || last {
                return;
            }
        }
    });
    let bar = bar(session, None);
    loop {
        let part = match parts.recv_timeout(SIGN_OF_LIFE) {
            Ok(Ok(part)) if part.is_empty() => break,
            Ok(Ok(part)) => part,
            Ok(Err(error)) => return Err(Given::Input(error)),
            Err(mpsc::RecvTimeoutError::Timeout) => Vec::new(),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        };
        bar.inc(part.len() as u64);
        let taken = session.client().receive_part(to.to_owned(), part.into());
        session.wait(taken).map_err(Given::Server)?;
    }
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_from_name_belongs_to_the_sent_volume() {
        assert_eq!(full_from("tank/v@b", "@a").unwrap(), "tank/v@a");
        assert_eq!(full_from("tank/v@b", "#a").unwrap(), "tank/v#a");
        assert_eq!(full_from("tank/v@b", "tank/w@a").unwrap(), "tank/w@a");
        assert!(full_from("tank/v", "@a").is_err());
    }
}

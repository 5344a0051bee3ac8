//! Hostile callers of the management interface. They use TLS, most with a token of few rights.
//!
//! Not here: the threads and rounds of the callers, and clients of other protocols (hostile.rs).
//!
//! Invariant: each caller runs `openssl s_client` and does not read its output. Once the pipe is
//! full, `s_client` stops reading from the server.

use std::io::{Read as _, Write as _};
use std::process::{ChildStdin, ChildStdout, Stdio};

use weir_command::process::{Process, guarded};

use super::hostile::Held;
use super::server::Doors;

/// Number of callers of most kinds in a round. Each caller is a separate process.
pub(super) const FEW: usize = 4;
/// Number of callers of the kinds that test connection limits: more than the server allows for one
/// token.
pub(super) const MANY: usize = 18;
/// Number of source addresses that all callers share.
const ADDRESSES: u64 = 16;
/// Number of calls that one caller sends without reading a response.
const CALLS: usize = 100;

/// Returns a call with a token as the text of an HTTP request (RFC 9112 §2.1).
fn call(token: &str, method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A hostile caller that has a connection to the server.
struct Caller {
    _process: Process,
    input: ChildStdin,
    output: ChildStdout,
}

impl Caller {
    /// Connects from an address that only few callers use: connections that send nothing would
    /// otherwise fill all slots that one address may have.
    fn connect(doors: &Doors, seed: u64) -> Option<Self> {
        let mut command = guarded("openssl");
        command.args(["s_client", "-quiet", "-connect", &doors.api]);
        command.args(["-bind", &format!("127.8.0.{}:0", 1 + seed % ADDRESSES)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let process = Process::new(child);
        Some(Self { _process: process, input: input?, output: output? })
    }

    /// Reads the output of `s_client` until `found` returns a value.
    fn read<T>(&mut self, found: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let len = self.output.read(&mut part).ok().filter(|len| *len > 0)?;
            answer.extend(part.get(..len)?);
            if let Some(found) = found(&String::from_utf8_lossy(&answer)) {
                return Some(found);
            }
        }
    }
}

/// Connects, sends `text` and reads nothing.
fn send(doors: &Doors, seed: u64, text: &str) -> Option<Held> {
    let mut caller = Caller::connect(doors, seed)?;
    caller.input.write_all(text.as_bytes()).ok()?;
    Some(Box::new(caller))
}

/// Sends half of an HTTP header and stops.
pub(super) fn half(doors: &Doors, seed: u64) -> Option<Held> {
    send(doors, seed, "GET /v1/pools HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Sl")
}

/// Calls with an invalid token.
pub(super) fn guess(doors: &Doors, seed: u64) -> Option<Held> {
    send(doors, seed, &call(&format!("weir_{seed:064x}"), "GET", "/v1/pools", ""))
}

/// Requests long responses and does not read them.
pub(super) fn lists(doors: &Doors, seed: u64) -> Option<Held> {
    let paths = ["/v1/exports", "/v1/pools/soak/history", "/v1/events", "/v1/snapshots"];
    let path = paths.get(seed as usize % paths.len())?;
    send(doors, seed, &call(&doors.viewer, "GET", path, "").repeat(CALLS))
}

/// Waits for events that the scope of the token excludes.
pub(super) fn waits(doors: &Doors, seed: u64) -> Option<Held> {
    let path = "/v1/events?after=1000000000&wait_ms=30000";
    send(doors, seed, &call(&doors.viewer, "GET", path, "").repeat(CALLS))
}

/// Makes calls for which the token has no right.
pub(super) fn refused(doors: &Doors, seed: u64) -> Option<Held> {
    let body = r#"{"names":["soak/v@never"]}"#;
    send(doors, seed, &call(&doors.viewer, "POST", "/v1/snapshots", body).repeat(CALLS))
}

/// Names a FIFO as the file of a certificate.
pub(super) fn fifo(doors: &Doors, seed: u64) -> Option<Held> {
    let body = format!(
        r#"{{"volume":"soak/v","to":"https://localhost:1/back/v","every_seconds":3600,
            "ca_file":"{}","secret":"known-to-nobody"}}"#,
        doors.fifo.display()
    );
    send(doors, seed, &call(&doors.operator, "POST", "/v1/replications", &body).repeat(FEW))
}

/// Starts to send a snapshot and reads nothing of its stream.
pub(super) fn stream(doors: &Doors, seed: u64) -> Option<Held> {
    let mut caller = Caller::connect(doors, seed)?;
    let begin = call(&doors.operator, "POST", "/v1/sends", r#"{"snapshot":"soak/v@stream"}"#);
    caller.input.write_all(begin.as_bytes()).ok()?;
    let session = caller.read(|answer| {
        let (session, _) = answer.split_once(r#""session":""#)?.1.split_once('"')?;
        Some(session.to_owned())
    })?;
    let path = format!("/v1/sends/{session}/stream");
    caller.input.write_all(call(&doors.operator, "POST", &path, "").as_bytes()).ok()?;
    Some(Box::new(caller))
}

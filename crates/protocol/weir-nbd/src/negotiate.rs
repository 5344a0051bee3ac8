//! State machine of the handshake phase: takes the received bytes and returns the bytes to send.
//! Sockets and time limits are in `session`, requests in `request`. If TLS is not offered, STARTTLS
//! gets ERR_UNSUP, and the client decides whether to continue.
//!
//! Spec: NetworkBlockDevice `doc/proto.md`, "Handshake phase", "Option types", "Metadata querying".
//!
//! Invariants:
//! - one [`Negotiation::feed`] takes at most one message and appends at most one reply, or about
//!   [`LIST_PART_BYTES`] of a LIST reply, so that no client makes the server hold more bytes;
//! - malformed option data gets an error reply; a message that is no option ends the connection;
//! - if TLS is required (FORCEDTLS), only STARTTLS and ABORT work before it; bytes that follow
//!   STARTTLS in the same receive end the connection (CVE-2021-3716).

use std::net::IpAddr;
use std::sync::Arc;

use weir_base::ErrorKind;
use weir_block::{Export, ExportError, Exports};

use crate::error::NbdError;
use crate::limits::{BLOCK_BYTES_MIN, LIST_PART_BYTES, OPTION_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::request::Negotiated;
use crate::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, EXPORT_NAME_PADDING_BYTES, NBD_MAGIC, OPTION_HEADER_BYTES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, Reader, STRING_BYTES_MAX, handshake, info, option,
    reply_kind, transmission,
};

/// Next action of the caller, after a call of [`Negotiation::feed`].
#[derive(Debug)]
pub enum Step {
    /// Receive more: the message is incomplete. The number is its minimum length, which can grow
    /// when more of the header is known.
    Need(usize),
    /// The message was processed; continue with the next message.
    Next,
    /// Send this part of the reply, then call again: the next call appends the next part.
    More,
    /// The negotiation is complete; the transmission phase begins with the next byte.
    Ready(Ready),
    /// Send the pending output, then run the TLS handshake from the next byte of the socket.
    StartTls,
    /// The client ended the session; send the pending output and close the connection.
    Done,
    /// Send the pending output and close the connection.
    Close(NbdError),
}

/// Result of a successful handshake.
pub struct Ready {
    /// Selected export.
    pub export: Arc<dyn Export>,
    /// Name with which the client selected the export.
    pub name: String,
    /// Negotiated parameters.
    pub negotiated: Negotiated,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready")
            .field("name", &self.name)
            .field("negotiated", &self.negotiated)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ClientFlags,
    Options,
}

/// State of TLS in the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    /// The server does not offer TLS to this client.
    NotOffered,
    /// TLS is required, and the client has not sent STARTTLS yet.
    Required,
    Agreed,
}

/// Handshake of one connection.
///
/// ```text
/// server hello   0        8        16      18
///                | NBDMAGIC | IHAVEOPT | flags |
/// client flags   | u32 |
/// option         0          8       12    16
///                | IHAVEOPT | option | len | data
/// option reply   0           8        12     16    20
///                | reply magic | option | kind | len | data
/// ```
#[derive(Debug)]
pub struct Negotiation {
    phase: Phase,
    tls: Tls,
    /// IP address of the client; `None` if the client uses a unix socket.
    from: Option<IpAddr>,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// Name of the export for which the client selected the metadata context `base:allocation`.
    allocation_of: Option<String>,
    /// Last export name of the part of a LIST reply that was sent; `None` if no LIST is in
    /// progress.
    listed: Option<String>,
}

impl Negotiation {
    /// Starts a handshake that does not offer TLS, and appends the greeting to `out`.
    pub fn new(out: &mut Vec<u8>) -> Self {
        Self::with(Tls::NotOffered, out)
    }

    /// Starts a handshake that requires STARTTLS before all other options, and appends the
    /// greeting.
    pub fn requiring_tls(out: &mut Vec<u8>) -> Self {
        Self::with(Tls::Required, out)
    }

    /// Sets the client's address, which determines the exports that the client sees. The address is
    /// `None` over a unix socket.
    #[must_use]
    pub const fn of(mut self, from: Option<IpAddr>) -> Self {
        self.from = from;
        self
    }

    /// Records the end of the TLS handshake: the next byte of the client is encrypted.
    pub fn encrypted(&mut self) {
        assert_eq!(self.tls, Tls::Required, "TLS starts once, after STARTTLS");
        self.tls = Tls::Agreed;
    }

    fn with(tls: Tls, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&NBD_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
        Self {
            phase: Phase::ClientFlags,
            tls,
            from: None,
            fixed: false,
            no_zeroes: false,
            structured: false,
            allocation_of: None,
            listed: None,
        }
    }

    /// Processes the message at the start of `input` if it is complete, and appends the reply to
    /// `out`. Returns the number of processed bytes, and the next action.
    pub fn feed(
        &mut self,
        input: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        if let Some(after) = self.listed.take() {
            let mut answer = Answer { option: option::LIST, out };
            return (0, self.list(&after, exports, &mut answer));
        }
        let mut reader = Reader::new(input);
        if self.phase == Phase::ClientFlags {
            return reader.u32().map_or((0, Step::Need(4)), |flags| (4, self.client_flags(flags)));
        }
        let (Some(magic), Some(option), Some(len)) = (reader.u64(), reader.u32(), reader.u32())
        else {
            return (0, Step::Need(OPTION_HEADER_BYTES));
        };
        if magic != OPTION_MAGIC {
            return (0, Step::Close(NbdError::OptionMagic { magic }));
        }
        if len as usize > OPTION_BYTES_MAX {
            return (0, Step::Close(NbdError::OptionTooLong { option, len }));
        }
        let used = OPTION_HEADER_BYTES + len as usize;
        let Some(data) = reader.bytes(len as usize) else {
            return (0, Step::Need(used));
        };
        if !self.fixed && option != option::EXPORT_NAME {
            return (used, Step::Close(NbdError::NotFixed { option }));
        }
        if self.tls == Tls::Required {
            return (used, start_tls(option, data, input.len() > used, out));
        }
        (used, self.option(option, data, exports, out))
    }

    fn client_flags(&mut self, flags: u32) -> Step {
        let offered = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !offered != 0 {
            return Step::Close(NbdError::ClientFlags { flags });
        }
        self.fixed = flags & u32::from(handshake::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        self.phase = Phase::Options;
        Step::Next
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Step {
        let mut answer = Answer { option, out };
        match option {
            option::EXPORT_NAME => return self.export_name(data, exports, answer.out),
            option::GO => return self.go(data, exports, &mut answer),
            option::ABORT => {
                answer.send(reply_kind::ACK, &[]);
                return Step::Done;
            }
            option::LIST if data.is_empty() => return self.list("", exports, &mut answer),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                answer.send(reply_kind::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                answer.refuse(reply_kind::ERR_INVALID, "this option takes no data");
            }
            option::INFO => {
                if self.describe(data, exports, &mut answer).is_some() {
                    answer.send(reply_kind::ACK, &[]);
                }
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(option, data, exports, &mut answer);
            }
            option::STARTTLS if self.tls == Tls::Agreed => {
                answer.refuse(reply_kind::ERR_INVALID, "TLS is already active");
            }
            option::STARTTLS => answer.refuse(reply_kind::ERR_UNSUP, "TLS is not offered"),
            _ => answer.refuse(reply_kind::ERR_UNSUP, "unknown option"),
        }
        Step::Next
    }

    /// Appends one part of the reply to LIST. The part begins with the first name after `after`.
    fn list(&mut self, after: &str, exports: &dyn Exports, answer: &mut Answer<'_>) -> Step {
        let begin = answer.out.len();
        exports.names_after(after, self.from, &mut |name| {
            let len = (name.len() as u32).to_be_bytes();
            answer.send(reply_kind::SERVER, &[&len, name.as_bytes()]);
            let is_full = answer.out.len() - begin >= LIST_PART_BYTES;
            self.listed = is_full.then(|| name.to_owned());
            !is_full
        });
        if self.listed.is_some() {
            return Step::More;
        }
        answer.send(reply_kind::ACK, &[]);
        Step::Next
    }

    fn export_name(&self, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Step {
        let shown = || String::from_utf8_lossy(data).into_owned();
        let name = match std::str::from_utf8(data) {
            Ok(name) if data.len() <= STRING_BYTES_MAX => name,
            _ => {
                let why = "not a valid name".to_owned();
                return Step::Close(NbdError::NoExport { name: shown(), why });
            }
        };
        match self.open(exports, name) {
            Ok((export, name)) => {
                let ready = self.ready(export, name);
                out.extend_from_slice(&ready.negotiated.size_bytes.to_be_bytes());
                out.extend_from_slice(&self.flags(&ready.negotiated).to_be_bytes());
                if !self.no_zeroes {
                    out.resize(out.len() + EXPORT_NAME_PADDING_BYTES, 0);
                }
                Step::Ready(ready)
            }
            Err(error) => Step::Close(NbdError::NoExport { name: shown(), why: error.to_string() }),
        }
    }

    fn go(&self, data: &[u8], exports: &dyn Exports, answer: &mut Answer<'_>) -> Step {
        match self.describe(data, exports, answer) {
            Some(ready) => {
                answer.send(reply_kind::ACK, &[]);
                Step::Ready(ready)
            }
            None => Step::Next,
        }
    }

    /// Replies to INFO or GO, except for the final ACK. Returns `None` after an error reply.
    fn describe(
        &self,
        data: &[u8],
        exports: &dyn Exports,
        answer: &mut Answer<'_>,
    ) -> Option<Ready> {
        let Some((name, wanted)) = parse_info(data) else {
            answer.refuse(reply_kind::ERR_INVALID, "malformed export information request");
            return None;
        };
        let (export, name) = match self.open(exports, name) {
            Ok(found) => found,
            Err(error) => {
                answer.refuse(refusal(error.kind()), &error.to_string());
                return None;
            }
        };
        let ready = self.ready(export, name);
        let size = ready.negotiated.size_bytes.to_be_bytes();
        let flags = self.flags(&ready.negotiated).to_be_bytes();
        answer.send(reply_kind::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        let preferred = ready.export.block_bytes_preferred();
        assert!(
            preferred.is_power_of_two()
                && (BLOCK_BYTES_MIN..=REQUEST_BYTES_MAX).contains(&preferred),
            "the protocol has no preferred size of {preferred}"
        );
        // Always send the block size: a client may rely on it without having asked for it, and a
        // client that does not know this item skips it.
        answer.send(
            reply_kind::INFO,
            &[
                &info::BLOCK_SIZE.to_be_bytes(),
                &BLOCK_BYTES_MIN.to_be_bytes(),
                &preferred.to_be_bytes(),
                &REQUEST_BYTES_MAX.to_be_bytes(),
            ],
        );
        if wanted.name {
            answer.send(reply_kind::INFO, &[&info::NAME.to_be_bytes(), ready.name.as_bytes()]);
        }
        if wanted.description {
            let mut text = ready.export.description();
            text.truncate(text.floor_char_boundary(STRING_BYTES_MAX));
            answer.send(reply_kind::INFO, &[&info::DESCRIPTION.to_be_bytes(), text.as_bytes()]);
        }
        Some(ready)
    }

    fn meta_context(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        answer: &mut Answer<'_>,
    ) {
        let list = option == option::LIST_META_CONTEXT;
        if !list {
            // A selection cancels the earlier selection, even if this selection then fails.
            self.allocation_of = None;
        }
        if !self.structured {
            let why = "metadata contexts need structured replies";
            return answer.refuse(reply_kind::ERR_INVALID, why);
        }
        let Some((name, matched)) = parse_queries(data, list) else {
            return answer.refuse(reply_kind::ERR_INVALID, "malformed metadata context request");
        };
        let name = match self.open(exports, name) {
            Ok((_, name)) => name,
            Err(error) => return answer.refuse(refusal(error.kind()), &error.to_string()),
        };
        if matched {
            let id = if list { 0 } else { BASE_ALLOCATION_ID };
            let parts: [&[u8]; 2] = [&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()];
            answer.send(reply_kind::META_CONTEXT, &parts);
            if !list {
                self.allocation_of = Some(name);
            }
        }
        answer.send(reply_kind::ACK, &[]);
    }

    /// Opens an export. The empty name means the only export that this client may open; it is an
    /// error if there is none or more than one.
    fn open(
        &self,
        exports: &dyn Exports,
        name: &str,
    ) -> Result<(Arc<dyn Export>, String), ExportError> {
        if !name.is_empty() {
            return Ok((exports.open(name, self.from)?, name.to_owned()));
        }
        let mut names = Vec::new();
        exports.names_after("", self.from, &mut |name| {
            names.push(name.to_owned());
            names.len() < 2
        });
        let why = match names.as_slice() {
            [only] => return Ok((exports.open(only, self.from)?, only.clone())),
            [] => "no default export: none is served",
            _ => "no default export: several are served, specify a name",
        };
        Err(ExportError::new(ErrorKind::NotFound, why))
    }

    fn ready(&self, export: Arc<dyn Export>, name: String) -> Ready {
        let negotiated = Negotiated {
            size_bytes: export.size_bytes(),
            read_only: export.read_only(),
            structured: self.structured,
            // Ignore a selection of `base:allocation` that was made for another export.
            block_status: self.allocation_of.as_deref() == Some(name.as_str()),
        };
        Ready { export, name, negotiated }
    }

    fn flags(&self, negotiated: &Negotiated) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::CAN_MULTI_CONN
            | transmission::SEND_CACHE;
        flags |= if negotiated.read_only {
            transmission::READ_ONLY
        } else {
            transmission::SEND_FUA
                | transmission::SEND_TRIM
                | transmission::SEND_WRITE_ZEROES
                | transmission::SEND_FAST_ZERO
        };
        if self.structured {
            flags |= transmission::SEND_DF;
        }
        flags
    }
}

/// Replies to an option before TLS. `more` is true if the client sent bytes after the option.
fn start_tls(option: u32, data: &[u8], more: bool, out: &mut Vec<u8>) -> Step {
    let mut answer = Answer { option, out };
    match option {
        option::STARTTLS if more => return Step::Close(NbdError::BytesBeforeTls),
        option::STARTTLS if data.is_empty() => {
            answer.send(reply_kind::ACK, &[]);
            return Step::StartTls;
        }
        option::STARTTLS => answer.refuse(reply_kind::ERR_INVALID, "this option takes no data"),
        option::ABORT => {
            answer.send(reply_kind::ACK, &[]);
            return Step::Done;
        }
        option::EXPORT_NAME => return Step::Close(NbdError::NotEncrypted),
        _ => answer.refuse(reply_kind::ERR_TLS_REQD, "this server accepts options only with TLS"),
    }
    Step::Next
}

/// Builds the replies to one option.
struct Answer<'a> {
    option: u32,
    out: &'a mut Vec<u8>,
}

impl Answer<'_> {
    fn send(&mut self, kind: u32, data: &[&[u8]]) {
        let len: usize = data.iter().map(|part| part.len()).sum();
        self.out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.out.extend_from_slice(&self.option.to_be_bytes());
        self.out.extend_from_slice(&kind.to_be_bytes());
        self.out.extend_from_slice(&(len as u32).to_be_bytes());
        for part in data {
            self.out.extend_from_slice(part);
        }
    }

    fn refuse(&mut self, kind: u32, why: &str) {
        let end = why.floor_char_boundary(STRING_BYTES_MAX);
        self.send(kind, &[why.as_bytes().get(..end).unwrap_or_default()]);
    }
}

/// Option error value for an error kind.
const fn refusal(kind: ErrorKind) -> u32 {
    match kind {
        ErrorKind::NotFound => reply_kind::ERR_UNKNOWN,
        ErrorKind::Invalid => reply_kind::ERR_INVALID,
        ErrorKind::Unavailable | ErrorKind::Poisoned => reply_kind::ERR_SHUTDOWN,
        ErrorKind::Exists
        | ErrorKind::Busy
        | ErrorKind::NoSpace
        | ErrorKind::ReadOnly
        | ErrorKind::Data
        | ErrorKind::Permission
        | ErrorKind::Internal => reply_kind::ERR_POLICY,
    }
}

#[derive(Default)]
struct Wanted {
    name: bool,
    description: bool,
}

/// Parses the data of INFO and GO: a name, a 16-bit count, and that many 16-bit information types.
fn parse_info(data: &[u8]) -> Option<(&str, Wanted)> {
    let mut reader = Reader::new(data);
    let name = reader.string()?;
    let count = reader.u16()?;
    let mut wanted = Wanted::default();
    for _ in 0..count {
        match reader.u16()? {
            info::NAME => wanted.name = true,
            info::DESCRIPTION => wanted.description = true,
            _ => {}
        }
    }
    reader.rest().is_empty().then_some((name, wanted))
}

/// Parses the data of LIST_META_CONTEXT and SET_META_CONTEXT: a name, a 32-bit count, and that many
/// query strings. Returns the name, and whether one of the queries matches `base:allocation`.
fn parse_queries(data: &[u8], list: bool) -> Option<(&str, bool)> {
    let mut reader = Reader::new(data);
    let name = reader.string()?;
    let count = reader.u32()?;
    // In LIST_META_CONTEXT, both an empty list of queries and the bare namespace match all
    // contexts.
    let mut matched = list && count == 0;
    for _ in 0..count {
        let query = reader.string()?;
        matched |= query == BASE_ALLOCATION || (list && query == "base:");
    }
    reader.rest().is_empty().then_some((name, matched))
}

#[cfg(test)]
mod tests;

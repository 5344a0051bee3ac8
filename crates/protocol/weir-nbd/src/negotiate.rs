//! The handshake as a state machine: bytes in, bytes to send out, no socket.
//!
//! Not here: sockets and time limits (`session`), requests (`request`).
//!
//! Spec: NetworkBlockDevice `doc/proto.md`, "Handshake phase", "Option types", "Metadata querying".
//! Where TLS is required (mode FORCEDTLS of "TLS support"), nothing but STARTTLS and ABORT is
//! answered before it. Where it is not offered, STARTTLS gets ERR_UNSUP and the client decides
//! whether to go on.
//!
//! Invariants:
//! - one call of [`Negotiation::feed`] takes at most one message and appends at most one answer, of
//!   a LIST one part of about [`LIST_PART_BYTES`]: no client makes the server hold more;
//! - an option with a wrong shape is answered, not a reason to hang up; what cannot be an option
//!   at all ends the connection;
//! - what came in clear text counts for nothing after STARTTLS: bytes behind it in one receive end
//!   the connection (CVE-2021-3716), and no option is taken before it.

use std::net::IpAddr;
use std::sync::Arc;

use weir_base::ErrorKind;
use weir_block::{Export, ExportError, Exports};

use crate::error::NbdError;
use crate::limits::{BLOCK_BYTES_MIN, LIST_PART_BYTES, OPTION_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::request::Terms;
use crate::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, EXPORT_NAME_PADDING_BYTES, NBD_MAGIC, OPTION_HEADER_BYTES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, Reader, STRING_BYTES_MAX, handshake, info, option,
    reply_kind, transmission,
};

/// What comes after a call of [`Negotiation::feed`].
#[derive(Debug)]
pub enum Step {
    /// Nothing was taken; the message is this long, as far as known.
    Need(usize),
    /// A message was taken; go on.
    Next,
    /// The answer is longer: the next call appends its next part. Send this one before.
    More,
    /// Transmission begins with the next byte.
    Ready(Ready),
    /// Send what there is; TLS begins with the next byte of the socket.
    StartTls,
    /// The client said goodbye; send what there is and close.
    Done,
    /// Send what there is and close.
    Close(NbdError),
}

/// What was agreed on.
pub struct Ready {
    /// The export.
    pub export: Arc<dyn Export>,
    /// The name it was found by.
    pub name: String,
    /// What requests and replies look like.
    pub terms: Terms,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready")
            .field("name", &self.name)
            .field("terms", &self.terms)
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
    /// No, and they need not be.
    NotOffered,
    /// Not yet.
    Required,
    Agreed,
}

/// One connection's handshake.
#[derive(Debug)]
pub struct Negotiation {
    phase: Phase,
    tls: Tls,
    /// The client's address, over TCP.
    from: Option<IpAddr>,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was selected.
    allocation_of: Option<String>,
    /// The last name that was sent of a LIST whose answer continues.
    listed: Option<String>,
}

impl Negotiation {
    /// Starts one without TLS; the greeting is appended to `out`.
    pub fn new(out: &mut Vec<u8>) -> Self {
        Self::with(Tls::NotOffered, out)
    }

    /// Starts one that takes no option before STARTTLS.
    pub fn requiring_tls(out: &mut Vec<u8>) -> Self {
        Self::with(Tls::Required, out)
    }

    /// Of a client at this address, by which exports are shown; `None` over a unix socket.
    #[must_use]
    pub const fn of(mut self, from: Option<IpAddr>) -> Self {
        self.from = from;
        self
    }

    /// The handshake of TLS is done, and the next byte is the first that was encrypted.
    pub fn encrypted(&mut self) {
        assert_eq!(self.tls, Tls::Required, "TLS begins once, and where it was asked for");
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

    /// Takes the message at the front of `input`, if it is all there; appends the answer to `out`.
    /// Returns how many bytes were taken and what comes next.
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
                answer.refuse(reply_kind::ERR_INVALID, "TLS was begun already");
            }
            option::STARTTLS => answer.refuse(reply_kind::ERR_UNSUP, "TLS is not offered"),
            _ => answer.refuse(reply_kind::ERR_UNSUP, "unknown option"),
        }
        Step::Next
    }

    /// Answers LIST from the name after `after` on, with one part of the answer.
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
                let why = "not a name".to_owned();
                return Step::Close(NbdError::NoExport { name: shown(), why });
            }
        };
        match self.open(exports, name) {
            Ok((export, name)) => {
                let ready = self.ready(export, name);
                out.extend_from_slice(&ready.terms.size_bytes.to_be_bytes());
                out.extend_from_slice(&self.flags(&ready.terms).to_be_bytes());
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

    /// Answers INFO and GO but for the final ACK; `None` where the answer was an error.
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
        let size = ready.terms.size_bytes.to_be_bytes();
        let flags = self.flags(&ready.terms).to_be_bytes();
        answer.send(reply_kind::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        let preferred = ready.export.block_bytes_preferred();
        assert!(
            preferred.is_power_of_two()
                && (BLOCK_BYTES_MIN..=REQUEST_BYTES_MAX).contains(&preferred),
            "the protocol has no preferred size of {preferred}"
        );
        // Sent whether asked for or not: a client that did not ask may still read it, and one that
        // does not know it skips it.
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
            // A selection replaces the one before, also when it fails.
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

    /// Opens an export; the empty name means the only one there is.
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
            _ => "no default export: several are served, name one",
        };
        Err(ExportError::new(ErrorKind::NotFound, why))
    }

    fn ready(&self, export: Arc<dyn Export>, name: String) -> Ready {
        let terms = Terms {
            size_bytes: export.size_bytes(),
            read_only: export.read_only(),
            structured: self.structured,
            // A selection for another export does not count.
            block_status: self.allocation_of.as_deref() == Some(name.as_str()),
        };
        Ready { export, name, terms }
    }

    fn flags(&self, terms: &Terms) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::CAN_MULTI_CONN
            | transmission::SEND_CACHE;
        flags |= if terms.read_only {
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

/// Answers an option before TLS; `more` bytes may have come behind it.
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
        _ => answer.refuse(reply_kind::ERR_TLS_REQD, "this server takes options only with TLS"),
    }
    Step::Next
}

/// Puts replies to one option together.
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

/// The option error for each kind of error.
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

/// Data of INFO and GO: name, u16 count, that many u16 information types.
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

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT: name, u32 count, that many strings. Returns the
/// name and whether `base:allocation` is among what they ask for.
fn parse_queries(data: &[u8], list: bool) -> Option<(&str, bool)> {
    let mut reader = Reader::new(data);
    let name = reader.string()?;
    let count = reader.u32()?;
    // A list without queries asks for everything; so does the bare namespace, in a list only.
    let mut matched = list && count == 0;
    for _ in 0..count {
        let query = reader.string()?;
        matched |= query == BASE_ALLOCATION || (list && query == "base:");
    }
    reader.rest().is_empty().then_some((name, matched))
}

#[cfg(test)]
mod tests;

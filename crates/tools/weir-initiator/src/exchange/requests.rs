//! Requests other than commands (NOP, text, logout), and asynchronous messages of the target.
//!
//! `discovery` interprets the text of Text Responses.
//!
//! Invariants:
//! - only one text request is in progress at a time, and the length of its response is bounded;
//! - if the target requests a logout, the initiator sends no new commands, and logs out after the
//!   commands in flight are done.
//!
//! Spec: RFC 7143 11.9 to 11.11, 11.14, 11.15, 11.18, 11.19.

use weir_iscsi_wire::pdu::{AsyncEvent, Header, NO_TAG, opcode};

use super::Exchange;
use crate::error::InitiatorError;
use crate::limits::DISCOVERY_BYTES_MAX;

/// Task tags of requests that are not commands; no slot has these numbers.
const TEXT_TAG: u32 = 0x8000_ffff;
const LOGOUT_TAG: u32 = 0x8001_ffff;
/// Event codes of asynchronous messages (11.9.1).
const REQUESTS_LOGOUT: u8 = AsyncEvent::RequestsLogout as u8;
const DROPS_CONNECTION: u8 = AsyncEvent::DropsConnection as u8;
const DROPS_SESSION: u8 = AsyncEvent::DropsSession as u8;
const NEGOTIATE: u8 = 4;
/// Maximum length of a text request, so that the request fits into one PDU of every target.
const TEXT_BYTES_MAX: usize = 512;

/// A text request in progress.
pub(super) struct TextRequest {
    gathered: Vec<u8>,
    is_done: bool,
}

/// Progress of the logout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    No,
    /// The target requested a logout, and commands are still in flight.
    Asked,
    /// The initiator sent a logout request.
    Sent {
        asked: bool,
    },
    /// The target responded to the logout request.
    Over,
}

type Taken = Result<(), InitiatorError>;

fn broken(why: &'static str) -> Taken {
    Err(InitiatorError::Protocol { why })
}

impl Exchange {
    fn request(&mut self, opcode: u8, flags: u8, itt: u32, ttt: u32, data: &[u8]) {
        let mut header = Header::new(opcode | opcode::IMMEDIATE, flags);
        header.set_word(16, itt);
        header.set_word(20, ttt);
        header.set_word(24, self.numbers.cmd_sn);
        header.set_word(28, self.numbers.exp_stat_sn);
        self.output.put(header, data, self.negotiated.digests);
    }

    /// Sends a text request; [`Self::text_answer`] later returns the response.
    ///
    /// # Panics
    /// Another text request is in progress, or the text is longer than 512 bytes.
    pub(crate) fn send_text(&mut self, text: &[u8]) {
        assert!(self.text.is_none() && text.len() <= TEXT_BYTES_MAX, "one short text at a time");
        self.text = Some(TextRequest { gathered: Vec::new(), is_done: false });
        self.request(opcode::TEXT, 0x80, TEXT_TAG, NO_TAG, text);
    }

    /// Returns the response to a text request, once it is complete.
    pub(crate) fn text_answer(&mut self) -> Option<Vec<u8>> {
        self.text.take_if(|text| text.is_done).map(|text| text.gathered)
    }

    /// Sends a logout request.
    pub(crate) fn log_out(&mut self) {
        if matches!(self.ending, Ending::No | Ending::Asked) {
            let asked = self.ending == Ending::Asked;
            self.ending = Ending::Sent { asked };
            self.request(opcode::LOGOUT, 0x80, LOGOUT_TAG, 0, &[]);
        }
    }

    /// True if the target has responded to the initiator's logout request.
    pub(crate) fn is_logged_out(&self) -> bool {
        self.ending == Ending::Over
    }

    /// Logs out if the target requested a logout and no command is in flight.
    pub(super) fn settle(&mut self) {
        if self.ending == Ending::Asked && self.under_way == self.waiting.len() {
            self.log_out();
        }
    }

    /// Processes a NOP-In (11.19). A NOP-In with a Target Transfer Tag requests a response.
    pub(super) fn take_nop_in(&mut self, header: &Header) -> Taken {
        // The initiator never sends a NOP-Out that expects a response, so a NOP-In with a task tag
        // is an error.
        if header.itt() != NO_TAG {
            return broken("a NOP-In without a matching NOP-Out");
        }
        if header.word(24) != self.numbers.exp_stat_sn {
            return broken("an unexpected StatSN");
        }
        let ttt = header.word(20);
        if ttt != NO_TAG {
            let mut answer = Header::new(opcode::NOP_OUT | opcode::IMMEDIATE, 0x80);
            answer.set(8, header.bytes::<8>(8));
            answer.set_word(16, NO_TAG);
            answer.set_word(20, ttt);
            answer.set_word(24, self.numbers.cmd_sn);
            answer.set_word(28, self.numbers.exp_stat_sn);
            self.output.put(answer, &[], self.negotiated.digests);
        }
        Ok(())
    }

    /// Processes an Asynchronous Message (11.9).
    pub(super) fn take_async(&mut self, header: &Header) -> Taken {
        if header.word(24) != self.numbers.exp_stat_sn {
            return broken("an unexpected StatSN");
        }
        self.numbers.exp_stat_sn = self.numbers.exp_stat_sn.wrapping_add(1);
        match header.byte(36) {
            REQUESTS_LOGOUT if self.ending == Ending::No => self.ending = Ending::Asked,
            DROPS_CONNECTION | DROPS_SESSION => {
                return Err(InitiatorError::Ended { why: "it closes the connection" });
            }
            // A request to renegotiate ends the session; the caller may log in again.
            NEGOTIATE => {
                return Err(InitiatorError::Ended { why: "it requests a new negotiation" });
            }
            // Ignore SCSI events, which the next command reports as well, and vendor-specific
            // events.
            _ => {}
        }
        Ok(())
    }

    /// Processes a Text Response (11.11).
    pub(super) fn take_text(&mut self, header: &Header, data: &[u8]) -> Taken {
        if header.word(24) != self.numbers.exp_stat_sn {
            return broken("an unexpected StatSN");
        }
        self.numbers.exp_stat_sn = self.numbers.exp_stat_sn.wrapping_add(1);
        let (flags, ttt) = (header.flags(), header.word(20));
        let (is_final, continues) = (flags & 0x80 != 0, flags & 0x40 != 0);
        let Some(text) = self.text.as_mut().filter(|text| !text.is_done) else {
            return broken("a Text Response without a request");
        };
        if header.itt() != TEXT_TAG || is_final && (continues || ttt != NO_TAG) {
            return broken("a malformed Text Response");
        }
        if text.gathered.len() + data.len() > DISCOVERY_BYTES_MAX {
            return broken("a Text Response that is too long for a list of targets");
        }
        text.gathered.extend_from_slice(data);
        text.is_done = is_final;
        if !is_final {
            // A target could send empty responses endlessly; the time limit of the caller ends the
            // wait.
            if ttt == NO_TAG {
                return broken("an incomplete Text Response without a tag");
            }
            self.request(opcode::TEXT, 0x80, TEXT_TAG, ttt, &[]);
        }
        Ok(())
    }

    /// Processes a Logout Response (11.15).
    pub(super) fn take_logout(&mut self, header: &Header) -> Taken {
        let Ending::Sent { asked } = self.ending else {
            return broken("a Logout Response without a request");
        };
        if header.itt() != LOGOUT_TAG {
            return broken("a Logout Response without a request");
        }
        self.ending = Ending::Over;
        if asked {
            return Err(InitiatorError::Ended { why: "it requested a logout" });
        }
        Ok(())
    }
}

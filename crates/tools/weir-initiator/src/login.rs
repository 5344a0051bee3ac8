//! Login (RFC 7143 6.3, PDUs 11.12 and 11.13, CHAP 12.1) as a state machine: builds the requests
//! and processes the responses of the target. `handshake` has the socket, `negotiated` the key
//! rules, weir-iscsi-wire the CHAP digests.
//!
//! ```text
//! security (AuthMethod; CHAP_A; CHAP_N, CHAP_R) -> operational (keys) -> full feature
//! ```
//!
//! Invariants:
//! - with mutual CHAP, no session is negotiated with a target that has not authenticated;
//! - the initiator does not respond to a challenge that equals its own challenge;
//! - the number of requests is bounded, and each request fits into one PDU.

use weir_iscsi_wire::limits::{LOGIN_DATA_BYTES_MAX, LOGIN_PDUS_MAX};
use weir_iscsi_wire::pdu::{HEADER_BYTES, Header, Login as Request, Pdu, opcode, padded};
use weir_iscsi_wire::text::{self, Gathered, TextError};

use crate::error::InitiatorError;
use crate::exchange::Numbers;
use crate::negotiated::{Negotiated, Negotiation};
use crate::options::LoginOptions;

mod chap;

use chap::{Proof, Security};

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;
/// Maximum length of a redirection address.
const ADDRESS_BYTES_MAX: usize = 300;

/// Type of the session that a login requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Discovery session.
    Discovery,
    /// Normal session with the target of this iSCSI name.
    Target(String),
}

/// Next step of the initiator after a response of the target.
#[derive(Debug)]
pub enum Step {
    /// Send this request, then wait for the response.
    Send(Vec<u8>),
    /// Enter full feature phase, because the negotiation is complete.
    Ready(Agreed),
    /// Log in at this address instead: `HOST[:PORT]`, as the target sent it.
    Elsewhere(String),
}

/// Result of a login: the initial state of the full feature phase.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// Negotiated parameters.
    pub negotiated: Negotiated,
    pub(crate) numbers: Numbers,
    /// Target session identifying handle (TSIH).
    pub tsih: u16,
}

/// A login in progress.
pub struct Login {
    purpose: Purpose,
    initiator: String,
    isid: [u8; 6],
    stage: u8,
    requests: u32,
    exp_stat_sn: Option<u32>,
    gathered: Gathered,
    security: Security,
    negotiation: Negotiation,
    offered: bool,
    transits: bool,
}

/// CmdSN of the first command; any value is allowed (4.2.2.1).
const FIRST_CMD_SN: u32 = 1;
const ITT: u32 = 0;

fn broken<T>(why: &'static str) -> Result<T, InitiatorError> {
    Err(InitiatorError::Protocol { why })
}

fn from_text(error: TextError) -> InitiatorError {
    InitiatorError::Protocol {
        why: match error {
            TextError::TooLong => "its login text is too long",
            TextError::TooManyKeys => "its login has too many keys",
            TextError::Malformed => "its login text is not a list of keys",
        },
    }
}

impl Login {
    /// Creates a login with the session identifier `isid`. [`Self::first`] then returns the first
    /// request.
    pub fn new(options: &LoginOptions, purpose: Purpose, isid: [u8; 6]) -> Self {
        Self {
            purpose,
            initiator: options.initiator.clone(),
            isid,
            stage: SECURITY,
            requests: 0,
            exp_stat_sn: None,
            gathered: Gathered::default(),
            security: Security::new(options.chap.clone()),
            negotiation: Negotiation::new(options),
            offered: false,
            transits: false,
        }
    }

    /// Builds the first request: the initiator's name, and its authentication methods.
    ///
    /// # Errors
    /// A name is too long.
    pub fn first(&mut self) -> Result<Vec<u8>, InitiatorError> {
        let mut out = Vec::new();
        text::put(&mut out, "InitiatorName", &self.initiator);
        match &self.purpose {
            Purpose::Discovery => text::put(&mut out, "SessionType", "Discovery"),
            Purpose::Target(name) => {
                text::put(&mut out, "SessionType", "Normal");
                text::put(&mut out, "TargetName", name);
            }
        }
        self.security.offer(&mut out);
        let transits = self.security.may_leave();
        self.request(&out, transits)
    }

    fn request(&mut self, data: &[u8], transits: bool) -> Result<Vec<u8>, InitiatorError> {
        self.requests += 1;
        if self.requests > LOGIN_PDUS_MAX || data.len() > LOGIN_DATA_BYTES_MAX {
            return broken("its login does not finish");
        }
        self.transits = transits;
        let next_stage = match (transits, self.stage) {
            (false, _) => 0,
            (true, SECURITY) => OPERATIONAL,
            (true, _) => FULL_FEATURE,
        };
        let request = Request {
            transit: transits,
            continues: false,
            stage: self.stage,
            next_stage,
            version_min: 0,
            isid: self.isid,
            tsih: 0,
            itt: ITT,
            cid: 0,
            cmd_sn: FIRST_CMD_SN,
            exp_stat_sn: self.exp_stat_sn.unwrap_or(0),
        };
        let mut header = request.encode();
        header.set_data_bytes(data.len());
        let mut pdu = header.0.to_vec();
        pdu.extend_from_slice(data);
        pdu.resize(HEADER_BYTES + padded(data.len()), 0);
        Ok(pdu)
    }

    /// Processes a response of the target.
    ///
    /// # Errors
    /// The target refused the login or violated the protocol.
    pub fn feed(&mut self, pdu: &Pdu<'_>) -> Result<Step, InitiatorError> {
        let header = &pdu.header;
        if let Some(address) = self.check(header, pdu.data)? {
            return Ok(Step::Elsewhere(address));
        }
        self.gathered.add(pdu.data).map_err(from_text)?;
        let flags = header.flags();
        let (transits, continues) = (flags & 0x80 != 0, flags & 0x40 != 0);
        if continues {
            if transits {
                return broken("a login response with both the C bit and the T bit");
            }
            return self.request(&[], false).map(Step::Send);
        }
        let gathered = self.gathered.take();
        let pairs = text::pairs(&gathered).map_err(from_text)?;
        let mut out = Vec::new();
        if self.stage == SECURITY {
            self.feed_security(&pairs, transits, &mut out)
        } else {
            self.feed_operational(&pairs, &mut out)?;
            if transits && out.is_empty() {
                return self.ready(header).map(Step::Ready);
            }
            if transits {
                return broken("it ends the login with an open offer");
            }
            self.request(&out, true).map(Step::Send)
        }
    }

    fn feed_security(
        &mut self,
        pairs: &[(&str, &str)],
        transits: bool,
        out: &mut Vec<u8>,
    ) -> Result<Step, InitiatorError> {
        let (proofs, others): (Vec<_>, Vec<_>) =
            pairs.iter().partition(|(key, _)| *key == "AuthMethod" || key.starts_with("CHAP_"));
        let proof = self.security.take(&proofs, out)?;
        for (key, value) in others {
            self.negotiation.take(key, value, out)?;
        }
        if transits {
            if proof == Proof::Wanted || !self.security.may_leave() {
                let why = "the target continues without the required authentication";
                return Err(InitiatorError::Authentication { why });
            }
            self.stage = OPERATIONAL;
            return self.offer(out);
        }
        let may_leave = self.security.may_leave() || proof == Proof::Given;
        self.request(out, may_leave).map(Step::Send)
    }

    fn offer(&mut self, out: &mut Vec<u8>) -> Result<Step, InitiatorError> {
        self.offered = true;
        self.negotiation.offer(self.purpose == Purpose::Discovery, out);
        self.request(out, true).map(Step::Send)
    }

    fn feed_operational(
        &mut self,
        pairs: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<(), InitiatorError> {
        for (key, value) in pairs {
            if *key == "AuthMethod" || key.starts_with("CHAP_") {
                return broken("authentication outside of the security stage");
            }
            self.negotiation.take(key, value, out)?;
        }
        Ok(())
    }

    /// Checks the fields that every response has. Returns the new address if the response is a
    /// redirection.
    fn check(&mut self, header: &Header, data: &[u8]) -> Result<Option<String>, InitiatorError> {
        if header.opcode() != opcode::LOGIN_RESPONSE {
            return broken("not a login response; probably not an iSCSI target");
        }
        let status: [u8; 2] = header.bytes(36);
        match status {
            [0, 0] => {}
            [1, _] => return Self::elsewhere(status, data).map(Some),
            _ => return Err(InitiatorError::Refused { status }),
        }
        let expected = self.exp_stat_sn.unwrap_or(header.word(24));
        let is_ours = header.bytes::<6>(8) == self.isid && header.itt() == ITT;
        if !is_ours || header.byte(3) != 0 || header.word(24) != expected {
            return broken("a login response for another login");
        }
        self.exp_stat_sn = Some(expected.wrapping_add(1));
        let flags = header.flags();
        let next = if self.stage == SECURITY { OPERATIONAL } else { FULL_FEATURE };
        let transits = flags & 0x80 != 0;
        if flags >> 2 & 3 != self.stage || transits && (!self.transits || flags & 3 != next) {
            return broken("a login response for another stage");
        }
        Ok(None)
    }

    /// Returns the new address of a redirection (11.13.5, 13.8), without its portal group tag.
    fn elsewhere(status: [u8; 2], data: &[u8]) -> Result<String, InitiatorError> {
        let refused = InitiatorError::Refused { status };
        let Ok(pairs) = text::pairs(data) else { return Err(refused) };
        let address = pairs.iter().find(|(key, _)| *key == "TargetAddress");
        let address = address.map(|(_, value)| value.split(',').next().unwrap_or_default());
        let fits = |address: &&str| !address.is_empty() && address.len() <= ADDRESS_BYTES_MAX;
        address.filter(fits).map(str::to_owned).ok_or(refused)
    }

    fn ready(&mut self, header: &Header) -> Result<Agreed, InitiatorError> {
        let tsih = u16::from_be_bytes(header.bytes(14));
        if tsih == 0 {
            return broken("a session with TSIH 0");
        }
        let (exp_cmd_sn, max_cmd_sn) = (header.word(28), header.word(32));
        if exp_cmd_sn != FIRST_CMD_SN {
            return broken("an ExpCmdSN that differs from the login's CmdSN");
        }
        // Require MaxCmdSN >= ExpCmdSN - 1. A lower MaxCmdSN is invalid and counts as a closed
        // window.
        let is_window = crate::exchange::reached(max_cmd_sn, exp_cmd_sn.wrapping_sub(1));
        let max_cmd_sn = if is_window { max_cmd_sn } else { exp_cmd_sn.wrapping_sub(1) };
        let exp_stat_sn = self.exp_stat_sn.unwrap_or(0);
        let numbers = Numbers { cmd_sn: FIRST_CMD_SN, max_cmd_sn, exp_stat_sn };
        Ok(Agreed { negotiated: self.negotiation.settled()?, numbers, tsih })
    }
}

#[cfg(test)]
mod tests;

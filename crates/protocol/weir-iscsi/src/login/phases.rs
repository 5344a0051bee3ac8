//! State machine of the login phase: identification, CHAP and negotiation. `session` sends,
//! receives and enters sessions into the session table. `negotiated` has the rules of single keys.
//!
//! Spec: RFC 7143 6.3 (login phase), 11.12 and 11.13 (PDUs), 12 (authentication), 13 (keys).
//!
//! Invariants:
//! - an initiator leaves the security stage only with the authentication that [`Targets`] requires;
//! - a login to an unknown target, a login to a forbidden target and a login with a wrong secret
//!   get the same status;
//! - each key is negotiated only once;
//! - a response fits into one PDU of [`weir_iscsi_wire::limits::LOGIN_DATA_BYTES_MAX`].

use hashbrown::HashSet;
use weir_iscsi_wire::limits::{LOGIN_PDUS_MAX, NAME_BYTES_MAX};
use weir_iscsi_wire::pdu::{Login as Request, LoginResponse, Pdu};
use weir_iscsi_wire::text::{self, Gathered};
use weir_iscsi_wire::{Credentials, Status};
use weir_net::Peer;
use weir_scsi::{InitiatorPort, Isid};

use super::authenticate::Authenticator;
use super::negotiated::{self, Answer, Negotiated};
use crate::limits::RECEIVE_DATA_BYTES_MIN;
use crate::target::denial::{Denial, Refusal};
use crate::target::targets::{Admission, Applicant, Authentication, OpenNexus, Targets};

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Next action of the caller after a Login Request.
pub enum Step {
    /// Send this response and wait for the next request.
    Answer(LoginResponse, Vec<u8>),
    /// The login is complete. Enter the session in the session table, then send this response with
    /// the TSIH that the table assigned.
    Ready(LoginResponse, Vec<u8>, Box<Ready>),
    /// Send this response and close the connection.
    Refuse(LoginResponse, Denial),
}

/// Result of a completed login.
pub struct Ready {
    /// Name, ISID and address of the initiator.
    pub applicant: Applicant,
    /// Kind of session that the initiator requested.
    pub purpose: Purpose,
    /// Negotiated parameters.
    pub negotiated: Negotiated,
    /// TSIH of the Login Request; 0 asks for a new session.
    pub tsih: u16,
    /// CID that the initiator gave the connection.
    pub cid: u16,
    /// CmdSN of the first command.
    pub cmd_sn: u32,
    /// Credentials that CHAP verified; `None` after a login without CHAP.
    pub proven: Option<Credentials>,
}

/// Kind of session, by SessionType.
pub enum Purpose {
    /// Discovery: lists targets.
    Discovery,
    /// Normal: sends commands to a target.
    Target {
        /// iSCSI name of the target.
        name: String,
        /// Creates the nexus of the session.
        open: OpenNexus,
    },
}

/// Login in progress. A login passes through these stages:
///
/// ```text
/// start -> security (AuthMethod, CHAP) -> operational (keys) -> full feature
///      \______________________________/^                     /^
///             \_____________________________________________/   stages are optional
/// ```
pub struct Login<'a> {
    targets: &'a dyn Targets,
    peer: &'a Peer,
    first: Option<Request>,
    stage: u8,
    pdus: u32,
    gathered: Gathered,
    seen: HashSet<String>,
    negotiated: Negotiated,
    /// InitiatorName; empty until a valid name arrived.
    name: String,
    /// TargetName; empty until a valid name arrived.
    target: String,
    identity: Option<Identity>,
    portal_group_tag: Option<u16>,
    /// Returns the MaxRecvDataSegmentLength that this target declares. Called only after the
    /// authentication, because a large one takes memory.
    receive_data_bytes_max: &'a dyn Fn() -> usize,
    declared: bool,
}

struct Identity {
    applicant: Applicant,
    purpose: Purpose,
    authenticator: Authenticator,
}

impl<'a> Login<'a> {
    /// Starts the login of a connection from `peer`. `receive_data_bytes_max` returns the
    /// MaxRecvDataSegmentLength that this target declares. The login calls it once, after the
    /// authentication.
    pub fn new(
        targets: &'a dyn Targets,
        peer: &'a Peer,
        receive_data_bytes_max: &'a dyn Fn() -> usize,
    ) -> Self {
        Self {
            targets,
            peer,
            first: None,
            stage: SECURITY,
            pdus: 0,
            gathered: Gathered::default(),
            seen: HashSet::new(),
            negotiated: Negotiated::default(),
            name: String::new(),
            target: String::new(),
            identity: None,
            portal_group_tag: None,
            receive_data_bytes_max,
            declared: false,
        }
    }

    /// Name of the initiator; empty until the initiator has sent it.
    pub fn initiator(&self) -> &str {
        &self.name
    }

    /// Name of the requested target; empty until the initiator has sent it.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns true if the target has sent a CHAP challenge, so that the next request may contain
    /// the CHAP response.
    pub fn awaits_proof(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.authenticator.awaits_proof())
    }

    /// Refuses a request without evaluating it.
    pub fn refuse(&self, request: &Request, denial: Denial) -> Step {
        Step::Refuse(refused(response_to(request), denial.status), denial)
    }

    /// Processes the next Login Request.
    pub fn feed(&mut self, request: &Request, pdu: &Pdu<'_>) -> Step {
        let response = response_to(request);
        match self.try_feed(request, pdu) {
            Ok((text, transit)) => {
                let response = LoginResponse { transit, ..response };
                if transit && request.next_stage == FULL_FEATURE {
                    return self.ready(response, text);
                }
                if transit {
                    self.stage = request.next_stage;
                }
                Step::Answer(response, text)
            }
            Err(denial) => Step::Refuse(refused(response, denial.status), denial),
        }
    }

    /// Processes a request. Returns the text of the response, and whether the login stage ends.
    fn try_feed(&mut self, request: &Request, pdu: &Pdu<'_>) -> Result<(Vec<u8>, bool), Denial> {
        self.check(request)?;
        self.gathered.add(pdu.data)?;
        if request.continues {
            return Ok((Vec::new(), false));
        }
        let text = self.gathered.take();
        let pairs = text::pairs(&text)?;
        self.note_keys(&pairs)?;
        if self.identity.is_none() {
            self.identify(request, &pairs)?;
        }
        let mut out = Vec::new();
        if let Some(tag) = self.portal_group_tag.take() {
            text::put(&mut out, "TargetPortalGroupTag", &tag.to_string());
        }
        let Some(identity) = &mut self.identity else {
            return Err(Denial::new(Status::TargetError, "no identity after it was taken"));
        };
        identity.authenticator.take(self.stage == SECURITY, &pairs, &mut out)?;
        let discovery = matches!(identity.purpose, Purpose::Discovery);
        for (key, value) in pairs.iter().filter(|(key, _)| !is_of_identity(key)) {
            if let Answer::Value(answer) = self.negotiated.offer(key, value, discovery) {
                text::put(&mut out, key, &answer);
            }
        }
        if self.stage == OPERATIONAL && !self.declared {
            self.declared = true;
            let most =
                if discovery { RECEIVE_DATA_BYTES_MIN } else { (self.receive_data_bytes_max)() };
            self.negotiated.receive_data_bytes_max = most;
            negotiated::declare(&mut out, most);
        }
        let transit = request.transit && self.may_leave()?;
        Ok((out, transit))
    }

    /// Performs the checks that apply to every Login Request.
    fn check(&mut self, request: &Request) -> Result<(), Denial> {
        self.pdus += 1;
        if self.pdus > LOGIN_PDUS_MAX {
            return Err(Denial::rules("too many login requests"));
        }
        if request.version_min > 0 {
            let why = format!("the initiator requires version {} or later", request.version_min);
            return Err(Denial::new(Status::Version, why));
        }
        let first = *self.first.get_or_insert_with(|| {
            self.stage = request.stage;
            *request
        });
        if !matches!(request.stage, SECURITY | OPERATIONAL) || request.stage != self.stage {
            return Err(Denial::rules("a request for an unexpected stage"));
        }
        if (first.isid, first.tsih, first.cid) != (request.isid, request.tsih, request.cid) {
            let why = "ISID, TSIH or CID changed";
            return Err(Denial::new(Status::InvalidRequest, why));
        }
        let next = request.next_stage;
        let forward = next == FULL_FEATURE || next == OPERATIONAL && request.stage == SECURITY;
        if request.transit && (request.continues || !forward) {
            return Err(Denial::rules("an invalid stage transition"));
        }
        Ok(())
    }

    /// Records the keys of a request. A key may appear only once in a login (6.3).
    fn note_keys(&mut self, pairs: &[(&str, &str)]) -> Result<(), Denial> {
        for (key, _) in pairs {
            if !self.seen.insert((*key).to_owned()) {
                return Err(Denial::rules(format!("{key} was sent twice")));
            }
        }
        Ok(())
    }

    /// Identifies the initiator from the first text, and asks [`Targets`] whether to admit it.
    fn identify(&mut self, request: &Request, pairs: &[(&str, &str)]) -> Result<(), Denial> {
        let value =
            |key: &str| pairs.iter().find(|(found, _)| *found == key).map(|(_, value)| *value);
        let missing =
            |key: &str| Denial::new(Status::MissingParameter, format!("{key} is missing"));
        let name = checked_name(value("InitiatorName").ok_or_else(|| missing("InitiatorName"))?)?;
        self.name.clone_from(&name);
        let applicant = Applicant {
            port: InitiatorPort { name, isid: Isid(request.isid) },
            peer: self.peer.name.clone(),
            key: self.peer.key,
            local: self.peer.local.clone(),
        };
        let (authentication, purpose) = match value("SessionType").unwrap_or("Normal") {
            "Discovery" => (self.targets.admit_discovery(&applicant)?, Purpose::Discovery),
            "Normal" => {
                let target = value("TargetName").ok_or_else(|| missing("TargetName"))?;
                let name = checked_name(target)?;
                self.target.clone_from(&name);
                self.portal_group_tag = Some(self.targets.portal_group_tag(&applicant)?);
                let admission = self.targets.admit(&applicant, &name);
                let Admission { authentication, open } = admission.or_else(hidden)?;
                (authentication, Purpose::Target { name, open })
            }
            other => {
                return Err(Denial::new(
                    Status::SessionType,
                    format!("unknown session type {other:?}"),
                ));
            }
        };
        let authenticator = Authenticator::new(authentication);
        self.identity = Some(Identity { applicant, purpose, authenticator });
        Ok(())
    }

    /// Returns true if the security requirements allow the current stage to end.
    fn may_leave(&self) -> Result<bool, Denial> {
        let authenticator = self.identity.as_ref().map(|identity| &identity.authenticator);
        authenticator.map_or(Ok(false), Authenticator::may_leave)
    }

    fn ready(&mut self, response: LoginResponse, text: Vec<u8>) -> Step {
        let (Some(identity), Some(first)) = (self.identity.take(), self.first) else {
            let denial = Denial::new(Status::TargetError, "a login without a first request");
            return Step::Refuse(refused(response, denial.status), denial);
        };
        let ready = Ready {
            proven: identity.authenticator.into_proven(),
            applicant: identity.applicant,
            purpose: identity.purpose,
            negotiated: self.negotiated.settled(),
            tsih: first.tsih,
            cid: first.cid,
            cmd_sn: first.cmd_sn,
        };
        Step::Ready(response, text, Box::new(ready))
    }
}

/// Creates a successful response to a request, with the identifiers of the request.
const fn response_to(request: &Request) -> LoginResponse {
    LoginResponse {
        transit: false,
        stage: request.stage,
        next_stage: request.next_stage,
        isid: request.isid,
        tsih: request.tsih,
        itt: request.itt,
        status: [0, 0],
    }
}

/// Turns a refusal that would reveal which targets exist into a CHAP login that always fails.
fn hidden(refusal: Refusal) -> Result<Admission, Refusal> {
    if !refusal.tells_of_targets() {
        return Err(refusal);
    }
    let authentication = Authentication::Never(refusal);
    Ok(Admission { authentication, open: Box::new(move |_| Err(refusal)) })
}

/// Turns a response into a refusal with `status`.
pub(crate) fn refused(response: LoginResponse, status: Status) -> LoginResponse {
    LoginResponse { transit: false, status: (status as u16).to_be_bytes(), ..response }
}

/// Returns true if a key belongs to identification or authentication. All other keys are
/// operational.
fn is_of_identity(key: &str) -> bool {
    matches!(key, "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" | "AuthMethod")
        || key.starts_with("CHAP_")
}

/// Checks an iSCSI name. Returns the name in lower case, because comparison ignores case (4.2.7.1).
fn checked_name(name: &str) -> Result<String, Denial> {
    let bad = |c: char| c.is_control() || c.is_whitespace();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(bad) {
        return Err(Denial::rules(format!("not an iSCSI name: {name:?}")));
    }
    Ok(name.to_lowercase())
}

#[cfg(test)]
mod tests;

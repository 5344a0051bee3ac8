//! Security stage of a login: AuthMethod and CHAP, in the role of the initiator.
//!
//! weir-iscsi-wire has the digests; `login` has the stages.
//!
//! Spec: RFC 7143 12.1.3; 9.2.1 on reflection.
//!
//! Invariants:
//! - with mutual CHAP, only a correct response to the initiator's challenge sets the state `Done`;
//! - the initiator never responds to its own challenge that the target sends back, and never
//!   responds twice to one challenge.

use weir_iscsi_wire::chap::{Algorithm, Challenge};
use weir_iscsi_wire::text::{self, NONE, binary, number, to_hex};

use crate::error::InitiatorError;
use crate::options::Chap;

/// Offered CHAP algorithms, MD5 (5) first: tgt selects the first algorithm that it knows, and takes
/// 7 (SHA-256) for SHA-1. Targets with their own preference, such as Weir, select SHA-256.
const ALGORITHMS: &str = "5,7";

/// Progress of the authentication after a response of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The response contained no authentication step.
    Nothing,
    /// The initiator responded to a challenge. The stage may end if the target has authenticated,
    /// or need not authenticate.
    Given,
    /// The target did not authenticate although it must.
    Wanted,
}

enum State {
    /// The initiator offered authentication methods.
    Offered,
    /// The initiator offered CHAP algorithms.
    Algorithms,
    /// The initiator sent its own challenge to the target.
    Challenged(Challenge),
    /// Both sides have authenticated, as far as required.
    Done,
}

pub(super) struct Security {
    chap: Option<Chap>,
    state: State,
}

fn refused<T>(why: &'static str) -> Result<T, InitiatorError> {
    Err(InitiatorError::Authentication { why })
}

impl Security {
    pub(super) const fn new(chap: Option<Chap>) -> Self {
        let state = if chap.is_some() { State::Offered } else { State::Done };
        Self { chap, state }
    }

    /// Appends the authentication methods. The initiator does not offer `None` if the target must
    /// authenticate.
    pub(super) fn offer(&self, out: &mut Vec<u8>) {
        let methods = match &self.chap {
            None => NONE,
            Some(Chap { target: None, .. }) => "CHAP,None",
            Some(Chap { target: Some(_), .. }) => "CHAP",
        };
        text::put(out, "AuthMethod", methods);
    }

    /// True if the security stage may end.
    pub(super) const fn may_leave(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Processes the target's authentication keys and appends the responses.
    pub(super) fn take(
        &mut self,
        pairs: &[&(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<Proof, InitiatorError> {
        let value =
            |key: &str| pairs.iter().find(|(found, _)| *found == key).map(|(_, value)| *value);
        let has_chap = pairs.iter().any(|(key, _)| key.starts_with("CHAP_"));
        let Some(chap) = &self.chap else {
            return match value("AuthMethod") {
                None | Some(NONE) if !has_chap => Ok(Proof::Nothing),
                _ => refused("the target requires CHAP; name the file of a secret"),
            };
        };
        match (&self.state, value("AuthMethod")) {
            (State::Offered, Some("CHAP")) if !has_chap => {
                text::put(out, "CHAP_A", ALGORITHMS);
                self.state = State::Algorithms;
                Ok(Proof::Nothing)
            }
            (State::Offered, Some(NONE)) if !has_chap && chap.target.is_none() => {
                self.state = State::Done;
                Ok(Proof::Nothing)
            }
            (State::Offered, _) => refused("the target offers no method for mutual CHAP"),
            (State::Algorithms, None) => {
                let challenge = respond(chap, &value, out)?;
                self.state = challenge.map_or(State::Done, State::Challenged);
                Ok(Proof::Given)
            }
            (State::Challenged(challenge), None) => {
                if !has_chap {
                    return Ok(Proof::Wanted);
                }
                prove(chap, challenge, &value)?;
                self.state = State::Done;
                Ok(Proof::Nothing)
            }
            (State::Done, None) if !has_chap => Ok(Proof::Nothing),
            _ => refused("CHAP out of sequence"),
        }
    }
}

/// Responds to the target's challenge. If the target must authenticate, returns the initiator's own
/// challenge.
fn respond<'a>(
    chap: &Chap,
    value: &impl Fn(&str) -> Option<&'a str>,
    out: &mut Vec<u8>,
) -> Result<Option<Challenge>, InitiatorError> {
    let algorithm = match value("CHAP_A") {
        Some("5") => Algorithm::Md5,
        Some("7") => Algorithm::Sha256,
        _ => return refused("the target selected an algorithm that was not offered"),
    };
    let identifier = value("CHAP_I").and_then(|text| number(text, 0..=255));
    let theirs = value("CHAP_C").and_then(binary);
    let (Some(identifier), Some(theirs)) = (identifier, theirs) else {
        return refused("a malformed challenge from the target");
    };
    let secret = &chap.initiator.secret;
    let response = algorithm.response(identifier as u8, secret, &theirs);
    text::put(out, "CHAP_N", &chap.initiator.name);
    text::put(out, "CHAP_R", &to_hex(&response));
    if chap.target.is_none() {
        return Ok(None);
    }
    let ours = Challenge::new(algorithm).ok_or(InitiatorError::NoRandomness)?;
    text::put(out, "CHAP_I", &ours.identifier.to_string());
    text::put(out, "CHAP_C", &to_hex(&ours.bytes));
    Ok(Some(ours))
}

/// Checks the target's response to the initiator's challenge.
fn prove<'a>(
    chap: &Chap,
    challenge: &Challenge,
    value: &impl Fn(&str) -> Option<&'a str>,
) -> Result<(), InitiatorError> {
    let Some((secret, name)) = &chap.target else { return Ok(()) };
    let response = value("CHAP_R").and_then(binary).unwrap_or_default();
    let right_name = name.as_deref().is_none_or(|name| value("CHAP_N") == Some(name));
    if challenge.is_met(secret, &response) && right_name {
        Ok(())
    } else {
        refused("the target failed mutual CHAP: its response is wrong")
    }
}

//! The security stage: AuthMethod and CHAP, as the side that proves first.
//!
//! Not here: the digests (weir-iscsi), stages (`login`).
//!
//! Spec: RFC 7143 12.1.3; 9.2.1 on reflection.
//!
//! Invariants:
//! - with mutual CHAP, `Done` is reached only by a right answer to our challenge;
//! - our own challenge that comes back is not answered, and neither is one challenge twice.

use weir_iscsi_wire::chap::{Algorithm, Challenge};
use weir_iscsi_wire::text::{self, NONE, binary, number, to_hex};

use crate::error::InitiatorError;
use crate::options::Chap;

/// Offered, MD5 first: tgt takes the first it knows, and takes 7 for SHA-1. Targets that choose by
/// themselves, such as this project's, take SHA-256.
const ALGORITHMS: &str = "5,7";

/// What a step of the target's did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nothing to speak of.
    Nothing,
    /// This side answered a challenge: the stage may end, if the target proves what it should.
    Given,
    /// The target was to prove something, and did not.
    Wanted,
}

enum State {
    /// AuthMethod was offered.
    Offered,
    /// Algorithms were offered.
    Algorithms,
    /// The target was challenged.
    Challenged(Challenge),
    /// Nothing more to prove on either side.
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

    /// Appends what this side can do. Where the target must prove itself, going without is not
    /// offered.
    pub(super) fn offer(&self, out: &mut Vec<u8>) {
        let methods = match &self.chap {
            None => NONE,
            Some(Chap { target: None, .. }) => "CHAP,None",
            Some(Chap { target: Some(_), .. }) => "CHAP",
        };
        text::put(out, "AuthMethod", methods);
    }

    /// Whether the stage may end.
    pub(super) const fn may_leave(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Takes the target's keys of authentication and appends the answers.
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
                _ => refused("the target asks for a proof: name the file of a secret"),
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
            (State::Offered, _) => refused("the target has no method that proves who it is"),
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
            _ => refused("CHAP out of turn"),
        }
    }
}

/// Answers the target's challenge; our own, where it must prove itself too.
fn respond<'a>(
    chap: &Chap,
    value: &impl Fn(&str) -> Option<&'a str>,
    out: &mut Vec<u8>,
) -> Result<Option<Challenge>, InitiatorError> {
    let algorithm = match value("CHAP_A") {
        Some("5") => Algorithm::Md5,
        Some("7") => Algorithm::Sha256,
        _ => return refused("the target chooses an algorithm that was not offered"),
    };
    let identifier = value("CHAP_I").and_then(|text| number(text, 0..=255));
    let theirs = value("CHAP_C").and_then(binary);
    let (Some(identifier), Some(theirs)) = (identifier, theirs) else {
        return refused("a malformed challenge of the target");
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

/// Checks the target's answer to our challenge.
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
        refused("the target does not prove that it has its secret")
    }
}

//! The security stage: AuthMethod and CHAP.
//!
//! Not here: the digests (`chap`), stages (`login`).
//!
//! Spec: RFC 7143 12.1; 9.2.1 on reflection.
//!
//! Invariants:
//! - `Proved` is reached only where nothing was demanded, or by a right answer to our challenge;
//! - a secret that is the same in both directions proves nothing, and a challenge of our own that
//!   comes back is not answered.

use super::{Denial, Status};
use crate::chap::{Algorithm, Challenge};
use crate::targets::{Authentication, Credentials};
use crate::text::{self, NONE, REJECT, binary, number, to_hex};

/// How far an initiator has come.
pub(super) struct Authenticator {
    demanded: Authentication,
    state: State,
}

enum State {
    /// AuthMethod was not offered yet.
    Begun,
    /// CHAP was agreed on; its algorithm was not.
    Chosen,
    /// Our challenge is out.
    Challenged(Challenge),
    /// Nothing more to prove.
    Proved,
}

impl Authenticator {
    pub(super) const fn new(demanded: Authentication) -> Self {
        let state = match demanded {
            Authentication::None => State::Proved,
            Authentication::Chap { .. } => State::Begun,
        };
        Self { demanded, state }
    }

    pub(super) const fn is_chap(&self) -> bool {
        matches!(self.demanded, Authentication::Chap { .. })
    }

    /// Whether the stage may end; an error where it is wanted and never can.
    pub(super) fn may_leave(&self) -> Result<bool, Denial> {
        match self.state {
            State::Proved => Ok(true),
            State::Begun => Err(failure("CHAP is demanded, and was not offered")),
            State::Chosen | State::Challenged(_) => Ok(false),
        }
    }

    /// Takes the keys of authentication and appends the answers.
    pub(super) fn take(
        &mut self,
        in_security: bool,
        pairs: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<(), Denial> {
        let value =
            |key: &str| pairs.iter().find(|(found, _)| *found == key).map(|(_, value)| *value);
        let chap = pairs.iter().any(|(key, _)| key.starts_with("CHAP_"));
        if !in_security {
            if chap || value("AuthMethod").is_some() {
                return Err(Denial::rules("authentication outside of its stage"));
            }
            return self.may_leave().map(|_| ());
        }
        if let Some(offered) = value("AuthMethod") {
            self.choose_method(offered, out)?;
        }
        match &self.state {
            State::Chosen if value("CHAP_A").is_some() => {
                let list = value("CHAP_A").unwrap_or_default();
                let challenge = challenge(list)?;
                text::put(out, "CHAP_A", challenge.algorithm.number());
                text::put(out, "CHAP_I", &challenge.identifier.to_string());
                text::put(out, "CHAP_C", &to_hex(&challenge.bytes));
                self.state = State::Challenged(challenge);
                Ok(())
            }
            State::Challenged(challenge) if chap => {
                let Authentication::Chap { initiator, target } = &self.demanded else {
                    return Err(failure("a challenge that nobody demanded"));
                };
                prove(challenge, initiator, &value)?;
                prove_back(challenge, initiator, target.as_ref(), &value, out)?;
                self.state = State::Proved;
                Ok(())
            }
            _ if chap => Err(failure("CHAP out of turn")),
            _ => Ok(()),
        }
    }

    fn choose_method(&mut self, offered: &str, out: &mut Vec<u8>) -> Result<(), Denial> {
        let wanted = if self.is_chap() { "CHAP" } else { NONE };
        let Some(chosen) = text::choose(offered, &[wanted]) else {
            text::put(out, "AuthMethod", REJECT);
            return Err(failure(format!("AuthMethod {wanted} is not among {offered:?}")));
        };
        text::put(out, "AuthMethod", chosen);
        if self.is_chap() {
            self.state = State::Chosen;
        }
        Ok(())
    }
}

fn failure(why: impl Into<String>) -> Denial {
    Denial::new(Status::AuthenticationFailure, why)
}

fn challenge(list: &str) -> Result<Challenge, Denial> {
    let algorithm = Algorithm::choose(list)
        .ok_or_else(|| failure(format!("no CHAP algorithm in common: {list:?}")))?;
    Challenge::new(algorithm)
        .ok_or_else(|| Denial::new(Status::TargetError, "the system has no randomness"))
}

/// Checks the initiator's answer. A wrong name and a wrong secret look the same from outside.
fn prove<'a>(
    challenge: &Challenge,
    initiator: &Credentials,
    value: &impl Fn(&str) -> Option<&'a str>,
) -> Result<(), Denial> {
    let response = value("CHAP_R").and_then(binary).unwrap_or_default();
    let right_secret = challenge.is_met(&initiator.secret, &response);
    let right_name = value("CHAP_N").is_some_and(|name| name == initiator.name);
    if right_secret && right_name { Ok(()) } else { Err(failure("wrong CHAP name or secret")) }
}

/// Answers the initiator's challenge, for mutual CHAP.
fn prove_back<'a>(
    ours: &Challenge,
    initiator: &Credentials,
    target: Option<&Credentials>,
    value: &impl Fn(&str) -> Option<&'a str>,
    out: &mut Vec<u8>,
) -> Result<(), Denial> {
    let (identifier, challenge) = match (target, value("CHAP_I"), value("CHAP_C")) {
        (None, None, None) => return Ok(()),
        (None, ..) => return Err(failure("mutual CHAP is not set up for this initiator")),
        (Some(_), Some(identifier), Some(challenge)) => (identifier, challenge),
        (Some(_), ..) => return Err(failure("mutual CHAP is demanded, and was not asked for")),
    };
    let Some(target) = target else { return Ok(()) };
    let (Some(identifier), Some(challenge)) = (number(identifier, 0..=255), binary(challenge))
    else {
        return Err(failure("a malformed challenge"));
    };
    if challenge == ours.bytes {
        return Err(failure("our own challenge came back"));
    }
    if target.secret.is_same(&initiator.secret) {
        return Err(failure("the secrets of both directions are the same; set different ones"));
    }
    let response = ours.algorithm.response(identifier as u8, &target.secret, &challenge);
    text::put(out, "CHAP_N", &target.name);
    text::put(out, "CHAP_R", &to_hex(&response));
    Ok(())
}

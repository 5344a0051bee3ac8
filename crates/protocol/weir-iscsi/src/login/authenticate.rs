//! Security stage: AuthMethod and CHAP.
//!
//! CHAP digests are in weir-iscsi-wire (`chap`), the stages of the login in `phases`.
//!
//! Spec: RFC 7143 12.1; 9.2.1 on reflection.
//!
//! Invariants:
//! - the state becomes `Proved` only after a correct response to the target's challenge, or if
//!   [`Authentication`] permits a login without CHAP;
//! - mutual CHAP fails if initiator and target use the same secret, or if the initiator reflects
//!   the target's own challenge.

use weir_iscsi_wire::chap::{Algorithm, Challenge};
use weir_iscsi_wire::text::{self, NONE, REJECT, binary, number, to_hex};
use weir_iscsi_wire::{Credentials, Status};

use crate::target::denial::Denial;
use crate::target::targets::Authentication;

/// Progress of an initiator through the security stage.
pub(super) struct Authenticator {
    demanded: Authentication,
    state: State,
}

enum State {
    /// The initiator has not offered an AuthMethod yet.
    Begun,
    /// The initiator selected CHAP, but has not named its CHAP algorithms yet.
    Chosen,
    /// The target sent its challenge.
    Challenged(Challenge),
    /// The security stage is complete. Contains the credentials that CHAP verified; `None` without
    /// CHAP.
    Proved(Option<Credentials>),
}

impl Authenticator {
    pub(super) const fn new(demanded: Authentication) -> Self {
        let state = match demanded {
            Authentication::None => State::Proved(None),
            _ => State::Begun,
        };
        Self { demanded, state }
    }

    /// Credentials that CHAP verified.
    pub(super) fn into_proven(self) -> Option<Credentials> {
        match self.state {
            State::Proved(proven) => proven,
            _ => None,
        }
    }

    pub(super) const fn awaits_proof(&self) -> bool {
        matches!(self.state, State::Challenged(_))
    }

    /// Returns true if the security stage may end. Returns an error if the initiator asks to end
    /// the stage and can no longer complete it.
    pub(super) fn may_leave(&self) -> Result<bool, Denial> {
        match (&self.state, &self.demanded) {
            (State::Proved(_), _) | (State::Begun, Authentication::Offered(_)) => Ok(true),
            (State::Begun, _) => Err(self.failure("CHAP is required, but was not offered")),
            (State::Chosen | State::Challenged(_), _) => Ok(false),
        }
    }

    /// Processes the authentication keys of the initiator and appends the response keys.
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
                return Err(Denial::rules("authentication keys outside the security stage"));
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
                let mutual = value("CHAP_I").is_some() || value("CHAP_C").is_some();
                let found = self.candidates().into_iter().filter(|(initiator, _)| {
                    // Check all candidates, also after a match: the response time must not reveal
                    // which one matches.
                    is_proved(challenge, initiator, &value)
                });
                let found: Vec<_> = found.collect();
                let best = found.iter().find(|(_, target)| target.is_some() == mutual);
                let Some((initiator, target)) = best.or(found.first()) else {
                    return Err(self.failure("wrong CHAP name or secret"));
                };
                prove_back(challenge, initiator, target.as_ref(), &value, out)?;
                self.state = State::Proved(Some(initiator.clone()));
                Ok(())
            }
            _ if chap => Err(failure("unexpected CHAP keys")),
            _ => Ok(()),
        }
    }

    /// Credentials that the target accepts, each with the target's credentials for mutual CHAP.
    fn candidates(&self) -> Vec<(Credentials, Option<Credentials>)> {
        match &self.demanded {
            Authentication::Chap { initiator, target } => vec![(initiator.clone(), target.clone())],
            Authentication::Offered(candidates) => candidates.clone(),
            Authentication::None | Authentication::Never(_) => Vec::new(),
        }
    }

    fn choose_method(&mut self, offered: &str, out: &mut Vec<u8>) -> Result<(), Denial> {
        let wanted: &[&str] = match self.demanded {
            Authentication::None => &[NONE],
            Authentication::Offered(_) => &[CHAP, NONE],
            Authentication::Chap { .. } | Authentication::Never(_) => &[CHAP],
        };
        let Some(chosen) = text::choose(offered, wanted) else {
            text::put(out, "AuthMethod", REJECT);
            let wanted = wanted.join(" or ");
            return Err(self.failure(format!(
                "AuthMethod {wanted} is required, the initiator offers {offered:?}"
            )));
        };
        text::put(out, "AuthMethod", chosen);
        self.state = if chosen == CHAP { State::Chosen } else { State::Proved(None) };
        Ok(())
    }

    /// Creates the refusal for a failed authentication. The initiator gets only the status; the
    /// reason goes to the log.
    fn failure(&self, why: impl Into<String>) -> Denial {
        match self.demanded {
            Authentication::Never(refusal) => failure(refusal.to_string()),
            _ => failure(why),
        }
    }
}

/// Value of the AuthMethod key for CHAP.
const CHAP: &str = "CHAP";

fn failure(why: impl Into<String>) -> Denial {
    Denial::new(Status::AuthenticationFailure, why)
}

fn challenge(list: &str) -> Result<Challenge, Denial> {
    let algorithm = Algorithm::choose(list)
        .ok_or_else(|| failure(format!("no CHAP algorithm in common: {list:?}")))?;
    Challenge::new(algorithm)
        .ok_or_else(|| Denial::new(Status::TargetError, "the system has no random numbers"))
}

/// Checks the initiator's CHAP response. A wrong name and a wrong secret have the same result.
fn is_proved<'a>(
    challenge: &Challenge,
    initiator: &Credentials,
    value: &impl Fn(&str) -> Option<&'a str>,
) -> bool {
    let response = value("CHAP_R").and_then(binary).unwrap_or_default();
    let right_secret = challenge.is_met(&initiator.secret, &response);
    let right_name = value("CHAP_N").is_some_and(|name| name == initiator.name);
    right_secret && right_name
}

/// Responds to the initiator's challenge, which authenticates the target in mutual CHAP.
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
        (Some(_), ..) => return Err(failure("mutual CHAP is required, but was not requested")),
    };
    let Some(target) = target else { return Ok(()) };
    let (Some(identifier), Some(challenge)) = (number(identifier, 0..=255), binary(challenge))
    else {
        return Err(failure("malformed CHAP challenge"));
    };
    if challenge == ours.bytes {
        return Err(failure("the initiator sent the target's own challenge"));
    }
    if target.secret.is_same(&initiator.secret) {
        return Err(failure("the secrets of both directions are the same; set different ones"));
    }
    let response = ours.algorithm.response(identifier as u8, &target.secret, &challenge);
    text::put(out, "CHAP_N", &target.name);
    text::put(out, "CHAP_R", &to_hex(&response));
    Ok(())
}

//! Text requests in full feature phase: which targets there are, and the few keys that may change.
//!
//! Not here: the syntax (`text`), keys of login (`terms`).
//!
//! Spec: RFC 7143 11.10, 11.11; Appendix C (SendTargets).
//!
//! Invariant: one exchange at a time; a new one ends the one before.

use super::Connection;
use crate::error::IscsiError;
use crate::pdu::{NO_TAG, Pdu, RejectReason, Text, TextResponse};
use crate::targets::Discovered;
use crate::terms::Answer;
use crate::text::{self, Gathered, NOT_UNDERSTOOD, REJECT};

/// What has come and what is still to be sent, while more is to come or to be sent.
#[derive(Default)]
pub(super) struct Exchange {
    gathered: Gathered,
    /// The rest of an answer, to be fetched with this tag.
    rest: Vec<u8>,
    ttt: Option<u32>,
}

impl Connection {
    pub(super) fn take_text(&self, request: &Text, pdu: &Pdu<'_>) -> Result<(), IscsiError> {
        let mut exchange = self.exchange.take().unwrap_or_default();
        if request.ttt == NO_TAG {
            exchange = Exchange::default();
        } else if exchange.ttt != Some(request.ttt) {
            self.reject(RejectReason::InvalidField, &pdu.header);
            return Ok(());
        }
        if exchange.gathered.add(pdu.data).is_err() {
            return Err(IscsiError::Protocol { why: "a text longer than any there is" });
        }
        if request.continues {
            let ttt = *exchange.ttt.get_or_insert_with(|| self.fresh_ttt());
            let response =
                TextResponse { is_final: false, continues: false, itt: request.itt, ttt };
            self.answer(response.encode(), &[]);
            self.exchange.replace(Some(exchange));
            return Ok(());
        }
        let asked = exchange.gathered.take();
        if exchange.rest.is_empty() || !asked.is_empty() {
            match text::pairs(&asked) {
                Ok(pairs) => exchange.rest = self.answer_pairs(&pairs),
                Err(error) => {
                    tracing::debug!(%error, "iSCSI text refused");
                    self.reject(RejectReason::InvalidField, &pdu.header);
                    return Ok(());
                }
            }
        }
        self.send_text(request.itt, exchange);
        Ok(())
    }

    /// Sends as much of the answer as fits.
    fn send_text(&self, itt: u32, mut exchange: Exchange) {
        let max = self.terms.get().send_data_bytes_max;
        let rest = exchange.rest.split_off(exchange.rest.len().min(max));
        let part = std::mem::replace(&mut exchange.rest, rest);
        let continues = !exchange.rest.is_empty();
        let ttt = if continues { self.fresh_ttt() } else { NO_TAG };
        exchange.ttt = continues.then_some(ttt);
        let response = TextResponse { is_final: !continues, continues, itt, ttt };
        self.answer(response.encode(), &part);
        self.exchange.replace(continues.then_some(exchange));
    }

    fn answer_pairs(&self, pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in pairs {
            match *key {
                "SendTargets" => self.send_targets(value, &mut out),
                "MaxRecvDataSegmentLength" => {
                    let mut terms = self.terms.get();
                    if let Answer::Value(answer) = terms.declare_receive_max(value) {
                        text::put(&mut out, key, &answer);
                    }
                    self.terms.set(terms);
                }
                "InitiatorAlias" => {}
                _ => {
                    // Known keys belong to the login; unknown ones to nobody.
                    let mut ignored = self.terms.get();
                    let known = match ignored.offer(key, value, false) {
                        Answer::Value(answer) => answer != NOT_UNDERSTOOD,
                        Answer::Nothing => true,
                    };
                    text::put(&mut out, key, if known { REJECT } else { NOT_UNDERSTOOD });
                }
            }
        }
        out
    }

    /// `All` is for discovery only; the empty value is the target of this session.
    fn send_targets(&self, value: &str, out: &mut Vec<u8>) {
        let wanted = match (&self.target, value) {
            (None, "All") => None,
            (None, "") | (Some(_), "All") => return text::put(out, "SendTargets", REJECT),
            (Some(own), "") => Some(own.clone()),
            (_, name) => Some(name.to_lowercase()),
        };
        let targets = self.targets.discover(&self.applicant, self.proven.as_ref());
        // A session with a target learns of no other.
        let is_own = |name: &str| self.target.as_ref().is_none_or(|own| own == name);
        let is_wanted = |target: &&Discovered| {
            wanted.as_ref().is_none_or(|name| *name == target.name) && is_own(&target.name)
        };
        for target in targets.iter().filter(is_wanted) {
            text::put(out, "TargetName", &target.name);
            for portal in &target.portals {
                text::put(out, "TargetAddress", &portal.to_string());
            }
        }
    }
}

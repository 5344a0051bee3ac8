//! Text requests in full feature phase: SendTargets, and the keys that may change after login.
//!
//! The syntax is in weir-iscsi-wire (`text`), the keys of the login are in `negotiated`.
//!
//! Spec: RFC 7143 11.10, 11.11; Appendix C (SendTargets).
//!
//! Invariants:
//! - a connection has one text exchange at a time; a new one ends the exchange in progress;
//! - a connection holds at most about two parts of [`TEXT_PART_BYTES`] of a target list, whatever
//!   the number of targets and of SendTargets keys in one text.

use weir_iscsi_wire::pdu::{NO_TAG, Pdu, RejectReason, Text, TextResponse};
use weir_iscsi_wire::text::{self, NOT_UNDERSTOOD, REJECT};

use super::state::Connection;
use crate::connection::pending::{Exchange, Listing};
use crate::error::IscsiError;
use crate::limits::TEXT_PART_BYTES;
use crate::login::negotiated::Answer;

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
            return Err(IscsiError::Protocol { why: "a text request longer than the limit" });
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
                Ok(pairs) => (exchange.rest, exchange.listing) = self.answer_pairs(&pairs),
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

    /// Sends as much of the response as fits into one PDU. Keeps the exchange if more follows.
    fn send_text(&self, itt: u32, mut exchange: Exchange) {
        let max = self.negotiated.get().send_data_bytes_max.min(TEXT_PART_BYTES);
        self.list_targets(&mut exchange, max);
        let rest = exchange.rest.split_off(exchange.rest.len().min(max));
        let part = std::mem::replace(&mut exchange.rest, rest);
        let continues = !exchange.rest.is_empty();
        let ttt = if continues { self.fresh_ttt() } else { NO_TAG };
        exchange.ttt = continues.then_some(ttt);
        let response = TextResponse { is_final: !continues, continues, itt, ttt };
        self.answer(response.encode(), &part);
        self.exchange.replace(continues.then_some(exchange));
    }

    /// Returns the response keys, and the target list that follows them.
    fn answer_pairs(&self, pairs: &[(&str, &str)]) -> (Vec<u8>, Option<Listing>) {
        let (mut out, mut listing) = (Vec::new(), None);
        for (key, value) in pairs {
            match *key {
                // Answer only one SendTargets key in each text: more lists would multiply the
                // response size.
                "SendTargets" => match self.listing_of(value).filter(|_| listing.is_none()) {
                    Some(new) => listing = Some(new),
                    None => text::put(&mut out, "SendTargets", REJECT),
                },
                "MaxRecvDataSegmentLength" => {
                    let mut negotiated = self.negotiated.get();
                    if let Answer::Value(answer) = negotiated.declare_receive_max(value) {
                        text::put(&mut out, key, &answer);
                    }
                    self.negotiated.set(negotiated);
                }
                "InitiatorAlias" => {}
                _ => {
                    // Reject operational keys, which only a login can negotiate. The target does
                    // not understand the other keys.
                    let mut ignored = self.negotiated.get();
                    let known = match ignored.offer(key, value, false) {
                        Answer::Value(answer) => answer != NOT_UNDERSTOOD,
                        Answer::Nothing => true,
                    };
                    text::put(&mut out, key, if known { REJECT } else { NOT_UNDERSTOOD });
                }
            }
        }
        (out, listing)
    }

    /// Returns the target list that a SendTargets value requests. Only discovery sessions may
    /// request `All`. The empty value means the target of this session.
    fn listing_of(&self, value: &str) -> Option<Listing> {
        let wanted = match (&self.target, value) {
            (None, "All") => None,
            (None, "") | (Some(_), "All") => return None,
            (Some(own), "") => Some(own.clone()),
            (_, name) => Some(name.to_lowercase()),
        };
        Some(Listing { wanted, after: String::new() })
    }

    /// Reads targets into `rest` until it has more bytes than one part, or all targets are listed.
    fn list_targets(&self, exchange: &mut Exchange, part_bytes: usize) {
        let Exchange { rest, listing, .. } = exchange;
        let Some(Listing { wanted, after }) = listing.take() else { return };
        // A normal session lists only the target that it is logged in to.
        let own = self.target.as_ref();
        let mut last = None;
        self.targets.discover(&self.applicant, self.proven.as_ref(), &after, &mut |target| {
            let is_wanted = wanted.as_ref().is_none_or(|name| *name == target.name);
            if is_wanted && own.is_none_or(|own| *own == target.name) {
                text::put(rest, "TargetName", &target.name);
                for portal in &target.portals {
                    text::put(rest, "TargetAddress", &portal.to_string());
                }
            }
            let is_full = rest.len() > part_bytes;
            last = is_full.then_some(target.name);
            !is_full
        });
        *listing = last.map(|after| Listing { wanted, after });
    }
}

//! Negotiation of the operational parameters.
//!
//! `login` handles names and CHAP. weir-iscsi negotiates the same keys in the role of the target.
//!
//! Invariants:
//! - no response of a target makes a parameter exceed the offer or fall below the minimum of RFC
//!   7143;
//! - a key to which the target does not respond has the default of section 13, limited to the
//!   offer.
//!
//! Spec: RFC 7143 section 13, with the result functions of 6.2.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use weir_iscsi_wire::pdu::Digests;
use weir_iscsi_wire::text::{self, NOT_UNDERSTOOD, boolean, number, yes_no};

use crate::error::InitiatorError;
use crate::limits::OUTSTANDING_R2T_MAX;
use crate::options::LoginOptions;

/// Bounds of every negotiated length (13.12 to 13.14).
const LENGTHS: RangeInclusive<u32> = 512..=(1 << 24) - 1;

/// Negotiated parameters of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Digests that the PDUs of the session have.
    pub digests: Digests,
    /// Maximum data segment that the target accepts, a multiple of 4.
    pub send_data_bytes_max: u32,
    /// Maximum data segment that the initiator accepts.
    pub receive_data_bytes_max: u32,
    /// Maximum length of a data sequence.
    pub max_burst_bytes: u32,
    /// Maximum unsolicited data of a command, including immediate data.
    pub first_burst_bytes: u32,
    /// True if unsolicited Data-Out PDUs are forbidden.
    pub initial_r2t: bool,
    /// True if command PDUs may carry data.
    pub immediate_data: bool,
    /// Maximum number of open R2Ts of one command.
    pub outstanding_r2t_max: u32,
    /// Portal group tag, if the target sent it.
    pub portal_group_tag: Option<u16>,
}

/// A negotiation in progress.
pub(crate) struct Negotiation {
    offered: LoginOptions,
    negotiated: Negotiated,
    seen: HashSet<String>,
}

impl Negotiation {
    pub(crate) fn new(offered: &LoginOptions) -> Self {
        let negotiated = Negotiated {
            digests: Digests::default(),
            send_data_bytes_max: 8192,
            receive_data_bytes_max: offered.receive_data_bytes_max,
            max_burst_bytes: offered.max_burst_bytes.min(256 << 10),
            first_burst_bytes: offered.first_burst_bytes.min(64 << 10),
            initial_r2t: true,
            immediate_data: offered.immediate_data,
            outstanding_r2t_max: 1,
            portal_group_tag: None,
        };
        Self { offered: offered.clone(), negotiated, seen: HashSet::new() }
    }

    /// Appends the keys that the initiator offers or declares.
    pub(crate) fn offer(&self, discovery: bool, out: &mut Vec<u8>) {
        let offered = &self.offered;
        let digest = |wanted: bool| if wanted { "CRC32C" } else { "None" };
        let declared = offered.receive_data_bytes_max.to_string();
        text::put(out, "HeaderDigest", digest(offered.digests.header));
        text::put(out, "DataDigest", digest(offered.digests.data));
        text::put(out, "MaxRecvDataSegmentLength", &declared);
        text::put(out, "DefaultTime2Wait", "0");
        text::put(out, "DefaultTime2Retain", "0");
        text::put(out, "ErrorRecoveryLevel", "0");
        if discovery {
            return;
        }
        text::put(out, "MaxConnections", "1");
        text::put(out, "InitialR2T", yes_no(offered.initial_r2t));
        text::put(out, "ImmediateData", yes_no(offered.immediate_data));
        text::put(out, "MaxBurstLength", &offered.max_burst_bytes.to_string());
        text::put(out, "FirstBurstLength", &offered.first_burst_bytes.to_string());
        text::put(out, "MaxOutstandingR2T", &OUTSTANDING_R2T_MAX.to_string());
        text::put(out, "DataPDUInOrder", "Yes");
        text::put(out, "DataSequenceInOrder", "Yes");
    }

    /// Processes a key of the target, which is a response or an offer. Appends the initiator's
    /// response to an offer.
    pub(crate) fn take(
        &mut self,
        key: &str,
        value: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), InitiatorError> {
        if !self.seen.insert(key.to_owned()) {
            return Err(InitiatorError::Protocol { why: "a login key occurs twice" });
        }
        let Self { offered, negotiated, .. } = self;
        match key {
            "HeaderDigest" => {
                negotiated.digests.header = digest("HeaderDigest", offered.digests.header, value)?;
            }
            "DataDigest" => {
                negotiated.digests.data = digest("DataDigest", offered.digests.data, value)?;
            }
            "MaxRecvDataSegmentLength" => {
                let declared = number(value, LENGTHS);
                let broken = "an invalid MaxRecvDataSegmentLength";
                let declared = declared.ok_or(InitiatorError::Protocol { why: broken })?;
                negotiated.send_data_bytes_max = declared & !3;
            }
            "MaxBurstLength" => {
                minimum(&mut negotiated.max_burst_bytes, value, LENGTHS, offered.max_burst_bytes);
            }
            "FirstBurstLength" => {
                minimum(
                    &mut negotiated.first_burst_bytes,
                    value,
                    LENGTHS,
                    offered.first_burst_bytes,
                );
            }
            "MaxOutstandingR2T" => {
                let (agreed, range) = (&mut negotiated.outstanding_r2t_max, 1..=65535);
                minimum(agreed, value, range, OUTSTANDING_R2T_MAX);
            }
            "InitialR2T" => {
                negotiated.initial_r2t = offered.initial_r2t || boolean(value) != Some(false);
            }
            "ImmediateData" => {
                negotiated.immediate_data = offered.immediate_data && boolean(value) != Some(false);
            }
            "TargetPortalGroupTag" => {
                negotiated.portal_group_tag = number(value, 0..=65535).map(|tag| tag as u16);
            }
            // Ignore the target's response to these keys: the result always equals the offer, or
            // has no effect on the initiator.
            "DataPDUInOrder"
            | "DataSequenceInOrder"
            | "MaxConnections"
            | "ErrorRecoveryLevel"
            | "DefaultTime2Wait"
            | "DefaultTime2Retain"
            | "TargetAlias"
            | "TargetAddress" => {}
            "IFMarker" | "OFMarker" | "RDMAExtensions" => text::put(out, key, "No"),
            "TaskReporting" => text::put(out, key, "RFC3720"),
            _ => text::put(out, key, NOT_UNDERSTOOD),
        }
        Ok(())
    }

    /// Returns the negotiated parameters for the full feature phase.
    pub(crate) fn settled(&self) -> Result<Negotiated, InitiatorError> {
        let wanted = self.offered.digests;
        // If the target does not respond to the offer of a required digest, the target counts as
        // refusing the digest.
        for (key, wanted) in [("HeaderDigest", wanted.header), ("DataDigest", wanted.data)] {
            if wanted && !self.seen.contains(key) {
                return Err(InitiatorError::NotAgreed { key, value: String::new() });
            }
        }
        let mut negotiated = self.negotiated;
        negotiated.first_burst_bytes = negotiated.first_burst_bytes.min(negotiated.max_burst_bytes);
        Ok(negotiated)
    }
}

/// True if the session uses a digest. The initiator offered only one value, so any other value is
/// an error.
fn digest(key: &'static str, wanted: bool, value: &str) -> Result<bool, InitiatorError> {
    match (wanted, value) {
        (true, "CRC32C") => Ok(true),
        (true, _) => Err(InitiatorError::NotAgreed { key, value: shortened(value) }),
        (false, "CRC32C") => {
            Err(InitiatorError::Protocol { why: "it selected a digest that was not offered" })
        }
        (false, _) => Ok(false),
    }
}

/// Shortens text from a target, for error messages.
fn shortened(value: &str) -> String {
    value.chars().take(64).collect()
}

/// Sets `agreed` to the smaller of the offered and the received value. An invalid value leaves the
/// default unchanged.
fn minimum(agreed: &mut u32, value: &str, range: RangeInclusive<u32>, offered: u32) {
    if let Some(answered) = number(value, range) {
        *agreed = answered.min(offered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(options: &LoginOptions, keys: &[(&str, &str)]) -> Result<Negotiated, InitiatorError> {
        let mut negotiation = Negotiation::new(options);
        let mut out = Vec::new();
        keys.iter().try_for_each(|(key, value)| negotiation.take(key, value, &mut out))?;
        negotiation.settled()
    }

    #[test]
    fn no_parameter_exceeds_the_offer() {
        let options = LoginOptions::default();
        let negotiated = taken(&options, &[]).expect("defaults");
        assert_eq!((negotiated.send_data_bytes_max, negotiated.max_burst_bytes), (8192, 256 << 10));
        assert!(negotiated.initial_r2t && negotiated.immediate_data);
        let large = [
            ("MaxBurstLength", "16777215"),
            ("FirstBurstLength", "16777215"),
            ("MaxOutstandingR2T", "65535"),
            ("MaxRecvDataSegmentLength", "16777215"),
            ("InitialR2T", "No"),
        ];
        let negotiated = taken(&options, &large).expect("cut");
        assert_eq!(negotiated.max_burst_bytes, options.max_burst_bytes);
        assert_eq!(negotiated.first_burst_bytes, options.first_burst_bytes);
        assert_eq!(negotiated.outstanding_r2t_max, OUTSTANDING_R2T_MAX);
        assert_eq!(negotiated.send_data_bytes_max, 16_777_212);
        assert!(!negotiated.initial_r2t);
        let small = [("MaxBurstLength", "1024"), ("FirstBurstLength", "4096")];
        let negotiated = taken(&options, &small).expect("small");
        assert_eq!((negotiated.max_burst_bytes, negotiated.first_burst_bytes), (1024, 1024));
    }

    #[test]
    fn required_digests_are_agreed_or_the_login_fails() {
        let plain = LoginOptions::default();
        let digests = Digests { header: true, data: true };
        let both = LoginOptions { digests, ..LoginOptions::default() };
        let yes = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
        assert_eq!(taken(&both, &yes).expect("agreed").digests, digests);
        assert!(taken(&plain, &yes).is_err());
        assert!(taken(&both, &[("HeaderDigest", "None"), ("DataDigest", "CRC32C")]).is_err());
        assert!(taken(&both, &[("HeaderDigest", "CRC32C")]).is_err(), "one was left out");
        assert!(!taken(&plain, &[("DataDigest", "None")]).expect("none").digests.data);
    }

    #[test]
    fn unknown_keys_are_answered_and_invalid_ones_refused() {
        let mut negotiation = Negotiation::new(&LoginOptions::default());
        let mut out = Vec::new();
        negotiation.take("X-vendor", "1", &mut out).expect("answered");
        negotiation.take("OFMarker", "Yes", &mut out).expect("answered");
        assert_eq!(out, b"X-vendor=NotUnderstood\0OFMarker=No\0");
        assert!(negotiation.take("X-vendor", "1", &mut out).is_err(), "twice");
        for value in ["511", "x", "4294967296"] {
            assert!(
                taken(&LoginOptions::default(), &[("MaxRecvDataSegmentLength", value)]).is_err()
            );
        }
    }
}

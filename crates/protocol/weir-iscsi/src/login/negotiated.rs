//! Operational keys: their result functions and the negotiated values.
//!
//! The identification and CHAP keys are in `phases` and `authenticate`.
//!
//! Spec: RFC 7143 section 13, with the result functions of 6.2.
//!
//! Invariant: every negotiated value is within `limits`, whatever the initiator offers. A key that
//! was not negotiated has its default of section 13, reduced to the same limits.

use weir_iscsi_wire::pdu::Digests;
use weir_iscsi_wire::text::{
    self, IRRELEVANT, NONE, NOT_UNDERSTOOD, REJECT, boolean, number, yes_no,
};

use crate::limits::{
    FIRST_BURST_BYTES, MAX_BURST_BYTES, OUTSTANDING_R2T_MAX, RECEIVE_DATA_BYTES_MIN,
    SEND_DATA_BYTES_MAX,
};

/// Range that section 13 defines for each negotiated length (13.12 to 13.14).
const LENGTHS: std::ops::RangeInclusive<u32> = 512..=(1 << 24) - 1;

/// Negotiated parameters of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Header and data digests.
    pub digests: Digests,
    /// MaxRecvDataSegmentLength of this target.
    pub receive_data_bytes_max: usize,
    /// MaxRecvDataSegmentLength of the initiator.
    pub send_data_bytes_max: usize,
    /// MaxBurstLength: longest data sequence.
    pub max_burst_bytes: usize,
    /// FirstBurstLength: maximum unsolicited data of one command, immediate data included.
    pub first_burst_bytes: usize,
    /// InitialR2T: if true, the initiator sends no unsolicited Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData: if true, a command PDU may carry data.
    pub immediate_data: bool,
    /// MaxOutstandingR2T: maximum number of open R2Ts of one command.
    pub outstanding_r2t_max: u32,
}

impl Default for Negotiated {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            receive_data_bytes_max: RECEIVE_DATA_BYTES_MIN,
            send_data_bytes_max: 8192,
            max_burst_bytes: 256 << 10,
            first_burst_bytes: FIRST_BURST_BYTES,
            initial_r2t: true,
            immediate_data: true,
            outstanding_r2t_max: 1,
        }
    }
}

/// Response to a key that the initiator sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The key was a declaration, which gets no response.
    Nothing,
    /// Value with which the target responds to the key.
    Value(String),
}

impl From<&str> for Answer {
    fn from(value: &str) -> Self {
        Self::Value(value.to_owned())
    }
}

impl Negotiated {
    /// Applies an operational key that the initiator offered or declared.
    pub fn offer(&mut self, key: &str, value: &str, discovery: bool) -> Answer {
        if discovery && MEANS_NOTHING_IN_DISCOVERY.contains(&key) {
            return IRRELEVANT.into();
        }
        match key {
            "HeaderDigest" => digest(&mut self.digests.header, value),
            "DataDigest" => digest(&mut self.digests.data, value),
            "MaxRecvDataSegmentLength" => self.declare_receive_max(value),
            "MaxBurstLength" => minimum(&mut self.max_burst_bytes, value, MAX_BURST_BYTES),
            "FirstBurstLength" => minimum(&mut self.first_burst_bytes, value, FIRST_BURST_BYTES),
            "MaxOutstandingR2T" => number(value, 1..=65535).map_or(REJECT.into(), |offered| {
                self.outstanding_r2t_max = offered.min(OUTSTANDING_R2T_MAX);
                Answer::Value(self.outstanding_r2t_max.to_string())
            }),
            "InitialR2T" => same(&mut self.initial_r2t, value),
            "ImmediateData" => same(&mut self.immediate_data, value),
            // Both keys are always Yes: the target appends data in the order of its arrival, and
            // refuses data at any other offset.
            "DataPDUInOrder" | "DataSequenceInOrder" => constant(boolean(value), "Yes"),
            "MaxConnections" => constant(number(value, 1..=65535), "1"),
            "ErrorRecoveryLevel" => constant(number(value, 0..=2), "0"),
            // Accept any time: the target keeps no session after its connection failed, so the
            // initiator may log in again at once.
            "DefaultTime2Wait" => number(value, 0..=3600)
                .map_or(REJECT.into(), |offered| Answer::Value(offered.to_string())),
            "DefaultTime2Retain" => constant(number(value, 0..=3600), "0"),
            "iSCSIProtocolLevel" => number(value, 0..=31)
                .map_or(REJECT.into(), |offered| Answer::Value(offered.min(1).to_string())),
            "TaskReporting" => text::choose(value, &["RFC3720"]).unwrap_or(REJECT).into(),
            // Refuse markers, which RFC 7143 abolished (13.25), and RDMA, which TCP does not
            // provide.
            "IFMarker" | "OFMarker" | "RDMAExtensions" => constant(boolean(value), "No"),
            "IFMarkInt" | "OFMarkInt" => IRRELEVANT.into(),
            _ => NOT_UNDERSTOOD.into(),
        }
    }

    /// Returns the parameters for the full feature phase, when all keys were negotiated.
    #[must_use]
    pub fn settled(mut self) -> Self {
        self.first_burst_bytes = self.first_burst_bytes.min(self.max_burst_bytes);
        self
    }

    /// Applies the initiator's declaration of its MaxRecvDataSegmentLength.
    pub fn declare_receive_max(&mut self, value: &str) -> Answer {
        match number(value, LENGTHS) {
            Some(declared) => {
                self.send_data_bytes_max = (declared as usize).min(SEND_DATA_BYTES_MAX) & !3;
                Answer::Nothing
            }
            None => REJECT.into(),
        }
    }
}

/// Appends the declarations of this target to a response.
pub(crate) fn declare(out: &mut Vec<u8>, receive_data_bytes_max: usize) {
    text::put(out, "MaxRecvDataSegmentLength", &receive_data_bytes_max.to_string());
}

const MEANS_NOTHING_IN_DISCOVERY: [&str; 8] = [
    "MaxConnections",
    "InitialR2T",
    "ImmediateData",
    "MaxBurstLength",
    "FirstBurstLength",
    "MaxOutstandingR2T",
    "DataPDUInOrder",
    "DataSequenceInOrder",
];

fn digest(agreed: &mut bool, list: &str) -> Answer {
    match text::choose(list, &["CRC32C", NONE]) {
        Some(chosen) => {
            *agreed = chosen == "CRC32C";
            chosen.into()
        }
        None => REJECT.into(),
    }
}

fn minimum(agreed: &mut usize, value: &str, max: usize) -> Answer {
    match number(value, LENGTHS) {
        Some(offered) => {
            *agreed = (offered as usize).min(max);
            Answer::Value(agreed.to_string())
        }
        None => REJECT.into(),
    }
}

/// Accepts the initiator's boolean value; the target has no preference.
fn same(agreed: &mut bool, value: &str) -> Answer {
    match boolean(value) {
        Some(offered) => {
            *agreed = offered;
            yes_no(offered).into()
        }
        None => REJECT.into(),
    }
}

/// Responds with `outcome` to every valid offer, and with Reject to an invalid one.
fn constant<T>(offered: Option<T>, outcome: &str) -> Answer {
    offered.map_or(REJECT, |_| outcome).into()
}

#[cfg(test)]
mod tests;

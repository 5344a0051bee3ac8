//! What both sides agree on: operational keys, their rules and their outcome.
//!
//! Not here: names and CHAP (`login`).
//!
//! Spec: RFC 7143 section 13, with the result functions of 6.2.
//!
//! Invariant: whatever is offered, every outcome lies within `limits`; a key that was not
//! negotiated has the default of section 13, cut to those.

use weir_iscsi_wire::pdu::Digests;
use weir_iscsi_wire::text::{
    self, IRRELEVANT, NONE, NOT_UNDERSTOOD, REJECT, boolean, number, yes_no,
};

use crate::limits::{
    FIRST_BURST_BYTES, MAX_BURST_BYTES, OUTSTANDING_R2T_MAX, RECEIVE_DATA_BYTES_MIN,
    SEND_DATA_BYTES_MAX,
};

/// Bounds of every length that is negotiated (13.12 to 13.14).
const LENGTHS: std::ops::RangeInclusive<u32> = 512..=(1 << 24) - 1;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Checksums of PDUs.
    pub digests: Digests,
    /// Longest data segment this side takes.
    pub receive_data_bytes_max: usize,
    /// Longest data segment the initiator takes.
    pub send_data_bytes_max: usize,
    /// Longest sequence of data.
    pub max_burst_bytes: usize,
    /// Most data that comes unasked with a command, immediate data included.
    pub first_burst_bytes: usize,
    /// No Data-Out comes unasked.
    pub initial_r2t: bool,
    /// Data may come with a command.
    pub immediate_data: bool,
    /// R2Ts of one command that may be open.
    pub outstanding_r2t_max: u32,
}

impl Default for Terms {
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

/// What is said to an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was a declaration.
    Nothing,
    /// This.
    Value(String),
}

impl From<&str> for Answer {
    fn from(value: &str) -> Self {
        Self::Value(value.to_owned())
    }
}

impl Terms {
    /// Takes an offer or a declaration of an operational key.
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
            // Both orders are kept: data is gathered as it comes, and checked to be next.
            "DataPDUInOrder" | "DataSequenceInOrder" => constant(boolean(value), "Yes"),
            "MaxConnections" => constant(number(value, 1..=65535), "1"),
            "ErrorRecoveryLevel" => constant(number(value, 0..=2), "0"),
            // Nothing is kept of a session whose connection is gone, so it may come back at once.
            "DefaultTime2Wait" => number(value, 0..=3600)
                .map_or(REJECT.into(), |offered| Answer::Value(offered.to_string())),
            "DefaultTime2Retain" => constant(number(value, 0..=3600), "0"),
            "iSCSIProtocolLevel" => number(value, 0..=31)
                .map_or(REJECT.into(), |offered| Answer::Value(offered.min(1).to_string())),
            "TaskReporting" => text::choose(value, &["RFC3720"]).unwrap_or(REJECT).into(),
            // Markers are no more (13.25), and this is no RDMA.
            "IFMarker" | "OFMarker" | "RDMAExtensions" => constant(boolean(value), "No"),
            "IFMarkInt" | "OFMarkInt" => IRRELEVANT.into(),
            _ => NOT_UNDERSTOOD.into(),
        }
    }

    /// What holds in full feature phase.
    #[must_use]
    pub fn settled(mut self) -> Self {
        self.first_burst_bytes = self.first_burst_bytes.min(self.max_burst_bytes);
        self
    }

    /// A declaration of how much data the initiator takes in one PDU.
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

/// Appends what this side declares by itself.
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

/// What the initiator wants: this side's own value never decides.
fn same(agreed: &mut bool, value: &str) -> Answer {
    match boolean(value) {
        Some(offered) => {
            *agreed = offered;
            yes_no(offered).into()
        }
        None => REJECT.into(),
    }
}

/// Whatever was offered, if it was of the right kind.
fn constant<T>(offered: Option<T>, outcome: &str) -> Answer {
    offered.map_or(REJECT, |_| outcome).into()
}

#[cfg(test)]
mod tests;

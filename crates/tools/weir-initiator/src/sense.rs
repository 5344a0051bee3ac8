//! Status, sense data and retry advice for commands, with their names as text.
//!
//! weir-scsi builds the sense data that Weir's target sends.
//!
//! Invariant: sense data of any length and content can be parsed; missing bytes count as 0.
//!
//! Spec: SAM-5 5.3, SPC-4 4.5 and its annex of additional sense codes.

use std::fmt;

/// Status of a command, as the target sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    /// Success.
    pub const GOOD: Self = Self(0x00);
    /// Failure or another condition, which the sense data describes.
    pub const CHECK_CONDITION: Self = Self(0x02);
    /// Success: the condition of the command is met.
    pub const CONDITION_MET: Self = Self(0x04);
    /// The target cannot accept the command now.
    pub const BUSY: Self = Self(0x08);
    /// Another nexus's reservation conflicts with the command.
    pub const RESERVATION_CONFLICT: Self = Self(0x18);
    /// The target's task set has no space for another task.
    pub const TASK_SET_FULL: Self = Self(0x28);
    /// Another nexus aborted the command.
    pub const TASK_ABORTED: Self = Self(0x40);
    /// No status, because the target could not run the command. SCSI defines no status with this
    /// number.
    pub const NONE: Self = Self(0xff);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::GOOD => "GOOD",
            Self::CHECK_CONDITION => "CHECK CONDITION",
            Self::CONDITION_MET => "CONDITION MET",
            Self::BUSY => "BUSY",
            Self::RESERVATION_CONFLICT => "RESERVATION CONFLICT",
            Self::TASK_SET_FULL => "TASK SET FULL",
            Self::TASK_ABORTED => "TASK ABORTED",
            Self::NONE => "no status; the target failed",
            Self(other) => return write!(f, "status {other:#04x}"),
        };
        f.write_str(name)
    }
}

/// Parsed sense data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
    /// INFORMATION field, for example the offset of a miscompare.
    pub information: Option<u64>,
}

/// Sense key UNIT ATTENTION.
const UNIT_ATTENTION: u8 = 0x6;

impl Sense {
    /// Parses sense data in fixed or descriptor format; returns `None` for any other format.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
        match byte(0) & 0x7f {
            0x70 | 0x71 => {
                let valid = byte(0) & 0x80 != 0;
                let information = bytes.get(3..7).filter(|_| valid).map(number);
                let (asc, ascq) = (byte(12), byte(13));
                Some(Self { key: byte(2) & 0xf, asc, ascq, information })
            }
            0x72 | 0x73 => {
                let (key, asc, ascq) = (byte(1) & 0xf, byte(2), byte(3));
                let information = described_information(bytes.get(8..).unwrap_or_default());
                Some(Self { key, asc, ascq, information })
            }
            _ => None,
        }
    }

    /// True if the sense data reports an event that did not come from the command.
    pub const fn is_unit_attention(&self) -> bool {
        self.key == UNIT_ATTENTION
    }
}

/// Returns the INFORMATION field of the information descriptor (SPC-4 4.5.2.2), if the sense data
/// has a valid one.
fn described_information(mut descriptors: &[u8]) -> Option<u64> {
    while let Some(([kind, len], rest)) = descriptors.split_first_chunk::<2>() {
        let content = rest.get(..usize::from(*len))?;
        if *kind == 0 && content.first().is_some_and(|flags| flags & 0x80 != 0) {
            return content.get(2..10).map(number);
        }
        descriptors = rest.get(usize::from(*len)..)?;
    }
    None
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl fmt::Display for Sense {
    /// Formats the sense data, for example `ILLEGAL REQUEST, INVALID FIELD IN CDB (5/24/00)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, asc, ascq, .. } = *self;
        let name = KEYS.get(usize::from(key)).copied().unwrap_or("RESERVED");
        write!(f, "{name}")?;
        let code = CODES.iter().find(|(known, _)| *known == [asc, ascq]);
        if let Some((_, words)) = code {
            write!(f, ", {words}")?;
        }
        write!(f, " ({key:x}/{asc:02x}/{ascq:02x})")?;
        match self.information {
            Some(information) => write!(f, ", information {information}"),
            None => Ok(()),
        }
    }
}

/// Names of the sense keys (SPC-4 4.5.6).
const KEYS: [&str; 16] = [
    "NO SENSE",
    "RECOVERED ERROR",
    "NOT READY",
    "MEDIUM ERROR",
    "HARDWARE ERROR",
    "ILLEGAL REQUEST",
    "UNIT ATTENTION",
    "DATA PROTECT",
    "BLANK CHECK",
    "VENDOR SPECIFIC",
    "COPY ABORTED",
    "ABORTED COMMAND",
    "RESERVED",
    "VOLUME OVERFLOW",
    "MISCOMPARE",
    "COMPLETED",
];

/// Names of the additional sense codes that iSCSI storage sends. Other codes are printed as
/// numbers.
const CODES: [([u8; 2], &str); 48] = [
    ([0x00, 0x16], "OPERATION IN PROGRESS"),
    ([0x02, 0x00], "NO SEEK COMPLETE"),
    ([0x04, 0x00], "LOGICAL UNIT NOT READY"),
    ([0x04, 0x01], "LOGICAL UNIT IS IN PROCESS OF BECOMING READY"),
    ([0x04, 0x0A], "ASYMMETRIC ACCESS STATE TRANSITION"),
    ([0x04, 0x0B], "TARGET PORT IN STANDBY STATE"),
    ([0x04, 0x0C], "TARGET PORT IN UNAVAILABLE STATE"),
    ([0x08, 0x00], "LOGICAL UNIT COMMUNICATION FAILURE"),
    ([0x0C, 0x00], "WRITE ERROR"),
    ([0x0C, 0x0C], "UNEXPECTED UNSOLICITED DATA"),
    ([0x0C, 0x0D], "NOT ENOUGH UNSOLICITED DATA"),
    ([0x0D, 0x02], "COPY TARGET DEVICE NOT REACHABLE"),
    ([0x0E, 0x03], "INVALID FIELD IN COMMAND INFORMATION UNIT"),
    ([0x11, 0x00], "UNRECOVERED READ ERROR"),
    ([0x1A, 0x00], "PARAMETER LIST LENGTH ERROR"),
    ([0x1D, 0x00], "MISCOMPARE DURING VERIFY OPERATION"),
    ([0x20, 0x00], "INVALID COMMAND OPERATION CODE"),
    ([0x21, 0x00], "LOGICAL BLOCK ADDRESS OUT OF RANGE"),
    ([0x24, 0x00], "INVALID FIELD IN CDB"),
    ([0x25, 0x00], "LOGICAL UNIT NOT SUPPORTED"),
    ([0x26, 0x00], "INVALID FIELD IN PARAMETER LIST"),
    ([0x26, 0x06], "TOO MANY TARGET DESCRIPTORS"),
    ([0x26, 0x07], "UNSUPPORTED TARGET DESCRIPTOR TYPE CODE"),
    ([0x26, 0x08], "TOO MANY SEGMENT DESCRIPTORS"),
    ([0x26, 0x09], "UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE"),
    ([0x27, 0x00], "WRITE PROTECTED"),
    ([0x27, 0x02], "LOGICAL UNIT SOFTWARE WRITE PROTECTED"),
    ([0x27, 0x07], "SPACE ALLOCATION FAILED WRITE PROTECT"),
    ([0x28, 0x00], "NOT READY TO READY CHANGE"),
    ([0x29, 0x00], "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED"),
    ([0x29, 0x01], "POWER ON OCCURRED"),
    ([0x29, 0x03], "BUS DEVICE RESET FUNCTION OCCURRED"),
    ([0x29, 0x07], "I_T NEXUS LOSS OCCURRED"),
    ([0x2A, 0x01], "MODE PARAMETERS CHANGED"),
    ([0x2A, 0x03], "RESERVATIONS PREEMPTED"),
    ([0x2A, 0x04], "RESERVATIONS RELEASED"),
    ([0x2A, 0x05], "REGISTRATIONS PREEMPTED"),
    ([0x2A, 0x06], "ASYMMETRIC ACCESS STATE CHANGED"),
    ([0x2A, 0x09], "CAPACITY DATA HAS CHANGED"),
    ([0x2F, 0x00], "COMMANDS CLEARED BY ANOTHER INITIATOR"),
    ([0x38, 0x07], "THIN PROVISIONING SOFT THRESHOLD REACHED"),
    ([0x3A, 0x00], "MEDIUM NOT PRESENT"),
    ([0x3F, 0x03], "INQUIRY DATA HAS CHANGED"),
    ([0x3F, 0x0E], "REPORTED LUNS DATA HAS CHANGED"),
    ([0x44, 0x00], "INTERNAL TARGET FAILURE"),
    ([0x47, 0x03], "INFORMATION UNIT CRC ERROR DETECTED"),
    ([0x47, 0x05], "PROTOCOL SERVICE CRC ERROR"),
    ([0x55, 0x00], "SYSTEM RESOURCE FAILURE"),
];

/// Action that an initiator should take after the result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No action: the command succeeded.
    Done,
    /// Retry without a delay: the sense data reports an event that did not come from the command.
    Again,
    /// Retry after a delay.
    Later,
    /// No action: the command cannot succeed.
    Failed,
}

/// Returns the recommended action after a result. The caller decides whether and how often to
/// follow the advice.
pub fn advice(status: Status, sense: Option<&Sense>) -> Advice {
    match (status, sense) {
        // The sense key RECOVERED ERROR means that the command succeeded.
        (Status::GOOD | Status::CONDITION_MET, _)
        | (Status::CHECK_CONDITION, Some(Sense { key: 0x1, .. })) => Advice::Done,
        // IN PROCESS OF BECOMING READY and ASYMMETRIC ACCESS STATE TRANSITION are temporary, so
        // retry after a delay.
        (Status::BUSY | Status::TASK_SET_FULL, _)
        | (Status::CHECK_CONDITION, Some(Sense { key: 0x2, asc: 0x04, ascq: 0x01 | 0x0A, .. })) => {
            Advice::Later
        }
        (Status::CHECK_CONDITION, Some(sense)) if sense.is_unit_attention() => Advice::Again,
        _ => Advice::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_parsed_and_others_are_refused() {
        let fixed = [0xF0, 0, 0x0E, 0, 0, 2, 0, 10, 0, 0, 0, 0, 0x1D, 0, 0, 0, 0, 0];
        let sense = Sense::parse(&fixed).expect("fixed format");
        assert_eq!((sense.key, sense.asc, sense.information), (0xE, 0x1D, Some(512)));
        let words = "MISCOMPARE, MISCOMPARE DURING VERIFY OPERATION (e/1d/00), information 512";
        assert_eq!(sense.to_string(), words);
        let described = [
            0x72, 0x05, 0x24, 0x00, 0, 0, 0, 20, 2, 6, 0, 0, 0, 0, 0, 0, 0, 10, 0x80, 0, 0, 0, 0,
            0, 0, 0, 0, 7,
        ];
        let sense = Sense::parse(&described).expect("descriptor format");
        assert_eq!((sense.key, sense.asc, sense.information), (5, 0x24, Some(7)));
        for bytes in [&[][..], &[0x00; 18], &[0x7f; 4]] {
            assert_eq!(Sense::parse(bytes), None, "{bytes:?}");
        }
        assert_eq!(Sense::parse(&[0x70]).map(|sense| sense.key), Some(0));
        assert_eq!(Sense::parse(&[0x72, 5, 0, 0, 0, 0, 0, 2, 0, 255]).map(|s| s.key), Some(5));
    }

    #[test]
    fn advice_follows_from_status_and_sense() {
        let sense = |key, asc, ascq| Sense { key, asc, ascq, information: None };
        let check = |sense: Sense| advice(Status::CHECK_CONDITION, Some(&sense));
        assert_eq!(advice(Status::GOOD, None), Advice::Done);
        assert_eq!(advice(Status::TASK_SET_FULL, None), Advice::Later);
        assert_eq!(check(sense(6, 0x29, 1)), Advice::Again);
        assert_eq!(check(sense(2, 4, 1)), Advice::Later);
        assert_eq!(check(sense(3, 0x11, 0)), Advice::Failed);
        assert_eq!(check(sense(1, 0, 0)), Advice::Done);
        assert_eq!(advice(Status::CHECK_CONDITION, None), Advice::Failed);
        assert_eq!(advice(Status(0x55), None), Advice::Failed);
    }
}

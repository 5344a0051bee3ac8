//! Sense data: describes the failure of a command.
//!
//! The modules in `command` choose the sense code for each failure.
//!
//! Invariant: `refusal` maps each error kind of the storage to one sense code or status.
//!
//! Spec: SPC-4 4.5; additional sense codes of its annex.

/// Sense keys (SPC-4 4.5.6).
pub mod key {
    /// No specific sense information.
    pub const NO_SENSE: u8 = 0x0;
    /// The logical unit cannot be accessed now.
    pub const NOT_READY: u8 = 0x2;
    /// Stored data cannot be read.
    pub const MEDIUM_ERROR: u8 = 0x3;
    /// The storage failed for another reason.
    pub const HARDWARE_ERROR: u8 = 0x4;
    /// The CDB or the parameter list is invalid.
    pub const ILLEGAL_REQUEST: u8 = 0x5;
    /// A condition changed that the initiator must know of.
    pub const UNIT_ATTENTION: u8 = 0x6;
    /// The medium cannot be written.
    pub const DATA_PROTECT: u8 = 0x7;
    /// A copy operation ended early.
    pub const COPY_ABORTED: u8 = 0xA;
    /// The data differs from the expected data.
    pub const MISCOMPARE: u8 = 0xE;
}

/// Field pointer: the invalid field of a command (SPC-4 4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// True if the field is in the CDB. False if it is in the parameter data.
    pub in_cdb: bool,
    /// First byte of the field.
    pub byte: u16,
    /// Most significant bit of the field, if the field is smaller than a byte.
    pub bit: Option<u8>,
}

/// Segment pointer: the segment of an EXTENDED COPY that failed (SPC-4 4.5.2.4.5 and 6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPointer {
    /// Number of the segment descriptor, from 0.
    pub segment: u16,
    /// First byte of the invalid field in the segment descriptor, if a field is invalid.
    pub byte: Option<u16>,
}

/// Contents of sense data, independent of the fixed or descriptor format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
    /// INFORMATION field: for example, the offset of the first byte that differs after a
    /// MISCOMPARE.
    pub information: Option<u64>,
    /// SENSE KEY SPECIFIC field of an ILLEGAL REQUEST.
    pub field: Option<FieldPointer>,
    /// COMMAND-SPECIFIC INFORMATION and SENSE KEY SPECIFIC fields of a COPY ABORTED.
    pub segment: Option<SegmentPointer>,
    /// True for the descriptor format (D_SENSE). False for the fixed format.
    pub descriptor: bool,
}

impl Sense {
    /// Creates sense data from a key, an additional sense code and its qualifier.
    pub const fn new(key: u8, asc: u8, ascq: u8) -> Self {
        Self { key, asc, ascq, information: None, field: None, segment: None, descriptor: false }
    }

    /// Adds an INFORMATION field.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// Encodes the sense data: 18 bytes in fixed format, 8 to 40 in descriptor format (SPC-4 4.5.2,
    /// 4.5.3).
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.descriptor { self.to_descriptors() } else { self.to_fixed() }
    }

    fn to_fixed(&self) -> Vec<u8> {
        // The INFORMATION field of the fixed format has 32 bits; a larger value is omitted.
        let information = self.information.and_then(|value| u32::try_from(value).ok());
        let valid = if information.is_some() { 0x80 } else { 0 };
        let mut bytes = vec![0x70 | valid, 0, self.key];
        bytes.extend(information.unwrap_or_default().to_be_bytes());
        bytes.push(10);
        bytes.extend(self.command_specific().unwrap_or_default());
        bytes.extend([self.asc, self.ascq, 0]);
        bytes.extend(self.key_specific().unwrap_or_default());
        bytes
    }

    fn to_descriptors(&self) -> Vec<u8> {
        let mut descriptors = Vec::new();
        if let Some(information) = self.information {
            descriptors.extend([0x00, 0x0A, 0x80, 0]);
            descriptors.extend(information.to_be_bytes());
        }
        if let Some(specific) = self.command_specific() {
            descriptors.extend([0x01, 0x0A, 0, 0, 0, 0, 0, 0]);
            descriptors.extend(specific);
        }
        if let Some([first, second, third]) = self.key_specific() {
            descriptors.extend([0x02, 0x06, 0, 0, first, second, third, 0]);
        }
        let mut bytes = vec![0x72, self.key, self.asc, self.ascq, 0, 0, 0];
        bytes.push(descriptors.len() as u8);
        bytes.extend(descriptors);
        bytes
    }

    /// COMMAND-SPECIFIC INFORMATION of EXTENDED COPY: its last two bytes are the number of the
    /// segment. Its first two bytes are 0, because this sense data embeds no sense data of another
    /// logical unit.
    fn command_specific(&self) -> Option<[u8; 4]> {
        let [high, low] = self.segment?.segment.to_be_bytes();
        Some([0, 0, high, low])
    }

    fn key_specific(&self) -> Option<[u8; 3]> {
        if let Some(SegmentPointer { byte: Some(byte), .. }) = self.segment {
            let [high, low] = byte.to_be_bytes();
            // 0xA0 sets SKSV and SD: `byte` is an offset in the segment descriptor.
            return Some([0xA0, high, low]);
        }
        let FieldPointer { in_cdb, byte, bit } = self.field?;
        let place = bit.map_or(0, |bit| 0x08 | bit & 7);
        let [high, low] = byte.to_be_bytes();
        Some([0x80 | if in_cdb { 0x40 } else { 0 } | place, high, low])
    }
}

/// LOGICAL BLOCK ADDRESS OUT OF RANGE.
pub(crate) const OUT_OF_RANGE: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x21, 0);
/// LOGICAL UNIT NOT SUPPORTED.
pub(crate) const NO_UNIT: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x25, 0);
/// SPACE ALLOCATION FAILED WRITE PROTECT.
pub(crate) const NO_SPACE: Sense = Sense::new(key::DATA_PROTECT, 0x27, 7);
/// WRITE PROTECTED.
pub(crate) const WRITE_PROTECTED: Sense = Sense::new(key::DATA_PROTECT, 0x27, 0);
/// SOFTWARE WRITE PROTECTED, by the SWP bit of the control mode page.
pub(crate) const SOFTWARE_WRITE_PROTECTED: Sense = Sense::new(key::DATA_PROTECT, 0x27, 2);
/// LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE.
pub(crate) const NOT_READY: Sense = Sense::new(key::NOT_READY, 0x04, 0);
/// LOGICAL UNIT IS IN PROCESS OF BECOMING READY: initiators retry the command.
pub(crate) const BECOMING_READY: Sense = Sense::new(key::NOT_READY, 0x04, 1);
/// UNRECOVERED READ ERROR.
pub(crate) const UNREADABLE: Sense = Sense::new(key::MEDIUM_ERROR, 0x11, 0);
/// INTERNAL TARGET FAILURE.
pub(crate) const FAILURE: Sense = Sense::new(key::HARDWARE_ERROR, 0x44, 0);
/// INVALID COMMAND OPERATION CODE.
pub(crate) const NO_OPERATION: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x20, 0);
/// PARAMETER LIST LENGTH ERROR.
pub(crate) const LIST_LENGTH: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x1A, 0);
/// INVALID FIELD IN COMMAND INFORMATION UNIT: the command received too little data.
pub(crate) const DATA_LENGTH: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x0E, 3);
/// MISCOMPARE DURING VERIFY OPERATION.
pub(crate) const MISCOMPARE: Sense = Sense::new(key::MISCOMPARE, 0x1D, 0);

/// INVALID FIELD IN CDB, with the first byte of the field.
pub(crate) const fn invalid_cdb(byte: u16) -> Sense {
    let mut sense = Sense::new(key::ILLEGAL_REQUEST, 0x24, 0);
    sense.field = Some(FieldPointer { in_cdb: true, byte, bit: None });
    sense
}

/// INVALID FIELD IN CDB, with the byte and the most significant bit of the field.
pub(crate) const fn invalid_cdb_bit(byte: u16, bit: u8) -> Sense {
    let mut sense = invalid_cdb(byte);
    sense.field = Some(FieldPointer { in_cdb: true, byte, bit: Some(bit) });
    sense
}

/// INVALID FIELD IN PARAMETER LIST, with the first byte of the field.
pub(crate) const fn invalid_parameter(byte: u16) -> Sense {
    let mut sense = Sense::new(key::ILLEGAL_REQUEST, 0x26, 0);
    sense.field = Some(FieldPointer { in_cdb: false, byte, bit: None });
    sense
}

#[cfg(test)]
mod tests;

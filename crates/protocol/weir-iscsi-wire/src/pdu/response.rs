//! What the target sends.
//!
//! Not here: when, and with which numbers.
//!
//! Spec: RFC 7143 11.4 to 11.19.
//!
//! Invariant: a reserved field is zero. StatSN, ExpCmdSN and MaxCmdSN are set by who sends.

use weir_scsi::{Lun, Status};

use super::{Digests, Header, NO_TAG, opcode};

/// Data that was wanted and data that was expected, compared (11.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// They are the same.
    #[default]
    None,
    /// As many bytes more were wanted than the initiator expected.
    Overflow(u32),
    /// As many bytes fewer.
    Underflow(u32),
}

impl Residual {
    /// Compares what a command has with what was expected of it.
    pub fn of(bytes: u64, expected_bytes: u32) -> Self {
        let expected = u64::from(expected_bytes);
        let difference = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        match bytes.cmp(&expected) {
            std::cmp::Ordering::Equal => Self::None,
            std::cmp::Ordering::Greater => Self::Overflow(difference(bytes - expected)),
            std::cmp::Ordering::Less => Self::Underflow(difference(expected - bytes)),
        }
    }

    const fn flags(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Overflow(_) => 0x04,
            Self::Underflow(_) => 0x02,
        }
    }

    const fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Overflow(bytes) | Self::Underflow(bytes) => bytes,
        }
    }
}

/// SCSI Response (11.4).
#[derive(Clone, Copy, Debug)]
pub struct CommandResponse {
    /// Initiator task tag.
    pub itt: u32,
    /// How it ended.
    pub status: Status,
    /// Residual count.
    pub residual: Residual,
    /// Number of Data-In and R2T PDUs that were sent for it.
    pub exp_data_sn: u32,
}

impl CommandResponse {
    /// Its header.
    pub fn encode(&self) -> Header {
        let mut header = Header::new(opcode::RESPONSE, 0x80 | self.residual.flags());
        header.set(3, [self.status as u8]);
        header.set_word(16, self.itt);
        header.set_word(36, self.exp_data_sn);
        header.set_word(44, self.residual.bytes());
        header
    }
}

/// SCSI Data-In (11.7).
#[derive(Clone, Copy, Debug)]
pub struct DataIn {
    /// Initiator task tag.
    pub itt: u32,
    /// Last of its sequence.
    pub is_final: bool,
    /// Status and residual count, in the last one.
    pub status: Option<(Status, Residual)>,
    /// Number among those of the command.
    pub data_sn: u32,
    /// Where its data lies in the command's.
    pub offset: u32,
    /// Bytes of data.
    pub data_bytes: usize,
}

impl DataIn {
    /// Its header.
    pub fn encode(&self) -> Header {
        let mut header = Header::new(opcode::DATA_IN, if self.is_final { 0x80 } else { 0 });
        if let Some((status, residual)) = self.status {
            header.set(1, [header.flags() | 0x01 | residual.flags()]);
            header.set(3, [status as u8]);
            header.set_word(44, residual.bytes());
        }
        header.set_data_bytes(self.data_bytes);
        header.set_word(16, self.itt);
        header.set_word(20, NO_TAG);
        header.set_word(36, self.data_sn);
        header.set_word(40, self.offset);
        header
    }
}

/// Ready To Transfer (11.8).
#[derive(Clone, Copy, Debug)]
pub struct R2t {
    /// Logical unit.
    pub lun: Lun,
    /// Initiator task tag.
    pub itt: u32,
    /// What the data must carry.
    pub ttt: u32,
    /// Number among those of the command.
    pub r2t_sn: u32,
    /// Where the data begins in the command's.
    pub offset: u32,
    /// Bytes asked for.
    pub len: u32,
}

impl R2t {
    /// Its header.
    pub fn encode(&self) -> Header {
        let mut header = Header::new(opcode::R2T, 0x80);
        header.set(8, self.lun.0);
        header.set_word(16, self.itt);
        header.set_word(20, self.ttt);
        header.set_word(36, self.r2t_sn);
        header.set_word(40, self.offset);
        header.set_word(44, self.len);
        header
    }
}

/// NOP-In (11.19).
#[derive(Clone, Copy, Debug)]
pub struct NopIn {
    /// The tag it answers, or [`NO_TAG`].
    pub itt: u32,
    /// What an answer must carry, or [`NO_TAG`] where none is wanted.
    pub ttt: u32,
}

impl NopIn {
    /// Its header.
    pub fn encode(&self) -> Header {
        let mut header = Header::new(opcode::NOP_IN, 0x80);
        header.set_word(16, self.itt);
        header.set_word(20, self.ttt);
        header
    }
}

/// Answers to task management (11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ManagementResponse {
    /// Done.
    Complete = 0,
    /// There is no such task.
    NoTask = 1,
    /// There is no such logical unit.
    NoLun = 2,
    /// TASK REASSIGN.
    NoReassign = 4,
    /// This target does not do that.
    Unsupported = 5,
    /// Not now.
    Rejected = 255,
}

impl ManagementResponse {
    /// Its header.
    pub fn encode(self, itt: u32) -> Header {
        let mut header = Header::new(opcode::MANAGEMENT_RESPONSE, 0x80);
        header.set(2, [self as u8]);
        header.set_word(16, itt);
        header
    }
}

/// Logout Response (11.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogoutResponse {
    /// Closed.
    Closed = 0,
    /// There is no such connection.
    NoConnection = 1,
    /// Connections are not recovered.
    NoRecovery = 2,
}

impl LogoutResponse {
    /// Its header: nothing is kept, so Time2Wait and Time2Retain are 0.
    pub fn encode(self, itt: u32) -> Header {
        let mut header = Header::new(opcode::LOGOUT_RESPONSE, 0x80);
        header.set(2, [self as u8]);
        header.set_word(16, itt);
        header
    }
}

/// Text Response (11.11).
#[derive(Clone, Copy, Debug)]
pub struct TextResponse {
    /// The negotiation ends with it.
    pub is_final: bool,
    /// The text goes on in the next one.
    pub continues: bool,
    /// Initiator task tag.
    pub itt: u32,
    /// What the next request must carry, or [`NO_TAG`].
    pub ttt: u32,
}

impl TextResponse {
    /// Its header.
    pub fn encode(&self) -> Header {
        let mut flags = if self.is_final { 0x80 } else { 0 };
        flags |= if self.continues { 0x40 } else { 0 };
        let mut header = Header::new(opcode::TEXT_RESPONSE, flags);
        header.set_word(16, self.itt);
        header.set_word(20, self.ttt);
        header
    }
}

/// Login Response (11.13).
#[derive(Clone, Copy, Debug, Default)]
pub struct LoginResponse {
    /// The stage changes to `next_stage`.
    pub transit: bool,
    /// As in the request.
    pub stage: u8,
    /// Where to.
    pub next_stage: u8,
    /// As in the request.
    pub isid: [u8; 6],
    /// The session's number, in the last answer.
    pub tsih: u16,
    /// Initiator task tag.
    pub itt: u32,
    /// Class and detail.
    pub status: [u8; 2],
}

impl LoginResponse {
    /// Its header. The only version there is is 0.
    pub fn encode(&self) -> Header {
        let mut flags = self.stage << 2;
        if self.transit {
            flags |= 0x80 | self.next_stage;
        }
        let mut header = Header::new(opcode::LOGIN_RESPONSE, flags);
        header.set(8, self.isid);
        header.set(14, self.tsih.to_be_bytes());
        header.set_word(16, self.itt);
        header.set(36, self.status);
        header
    }
}

/// What an initiator is told unasked (11.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AsyncEvent {
    /// Please log out.
    RequestsLogout = 1,
    /// This connection is about to be closed.
    DropsConnection = 2,
    /// All connections of the session are.
    DropsSession = 3,
}

/// Asynchronous Message (11.9).
#[derive(Clone, Copy, Debug)]
pub struct AsyncMessage {
    /// What happens.
    pub event: AsyncEvent,
    /// The connection, with `DropsConnection`.
    pub cid: u16,
    /// Seconds to wait before the next login, or within which to log out.
    pub seconds: u16,
}

impl AsyncMessage {
    /// Its header.
    pub fn encode(&self) -> Header {
        let mut header = Header::new(opcode::ASYNC, 0x80);
        header.set_word(16, NO_TAG);
        header.set(36, [self.event as u8]);
        let (second, third) = match self.event {
            AsyncEvent::RequestsLogout => (0, self.seconds),
            AsyncEvent::DropsConnection | AsyncEvent::DropsSession => (self.seconds, 0),
        };
        header.set(38, self.cid.to_be_bytes());
        header.set(40, u16::to_be_bytes(second));
        header.set(42, u16::to_be_bytes(third));
        header
    }
}

/// Why a PDU is rejected (11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// The data does not match its digest.
    DataDigest = 0x02,
    /// Nothing is sent again: error recovery level 0.
    Snack = 0x03,
    /// Out of place.
    Protocol = 0x04,
    /// No such opcode.
    Unsupported = 0x05,
    /// Too many immediate requests wait.
    TooManyImmediate = 0x06,
    /// A task of this tag is under way.
    TaskInProgress = 0x07,
    /// A field makes no sense.
    InvalidField = 0x09,
}

/// Appends a Reject with the header of the PDU it is about (11.17).
pub fn reject(
    out: &mut weir_block::OutBuf,
    reason: RejectReason,
    rejected: &Header,
    numbers: impl FnOnce(&mut Header),
    digests: Digests,
) {
    let mut header = Header::new(opcode::REJECT, 0x80);
    header.set(2, [reason as u8]);
    header.set_word(16, NO_TAG);
    numbers(&mut header);
    super::put(out, header, &rejected.0, digests);
}

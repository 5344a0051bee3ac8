//! Responses and other PDUs from the target.
//!
//! weir-iscsi decides when to send these PDUs, and sets their sequence numbers.
//!
//! Spec: RFC 7143 11.4 to 11.19.
//!
//! Invariant: reserved fields are zero. `encode` leaves StatSN, ExpCmdSN and MaxCmdSN at zero; the
//! sender sets them.

use weir_scsi::{Lun, Status};

use super::{Digests, Header, NO_TAG, opcode};

/// Residual: the data length of a command compared with its Expected Data Transfer Length (11.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// The data length equals the Expected Data Transfer Length.
    #[default]
    None,
    /// Number of bytes that the command transfers beyond the Expected Data Transfer Length.
    Overflow(u32),
    /// Number of bytes of the Expected Data Transfer Length that the command does not transfer.
    Underflow(u32),
}

impl Residual {
    /// Compares the length of a command's data with its Expected Data Transfer Length.
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
    /// SCSI status.
    pub status: Status,
    /// Residual count.
    pub residual: Residual,
    /// Number of Data-In and R2T PDUs that the target sent for the command.
    pub exp_data_sn: u32,
}

impl CommandResponse {
    /// Encodes the header.
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
    /// F bit: last PDU of its sequence.
    pub is_final: bool,
    /// Status and residual count; only in the last Data-In of a command.
    pub status: Option<(Status, Residual)>,
    /// Number of this PDU among the Data-In PDUs of the command, from 0.
    pub data_sn: u32,
    /// Offset of this PDU's data in all data that the command returns.
    pub offset: u32,
    /// Length of the data segment.
    pub data_bytes: usize,
}

impl DataIn {
    /// Encodes the header.
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
    /// Target Transfer Tag that the Data-Outs must carry.
    pub ttt: u32,
    /// Number of this PDU among the R2T PDUs of the command, from 0.
    pub r2t_sn: u32,
    /// Offset of the solicited data in all data that the initiator sends for the command.
    pub offset: u32,
    /// Number of bytes that the initiator must send.
    pub len: u32,
}

impl R2t {
    /// Encodes the header.
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
    /// Initiator Task Tag of the NOP-Out that this NOP-In answers, or [`NO_TAG`].
    pub itt: u32,
    /// Target Transfer Tag for the initiator's response; with [`NO_TAG`] the target requests no
    /// response.
    pub ttt: u32,
}

impl NopIn {
    /// Encodes the header.
    pub fn encode(&self) -> Header {
        let mut header = Header::new(opcode::NOP_IN, 0x80);
        header.set_word(16, self.itt);
        header.set_word(20, self.ttt);
        header
    }
}

/// Responses of the target to task management functions (11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ManagementResponse {
    /// Function complete.
    Complete = 0,
    /// Task does not exist.
    NoTask = 1,
    /// LUN does not exist.
    NoLun = 2,
    /// Task allegiance reassignment not supported.
    NoReassign = 4,
    /// Task management function not supported.
    Unsupported = 5,
    /// Function rejected.
    Rejected = 255,
}

impl ManagementResponse {
    /// Encodes the header.
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
    /// Connection or session closed.
    Closed = 0,
    /// CID not found.
    NoConnection = 1,
    /// Connection recovery is not supported.
    NoRecovery = 2,
}

impl LogoutResponse {
    /// Encodes the header. Time2Wait and Time2Retain are 0, because the target keeps no session
    /// after its connection has ended.
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
    /// F bit: the negotiation ends.
    pub is_final: bool,
    /// C bit: the text continues in the next PDU.
    pub continues: bool,
    /// Initiator task tag.
    pub itt: u32,
    /// Target Transfer Tag that the next request must carry, or [`NO_TAG`].
    pub ttt: u32,
}

impl TextResponse {
    /// Encodes the header.
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
    /// T bit: the stage changes to `next_stage`.
    pub transit: bool,
    /// CSG: current stage, as in the request.
    pub stage: u8,
    /// NSG: next stage.
    pub next_stage: u8,
    /// ISID, as in the request.
    pub isid: [u8; 6],
    /// TSIH of the session; set in the last response of the login.
    pub tsih: u16,
    /// Initiator task tag.
    pub itt: u32,
    /// Status-Class and Status-Detail.
    pub status: [u8; 2],
}

impl LoginResponse {
    /// Encodes the header, with version 0, the only defined version.
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

/// Event of an Asynchronous Message (11.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AsyncEvent {
    /// The target requests a logout.
    RequestsLogout = 1,
    /// The target drops this connection.
    DropsConnection = 2,
    /// The target drops all connections of the session.
    DropsSession = 3,
}

/// Asynchronous Message (11.9).
#[derive(Clone, Copy, Debug)]
pub struct AsyncMessage {
    /// Event code.
    pub event: AsyncEvent,
    /// CID of the connection that the target drops; only with `DropsConnection`.
    pub cid: u16,
    /// Parameter3 (time to log out) or Parameter2 (time before the next login), in seconds.
    pub seconds: u16,
}

impl AsyncMessage {
    /// Encodes the header.
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

/// Reason of a Reject (11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// Data (payload) digest error.
    DataDigest = 0x02,
    /// SNACK rejected: at error recovery level 0, the target retransmits nothing.
    Snack = 0x03,
    /// Protocol error.
    Protocol = 0x04,
    /// Command not supported.
    Unsupported = 0x05,
    /// Too many immediate commands.
    TooManyImmediate = 0x06,
    /// Task in progress: the Initiator Task Tag is in use.
    TaskInProgress = 0x07,
    /// Invalid PDU field.
    InvalidField = 0x09,
}

/// Appends a Reject that contains the header of the rejected PDU (11.17).
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

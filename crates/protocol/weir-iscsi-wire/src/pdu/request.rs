//! Requests from initiators.
//!
//! weir-iscsi executes the requests.
//!
//! Spec: RFC 7143 11.3 to 11.16.
//!
//! Invariant: reserved fields are ignored, as section 11 requires of receivers.

use weir_scsi::{Attribute, Lun};

use super::{Header, NO_TAG, Pdu, RejectReason, opcode};

/// Longest command descriptor block: 16 bytes in the basic header and 244 in an AHS (SPC-4 4.2.3).
const CDB_BYTES_MAX: usize = 260;
/// Additional header segment: Extended CDB (11.2.2.3).
const AHS_EXTENDED_CDB: u8 = 1;

/// Request in full feature phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// NOP-Out.
    NopOut(NopOut),
    /// SCSI Command.
    Command(Command),
    /// Task Management Function Request.
    Management(Management),
    /// Text Request.
    Text(Text),
    /// SCSI Data-Out.
    DataOut(DataOut),
    /// Logout Request.
    Logout(Logout),
}

/// NOP-Out (11.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopOut {
    /// True if the request is immediate: the target processes it outside of CmdSN order.
    pub immediate: bool,
    /// Initiator Task Tag; with [`NO_TAG`] the initiator requests no response.
    pub itt: u32,
    /// Target Transfer Tag of the NOP-In that this NOP-Out answers, or [`NO_TAG`].
    pub ttt: u32,
    /// Command sequence number.
    pub cmd_sn: u32,
}

/// SCSI Command (11.3).
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of the header")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// True if the request is immediate: the target processes it outside of CmdSN order.
    pub immediate: bool,
    /// F bit: no unsolicited Data-Out follows.
    pub is_final: bool,
    /// R bit: the command returns data.
    pub read: bool,
    /// W bit: the initiator sends data for the command.
    pub write: bool,
    /// Task attribute.
    pub attribute: Attribute,
    /// Logical unit.
    pub lun: Lun,
    /// Initiator task tag.
    pub itt: u32,
    /// Expected Data Transfer Length.
    pub expected_bytes: u32,
    /// Command sequence number.
    pub cmd_sn: u32,
    /// Command descriptor block.
    pub cdb: CdbBuffer,
}

/// Command descriptor block; nearly all have 16 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdbBuffer {
    short: [u8; 16],
    long: Option<Box<[u8]>>,
}

impl CdbBuffer {
    /// Bytes of the command descriptor block.
    pub fn bytes(&self) -> &[u8] {
        self.long.as_deref().unwrap_or(&self.short)
    }
}

/// Task Management Function Request (11.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Management {
    /// True if the request is immediate: the target processes it outside of CmdSN order.
    pub immediate: bool,
    /// Function, from 1 (ABORT TASK) to 8 (TASK REASSIGN).
    pub function: u8,
    /// Logical unit.
    pub lun: Lun,
    /// Initiator task tag.
    pub itt: u32,
    /// Referenced Task Tag: Initiator Task Tag of the task that ABORT TASK aborts.
    pub referenced_itt: u32,
    /// Command sequence number.
    pub cmd_sn: u32,
    /// RefCmdSN: CmdSN of the referenced task.
    pub ref_cmd_sn: u32,
}

/// Text Request (11.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// True if the request is immediate: the target processes it outside of CmdSN order.
    pub immediate: bool,
    /// F bit: the initiator has no more keys, so the negotiation may end with the response.
    pub is_final: bool,
    /// C bit: the text continues in the next PDU.
    pub continues: bool,
    /// Initiator task tag.
    pub itt: u32,
    /// Target Transfer Tag of the target's response that this request continues, or [`NO_TAG`].
    pub ttt: u32,
    /// Command sequence number.
    pub cmd_sn: u32,
}

/// SCSI Data-Out (11.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// F bit: last PDU of its sequence.
    pub is_final: bool,
    /// Initiator Task Tag of the command to which the data belongs.
    pub itt: u32,
    /// Target Transfer Tag of the R2T that solicits the data, or [`NO_TAG`] for unsolicited data.
    pub ttt: u32,
    /// Number of this PDU in its Data-Out sequence, from 0.
    pub data_sn: u32,
    /// Offset of the PDU's data in the whole data of the command.
    pub offset: u32,
}

/// Reason of a logout (11.14.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogoutReason {
    /// Close the session.
    CloseSession,
    /// Close one connection.
    CloseConnection,
    /// Remove one connection, so that its commands can continue on another connection.
    RemoveForRecovery,
}

/// Logout Request (11.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logout {
    /// True if the request is immediate: the target processes it outside of CmdSN order.
    pub immediate: bool,
    /// Reason of the logout.
    pub reason: LogoutReason,
    /// Initiator task tag.
    pub itt: u32,
    /// CID of the connection to close.
    pub cid: u16,
    /// Command sequence number.
    pub cmd_sn: u32,
}

/// Login Request (11.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// T bit: the initiator is ready to change to `next_stage`.
    pub transit: bool,
    /// C bit: the text continues in the next PDU.
    pub continues: bool,
    /// CSG: 0 security, 1 operational, 3 full feature.
    pub stage: u8,
    /// NSG: next stage, if `transit` is set.
    pub next_stage: u8,
    /// Version-min: lowest version that the initiator supports.
    pub version_min: u8,
    /// Initiator part of the session identifier.
    pub isid: [u8; 6],
    /// Target part of the session identifier; 0 for a new session.
    pub tsih: u16,
    /// Initiator task tag.
    pub itt: u32,
    /// Connection identifier.
    pub cid: u16,
    /// CmdSN of the first command.
    pub cmd_sn: u32,
    /// StatSN that the initiator expects in the next response.
    pub exp_stat_sn: u32,
}

impl Login {
    /// Decodes a header; `None` if the header is not a Login Request.
    pub fn decode(header: &Header) -> Option<Self> {
        if header.opcode() != opcode::LOGIN {
            return None;
        }
        let flags = header.flags();
        Some(Self {
            transit: flags & 0x80 != 0,
            continues: flags & 0x40 != 0,
            stage: flags >> 2 & 3,
            next_stage: flags & 3,
            version_min: header.byte(3),
            isid: header.bytes(8),
            tsih: u16::from_be_bytes(header.bytes(14)),
            itt: header.itt(),
            cid: u16::from_be_bytes(header.bytes(20)),
            cmd_sn: header.cmd_sn(),
            exp_stat_sn: header.word(28),
        })
    }

    /// Encodes the header of a Login Request; only initiators use this function.
    pub fn encode(&self) -> Header {
        let mut flags = self.stage << 2 | self.next_stage;
        flags |= if self.transit { 0x80 } else { 0 };
        flags |= if self.continues { 0x40 } else { 0 };
        let mut header = Header::new(opcode::LOGIN | opcode::IMMEDIATE, flags);
        header.set(3, [self.version_min]);
        header.set(8, self.isid);
        header.set(14, self.tsih.to_be_bytes());
        header.set_word(16, self.itt);
        header.set(20, self.cid.to_be_bytes());
        header.set_word(24, self.cmd_sn);
        header.set_word(28, self.exp_stat_sn);
        header
    }
}

impl Request {
    /// Decodes a PDU of the full feature phase.
    ///
    /// # Errors
    /// Reason for which the target rejects the PDU.
    pub fn decode(pdu: &Pdu<'_>) -> Result<Self, RejectReason> {
        let header = &pdu.header;
        let (flags, immediate) = (header.flags(), header.is_immediate());
        let (itt, cmd_sn) = (header.itt(), header.cmd_sn());
        let (is_final, ttt) = (flags & 0x80 != 0, header.word(20));
        Ok(match header.opcode() {
            opcode::NOP_OUT => Self::NopOut(NopOut { immediate, itt, ttt, cmd_sn }),
            opcode::COMMAND => Self::Command(Command::decode(pdu)?),
            opcode::MANAGEMENT => Self::Management(Management {
                immediate,
                function: flags & 0x7f,
                lun: Lun(header.bytes(8)),
                itt,
                referenced_itt: ttt,
                cmd_sn,
                ref_cmd_sn: header.word(32),
            }),
            opcode::TEXT => {
                let continues = flags & 0x40 != 0;
                if itt == NO_TAG || is_final && continues {
                    return Err(RejectReason::InvalidField);
                }
                Self::Text(Text { immediate, is_final, continues, itt, ttt, cmd_sn })
            }
            opcode::DATA_OUT => {
                let (data_sn, offset) = (header.word(36), header.word(40));
                Self::DataOut(DataOut { is_final, itt, ttt, data_sn, offset })
            }
            opcode::LOGOUT => {
                let reason = match flags & 0x7f {
                    0 => LogoutReason::CloseSession,
                    1 => LogoutReason::CloseConnection,
                    2 => LogoutReason::RemoveForRecovery,
                    _ => return Err(RejectReason::InvalidField),
                };
                let cid = u16::from_be_bytes(header.bytes(20));
                Self::Logout(Logout { immediate, reason, itt, cid, cmd_sn })
            }
            opcode::SNACK => return Err(RejectReason::Snack),
            opcode::LOGIN => return Err(RejectReason::Protocol),
            _ => return Err(RejectReason::Unsupported),
        })
    }
}

impl Command {
    fn decode(pdu: &Pdu<'_>) -> Result<Self, RejectReason> {
        let header = &pdu.header;
        let flags = header.flags();
        let attribute = match flags & 7 {
            0 | 1 => Attribute::Simple,
            2 => Attribute::Ordered,
            3 => Attribute::HeadOfQueue,
            4 => Attribute::Aca,
            _ => return Err(RejectReason::InvalidField),
        };
        let itt = header.itt();
        if itt == NO_TAG {
            return Err(RejectReason::InvalidField);
        }
        let command = Self {
            immediate: header.is_immediate(),
            is_final: flags & 0x80 != 0,
            read: flags & 0x40 != 0,
            write: flags & 0x20 != 0,
            attribute,
            lun: Lun(header.bytes(8)),
            itt,
            expected_bytes: header.word(20),
            cmd_sn: header.cmd_sn(),
            cdb: CdbBuffer { short: header.bytes(32), long: long_cdb(header, pdu.ahs)? },
        };
        // Without the F bit, unsolicited Data-Out follows this PDU, so the command must be a write.
        if !command.is_final && !command.write {
            return Err(RejectReason::InvalidField);
        }
        Ok(command)
    }
}

/// Returns the whole command descriptor block if an additional header segment contains a part of
/// it; `None` if the basic header contains all of it.
fn long_cdb(header: &Header, mut ahs: &[u8]) -> Result<Option<Box<[u8]>>, RejectReason> {
    let mut long = None;
    while let Some((&[high, low, kind], rest)) = ahs.split_first_chunk::<3>() {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let content = rest.get(..len).ok_or(RejectReason::InvalidField)?;
        // The length of an AHS counts the reserved byte before its content, so skip that byte.
        if kind & 0x3f == AHS_EXTENDED_CDB && long.is_none() {
            let more = content.get(1..).ok_or(RejectReason::InvalidField)?;
            let cdb: Vec<u8> = header.bytes::<16>(32).into_iter().chain(more.to_vec()).collect();
            if cdb.len() > CDB_BYTES_MAX {
                return Err(RejectReason::InvalidField);
            }
            long = Some(cdb.into());
        }
        ahs = rest.get(super::padded(3 + len) - 3..).unwrap_or_default();
    }
    Ok(long)
}

//! Session that runs one command after the other, for target checks and simple tools.
//!
//! [`Connection`] can run many commands at once.
//!
//! Invariants: no call waits beyond the time limits in the options; after an error that loses the
//! session, every later call fails.

use std::thread::sleep;

use weir_iscsi_wire::pdu::Residual;

use crate::cdb::{self, Cdb};
use crate::connection::{Connection, WireBytes};
use crate::error::InitiatorError;
use crate::exchange::{Buffers, Data};
use crate::facts::{BlockLimits, Caching, Capacity, Inquiry, Provisioning};
use crate::handshake::Deadline;
use crate::limits::{BUSY_WAIT, TRIES_MAX};
use crate::negotiated::Negotiated;
use crate::options::LoginOptions;
use crate::sense::{Advice, Sense, Status, advice};
use crate::url::Url;

/// Allocation length for vital product data pages.
const VITAL_BYTES: u16 = 4096;
/// Allocation length for REPORT LUNS: a header and 16384 LUNs, the maximum of a target.
const LUNS_BYTES: u32 = 8 + 8 * 16384;
/// Additional sense codes with which a target refuses an unsupported command or field.
const NOT_SUPPORTED: [u8; 2] = [0x20, 0x24];

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status of the command.
    pub status: Status,
    /// Parsed sense data, if the target sent any.
    pub sense: Option<Sense>,
    /// Sense data as received.
    pub sense_bytes: Vec<u8>,
    /// Data that the command returned.
    pub data: Vec<u8>,
    /// Difference between the expected and the transferred length, as the target reports it.
    pub residual: Residual,
}

impl Reply {
    /// Recommended action after this reply.
    pub fn advice(&self) -> Advice {
        advice(self.status, self.sense.as_ref())
    }

    /// True if the target does not support the command or one of its fields.
    pub fn is_not_supported(&self) -> bool {
        self.sense.is_some_and(|sense| sense.key == 0x5 && NOT_SUPPORTED.contains(&sense.asc))
    }
}

/// Data buffer of the session's only command slot.
struct One(Vec<u8>);

impl Buffers for One {
    fn data(&self, _: usize) -> &[u8] {
        &self.0
    }

    fn data_mut(&mut self, _: usize) -> &mut [u8] {
        &mut self.0
    }
}

/// A session that runs one command at a time and waits for the result of each.
///
/// ```no_run
/// # fn main() -> Result<(), weir_initiator::InitiatorError> {
/// use weir_initiator::{LoginOptions, Session, Url, cdb};
/// let url = Url::parse("iscsi://storage/iqn.2026-01.org.weir:vms/0")?;
/// let mut session = Session::login(&url, &LoginOptions::of(&url)?)?;
/// let capacity = session.read_capacity()?;
/// let block = session.read("READ", cdb::read16(0, 1, false), capacity.block_bytes)?;
/// let reply = session.execute(cdb::write16(0, 1, true), &block, 0)?;
/// println!("{}", reply.status);
/// session.logout()
/// # }
/// ```
pub struct Session {
    connection: Connection,
    options: LoginOptions,
    is_lost: bool,
}

impl Session {
    /// Logs in, and receives the unit attentions of a new session.
    ///
    /// # Errors
    /// The login failed, or the logical unit does not become ready.
    pub fn login(url: &Url, options: &LoginOptions) -> Result<Self, InitiatorError> {
        let mut session = Self::login_raw(url, options)?;
        session.ready()?;
        Ok(session)
    }

    /// Logs in without sending a command, so the next command may return a unit attention.
    ///
    /// # Errors
    /// The login failed.
    pub fn login_raw(url: &Url, options: &LoginOptions) -> Result<Self, InitiatorError> {
        let connection = Connection::open(url, options, 1)?;
        Ok(Self { connection, options: options.clone(), is_lost: false })
    }

    /// Runs a command once and returns its result. The command sends `data`, or receives at most
    /// `expected` bytes, but never both.
    ///
    /// # Errors
    /// The session is lost.
    ///
    /// # Panics
    /// `data` is not empty and `expected` is not 0, or `data` is 4 GiB or longer.
    pub fn execute(
        &mut self,
        cdb: Cdb,
        data: &[u8],
        expected: u32,
    ) -> Result<Reply, InitiatorError> {
        assert!(data.is_empty() || expected == 0, "data goes one way");
        if self.is_lost {
            return Err(InitiatorError::Ended { why: "an error before this one" });
        }
        let direction = if data.is_empty() {
            Data::In(expected)
        } else {
            Data::Out(u32::try_from(data.len()).expect("a command has less than 4 GiB"))
        };
        let mut memory = One(data.to_vec());
        memory.0.resize(data.len().max(expected as usize), 0);
        let reply = self.run(cdb, direction, memory);
        self.is_lost = reply.is_err();
        reply
    }

    fn run(&mut self, cdb: Cdb, data: Data, mut memory: One) -> Result<Reply, InitiatorError> {
        let deadline = Deadline::new(self.options.command_limit, "a command");
        let mut done = Vec::new();
        self.connection.submit(0, cdb, data, &memory);
        loop {
            self.connection.send(&memory)?;
            let is_anything = self.connection.receive(&mut memory, &mut done)?;
            if let Some(done) = done.pop() {
                // Before returning, send a response that the target requested, such as a NOP-Out.
                self.connection.send(&memory)?;
                let answer = done.answer;
                memory.0.truncate(answer.received_bytes as usize);
                return Ok(Reply {
                    status: answer.status,
                    sense: Sense::parse(&answer.sense),
                    sense_bytes: answer.sense,
                    data: memory.0,
                    residual: answer.residual,
                });
            }
            let left = deadline.left()?;
            if !is_anything {
                self.connection.wait(Some(left))?;
            }
        }
    }

    /// Runs a command as an operating system does: retries it after a unit attention, and after a
    /// delay while the target is busy; tries it at most [`TRIES_MAX`] times.
    ///
    /// # Errors
    /// The session is lost.
    ///
    /// # Panics
    /// See [`Self::execute`].
    pub fn insist(
        &mut self,
        cdb: Cdb,
        data: &[u8],
        expected: u32,
    ) -> Result<Reply, InitiatorError> {
        let mut wait = BUSY_WAIT;
        let mut reply = self.execute(cdb, data, expected)?;
        for _ in 1..TRIES_MAX {
            match reply.advice() {
                Advice::Done | Advice::Failed => break,
                Advice::Again => {}
                Advice::Later => {
                    sleep(wait);
                    wait *= 2;
                }
            }
            reply = self.execute(cdb, data, expected)?;
        }
        Ok(reply)
    }

    /// Runs a command that must succeed, and returns its data. `command` is the command's name in
    /// errors.
    ///
    /// # Errors
    /// The command failed, or the session is lost.
    pub fn read(
        &mut self,
        command: &'static str,
        cdb: Cdb,
        expected: u32,
    ) -> Result<Vec<u8>, InitiatorError> {
        let reply = self.insist(cdb, &[], expected)?;
        done(command, reply).map(|reply| reply.data)
    }

    /// Runs a command that must succeed, and sends `data`, which may be empty.
    ///
    /// # Errors
    /// The command failed, or the session is lost.
    pub fn write(
        &mut self,
        command: &'static str,
        cdb: Cdb,
        data: &[u8],
    ) -> Result<(), InitiatorError> {
        let reply = self.insist(cdb, data, 0)?;
        done(command, reply).map(drop)
    }

    /// Waits until the logical unit accepts commands, with a limited number of tries.
    ///
    /// # Errors
    /// The logical unit is not ready or does not exist.
    pub fn ready(&mut self) -> Result<(), InitiatorError> {
        self.write("TEST UNIT READY", cdb::test_unit_ready(), &[])
    }

    /// READ CAPACITY (16).
    ///
    /// # Errors
    /// The command failed, or its data is invalid.
    pub fn read_capacity(&mut self) -> Result<Capacity, InitiatorError> {
        let command = "READ CAPACITY (16)";
        let data = self.read(command, cdb::read_capacity16(32), 32)?;
        let why = "an impossible capacity";
        Capacity::parse(&data).ok_or(InitiatorError::Answer { command, why })
    }

    /// Standard INQUIRY data.
    ///
    /// # Errors
    /// The command failed, or its data is too short.
    pub fn inquiry(&mut self) -> Result<Inquiry, InitiatorError> {
        let data = self.read("INQUIRY", cdb::inquiry(None, 255), 255)?;
        let (command, why) = ("INQUIRY", "less than five bytes");
        Inquiry::parse(&data).ok_or(InitiatorError::Answer { command, why })
    }

    /// A vital product data page with its header; `None` if the unit does not support the page.
    ///
    /// # Errors
    /// The command failed for another reason, or the target returned another page.
    pub fn vital_data(&mut self, code: u8) -> Result<Option<Vec<u8>>, InitiatorError> {
        let cdb = cdb::inquiry(Some(code), VITAL_BYTES);
        let reply = self.insist(cdb, &[], u32::from(VITAL_BYTES))?;
        if reply.is_not_supported() {
            return Ok(None);
        }
        let data = done("INQUIRY", reply)?.data;
        if data.get(1) != Some(&code) {
            let (command, why) = ("INQUIRY", "a different page than requested");
            return Err(InitiatorError::Answer { command, why });
        }
        Ok(Some(data))
    }

    /// Block limits page; all fields are 0 if the unit does not support the page.
    ///
    /// # Errors
    /// See [`Self::vital_data`].
    pub fn block_limits(&mut self) -> Result<BlockLimits, InitiatorError> {
        Ok(BlockLimits::parse(&self.vital_data(0xB0)?.unwrap_or_default()))
    }

    /// Logical block provisioning page; all fields are false if the unit does not support the page.
    ///
    /// # Errors
    /// See [`Self::vital_data`].
    pub fn provisioning(&mut self) -> Result<Provisioning, InitiatorError> {
        Ok(Provisioning::parse(&self.vital_data(0xB2)?.unwrap_or_default()))
    }

    /// Write cache and write protection; default values if the unit does not support the caching
    /// page.
    ///
    /// # Errors
    /// The command failed for another reason.
    pub fn caching(&mut self) -> Result<Caching, InitiatorError> {
        let reply = self.insist(cdb::mode_sense10(0x08, 255), &[], 255)?;
        if reply.is_not_supported() {
            return Ok(Caching::default());
        }
        done("MODE SENSE (10)", reply).map(|reply| Caching::parse(&reply.data))
    }

    /// LUNs of the logical units that this initiator can access, without LUNs of several levels.
    ///
    /// # Errors
    /// The command failed.
    pub fn luns(&mut self) -> Result<Vec<u16>, InitiatorError> {
        let data = self.read("REPORT LUNS", cdb::report_luns(LUNS_BYTES), LUNS_BYTES)?;
        let (lists, _) = data.get(8..).unwrap_or_default().as_chunks::<8>();
        Ok(lists.iter().filter_map(|field| weir_scsi::Lun(*field).number()).collect())
    }

    /// Negotiated parameters.
    pub const fn negotiated(&self) -> &Negotiated {
        self.connection.negotiated()
    }

    /// Number of bytes sent and received on the socket, including the login.
    pub const fn wire_bytes(&self) -> WireBytes {
        self.connection.wire_bytes()
    }

    /// Turns the session into its connection, with `slots` command slots.
    pub fn into_connection(mut self, slots: usize) -> Connection {
        self.connection.exchange_mut().set_slots(slots);
        self.connection
    }

    /// Logs out.
    ///
    /// # Errors
    /// The target did not complete the logout. The connection is closed in any case.
    pub fn logout(mut self) -> Result<(), InitiatorError> {
        if self.is_lost { Ok(()) } else { self.connection.log_out() }
    }
}

/// Returns the reply if the command succeeded, or an error if it failed.
fn done(command: &'static str, reply: Reply) -> Result<Reply, InitiatorError> {
    match reply.advice() {
        Advice::Done => Ok(reply),
        _ => {
            let Reply { status, sense, .. } = reply;
            Err(InitiatorError::Command { command, status, sense })
        }
    }
}

//! Runs one command on one logical unit: checks unit attentions and reservations, calls the
//! command, builds the response.
//!
//! The commands are in `command`.
//!
//! Spec: SAM-5 5.3.3 for the precedence of statuses.
//!
//! Invariants:
//! - a refused command changes no data and returns no data;
//! - a writer registers as running before it checks reservations, so that PREEMPT can wait for the
//!   writes that the former reservation allowed.

use std::sync::Arc;

use weir_block::{Block, OutBuf};

use crate::codec::command::{Command, Status};
use crate::codec::operation::{Access, Action, Operation, extent};
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{BECOMING_READY, DATA_LENGTH, FAILURE, NO_UNIT, Sense};
use crate::codec::transport::Completion;
use crate::command::task::{Task, reply};
use crate::command::{
    block, compare, copy, copy_results, inquiry, log, mode, persistent, provision, report,
    token_copy, verify,
};
use crate::fields::{be16, be32, bit, byte};
use crate::limits::{STATUS_DESCRIPTORS_MAX, TRANSFER_BYTES_MAX};
use crate::unit::itl_nexus::ItlNexus;
use crate::unit::logical_unit::Unit;
use crate::unit::nexus_state::NexusState;

impl<'a> Task<'a> {
    /// Creates the task of a command on an I_T_L nexus.
    pub(crate) fn new(
        nexus: &'a NexusState,
        itl_nexus: &'a Arc<ItlNexus>,
        command: Command<'a>,
    ) -> Self {
        Self { nexus, itl_nexus, unit: &itl_nexus.unit, cdb: command.cdb, data: command.data_out }
    }

    /// Runs the command if it can complete without waiting.
    pub(crate) fn try_run(&self, out: &mut OutBuf) -> Option<Completion> {
        if let Err(refusal) = self.look_for_attention() {
            return Some(self.end(None, Err(refusal)));
        }
        let operation = match Operation::find(self.cdb) {
            Ok(operation) => operation,
            Err(sense) => return Some(self.end(None, Err(sense.into()))),
        };
        // Register this writer before the reservation check: `Ranges::fence` waits only for
        // registered writers.
        let _quick = match operation.action {
            Action::Write => Some(self.unit.ranges.quick()?),
            _ => None,
        };
        let _run = (operation.action == Action::CompareAndWrite).then(|| self.itl_nexus.run());
        if let Err(refusal) = self.admit(operation) {
            return Some(self.end(Some(operation), Err(refusal)));
        }
        let start = out.len();
        let outcome = self.try_act(operation.action, out);
        if !matches!(outcome, Some(Ok(()))) {
            out.truncate(start);
        }
        Some(self.end(Some(operation), outcome?))
    }

    /// Runs the command if it is a READ of `len_bytes` in whole blocks that are all in memory.
    pub(crate) fn try_share(&self, len_bytes: u64, blocks: &mut Vec<Block>) -> Option<Completion> {
        let operation = Operation::find(self.cdb).ok().filter(|of| of.action == Action::Read)?;
        if self.nexus.has_attention(self.itl_nexus) || self.admit(operation).is_err() {
            return None;
        }
        let start = blocks.len();
        if !block::try_share(self, len_bytes, blocks) {
            blocks.truncate(start);
            return None;
        }
        Some(self.end(Some(operation), Ok(())))
    }

    /// Runs the command, and waits for storage where necessary.
    pub(crate) async fn run(&self, out: &mut OutBuf) -> Completion {
        if let Err(refusal) = self.look_for_attention() {
            return self.end(None, Err(refusal));
        }
        let operation = match Operation::find(self.cdb) {
            Ok(operation) => operation,
            Err(sense) => return self.end(None, Err(sense.into())),
        };
        let _run = (operation.access == Access::Write).then(|| self.itl_nexus.run());
        if let Err(refusal) = self.admit(operation) {
            return self.end(Some(operation), Err(refusal));
        }
        let start = out.len();
        let outcome = self.act(operation.action, out).await;
        if outcome.is_err() {
            out.truncate(start);
        }
        self.end(Some(operation), outcome)
    }

    /// Reports a pending unit attention in place of running the command. INQUIRY, REPORT LUNS and
    /// REQUEST SENSE run in spite of a unit attention (SAM-5 5.14).
    fn look_for_attention(&self) -> Outcome {
        if matches!(byte(self.cdb, 0), 0x03 | 0x12 | 0xA0) {
            return Ok(());
        }
        match self.nexus.take_attention(self.itl_nexus) {
            Some(attention) => Err(attention.sense().into()),
            None => Ok(()),
        }
    }

    /// Checks that reservations allow this nexus to run the command.
    fn admit(&self, operation: &Operation) -> Outcome {
        let access = match operation.action {
            // A start of the unit changes nothing, so every nexus may start it. A stop needs write
            // access (SBC-3 table 15).
            Action::StartStop if byte(self.cdb, 4) & 0xF1 == 0x01 => Access::Persistent,
            _ => operation.access,
        };
        if self.unit.reservations.allows(self.itl_nexus.id, &self.itl_nexus.name.path, access) {
            Ok(())
        } else {
            Err(Refusal::Status(Status::ReservationConflict))
        }
    }

    /// Runs the command without waiting; returns `None` if the command must wait.
    fn try_act(&self, action: Action, out: &mut OutBuf) -> Option<Outcome> {
        Some(match action {
            Action::Read => return block::try_read(self, out),
            Action::Write => return block::try_write(self),
            Action::CompareAndWrite => return compare::try_compare_and_write(self),
            Action::TestUnitReady => Ok(()),
            Action::RequestSense => {
                inquiry::request_sense(self, out);
                Ok(())
            }
            Action::Inquiry => inquiry::inquiry(self, out),
            Action::ModeSelect if mode::saves(self.cdb) => return None,
            Action::ModeSelect => mode::select(self),
            Action::ModeSense => mode::sense(self, out),
            Action::Reserve => persistent::reserve(self),
            Action::Release => persistent::release(self),
            Action::ReadCapacity10 => {
                block::read_capacity_10(self, out);
                Ok(())
            }
            Action::ReadCapacity16 => block::read_capacity_16(self, out),
            Action::LogSense => log::sense(self, out),
            Action::PersistentIn => persistent::input(self, out),
            Action::ReceiveCopyResults => copy_results::results(self, out),
            Action::ReceiveCopyStatus => copy_results::status(self, out),
            Action::ReceiveTokenInformation => copy_results::token_information(self, out),
            Action::ReportLuns => report::luns(self.nexus, self.cdb, out),
            Action::ReportPortGroups => report::port_groups(self, out),
            Action::ReportOperations => report::operations(self, out),
            Action::ReportFunctions => {
                report::functions(self, out);
                Ok(())
            }
            Action::StartStop
            | Action::OrWrite
            | Action::WriteAndVerify
            | Action::Verify
            | Action::Prefetch
            | Action::SynchronizeCache
            | Action::WriteSame
            | Action::Unmap
            | Action::GetLbaStatus
            | Action::PersistentOut
            | Action::ExtendedCopy
            | Action::PopulateToken
            | Action::WriteUsingToken
            | Action::AbortCopy => return None,
        })
    }

    async fn act(&self, action: Action, out: &mut OutBuf) -> Outcome {
        match action {
            Action::Read => block::read(self, out).await,
            Action::Write => block::write(self).await,
            Action::OrWrite => compare::or_write(self).await,
            Action::CompareAndWrite => compare::compare_and_write(self).await,
            Action::WriteAndVerify => verify::write_and_verify(self).await,
            Action::Verify => verify::verify(self).await,
            Action::Prefetch => block::prefetch(self).await,
            Action::SynchronizeCache => block::synchronize_cache(self).await,
            Action::StartStop => block::start_stop(self).await,
            Action::WriteSame => provision::write_same(self).await,
            Action::Unmap => provision::unmap(self).await,
            Action::GetLbaStatus => provision::lba_status(self, out).await,
            Action::PersistentOut => persistent::output(self).await,
            Action::ExtendedCopy => copy::extended_copy(self).await,
            Action::ModeSelect if mode::saves(self.cdb) => mode::select_and_save(self).await,
            Action::PopulateToken => token_copy::populate_token(self).await,
            Action::WriteUsingToken => token_copy::write_using_token(self).await,
            Action::AbortCopy => copy_results::abort(self).await,
            other => self.try_act(other, out).unwrap_or(Err(FAILURE.into())),
        }
    }

    fn end(&self, operation: Option<&Operation>, outcome: Outcome) -> Completion {
        let wanted_bytes = operation.map_or(0, |operation| self.wanted_bytes(operation));
        complete(outcome, wanted_bytes, self.unit.mode.descriptor_sense())
    }

    /// Data-Out bytes that the command requires.
    fn wanted_bytes(&self, operation: &Operation) -> u64 {
        let block = self.unit.block();
        match operation.action {
            Action::Write | Action::OrWrite | Action::WriteAndVerify => {
                extent(self.cdb).blocks * block
            }
            Action::Verify => match byte(self.cdb, 1) >> 1 & 3 {
                1 => extent(self.cdb).blocks * block,
                3 if extent(self.cdb).blocks > 0 => block,
                _ => 0,
            },
            Action::CompareAndWrite => 2 * u64::from(byte(self.cdb, 13)) * block,
            Action::WriteSame if operation.code() == 0x93 && bit(self.cdb, 1, 1) => 0,
            Action::WriteSame => block,
            Action::ModeSelect if operation.code() == 0x15 => byte(self.cdb, 4).into(),
            Action::ModeSelect | Action::Unmap => be16(self.cdb, 7).into(),
            Action::PersistentOut => be32(self.cdb, 5).into(),
            Action::ExtendedCopy | Action::PopulateToken | Action::WriteUsingToken => {
                be32(self.cdb, 10).into()
            }
            _ => 0,
        }
    }

    /// Returns the first `len_bytes` of the Data-Out and ignores the rest. If the Data-Out is
    /// shorter, refuses the command before it changes anything.
    pub(crate) fn data(&self, len_bytes: u64) -> Result<&'a [u8], Sense> {
        self.data.get(..len_bytes as usize).ok_or(DATA_LENGTH)
    }

    /// Allocation length of a CDB of 6, 10, 12 or 16 bytes with the usual field position.
    pub(crate) fn allocation(&self) -> usize {
        match byte(self.cdb, 0) >> 5 {
            0 => usize::from(byte(self.cdb, 4)),
            1 | 2 => usize::from(be16(self.cdb, 7)),
            5 => be32(self.cdb, 6) as usize,
            _ => be32(self.cdb, 10) as usize,
        }
    }
}

fn complete(outcome: Outcome, wanted_bytes: u64, descriptor: bool) -> Completion {
    let (status, sense) = match outcome {
        Ok(()) => (Status::Good, None),
        Err(Refusal::Status(status)) => (status, None),
        Err(Refusal::Check(mut sense)) => {
            sense.descriptor = descriptor;
            (Status::CheckCondition, Some(sense))
        }
    };
    Completion { status, sense, wanted_bytes }
}

/// Implements `Nexus::answer_bytes` for one logical unit.
pub(crate) fn answer_bytes(unit: &Unit, cdb: &[u8]) -> usize {
    let bytes = match Operation::find(cdb).map(|operation| operation.action) {
        Ok(Action::Read) => extent(cdb).blocks.saturating_mul(unit.block()).min(TRANSFER_BYTES_MAX),
        Ok(Action::GetLbaStatus) => 8 + 16 * STATUS_DESCRIPTORS_MAX,
        // The other commands either return no data, or always complete without waiting.
        _ => 0,
    };
    bytes as usize
}

/// Responds to a command for a logical unit that does not exist (SPC-4 6.6.1, 6.33, 6.39; SAM-5
/// 5.11), or that the server has announced but not yet added.
pub(crate) fn without_unit(
    nexus: &NexusState,
    is_awaited: bool,
    command: &Command<'_>,
    out: &mut OutBuf,
) -> Completion {
    let start = out.len();
    let cdb = command.cdb;
    let why = if is_awaited { BECOMING_READY } else { NO_UNIT };
    let outcome = match byte(cdb, 0) {
        0x12 => Operation::find(cdb).map_err(Refusal::from).and_then(|_| inquiry::absent(cdb, out)),
        0xA0 => {
            Operation::find(cdb).map_err(Refusal::from).and_then(|_| report::luns(nexus, cdb, out))
        }
        0x03 => Operation::find(cdb).map_err(Refusal::from).map(|_| {
            let sense = Sense { descriptor: bit(cdb, 1, 1), ..why };
            reply(out, &sense.to_bytes(), byte(cdb, 4).into());
        }),
        _ => Err(why.into()),
    };
    if outcome.is_err() {
        out.truncate(start);
    }
    complete(outcome, 0, false)
}

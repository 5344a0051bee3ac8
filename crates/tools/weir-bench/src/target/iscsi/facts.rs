//! Properties and capabilities of a logical unit, queried before a run.
//!
//! `iscsi` executes the commands of a run.
//!
//! Invariants:
//! - a command counts as supported unless the logical unit rejected a trial of the command as an
//!   invalid opcode or field; vital product data pages alone are not always correct;
//! - a trial command changes no block: its range starts after the last block, or its list is empty.

use std::collections::BTreeMap;

use weir_base::size::Human;
use weir_initiator::cdb::{self, WriteSame};
use weir_initiator::{
    BlockLimits, Caching, Capacity, InitiatorError, Inquiry, Negotiated, Provisioning, Session,
    copy_segment_blocks_max, naa_in,
};

use crate::spec::OpKind;

/// Maximum number of blocks of one command if the unit states no limit: the maximum of the length
/// field in the command.
const BLOCKS_MAX: u64 = u32::MAX as u64;

/// Properties of a logical unit.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) capacity: Capacity,
    pub(super) inquiry: Inquiry,
    pub(super) caching: Caching,
    pub(super) provisioning: Provisioning,
    limits: BlockLimits,
    /// NAA identifier, by which copy commands name the unit.
    pub(super) naa: Option<Vec<u8>>,
    can_unmap: bool,
    can_write_same: bool,
    can_compare: bool,
    /// Maximum number of blocks of one copy segment; `None`: the unit does not support copy
    /// commands.
    copy_blocks_max: Option<u64>,
}

impl Unit {
    /// Queries the properties of the unit.
    pub(super) fn ask(session: &mut Session) -> Result<Self, InitiatorError> {
        let capacity = session.read_capacity()?;
        let inquiry = session.inquiry()?;
        let identity = session.vital_data(0x83)?.unwrap_or_default();
        let third_party = session.vital_data(0x8F)?;
        let (behind, block) = (capacity.blocks, vec![0; capacity.block_bytes as usize]);
        let (twice, how) = (block.repeat(2), WriteSame::default());
        let naa = naa_in(&identity);
        let can_copy = naa.is_some() && is_there(session, cdb::extended_copy(0), &[])?;
        let listed = third_party
            .map_or(Some(0xFFFF), |bytes| copy_segment_blocks_max(&bytes, capacity.block_bytes));
        Ok(Self {
            caching: session.caching()?,
            provisioning: session.provisioning()?,
            limits: session.block_limits()?,
            can_unmap: is_there(session, cdb::unmap(0), &[])?,
            can_write_same: is_there(session, cdb::write_same16(behind, 1, how), &block)?,
            can_compare: is_there(session, cdb::compare_and_write(behind, 1, false), &twice)?,
            copy_blocks_max: listed.filter(|_| can_copy),
            capacity,
            inquiry,
            naa,
        })
    }

    /// Maximum length in bytes of one operation of this kind; 0 if the unit does not support the
    /// kind.
    pub(super) fn op_bytes_max(&self, kind: OpKind) -> u64 {
        let stated = |blocks: u64| if blocks == 0 { BLOCKS_MAX } else { blocks };
        let limits = &self.limits;
        let blocks = match kind {
            OpKind::Read | OpKind::Write | OpKind::Flush => {
                stated(limits.transfer_blocks_max.into())
            }
            OpKind::Trim if self.can_unmap => stated(limits.unmap_blocks_max.into()),
            OpKind::WriteSame if self.can_write_same => stated(limits.write_same_blocks_max),
            OpKind::CompareAndWrite if self.can_compare => match limits.compare_blocks_max {
                // The unit states no maximum, so use the smallest possible maximum: one block.
                0 => 1,
                blocks => blocks.into(),
            },
            OpKind::Copy => self.copy_blocks_max.unwrap_or(0),
            _ => 0,
        };
        blocks.saturating_mul(self.capacity.block_bytes.into())
    }

    /// Properties of the unit and of the session, for the report.
    pub(super) fn facts(&self, negotiated: &Negotiated) -> BTreeMap<String, String> {
        let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let size = |bytes: u32| Human(bytes.into()).to_string();
        let offload = |kind: OpKind| match self.op_bytes_max(kind) {
            0 => "no".to_owned(),
            most if most >= self.capacity.bytes() => "yes".to_owned(),
            most => format!("up to {}", Human(most)),
        };
        let cache = match self.caching.write_cache {
            Some(true) => "volatile (WCE)",
            Some(false) => "none, or not volatile",
            None => "not reported",
        };
        let digests = match (negotiated.digests.header, negotiated.digests.data) {
            (false, false) => "none",
            (true, false) => "header",
            (false, true) => "data",
            (true, true) => "header and data",
        };
        let asks = if negotiated.initial_r2t { "solicited first" } else { "unsolicited" };
        let facts = [
            ("product", self.inquiry.names.join(" ")),
            ("block", size(self.capacity.block_bytes)),
            ("write cache", cache.to_owned()),
            ("fua", yes_no(self.caching.fua)),
            ("unmap", offload(OpKind::Trim)),
            ("write same", offload(OpKind::WriteSame)),
            ("compare and write", offload(OpKind::CompareAndWrite)),
            ("extended copy", offload(OpKind::Copy)),
            ("burst", size(negotiated.max_burst_bytes)),
            ("first burst", format!("{}, {asks}", size(negotiated.first_burst_bytes))),
            ("data segment to the target", size(negotiated.send_data_bytes_max)),
            ("data segment from the target", size(negotiated.receive_data_bytes_max)),
            ("digests", digests.to_owned()),
        ];
        facts.map(|(name, fact)| (name.to_owned(), fact)).into()
    }
}

/// Tests whether the unit supports a command by sending the command in a form that has no effect.
fn is_there(session: &mut Session, command: cdb::Cdb, data: &[u8]) -> Result<bool, InitiatorError> {
    const NO_SUCH_OPERATION: u8 = 0x20;
    const NO_SUCH_FIELD: u8 = 0x24;
    let reply = session.insist(command, data, 0)?;
    let refused = [NO_SUCH_OPERATION, NO_SUCH_FIELD];
    Ok(reply.sense.is_none_or(|sense| sense.key != 0x5 || !refused.contains(&sense.asc)))
}

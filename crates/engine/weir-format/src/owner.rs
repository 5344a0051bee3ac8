//! The owner slot of a label: identity and heartbeat of the process that has the pool open.
//!
//! weir-pool decides whether an owner is alive. The other parts of the label are in other modules.
//!
//! Invariants: each label has one slot, which is rewritten in place; a torn or damaged slot counts
//! as absent, and so does a slot of zeros, as in pools that predate owner slots.

use weir_base::{Guid, Txg};
use weir_codec::checksum::xxh3_128;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::layout::SLOT_BYTES;

const WHAT: &str = "owner slot";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIROWNR");
/// Maximum length of each text: identity of the machine, identity of its boot, host name.
pub const OWNER_TEXT_BYTES_MAX: usize = 256;

/// The process that has a pool open, or had it open last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Guid of the pool.
    pub pool: Guid,
    /// Id of the owner's import epoch.
    pub import_epoch: Guid,
    /// True if the owner closed the pool.
    pub is_closed: bool,
    /// Identity of the machine.
    pub machine: String,
    /// Host name, for messages to users.
    pub host: String,
    /// Identity of the machine's boot.
    pub boot: String,
    /// Inode of the PID namespace in which `pid` is valid.
    pub pid_namespace: u64,
    /// Process id.
    pub pid: u32,
    /// Start time of the process in ticks since boot. The start time distinguishes the process from
    /// a later process with the same id.
    pub pid_start: u64,
    /// Heartbeat: changes with every rewrite of the slot.
    pub beat: u64,
    /// Wall clock of the last rewrite, ms since 1970; displayed, never compared.
    pub unix_ms: u64,
    /// A txg that was committed in this import epoch; 0 if none is known. The uberblock of this
    /// txg, or of a later one, is durable on the legs that were in use.
    pub txg: Txg,
}

impl Owner {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "\"WEIROWNR\""),
        field(8, "pool", "pool guid"),
        field(8, "import_epoch", "import epoch of the pool"),
        field(1, "is_closed", "1: the owner closed the pool"),
        field(8, "pid_namespace", "inode of the owner's PID namespace"),
        field(4, "pid", "process of the owner"),
        field(8, "pid_start", "start of that process, ticks since boot"),
        field(8, "heartbeat", "heartbeat: incremented with every rewrite"),
        field(8, "unix_ms", "wall clock of the rewrite, ms since 1970"),
        field(0, "machine", "identity of the machine; a string is a u16 length and UTF-8"),
        field(0, "host", "host name"),
        field(0, "boot", "identity of the boot"),
        field(8, "txg", "a txg that this import epoch has committed, 0 if none is known"),
        field(0, "zero", "up to byte 4080"),
        field(16, "checksum", "XXH3-128 of bytes 0 to 4080"),
    ];

    /// Encodes the owner as one slot.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let texts = [&self.machine, &self.host, &self.boot];
        assert!(texts.iter().all(|text| text.len() <= OWNER_TEXT_BYTES_MAX), "{self:?}");
        let mut w = Writer::default();
        w.u64(MAGIC);
        w.u64(self.pool.0);
        w.u64(self.import_epoch.0);
        w.u8(u8::from(self.is_closed));
        w.u64(self.pid_namespace);
        w.u32(self.pid);
        w.u64(self.pid_start);
        w.u64(self.beat);
        w.u64(self.unix_ms);
        texts.iter().for_each(|text| w.str(text));
        w.u64(self.txg.0);
        w.pad_to(SLOT_BYTES - 16);
        let checksum = xxh3_128(&w.0);
        w.u128(checksum);
        w.0.try_into().expect("padded to one slot")
    }

    /// Decodes one slot.
    ///
    /// # Errors
    /// The slot has no owner, or is torn or damaged.
    pub fn decode(slot: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, slot);
        if r.u64()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let (body, sum) =
            slot.split_at_checked(SLOT_BYTES - 16).ok_or(FormatError::Truncated { what: WHAT })?;
        if sum != xxh3_128(body).to_le_bytes() {
            return Err(FormatError::Checksum { what: WHAT });
        }
        let (pool, import_epoch) = (Guid(r.u64()?), Guid(r.u64()?));
        let is_closed = match r.u8()? {
            0 => false,
            1 => true,
            other => return Err(r.bad("is_closed", other)),
        };
        let (pid_namespace, pid, pid_start) = (r.u64()?, r.u32()?, r.u64()?);
        let (beat, unix_ms) = (r.u64()?, r.u64()?);
        let mut text = |field| {
            let text = r.str(field)?;
            let len = text.len() as u64;
            if text.len() > OWNER_TEXT_BYTES_MAX { Err(r.bad(field, len)) } else { Ok(text) }
        };
        let (machine, host, boot) = (text("machine")?, text("host")?, text("boot")?);
        let txg = Txg(r.u64()?);
        Ok(Self {
            pool,
            import_epoch,
            is_closed,
            machine,
            host,
            boot,
            pid_namespace,
            pid,
            pid_start,
            beat,
            unix_ms,
            txg,
        })
    }
}

//! Calls that a caller submits, and the buffers with their data.
//!
//! `output` encodes the calls.
//!
//! Invariant: the data of a READ or WRITE is a range of the buffer of one slot.

use std::ops::Range;

use weir_nfs_wire::nfs3::{Args, StableHow};

use crate::handle::Handle;

/// Data buffers of READ and WRITE. The caller owns the buffers; each slot has one.
pub trait Buffers {
    /// Buffer with the data of a WRITE.
    fn data(&self, slot: usize) -> &[u8];
    /// Buffer for the data of a READ.
    fn data_mut(&mut self, slot: usize) -> &mut [u8];
}

/// A call to submit.
#[derive(Debug)]
pub enum Request<'a> {
    /// A procedure of NFSv3. The exchange copies all arguments, also the data of WRITE.
    Nfs(&'a Args<'a>),
    /// READ into a range of the buffer of a slot.
    Read {
        /// File to read.
        file: &'a Handle,
        /// Offset of the first byte in the file.
        offset: u64,
        /// Slot of the buffer.
        slot: usize,
        /// Range of the buffer; its length is the number of bytes to read.
        range: Range<usize>,
    },
    /// WRITE from a range of the buffer of a slot.
    Write {
        /// File to write.
        file: &'a Handle,
        /// Offset of the first byte in the file.
        offset: u64,
        /// Requested stability.
        stable: StableHow,
        /// Slot of the buffer.
        slot: usize,
        /// Range of the buffer with the data.
        range: Range<usize>,
    },
    /// A procedure of another program.
    Other {
        /// Number of the program.
        program: u32,
        /// Version of the program.
        version: u32,
        /// Number of the procedure.
        procedure: u32,
        /// Name of the procedure in errors.
        name: &'static str,
        /// Encoded arguments.
        args: &'a [u8],
    },
}

/// Program, version and procedure of a call.
pub(super) type Target = (u32, u32, u32);

//! Valid inputs that the seeds of several targets share, and the block that an input fills.
//!
//! The `seeds` function of a target builds the inputs that only this target uses.
//!
//! Invariant: a function returns the same bytes in each call.

use weir_base::{Txg, VsegId};
use weir_block::OutBuf;
use weir_format::BlockPtr;
use weir_iscsi_wire::pdu::{self, Digests, Header, Login, NO_TAG, opcode};

/// No digests, as before the negotiation.
pub(crate) const NO_DIGESTS: Digests = Digests { header: false, data: false };

/// Pointer to a block of 4 KiB that is not compressed.
pub(crate) fn pointer() -> BlockPtr {
    BlockPtr {
        vseg: VsegId(3),
        offset_units: 64,
        stored_units: 64,
        birth: Txg(5),
        checksum: 1,
        ..BlockPtr::HOLE
    }
}

/// Returns the bytes without trailing zeros.
pub(crate) fn trimmed(bytes: &[u8]) -> Vec<u8> {
    let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..len].to_vec()
}

/// Returns a block of `N` bytes that starts with the input; the rest of the block is zero.
pub(crate) fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut block = [0; N];
    let len = data.len().min(N);
    block[..len].copy_from_slice(&data[..len]);
    block
}

/// Encodes an iSCSI PDU.
pub(crate) fn pdu(header: Header, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut out = OutBuf::default();
    pdu::put(&mut out, header, data, digests);
    out.filled().to_vec()
}

/// Builds a Login Request that ends a login stage.
pub(crate) fn login(stage: u8, next_stage: u8) -> Header {
    let login = Login {
        transit: stage != next_stage,
        continues: false,
        stage,
        next_stage,
        version_min: 0,
        isid: [0; 6],
        tsih: 0,
        itt: 0,
        cid: 0,
        cmd_sn: 0,
        exp_stat_sn: 0,
    };
    login.encode()
}

/// Builds a Text Request.
pub(crate) fn text(cmd_sn: u32) -> Header {
    request(opcode::TEXT, 0x80, cmd_sn)
}

/// Builds a request with this CmdSN, which is also the request's task tag.
fn request(opcode: u8, flags: u8, cmd_sn: u32) -> Header {
    let mut header = Header::new(opcode, flags);
    header.set_word(16, cmd_sn);
    header.set_word(20, NO_TAG);
    header.set_word(24, cmd_sn);
    header
}

/// Encodes requests of each kind in full feature phase, which one session can execute.
pub(crate) fn requests(digests: Digests) -> Vec<u8> {
    let command = |flags, cmd_sn, expected_bytes, cdb: [u8; 2]| {
        let mut header = request(opcode::COMMAND, flags, cmd_sn);
        header.set_word(20, expected_bytes);
        header.set(32, cdb);
        header
    };
    let mut data_out = request(opcode::DATA_OUT, 0x80, 3);
    data_out.set_word(24, 0);
    let mut abort = request(opcode::MANAGEMENT, 0x81, 4);
    abort.set_word(20, 3);
    let parts: [(Header, &[u8]); 9] = [
        (request(opcode::NOP_OUT, 0x80, 0), b"ping"),
        // The nexus completes the first read immediately; the second read waits.
        (command(0xC0, 1, 4096, [0x28, 255]), b""),
        (command(0xC0, 2, 64, [0x29, 4]), b""),
        // Send a write with immediate data and unsolicited data.
        (command(0x20, 3, 1024, [0x2A, 0]), &[1; 512]),
        (data_out, &[2; 512]),
        (abort, b""),
        (text(5), b"SendTargets=All\0"),
        (command(0x80, 6, 0, [0xf0, 0]), b""),
        (request(opcode::LOGOUT, 0x80, 7), b""),
    ];
    parts.into_iter().flat_map(|(header, data)| pdu(header, data, digests)).collect()
}

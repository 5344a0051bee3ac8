//! Initiator for tests: sends exactly the PDUs that a test specifies, and checks sequence numbers.
//!
//! The initiator does not enforce the protocol; a test may send any bytes.
//!
//! Invariants:
//! - each receive has a time limit, so that a hanging target fails the test;
//! - StatSN increases by one with each numbered response, and MaxCmdSN never decreases.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use weir_block::OutBuf;
use weir_iscsi_wire::pdu::{self, Digests, Framed, Header, Login, NO_TAG, opcode};
use weir_iscsi_wire::text;

use crate::common::memory::{BLOCK, TARGET};

pub(crate) const NAME: &str = "iqn.2026-01.org.example:client";

/// PDU from the target.
pub(crate) struct Reply {
    pub(crate) header: Header,
    pub(crate) data: Vec<u8>,
}

impl Reply {
    /// Returns the SCSI status of a response, with the sense key, ASC and ASCQ of its sense data.
    pub(crate) fn status(&self) -> (u8, [u8; 3]) {
        let sense = self.data.get(2..).unwrap_or_default();
        let sense = if sense.len() < 14 { [0; 3] } else { [sense[2], sense[12], sense[13]] };
        (self.header.byte(3), sense)
    }
}

pub(crate) struct Initiator {
    pub(crate) socket: TcpStream,
    pub(crate) digests: Digests,
    pub(crate) cmd_sn: u32,
    pub(crate) itt: u32,
    pub(crate) isid: [u8; 6],
    pub(crate) tsih: u16,
    pub(crate) cid: u16,
    /// Maximum length of the data segment of one Data-Out.
    pub(crate) segment: usize,
    pub(crate) max_cmd_sn: u32,
    stat_sn: Option<u32>,
    input: Vec<u8>,
}

impl Initiator {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::on(TcpStream::connect(address).expect("a server"))
    }

    /// Connects to the target from this local address.
    pub(crate) fn connect_from(from: [u8; 4], address: SocketAddr) -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from((from, 0))).expect("an address of the machine");
        connect(&socket, &address).expect("a server");
        Self::on(socket.into())
    }

    fn on(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a time limit");
        socket.set_nodelay(true).expect("a TCP socket");
        Self {
            socket,
            digests: Digests::default(),
            cmd_sn: 7,
            itt: 0,
            isid: [0x80, 1, 2, 3, 4, 5],
            tsih: 0,
            cid: 1,
            segment: 8192,
            max_cmd_sn: 0,
            stat_sn: None,
            input: Vec::new(),
        }
    }

    /// Logs in to the target of the disk, without authentication.
    pub(crate) fn session(address: SocketAddr, keys: &[(&str, &str)]) -> Self {
        let mut initiator = Self::connect(address);
        initiator.log_in(keys).expect("a session");
        initiator
    }

    /// Logs in to a normal session with one request. Returns the login status if the target
    /// refuses.
    pub(crate) fn log_in(&mut self, keys: &[(&str, &str)]) -> Result<Vec<u8>, [u8; 2]> {
        let names = [("InitiatorName", NAME), ("TargetName", TARGET)];
        let all: Vec<_> = names.iter().chain(keys).copied().collect();
        let answer = self.login_step(1, Some(3), &all)?;
        self.use_digests(&answer);
        Ok(answer)
    }

    pub(crate) fn use_digests(&mut self, answer: &[u8]) {
        let answer = text::pairs(answer).expect("text");
        self.digests.header = answer.contains(&("HeaderDigest", "CRC32C"));
        self.digests.data = answer.contains(&("DataDigest", "CRC32C"));
    }

    /// Sends one Login Request. Returns the text of the response.
    pub(crate) fn login_step(
        &mut self,
        stage: u8,
        next: Option<u8>,
        keys: &[(&str, &str)],
    ) -> Result<Vec<u8>, [u8; 2]> {
        let mut data = Vec::new();
        keys.iter().for_each(|(key, value)| text::put(&mut data, key, value));
        self.send_login(stage, next, false, &data);
        let reply = self.reply();
        assert_eq!(reply.header.opcode(), opcode::LOGIN_RESPONSE);
        let status = reply.header.bytes(36);
        if status != [0, 0] {
            return Err(status);
        }
        self.tsih = u16::from_be_bytes(reply.header.bytes(14));
        Ok(reply.data)
    }

    pub(crate) fn send_login(&mut self, stage: u8, next: Option<u8>, continues: bool, data: &[u8]) {
        let login = Login {
            transit: next.is_some(),
            continues,
            stage,
            next_stage: next.unwrap_or(0),
            version_min: 0,
            isid: self.isid,
            tsih: self.tsih,
            itt: 1,
            cid: self.cid,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: 0,
        };
        self.send(login.encode(), data);
    }

    pub(crate) fn send(&mut self, header: Header, data: &[u8]) {
        let mut out = OutBuf::default();
        pdu::put(&mut out, header, data, self.digests);
        self.send_raw(out.filled());
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the target takes it");
    }

    /// Returns the next PDU; `None` at the end of the connection.
    pub(crate) fn try_reply(&mut self) -> Option<Reply> {
        loop {
            let framed = pdu::frame(&self.input, self.digests, 1 << 24).expect("a good header");
            if let Framed::Pdu(pdu, used) = framed {
                assert!(pdu.data_intact, "data matches its digest");
                let reply = Reply { header: pdu.header, data: pdu.data.to_vec() };
                self.input.drain(..used);
                self.check_numbers(&reply.header);
                return Some(reply);
            }
            let mut bytes = vec![0; 1 << 20];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.input.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.try_reply().expect("an answer, not the end")
    }

    fn check_numbers(&mut self, header: &Header) {
        let max = header.word(32);
        if self.stat_sn.is_some() && header.opcode() != opcode::LOGIN_RESPONSE {
            assert!(max.wrapping_sub(self.max_cmd_sn).cast_signed() >= 0, "the window shrinks");
        }
        self.max_cmd_sn = max;
        let numbered = match header.opcode() {
            opcode::R2T => false,
            opcode::DATA_IN => header.flags() & 1 != 0,
            opcode::NOP_IN => header.itt() != NO_TAG,
            _ => true,
        };
        let stat_sn = header.word(24);
        if numbered {
            assert!(self.stat_sn.is_none_or(|next| next == stat_sn), "StatSN {stat_sn}");
            self.stat_sn = Some(stat_sn.wrapping_add(1));
        } else if header.opcode() != opcode::DATA_IN {
            assert_eq!(self.stat_sn, Some(stat_sn), "StatSN of what has none is the next");
        }
    }

    pub(crate) fn fresh_itt(&mut self) -> u32 {
        self.itt += 1;
        self.itt
    }

    /// Returns the header of a command with the next CmdSN.
    pub(crate) fn command(&mut self, flags: u8, expected_bytes: usize, cdb: &[u8]) -> Header {
        let mut header = Header::new(opcode::COMMAND, flags);
        header.set_word(16, self.fresh_itt());
        header.set_word(20, expected_bytes as u32);
        header.set_word(24, self.cmd_sn);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        let mut sixteen = [0; 16];
        sixteen[..cdb.len()].copy_from_slice(cdb);
        header.set(32, sixteen);
        header
    }

    pub(crate) fn read_header(&mut self, block: u32, blocks: u16) -> Header {
        self.command(0xc1, usize::from(blocks) * BLOCK, &cdb10(0x28, block, blocks))
    }

    pub(crate) fn write_header(&mut self, block: u32, len: usize, is_final: bool) -> Header {
        let flags = if is_final { 0xa1 } else { 0x21 };
        self.command(flags, len, &cdb10(0x2a, block, (len / BLOCK) as u16))
    }

    /// Runs a READ(10). Asserts that no PDU of another command arrives before the read has ended.
    pub(crate) fn read(&mut self, block: u32, blocks: u16) -> Vec<u8> {
        let header = self.read_header(block, blocks);
        self.send(header, &[]);
        self.take_read(usize::from(blocks) * BLOCK)
    }

    /// Receives the Data-In PDUs of a read.
    pub(crate) fn take_read(&mut self, len: usize) -> Vec<u8> {
        let mut data = Vec::new();
        for data_sn in 0.. {
            let reply = self.reply();
            assert_eq!(reply.header.opcode(), opcode::DATA_IN);
            assert_eq!(reply.header.word(36), data_sn);
            assert_eq!(reply.header.word(40) as usize, data.len());
            data.extend(reply.data);
            if reply.header.flags() & 1 != 0 {
                assert_eq!(reply.header.flags() & 0x86, 0x80, "final, and no residual");
                break;
            }
        }
        assert_eq!(data.len(), len);
        data
    }

    pub(crate) fn data_out(itt: u32, ttt: u32, sn: u32, offset: usize, last: bool) -> Header {
        let mut header = Header::new(opcode::DATA_OUT, if last { 0x80 } else { 0 });
        header.set_word(16, itt);
        header.set_word(20, ttt);
        header.set_word(36, sn);
        header.set_word(40, offset as u32);
        header
    }

    /// Sends a range of `data` as one Data-Out sequence.
    pub(crate) fn send_sequence(&mut self, itt: u32, ttt: u32, data: &[u8], range: (usize, usize)) {
        let (mut offset, end) = range;
        for sn in 0.. {
            let next = (offset + self.segment).min(end);
            let header = Self::data_out(itt, ttt, sn, offset, next == end);
            self.send(header, &data[offset..next]);
            offset = next;
            if offset == end {
                return;
            }
        }
    }

    /// Runs a write: sends `immediate` bytes with the command, unsolicited Data-Outs up to
    /// `unsolicited`, and the rest as R2Ts request it. Returns the response.
    pub(crate) fn write(
        &mut self,
        block: u32,
        data: &[u8],
        immediate: usize,
        unsolicited: usize,
    ) -> Reply {
        let header = self.write_header(block, data.len(), unsolicited <= immediate);
        let itt = header.itt();
        self.send(header, &data[..immediate]);
        if unsolicited > immediate {
            self.send_sequence(itt, NO_TAG, data, (immediate, unsolicited));
        }
        let (mut r2ts, mut asked) = (0, immediate.max(unsolicited));
        loop {
            let reply = self.reply();
            assert_eq!(reply.header.itt(), itt);
            if reply.header.opcode() != opcode::R2T {
                assert_eq!(reply.header.opcode(), opcode::RESPONSE);
                if reply.header.byte(3) == 0 {
                    assert_eq!(asked, data.len(), "all was asked for");
                    assert_eq!(reply.header.word(36), r2ts, "ExpDataSN");
                }
                return reply;
            }
            assert_eq!(reply.header.word(36), r2ts, "R2TSN");
            r2ts += 1;
            let (offset, len) = (reply.header.word(40) as usize, reply.header.word(44) as usize);
            assert_eq!(offset, asked);
            asked = offset + len;
            self.send_sequence(itt, reply.header.word(20), data, (offset, asked));
        }
    }

    /// Sends an immediate task management request.
    pub(crate) fn manage(&mut self, function: u8, itt: u32, ref_cmd_sn: u32) -> u32 {
        let mut header = Header::new(opcode::MANAGEMENT | opcode::IMMEDIATE, 0x80 | function);
        header.set_word(16, self.fresh_itt());
        header.set_word(20, itt);
        header.set_word(24, self.cmd_sn);
        header.set_word(32, ref_cmd_sn);
        self.send(header, &[]);
        self.itt
    }

    pub(crate) fn nop(&mut self, data: &[u8]) -> Reply {
        let mut header = Header::new(opcode::NOP_OUT | opcode::IMMEDIATE, 0x80);
        header.set_word(16, self.fresh_itt());
        header.set_word(20, NO_TAG);
        header.set_word(24, self.cmd_sn);
        self.send(header, data);
        self.reply()
    }

    pub(crate) fn text(&mut self, data: &[u8], flags: u8, ttt: u32) -> Reply {
        let mut header = Header::new(opcode::TEXT | opcode::IMMEDIATE, flags);
        header.set_word(16, self.fresh_itt());
        header.set_word(20, ttt);
        header.set_word(24, self.cmd_sn);
        self.send(header, data);
        self.reply()
    }

    pub(crate) fn log_out(&mut self, reason: u8) -> Reply {
        let mut header = Header::new(opcode::LOGOUT | opcode::IMMEDIATE, 0x80 | reason);
        header.set_word(16, self.fresh_itt());
        header.set(20, self.cid.to_be_bytes());
        header.set_word(24, self.cmd_sn);
        self.send(header, &[]);
        self.reply()
    }

    /// Asserts that the target closes the connection.
    pub(crate) fn expect_end(&mut self) {
        assert!(self.try_reply().is_none(), "the connection ends");
    }
}

/// Returns the CDB of READ(10) or WRITE(10).
pub(crate) fn cdb10(operation: u8, block: u32, blocks: u16) -> [u8; 10] {
    let [a, b, c, d] = block.to_be_bytes();
    let [high, low] = blocks.to_be_bytes();
    [operation, 0, a, b, c, d, 0, high, low, 0]
}

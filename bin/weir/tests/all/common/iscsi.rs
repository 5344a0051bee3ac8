//! An iSCSI initiator, written from RFC 7143 independently of the code under test. The initiator
//! sends the data of each command as immediate data. [`Initiator::run`] runs one command at a time;
//! [`Initiator::send_commands`] and [`Initiator::answer`] are for several commands in flight.
//!
//! Not here: recovery from protocol errors; a protocol error fails the test.
//!
//! Invariant: every wait has a time limit, so that an unresponsive target fails the test.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const HEADER: usize = 48;
const LIMIT: Duration = Duration::from_mins(1);

/// Response of the target to a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u8,
    /// Sense key, code and qualifier.
    pub(crate) sense: [u8; 3],
    pub(crate) data: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn good(self) -> Vec<u8> {
        assert_eq!((self.status, self.sense), (0, [0; 3]));
        self.data
    }
}

/// A session that has one connection.
pub(crate) struct Initiator {
    socket: TcpStream,
    itt: u32,
    cmd_sn: u32,
    exp_stat_sn: u32,
    /// Number of bytes of all PDUs that were sent and received.
    pub(crate) wire_bytes: u64,
}

fn pad(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

/// Returns the bytes of a PDU.
fn pdu(mut header: [u8; HEADER], data: &[u8]) -> Vec<u8> {
    header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    let mut bytes = header.to_vec();
    bytes.extend(data);
    bytes.resize(bytes.len() + pad(data.len()), 0);
    bytes
}

impl Initiator {
    /// Logs in under the initiator name `name`, with an ISID whose last byte is `isid`. The inner
    /// `Err` has the login status if the target refuses the login.
    pub(crate) fn log_in(
        address: &str,
        name: &str,
        isid: u8,
        target: &str,
    ) -> io::Result<Result<Self, [u8; 2]>> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(LIMIT))?;
        let mut new = Self { socket, itt: 0, cmd_sn: 1, exp_stat_sn: 0, wire_bytes: 0 };
        let mut header = [0; HEADER];
        // A login request, immediate, with the transition from operational negotiation to the full
        // feature phase.
        (header[0], header[1]) = (0x43, 0x87);
        header[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, isid]);
        header[24..28].copy_from_slice(&new.cmd_sn.to_be_bytes());
        let keys = [
            ("InitiatorName", name),
            ("TargetName", target),
            ("SessionType", "Normal"),
            ("HeaderDigest", "None"),
            ("DataDigest", "None"),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
            ("MaxRecvDataSegmentLength", "262144"),
        ];
        let text = keys.map(|(key, value)| [key, "=", value, "\0"].concat()).concat();
        new.send(header, text.as_bytes())?;
        let (header, _) = new.receive()?;
        assert_eq!(header[0] & 0x3F, 0x23, "a login response");
        let status = [header[36], header[37]];
        if status != [0, 0] {
            return Ok(Err(status));
        }
        assert_eq!(header[1] & 0x83, 0x83, "in full feature phase at once");
        Ok(Ok(new))
    }

    fn send(&mut self, header: [u8; HEADER], data: &[u8]) -> io::Result<()> {
        self.send_bytes(&pdu(header, data))
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire_bytes += bytes.len() as u64;
        self.socket.write_all(bytes)
    }

    fn receive(&mut self) -> io::Result<([u8; HEADER], Vec<u8>)> {
        let mut header = [0; HEADER];
        self.socket.read_exact(&mut header)?;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; len + pad(len)];
        self.socket.read_exact(&mut data)?;
        self.wire_bytes += (HEADER + data.len()) as u64;
        data.truncate(len);
        Ok((header, data))
    }

    /// Runs a command with up to 64 KiB of data. The target may return at most `expected` bytes.
    pub(crate) fn run(
        &mut self,
        lun: u8,
        cdb: &[u8],
        data: &[u8],
        expected: u32,
    ) -> io::Result<Answer> {
        self.send_command(lun, cdb, data, expected)?;
        self.answer()
    }

    /// Receives the response to the command that finishes next.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let mut came = Vec::new();
        loop {
            let (header, data) = self.receive()?;
            let number = u32::from_be_bytes(header[24..28].try_into().unwrap());
            match header[0] & 0x3F {
                0x25 => {
                    came.extend(data);
                    // This data PDU also has the status of the command.
                    if header[1] & 1 != 0 {
                        self.exp_stat_sn = number + 1;
                        return Ok(Answer { status: header[3], sense: [0; 3], data: came });
                    }
                }
                0x21 => {
                    self.exp_stat_sn = number + 1;
                    let sense =
                        if data.len() < 16 { [0; 3] } else { [data[4], data[14], data[15]] };
                    let sense = [sense[0] & 0x0F, sense[1], sense[2]];
                    return Ok(Answer { status: header[3], sense, data: came });
                }
                0x20 => {}
                // An asynchronous message: the target ends the session.
                0x32 => return Err(io::ErrorKind::ConnectionAborted.into()),
                other => panic!("a PDU nobody asked for: {other:#x}"),
            }
        }
    }

    /// Sends a command like [`Initiator::run`], but does not wait for the response.
    pub(crate) fn send_command(
        &mut self,
        lun: u8,
        cdb: &[u8],
        data: &[u8],
        expected: u32,
    ) -> io::Result<()> {
        let header = self.command(lun, cdb, data.len(), expected);
        self.send(header, data)
    }

    /// Sends several write commands, each with its CDB and data, in one piece.
    pub(crate) fn send_commands(
        &mut self,
        lun: u8,
        commands: impl Iterator<Item = ([u8; 16], Vec<u8>)>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (cdb, data) in commands {
            bytes.extend(pdu(self.command(lun, &cdb, data.len(), 0), &data));
        }
        self.send_bytes(&bytes)
    }

    /// Returns the header of the next command, which sends `data_len` bytes, or receives at most
    /// `expected` bytes.
    fn command(&mut self, lun: u8, cdb: &[u8], data_len: usize, expected: u32) -> [u8; HEADER] {
        self.itt += 1;
        let mut header = [0; HEADER];
        header[0] = 0x01;
        // The flags: final, a simple task, and write if there is data, otherwise read.
        header[1] = 0x81 | if data_len == 0 { 0x40 } else { 0x20 };
        header[9] = lun;
        header[16..20].copy_from_slice(&self.itt.to_be_bytes());
        let len = if data_len == 0 { expected } else { data_len as u32 };
        header[20..24].copy_from_slice(&len.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn += 1;
        header
    }

    /// Clears the unit attentions that a logical unit reports to a new session.
    pub(crate) fn ready(&mut self, lun: u8) {
        for _ in 0..8 {
            if self.run(lun, &[0; 6], &[], 0).unwrap().status == 0 {
                return;
            }
        }
        panic!("LUN {lun} does not get ready");
    }
}

/// Returns the 16-byte CDB of a READ, WRITE, SYNCHRONIZE CACHE or WRITE SAME command.
pub(crate) fn wide(code: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

//! Tests the iSCSI lane against a target that accepts commands but never answers a read.
//!
//! The tests of the program `weir-bench` measure targets that answer.
//!
//! Invariant: the target thread continues while the initiator stays connected.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::*;

const NAME: &str = "iqn.2026-01.org.example:silent";
/// Reserved value of an initiator task tag or target transfer tag (RFC 7143 11.19).
const NO_TAG: [u8; 4] = [0xff; 4];

/// Target side of a connection: implements the subset of RFC 7143 that an initiator needs.
struct Connection {
    socket: TcpStream,
    stat_sn: u32,
    exp_cmd_sn: u32,
}

impl Connection {
    /// Reads a request PDU and returns its header; discards its data.
    fn request(&mut self) -> io::Result<[u8; 48]> {
        let mut header = [0; 48];
        self.socket.read_exact(&mut header)?;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut rest = vec![0; usize::from(header[4]) * 4 + length.next_multiple_of(4)];
        self.socket.read_exact(&mut rest)?;
        let is_immediate = header[0] & 0x40 != 0;
        if !is_immediate {
            self.exp_cmd_sn = u32::from_be_bytes(header[24..28].try_into().unwrap()) + 1;
        }
        Ok(header)
    }

    /// Sends a PDU with the given first four header bytes, tags, last twelve header bytes and data.
    fn send(
        &mut self,
        first: [u8; 4],
        tags: [[u8; 4]; 2],
        last: [u32; 3],
        data: &[u8],
    ) -> io::Result<()> {
        let mut pdu = first.to_vec();
        pdu.extend((data.len() as u32).to_be_bytes());
        pdu.extend([0; 8]);
        pdu.extend(tags.as_flattened());
        for number in [self.stat_sn, self.exp_cmd_sn, self.exp_cmd_sn + 31].iter().chain(&last) {
            pdu.extend(number.to_be_bytes());
        }
        pdu.extend(data);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        self.socket.write_all(&pdu)
    }

    /// Ends a command with a status and data, or with sense data.
    fn answer(&mut self, command: &[u8; 48], data: &[u8], is_good: bool) -> io::Result<()> {
        let tag = command[16..20].try_into().unwrap();
        let wanted = u32::from_be_bytes(command[20..24].try_into().unwrap());
        if is_good && !data.is_empty() {
            let residual = wanted - data.len() as u32;
            let underflow = if residual > 0 { 2 } else { 0 };
            self.send([0x25, 0x81 | underflow, 0, 0], [tag, NO_TAG], [0, 0, residual], data)?;
        } else {
            let underflow = if wanted > 0 { 2 } else { 0 };
            let status = if is_good { 0 } else { 2 };
            let first = [0x21, 0x80 | underflow, 0, status];
            self.send(first, [tag, [0; 4]], [0, 0, wanted], data)?;
        }
        self.stat_sn += 1;
        Ok(())
    }

    fn log_in(&mut self) -> io::Result<()> {
        loop {
            let request = self.request()?;
            // Immediate requests do not advance CmdSN; the CmdSN of the login request is the first
            // one.
            self.exp_cmd_sn = u32::from_be_bytes(request[24..28].try_into().unwrap());
            let mut pdu = [0; 48];
            (pdu[0], pdu[1]) = (0x23, request[1]);
            pdu[8..14].copy_from_slice(&request[8..14]);
            pdu[15] = 1;
            pdu[16..20].copy_from_slice(&request[16..20]);
            pdu[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
            pdu[28..32].copy_from_slice(&self.exp_cmd_sn.to_be_bytes());
            pdu[32..36].copy_from_slice(&(self.exp_cmd_sn + 31).to_be_bytes());
            self.socket.write_all(&pdu)?;
            self.stat_sn += 1;
            if request[1] & 0x83 == 0x83 {
                return Ok(());
            }
        }
    }

    /// Answers all commands except reads. After a read, sends NOP-In pings at intervals of `pause`.
    fn serve(&mut self, pause: Duration) -> io::Result<()> {
        self.log_in()?;
        loop {
            let request = self.request()?;
            let tag = request[16..20].try_into().unwrap();
            match (request[0] & 0x3f, request[32]) {
                (0x01, 0x88) => loop {
                    self.send([0x20, 0x80, 0, 0], [NO_TAG, NO_TAG], [0; 3], &[])?;
                    std::thread::sleep(pause);
                },
                (0x01, 0x00) => self.answer(&request, &[], true)?,
                (0x01, 0x9e) => {
                    let mut capacity = [0; 32];
                    capacity[..8].copy_from_slice(&0xffff_u64.to_be_bytes());
                    capacity[8..12].copy_from_slice(&512_u32.to_be_bytes());
                    self.answer(&request, &capacity, true)?;
                }
                (0x01, 0x12) if request[33] & 1 == 0 => {
                    let mut inquiry = [0; 36];
                    (inquiry[2], inquiry[4]) = (5, 31);
                    self.answer(&request, &inquiry, true)?;
                }
                (0x01, _) => {
                    // Sense data in fixed format: ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE.
                    let mut sense = [0; 20];
                    (sense[1], sense[2], sense[4], sense[9], sense[14]) = (18, 0x70, 5, 10, 0x20);
                    self.answer(&request, &sense, false)?;
                }
                (0x06, _) => {
                    self.send([0x26, 0x80, 0, 0], [tag, [0; 4]], [0; 3], &[])?;
                    return Ok(());
                }
                _ => {}
            }
        }
    }
}

/// Starts a target in a thread that ends with the test; returns the URL of the target.
fn serve(pause: Duration) -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(socket) = socket else { return };
            let mut connection = Connection { socket, stat_sn: 1, exp_cmd_sn: 1 };
            std::thread::spawn(move || connection.serve(pause));
        }
    });
    Url::parse(&format!("iscsi://127.0.0.1:{port}/{NAME}/0")).unwrap()
}

// Regression: NOP-In pings kept the lane from checking its time limit; without a pause between the
// pings the lane never left its receive loop.
#[test]
fn lane_without_answers_fails_even_if_target_sends_pings() {
    for pause in [Duration::from_millis(100), Duration::ZERO] {
        let target = Iscsi::open(&serve(pause)).unwrap();
        let mut lane = target.lane(1, 4096).unwrap();
        let kind = OpKind::Read;
        let op = Op { kind, offset: 0, len_bytes: 4096, durable: false, source: 0 };
        lane.submit(0, &op).unwrap();
        match lane.reap(Wait::One, &mut Vec::new()) {
            Err(TargetError::NoAnswer { seconds, .. }) => {
                assert_eq!(seconds, ANSWER_LIMIT.as_secs());
            }
            other => panic!("{other:?}"),
        }
    }
}

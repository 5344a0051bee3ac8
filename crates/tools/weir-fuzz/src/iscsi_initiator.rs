//! Fuzzes the initiator: any replies of an iSCSI target, to a login or in full feature phase.
//!
//! The tests of weir-initiator cover sockets; `iscsi_login` and `iscsi_session` fuzz the iSCSI
//! target.
//!
//! Invariants: no panic; read data stays in the slot of its command and within the expected length;
//! the send queue is bounded; each command ends at most once.

use std::io::IoSlice;

use weir_initiator::login::{Login, Purpose, Step};
use weir_initiator::{
    Buffers, Chap, Credentials, Data, Digests, Exchange, LoginOptions, Negotiated, Residual,
    Secret, cdb,
};
use weir_iscsi_wire::limits::LOGIN_DATA_BYTES_MAX;
use weir_iscsi_wire::pdu::{CommandResponse, DataIn, Framed, LoginResponse, R2t, frame};
use weir_scsi::{Lun, Status};

use crate::valid::{self, NO_DIGESTS};

const SLOTS: usize = 4;
const SLOT_BYTES: usize = 24 << 10;
/// Maximum number of commands that one input submits.
const COMMANDS_MAX: usize = 64;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    if choice & 0x80 != 0 { log_in(*choice, input) } else { exchange(*choice, input) }
}

/// Replies to commands with several sets of negotiated parameters, and replies to logins.
pub fn seeds() -> Vec<Vec<u8>> {
    let answers = |choice: u8| [&[choice], &answers(negotiated(choice).digests)[..]].concat();
    let text = |stage, next_stage, transit, text: &[u8]| {
        let itt = 0;
        let isid = [0x80, 0, 0, 0, 0, 1];
        let response =
            LoginResponse { transit, stage, next_stage, isid, itt, ..Default::default() };
        valid::pdu(response.encode(), text, NO_DIGESTS)
    };
    let keys = b"HeaderDigest=None\0DataDigest=None\0InitialR2T=Yes\0ImmediateData=Yes\0\
        MaxBurstLength=8192\0FirstBurstLength=4096\0MaxRecvDataSegmentLength=8192\0\
        TargetPortalGroupTag=1\0";
    let open = [text(0, 1, true, b"AuthMethod=None\0"), text(1, 3, true, keys)].concat();
    let chap = [
        text(0, 0, false, b"AuthMethod=CHAP\0"),
        text(0, 0, false, b"CHAP_A=7\0CHAP_I=1\0CHAP_C=0x00112233445566778899aabbccddeeff\0"),
        text(0, 1, true, b""),
        text(1, 3, true, keys),
    ]
    .concat();
    let logins = [[&[0x80], &open[..]].concat(), [&[0x81], &chap[..]].concat()];
    [0, 1, 2, 15, 0x74].into_iter().map(answers).chain(logins).collect()
}

/// Data-In PDUs, R2Ts and responses for the first commands.
fn answers(digests: Digests) -> Vec<u8> {
    let data = |itt, is_final: bool, offset, bytes: &[u8]| {
        let status = is_final.then_some((Status::Good, Residual::None));
        let data_bytes = bytes.len();
        let data_in = DataIn { itt, is_final, status, data_sn: 0, offset, data_bytes };
        (data_in.encode(), bytes.to_vec())
    };
    let respond = |itt, status| {
        let response = CommandResponse { itt, status, residual: Residual::None, exp_data_sn: 0 };
        (response.encode(), Vec::new())
    };
    let r2t = R2t { lun: Lun::new(0), itt: 1, ttt: 5, r2t_sn: 0, offset: 0, len: 4036 };
    let pdus = [
        data(0, false, 0, &[1; 1024]),
        data(0, true, 1024, &[2; 979]),
        (r2t.encode(), Vec::new()),
        respond(1, Status::Good),
        respond(2, Status::CheckCondition),
        respond(3, Status::Good),
    ];
    let mut bytes = Vec::new();
    for (number, (mut header, data)) in pdus.into_iter().enumerate() {
        // Set StatSN, ExpCmdSN and MaxCmdSN.
        header.set_word(24, number as u32);
        header.set_word(28, 4);
        header.set_word(32, 64);
        bytes.extend(valid::pdu(header, &data, digests));
    }
    bytes
}

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

fn log_in(choice: u8, mut input: &[u8]) {
    let initiator = Credentials { name: "a".to_owned(), secret: secret("a secret") };
    let target = (choice & 2 != 0).then(|| (secret("another"), None));
    let is_mutual = target.is_some();
    let digests = Digests { header: choice & 4 != 0, data: choice & 8 != 0 };
    let chap = (choice & 1 != 0 || is_mutual).then_some(Chap { initiator, target });
    let options = LoginOptions { chap, digests, ..LoginOptions::default() };
    let mut login = Login::new(&options, Purpose::Target("t".to_owned()), [0x80, 0, 0, 0, 0, 1]);
    login.first().expect("short names");
    while let Ok(Framed::Pdu(pdu, used)) = frame(input, Digests::default(), LOGIN_DATA_BYTES_MAX) {
        match login.feed(&pdu) {
            Ok(Step::Send(request)) => assert!(request.len() <= 48 + LOGIN_DATA_BYTES_MAX),
            Ok(Step::Ready(agreed)) => {
                assert!(!is_mutual, "the challenge is random: nothing here can meet it");
                assert_eq!(agreed.negotiated.digests, digests);
                assert!(agreed.negotiated.max_burst_bytes <= options.max_burst_bytes);
                assert!(agreed.negotiated.first_burst_bytes <= agreed.negotiated.max_burst_bytes);
                assert!(agreed.negotiated.send_data_bytes_max >= 512);
                return;
            }
            Ok(Step::Elsewhere(_)) | Err(_) => return,
        }
        input = &input[used..];
    }
}

struct Memory(Vec<Vec<u8>>);

impl Buffers for Memory {
    fn data(&self, slot: usize) -> &[u8] {
        &self.0[slot]
    }

    fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.0[slot]
    }
}

fn negotiated(choice: u8) -> Negotiated {
    Negotiated {
        digests: Digests { header: choice & 1 != 0, data: choice & 2 != 0 },
        send_data_bytes_max: 4096,
        receive_data_bytes_max: 8192,
        max_burst_bytes: 8192,
        first_burst_bytes: 6000,
        initial_r2t: choice & 4 != 0,
        immediate_data: choice & 8 != 0,
        outstanding_r2t_max: 2,
        portal_group_tag: None,
    }
}

fn exchange(choice: u8, input: &[u8]) {
    let mut memory = Memory(vec![vec![0x5a; SLOT_BYTES]; SLOTS]);
    let mut exchange = Exchange::without_login(negotiated(choice), 3, SLOTS);
    let mut expected = [0; SLOTS];
    let mut submit = |exchange: &mut Exchange, memory: &mut Memory, slot: usize, count: usize| {
        memory.0[slot].fill(0x5a);
        let len = (count * 1009 % SLOT_BYTES) as u32;
        expected[slot] = if slot.is_multiple_of(2) { len as usize } else { 0 };
        let data = if slot.is_multiple_of(2) { Data::In(len) } else { Data::Out(len) };
        exchange.submit(slot, cdb::read16(0, 1, false), data, memory);
        expected
    };
    let mut known = [0; SLOTS];
    for slot in 0..SLOTS {
        known = submit(&mut exchange, &mut memory, slot, slot + 3);
    }
    let (mut count, mut held, mut done) = (SLOTS, Vec::new(), Vec::new());
    for piece in input.chunks(usize::from(choice >> 4) * 97 + 41) {
        held.extend_from_slice(piece);
        let Ok(used) = exchange.take(&held, &mut memory) else { break };
        held.drain(..used);
        let mut pieces = [IoSlice::new(&[]); 8];
        let waiting = exchange.outgoing(&memory, &mut pieces);
        let bytes: usize = pieces[..waiting].iter().map(|piece| piece.len()).sum();
        exchange.sent(bytes / 2);
        exchange.take_done(&mut done);
        for ended in done.drain(..) {
            let slot = ended.slot;
            assert!(ended.answer.received_bytes as usize <= known[slot]);
            assert!(memory.0[slot][known[slot]..].iter().all(|byte| *byte == 0x5a));
            assert!(!exchange.is_busy(slot));
            if count < COMMANDS_MAX {
                count += 1;
                known = submit(&mut exchange, &mut memory, slot, count);
            }
        }
    }
}

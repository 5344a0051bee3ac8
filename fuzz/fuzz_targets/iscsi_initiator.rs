//! Fuzzes the initiator: a login, then full feature phase, with whatever a target may answer.
//!
//! Not here: sockets (the crate's own tests), the target side (iscsi_login, iscsi_session).
//!
//! Invariants: no panic; data of a read lands in its own slot, within what was expected; what waits
//! to be sent is bounded; a command ends at most once.

#![no_main]

use std::io::IoSlice;

use libfuzzer_sys::fuzz_target;
use weir_initiator::login::{Login, Purpose, Step};
use weir_initiator::{
    Buffers, Chap, Credentials, Data, Digests, Exchange, LoginOptions, Secret, Terms, cdb,
};
use weir_iscsi::limits::LOGIN_DATA_BYTES_MAX;
use weir_iscsi::pdu::{Framed, frame};

const SLOTS: usize = 4;
const SLOT_BYTES: usize = 24 << 10;
/// Commands that are submitted at most.
const COMMANDS_MAX: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Some((choice, input)) = data.split_first() else { return };
    if choice & 0x80 != 0 { log_in(*choice, input) } else { run(*choice, input) }
});

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
                assert_eq!(agreed.terms.digests, digests);
                assert!(agreed.terms.max_burst_bytes <= options.max_burst_bytes);
                assert!(agreed.terms.first_burst_bytes <= agreed.terms.max_burst_bytes);
                assert!(agreed.terms.send_data_bytes_max >= 512);
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

fn terms(choice: u8) -> Terms {
    Terms {
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

fn run(choice: u8, input: &[u8]) {
    let mut memory = Memory(vec![vec![0x5a; SLOT_BYTES]; SLOTS]);
    let mut exchange = Exchange::without_login(terms(choice), 3, SLOTS);
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

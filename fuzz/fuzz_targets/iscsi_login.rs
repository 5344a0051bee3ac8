//! Fuzzes the iSCSI login: every request that may come before full feature phase.
//!
//! Not here: sockets, commands.
//!
//! Invariants: no panic; answers fit into one PDU; nobody who is to prove a secret comes through
//! without it; what is agreed on is bounded.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use weir_iscsi::limits::{
    FIRST_BURST_BYTES, LOGIN_DATA_BYTES_MAX, MAX_BURST_BYTES, RECEIVE_DATA_BYTES_MAX,
};
use weir_iscsi::login::{Login, Step};
use weir_iscsi::pdu::{self, Digests, Framed, frame};
use weir_iscsi::{
    Admission, Applicant, Authentication, Credentials, Discovered, Refusal, Secret, Sessions,
    Targets,
};
use weir_serve::{Address, Peer, PeerKey};

fuzz_target!(|data: &[u8]| {
    let Some((choice, mut input)) = data.split_first() else { return };
    let one = One { sessions: Arc::default(), chap: choice & 1 != 0, mutual: choice & 2 != 0 };
    let local = Address::Unix("/socket".into());
    let peer = Peer { name: "peer".to_owned(), local, address: None, key: PeerKey::Unknown };
    let mut login = Login::new(&one, &peer, &|| RECEIVE_DATA_BYTES_MAX);
    while let Ok(Framed::Pdu(pdu, used)) = frame(input, Digests::default(), LOGIN_DATA_BYTES_MAX) {
        let Some(request) = pdu::Login::decode(&pdu.header) else { return };
        match login.feed(&request, &pdu) {
            Step::Answer(response, text) => {
                assert!(text.len() <= LOGIN_DATA_BYTES_MAX);
                assert!(!(response.transit && response.next_stage == 3));
                assert!(!(response.transit && one.chap), "no stage ends without a proof");
            }
            Step::Ready(_, text, ready) => {
                assert!(!one.chap, "the challenge is random: nothing here can meet it");
                assert!(text.len() <= LOGIN_DATA_BYTES_MAX && ready.proven.is_none());
                assert!(ready.terms.max_burst_bytes <= MAX_BURST_BYTES);
                assert!(ready.terms.first_burst_bytes <= FIRST_BURST_BYTES);
                assert!(ready.terms.send_data_bytes_max >= 512);
                return;
            }
            Step::Refuse(response, _) => {
                assert_ne!(response.status, [0, 0]);
                return;
            }
        }
        input = &input[used..];
    }
});

/// One target.
struct One {
    sessions: Arc<Sessions>,
    chap: bool,
    mutual: bool,
}

impl One {
    fn authentication(&self) -> Authentication {
        if !self.chap {
            return Authentication::None;
        }
        let credentials = |name: &str, secret: &str| Credentials {
            name: name.to_owned(),
            secret: Secret::new(secret.as_bytes().to_vec()),
        };
        let target = self.mutual.then(|| credentials("b", "another"));
        Authentication::Chap { initiator: credentials("a", "secret"), target }
    }
}

impl Targets for One {
    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    fn admit_discovery(&self, _: &Applicant) -> Result<Authentication, Refusal> {
        Ok(self.authentication())
    }

    fn discover(&self, _: &Applicant, _: Option<&Credentials>) -> Vec<Discovered> {
        Vec::new()
    }

    fn admit(&self, _: &Applicant, target: &str) -> Result<Admission, Refusal> {
        match target {
            "t" => Ok(Admission {
                authentication: self.authentication(),
                open: Box::new(|_| Err(Refusal::Unavailable)),
            }),
            _ => Err(Refusal::NotFound),
        }
    }
}

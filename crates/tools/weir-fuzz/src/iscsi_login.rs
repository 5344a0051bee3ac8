//! Fuzzes the iSCSI login of a target: any requests before full feature phase.
//!
//! The fuzz target uses no socket and ends before full feature phase, so it sends no SCSI commands.
//!
//! Invariants: no panic; each response fits into one PDU; if the target requires CHAP, no login
//! succeeds without the secret; the negotiated values are bounded.

use std::sync::Arc;

use weir_iscsi::limits::{FIRST_BURST_BYTES, MAX_BURST_BYTES, RECEIVE_DATA_BYTES_MAX};
use weir_iscsi::{
    Admission, Applicant, Authentication, Discovered, Login, Refusal, Sessions, Step, Targets,
};
use weir_iscsi_wire::limits::LOGIN_DATA_BYTES_MAX;
use weir_iscsi_wire::pdu::{self, Digests, Framed, frame};
use weir_iscsi_wire::{Credentials, Secret};
use weir_net::{Address, Peer, PeerKey};

use crate::valid::{self, NO_DIGESTS};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Some((choice, mut input)) = data.split_first() else { return };
    let one = One { sessions: Arc::default(), chap: choice & 1 != 0, mutual: choice & 2 != 0 };
    let local = Address::Unix("/socket".into());
    let peer =
        Peer { name: "peer".to_owned(), local, address: None, port: 0, key: PeerKey::Unknown };
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
                assert!(ready.negotiated.max_burst_bytes <= MAX_BURST_BYTES);
                assert!(ready.negotiated.first_burst_bytes <= FIRST_BURST_BYTES);
                assert!(ready.negotiated.send_data_bytes_max >= 512);
                return;
            }
            Step::Refuse(response, _) => {
                assert_ne!(response.status, [0, 0]);
                return;
            }
        }
        input = &input[used..];
    }
}

/// Logins in one step and in two steps, with and without CHAP, and a discovery login.
pub fn seeds() -> Vec<Vec<u8>> {
    let pdu = |stage, next, text: &[u8]| valid::pdu(valid::login(stage, next), text, NO_DIGESTS);
    let who = b"InitiatorName=i\0TargetName=t\0SessionType=Normal\0AuthMethod=CHAP,None\0";
    let keys = b"HeaderDigest=CRC32C,None\0DataDigest=None\0InitialR2T=Yes\0ImmediateData=No\0\
        MaxBurstLength=262144\0FirstBurstLength=65536\0MaxRecvDataSegmentLength=8192\0\
        MaxOutstandingR2T=1\0ErrorRecoveryLevel=0\0MaxConnections=1\0X-other=1\0";
    let proof = b"CHAP_N=a\0CHAP_R=0x00112233445566778899aabbccddeeff\0CHAP_I=1\0CHAP_C=0x0102\0";
    let with_chap = [pdu(0, 0, who), pdu(0, 0, b"CHAP_A=7,5\0"), pdu(0, 1, proof)].concat();
    vec![
        [&[0], &pdu(0, 1, who)[..], &pdu(1, 3, keys)].concat(),
        [&[0], &pdu(1, 3, &[&who[..], keys].concat())[..]].concat(),
        [&[0], &pdu(1, 3, b"InitiatorName=i\0SessionType=Discovery\0")[..]].concat(),
        [&[1], &with_chap[..]].concat(),
        [&[3], &with_chap[..]].concat(),
    ]
}

/// List of one iSCSI target.
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

    fn discover(
        &self,
        _: &Applicant,
        _: Option<&Credentials>,
        _: &str,
        _: &mut dyn FnMut(Discovered) -> bool,
    ) {
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

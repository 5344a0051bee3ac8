//! Tests of the login state machine; logins over a socket are in tests/all/logins.rs.

use std::sync::Arc;

use proptest::prelude::*;
use weir_iscsi_wire::Secret;
use weir_iscsi_wire::limits::LOGIN_DATA_BYTES_MAX;
use weir_iscsi_wire::pdu::Header;
use weir_net::{Address, PeerKey};

use super::*;
use crate::limits::RECEIVE_DATA_BYTES_MAX;
use crate::target::session_table::Sessions;
use crate::target::targets::Discovered;

/// One target that admits every initiator, with or without CHAP.
#[derive(Default)]
struct One {
    sessions: Arc<Sessions>,
    chap: bool,
}

impl One {
    fn authentication(&self) -> Authentication {
        let secret = Secret::new(b"secret".to_vec());
        if self.chap {
            let initiator = Credentials { name: "a".to_owned(), secret };
            Authentication::Chap { initiator, target: None }
        } else {
            Authentication::None
        }
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

    fn portal_group_tag(&self, _: &Applicant) -> Result<u16, Refusal> {
        Ok(3)
    }

    fn admit(&self, applicant: &Applicant, target: &str) -> Result<Admission, Refusal> {
        assert_eq!(applicant.port.name, applicant.port.name.to_lowercase());
        if target != "iqn.t" {
            return Err(Refusal::NotFound);
        }
        Ok(Admission {
            authentication: self.authentication(),
            open: Box::new(|_| Err(Refusal::Unavailable)),
        })
    }
}

fn peer() -> Peer {
    let local = Address::Unix("/s".into());
    Peer { name: "peer".to_owned(), local, address: None, port: 0, key: PeerKey::Unknown }
}

fn request(stage: u8, next: Option<u8>, continues: bool) -> Request {
    Request {
        transit: next.is_some(),
        continues,
        stage,
        next_stage: next.unwrap_or(0),
        version_min: 0,
        isid: [1; 6],
        tsih: 0,
        itt: 5,
        cid: 1,
        cmd_sn: 9,
        exp_stat_sn: 0,
    }
}

fn feed(login: &mut Login<'_>, request: &Request, data: &[u8]) -> Step {
    let header: Header = request.encode();
    login.feed(request, &Pdu { header, ahs: &[], data, data_intact: true })
}

const KEYS: &[u8] = b"InitiatorName=IQN.I\0TargetName=iqn.T\0MaxBurstLength=4096\0X-a=1\0";

#[test]
fn two_stage_login_returns_the_negotiated_parameters() {
    let one = One::default();
    let from = peer();
    let mut login = Login::new(&one, &from, &|| RECEIVE_DATA_BYTES_MAX);
    let keys = b"InitiatorName=IQN.I\0TargetName=iqn.T\0AuthMethod=CHAP,None\0";
    let Step::Answer(response, text) = feed(&mut login, &request(0, Some(1), false), keys) else {
        panic!("an answer");
    };
    assert!(response.transit);
    assert_eq!(text, b"TargetPortalGroupTag=3\0AuthMethod=None\0");
    let step = feed(&mut login, &request(1, Some(3), false), b"ImmediateData=No\0");
    let Step::Ready(response, text, ready) = step else { panic!("ready") };
    assert!(response.transit && response.next_stage == 3);
    assert_eq!(text, b"ImmediateData=No\0MaxRecvDataSegmentLength=262144\0");
    assert!(!ready.negotiated.immediate_data && ready.negotiated.initial_r2t);
    assert!(ready.proven.is_none());
    assert_eq!(ready.applicant.port.to_string(), "iqn.i,i,0x010101010101");
    assert!(matches!(ready.purpose, Purpose::Target { name, .. } if name == "iqn.t"));
}

#[test]
fn login_refuses_wrong_versions_changed_ids_and_endless_requests() {
    let one = One::default();
    let refused = |request: &Request| {
        let from = peer();
        let mut login = Login::new(&one, &from, &|| RECEIVE_DATA_BYTES_MAX);
        feed(&mut login, &self::request(1, None, false), KEYS);
        match feed(&mut login, request, b"") {
            Step::Refuse(response, denial) => {
                assert_eq!(response.status, (denial.status as u16).to_be_bytes());
                denial.status
            }
            _ => panic!("{request:?} was taken"),
        }
    };
    let good = request(1, None, false);
    assert_eq!(refused(&Request { version_min: 1, ..good }), Status::Version);
    assert_eq!(refused(&Request { isid: [2; 6], ..good }), Status::InvalidRequest);
    assert_eq!(refused(&Request { cid: 2, ..good }), Status::InvalidRequest);
    assert_eq!(refused(&Request { stage: 0, ..good }), Status::InitiatorError);
    assert_eq!(refused(&request(1, Some(3), true)), Status::InitiatorError);
    let from = peer();
    let mut login = Login::new(&one, &from, &|| RECEIVE_DATA_BYTES_MAX);
    feed(&mut login, &good, KEYS);
    let refused =
        (0..LOGIN_PDUS_MAX).any(|_| matches!(feed(&mut login, &good, b""), Step::Refuse(..)));
    assert!(refused, "a login has an end");
}

proptest! {
    #[test]
    fn splitting_text_into_pdus_does_not_change_the_response(
        cuts in prop::collection::vec(0..KEYS.len(), 0..5),
    ) {
        let one = One::default();
        let answer = |cuts: &[usize]| {
            let from = peer();
            let mut login = Login::new(&one, &from, &|| RECEIVE_DATA_BYTES_MAX);
            let mut from = 0;
            for cut in cuts {
                let step = feed(&mut login, &request(1, None, true), &KEYS[from..*cut]);
                assert!(matches!(step, Step::Answer(response, text)
                    if text.is_empty() && !response.transit));
                from = *cut;
            }
            match feed(&mut login, &request(1, Some(3), false), &KEYS[from..]) {
                Step::Ready(_, text, ready) => (text, ready.negotiated),
                _ => panic!("ready"),
            }
        };
        let mut cuts = cuts;
        cuts.sort_unstable();
        prop_assert_eq!(answer(&cuts), answer(&[]));
    }

    #[test]
    fn login_without_chap_proof_fails_and_responses_fit_one_pdu(
        steps in prop::collection::vec((0_u8..2, prop::option::of(0_u8..4), prop::collection::vec(
            prop::sample::select(vec![
                "InitiatorName=i", "TargetName=iqn.t", "SessionType=Discovery", "AuthMethod=CHAP",
                "AuthMethod=None,CHAP", "CHAP_A=5,7", "CHAP_N=a", "CHAP_R=0x1234", "CHAP_I=1",
                "CHAP_C=0x00", "MaxBurstLength=512", "X-b=2", "CHAP_A=7",
            ]), 0..5)), 0..8),
    ) {
        let one = One { chap: true, ..One::default() };
        let from = peer();
        let mut login = Login::new(&one, &from, &|| RECEIVE_DATA_BYTES_MAX);
        for (stage, next, keys) in steps {
            let data: Vec<u8> = keys.iter().flat_map(|key| key.bytes().chain([0])).collect();
            match feed(&mut login, &request(stage, next, false), &data) {
                Step::Answer(response, text) => {
                    prop_assert!(!response.transit && text.len() <= LOGIN_DATA_BYTES_MAX);
                }
                Step::Ready(..) => prop_assert!(false, "let in"),
                Step::Refuse(..) => return Ok(()),
            }
        }
    }
}

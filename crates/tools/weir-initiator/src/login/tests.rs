//! Tests of the login with the target code of weir-iscsi, and with text that no target sends.

use std::sync::Arc;

use proptest::prelude::*;
use weir_iscsi::limits::RECEIVE_DATA_BYTES_MAX;
use weir_iscsi::{Admission, Applicant, Authentication, Discovered, Refusal, Sessions, Targets};
use weir_iscsi::{Login as Target, Step as TargetStep};
use weir_iscsi_wire::pdu::{Digests, Framed, Login as TargetRequest, LoginResponse, frame};
use weir_iscsi_wire::{Credentials, Secret};
use weir_net::{Peer, PeerKey};

use super::*;
use crate::options::Chap;

/// List of one target, which requires the given authentication.
struct One {
    sessions: Arc<Sessions>,
    demanded: Authentication,
}

impl Targets for One {
    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    fn admit_discovery(&self, _: &Applicant) -> Result<Authentication, Refusal> {
        Ok(self.demanded.clone())
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

    fn admit(&self, _: &Applicant, target: &str) -> Result<Admission, Refusal> {
        if target != "iqn.t" {
            return Err(Refusal::NotFound);
        }
        let authentication = self.demanded.clone();
        let open = Box::new(|_: &_| Err(Refusal::Unavailable));
        Ok(Admission { authentication, open })
    }
}

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

fn credentials(name: &str, text: &str) -> Credentials {
    Credentials { name: name.to_owned(), secret: secret(text) }
}

const ISID: [u8; 6] = [0x80, 1, 2, 3, 4, 5];

fn bytes_of(mut header: Header, data: &[u8]) -> Vec<u8> {
    header.set_data_bytes(data.len());
    let mut bytes = header.0.to_vec();
    bytes.extend(data);
    bytes.resize(48 + padded(data.len()), 0);
    bytes
}

fn fed(login: &mut Login, bytes: &[u8]) -> Result<Step, InitiatorError> {
    match frame(bytes, Digests::default(), LOGIN_DATA_BYTES_MAX) {
        Ok(Framed::Pdu(pdu, used)) => {
            assert_eq!(used, bytes.len());
            login.feed(&pdu)
        }
        other => panic!("no PDU: {other:?}"),
    }
}

/// Runs the login between the initiator and the target until one of them ends the login.
fn log_in(
    options: &LoginOptions,
    target: &str,
    demanded: Authentication,
) -> Result<Negotiated, InitiatorError> {
    let one = One { sessions: Arc::default(), demanded };
    let local = weir_iscsi_address();
    let peer =
        Peer { name: "peer".to_owned(), local, address: None, port: 0, key: PeerKey::Unknown };
    let mut theirs = Target::new(&one, &peer, &|| RECEIVE_DATA_BYTES_MAX);
    let purpose = Purpose::Target(target.to_owned());
    let mut ours = Login::new(options, purpose, ISID);
    let mut request = ours.first()?;
    for stat_sn in 7.. {
        let frame = frame(&request, Digests::default(), LOGIN_DATA_BYTES_MAX).expect("a PDU");
        let Framed::Pdu(pdu, _) = frame else { panic!("cut off") };
        let decoded = TargetRequest::decode(&pdu.header).expect("a login");
        let (response, text) = match theirs.feed(&decoded, &pdu) {
            TargetStep::Answer(response, text) => (response, text),
            TargetStep::Ready(response, text, _) => (LoginResponse { tsih: 5, ..response }, text),
            TargetStep::Refuse(response, _) => (response, Vec::new()),
        };
        let mut header = response.encode();
        for (at, word) in [(24, stat_sn), (28, 1), (32, 64)] {
            header.set_word(at, word);
        }
        match fed(&mut ours, &bytes_of(header, &text))? {
            Step::Send(next) => request = next,
            Step::Ready(agreed) => {
                assert_eq!((agreed.tsih, agreed.numbers.exp_stat_sn), (5, stat_sn + 1));
                return Ok(agreed.negotiated);
            }
            Step::Elsewhere(address) => panic!("sent on to {address}"),
        }
    }
    unreachable!("logins end");
}

fn weir_iscsi_address() -> weir_net::Address {
    weir_net::Address::Unix("/s".into())
}

fn with(chap: Option<Chap>) -> LoginOptions {
    LoginOptions { chap, ..LoginOptions::default() }
}

fn one_way(text: &str) -> Chap {
    Chap { initiator: credentials("me", text), target: None }
}

fn both_ways(ours: &str, theirs: &str, name: Option<&str>) -> Chap {
    let target = Some((secret(theirs), name.map(str::to_owned)));
    Chap { initiator: credentials("me", ours), target }
}

#[test]
fn both_sides_accept_the_negotiated_parameters() {
    let negotiated = log_in(&with(None), "iqn.t", Authentication::None).expect("a session");
    assert_eq!(negotiated.send_data_bytes_max, 256 << 10);
    assert_eq!((negotiated.max_burst_bytes, negotiated.first_burst_bytes), (1 << 20, 64 << 10));
    assert_eq!((negotiated.initial_r2t, negotiated.immediate_data), (false, true));
    assert_eq!((negotiated.outstanding_r2t_max, negotiated.portal_group_tag), (4, Some(3)));
    let digests = Digests { header: true, data: true };
    let options = LoginOptions { digests, initial_r2t: true, ..with(None) };
    let negotiated = log_in(&options, "iqn.t", Authentication::None).expect("a session");
    assert_eq!((negotiated.digests, negotiated.initial_r2t), (digests, true));
    let found = log_in(&with(None), "iqn.other", Authentication::None);
    // An unknown target gets the same status as a wrong secret, so that unauthenticated peers
    // cannot list targets.
    assert!(matches!(found, Err(InitiatorError::Refused { status: [2, 1] })), "{found:?}");
}

#[test]
fn authentication_is_given_and_required() {
    let demanded = |target: Option<Credentials>| Authentication::Chap {
        initiator: credentials("me", "our secret"),
        target,
    };
    let theirs = || Some(credentials("target", "their secret"));
    let run = |chap, demanded| log_in(&with(chap), "iqn.t", demanded);
    assert!(run(Some(one_way("our secret")), demanded(None)).is_ok());
    assert!(run(Some(one_way("our secret")), Authentication::None).is_ok(), "not needed");
    let wrong = run(Some(one_way("another")), demanded(None));
    assert!(matches!(wrong, Err(InitiatorError::Refused { status: [2, 1] })), "{wrong:?}");
    let missing = run(None, demanded(None));
    assert!(missing.is_err(), "{missing:?}");
    assert!(run(Some(both_ways("our secret", "their secret", None)), demanded(theirs())).is_ok());
    let named = both_ways("our secret", "their secret", Some("target"));
    assert!(run(Some(named), demanded(theirs())).is_ok());
    for chap in [
        both_ways("our secret", "another", None),
        both_ways("our secret", "their secret", Some("somebody else")),
    ] {
        let found = run(Some(chap), demanded(theirs()));
        assert!(matches!(found, Err(InitiatorError::Authentication { .. })), "{found:?}");
    }
    // The target does not authenticate, but the initiator requires mutual CHAP.
    let unproved = run(Some(both_ways("our secret", "their secret", None)), Authentication::None);
    assert!(unproved.is_err(), "{unproved:?}");
}

/// Returns the result of a login whose first response has these flags, status and text.
fn first_answer(
    login: &mut Login,
    flags: u8,
    status: [u8; 2],
    text: &[u8],
) -> Result<Step, InitiatorError> {
    login.first().expect("a request");
    let mut header = Header::new(opcode::LOGIN_RESPONSE, flags);
    header.set(8, ISID);
    header.set(36, status);
    header.set_word(28, 1);
    fed(login, &bytes_of(header, text))
}

fn login(chap: Option<Chap>) -> Login {
    Login::new(&with(chap), Purpose::Target("iqn.t".to_owned()), ISID)
}

#[test]
fn target_that_skips_authentication_is_refused() {
    let mutual = || Some(both_ways("our secret", "their secret", None));
    for (flags, text) in [
        (0x81, &b"AuthMethod=None\0"[..]),
        (0x81, b"AuthMethod=CHAP\0"),
        (0x81, b""),
        (0x00, b"AuthMethod=None\0"),
        (0x00, b"AuthMethod=CHAP\0CHAP_N=a\0CHAP_R=0x00\0"),
    ] {
        let found = first_answer(&mut login(mutual()), flags, [0, 0], text);
        // If the target ends a stage that the initiator did not ask to end, this is a protocol
        // error, whatever the authentication keys say.
        let is_told = match found {
            Err(InitiatorError::Authentication { .. }) => flags == 0x00,
            Err(InitiatorError::Protocol { .. }) => flags == 0x81,
            _ => false,
        };
        assert!(is_told, "{text:?}");
    }
    // The target challenges the initiator, then ends the stage without responding to the
    // initiator's challenge.
    let mut login_of_both = login(mutual());
    let chosen = first_answer(&mut login_of_both, 0x00, [0, 0], b"AuthMethod=CHAP\0");
    assert!(matches!(chosen, Ok(Step::Send(_))), "{chosen:?}");
    let challenge = b"CHAP_A=7\0CHAP_I=9\0CHAP_C=0x0102030405060708\0";
    for (stat_sn, flags, text) in [(1, 0x00, &challenge[..]), (2, 0x81, b"")] {
        let mut header = Header::new(opcode::LOGIN_RESPONSE, flags);
        header.set(8, ISID);
        header.set_word(24, stat_sn);
        match fed(&mut login_of_both, &bytes_of(header, text)) {
            Ok(Step::Send(_)) if stat_sn == 1 => {}
            Err(InitiatorError::Authentication { .. }) if stat_sn == 2 => {}
            other => panic!("{stat_sn}: {other:?}"),
        }
    }
    let refused = first_answer(&mut login(None), 0x00, [0, 0], b"AuthMethod=CHAP\0");
    assert!(matches!(refused, Err(InitiatorError::Authentication { .. })), "{refused:?}");
}

#[test]
fn invalid_responses_end_the_login() {
    for (flags, text) in [
        (0x83, &b"AuthMethod=None\0"[..]),
        (0x85, b""),
        (0xc1, b""),
        (0x81, b"no pair\0"),
        (0x81, b"MaxRecvDataSegmentLength=1\0"),
        (0x81, b"A=1\0A=2\0"),
    ] {
        let found = first_answer(&mut login(None), flags, [0, 0], text);
        assert!(matches!(found, Err(InitiatorError::Protocol { .. })), "{flags:#x} {found:?}");
    }
    let moved = first_answer(&mut login(None), 0, [1, 1], b"TargetAddress=10.0.0.1:3260,1\0");
    assert!(matches!(moved, Ok(Step::Elsewhere(address)) if address == "10.0.0.1:3260"));
    let nowhere = first_answer(&mut login(None), 0, [1, 1], b"");
    assert!(matches!(nowhere, Err(InitiatorError::Refused { status: [1, 1] })), "{nowhere:?}");
    // A target that never completes the login causes an error.
    let mut endless = login(None);
    let mut step = first_answer(&mut endless, 0x40, [0, 0], b"");
    for stat_sn in 1..1000 {
        if step.is_err() {
            return;
        }
        let mut header = Header::new(opcode::LOGIN_RESPONSE, 0x40);
        header.set(8, ISID);
        header.set_word(24, stat_sn);
        step = fed(&mut endless, &bytes_of(header, b""));
    }
    panic!("it does not end");
}

proptest! {
    #[test]
    fn arbitrary_responses_cause_no_panic(
        answers in proptest::collection::vec((any::<u8>(), "[A-Za-z0-9=,_\u{0}]{0,80}"), 1..8),
        mutual in any::<bool>(),
    ) {
        let chap = mutual.then(|| both_ways("our secret", "their secret", None));
        let mut login = login(chap);
        prop_assert!(login.first().is_ok());
        for (stat_sn, (flags, text)) in (0..).zip(answers) {
            let mut header = Header::new(opcode::LOGIN_RESPONSE, flags & 0xcf);
            header.set(8, ISID);
            header.set_word(24, stat_sn);
            if fed(&mut login, &bytes_of(header, text.as_bytes())).is_err() {
                break;
            }
        }
    }
}

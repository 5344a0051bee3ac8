//! Logins over a socket: authentication, session limits and reinstatement.
//!
//! Unit tests cover key negotiation; sessions.rs covers sessions.
//!
//! Invariant: an initiator without the required authentication never reaches a nexus.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_iscsi::limits::{OWN, PEER_DISCOVERIES_MAX, REINSTATEMENT_LIMIT};
use weir_iscsi::{Authentication, Sessions};
use weir_iscsi_wire::chap::Algorithm;
use weir_iscsi_wire::text;
use weir_iscsi_wire::{Credentials, Secret};
use weir_net::Budget;

use crate::common::initiator::{Initiator, NAME};
use crate::common::memory::{BLOCK, Disk, MemoryTargets, TARGET};
use crate::common::{Setup, pattern, serve_limited, serve_targets, setup, wait_until};

const SIZE: usize = 1 << 20;
const NAMES: [(&str, &str); 2] = [("InitiatorName", NAME), ("TargetName", TARGET)];

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.to_owned(), secret: Secret::new(secret.as_bytes().to_vec()) }
}

fn chap(mutual: Option<&str>) -> Authentication {
    Authentication::Chap {
        initiator: credentials("alice", "correct horse"),
        target: mutual.map(|secret| credentials("weir", secret)),
    }
}

fn with(keys: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    keys.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

/// Parses key=value text into owned pairs.
fn owned(answer: &[u8]) -> Vec<(String, String)> {
    let pairs = text::pairs(answer).expect("text");
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn value(pairs: &[(String, String)], key: &str) -> String {
    let found = pairs.iter().find(|(found, _)| found == key);
    found.map_or_else(|| panic!("{key} in {pairs:?}"), |(_, value)| value.clone())
}

/// The initiator's response to the target's CHAP challenge.
struct Proof<'a> {
    name: &'a str,
    secret: &'a str,
    /// Challenge of the initiator, for mutual CHAP. An empty challenge makes the initiator send the
    /// target's own challenge back.
    challenge: Option<&'a [u8]>,
}

/// Logs in with CHAP up to full feature phase. Returns the text of the last CHAP response.
fn prove(
    initiator: &mut Initiator,
    algorithms: &str,
    proof: &Proof<'_>,
) -> Result<Vec<(String, String)>, [u8; 2]> {
    prove_as(NAME, initiator, algorithms, proof)
}

/// Like [`prove`], for the initiator with this name.
fn prove_as(
    name: &str,
    initiator: &mut Initiator,
    algorithms: &str,
    proof: &Proof<'_>,
) -> Result<Vec<(String, String)>, [u8; 2]> {
    let offer = [("InitiatorName", name), NAMES[1], ("AuthMethod", "CHAP,None")];
    let answer = owned(&initiator.login_step(0, Some(1), &offer)?);
    assert_eq!(value(&answer, "AuthMethod"), "CHAP");
    assert_eq!(value(&answer, "TargetPortalGroupTag"), "1");
    let answer = owned(&initiator.login_step(0, None, &[("CHAP_A", algorithms)])?);
    let algorithm = match value(&answer, "CHAP_A").as_str() {
        "5" => Algorithm::Md5,
        "7" => Algorithm::Sha256,
        other => panic!("CHAP_A={other}"),
    };
    let identifier: u8 = value(&answer, "CHAP_I").parse().expect("a number");
    let challenge = text::binary(&value(&answer, "CHAP_C")).expect("binary");
    let secret = Secret::new(proof.secret.as_bytes().to_vec());
    let response = text::to_hex(&algorithm.response(identifier, &secret, &challenge));
    let mut keys = with(&[("CHAP_N", proof.name), ("CHAP_R", &response)]);
    if let Some(own) = proof.challenge {
        let own = if own.is_empty() { &challenge } else { own };
        keys.extend(with(&[("CHAP_I", "17"), ("CHAP_C", &text::to_hex(own))]));
    }
    let keys: Vec<_> = keys.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let answer = owned(&initiator.login_step(0, Some(1), &keys)?);
    initiator.login_step(1, Some(3), &[("InitialR2T", "Yes")])?;
    if let Some(own) = proof.challenge {
        let secret = Secret::new(b"staple".to_vec());
        let expected = algorithm.response(17, &secret, own);
        assert_eq!(text::binary(&value(&answer, "CHAP_R")), Some(expected), "the target's proof");
        assert_eq!(value(&answer, "CHAP_N"), "weir");
    }
    Ok(answer)
}

const RIGHT: Proof<'_> = Proof { name: "alice", secret: "correct horse", challenge: None };

#[test]
fn chap_admits_initiator_with_the_secret() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    *targets.authentication.lock() = chap(None);
    for algorithms in ["5", "7", "5,7", "6,5"] {
        let mut initiator = Initiator::connect(address);
        prove(&mut initiator, algorithms, &RIGHT).expect("a session");
        assert_eq!(initiator.read(0, 1).len(), BLOCK);
        assert!(targets.sessions.list()[0].chap);
    }
}

#[test]
fn chap_refuses_initiator_without_the_secret() {
    let setup = setup(Disk::new(SIZE));
    *setup.targets.authentication.lock() = chap(None);
    let failure = Err([2, 1]);
    for proof in [
        Proof { secret: "wrong horse", ..RIGHT },
        Proof { secret: "", ..RIGHT },
        Proof { name: "bob", ..RIGHT },
        // The initiator requests mutual CHAP, but the target has no secret for it.
        Proof { challenge: Some(b"0123456789abcdef"), ..RIGHT },
    ] {
        let mut initiator = Initiator::connect(setup.address);
        assert_eq!(prove(&mut initiator, "5", &proof), failure);
        initiator.expect_end();
    }
    let mut initiator = Initiator::connect(setup.address);
    assert_eq!(prove(&mut initiator, "6,8", &RIGHT), failure, "no algorithm in common");
    // Try a login without CHAP, in all variants.
    for (stage, next, keys) in [
        (1, Some(3), &[][..]),
        (0, Some(3), &[]),
        (0, Some(1), &[("AuthMethod", "None")]),
        (0, Some(3), &[("CHAP_N", "alice"), ("CHAP_R", "0x00")]),
        (1, Some(3), &[("AuthMethod", "CHAP")]),
    ] {
        let mut initiator = Initiator::connect(setup.address);
        let keys: Vec<_> = NAMES.iter().chain(keys).copied().collect();
        let status = initiator.login_step(stage, next, &keys).expect_err("no session");
        assert!(matches!(status, [2, 0 | 1]), "{status:?}");
        initiator.expect_end();
    }
    assert_eq!(setup.disk().nexuses.load(Ordering::SeqCst), 0);
    assert!(setup.targets.sessions.list().is_empty());
}

#[test]
fn transit_before_the_chap_response_is_denied() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    *targets.authentication.lock() = chap(None);
    let mut initiator = Initiator::connect(address);
    let offer: Vec<_> = NAMES.iter().copied().chain([("AuthMethod", "CHAP")]).collect();
    initiator.login_step(0, Some(3), &offer).expect("an answer");
    assert_eq!(initiator.tsih, 0, "not in full feature phase");
    // Continue as if the target had allowed the stage transition.
    assert!(initiator.login_step(1, Some(3), &[]).is_err());
    assert!(targets.sessions.list().is_empty());
}

#[test]
fn mutual_chap_authenticates_both_sides_and_refuses_reflection() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    *targets.authentication.lock() = chap(Some("staple"));
    let mutual = Proof { challenge: Some(b"0123456789abcdef"), ..RIGHT };
    for algorithm in ["5", "7"] {
        prove(&mut Initiator::connect(address), algorithm, &mutual).expect("both proved");
    }
    let failure = Err([2, 1]);
    // This target requires that the initiator requests mutual CHAP.
    assert_eq!(prove(&mut Initiator::connect(address), "5", &RIGHT), failure);
    let reflected = Proof { challenge: Some(b""), ..RIGHT };
    assert_eq!(prove(&mut Initiator::connect(address), "5", &reflected), failure);
    // The login fails if initiator and target have the same secret.
    *targets.authentication.lock() = chap(Some("correct horse"));
    assert_eq!(prove(&mut Initiator::connect(address), "5", &mutual), failure);
}

#[test]
fn discovery_can_require_chap() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    *targets.discovery.lock() = chap(None);
    let mut initiator = Initiator::connect(address);
    let keys = [NAMES[0], ("SessionType", "Discovery"), ("AuthMethod", "None")];
    assert_eq!(initiator.login_step(0, Some(1), &keys), Err([2, 1]));
}

#[test]
fn each_refusal_has_its_login_status() {
    let Setup { address, server: _server, .. } = setup(Disk::new(SIZE));
    let none = ("TargetName", "iqn.2026-01.org.example:none");
    let stranger = ("InitiatorName", "iqn.2026-01.org.example:stranger");
    for (keys, status) in [
        (vec![NAMES[0], none], [2, 1]),
        (vec![stranger, NAMES[1]], [2, 1]),
        (vec![NAMES[0]], [2, 7]),
        (vec![NAMES[1]], [2, 7]),
        (vec![NAMES[0], NAMES[1], ("SessionType", "Odd")], [2, 9]),
        (vec![NAMES[0], NAMES[1], ("ImmediateData", "Yes"), ("ImmediateData", "No")], [2, 0]),
        (vec![("InitiatorName", ""), NAMES[1]], [2, 0]),
    ] {
        let mut initiator = Initiator::connect(address);
        assert_eq!(initiator.login_step(1, Some(3), &keys), Err(status), "{keys:?}");
        initiator.expect_end();
    }
    // Try invalid stages, text without an end, and a TSIH that no session has.
    for (stage, next) in [(2, Some(3)), (3, Some(3)), (1, Some(1)), (1, Some(0)), (0, Some(2))] {
        let mut initiator = Initiator::connect(address);
        assert_eq!(initiator.login_step(stage, next, &NAMES), Err([2, 0]), "{stage} {next:?}");
    }
    let mut initiator = Initiator::connect(address);
    for part in 0..3 {
        initiator.send_login(1, None, true, &[b'a'; 8192]);
        let reply = initiator.reply();
        assert_eq!(reply.header.byte(36) == 0, part < 2, "bounded");
    }
    let mut initiator = Initiator::connect(address);
    initiator.tsih = 1234;
    assert_eq!(initiator.log_in(&[]), Err([2, 10]));
    // The first PDU is not a Login Request.
    let mut initiator = Initiator::connect(address);
    let header = initiator.read_header(0, 1);
    initiator.send(header, &[]);
    initiator.expect_end();
}

/// Logs in with CHAP and a wrong secret. Returns the keys of each response, and the final login
/// status.
fn heard(address: SocketAddr, names: &[(&'static str, &str)]) -> (Vec<Vec<String>>, [u8; 2]) {
    let mut initiator = Initiator::connect(address);
    let offer = [names, &[("AuthMethod", "CHAP,None")]].concat();
    let steps = [(Some(1), offer), (None, vec![("CHAP_A", "5,7")]), (Some(1), wrong())];
    let mut keys = Vec::new();
    for (next, said) in steps {
        match initiator.login_step(0, next, &said) {
            Ok(answer) => {
                // Compare all values except the random CHAP challenge.
                let shown = |(key, value): (String, String)| {
                    if ["CHAP_C", "CHAP_I"].contains(&key.as_str()) { key } else { key + &value }
                };
                keys.push(owned(&answer).into_iter().map(shown).collect());
            }
            Err(status) => return (keys, status),
        }
    }
    panic!("{names:?} was let in");
}

/// Returns a wrong CHAP response.
fn wrong() -> Vec<(&'static str, &'static str)> {
    vec![("CHAP_N", "alice"), ("CHAP_R", "0x00112233445566778899aabbccddeeff")]
}

// Regression test: statuses 0201, 0202 and 0203 revealed to unauthenticated peers which targets
// exist, and which initiators may use them.
#[test]
fn unknown_target_forbidden_initiator_and_wrong_secret_look_alike() {
    let setup = setup(Disk::new(SIZE));
    *setup.targets.authentication.lock() = chap(None);
    let wrong_secret = heard(setup.address, &NAMES);
    assert_eq!((wrong_secret.0.len(), wrong_secret.1), (2, [2, 1]));
    let none = ("TargetName", "iqn.2026-01.org.example:none");
    let stranger = ("InitiatorName", "iqn.2026-01.org.example:stranger");
    for names in [[NAMES[0], none], [stranger, NAMES[1]], [stranger, none]] {
        assert_eq!(heard(setup.address, &names), wrong_secret, "{names:?}");
        for (stage, keys) in [(1, &[][..]), (0, &[]), (0, &[("AuthMethod", "None")])] {
            let keys = [&names[..], keys].concat();
            let refused = Initiator::connect(setup.address).login_step(stage, Some(3), &keys);
            let same = [&NAMES[..], &keys[2..]].concat();
            let known = Initiator::connect(setup.address).login_step(stage, Some(3), &same);
            assert_eq!(refused, known, "{keys:?}");
            assert!(refused.is_err());
        }
    }
}

// Regression test: an attacker could try 976 secrets a second, and the log had no line about it.
#[test]
fn wrong_chap_responses_are_counted_and_throttled() {
    let setup = setup(Disk::new(SIZE));
    *setup.targets.authentication.lock() = chap(None);
    let challenged = |_| {
        let mut initiator = Initiator::connect(setup.address);
        let offer = [&NAMES[..], &[("AuthMethod", "CHAP")]].concat();
        initiator.login_step(0, Some(1), &offer).expect("CHAP");
        initiator.login_step(0, None, &[("CHAP_A", "5")]).expect("a challenge");
        initiator
    };
    let mut guessers: Vec<_> = (0..60).map(challenged).collect();
    let mut data = Vec::new();
    wrong().iter().for_each(|(key, value)| text::put(&mut data, key, value));
    guessers.iter_mut().for_each(|one| one.send_login(0, Some(1), false, &data));
    let answers: Vec<[u8; 2]> =
        guessers.iter_mut().map(|one| one.reply().header.bytes(36)).collect();
    let looked_at = answers.iter().filter(|status| **status == [2, 1]).count();
    let later = answers.iter().filter(|status| **status == [3, 1]).count();
    assert_eq!(looked_at + later, 60, "{answers:?}");
    // At most 14 responses were checked: six delays fit into the longest wait, and each thread may
    // check one more response at the same time.
    assert!(looked_at <= 14, "{looked_at} guesses were looked at");
    assert_eq!(*setup.targets.wrong_responses.lock(), looked_at);
    // A correct response is accepted once the throttle admits it.
    prove(&mut Initiator::connect(setup.address), "5", &RIGHT).expect("a session");
}

/// Signals the test's threads to end, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// Regression test: wrong secrets from a peer at the address of an initiator locked this initiator
// out.
#[test]
fn known_initiator_logs_in_during_guesses_from_its_address() {
    let setup = setup(Disk::new(SIZE));
    *setup.targets.authentication.lock() = chap(None);
    prove(&mut Initiator::connect(setup.address), "5", &RIGHT).expect("a session");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = Stop(&over);
        for _ in 0..8 {
            scope.spawn(|| {
                let guess = Proof { secret: "wrong horse", ..RIGHT };
                while !over.load(Ordering::Relaxed) {
                    let mut guesser = Initiator::connect(setup.address);
                    let refused = prove(&mut guesser, "5", &guess).expect_err("no session");
                    assert!([[2, 1], [3, 1]].contains(&refused), "{refused:?}");
                }
            });
        }
        wait_until("the guesses have begun", || *setup.targets.wrong_responses.lock() > 20);
        for _ in 0..10 {
            prove(&mut Initiator::connect(setup.address), "5", &RIGHT).expect("a session");
        }
        drop(stop);
    });
}

fn discovery(address: SocketAddr) -> Initiator {
    let mut initiator = Initiator::connect(address);
    let keys = [NAMES[0], ("SessionType", "Discovery")];
    initiator.login_step(1, Some(3), &keys).expect("a discovery session");
    initiator
}

// Regression: 256 sessions without CHAP under an initiator's name locked out this initiator, and
// 896 of them locked out all initiators.
#[test]
fn sessions_without_chap_do_not_lock_out_the_owner_of_a_name() {
    let targets = MemoryTargets::with_sessions(Disk::new(SIZE), Sessions::with_limits(6, 4, 3));
    let setup = serve_targets(targets, Budget::new(32 << 20, OWN), 2);
    let strangers: Vec<_> = (0..100).map(|_| discovery(setup.address)).collect();
    let here = || setup.targets.sessions.list().len();
    wait_until("the oldest gave way", || here() <= PEER_DISCOVERIES_MAX);
    assert_eq!(setup.targets.sessions.list().len(), PEER_DISCOVERIES_MAX);
    let unproven = |id: u8| {
        let mut initiator = Initiator::connect(setup.address);
        initiator.isid[5] = id;
        initiator.log_in(&[]).map(|_| initiator)
    };
    let taken: Vec<_> = (0..3).map(|id| unproven(id).expect("a place")).collect();
    assert_eq!(unproven(9).err(), Some([3, 2]));
    *setup.targets.authentication.lock() = chap(None);
    let mut own = Vec::new();
    for id in 20..23 {
        let mut initiator = Initiator::connect(setup.address);
        initiator.isid[5] = id;
        prove(&mut initiator, "7", &RIGHT).expect("a place for the one that proves its name");
        own.push(initiator);
    }
    own.iter_mut().for_each(|one| assert_eq!(one.read(0, 1).len(), BLOCK));
    drop((strangers, taken));
}

#[test]
fn chap_sessions_per_name_and_in_total_are_bounded() {
    let targets = MemoryTargets::with_sessions(Disk::new(SIZE), Sessions::with_limits(4, 2, 3));
    *targets.authentication.lock() = chap(None);
    let setup = serve_targets(targets, Budget::new(32 << 20, OWN), 2);
    let log_in = |name: &str, id: u8| {
        let mut initiator = Initiator::connect(setup.address);
        initiator.isid[5] = id;
        let name = format!("{NAME}:{name}");
        prove_as(&name, &mut initiator, "7", &RIGHT).map(|_| initiator)
    };
    let mut sessions: Vec<_> = (0..3).map(|id| log_in("one", id).expect("a place")).collect();
    assert_eq!(log_in("one", 9).err(), Some([3, 2]), "three of one name");
    sessions.push(log_in("other", 0).expect("a place for another name"));
    assert_eq!(log_in("third", 0).err(), Some([3, 2]), "four of all");
    // A reinstated session keeps its slot. A session that ends frees its slot.
    sessions[3] = log_in("other", 0).expect("its own place");
    drop(sessions.pop());
    setup.wait_for_nexuses(3);
    sessions.push(log_in("third", 0).expect("room again"));
    sessions.iter_mut().for_each(|one| assert_eq!(one.read(0, 1).len(), BLOCK));
}

#[test]
fn login_text_may_be_split_at_any_byte() {
    let Setup { address, server: _server, .. } = setup(Disk::new(SIZE));
    let mut data = Vec::new();
    NAMES.iter().for_each(|(key, value)| text::put(&mut data, key, value));
    for cut in [1, 13, 14, 20, data.len() - 1] {
        let mut initiator = Initiator::connect(address);
        initiator.send_login(1, None, true, &data[..cut]);
        let reply = initiator.reply();
        assert!(reply.data.is_empty() && reply.header.flags() & 0xc0 == 0);
        initiator.send_login(1, Some(3), false, &data[cut..]);
        let reply = initiator.reply();
        assert_eq!(reply.header.bytes(36), [0, 0], "cut at {cut}");
        assert_eq!(reply.header.flags() & 0x83, 0x83);
        assert_eq!(initiator.read(0, 1).len(), BLOCK);
    }
}

#[test]
fn login_with_the_same_isid_reinstates_the_session() {
    let setup = setup(Disk::new(SIZE));
    let address = setup.address;
    let mut first = Initiator::session(address, &[]);
    let mut second = Initiator::session(address, &[]);
    assert_ne!(first.tsih, second.tsih);
    first.expect_end();
    assert_eq!(setup.targets.sessions.list().len(), 1);
    assert_eq!(setup.disk().nexuses.load(Ordering::SeqCst), 1);
    // A login with another ISID creates another session.
    let mut other = Initiator::connect(address);
    other.isid[5] = 9;
    other.log_in(&[]).expect("a session");
    assert_eq!(second.read(0, 1).len(), BLOCK);
    // The login contains the TSIH of an active session. With another CID the target refuses the
    // login; with the same CID the login reinstates the connection.
    let mut third = Initiator::connect(address);
    (third.tsih, third.cid) = (second.tsih, 2);
    assert_eq!(third.log_in(&[]), Err([2, 6]));
    assert_eq!(second.read(0, 1).len(), BLOCK);
    let mut third = Initiator::connect(address);
    third.tsih = second.tsih;
    third.log_in(&[]).expect("the connection again");
    assert_eq!(third.tsih, second.tsih);
    second.expect_end();
    assert_eq!(third.read(0, 1).len(), BLOCK);
    assert_eq!(other.read(0, 1).len(), BLOCK);
    assert_eq!(setup.disk().nexuses.load(Ordering::SeqCst), 2);
}

#[test]
fn new_session_starts_after_the_last_command_of_the_old_one() {
    let setup = setup(Disk::new(SIZE));
    let mut first = Initiator::session(setup.address, &[]);
    setup.disk().held.store(true, Ordering::Relaxed);
    let header = first.write_header(0, BLOCK, true);
    first.send(header, &pattern(BLOCK, 1));
    first.nop(b"");
    let disk = std::sync::Arc::clone(&setup.targets.disk);
    let start = Instant::now();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(disk.done.load(Ordering::Relaxed), 0);
        disk.held.store(false, Ordering::Relaxed);
    });
    let mut second = Initiator::session(setup.address, &[]);
    assert!(start.elapsed() >= Duration::from_millis(250), "it waited");
    assert_eq!(second.read(0, 1), pattern(BLOCK, 1));
    release.join().expect("no panic");
}

#[test]
fn reinstatement_is_refused_while_old_commands_hang() {
    let setup = setup(Disk::new(SIZE));
    let mut first = Initiator::session(setup.address, &[]);
    setup.disk().held.store(true, Ordering::Relaxed);
    let header = first.write_header(0, BLOCK, true);
    first.send(header, &[1; BLOCK]);
    first.nop(b"");
    let start = Instant::now();
    let mut second = Initiator::connect(setup.address);
    assert_eq!(second.log_in(&[]), Err([3, 2]));
    assert!(start.elapsed() >= REINSTATEMENT_LIMIT);
    setup.disk().held.store(false, Ordering::Relaxed);
    wait_until("the old session", || setup.targets.sessions.list().is_empty());
    Initiator::session(setup.address, &[]).read(0, 1);
}

#[test]
fn slow_login_is_dropped_after_the_time_limit() {
    const LIMIT: Duration = Duration::from_millis(500);
    let targets = MemoryTargets::new(Disk::new(SIZE));
    let setup = serve_limited(targets, Budget::new(256 << 20, OWN), 2, LIMIT);
    let mut initiator = Initiator::connect(setup.address);
    let start = Instant::now();
    // A client that sends single bytes from time to time does not extend the time limit.
    let mut socket = initiator.socket.try_clone().expect("a socket");
    let drip = std::thread::spawn(move || {
        while std::io::Write::write_all(&mut socket, &[0x43]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    initiator.expect_end();
    assert!(start.elapsed() + Duration::from_millis(50) >= LIMIT, "{:?}", start.elapsed());
    assert!(start.elapsed() < LIMIT * 10, "{:?}", start.elapsed());
    drop(initiator);
    drip.join().expect("no panic");
}

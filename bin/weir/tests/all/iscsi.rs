//! iSCSI targets of the real program: external initiators and a conformance suite, SIGKILL,
//! reservations, offloads, and the management of targets.
//!
//! Not here: protocol errors (the tests of weir-iscsi), tests of each command (weir-scsi).
//!
//! Invariants:
//! - the contents of a logical unit are compared byte for byte with the data that was written;
//! - a test of the suite may fail only if this file lists the test with the reason.

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::iscsi::{Initiator, wide};
use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, MIB, Server, code, eventually, text, tool};
use serde_json::Value;

const TARGET: &str = "iqn.2026-01.org.weir:vms";
const CLIENT: &str = "iqn.2026-01.org.example:client";
const OTHER: &str = "iqn.2026-01.org.example:other";

/// Number of programs of the libiscsi suite that run at the same time. Each has its own target,
/// because some tests reset their target or reserve their logical unit. The programs mostly wait.
const SUITES: usize = 4;
/// Tests of the libiscsi suite that may fail, each with the reason.
const MAY_FAIL: &[(&str, &str)] = &[
    ("GetLBAStatus.UnmapSingle", "asks for block i + 1 and expects block i + 8"),
    ("iSCSIdatasn.iSCSIDataSnInvalid", "the suite itself crashes when the target closes"),
    ("iSCSITMF.LUNResetSimpleAsync", "the suite itself crashes, with other targets too"),
];
/// Tests of the libiscsi suite that may be skipped, because no Weir volume has the tested feature.
const MAY_SKIP: &[&str] = &[
    "PreventAllow.",    // no removable medium
    "StartStopUnit.",   // the same
    "ReadDefectData10", // obsolete
    "ReadDefectData12",
    "ReadOnly.",              // needs a write-protected target
    "Sanitize.",              // disabled in the suite
    "WriteAtomic",            // SBC-4
    "WriteSame10.ZeroBlocks", // WSNZ: zero blocks do not mean all
    "WriteSame16.ZeroBlocks",
];

/// Test of the libiscsi suite that gets its own volume. The test writes zeros to blocks 0 to 255,
/// but expects zeros in block 256 too. In a shared volume, another test may have written to block
/// 256, depending on timing.
const NEEDS_EMPTY_VOLUME: &str = "MultipathIO.CompareAndWrite";

fn serve(dirs: &Dirs) -> Server {
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0", "--iscsi", "127.0.0.1:0"]);
    Server::start(dirs, "", command)
}

/// Starts a server that has a pool, and a target that accepts all initiators.
fn served(dirs: &Dirs) -> Server {
    dirs.disk("a", 4 * GIB);
    let server = serve(dirs);
    server.weir("pool create tank a").ok();
    server.weir("target create vms --allow *").ok();
    server
}

fn shown(server: &Server) -> Value {
    server.weir("target show vms --json").json()
}

/// Returns the address and port of a portal of the target, by its number.
fn portal(server: &Server, number: usize) -> String {
    let portal = shown(server)["portals"][number].as_str().unwrap().to_owned();
    portal.split(',').next().unwrap().to_owned()
}

fn url(server: &Server, portal_number: usize, lun: u8) -> String {
    format!("iscsi://{}/{TARGET}/{lun}", portal(server, portal_number))
}

fn session(server: &Server, name: &str, isid: u8) -> Initiator {
    Initiator::log_in(&portal(server, 0), name, isid, TARGET).unwrap().expect("a session")
}

/// Runs one test of the suite. Returns its result (passed, skipped or failed) and the output.
fn suite_test(name: &str, urls: &[String]) -> (&'static str, String) {
    let mut command = Command::new("timeout");
    command.args(["60", "iscsi-test-cu", "-d", "-n", "-t", name]).args(urls);
    let output = command.output().unwrap();
    let said = text(&output);
    let words = said.lines().find(|line| line.trim_start().starts_with("tests "));
    let counts: Vec<u64> =
        words.iter().flat_map(|line| line.split_whitespace()).flat_map(str::parse).collect();
    // Every test first sends REPORT SUPPORTED OPCODES. A test counts as skipped only if it skipped
    // another command too.
    let mut skips = said.lines().filter(|line| line.contains("[SKIPPED]"));
    let skipped = skips.any(|line| !line.contains("REPORT_SUPPORTED_OPCODES"));
    // The four counts in the output are total, run, passed and failed.
    let is_good = matches!(counts[..], [total, _, _, 0, ..] if total > 0);
    let result = if !is_good {
        "fail"
    } else if skipped {
        "skip"
    } else {
        "pass"
    };
    (result, said)
}

/// Creates a target with one volume for the suite. Returns the addresses of its logical unit, one
/// for each portal.
fn suite_target(server: &Server, number: usize) -> [String; 2] {
    let name = format!("suite{number}");
    server.weir(&format!("target create {name} --allow *")).ok();
    server.weir(&format!("volume create tank/{name} --size 1GiB")).ok();
    server.weir(&format!("lun add {name} tank/{name}")).ok();
    let target = TARGET.replace("vms", &name);
    [0, 1].map(|portal_number| format!("iscsi://{}/{target}/0", portal(server, portal_number)))
}

#[test]
fn conformance_suite_passes_except_for_listed_tests() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    let list = tool("iscsi-test-cu", &["--list"]);
    let tests: Vec<&str> = list
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("ALL.") && line.matches('.').count() == 2)
        .collect();
    assert!(tests.len() > 200, "{} tests are listed", tests.len());
    let next = AtomicUsize::new(0);
    let found = Mutex::new((0, Vec::new()));
    let run_tests = |number| {
        let urls = suite_target(&server, number);
        while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = test.strip_prefix("ALL.").unwrap();
            let (result, said) = if name == NEEDS_EMPTY_VOLUME {
                suite_test(test, &suite_target(&server, SUITES))
            } else {
                suite_test(test, &urls)
            };
            let (passed, wrong) = &mut *found.lock().unwrap();
            match result {
                "pass" => *passed += 1,
                "skip" if MAY_SKIP.iter().any(|prefix| name.starts_with(prefix)) => {}
                "fail" if MAY_FAIL.iter().any(|(failing, _)| *failing == name) => {}
                _ => wrong.push(format!("{name}: {result}\n{said}")),
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 0..SUITES {
            let run_tests = &run_tests;
            scope.spawn(move || run_tests(number));
        }
    });
    let (passed, wrong) = found.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} tests:\n{}", wrong.len(), wrong.join("\n"));
    assert!(passed >= 190, "{passed} passed");
    server.assert_alive();
}

#[test]
fn qemu_reads_its_writes_after_a_kill() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.weir("volume create tank/vm1 --size 256MiB").ok();
    server.weir("lun add vms tank/vm1 --block-size 4096").ok();
    let image = dirs.file("image");
    let mut content = vec![0; 128 * MIB as usize];
    Rng::new(1).fill(&mut content[..64 * MIB as usize]);
    fs::write(&image, &content).unwrap();
    let image = image.to_str().unwrap().to_owned();
    let to = url(&server, 1, 0);
    tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &to]);
    tool("qemu-io", &["-f", "raw", "-c", "discard 32M 16M", "-c", "flush", &to]);
    server.kill();
    let server = serve(&dirs);
    content[32 * MIB as usize..48 * MIB as usize].fill(0);
    fs::write(dirs.file("image"), &content).unwrap();
    let from = url(&server, 0, 0);
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &from]);
    let used = server.weir("volume show tank/vm1 --json").json()["used_bytes"].as_u64().unwrap();
    assert!(used < 52 * MIB, "{used} bytes are used");
    tool("iscsi-inq", &[&from]);
    let said = tool("iscsi-ls", &["-s", &format!("iscsi://{}", portal(&server, 0))]);
    assert!(said.matches(TARGET).count() == 2 && said.contains("Lun:0"), "{said}");
    server.stop_clean();
}

/// Acknowledged writes and persistent reservations must survive a SIGKILL.
#[test]
fn writes_and_reservations_survive_a_kill() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    server.weir("volume create tank/vm1 --size 256MiB").ok();
    server.weir("lun add vms tank/vm1 --block-size 4096 --lun 3").ok();
    let naa = shown(&server)["luns"][0]["naa"].clone();
    let mut rng = Rng::new(7);
    let mut known = vec![0_u64; 1024];
    for round in 1..=6 {
        let mut one = session(&server, CLIENT, 1);
        one.ready(3);
        for (at, known) in known.iter().enumerate() {
            let data = one.run(3, &wide(0x88, 0, at as u64, 1), &[], 4096).unwrap().good();
            assert_eq!(u64::from_le_bytes(data[..8].try_into().unwrap()), *known, "block {at}");
        }
        if round == 1 {
            // Send REGISTER with APTPL, so that the server saves the reservation, then RESERVE for
            // write exclusive.
            one.run(3, &reserve_out(0, 0), &reserve_data(0, 0x11, true), 0).unwrap().good();
            one.run(3, &reserve_out(1, 1), &reserve_data(0x11, 0, false), 0).unwrap().good();
        }
        let mut other = session(&server, OTHER, 2);
        other.ready(3);
        let refused = other.run(3, &wide(0x8A, 0, 0, 1), &[9; 4096], 0).unwrap();
        assert_eq!(refused.status, 0x18, "round {round}: a reservation conflict");
        for write in 0..200_u64 {
            let at = rng.below(known.len() as u64);
            let value = (round << 32) | (write + 1);
            let mut block = [0x5A; 4096];
            block[..8].copy_from_slice(&value.to_le_bytes());
            one.run(3, &wide(0x8A, 0, at, 1), &block, 0).unwrap().good();
            known[at as usize] = value;
        }
        // The write cache is off, so every acknowledged write must be durable.
        server.kill();
        server = serve(&dirs);
        assert_eq!(shown(&server)["luns"][0]["naa"], naa);
        assert_eq!(shown(&server)["luns"][0]["registrations"], 1);
    }
    server.assert_alive();
}

/// Returns the CDB of a PERSISTENT RESERVE OUT command.
fn reserve_out(action: u8, kind: u8) -> [u8; 10] {
    [0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0]
}

fn reserve_data(key: u64, new_key: u64, aptpl: bool) -> Vec<u8> {
    let mut data = key.to_be_bytes().to_vec();
    data.extend(new_key.to_be_bytes());
    data.extend([0, 0, 0, 0, u8::from(aptpl), 0, 0, 0]);
    data
}

/// Two initiators race for one block with COMPARE AND WRITE, each through its own portal. Exactly
/// one of them must win each round.
#[test]
fn racing_compare_and_writes_have_one_winner() {
    const ROUNDS: u64 = 100_000;
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    server.weir("volume create tank/vm1 --size 64MiB").ok();
    server.weir("lun add vms tank/vm1 --write-cache on").ok();
    let racers = [(CLIENT, 1_u8), (OTHER, 2)].map(|(name, id)| {
        let address = portal(&server, usize::from(id - 1));
        std::thread::spawn(move || {
            let racer = Initiator::log_in(&address, name, id, TARGET).unwrap();
            let mut racer = racer.expect("a session");
            racer.ready(0);
            let mut won = 0_u64;
            let mut cdb = wide(0x89, 0, 5, 0);
            cdb[13] = 1;
            let block = |round: u64, by: u8| {
                let mut block = [by; 512];
                block[..8].copy_from_slice(&round.to_le_bytes());
                block
            };
            let mut now = [0; 512];
            while u64::from_le_bytes(now[..8].try_into().unwrap()) < ROUNDS {
                let round = u64::from_le_bytes(now[..8].try_into().unwrap());
                let new = block(round + 1, id);
                let answer = racer.run(0, &cdb, &[now, new].concat(), 0).unwrap();
                if answer.status == 0 {
                    (won, now) = (won + 1, new);
                    continue;
                }
                assert_eq!(answer.sense, [0x0E, 0x1D, 0], "a miscompare");
                let read = racer.run(0, &wide(0x88, 0, 5, 1), &[], 512).unwrap().good();
                now = read.try_into().unwrap();
            }
            won
        })
    });
    let won: Vec<u64> = racers.into_iter().map(|racer| racer.join().unwrap()).collect();
    assert_eq!(won.iter().sum::<u64>(), ROUNDS, "each round has one winner: {won:?}");
    assert!(won.iter().all(|won| *won > 0), "both raced: {won:?}");
    server.assert_alive();
}

// Regression: the threads of the server waited for each other forever, at full load, when each of
// them woke more than 64 waiting commands of the other, and the server ignored SIGTERM.
#[test]
fn compare_and_writes_that_wait_for_a_few_blocks_do_not_stop_the_server() {
    const ROUNDS: u64 = 100;
    /// Commands in flight of each initiator, below the window of 128 that the target grants.
    const QUEUE: u64 = 120;
    const BLOCKS: u32 = 64 << 10;
    /// Blocks for which the initiators race, so that two threads release locks at the same time.
    const RACED: [u64; 2] = [5, 50_000];
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    server.weir("volume create tank/vm1 --size 32MiB").ok();
    server.weir("lun add vms tank/vm1").ok();
    let block = |value: u64| {
        let mut block = [0; 512];
        block[..8].copy_from_slice(&value.to_le_bytes());
        block
    };
    let mut filler = session(&server, OTHER, 1);
    filler.ready(0);
    let mut racers = [2_u8, 3, 4, 5, 6, 7, 8, 9].map(|id| {
        let address = portal(&server, usize::from(id % 2));
        let mut racer = Initiator::log_in(&address, CLIENT, id, TARGET).unwrap().unwrap();
        racer.ready(0);
        racer
    });
    let mut won = 0;
    for round in 1..=ROUNDS {
        // WRITE SAME locks all blocks for some time, so that the racers' commands wait.
        let first = round << 32;
        filler.send_command(0, &wide(0x93, 0, 0, BLOCKS), &block(first), 0).unwrap();
        let commands = (0..QUEUE).map(|number| {
            let mut cdb = wide(0x89, 0, RACED[number as usize % RACED.len()], 0);
            cdb[13] = 1;
            let now = first + number / RACED.len() as u64;
            (cdb, [block(now), block(now + 1)].concat())
        });
        for racer in &mut racers {
            racer.send_commands(0, commands.clone()).unwrap();
        }
        filler.answer().unwrap().good();
        let mut wins = 0;
        for racer in &mut racers {
            for _ in 0..QUEUE {
                let answer = racer.answer().unwrap();
                let miscompare = answer.sense == [0x0E, 0x1D, 0];
                assert!(answer.status == 0 || miscompare, "round {round}: {answer:?}");
                wins += u64::from(answer.status == 0);
            }
        }
        let changes = RACED.map(|at| {
            let read = filler.run(0, &wide(0x88, 0, at, 1), &[], 512).unwrap().good();
            u64::from_le_bytes(read[..8].try_into().unwrap()) - first
        });
        let sum = changes.iter().sum::<u64>();
        assert_eq!(sum, wins, "round {round}: each value has one winner: {changes:?}");
        won += wins;
    }
    assert!(won > 0, "commands waited for the end of a WRITE SAME");
    server.assert_alive();
    drop((filler, racers));
    server.stop_clean();
}

/// Zeroing and copying must transfer no data over the wire and write no data to the pool.
#[test]
fn offloads_move_no_data() {
    const BLOCKS: u64 = GIB / 4096;
    let dirs = Dirs::new();
    let server = served(&dirs);
    for (name, lun) in [("vm1", 0), ("vm2", 1)] {
        server.weir(&format!("volume create tank/{name} --size 1GiB")).ok();
        server.weir(&format!("lun add vms tank/{name} --block-size 4096 --lun {lun}")).ok();
    }
    let mut one = session(&server, CLIENT, 1);
    one.ready(0);
    one.ready(1);
    let mut rng = Rng::new(3);
    for at in (0..BLOCKS).step_by(64) {
        let mut block = vec![0; 8 * 4096];
        rng.fill(&mut block);
        one.run(0, &wide(0x8A, 0, at, 8), &block, 0).unwrap().good();
    }
    one.run(0, &wide(0x91, 0, 0, 0), &[], 0).unwrap().good();
    let naa = |lun: usize| {
        let shown = shown(&server);
        let digits = shown["luns"][lun]["naa"].as_str().unwrap().to_owned();
        u128::from_str_radix(&digits, 16).unwrap().to_be_bytes()
    };
    let list = copy_list(naa(0), naa(1), BLOCKS);
    let used = || {
        let list = server.weir("pool list --json").json();
        list["pools"][0]["allocated_bytes"].as_u64()
    };
    let (before, wire) = (used(), one.wire_bytes);
    let start = Instant::now();
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    one.run(0, &cdb, &list, 0).unwrap().good();
    let copied = start.elapsed();
    assert!(one.wire_bytes - wire < 4096, "{} bytes on the wire", one.wire_bytes - wire);
    if let (Some(before), Some(after)) = (before, used()) {
        assert!(after < before + 32 * MIB, "{before} bytes were allocated, {after} are");
    }
    for at in (0..BLOCKS).step_by(4096) {
        let read = |one: &mut Initiator, lun| {
            one.run(lun, &wide(0x88, 0, at, 16), &[], 16 * 4096).unwrap().good()
        };
        assert!(read(&mut one, 0) == read(&mut one, 1), "block {at}");
    }
    let start = Instant::now();
    let wire = one.wire_bytes;
    for at in (0..BLOCKS).step_by(65536) {
        one.run(1, &wide(0x93, 0x08, at, 65536), &[0; 4096], 0).unwrap().good();
    }
    let zeroed = start.elapsed();
    assert!(one.wire_bytes - wire < 64 << 10);
    let read = one.run(1, &wide(0x88, 0, 4096, 16), &[], 16 * 4096).unwrap().good();
    assert!(read.iter().all(|byte| *byte == 0));
    // This limit only detects a hang. Benchmarks measure the actual time.
    assert!(copied + zeroed < Duration::from_secs(20), "{copied:?} and {zeroed:?}");
    let counters = &shown(&server)["luns"][1]["counters"];
    assert_eq!(counters["cloned_bytes"], GIB);
    assert_eq!(counters["unmapped_bytes"], GIB);
    server.stop_clean();
}

/// Returns the parameter list of an EXTENDED COPY (LID1) command that copies all blocks of one
/// logical unit to another.
fn copy_list(from: [u8; 16], to: [u8; 16], blocks: u64) -> Vec<u8> {
    const SEGMENT_BLOCKS: u64 = 32768;
    let mut list = vec![0; 16];
    for naa in [from, to] {
        let mut descriptor = [0; 32];
        descriptor[0] = 0xE4;
        descriptor[4..8].copy_from_slice(&[1, 3, 0, 16]);
        descriptor[8..24].copy_from_slice(&naa);
        descriptor[29..32].copy_from_slice(&4096_u32.to_be_bytes()[1..]);
        list.extend(descriptor);
    }
    for at in (0..blocks).step_by(SEGMENT_BLOCKS as usize) {
        let mut segment = [0; 28];
        (segment[0], segment[3], segment[7]) = (2, 0x18, 1);
        segment[10..12].copy_from_slice(&(SEGMENT_BLOCKS as u16).to_be_bytes());
        segment[12..20].copy_from_slice(&at.to_be_bytes());
        segment[20..28].copy_from_slice(&at.to_be_bytes());
        list.extend(segment);
    }
    list[3] = 64;
    let segments = (list.len() - 16 - 64) as u32;
    list[8..12].copy_from_slice(&segments.to_be_bytes());
    list
}

#[test]
fn only_allowed_initiators_with_the_secret_log_in() {
    let dirs = Dirs::new();
    dirs.disk("a", GIB);
    let server = serve(&dirs);
    server.weir("pool create tank a").ok();
    server.weir("volume create tank/vm1 --size 64MiB").ok();
    server.weir("target create vms").ok();
    server.weir("lun add vms tank/vm1").ok();
    let at = portal(&server, 0);
    let try_as = |name: &str| Initiator::log_in(&at, name, 1, TARGET).unwrap().map(|_| ());
    assert_eq!(try_as(CLIENT), Err([2, 1]), "nobody is on the list");
    server.weir(&format!("target allow vms {CLIENT}")).ok();
    assert_eq!(try_as(CLIENT), Ok(()));
    assert_eq!(try_as(OTHER), Err([2, 1]));
    let unknown = Initiator::log_in(&at, CLIENT, 1, "iqn.2026-01.org.weir:none").unwrap();
    assert_eq!(unknown.map(|_| ()), Err([2, 1]), "as for a target that is not for it");

    for (file, secret) in [("secret", "correct-horse-1"), ("mutual", "battery-staple-2")] {
        crate::common::write_secret(&dirs.file(file), &format!("{secret}\n"));
    }
    crate::common::write_secret(&dirs.file("short"), "tooshort");
    let allow = format!("target allow vms {CLIENT} --chap-user joe --chap-secret-file");
    server.weir(&format!("{allow} nowhere")).fails(code::NOT_FOUND, &["nowhere"]);
    server.weir(&format!("{allow} short")).fails(code::INVALID, &["12"]);
    server
        .weir(&format!("{allow} secret --mutual-user weir --mutual-secret-file secret"))
        .fails(code::INVALID, &["same secret"]);
    server.weir(&format!("{allow} secret --mutual-user weir --mutual-secret-file mutual")).ok();
    assert!(try_as(CLIENT).is_err(), "CHAP is demanded");
    let inquire = |account: &str, mutual: Option<&str>| {
        let mut command = Command::new("iscsi-inq");
        command.args(["-i", CLIENT, &format!("iscsi://{account}@{at}/{TARGET}/0")]);
        if let Some(secret) = mutual {
            command.env("LIBISCSI_CHAP_TARGET_USERNAME", "weir");
            command.env("LIBISCSI_CHAP_TARGET_PASSWORD", secret);
        }
        let output = command.output().unwrap();
        (output.status.success(), text(&output))
    };
    assert!(!inquire("joe%correct-horse-1", None).0, "mutual CHAP must be asked for");
    let (worked, said) = inquire("joe%correct-horse-1", Some("battery-staple-2"));
    assert!(worked, "{said}");
    for wrong in ["joe%correct-horse-2", "jim%correct-horse-1"] {
        assert!(!inquire(wrong, Some("battery-staple-2")).0, "{wrong}");
    }
    assert!(!inquire("joe%correct-horse-1", Some("battery-staple-3")).0, "the target is no liar");

    // The CHAP secret survives the kill, because the server keeps it in a file.
    server.kill();
    let server = serve(&dirs);
    let state = fs::read_to_string(dirs.short("state").join("state.json")).unwrap();
    assert!(!state.contains("horse") && !server.talk().contains("horse"));
    let at = portal(&server, 0);
    assert!(Initiator::log_in(&at, CLIENT, 1, TARGET).unwrap().is_err());
    // Regression: `target allow` without CHAP options removed the CHAP requirement of the
    // initiator.
    server.weir(&format!("target allow vms {CLIENT}")).fails(
        code::EXISTS,
        &[
            "authenticates with CHAP as joe at",
            "this would let it in without CHAP",
            "--chap-user joe --chap-secret-file FILE changes the secret",
            "--no-chap removes it",
        ],
    );
    assert!(Initiator::log_in(&at, CLIENT, 1, TARGET).unwrap().is_err(), "CHAP is demanded");
    server.weir(&format!("target allow vms {CLIENT} --no-chap")).ok();
    let mut here = Initiator::log_in(&at, CLIENT, 1, TARGET).unwrap().expect("a session");
    here.ready(0);
    server.weir(&format!("target deny vms {CLIENT}")).ok();
    // `deny` only requests the end of the session before it returns. On a busy machine the session
    // ends later.
    eventually("its session is ended", Duration::from_secs(20), || {
        here.run(0, &[0; 6], &[], 0).is_err()
    });
    server.stop_clean();
}

// Regression: discovery listed targets that require CHAP to any initiator with an allowed name, and
// wrong secrets were not reported.
#[test]
fn discovery_lists_chap_targets_only_after_chap() {
    let dirs = Dirs::new();
    let server = serve(&dirs);
    for (name, secret) in [("vms", "correct-horse-1"), ("other", "correct-horse-2")] {
        crate::common::write_secret(&dirs.file(name), secret);
        server.weir(&format!("target create {name}")).ok();
        let allow =
            format!("target allow {name} {CLIENT} --chap-user joe --chap-secret-file {name}");
        server.weir(&allow).ok();
    }
    server.weir("target create open --allow *").ok();
    let at = portal(&server, 0);
    let list = |account: &str| {
        let mut command = Command::new("iscsi-ls");
        text(&command.args(["-i", CLIENT, &format!("iscsi://{account}{at}")]).output().unwrap())
    };
    let names =
        |said: &str| ["vms", "other", "open"].map(|name| said.contains(&format!(":{name}")));
    assert_eq!(names(&list("")), [false, false, true]);
    let proved = list("joe%correct-horse-1@");
    assert_eq!(names(&proved), [true, false, true], "{proved}");
    let wrong = list("joe%correct-horse-3@");
    assert_eq!(names(&wrong), [false; 3], "{wrong}");
    let events = server.weir("events --json").ok().out;
    assert!(events.contains("chap_refused"), "{events}");
    server.stop_clean();
}

#[test]
fn logical_units_are_added_and_removed_during_sessions() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.weir("volume create tank/vm1 --size 64MiB").ok();
    server.weir("volume create tank/vm2 --size 64MiB").ok();
    server.weir("lun add vms tank/vm1").ok();
    server.weir("lun add vms tank/vm1").ok();
    let mut one = session(&server, CLIENT, 1);
    one.ready(0);
    let blocks = |one: &mut Initiator, lun| {
        let capacity = one.run(lun, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8).unwrap();
        capacity.data.first_chunk::<4>().map(|last| u32::from_be_bytes(*last) + 1)
    };
    assert_eq!(blocks(&mut one, 0), Some(131_072));

    // The initiator gets a unit attention about the new size of a volume.
    server.weir("volume resize tank/vm1 --size 128MiB").ok();
    assert_eq!(one.run(0, &[0; 6], &[], 0).unwrap().sense, [6, 0x2A, 9]);
    assert_eq!(blocks(&mut one, 0), Some(262_144));

    // The initiator gets a unit attention about added and removed units.
    server.weir("lun add vms tank/vm2 --lun 5").ok();
    assert_eq!(one.run(0, &[0; 6], &[], 0).unwrap().sense, [6, 0x3F, 0x0E]);
    one.ready(5);
    server.weir("lun add vms tank/vm2 --lun 5").ok();
    server.weir("lun add vms tank/vm1 --lun 5").fails(code::EXISTS, &["LUN 5", "taken"]);
    server.weir("lun add vms tank/vm1 --lun 6 --block-size 4096").fails(code::EXISTS, &["512"]);
    server.weir("lun add vms tank/vm1 --lun 6 --write-cache on").fails(code::EXISTS, &["cache"]);
    server.weir("lun add vms tank/vm1 --write-cache yes").fails(code::INVALID, &["on or off"]);
    server.weir("lun remove vms 5 --force").ok();
    server.weir("lun remove vms 5").fails(code::NOT_FOUND, &["LUN"]);
    assert_eq!(one.run(5, &[0; 6], &[], 0).unwrap().sense, [5, 0x25, 0]);

    // A volume that is a logical unit cannot be destroyed, and no other protocol may export it.
    server.weir("volume destroy tank/vm1 --yes").fails(code::BUSY, &["LUN 0", "weir lun remove"]);
    server.weir("export create nbd tank/vm1").fails(code::BUSY, &["LUN 0", "--shared"]);
    server.weir("export create nbd tank/vm2").ok();
    server.weir("lun add vms tank/vm2").fails(code::BUSY, &["exported", "--shared"]);
    server.weir("lun add vms tank/vm2 --shared").ok();
    server.weir("volume rename tank/vm1 tank/disk1").ok();
    assert_eq!(shown(&server)["luns"][0]["volume"], "tank/disk1");
    server.weir("snapshot create tank/disk1@a").ok();
    server.weir("lun add vms tank/disk1@a --lun 9").ok();
    one.ready(9);
    let refused = one.run(9, &wide(0x8A, 0, 0, 1), &[1; 512], 0).unwrap();
    assert_eq!(refused.sense, [7, 0x27, 0], "a snapshot is write protected");

    // The server refuses invalid arguments.
    server.weir("lun add vms tank/none").fails(code::NOT_FOUND, &["none"]);
    server.weir("lun add none tank/vm2").fails(code::NOT_FOUND, &["target"]);
    server.weir("lun add vms tank/vm2 --block-size 1024").fails(code::INVALID, &["512 or 4096"]);
    server.weir("target create bad_name").fails(code::INVALID, &["'_'"]);
    server.weir("target allow vms nobody").fails(code::INVALID, &["iqn."]);
    server.weir("target deny vms iqn.2026-01.org.example:x").fails(code::NOT_FOUND, &["initiator"]);
    let sessions = shown(&server)["sessions"].clone();
    assert_eq!(sessions.as_array().unwrap().len(), 1);
    assert_eq!(sessions[0]["initiator"], CLIENT);
    server.weir("target delete vms --force").ok();
    assert!(one.run(0, &[0; 6], &[], 0).is_err(), "its sessions are ended");
    server.weir("target show vms").fails(code::NOT_FOUND, &["vms"]);
    server.weir("volume destroy tank/disk1 -r --yes").ok();
    server.stop_clean();
}

#[test]
fn self_test_passes_and_removes_its_objects() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    let report = server.weir("target selftest --size 64MiB --json").json();
    let primitives = report["primitives"].as_array().unwrap();
    let names: Vec<&str> = primitives.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["write-same", "copy", "unmap", "compare-and-write"]);
    for one in &primitives[..3] {
        let bytes = |key: &str| one[key].as_u64().unwrap();
        assert_eq!(bytes("covered_bytes"), 64 * MIB, "{one}");
        assert!(bytes("wire_bytes") < 64 << 10 && bytes("plain_wire_bytes") > 64 * MIB, "{one}");
        let saved = bytes("plain_wire_bytes") - bytes("wire_bytes");
        assert_eq!(bytes("saved_wire_bytes"), saved, "{one}");
    }
    server.weir("schedule set tank hourly=24").ok();
    let table = server.weir("target selftest --pool tank --size 1GiB").ok().out;
    assert!(table.contains("clone blocks (EXTENDED COPY)"), "{table}");
    for (arguments, code, part) in [
        ("--size 1MiB", code::INVALID, "at least 16 MiB"),
        ("--pool none --size 64MiB", code::NOT_FOUND, "none"),
        ("--size 64MiB --portal 127.0.0.1:1", code::UNAVAILABLE, "127.0.0.1:1"),
    ] {
        server.weir(&format!("target selftest {arguments}")).fails(code, &[part]);
    }
    dirs.disk("b", GIB);
    server.weir("pool create second b").ok();
    server.weir("target selftest --size 64MiB").fails(code::INVALID, &["--pool"]);
    let volumes = server.weir("volume list --json").json();
    assert_eq!(volumes["volumes"], Value::Array(Vec::new()));
    assert_eq!(server.weir("target list --json").json()["targets"].as_array().unwrap().len(), 1);
    server.stop_clean();
}

#[test]
fn target_commands_need_a_server_with_iscsi() {
    let dirs = Dirs::new();
    let server = dirs.start();
    server.weir("target create vms").fails(code::UNAVAILABLE, &["--iscsi 127.0.0.1:3260"]);
    let mut command = dirs.serve_as("2");
    command.args(["--iscsi", "unix:x"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code::INVALID), "{}", text(&output));
}

//! Copies by ROD token between volumes of the real program, and the events that end a token:
//! writes, rollback, deletion, sharing, restart.
//!
//! Not here: tests of each SCSI command (weir-scsi), EXTENDED COPY (`iscsi`).
//!
//! Invariants:
//! - the copied data is compared byte for byte with the source;
//! - a refused ROD token copies nothing.

use crate::common::iscsi::{Answer, Initiator, wide};
use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, KIB, MIB, Server};
use serde_json::Value;

const CLIENT: &str = "iqn.2026-01.org.example:client";
const STRANGER: &str = "iqn.2026-01.org.example:stranger";
/// Logical block size of all volumes in this test, in bytes.
const BLOCK: u64 = 4096;

fn serve(dirs: &Dirs) -> Server {
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0"]);
    Server::start(dirs, "", command)
}

/// Starts a server that has a pool, and a target that accepts the client.
fn served(dirs: &Dirs) -> Server {
    dirs.disk("a", 4 * GIB);
    let server = serve(dirs);
    server.weir("pool create tank a").ok();
    server.weir(&format!("target create vms --allow {CLIENT}")).ok();
    server
}

fn show(server: &Server, volume: &str, size: &str, lun: u8) {
    server.weir(&format!("volume create {volume} --size {size}")).ok();
    server.weir(&format!("lun add vms {volume} --block-size {BLOCK} --lun {lun}")).ok();
}

fn log_in(server: &Server, name: &str, target: &str) -> Initiator {
    let shown: Value = server.weir(&format!("target show {target} --json")).json();
    let portal = shown["portals"][0].as_str().unwrap().to_owned();
    let address = portal.split(',').next().unwrap();
    let target = format!("iqn.2026-01.org.weir:{target}");
    Initiator::log_in(address, name, 1, &target).unwrap().expect("a session")
}

/// Returns a parameter list of POPULATE TOKEN or WRITE USING TOKEN: the header `head`, then one
/// range.
fn list(mut head: Vec<u8>, lba: u64, blocks: u32) -> Vec<u8> {
    head.extend([0, 16]);
    head.extend(lba.to_be_bytes());
    head.extend(blocks.to_be_bytes());
    head.extend([0; 4]);
    let len = head.len() as u16 - 2;
    head[..2].copy_from_slice(&len.to_be_bytes());
    head
}

fn send(one: &mut Initiator, lun: u8, action: u8, list: &[u8]) -> Answer {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[9]) = (0x83, action, 1);
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    one.run(lun, &cdb, list, 0).unwrap()
}

fn populate(one: &mut Initiator, lun: u8, lba: u64, blocks: u32) -> Answer {
    send(one, lun, 0x10, &list(vec![0; 14], lba, blocks))
}

/// Sends RECEIVE ROD TOKEN INFORMATION and returns the data of the response.
fn information(one: &mut Initiator, lun: u8) -> Vec<u8> {
    let cdb = [0x84, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    one.run(lun, &cdb, &[], 1024).unwrap().good()
}

/// Creates a ROD token for a range of a logical unit, and returns the token.
fn token(one: &mut Initiator, lun: u8, lba: u64, blocks: u32) -> Vec<u8> {
    populate(one, lun, lba, blocks).good();
    let told = information(one, lun);
    assert_eq!((told[4], told[5], told.len()), (0x10, 1, 36 + 2 + 512));
    told[38..].to_vec()
}

fn write_using(one: &mut Initiator, lun: u8, token: &[u8], lba: u64, blocks: u32) -> Answer {
    let head = [&[0; 16][..], token, &[0; 6]].concat();
    send(one, lun, 0x11, &list(head, lba, blocks))
}

#[track_caller]
fn assert_refused(answer: &Answer, qualifiers: &[u8]) {
    assert_eq!((answer.status, &answer.sense[..2]), (2, &[5, 0x23][..]));
    assert!(qualifiers.contains(&answer.sense[2]), "{:x?}", answer.sense);
}

fn read(one: &mut Initiator, lun: u8, lba: u64, blocks: u32) -> Vec<u8> {
    let len = blocks * BLOCK as u32;
    one.run(lun, &wide(0x88, 0, lba, blocks), &[], len).unwrap().good()
}

/// Clears the unit attentions about added and removed logical units.
fn hear(one: &mut Initiator, luns: &[u8]) {
    for &lun in luns {
        one.ready(lun);
    }
}

fn fill(one: &mut Initiator, lun: u8, lba: u64, byte: u8) {
    one.run(lun, &wide(0x8A, 0, lba, 8), &vec![byte; 8 * BLOCK as usize], 0).unwrap().good();
}

/// A copy of 1 GiB between volumes by token must transfer only a few hundred bytes and take no
/// space. After a write to the source range, the token must be refused.
#[test]
fn gigabyte_is_copied_by_token() {
    const BLOCKS: u32 = (GIB / BLOCK) as u32;
    let dirs = Dirs::new();
    let server = served(&dirs);
    show(&server, "tank/vm1", "1GiB", 0);
    show(&server, "tank/vm2", "1GiB", 1);
    let mut one = log_in(&server, CLIENT, "vms");
    one.ready(0);
    one.ready(1);
    let mut rng = Rng::new(3);
    for at in (0..BLOCKS.into()).step_by(64) {
        let mut data = vec![0; 8 * BLOCK as usize];
        rng.fill(&mut data);
        one.run(0, &wide(0x8A, 0, at, 8), &data, 0).unwrap().good();
    }
    fill(&mut one, 1, 8, 0xEE);
    let used = || {
        let list = server.weir("pool list --json").json();
        list["pools"][0]["allocated_bytes"].as_u64().unwrap()
    };
    let (before, wire) = (used(), one.wire_bytes);
    let held = token(&mut one, 0, 0, BLOCKS);
    write_using(&mut one, 1, &held, 0, BLOCKS).good();
    let told = information(&mut one, 1);
    assert_eq!((told[4], told[5], told[15]), (0x11, 1, 0xF1));
    assert_eq!(told[16..24], u64::from(BLOCKS).to_be_bytes());
    assert!(one.wire_bytes - wire < 64 * KIB, "{} bytes on the wire", one.wire_bytes - wire);
    assert!(used() < before + 32 * MIB, "{before} bytes were allocated, {} are", used());
    let mut rng = Rng::new(3);
    for at in (0..BLOCKS.into()).step_by(64) {
        let mut expected = vec![0; 64 * BLOCK as usize];
        rng.fill(&mut expected[..8 * BLOCK as usize]);
        assert!(read(&mut one, 1, at, 64) == expected, "block {at}");
    }
    let shown = server.weir("target show vms --json").json();
    assert_eq!(shown["luns"][1]["counters"]["cloned_bytes"], GIB);

    // The range is not aligned to records, so the volumes can share only a part of it. All data
    // must be correct nevertheless.
    let odd = token(&mut one, 0, 64, 1000);
    write_using(&mut one, 1, &odd, 100_003, 1000).good();
    for at in (0..1000).step_by(50) {
        assert!(read(&mut one, 1, 100_003 + at, 50) == read(&mut one, 0, 64 + at, 50), "{at}");
    }

    // A later write to the source range invalidates the token: a copy with it is refused.
    fill(&mut one, 0, 70_000, 7);
    let seen = read(&mut one, 1, 70_000, 8);
    assert_refused(&write_using(&mut one, 1, &held, 0, BLOCKS), &[8]);
    assert!(read(&mut one, 1, 70_000, 8) == seen);
    assert!(seen.iter().all(|byte| *byte != 7));
    server.stop_clean();
}

#[test]
fn rollback_deletion_sharing_and_resize_invalidate_tokens() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    for (number, volume) in ["tank/vm1", "tank/vm2", "tank/vm3"].into_iter().enumerate() {
        show(&server, volume, "64MiB", number as u8);
    }
    let mut one = log_in(&server, CLIENT, "vms");
    hear(&mut one, &[0, 1, 2]);
    fill(&mut one, 0, 0, 1);
    server.weir("snapshot create tank/vm1@a").ok();
    fill(&mut one, 0, 0, 2);
    let held = token(&mut one, 0, 0, 8);
    write_using(&mut one, 1, &held, 0, 8).good();
    assert!(read(&mut one, 1, 0, 8).iter().all(|byte| *byte == 2));

    // Roll the volume back; for this the logical unit must be removed from the target first.
    server.weir("lun remove vms 0 --force").ok();
    hear(&mut one, &[1, 2]);
    assert_refused(&write_using(&mut one, 1, &held, 8, 8), &[2]);
    server.weir("snapshot rollback tank/vm1@a --yes").ok();
    server.weir(&format!("lun add vms tank/vm1 --block-size {BLOCK} --lun 0")).ok();
    hear(&mut one, &[0, 1, 2]);
    assert!(read(&mut one, 0, 0, 8).iter().all(|byte| *byte == 1));
    assert_refused(&write_using(&mut one, 1, &held, 8, 8), &[4, 6]);
    assert!(read(&mut one, 1, 8, 8).iter().all(|byte| *byte == 0));

    // A snapshot can also be a source; it never changes, so its token stays valid.
    server.weir(&format!("lun add vms tank/vm1@a --block-size {BLOCK} --lun 7")).ok();
    hear(&mut one, &[0, 1, 2, 7]);
    let still = token(&mut one, 7, 0, 8);
    fill(&mut one, 0, 0, 3);
    write_using(&mut one, 1, &still, 16, 8).good();
    assert!(read(&mut one, 1, 16, 8).iter().all(|byte| *byte == 1));

    // Delete the source volume: its token becomes invalid.
    fill(&mut one, 2, 0, 4);
    let gone = token(&mut one, 2, 0, 8);
    server.weir("lun remove vms 2 --force").ok();
    server.weir("volume destroy tank/vm3 --yes").ok();
    hear(&mut one, &[0, 1, 7]);
    assert_refused(&write_using(&mut one, 1, &gone, 8, 8), &[2]);

    // Share the volume with NBD clients. The target cannot see their writes, so the tokens become
    // invalid.
    let held = token(&mut one, 0, 0, 8);
    server.weir("lun remove vms 0 --force").ok();
    server.weir(&format!("lun add vms tank/vm1 --block-size {BLOCK} --lun 0 --shared")).ok();
    server.weir("export create nbd tank/vm1").ok();
    hear(&mut one, &[0, 1, 7]);
    assert_refused(&write_using(&mut one, 1, &held, 8, 8), &[4, 6]);
    assert_refused(&populate(&mut one, 0, 0, 8), &[0]);
    assert!(read(&mut one, 1, 8, 8).iter().all(|byte| *byte == 0));

    // Resize the source volume: its token becomes invalid.
    let held = token(&mut one, 1, 0, 8);
    server.weir("volume resize tank/vm2 --size 128MiB").ok();
    one.ready(1);
    assert_refused(&write_using(&mut one, 1, &held, 64, 8), &[6]);
    server.stop_clean();
}

#[test]
fn tokens_end_with_the_server_and_belong_to_one_initiator() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    show(&server, "tank/vm1", "64MiB", 0);
    server.weir("target create far --allow *").ok();
    server.weir("volume create tank/vm2 --size 64MiB").ok();
    server.weir(&format!("lun add far tank/vm2 --block-size {BLOCK} --lun 0")).ok();
    let mut one = log_in(&server, CLIENT, "vms");
    one.ready(0);
    fill(&mut one, 0, 0, 5);
    let held = token(&mut one, 0, 0, 8);
    let mut far = log_in(&server, CLIENT, "far");
    far.ready(0);
    write_using(&mut far, 0, &held, 0, 8).good();
    assert!(read(&mut far, 0, 0, 8).iter().all(|byte| *byte == 5));
    let mut stranger = log_in(&server, STRANGER, "far");
    stranger.ready(0);
    assert_refused(&write_using(&mut stranger, 0, &held, 8, 8), &[2]);

    // The write cache is off, so the copy is durable when the target has responded.
    server.kill();
    let server = serve(&dirs);
    let mut one = log_in(&server, CLIENT, "vms");
    one.ready(0);
    let mut far = log_in(&server, CLIENT, "far");
    far.ready(0);
    assert!(read(&mut far, 0, 0, 8).iter().all(|byte| *byte == 5));
    assert_refused(&write_using(&mut far, 0, &held, 8, 8), &[4]);
    assert!(read(&mut far, 0, 8, 8).iter().all(|byte| *byte == 0));
    server.stop_clean();
}

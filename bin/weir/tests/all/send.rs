//! Streams between two real servers: standard clients write and compare, each server is killed at
//! random bytes of a stream, and invalid streams change nothing.
//!
//! Not here: the model test of streams (weir-dataset), crashes at every step (weir-sim).
//!
//! Invariants:
//! - the received data is compared byte for byte with the data that was sent;
//! - every refusal states its cause and the next command;
//! - both pools are verified at the end of a test.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::common::rng::Rng;
use crate::common::{Dirs, MIB, Ran, Server, WEIR, code, tool};
use serde_json::Value;

const DISK: u64 = 512 * MIB;

/// A server that sends and a server that receives.
struct Pair {
    dirs: Dirs,
    source: Option<Server>,
    back: Option<Server>,
}

impl Pair {
    fn new() -> Self {
        let dirs = Dirs::new();
        for name in ["a", "b", "c", "d"] {
            dirs.disk(name, DISK);
        }
        let source = dirs.start();
        source.weir("pool create tank mirror a b").ok();
        let back = Server::start(&dirs, "-b", dirs.serve_as("-b"));
        back.weir("pool create back mirror c d").ok();
        Self { dirs, source: Some(source), back: Some(back) }
    }

    fn source(&self) -> &Server {
        self.source.as_ref().unwrap()
    }

    fn back(&self) -> &Server {
        self.back.as_ref().unwrap()
    }

    /// Kills the source server, or the receiving one; [`Self::revive`] starts the server again.
    fn kill(&mut self, source: bool) {
        if source {
            self.source.take().unwrap().kill();
        } else {
            self.back.take().unwrap().kill();
        }
    }

    fn revive(&mut self) {
        if self.source.is_none() {
            self.source = Some(self.dirs.start());
        }
        if self.back.is_none() {
            self.back = Some(Server::start(&self.dirs, "-b", self.dirs.serve_as("-b")));
        }
    }

    fn command(&self, source: bool, line: &str) -> Command {
        let api = self.dirs.short(if source { "api" } else { "api-b" });
        let mut command = Command::new(WEIR);
        command.args(line.split_whitespace()).env("WEIR_API", format!("unix:{}", api.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Sends a stream to the file `to`; returns the bytes of the stream.
    fn send(&self, line: &str, to: &str) -> Vec<u8> {
        let path = self.dirs.file(to);
        let mut command = self.command(true, &format!("send {line}"));
        let out = command.stdout(File::create(&path).unwrap()).output().unwrap();
        Ran::of(line, &out).ok();
        fs::read(path).unwrap()
    }

    /// Receives a stream that consists of these bytes.
    fn receive(&self, line: &str, bytes: &[u8]) -> Ran {
        let path = self.dirs.file("stream");
        fs::write(&path, bytes).unwrap();
        let mut command = self.command(false, &format!("receive {line}"));
        command.stdin(File::open(path).unwrap()).stdout(Stdio::piped());
        Ran::of(line, &command.output().unwrap())
    }

    /// Asserts that a standard client reads the same data from `here` on the source server and from
    /// `there` on the receiving server.
    fn same(&self, here: &str, there: &str) {
        for (server, name) in [(self.source(), here), (self.back(), there)] {
            server.weir(&format!("export create nbd {name}")).ok();
        }
        let uris = [self.source().uri(here), self.back().uri(there)];
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uris[0], &uris[1]]);
        for (server, name) in [(self.source(), here), (self.back(), there)] {
            server.weir(&format!("export delete {name}")).ok();
        }
    }

    fn verified(mut self) {
        self.source.take().unwrap().stop_clean();
        self.back.take().unwrap().stop_clean();
        let place = self.dirs.file("").display().to_string();
        for pool in ["tank", "back"] {
            Ran::of("check", &crate::common::run(WEIR, &["check", pool, "-d", &place])).ok();
        }
    }
}

/// Writes and trims random ranges of `tank/v` through NBD.
fn change(server: &Server, rng: &mut Rng, writes: u64) {
    server.weir("export create nbd tank/v").ok();
    let mut client = server.client("tank/v");
    let blocks = client.size_bytes / 4096;
    for _ in 0..writes {
        let count = 1 + rng.below(64);
        let start = rng.below(blocks - count);
        if rng.below(4) == 0 {
            client.trim(start * 4096, (count * 4096) as u32).unwrap();
            continue;
        }
        let mut data = vec![0; (count * 4096) as usize];
        // Half of the writes have data that compresses.
        let end = if rng.below(2) == 0 { data.len() } else { data.len() / 2 };
        rng.fill(&mut data[..end]);
        client.write(start * 4096, &data).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    server.weir("export delete tank/v").ok();
}

fn names(server: &Server, of: &str) -> Vec<String> {
    let list = server.weir(&format!("snapshot list {of} --json")).json();
    let all = list["snapshots"].as_array().unwrap();
    all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

fn talk(child: Child) -> (bool, String) {
    let out = child.wait_with_output().unwrap();
    (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// Passes a stream from a sending command to a receiving one, and kills one server after this many
/// bytes. Returns true if the stream arrived completely, and the number of bytes that were sent.
fn pump(pair: &mut Pair, line: &str, kill: Option<(bool, u64)>) -> (bool, u64) {
    let mut sender = pair.command(true, line).stdout(Stdio::piped()).spawn().unwrap();
    let mut receiver = pair.command(false, "receive back/w").stdin(Stdio::piped()).spawn().unwrap();
    let (mut from, mut to) = (sender.stdout.take().unwrap(), receiver.stdin.take().unwrap());
    let mut part = vec![0; 64 << 10];
    let (mut total, mut kill) = (0, kill);
    loop {
        if let Some((source, after)) = kill
            && total >= after
        {
            pair.kill(source);
            kill = None;
        }
        let got = from.read(&mut part).unwrap();
        if got == 0 || to.write_all(&part[..got]).is_err() {
            break;
        }
        total += got as u64;
    }
    drop((from, to));
    let (_, sender) = talk(sender);
    let (arrived, receiver) = talk(receiver);
    assert!(!sender.contains("panicked") && !receiver.contains("panicked"), "{sender}{receiver}");
    (arrived, total)
}

#[test]
fn streams_survive_kills_of_either_side() {
    let wanted = std::env::var("WEIR_SEND_KILLS").map_or(20, |text| text.parse().unwrap());
    let mut pair = Pair::new();
    let mut rng = Rng::new(41);
    pair.source().weir("volume create tank/v --size 48MiB").ok();
    let (mut kills, mut resumed, mut round) = (0, 0, 0);
    while kills < wanted {
        round += 1;
        change(pair.source(), &mut rng, if round == 1 { 200 } else { 60 });
        pair.source().weir(&format!("snapshot create tank/v@s{round}")).ok();
        let from = if round == 1 { String::new() } else { format!("-i @s{}", round - 1) };
        let whole = format!("{from} tank/v@s{round}");
        let mut rest = whole.clone();
        let mut cuts = 4 + rng.below(5);
        loop {
            // Place each kill in the rest of the stream, whose length the dry run estimates.
            let kill = (cuts > 0).then(|| {
                let dry = pair.source().weir(&format!("send -n {rest} --json")).json();
                let length = dry["estimate_bytes"].as_u64().unwrap().max(1);
                (rng.below(2) == 0, rng.below(length))
            });
            cuts = cuts.saturating_sub(1);
            let (arrived, sent) = pump(&mut pair, &format!("send {rest}"), kill);
            if kill.is_some_and(|(_, after)| after <= sent) {
                kills += 1;
            }
            pair.revive();
            if arrived {
                break;
            }
            if names(pair.back(), "").contains(&format!("back/w@s{round}")) {
                // The kill came after the receiver had committed the snapshot, and before it
                // responded.
                break;
            }
            let token = pair.back().weir("receive --token back/w");
            rest = whole.clone();
            if token.code == Some(0) {
                resumed += u32::from(sent > MIB);
                rest = format!("-t {} tank/v@s{round}", token.out.trim());
            }
        }
        pair.same(&format!("tank/v@s{round}"), &format!("back/w@s{round}"));
    }
    eprintln!("{kills} kills in {round} rounds, {resumed} resumed after a MiB or more");
    assert!(resumed >= wanted / 5, "{resumed} of {kills} resumed");
    for at in 1..=round {
        pair.same(&format!("tank/v@s{at}"), &format!("back/w@s{at}"));
    }
    pair.same("tank/v", "back/w");
    pair.verified();
}

#[test]
fn large_records_survive_kills_of_either_side() {
    let mut pair = Pair::new();
    let mut rng = Rng::new(64);
    pair.source().weir("volume create tank/v --size 48MiB -b 64KiB").ok();
    for (round, from) in [(1, ""), (2, "-i @s1"), (3, "-i @s2")] {
        change(pair.source(), &mut rng, if round == 1 { 200 } else { 40 });
        pair.source().weir(&format!("snapshot create tank/v@s{round}")).ok();
        let name = format!("tank/v@s{round}");
        let mut line = format!("send {from} {name}");
        let kills_source = round == 2;
        let (arrived, sent) = pump(&mut pair, &line, Some((kills_source, MIB)));
        assert!(!arrived && sent >= MIB, "{arrived} {sent}");
        pair.revive();
        let token = pair.back().weir("receive --token back/w");
        // A killed receiver has the data up to its last committed txg, which may be none.
        assert!(token.code == Some(0) || !kills_source, "{}", token.talk);
        if token.code == Some(0) {
            line = format!("send -t {} {name}", token.out.trim());
        }
        let (arrived, _) = pump(&mut pair, &line, None);
        assert!(arrived);
        pair.same(&name, &format!("back/w@s{round}"));
    }
    pair.same("tank/v@s1", "back/w@s1");
    pair.same("tank/v", "back/w");
    let told = pair.back().weir("get -H -o value record_size back/w back/w@s2").ok().out;
    assert_eq!(told, "64KiB\n64KiB\n");
    pair.verified();
}

#[test]
fn invalid_streams_are_refused_and_leave_nothing_behind() {
    let pair = Pair::new();
    let mut rng = Rng::new(7);
    pair.source().weir("volume create tank/v --size 32MiB").ok();
    change(pair.source(), &mut rng, 40);
    pair.source().weir("snapshot create tank/v@a").ok();
    change(pair.source(), &mut rng, 20);
    pair.source().weir("snapshot create tank/v@b").ok();
    let whole = pair.send("tank/v@a", "whole");
    let more = pair.send("-i @a tank/v@b", "more");
    let none = || assert!(!pair.back().weir("volume list").ok().out.contains("back/w"));

    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    pair.receive("back/w", &damaged).fails(10, &["frame", "byte", "undone"]);
    none();
    let mut foreign = whole.clone();
    foreign[8] = 5;
    pair.receive("back/w", &foreign).fails(code::INVALID, &["version 5"]);
    pair.receive("back/w", b"hello").fails(code::INVALID, &["not a stream"]);
    let mut reordered = whole.clone();
    let len = whole.len();
    reordered[1000..len - 100].rotate_left(4096);
    pair.receive("back/w", &reordered).fails(10, &["frame"]);
    none();
    pair.receive("back/w", &more).fails(code::NOT_FOUND, &["back/w", "does not exist here"]);
    none();

    // The receiver keeps the data of an interrupted stream until the stream is aborted or resumed.
    pair.receive("back/w", &whole[..len / 2])
        .fails(code::UNAVAILABLE, &["interrupted", "-t weir1-"]);
    let shown = pair.back().weir("volume show back/w --json").json();
    assert_eq!(shown["receiving"], "a");
    let export = pair.back().weir("export create nbd back/w");
    export.fails(code::BUSY, &["being received", "--abort"]);
    pair.back().weir("snapshot create back/w@x").fails(code::BUSY, &["receiving a stream"]);
    pair.receive("back/w", &more).fails(code::BUSY, &["back/w", "--abort"]);
    pair.back().weir("receive --abort back/w").ok();
    none();
    pair.back().weir("receive --abort back/w").fails(code::NOT_FOUND, &["back/w"]);

    pair.receive("back/w", &whole).ok();
    pair.receive("back/w", &whole).fails(code::EXISTS, &["back/w@a", "exists"]);
    pair.same("tank/v@a", "back/w@a");
    // The volume has changed since the base snapshot, so the receiver refuses the stream unless the
    // request allows a rollback.
    pair.back().weir("export create nbd back/w").ok();
    pair.receive("back/w", &more).fails(code::BUSY, &["exported"]);
    pair.back().client("back/w").write(0, &[1; 4096]).unwrap();
    pair.back().weir("export delete back/w").ok();
    pair.receive("back/w", &more).fails(code::BUSY, &["changed since @a", "-F"]);
    let done = pair.receive("-F back/w --json", &more).json();
    assert_eq!(done["snapshot"], "back/w@b");
    pair.same("tank/v@b", "back/w@b");
    pair.same("tank/v@b", "back/w");
    let guid = |server: &Server, name: &str| -> Value {
        server.weir(&format!("snapshot list {name} --json")).json()["snapshots"][0]["guid"].clone()
    };
    assert_eq!(guid(pair.source(), "tank/v@b"), guid(pair.back(), "back/w@b"));
    // The receiver has a different snapshot with the name of the sent one.
    pair.source().weir("snapshot create tank/v@c").ok();
    pair.back().weir("snapshot create back/w@c").ok();
    let next = pair.send("-i @b tank/v@c", "next");
    pair.receive("back/w", &next).fails(code::EXISTS, &["back/w@c"]);

    let send = |line: &str| pair.source().weir(&format!("send {line}"));
    send("-i @c tank/v@a").fails(code::INVALID, &["is not based on"]);
    send("-i @x tank/v@a").fails(code::NOT_FOUND, &["tank/v@x"]);
    send("-t weir1-00 tank/v@a").fails(code::INVALID, &["not a resume token"]);
    let would = send("-n -i @a tank/v@b").ok();
    assert!(would.out.contains("would send tank/v@b: about"), "{}", would.out);
    pair.verified();
}

#[test]
fn changes_since_a_bookmark_arrive_without_its_snapshot() {
    let mut pair = Pair::new();
    let mut rng = Rng::new(19);
    pair.source().weir("volume create tank/v --size 32MiB").ok();
    change(pair.source(), &mut rng, 60);
    pair.source().weir("snapshot create tank/v@a").ok();
    pair.receive("back/w", &pair.send("tank/v@a", "whole")).ok();
    let weir = |pair: &Pair, line: &str| pair.source().weir(line);
    let made = weir(&pair, "bookmark create tank/v@a #a --json").json();
    assert_eq!(
        (&made["outcome"], &made["bookmark"]["name"]),
        (&"created".into(), &"tank/v#a".into())
    );
    assert_eq!(
        weir(&pair, "bookmark create tank/v@a tank/v#a --json").json()["outcome"],
        "unchanged"
    );
    // A bookmark holds no data, so the destruction of the snapshot also frees the blocks that only
    // the snapshot has.
    weir(&pair, "snapshot destroy tank/v@a --yes").ok();
    change(pair.source(), &mut rng, 30);
    // Trim a range that has data in the base snapshot; the receiver must trim it too.
    pair.source().weir("export create nbd tank/v").ok();
    let mut client = pair.source().client("tank/v");
    client.trim(0, 8 << 20).unwrap();
    client.flush().unwrap();
    drop(client);
    pair.source().weir("export delete tank/v").ok();
    weir(&pair, "snapshot create tank/v@b").ok();
    let list = weir(&pair, "bookmark list tank --json").json();
    assert_eq!(list["bookmarks"][0]["name"], "tank/v#a");
    assert_eq!(list["bookmarks"][0]["guid"], made["bookmark"]["guid"]);
    assert!(weir(&pair, "bookmark list tank/v").ok().out.contains("tank/v#a"));

    pair.kill(true);
    pair.revive();
    let more = pair.send("-i #a tank/v@b", "more");
    let cut = pair.receive("back/w", &more[..more.len() / 2]);
    cut.fails(code::UNAVAILABLE, &["interrupted", "-t weir1-"]);
    let token = pair.back().weir("receive --token back/w").ok().out;
    let rest = pair.send(&format!("-t {} tank/v@b", token.trim()), "rest");
    pair.receive("back/w", &rest).ok();
    pair.same("tank/v@b", "back/w@b");
    pair.same("tank/v", "back/w");

    let fails = |line: &str, code, parts: &[&str]| {
        weir(&pair, line).fails(code, parts);
    };
    fails("send -i #x tank/v@b", code::NOT_FOUND, &["bookmark tank/v#x"]);
    fails("bookmark create tank/v@x #x", code::NOT_FOUND, &["tank/v@x"]);
    fails("bookmark create tank/v@b #a", code::EXISTS, &["tank/v#a"]);
    fails("bookmark create tank/v@b tank/w#a", code::INVALID, &["same volume"]);
    fails("bookmark create tank/v@b #-", code::INVALID, &["bad bookmark name"]);
    fails("bookmark destroy tank/v#a", code::INVALID, &["no terminal", "--yes"]);
    weir(&pair, "bookmark create tank/v@b #b").ok();
    fails("send -i #b tank/v@b", code::INVALID, &["is not based on tank/v#b"]);
    weir(&pair, "snapshot destroy tank/v@b --yes").ok();
    weir(&pair, "bookmark destroy tank/v#a --yes").ok();
    fails("bookmark destroy tank/v#a --yes", code::NOT_FOUND, &["tank/v#a"]);
    weir(&pair, "volume destroy tank/v --yes").ok();
    let told = weir(&pair, "bookmark list").ok();
    assert!(told.talk.contains("no bookmarks"), "{}", told.talk);
    let history = weir(&pair, "pool history tank").ok().out;
    assert!(
        history.contains("bookmark create") && history.contains("bookmark destroy"),
        "{history}"
    );
    pair.verified();
}

#[test]
fn dry_run_of_receive_changes_nothing() {
    let pair = Pair::new();
    let mut rng = Rng::new(23);
    pair.source().weir("volume create tank/v --size 32MiB").ok();
    change(pair.source(), &mut rng, 40);
    pair.source().weir("snapshot create tank/v@a").ok();
    change(pair.source(), &mut rng, 20);
    pair.source().weir("snapshot create tank/v@b").ok();
    let whole = pair.send("tank/v@a", "whole");
    let more = pair.send("-i @a tank/v@b", "more");
    let history = |pair: &Pair| pair.back().weir("pool history back").ok().out;

    let before = history(&pair);
    let would = pair.receive("-n back/w", &whole).ok();
    assert!(
        would.talk.contains("would create volume back/w and receive back/w@a"),
        "{}",
        would.talk
    );
    assert!(!pair.back().weir("volume list").ok().out.contains("back/w"));
    let mut damaged = whole.clone();
    let at = whole.len() - 200;
    damaged[at] ^= 1;
    pair.receive("-n back/w", &damaged).fails(10, &["frame", "byte"]);
    pair.receive("-n back/w", &whole[..at]).fails(10, &["truncated"]);
    pair.receive("-n back/w", &more).fails(code::NOT_FOUND, &["back/w"]);
    assert_eq!(history(&pair), before, "nothing was changed, so nothing is recorded");

    pair.receive("back/w", &whole).ok();
    pair.receive("-n back/w", &whole).fails(code::EXISTS, &["back/w@a"]);
    let would = pair.receive("-n back/w --json", &more).json();
    assert_eq!((&would["snapshot"], &would["dry_run"]), (&"back/w@b".into(), &true.into()));
    assert_eq!((&would["is_new"], &would["rolled_back"]), (&false.into(), &false.into()));
    pair.back().weir("export create nbd back/w").ok();
    pair.back().client("back/w").write(0, &[1; 4096]).unwrap();
    pair.back().weir("export delete back/w").ok();
    pair.receive("-n back/w", &more).fails(code::BUSY, &["changed since @a", "-F"]);
    let would = pair.receive("-n -F back/w", &more).ok();
    assert!(would.talk.contains("would roll back/w back"), "{}", would.talk);
    assert_eq!(names(pair.back(), "back/w"), ["back/w@a"]);
    let done = pair.receive("-F back/w --json", &more).json();
    assert_eq!((&done["dry_run"], &done["rolled_back"]), (&false.into(), &true.into()));
    pair.same("tank/v@b", "back/w");
    pair.verified();
}

#[test]
fn aborted_receive_frees_the_space_of_a_full_pool() {
    let dirs = Dirs::new();
    dirs.disk("a", DISK);
    dirs.disk("c", 128 * MIB);
    let source = dirs.start();
    source.weir("pool create tank a").ok();
    source.weir("volume create tank/v --size 200MiB").ok();
    let back = Server::start(&dirs, "-b", dirs.serve_as("-b"));
    back.weir("pool create back c").ok();
    let pair = Pair { dirs, source: Some(source), back: Some(back) };
    pair.source().weir("export create nbd tank/v").ok();
    let mut client = pair.source().client("tank/v");
    let (mut rng, mut data) = (Rng::new(3), vec![0; 1 << 20]);
    for at in 0..180 {
        rng.fill(&mut data);
        client.write(at << 20, &data).unwrap();
    }
    client.flush().unwrap();
    pair.source().weir("snapshot create tank/v@a").ok();
    let whole = pair.send("tank/v@a", "whole");
    pair.receive("back/w", &whole).fails(7, &["full"]);
    pair.back().weir("receive --token back/w").ok();
    pair.back().weir("receive --abort back/w").ok();
    pair.back().weir("volume create back/small --size 8MiB").ok();
    pair.back().weir("export create nbd back/small").ok();
    crate::common::eventually("the room is back", std::time::Duration::from_secs(30), || {
        pair.back().client("back/small").write(0, &data).is_ok()
    });
}

//! `weir bench` over iSCSI, against the server of this project and against another iSCSI target.
//!
//! Not here: the protocol (weir-initiator), `weir bench` in general (bench).
//!
//! Invariants: each run reads back every block that it wrote and compares it; no test asserts a
//! speed.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::ports::free_port;
use crate::common::{Dirs, GIB, MIB, Ran, Server, WEIR, eventually, tool};
use serde_json::Value;

const PROFILE: &str = r#"
schema = 1
name = "iscsi"
dataset = { files = 1, file_size = "16MiB" }
content = { compress = 2.0, dedupe_pct = 0, unit = "4KiB", seed = 42 }
durability = { writes = "DURABILITY" }

[phases]
fill = { block = "1MiB", in_flight = 4 }
measure = { warmup = "50ms", duration = "400ms", runs = 2 }
verify = { sample_pct = 100 }

[[test]]
name = "mixed"
pattern = "random"
blocks = [{ size = "4KiB", weight = 3 }, { size = "1MiB", weight = 1 }]
read_pct = 50
workers = 2
qd = [16]
"#;

/// Returns a profile row with an operation that only SCSI has, such as WRITE SAME.
fn own(op: &str, bytes: &str) -> String {
    let row = format!("name = {op:?}\nop = {op:?}\npattern = \"random\"\nblock = {bytes:?}");
    format!("\n[[test]]\n{row}\nqd = [4]\n")
}

fn bench(dirs: &Dirs, profile: &str, words: &[&str]) -> Ran {
    fs::write(dirs.file("profile.toml"), profile).unwrap();
    let mut command = Command::new(WEIR);
    command.args(["bench", "run", "-p", "./profile.toml"]).args(words);
    let output = command.current_dir(dirs.file(".")).output().unwrap();
    Ran::of(&words.join(" "), &output)
}

/// Returns the result of a complete run. Asserts that every operation succeeded and every block was
/// intact.
fn result(dirs: &Dirs, out: &str) -> Value {
    let text = fs::read_to_string(dirs.file(out).join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["complete"], true);
    for cell in result["cells"].as_array().unwrap() {
        assert!(cell["failure"].is_null(), "{cell}");
        let verified = &cell["verified"];
        assert!(verified["bad"] == 0 && verified["blocks"].as_u64() > Some(0), "{verified}");
        for run in cell["runs"].as_array().unwrap() {
            assert_eq!((&run["corrupt"], &run["zero_reads_pct"]), (&0.into(), &0.0.into()));
            for class in run["classes"].as_array().unwrap() {
                assert!(class["errors"].as_object().unwrap().is_empty(), "{class}");
            }
        }
    }
    result
}

/// Returns the kinds of operations in a result, each with the number of bytes.
fn kinds(result: &Value) -> Vec<(String, u64)> {
    let cells = result["cells"].as_array().unwrap().iter();
    let runs = cells.flat_map(|cell| cell["runs"].as_array().unwrap());
    let classes = runs.flat_map(|run| run["classes"].as_array().unwrap());
    let mut kinds: Vec<(String, u64)> = Vec::new();
    for class in classes {
        let (op, bytes) = (class["op"].as_str().unwrap(), class["bytes"].as_u64().unwrap());
        match kinds.iter_mut().find(|(known, _)| known == op) {
            Some((_, sum)) => *sum += bytes,
            None => kinds.push((op.to_owned(), bytes)),
        }
    }
    kinds.sort();
    kinds
}

/// Starts a server with a target that accepts one initiator and requires mutual CHAP.
fn served(dirs: &Dirs) -> (Server, String) {
    dirs.disk("a", 4 * GIB);
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0"]);
    let server = Server::start(dirs, "", command);
    server.weir("pool create tank a").ok();
    server.weir("volume create tank/v --size 64MiB").ok();
    let [ours, theirs] = ["ours", "theirs"].map(|name| dirs.file(name));
    crate::common::write_secret(&ours, "the initiator's secret\n");
    crate::common::write_secret(&theirs, "the secret of the target\n");
    let (ours, theirs) = (ours.display(), theirs.display());
    server.weir("target create vms").ok();
    let allow = format!(
        "target allow vms iqn.2026-01.org.weir:initiator --chap-user me --chap-secret-file {ours} \
         --mutual-user vms --mutual-secret-file {theirs}"
    );
    server.weir(&allow).ok();
    server.weir("lun add vms tank/v").ok();
    let shown = server.weir("target show vms --json").ok().json();
    let portal = shown["portals"][0].as_str().unwrap();
    let portal = portal.split(',').next().unwrap();
    let url = format!(
        "iscsi://{portal}/iqn.2026-01.org.weir:vms/0?chap={ours}&chap-user=me&mutual={theirs}"
    );
    (server, url)
}

#[test]
fn weir_target_is_measured_with_all_its_operations() {
    let dirs = Dirs::new();
    let (mut server, url) = served(&dirs);
    let all = [
        own("compare_and_write", "4KiB"),
        own("write_same", "64KiB"),
        own("copy", "64KiB"),
        own("trim", "64KiB"),
    ];
    let profile = PROFILE.replace("DURABILITY", "fua") + &all.concat();
    let wanted = ["compare_and_write", "copy", "read", "trim", "write", "write_same"];
    // On a busy machine, a run of 400 ms may complete no operation of some kind, so try several
    // times.
    let (out, found, kinds) = (0..5)
        .map(|attempt| {
            let out = format!("out{attempt}");
            bench(&dirs, &profile, &["-t", &url, "-o", &out]).ok();
            let found = result(&dirs, &out);
            let kinds = kinds(&found);
            (out, found, kinds)
        })
        .find(|(_, _, kinds)| kinds.len() >= wanted.len())
        .expect("one of five runs has every operation");
    let names: Vec<&str> = kinds.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, wanted);
    assert!(kinds.iter().all(|(_, bytes)| *bytes >= 64 << 10), "{kinds:?}");
    let facts = &found["target"]["facts"];
    assert_eq!(
        facts["product"],
        concat!(
            "WEIR VOLUME ",
            env!("CARGO_PKG_VERSION_MAJOR"),
            ".",
            env!("CARGO_PKG_VERSION_MINOR")
        )
    );
    assert_ne!(facts["extended copy"], "no");
    // The saved files contain neither of the two secrets.
    for name in ["result.json", "report.html", "report.md"] {
        let text = fs::read_to_string(dirs.file(&out).join(name)).unwrap();
        assert!(!text.contains("the initiator's secret") && !text.contains("secret of the target"));
    }
    // The next run needs no `--destroy`: the target contains only blocks that the run above wrote.
    // The URL of this run requests digests, so the run uses digests.
    let with_digests = format!("{url}&header-digest=crc32c&data-digest=crc32c");
    let profile = PROFILE.replace("DURABILITY", "none");
    bench(&dirs, &profile, &["-t", &with_digests, "-o", "digests"]).ok();
    let found = result(&dirs, "digests");
    assert_eq!(found["target"]["facts"]["digests"], "header and data");
    // A wrong secret is reported as a failed authentication, and nothing is written.
    fs::write(dirs.file("ours"), "something else entirely").unwrap();
    let refused = bench(&dirs, &profile, &["-t", &url, "-o", "refused"]);
    assert!(refused.talk.contains("authentication failed"), "{}", refused.talk);
    server.assert_alive();
}

/// The iSCSI target tgt; dropping the `Tgt` ends the process.
struct Tgt {
    child: Child,
    control: String,
    portal: String,
}

/// Returns the command of one of tgt's programs. Debian installs these programs in a directory that
/// is only in root's PATH.
fn program(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

impl Tgt {
    fn start(dirs: &Dirs, bytes: u64) -> Self {
        // tgtd needs the number of a control port that no other tgtd uses. The number of a free TCP
        // port is unique, so use it as that number too.
        let control = free_port().to_string();
        let portal = format!("127.0.0.1:{control}");
        let child = program("tgtd")
            .args(["-f", "-C", &control, "--iscsi", &format!("portal={portal}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let tgt = Self { child, control, portal };
        eventually("tgtd answers", Duration::from_secs(20), || {
            tgt.admin("--mode target --op show").status().unwrap().success()
        });
        let image = dirs.file("tgt.img");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let image = image.display();
        for words in [
            "--mode target --op new --tid 1 -T iqn.2026-01.org.example:disk".to_owned(),
            format!("--mode logicalunit --op new --tid 1 --lun 1 -b {image}"),
            "--mode logicalunit --op update --tid 1 --lun 1 --params thin_provisioning=1"
                .to_owned(),
            "--mode target --op bind --tid 1 -I ALL".to_owned(),
        ] {
            assert!(tgt.admin(&words).status().unwrap().success(), "{words}");
        }
        tgt
    }

    fn admin(&self, words: &str) -> Command {
        let mut command = program("tgtadm");
        command.args(["-C", &self.control, "--lld", "iscsi"]).args(words.split_whitespace());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn url(&self) -> String {
        format!("iscsi://{}/iqn.2026-01.org.example:disk/1", self.portal)
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn tgt_is_measured_and_missing_operations_are_refused() {
    let dirs = Dirs::new();
    let tgt = Tgt::start(&dirs, 64 * MIB);
    let url = tgt.url();
    let supported = PROFILE.replace("DURABILITY", "fua") + &own("write_same", "64KiB");
    bench(&dirs, &supported, &["-t", &url, "-o", "out"]).ok();
    let found = result(&dirs, "out");
    assert_eq!(found["target"]["facts"]["product"], "IET VIRTUAL-DISK 0001");
    assert!(kinds(&found).iter().any(|(name, bytes)| name == "write_same" && *bytes > 0));
    // tgt has no COMPARE AND WRITE, although its vital product data claims that it has.
    let lacking = PROFILE.replace("DURABILITY", "none") + &own("compare_and_write", "4KiB");
    let refused = bench(&dirs, &lacking, &["-t", &url, "-o", "lacking"]);
    assert!(refused.talk.contains("no compare_and_write"), "{}", refused.talk);
    assert!(!dirs.file("lacking").join("result.json").exists(), "nothing was run");
    // A run overwrites data of other programs only if the user gives --destroy.
    let image = dirs.file("tgt.img");
    tool("mke2fs", &["-q", "-F", image.to_str().unwrap()]);
    let profile = PROFILE.replace("DURABILITY", "none");
    let refused = bench(&dirs, &profile, &["-t", &url, "-o", "held"]);
    assert!(refused.talk.contains("--destroy"), "{}", refused.talk);
    bench(&dirs, &profile, &["-t", &url, "-o", "held", "--destroy", &url]).ok();
}

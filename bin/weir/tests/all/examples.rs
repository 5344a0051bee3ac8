//! Runs the examples of the crates: each one must succeed and print its outcome.
//!
//! Not here: `serve_volume`, which needs a client (`embedding`); the examples that measure
//! (`cargo xtask bench-services`, `bench-layouts`).
//!
//! Invariant: `cargo xtask e2e` builds the examples with the same profile as the program.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Dirs, GIB, Ran, Server, WEIR};

/// Examples that need no server, each with a text that its output must contain.
const ALONE: &[(&str, &str)] = &[
    ("crash_and_reopen", "flushed block: bytes of 1; unflushed block: bytes of 0"),
    ("durable_write", "a durable write takes"),
    ("greet", "welcome"),
    ("import_degraded", "disk1: Missing"),
    ("inquiry", "16384 blocks of 512 bytes"),
    ("list_names", "10000 names in "),
    ("login_text", "InitiatorName = iqn.2026-01.example:host"),
    ("one_cell", "IOPS, verdict: "),
    ("one_second", " inputs, and no panic"),
    ("one_seed", "recovered pools checked"),
    ("parse_size", "10GB is 10000000000 bytes"),
    ("read_label", "one bit changed: "),
    ("reconstruct", "strip 4: 65536 bytes computed"),
    ("share_block", "its bytes are 8"),
    ("two_budgets", "the node is cached: true"),
];

/// Returns the command of an example.
fn example(name: &str) -> Command {
    let programs = Path::new(WEIR).parent().unwrap().join("examples");
    assert!(programs.join(name).exists(), "`cargo xtask e2e examples` builds {name}");
    Command::new(programs.join(name))
}

/// Runs an example that must succeed; returns its standard output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let line = format!("{command:?}");
    Ran::of(&line, &command.output().unwrap()).ok().out
}

#[test]
fn examples_without_a_server_print_their_outcome() {
    for (name, outcome) in ALONE {
        let printed = run(&mut example(name));
        assert!(printed.contains(outcome), "{name}: {printed}");
    }
}

#[test]
fn client_examples_work_with_a_server() {
    let dirs = Dirs::new();
    dirs.disk("a", 4 * GIB);
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0"]);
    let server = Server::start(&dirs, "", command);
    server.weir("pool create tank a").ok();
    server.weir("volume create tank/v --size 64MiB").ok();
    let api = format!("unix:{}", dirs.short("api").display());
    let printed = run(example("list_volumes").env("WEIR_API", &api));
    assert_eq!(printed, format!("tank/v 67108864 bytes\n1 volumes at {api}\n"));

    server.weir("target create vms --allow *").ok();
    server.weir("lun add vms tank/v").ok();
    let shown = server.weir("target show vms --json").json();
    let portal = shown["portals"][0].as_str().unwrap().split(',').next().unwrap();
    let url = format!("iscsi://{portal}/iqn.2026-01.org.weir:vms/0");
    let printed = run(example("read_capacity").arg(&url));
    assert!(printed.contains("67108864 bytes\n131072 blocks of 512 bytes"), "{printed}");
    server.stop_clean();
}

#[test]
fn guide_lists_every_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = fs::read_to_string(root.join("docs/guide/examples.md")).unwrap();
    let names = |folder: &Path| -> Vec<_> {
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    };
    let crates = names(&root.join("crates")).into_iter().flat_map(|layer| names(&layer));
    let examples: Vec<_> = crates.flat_map(|folder| names(&folder.join("examples"))).collect();
    assert!(examples.len() > ALONE.len(), "{examples:?}");
    for path in examples {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(guide.contains(&format!("`{name}`")), "docs/guide/examples.md lacks {name}");
    }
}

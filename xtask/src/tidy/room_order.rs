//! Order of rooms (top-level modules that are folders): a room imports only rooms before it in the
//! list of `lib.rs`.
//!
//! Not here: what a room may contain (rooms.rs), cycles between files (cycles.rs).
//!
//! Files next to `lib.rs` are below all rooms. `lib.rs` itself may re-export items of every room.
//!
//! Invariant: a crate is checked if its `lib.rs` lists the crate's rooms (folders of `src`); the
//! crates in [`LISTED`] must have such a list.

use super::imports::{Graph, folder_of};
use crate::tidy::finding::{Finding, Rule, Source};

/// Start of the comment above the list of rooms (modules of a crate that are folders).
const LIST: &str = "// Modules, lowest layer first";

/// Crates whose `lib.rs` must have a list. Without [`LISTED`], a reworded comment would switch the
/// check off.
const LISTED: [&str; 6] = [
    "crates/control/weir-server",
    "crates/engine/weir-dataset",
    "crates/engine/weir-pool",
    "crates/protocol/weir-iscsi",
    "crates/protocol/weir-net",
    "crates/protocol/weir-scsi",
];

/// Findings of all crates.
pub(super) fn check(sources: &[Source], graphs: &[(String, Graph)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (root, graph) in graphs {
        let lib = sources.iter().find(|source| source.path == *root);
        let rooms = lib.map_or_else(Vec::new, |lib| rooms(&lib.text));
        let folder = folder_of(root);
        if let Some(lib) = lib
            && rooms.is_empty()
            && LISTED.contains(&folder)
        {
            findings.push(lib.finding(Rule::RoomOrder, 1, format!("no list after `{LIST}`")));
        }
        findings.extend(of_crate(folder, &rooms, graph));
    }
    findings
}

/// Returns the names of the rooms, lowest first.
fn rooms(lib: &str) -> Vec<&str> {
    let list = lib.lines().skip_while(|line| !line.starts_with(LIST)).skip(1);
    list.map_while(module).collect()
}

/// Returns the name in a `mod` line.
fn module(line: &str) -> Option<&str> {
    line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')
}

fn of_crate(folder: &str, rooms: &[&str], graph: &Graph) -> Vec<Finding> {
    let inside = |file: usize| {
        let path = graph.files[file].as_str();
        path.strip_prefix(folder).and_then(|path| path.strip_prefix("/src/")).unwrap_or(path)
    };
    // Files next to `lib.rs` have rank 0, below all rooms. `lib.rs` itself has no rank, because it
    // may import every room.
    let rank = |file: usize| match inside(file).split_once('/') {
        Some((room, _)) => rooms.iter().position(|known| *known == room).map(|at| at + 1),
        None => (inside(file) != "lib.rs").then_some(0),
    };
    let is_wrong = |(from, to): &&(usize, usize)| {
        rank(*from).zip(rank(*to)).is_some_and(|(from, to)| from < to)
    };
    let finding = |(from, to): &(usize, usize)| Finding {
        rule: Rule::RoomOrder,
        path: graph.files[*from].clone(),
        line: 1,
        count: 1,
        what: format!("imports {}, which is in a later room", inside(*to)),
    };
    graph.imports.iter().filter(is_wrong).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "mod error;\n\n// Modules, lowest layer first.\nmod state;\nmod calls;\n\n\
                       pub use calls::run::run;\n";

    fn findings(state: &str, error: &str) -> Vec<String> {
        let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let sources = [
            file("c/src/lib.rs", LIB),
            file("c/src/error.rs", error),
            file("c/src/state/mod.rs", "pub(crate) mod table;\n"),
            file("c/src/state/table.rs", state),
            file("c/src/calls/mod.rs", "pub(crate) mod run;\n"),
            file(
                "c/src/calls/run.rs",
                "use crate::state::table::Table;\npub fn run(_: Table) {}\n",
            ),
        ];
        let graphs = super::super::imports::all(&sources).expect("the sources parse");
        check(&sources, &graphs).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn room_may_import_the_rooms_before_it() {
        assert!(findings("pub struct Table(crate::error::E);\n", "pub struct E;\n").is_empty());
    }

    #[test]
    fn missing_list_of_a_listed_crate_is_a_finding() {
        let file = |name: &str, text: &str| Source {
            path: format!("{}/src/{name}", LISTED[0]),
            text: text.to_owned(),
        };
        let sources = [file("lib.rs", "mod error;\n"), file("error.rs", "pub struct E;\n")];
        let graphs = super::super::imports::all(&sources).expect("the sources parse");
        assert_eq!(check(&sources, &graphs).len(), 1);
    }

    #[test]
    fn path_to_a_later_room_is_a_finding() {
        let up = "pub struct Table;\nfn f() { crate::calls::run::run(Table) }\n";
        let found = findings(up, "pub struct E;\n");
        let text =
            "c/src/state/table.rs:1: room-order: imports calls/run.rs, which is in a later room";
        assert_eq!(found, [text]);
        let error = "pub struct E(crate::state::table::Table);\n";
        assert_eq!(findings("pub struct Table;\n", error).len(), 1);
    }
}

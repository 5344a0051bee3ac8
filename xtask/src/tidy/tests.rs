//! Tests of the rules: for each rule one violation that it must find, and similar code that it
//! allows.

use super::*;
use crate::workspace::{Dependency, Package};

const HEAD: &str = "//! A file.\n//!\n//! Invariants: none.\n";

fn findings_at(path: &str, text: &str) -> Vec<(Rule, usize)> {
    let table = "| Word | Meaning | Do not write |\n| --- | --- | --- |\n| block | m | `page` |\n";
    let glossary = glossary::parse(table).unwrap();
    let source = Source { path: path.to_owned(), text: text.to_owned() };
    check(&[source], &glossary).into_iter().map(|f| (f.rule, f.line)).collect()
}

fn findings(body: &str) -> Vec<(Rule, usize)> {
    findings_at("crates/weir-x/src/a.rs", &format!("{HEAD}{body}"))
}

#[test]
fn file_without_header_is_refused() {
    let bare = "//! A file.\nfn f() {}\n";
    assert_eq!(findings_at("crates/weir-x/src/a.rs", "fn f() {}\n"), [(Rule::Header, 1)]);
    assert_eq!(findings_at("crates/weir-x/src/a.rs", bare), [(Rule::Header, 1)]);
    assert_eq!(findings_at("crates/weir-x/src/a.rs", "\n//! Late.\n"), [(Rule::Header, 1)]);
    for path in ["crates/weir-x/src/a/tests.rs", "crates/weir-x/tests/a.rs", "bin/weir/src/a.rs"] {
        assert_eq!(findings_at(path, bare), [], "{path}");
    }
    assert_eq!(findings(""), []);
    assert_eq!(findings(&"//! more\n".repeat(9)), []);
    assert_eq!(findings(&"//! more\n".repeat(10)), [(Rule::Header, 13)]);
}

#[test]
fn long_lines_and_files_are_refused() {
    let comment = |chars: usize| format!("// {}\n", "x".repeat(chars - 3));
    assert_eq!(findings(&comment(100)), []);
    assert_eq!(findings(&comment(101)), [(Rule::LineLength, 4)]);
    assert_eq!(findings(&"\n".repeat(797)), []);
    assert_eq!(findings(&"\n".repeat(798)), [(Rule::FileLength, 801)]);
}

#[test]
fn marker_of_unfinished_work_is_refused() {
    let word = concat!("TO", "DO");
    assert_eq!(findings(&format!("// {word}: later\n")), [(Rule::Promise, 4)]);
    assert_eq!(findings(&format!("// {word}S_DONE is a name\n")), []);
}

#[test]
fn glob_imports_are_refused_outside_tests() {
    let tests = "#[cfg(test)]\nmod tests {\n    use super::*;\n    use proptest::prelude::*;\n}\n";
    assert_eq!(findings(tests), []);
    assert_eq!(findings("use super::*;\n"), [(Rule::Glob, 4)]);
    assert_eq!(findings("mod a;\npub use a::*;\n"), []);
    assert_eq!(
        findings("pub use super::*;\npub use a::b::*;\n"),
        [(Rule::Glob, 4), (Rule::Glob, 5)]
    );
    assert_eq!(findings("use std::{fmt, io::*};\n"), [(Rule::Glob, 4)]);
    assert_eq!(findings("#[cfg(test)]\nmod tests {\n    use a::*;\n}\n"), [(Rule::Glob, 6)]);
    assert_eq!(findings("fn f() {\n    use E::*;\n}\n"), [(Rule::Glob, 5)]);
}

#[test]
fn unsafe_code_is_refused_outside_its_crates() {
    let body = "fn f() {\n    // unsafe in a comment is only a word\n    unsafe { g() }\n}\n";
    assert_eq!(findings(body), [(Rule::Unsafe, 6)]);
    assert_eq!(findings("m! { unsafe { g() } }\n"), [(Rule::Unsafe, 4)]);
    assert_eq!(findings("#![deny(unsafe_code)]\n"), []);
    for home in ["crates/base/weir-device/src/a.rs", "crates/base/weir-codec/src/parity/avx2.rs"] {
        assert_eq!(findings_at(home, &format!("{HEAD}{body}")), []);
    }
    let beside = findings_at("crates/base/weir-codec/src/parity.rs", &format!("{HEAD}{body}"));
    assert_eq!(beside, [(Rule::Unsafe, 6)]);
}

#[test]
fn barred_words_in_names_are_refused() {
    for planted in [
        "fn read_page() {}\n",
        "struct Page;\n",
        "enum E { PageFull }\n",
        "struct S { page: u8 }\n",
        "const PAGE_BYTES: u8 = 1;\n",
        "fn f(page: u8) {}\n",
        "fn f() { let (pages, rest) = g(); }\n",
        "mod page {}\n",
    ] {
        assert_eq!(findings(planted), [(Rule::Glossary, 4)], "{planted}");
    }
    for fine in [
        "fn f() { let n = rustix::param::page_size(); }\n",
        "impl Allocator for A { fn page(&self) {} }\n",
        "fn f(pager: u8) {}\n",
        "// a page of text\n",
    ] {
        assert_eq!(findings(fine), [], "{fine}");
    }
}

#[test]
fn file_that_does_not_parse_is_a_finding() {
    assert_eq!(findings("fn f( {}\n"), [(Rule::Syntax, 4)]);
}

fn package(folder: &str, name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
    let dependency = |(name, kind): &(&str, Option<&str>)| Dependency {
        name: (*name).to_owned(),
        kind: kind.map(str::to_owned),
    };
    Package {
        name: name.to_owned(),
        manifest_path: format!("/w/{folder}/{name}/Cargo.toml").into(),
        dependencies: dependencies.iter().map(dependency).collect(),
    }
}

#[test]
fn dependency_on_a_higher_layer_is_refused() {
    let with = |package: Package| {
        let plain = [("base", "weir-base"), ("engine", "weir-pool"), ("protocol", "weir-nbd")];
        let tools = ["weir-sim", "weir-bench", "weir-command"].map(|name| ("tools", name));
        let mut all: Vec<Package> = plain
            .into_iter()
            .chain(tools)
            .filter(|(_, name)| *name != package.name)
            .map(|(layer, name)| self::package(&format!("crates/{layer}"), name, &[]))
            .collect();
        all.push(package);
        layers::check(Path::new("/w"), &all).len()
    };
    let pool = [("weir-base", None), ("serde", None), ("weir-sim", Some("dev"))];
    for fine in [
        package("crates/engine", "weir-pool", &pool),
        package("crates/tools", "weir-sim", &[("weir-pool", None), ("weir-nbd", None)]),
        package("crates/control", "weir-api", &[("weir-pool", None), ("weir-nbd", None)]),
        package("bin", "weir", &[("weir-bench", None), ("weir-sim", Some("dev"))]),
        package("xtask", "xtask", &[("weir-base", None), ("weir-command", None)]),
    ] {
        assert_eq!(with(fine), 0);
    }
    for planted in [
        package("crates/base", "weir-base", &[("weir-pool", None)]),
        package("bin", "weir", &[("weir-sim", None)]),
        package("bin", "weir", &[("weir-command", None)]),
        package("xtask", "xtask", &[("weir-bench", None)]),
        package("crates/engine", "weir-pool", &[("weir-nbd", Some("build"))]),
        package("crates/protocol", "weir-nbd", &[("weir-pool", None)]),
        package("crates", "weir-flat", &[]),
    ] {
        assert_eq!(with(planted), 1);
    }
}

#[test]
fn exceptions_only_shrink() {
    let finding = |line| Finding {
        rule: Rule::Glob,
        path: "a.rs".to_owned(),
        line,
        count: 1,
        what: "planted".to_owned(),
    };
    let two = vec![finding(1), finding(2)];
    let apply = |list: &str| exceptions::apply(&two, &exceptions::parse(list).unwrap());
    assert_eq!(apply("# why\nglob a.rs 2\n"), Vec::<String>::new());
    assert_eq!(apply("").len(), 2);
    assert_eq!(apply("glob a.rs 1").len(), 2);
    assert_eq!(apply("glob b.rs 2").len(), 3);
    assert_eq!(
        apply("glob a.rs 3"),
        [format!("{}: `glob a.rs 3` can shrink to 2", exceptions::PATH)]
    );
    for list in ["glob a.rs", "nonsense a.rs 1", "glob a.rs x", "glob a.rs 1\nglob a.rs 1"] {
        assert!(exceptions::parse(list).is_err(), "{list}");
    }
}

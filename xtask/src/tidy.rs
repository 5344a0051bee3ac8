//! `cargo xtask tidy`: the rules of CONTRIBUTING.md that no compiler checks.
//!
//! Not here: what rustfmt and clippy check (function length among it).
//!
//! Invariants:
//! - reads only; the same tree gives the same findings in the same order;
//! - an exception is a line in `xtask/tidy-exceptions.txt` with a count, and a count that is
//!   higher than needed is itself a finding: the list can only shrink.

mod attributes;
mod cycles;
mod exceptions;
mod glossary;
mod imports;
mod layers;
mod room_order;
mod rooms;
mod source;
mod syntax;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use cycles::Cycles;

use crate::runner::lists;
use crate::{command, workspace};

/// Files that tidy reads, as patterns of git.
const FILES: [&str; 4] =
    [":(glob)bin/**/*.rs", ":(glob)crates/**/*.rs", ":(glob)fuzz/**/*.rs", ":(glob)xtask/**/*.rs"];

/// What a finding breaks; the names stand in the list of exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    Header,
    FileLength,
    LineLength,
    Promise,
    Syntax,
    Glob,
    Glossary,
    Unsafe,
    Layer,
    Alone,
    Cycle,
    Room,
    RoomOrder,
}

impl Rule {
    const ALL: [Self; 13] = [
        Self::Header,
        Self::FileLength,
        Self::LineLength,
        Self::Promise,
        Self::Syntax,
        Self::Glob,
        Self::Glossary,
        Self::Unsafe,
        Self::Layer,
        Self::Alone,
        Self::Cycle,
        Self::Room,
        Self::RoomOrder,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::FileLength => "file-length",
            Self::LineLength => "line-length",
            Self::Promise => "promise",
            Self::Syntax => "syntax",
            Self::Glob => "glob",
            Self::Glossary => "glossary",
            Self::Unsafe => "unsafe",
            Self::Layer => "layer",
            Self::Alone => "alone",
            Self::Cycle => "cycle",
            Self::Room => "room",
            Self::RoomOrder => "room-order",
        }
    }
}

/// One broken rule in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    rule: Rule,
    path: String,
    line: usize,
    /// What an exception counts: findings, or for a file's length its lines.
    count: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule.name(), self.what)
    }
}

/// A Rust file, by its path from the workspace root.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Whether the whole file is test code.
    fn is_test(&self) -> bool {
        let path = Path::new(&self.path);
        path.file_name().is_some_and(|name| name == "tests.rs")
            || path
                .components()
                .any(|c| ["tests", "benches"].map(AsRef::as_ref).contains(&c.as_os_str()))
    }

    fn finding(&self, rule: Rule, line: usize, what: impl Into<String>) -> Finding {
        Finding { rule, path: self.path.clone(), line, count: 1, what: what.into() }
    }
}

/// Options of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the import cycles of each crate
    #[arg(long)]
    cycles: bool,
}

/// The stage of `make check` and `make test`.
pub(crate) fn stage() -> Result<()> {
    main(&Args { cycles: false })
}

/// The task.
pub(crate) fn main(args: &Args) -> Result<()> {
    let root = command::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let glossary = glossary::parse(&read("docs/GLOSSARY.md")?)?;
    let exceptions = exceptions::parse(&read(exceptions::PATH)?)?;
    let sources = sources(root)?;
    let graphs = imports::all(&sources)?;
    let cycles = graphs.iter().map(|(root, graph)| Cycles::of(imports::folder_of(root), graph));
    let cycles: Vec<Cycles> = cycles.collect();
    if args.cycles {
        cycles::print(&cycles);
        return Ok(());
    }
    let mut findings = check(&sources, &glossary);
    findings.extend(cycles.iter().filter_map(Cycles::finding));
    let packages = workspace::packages()?;
    findings.extend(layers::check(root, &packages));
    findings.extend(rooms::check(&sources));
    findings.extend(room_order::check(&sources, &graphs));
    let is_there = |package: &str, file: &str| {
        let found = packages.iter().find(|known| known.name == package);
        found.is_some_and(|known| root.join(known.folder(root)).join(file).is_file())
    };
    findings.extend(lists::check_alone(is_there).into_iter().map(|what| Finding {
        rule: Rule::Alone,
        path: "xtask/src/runner/lists.rs".to_owned(),
        line: 1,
        count: 1,
        what,
    }));
    let errors = exceptions::apply(&findings, &exceptions);
    for error in &errors {
        println!("{error}");
    }
    if !errors.is_empty() {
        bail!("tidy: {} findings", errors.len());
    }
    println!("tidy: {} files read, nothing found", sources.len());
    Ok(())
}

fn check(sources: &[Source], glossary: &glossary::Glossary) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        findings.extend(source::check(source));
        findings.extend(syntax::check(source, glossary));
    }
    findings
}

/// All tracked Rust files, sorted by path.
fn sources(root: &Path) -> Result<Vec<Source>> {
    let read = |path: String| {
        let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        Ok(Source { path, text })
    };
    workspace::rust_files(&FILES)?.into_iter().map(read).collect()
}

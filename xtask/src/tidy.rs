//! `cargo xtask tidy`: checks the rules of CONTRIBUTING.md that no compiler checks.
//!
//! Not here: rules that rustfmt and clippy check (such as the length of a function).
//!
//! Invariants:
//! - tidy changes no file; the same tree gives the same findings in the same order;
//! - an exception is a line in `xtask/tidy-exceptions.txt` with a number of findings. If the number
//!   is higher than needed, that is a finding too, so the list can only shrink.

mod attributes;
mod calls;
mod cycles;
mod doc_paths;
mod exceptions;
mod finding;
mod glossary;
mod imports;
mod layers;
mod picture;
mod prose;
mod room_order;
mod rooms;
mod source;
mod syntax;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cycles::Cycles;
use weir_command::command;

use crate::runner::lists;
use crate::tidy::finding::{Finding, Rule, Source};
use crate::workspace;

/// Patterns of git for the files that tidy reads.
const FILES: [&str; 4] =
    [":(glob)bin/**/*.rs", ":(glob)crates/**/*.rs", ":(glob)fuzz/**/*.rs", ":(glob)xtask/**/*.rs"];

/// Options of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the import cycles of each crate
    #[arg(long)]
    cycles: bool,
    /// Draw the crates of each layer into ARCHITECTURE.md
    #[arg(long)]
    draw: bool,
    /// List the suspicious lines of prose below a folder
    #[arg(long, value_name = "FOLDER")]
    prose: Option<String>,
}

/// Returns the stage of `make check` and `make test` that runs tidy.
pub(crate) fn stage() -> Result<()> {
    main(&Args { cycles: false, draw: false, prose: None })
}

/// Runs `cargo xtask tidy`.
pub(crate) fn main(args: &Args) -> Result<()> {
    let root = command::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let glossary = glossary::parse(&read("docs/GLOSSARY.md")?)?;
    let exceptions = exceptions::parse(&read(exceptions::PATH)?)?;
    let sources = sources(root, &FILES)?;
    let documents = self::sources(root, &prose::DOCUMENTS)?;
    if let Some(folder) = &args.prose {
        list_prose(folder, sources.iter().chain(&documents));
        return Ok(());
    }
    let graphs = imports::all(&sources)?;
    let cycles = graphs.iter().map(|(root, graph)| Cycles::of(imports::folder_of(root), graph));
    let cycles: Vec<Cycles> = cycles.collect();
    if args.cycles {
        cycles::print(&cycles);
        return Ok(());
    }
    let packages = workspace::packages()?;
    let (document, picture) = (read(doc_paths::PATH)?, picture::draw(root, &packages));
    if args.draw {
        let placed = picture::placed(&document, &picture)?;
        return fs::write(root.join(doc_paths::PATH), placed).context(doc_paths::PATH);
    }
    let mut findings = check(&sources, &glossary);
    findings.extend(cycles.iter().filter_map(Cycles::finding));
    findings.extend(layers::check(root, &packages));
    findings.extend(rooms::check(&sources));
    findings.extend(room_order::check(&sources, &graphs));
    findings.extend(calls::check(&sources));
    findings.extend(prose::check(sources.iter().chain(&documents)));
    findings.extend(doc_paths::check(&document, &sources));
    findings.extend(picture::check(&document, &picture));
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

/// Prints the suspicious lines of all files below a folder.
fn list_prose<'a>(folder: &str, sources: impl Iterator<Item = &'a Source>) {
    for source in sources.filter(|source| Path::new(&source.path).starts_with(folder)) {
        for (line, pattern, text) in prose::suspicions(source) {
            println!("{}:{line}: [{pattern}] {text}", source.path);
        }
    }
}

/// Returns all tracked files that match the patterns, sorted by path.
fn sources(root: &Path, patterns: &[&str]) -> Result<Vec<Source>> {
    let read = |path: String| {
        let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        Ok(Source { path, text })
    };
    workspace::files(patterns)?.into_iter().map(read).collect()
}

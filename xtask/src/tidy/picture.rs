//! The picture of the crates in ARCHITECTURE.md: the layers from the top, and each crate with its
//! imports.
//!
//! Not here: the rules for imports (layers.rs).
//!
//! The picture is the transitive reduction of the dependency graph: if other imports of a crate
//! imply an import, the picture omits this import. The picture shows no dev-dependencies.
//!
//! Invariant: the same workspace gives the same picture.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::doc_paths::PATH;
use super::finding::{Finding, Rule};
use super::layers;
use crate::workspace::Package;

/// Markers before and after the picture in the document.
const BEGIN: &str = "<!-- crates: drawn by `cargo xtask tidy --draw` -->\n```\n";
const END: &str = "```\n<!-- end -->";

/// Direct imports of each crate.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Draws the picture of the workspace in `root`.
pub(super) fn draw(root: &Path, packages: &[Package]) -> String {
    let is_own = |name: &str| packages.iter().any(|package| package.name == name);
    let imports = |package: &Package| {
        let normal = package.dependencies.iter().filter(|dependency| !dependency.is_dev());
        let own = normal.filter(|dependency| is_own(&dependency.name));
        (package.name.clone(), own.map(|dependency| dependency.name.clone()).collect())
    };
    let graph: Imports = packages.iter().map(imports).collect();
    let mut picture = String::new();
    for layer in layers::folders().rev() {
        let mut title = layer.trim_start_matches("crates/");
        let inside = packages.iter().filter(|package| package.folder(root).starts_with(layer));
        for package in inside {
            let imports: Vec<&str> = reduced(&graph, &package.name).into_iter().collect();
            let line = format!("{title:<9} {:<16} {}", package.name, imports.join(" "));
            writeln!(picture, "{}", line.trim_end()).expect("a string takes every line");
            title = "";
        }
    }
    picture
}

/// Returns the direct imports of a crate that are not also indirect imports.
fn reduced<'a>(graph: &'a Imports, name: &str) -> BTreeSet<&'a str> {
    let direct = &graph[name];
    let has = |from: &String, to: &String| from != to && all_imports(graph, from).contains(to);
    let is_needed = |import: &&String| !direct.iter().any(|other| has(other, import));
    direct.iter().filter(is_needed).map(String::as_str).collect()
}

fn all_imports(graph: &Imports, name: &str) -> BTreeSet<String> {
    let mut all = graph[name].clone();
    for import in &graph[name] {
        all.extend(all_imports(graph, import));
    }
    all
}

/// Inserts the picture into the document.
///
/// # Errors
/// The document has no markers for the picture.
pub(super) fn placed(document: &str, picture: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).context("no place for the picture")?;
    let (_, after) = rest.split_once(END).context("no end of the picture")?;
    Ok(format!("{before}{BEGIN}{picture}{END}{after}"))
}

/// Returns a finding if the picture in the document is not up to date.
pub(super) fn check(document: &str, picture: &str) -> Option<Finding> {
    if placed(document, picture).is_ok_and(|placed| placed == document) {
        return None;
    }
    let what = "the picture of the crates is outdated: run cargo xtask tidy --draw".to_owned();
    Some(Finding { rule: Rule::Picture, path: PATH.to_owned(), line: 1, count: 1, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_of_imports_are_left_out() {
        let graph: Imports = [
            ("a", &["b", "c", "d"][..]),
            ("b", &["c"]),
            ("c", &["d"]),
            ("d", &[]),
            ("e", &["d", "b"]),
        ]
        .iter()
        .map(|(name, imports)| {
            (name.to_string(), imports.iter().map(ToString::to_string).collect())
        })
        .collect();
        assert_eq!(reduced(&graph, "a"), BTreeSet::from(["b"]));
        assert_eq!(reduced(&graph, "e"), BTreeSet::from(["b"]));
        assert_eq!(reduced(&graph, "c"), BTreeSet::from(["d"]));
    }

    #[test]
    fn old_picture_is_a_finding() {
        let document = format!("before\n{BEGIN}base a\n{END}\nafter\n");
        assert!(check(&document, "base a\n").is_none());
        assert!(check(&document, "base b\n").is_some());
        assert!(check("before\n", "base a\n").is_some());
        let placed = placed(&document, "base b\n").expect("a place");
        assert!(check(&placed, "base b\n").is_none());
    }
}

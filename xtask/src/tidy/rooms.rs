//! Rooms: folders that have few enough source files for a reader to survey.
//!
//! Not here: imports between rooms (layers.rs, cycles.rs).
//!
//! Invariants: a `mod.rs` of a crate only lists the files of its folder. A folder with too many
//! files needs an entry in the list of exceptions, and the number in this entry may only fall.

use std::collections::BTreeMap;
use std::path::Path;

use crate::tidy::finding::{Finding, Rule, Source};

/// Maximum number of files in a folder.
const FILES_MAX: usize = 24;

/// Returns the findings of the workspace.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let Some((folder, file)) = source.path.rsplit_once('/') else { continue };
        *folders.entry(folder).or_default() += 1;
        let name = Path::new(folder).file_name().unwrap_or_default().to_string_lossy();
        if file.strip_suffix(".rs") == Some(&*name) {
            findings.push(source.finding(
                Rule::Room,
                1,
                format!("a file called as its folder {name}"),
            ));
        }
        if file == "mod.rs" {
            findings.extend(definitions(source));
        }
    }
    for (folder, count) in folders.into_iter().filter(|(_, count)| *count > FILES_MAX) {
        let (path, what) = (folder.to_owned(), format!("{count} files, {FILES_MAX} allowed"));
        findings.push(Finding { rule: Rule::Room, path, line: 1, count, what });
    }
    findings
}

/// Returns a finding for each definition in a `mod.rs`. A `mod.rs` must only list the files of its
/// folder.
fn definitions(source: &Source) -> Vec<Finding> {
    // syntax.rs reports files that cannot be parsed.
    let Ok(file) = syn::parse_file(&source.text) else { return Vec::new() };
    let is_sign = |item: &&syn::Item| match item {
        syn::Item::Mod(module) => module.content.is_none(),
        syn::Item::Use(_) => true,
        _ => false,
    };
    let others = file.items.iter().filter(|item| !is_sign(item));
    let finding = |item: &syn::Item| {
        let line = syn::spanned::Spanned::span(item).start().line;
        source.finding(Rule::Room, line, "a mod.rs holds `mod` and `use` lines only")
    };
    others.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let source = |(path, text): &(&str, &str)| Source {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        let sources: Vec<Source> = files.iter().map(source).collect();
        check(&sources).into_iter().map(|finding| (finding.path, finding.count)).collect()
    }

    #[test]
    fn room_is_small_and_its_mod_rs_defines_nothing() {
        assert_eq!(found(&[("a/src/x/mod.rs", "mod y;\npub use y::Y;\n")]), []);
        let defines = found(&[("a/src/x/mod.rs", "mod y;\nstruct X;\nmod z { }\n")]);
        assert_eq!(defines, [("a/src/x/mod.rs".to_owned(), 1), ("a/src/x/mod.rs".to_owned(), 1)]);
        assert_eq!(found(&[("a/src/x/x.rs", "")]), [("a/src/x/x.rs".to_owned(), 1)]);
        assert_eq!(found(&[("a/tests/x/mod.rs", "struct X;\n")]), []);
        let names: Vec<String> = (0..25).map(|number| format!("a/src/f{number}.rs")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert_eq!(found(&files[..24]), []);
        assert_eq!(found(&files), [("a/src".to_owned(), 25)]);
    }
}

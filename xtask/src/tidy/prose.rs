//! Plain English (docs/WRITING.md): finds suspicious lines in comments, documents and test names.
//!
//! A match is a line that a reader should check, not an error: some uses of the patterns are
//! correct.
//!
//! Invariant: the list of exceptions has the number of suspicious lines of each folder, and this
//! number may only fall. It was at most 15 per 1,000 lines of prose when the list began.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::tidy::finding::{Finding, Rule, Source};

/// Documents that tidy reads, as patterns of git.
pub(super) const DOCUMENTS: [&str; 1] = ["*.md"];

/// A suspicious line: its number from 1, the name of the pattern that matched, and the text.
pub(super) type Suspicion<'a> = (usize, &'static str, &'a str);

/// Name and regular expression of each pattern. A match may need the further check in [`why`].
static PATTERNS: LazyLock<[(&str, Regex); 7]> = LazyLock::new(|| {
    let patterns = [
        (OPENING, r"^\W*(?:What|Who|Whoever|Those|How) (\w*)".to_owned()),
        ("clause as subject or object", words("what|who", CLAUSE_VERBS)),
        ("nobody, whoever", words("[Nn]obody|[Ww]hoever|[Ss]ome(?:body|one)|[Aa]nybody", "")),
        ("everyday verb", words(EVERYDAY_VERBS, "")),
        (CONTRAST, r"\band (?:not|no|nothing|none)\b(.*)".to_owned()),
        ("pronoun without a noun", words(PRONOUNS, "")),
        ("beside, save, but for", words("beside|save for|but for", "")),
    ];
    patterns.map(|(name, pattern)| (name, Regex::new(&pattern).expect("a constant pattern")))
});

/// Verbs that follow "what" or "who" in a clause.
const CLAUSE_VERBS: &str = "is|was|are|were|has|had|have|lives?|comes?|came|goes|went|it|they|the|\
    a|an|that|this|these|others?|leads?|stands?|holds?|begins|ends|makes?|made|takes?|took|asks?|\
    says?|said|fits|remains|waits?|reads?|writes?|needs?|knows?|shares?|follows?|changed?|cannot|\
    can|may|must|will|would|should";

/// Everyday verbs for which the field has a term.
const EVERYDAY_VERBS: &str = "lets? go of|lets? .{1,20} go|goes on|go on|went on|anew|tells? of|\
    is told|are told|leads? to|stands? (?:in|at|for|there)|is so already|comes? back|gone with|\
    goes with|is there|are there|has it|have it";

/// Pronouns whose noun the reader must guess.
const PRONOUNS: &str = "that of|those of|those that|one that|ones that|of which|all that|\
    as it (?:was|is)|as they (?:were|are)";

/// Returns a regular expression that matches these whole words. If `next` is not empty, one of the
/// words in `next` must follow.
fn words(words: &str, next: &str) -> String {
    if next.is_empty() {
        format!(r"\b(?:{words})\b")
    } else {
        format!(r"\b(?:{words}) (?:{next})\b")
    }
}

const OPENING: &str = "opens with a clause";
const CONTRAST: &str = "contrast by 'and not'";

/// Test names that do not state a behaviour.
static RIDDLE: LazyLock<Regex> = LazyLock::new(|| {
    let opening = "what|who|whoever|those|one|nobody|all|it|they|a|an|the|some|any";
    let inside = "who|what|nobody|whoever|those|is_there|goes_on|lets_go";
    Regex::new(&format!("^(?:{opening})_|_(?:{inside})(?:_|$)")).expect("a constant pattern")
});

/// Returns a finding for each folder with suspicious lines, with their number.
pub(super) fn check<'a>(sources: impl IntoIterator<Item = &'a Source>) -> Vec<Finding> {
    let mut folders: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for source in sources {
        let count = folders.entry(folder(&source.path)).or_default();
        let lines = lines(source);
        count.0 += lines.len();
        count.1 += lines.into_iter().filter_map(suspicion).count();
    }
    let finding = |(path, (lines, count)): (String, (usize, usize))| {
        let what = format!(
            "{count} of {lines} lines are suspicious; list them with \
             `cargo xtask tidy --prose {path}`"
        );
        (count > 0).then_some(Finding { rule: Rule::Prose, path, line: 1, count, what })
    };
    folders.into_iter().filter_map(finding).collect()
}

/// Returns the suspicious lines of a file, in order.
pub(super) fn suspicions(source: &Source) -> Vec<Suspicion<'_>> {
    lines(source).into_iter().filter_map(suspicion).collect()
}

fn suspicion(line: Line<'_>) -> Option<Suspicion<'_>> {
    match line {
        Line::Text(number, text) => why(text).map(|pattern| (number, pattern, text)),
        Line::Test(number, name) => {
            RIDDLE.is_match(name).then_some((number, "test name states no behaviour", name))
        }
    }
}

/// Returns the name of the pattern that a line matches.
fn why(text: &str) -> Option<&'static str> {
    let matches = |(name, pattern): &(&'static str, Regex)| {
        let captures = pattern.captures(text)?;
        let rest = captures.get(1).map_or("", |group| group.as_str());
        let is_how_to = *name == OPENING && rest == "to";
        let is_question = *name == CONTRAST && rest.contains('?');
        (!is_how_to && !is_question).then_some(*name)
    };
    PATTERNS.iter().find_map(matches)
}

/// A line of prose: its number from 1, and its text.
#[derive(Clone, Copy)]
enum Line<'a> {
    Text(usize, &'a str),
    Test(usize, &'a str),
}

/// Returns the lines of prose: in a document all lines outside of code blocks, in a Rust file
/// comments and test names.
fn lines(source: &Source) -> Vec<Line<'_>> {
    let mut found = Vec::new();
    let is_document =
        Path::new(&source.path).extension().is_some_and(|extension| extension == "md");
    let (mut is_code, mut is_test) = (false, false);
    for (index, line) in source.text.lines().enumerate() {
        let (number, text) = (index + 1, line.trim());
        if is_document {
            if text.starts_with("```") {
                is_code = !is_code;
            } else if !is_code && !text.is_empty() && !text.starts_with("|--") {
                found.push(Line::Text(number, text));
            }
            continue;
        }
        if let Some(comment) = text.strip_prefix("//") {
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            if !comment.is_empty() {
                found.push(Line::Text(number, comment));
            }
        } else if text == "#[test]" || text.starts_with("#[tokio::test") {
            is_test = true;
        } else if is_test && let Some(name) = function(text) {
            found.push(Line::Test(number, name));
            is_test = false;
        }
    }
    found
}

/// Returns the name of the function in the line `fn name(` or `async fn name(`.
fn function(line: &str) -> Option<&str> {
    let signature = line.trim_start_matches("pub ").trim_start_matches("async ");
    Some(signature.strip_prefix("fn ")?.split_once('(')?.0)
}

/// Returns the folder whose count includes the suspicious lines of a file: the file's crate, or the
/// first one or two folders of the file's path.
fn folder(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let deepest = if parts[0] == "crates" { 3 } else { 2 };
    let depth = deepest.min(parts.len() - 1);
    if depth == 0 { ".".to_owned() } else { parts[..depth].join("/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    fn numbers(path: &str, text: &str) -> Vec<usize> {
        suspicions(&source(path, text)).into_iter().map(|(number, ..)| number).collect()
    }

    #[test]
    fn each_pattern_is_found_and_plain_english_is_not() {
        let odd = [
            "What a txg takes with it.",
            "It counts what is bad.",
            "Nobody waits.",
            "The walk goes on.",
            "It reads, and not more.",
            "Only those of this pool.",
            "The log beside a commit.",
        ];
        for line in odd {
            assert_eq!(numbers("a/src/a.rs", &format!("//! A.\n/// {line}\n")), [2], "{line}");
        }
        for line in ["How to retry.", "Is it full, and not empty?", "The committer retries."] {
            assert!(numbers("a/src/a.rs", &format!("// {line}\n")).is_empty(), "{line}");
        }
        assert!(numbers("a/src/a.rs", "let what = 1; f(\"nobody\")\n").is_empty());
    }

    #[test]
    fn test_names_state_behaviour() {
        let test = |name: &str| format!("#[test]\nfn {name}() {{}}\nfn what_now() {{}}\n");
        assert_eq!(numbers("a/src/a.rs", &test("what_is_lost_is_told")), [2]);
        assert_eq!(numbers("a/src/a.rs", &test("disk_that_goes_on")), [2]);
        assert!(numbers("a/src/a.rs", &test("idle_client_is_evicted")).is_empty());
    }

    #[test]
    fn documents_count_outside_code_blocks() {
        assert_eq!(numbers("docs/a.md", "nobody\n```\nnobody\n```\n\nsomebody\n"), [1, 6]);
    }

    #[test]
    fn folder_counts_its_suspicious_lines() {
        let prose = |odd: usize| format!("{}{}", "nobody\n".repeat(odd), "x\n".repeat(200 - odd));
        let found = |odd: usize| check(&[source("docs/x/a.md", &prose(odd))]);
        assert!(found(0).is_empty());
        let findings = found(5);
        assert_eq!((findings[0].path.as_str(), findings[0].count), ("docs/x", 5));
        assert_eq!(folder("README.md"), ".");
        assert_eq!(folder("docs/a.md"), "docs");
        assert_eq!(folder("crates/base/weir-base/src/a.rs"), "crates/base/weir-base");
    }
}

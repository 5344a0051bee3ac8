//! Checks the subjects of commits: each starts with an imperative verb of the field.
//!
//! Not here: the rules for prose in files (tidy).
//!
//! Invariant: a clone without history, such as the shallow clone of a CI job, passes.

use anyhow::{Result, bail};
use weir_command::command;

/// Maximum number of checked commits. A clone without a remote does not show which commits are
/// published. The limit excludes old commits, because the subjects of published commits cannot
/// change.
const COMMITS: &str = "--max-count=30";

/// Everyday verbs that do not name the effect of a commit.
const VAGUE: [&str; 5] = ["Let", "Mend", "Say", "Teach", "Tell"];

/// Imperatives that end in `ed`, `ing` or `s`, like other forms of a verb.
const IMPERATIVES: [&str; 8] =
    ["Bring", "Canvas", "Embed", "Exceed", "Feed", "Focus", "Proceed", "Seed"];

/// Checks the commits of this branch that no remote has.
pub(crate) fn main() -> Result<()> {
    let log = command::git(&["log", "--format=%h %s", COMMITS, "HEAD", "--not", "--remotes"])?;
    let errors: Vec<String> = log.lines().filter_map(error).collect();
    if errors.is_empty() {
        println!("subjects: {} commits read", log.lines().count());
        return Ok(());
    }
    bail!("{}\nreword them with `git rebase --interactive`", errors.join("\n"))
}

/// Returns the error of a line with the hash and the subject of a commit.
fn error(line: &str) -> Option<String> {
    let (_, subject) = line.split_once(' ')?;
    let word = subject.split(|c: char| !c.is_alphanumeric()).next()?;
    let fault = if VAGUE.contains(&word) {
        "is vague: name the effect, such as Reject, Retry, Split"
    } else if IMPERATIVES.contains(&word) {
        return None;
    } else if word.ends_with("ed") || word.ends_with("ing") || is_third_person(word) {
        "is no imperative: write Add, not Added, Adding or Adds"
    } else if !word.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit()) {
        "starts with a small letter"
    } else {
        return None;
    };
    Some(format!("{line}: {word:?} {fault}"))
}

fn is_third_person(word: &str) -> bool {
    word.ends_with('s') && !word.ends_with("ss")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_start_with_an_imperative_of_the_field() {
        for fine in
            ["Reject bad labels", "Pass the size", "Bring legs online", "0027: list", "Split: a b"]
        {
            assert_eq!(error(&format!("0a1b2c {fine}")), None);
        }
        for bad in ["Let a disk go", "Say why", "Tell more", "Added a row", "Fixes it", "wip"] {
            let found = error(&format!("0a1b2c {bad}")).unwrap();
            assert!(found.starts_with(&format!("0a1b2c {bad}: \"")), "{found}");
        }
        assert_eq!(error(""), None);
    }
}

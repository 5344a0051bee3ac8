//! The column "do not write" of docs/GLOSSARY.md, and the split of names into words.
//!
//! Not here: the names that tidy checks (syntax.rs).
//!
//! Invariants: tidy refuses a name if a whole word of it, singular or plural, is in the column in
//! backticks. Words of the column without backticks depend on context and are left to reviewers.

use anyhow::{Result, bail};

/// Words that tidy refuses in names, each with its replacement.
pub(super) struct Glossary {
    entries: Vec<Entry>,
}

struct Entry {
    refused: Vec<String>,
    instead: String,
}

impl Glossary {
    /// Returns the refused word that a name contains, and its replacement.
    pub(super) fn refuses(&self, name: &str) -> Option<(String, &str)> {
        let words = words(name);
        let same = |(word, refused): (&String, &String)| {
            word == refused || word.strip_suffix('s') == Some(refused)
        };
        let hit = self.entries.iter().find(|entry| {
            words
                .windows(entry.refused.len())
                .any(|window| window.iter().zip(&entry.refused).all(same))
        })?;
        Some((hit.refused.join(" "), &hit.instead))
    }
}

/// Parses the table: the first column has the word to write, the last column has the refused words.
pub(super) fn parse(markdown: &str) -> Result<Glossary> {
    let mut entries = Vec::new();
    for line in markdown.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [word, _, refused] = cells[..] else {
            bail!("docs/GLOSSARY.md: a row has {} columns, not 3: {line}", cells.len());
        };
        for term in refused.split('`').skip(1).step_by(2) {
            let refused = term.split_whitespace().map(str::to_lowercase).collect();
            entries.push(Entry { refused, instead: word.replace('`', "") });
        }
    }
    if entries.is_empty() {
        bail!("docs/GLOSSARY.md: no row refuses a word");
    }
    Ok(Glossary { entries })
}

/// Splits a name into words: `read_page`, `ReadPage`, `READ_PAGE` and `IOPage` contain the word
/// `page`; `pager` does not.
fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (index, c) in chars.iter().enumerate() {
        let before = index.checked_sub(1).map(|i| chars[i]);
        let starts = c.is_uppercase()
            && before.is_some_and(|before| {
                let next_is_lower = chars.get(index + 1).is_some_and(|c| c.is_lowercase());
                before.is_lowercase() || before.is_ascii_digit() || next_is_lower
            });
        if *c == '_' || starts {
            words.push(String::new());
        }
        if *c != '_' {
            words.last_mut().expect("starts with one word").extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_words() {
        assert_eq!(words("read_page"), ["read", "page"]);
        assert_eq!(words("ReadPage2"), ["read", "page2"]);
        assert_eq!(words("READ_PAGE"), ["read", "page"]);
        assert_eq!(words("NBDExport"), ["nbd", "export"]);
        assert_eq!(words("_x"), ["x"]);
    }

    #[test]
    fn refuses_whole_words_only() {
        let table = "| Word | Meaning | Do not write |\n| --- | --- | --- |\n\
                     | block | m | `page`, server |\n| vdev | m | `raid set` |\n";
        let glossary = parse(table).unwrap();
        assert_eq!(glossary.refuses("free_pages"), Some(("page".to_owned(), "block")));
        assert_eq!(glossary.refuses("RaidSetId"), Some(("raid set".to_owned(), "vdev")));
        for fine in ["pager", "raid_or_set", "server", "block"] {
            assert_eq!(glossary.refuses(fine), None, "{fine}");
        }
        assert!(parse("no table").is_err());
        assert!(parse("| a | b |").is_err());
    }
}

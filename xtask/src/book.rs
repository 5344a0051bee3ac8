//! `cargo xtask book`: the documentation as an mdBook, with all links checked.
//!
//! Readers also read the pages in the repository, so the book is built from a copy of the pages
//! with the same folders. Pages that are printed from code are written by tests with `UPDATE=1`.
//!
//! Invariants:
//! - every page of `docs` is a chapter;
//! - every link of a chapter points to a file of the book and, if it has an anchor, to an anchor in
//!   that file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};
use regex::Regex;
use weir_command::command::{self, root, target};

use crate::setup;

/// Folder of the book's settings and of its table of contents.
const SETTINGS: &str = "docs/book";

/// Builds the book in `target/book` and checks it.
pub(crate) fn main() -> Result<()> {
    let summary = fs::read_to_string(root().join(SETTINGS).join("SUMMARY.md"))?;
    let chapters = chapters(&summary);
    let listed = command::git(&["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let files: BTreeSet<&str> = listed.lines().filter(|file| root().join(file).exists()).collect();
    let missing = missing_chapters(&files, &chapters);
    if !missing.is_empty() {
        bail!("{SETTINGS}/SUMMARY.md lacks these pages: {}", missing.join(", "));
    }
    let pages = target().join("book-pages");
    copy_pages(&files, &chapters, &pages)?;
    setup::cargo_tool(setup::MDBOOK)?;
    let book = target().join("book");
    let mut build = command::command(setup::MDBOOK);
    build.arg("build").arg(&pages).arg("--dest-dir").arg(&book);
    command::run(&mut build)?;
    let broken = broken_links(&book)?;
    if !broken.is_empty() {
        bail!("the book has {} broken links:\n  {}", broken.len(), broken.join("\n  "));
    }
    eprintln!("{} chapters: {}", chapters.len(), book.join("index.html").display());
    Ok(())
}

/// Returns the paths of the chapters.
fn chapters(summary: &str) -> BTreeSet<String> {
    static LINK: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\]\(([^)]+\.md)\)").expect("the expression is valid"));
    LINK.captures_iter(summary).map(|found| found[1].to_owned()).collect()
}

/// Returns the pages of `docs` that the table of contents does not list.
fn missing_chapters<'a>(files: &BTreeSet<&'a str>, chapters: &BTreeSet<String>) -> Vec<&'a str> {
    let pages = files.iter().copied().filter(|file| {
        let is_page = Path::new(file).extension().is_some_and(|extension| extension == "md");
        is_page && file.starts_with("docs/") && !file.starts_with(SETTINGS)
    });
    pages.filter(|page| !chapters.contains(*page)).collect()
}

/// Copies the chapters, and the files that they link to, into an empty folder.
fn copy_pages(files: &BTreeSet<&str>, chapters: &BTreeSet<String>, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let copy = |from: &str, name: &str| -> Result<()> {
        let into = to.join(name);
        fs::create_dir_all(into.parent().context("a file has a folder")?)?;
        fs::copy(root().join(from), into).with_context(|| format!("{from} is not copied"))?;
        Ok(())
    };
    for name in ["book.toml", "SUMMARY.md"] {
        copy(&format!("{SETTINGS}/{name}"), name)?;
    }
    for chapter in chapters {
        copy(chapter, chapter)?;
        let text = fs::read_to_string(root().join(chapter))?;
        for link in links(&text) {
            let path = resolved(chapter, link.split('#').next().unwrap_or_default());
            if files.contains(path.as_str()) && !chapters.contains(&path) {
                copy(&path, &path)?;
            }
        }
    }
    Ok(())
}

/// Returns the relative links of a page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    static LINK: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\]\(([^)\s]+)\)").expect("the expression is valid"));
    let all = LINK.captures_iter(text).filter_map(|found| found.get(1));
    all.map(|link| link.as_str()).filter(|link| !link.contains("://"))
}

/// Returns the path of a link of a page, relative to the folder of the page.
fn resolved(page: &str, link: &str) -> String {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut path = PathBuf::new();
    for component in folder.join(link).components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path.to_string_lossy().into_owned()
}

/// Returns the links in the pages of a built book whose file or anchor does not exist.
fn broken_links(book: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    read_pages(book, book, &mut pages)?;
    let mut broken = Vec::new();
    for (page, text) in &pages {
        // Skip `print.html`, which repeats all pages, and pages that mdBook itself generates.
        if page == "print.html" || page == "404.html" || page == "toc.html" {
            continue;
        }
        broken.extend(broken_links_of(page, text, &pages, &|path| book.join(path).is_file()));
    }
    Ok(broken)
}

fn read_pages(book: &Path, folder: &Path, pages: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_pages(book, &path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let name = path.strip_prefix(book)?.to_string_lossy().into_owned();
            pages.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

fn broken_links_of(
    page: &str,
    text: &str,
    pages: &BTreeMap<String, String>,
    is_file: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    static LINK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"<(?:a|img)\b[^>]*?\s(?:href|src)="([^"]*)""#).expect("it is valid")
    });
    let mut broken = Vec::new();
    for found in LINK.captures_iter(text) {
        let link = &found[1];
        if link.contains("://") || link.starts_with("mailto:") || link.is_empty() {
            continue;
        }
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let path = if path.is_empty() { page.to_owned() } else { resolved(page, path) };
        let has_anchor = || {
            anchor.is_empty()
                || pages.get(&path).is_none_or(|page| page.contains(&format!("id=\"{anchor}\"")))
        };
        if !is_file(&path) || !has_anchor() {
            broken.push(format!("{page}: {link}"));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_that_is_no_chapter_is_found() {
        let chapters = chapters("- [A](docs/a.md)\n    - [B](docs/b/README.md)\n");
        let files =
            BTreeSet::from(["docs/a.md", "docs/b/README.md", "docs/c.md", "docs/d.svg", "x.md"]);
        assert_eq!(missing_chapters(&files, &chapters), ["docs/c.md"]);
    }

    #[test]
    fn links_are_relative_to_their_page() {
        assert_eq!(resolved("docs/guide/tour.md", "../bench.md"), "docs/bench.md");
        assert_eq!(resolved("README.md", "docs/guide/tour.md"), "docs/guide/tour.md");
        assert_eq!(resolved("docs/a.md", "./b.md"), "docs/b.md");
        let text = "[a](b.md) [c](https://x.example) ![d](e.svg#f)";
        assert_eq!(links(text).collect::<Vec<_>>(), ["b.md", "e.svg#f"]);
    }

    #[test]
    fn broken_file_and_broken_anchor_are_found() {
        let text = |body: &str| format!("<p>{body}</p>");
        let pages = BTreeMap::from([
            ("a.html".to_owned(), text("<h2 id=\"here\">x</h2>")),
            ("docs/b.html".to_owned(), String::new()),
        ]);
        let is_file = |path: &str| pages.contains_key(path);
        let found = |body: &str| broken_links_of("docs/b.html", &text(body), &pages, &is_file);
        assert_eq!(
            found(r#"<a href="../a.html#here">x</a> <a href="https://x.example">y</a>"#).len(),
            0
        );
        assert_eq!(found(r#"<a href="../a.html#gone">x</a>"#), ["docs/b.html: ../a.html#gone"]);
        assert_eq!(found(r#"<img class="i" src="no.svg">"#), ["docs/b.html: no.svg"]);
    }
}

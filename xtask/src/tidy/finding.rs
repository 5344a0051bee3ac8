//! Rules of tidy, findings about them, and the files that tidy reads.
//!
//! Not here: the checks of the rules, which have a file each.
//!
//! Invariant: each rule has one name.

use std::fmt;
use std::path::Path;

/// A rule that a finding is about; the list of exceptions contains its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
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
    DocPath,
    Calls,
    Picture,
    Prose,
}

impl Rule {
    pub(super) const ALL: [Self; 17] = [
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
        Self::DocPath,
        Self::Calls,
        Self::Picture,
        Self::Prose,
    ];

    pub(super) fn name(self) -> &'static str {
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
            Self::DocPath => "doc-path",
            Self::Calls => "calls",
            Self::Picture => "picture",
            Self::Prose => "prose",
        }
    }
}

/// One violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) rule: Rule,
    pub(super) path: String,
    pub(super) line: usize,
    /// Number that is compared with the exception: the number of findings, or the number of lines
    /// of a file that is too long.
    pub(super) count: usize,
    pub(super) what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule.name(), self.what)
    }
}

/// A Rust file or a document; its path is relative to the workspace root.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
}

impl Source {
    /// True if the whole file is test code.
    pub(super) fn is_test(&self) -> bool {
        let path = Path::new(&self.path);
        path.file_name().is_some_and(|name| name == "tests.rs")
            || path
                .components()
                .any(|c| ["tests", "benches"].map(AsRef::as_ref).contains(&c.as_os_str()))
    }

    pub(super) fn finding(&self, rule: Rule, line: usize, what: impl Into<String>) -> Finding {
        Finding { rule, path: self.path.clone(), line, count: 1, what: what.into() }
    }
}

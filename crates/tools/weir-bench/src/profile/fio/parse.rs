//! Parser for the sections and values of a job file, including the files that it includes.
//!
//! `words` lists the options; `values` and `import` interpret the values.
//!
//! Invariants:
//! - every value keeps its file and line;
//! - each option is either read by the import or reported as unused (`Read::unused`).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use super::super::error::{ProfileError, nearest, refuse};
use super::super::imported::Skipped;
use super::super::lint::{Trap, trap};
use super::super::read_text;
use super::words::{self, ALIASES, Treatment};

/// Maximum nesting depth of files that include each other.
const INCLUDES_MAX: usize = 16;

/// File and line of an option or a section.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    file: Rc<str>,
    line: usize,
}

impl Place {
    pub(super) fn refuse(
        &self,
        what: impl Into<String>,
        action: impl Into<String>,
    ) -> ProfileError {
        refuse(&self.file, self.line, what, action)
    }

    pub(super) fn skipped(&self, word: &str, why: &str) -> Skipped {
        let (word, why) = (word.to_owned(), why.to_owned());
        Skipped { file: self.file.to_string(), line: self.line, word, why }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) text: String,
    pub(super) place: Place,
    /// Position of the value in the order in which fio reads values. A value with a higher position
    /// replaces earlier values of the same option.
    order: usize,
    /// Number of the section that contains the value.
    section: usize,
}

/// Job, with the values of the `[global]` sections before it.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) place: Place,
    values: BTreeMap<String, Value>,
    used: Rc<RefCell<BTreeSet<Place>>>,
}

impl Job {
    /// Returns the value of an option, and marks the option as used.
    pub(super) fn value(&self, word: &str) -> Option<&Value> {
        let value = self.values.get(word)?;
        self.used.borrow_mut().insert(value.place.clone());
        Some(value)
    }

    /// Position of an option in the order in which fio reads options; `None` if the job does not
    /// set the option. If two options exclude each other, the later one applies. This function does
    /// not mark the option as used.
    pub(super) fn order(&self, word: &str) -> Option<usize> {
        self.values.get(word).map(|value| value.order)
    }

    /// Returns an error with the line of an option of the job, or with the line of the job's
    /// section if the job does not set the option.
    pub(super) fn refuse(&self, word: &str, what: impl Into<String>, action: &str) -> ProfileError {
        let place = self.values.get(word).map_or(&self.place, |value| &value.place);
        place.refuse(what, action)
    }
}

/// Option in the file that the import understands. The option may be unused: no job may need it.
struct Given {
    place: Place,
    word: &'static str,
    /// Name of the option as the file writes it: `word` or an alias of it.
    written: String,
}

/// Contents of a job file.
pub(super) struct Read {
    pub(super) jobs: Vec<Job>,
    pub(super) traps: Vec<Trap>,
    pub(super) skipped: Vec<Skipped>,
    given: Vec<Given>,
    used: Rc<RefCell<BTreeSet<Place>>>,
}

impl Read {
    /// Returns the options whose values no job has used.
    pub(super) fn unused(&self) -> Vec<Skipped> {
        let used = self.used.borrow();
        let unused = self.given.iter().filter(|given| !used.contains(&given.place));
        let skipped = |given: &Given| {
            let here = |job: &Job| {
                job.values.get(given.word).is_some_and(|value| value.place == given.place)
            };
            let why = if self.jobs.iter().any(here) {
                "it has no effect in a job of this kind"
            } else {
                "every job overrides it"
            };
            given.place.skipped(&given.written, why)
        };
        unused.map(skipped).collect()
    }
}

/// Reads a job file with the files that it includes.
pub(super) fn read(file: &str, text: &str) -> Result<Read, ProfileError> {
    let used = Rc::default();
    let (jobs, traps, skipped, given) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let read = Read { jobs, traps, skipped, given, used };
    let mut reader = Reader { read, global: BTreeMap::new(), section: None, sections: 0, order: 0 };
    reader.file(&Rc::from(file), text, 0)?;
    Ok(reader.read)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Global,
    Job,
}

struct Reader {
    read: Read,
    global: BTreeMap<String, Value>,
    section: Option<Section>,
    sections: usize,
    order: usize,
}

impl Reader {
    fn file(&mut self, file: &Rc<str>, text: &str, depth: usize) -> Result<(), ProfileError> {
        for (line, raw) in (1..).zip(text.lines()) {
            let place = Place { file: Rc::clone(file), line };
            // fio ends each line at the first `#` or `;`, even inside a value that is a command.
            let text = raw.split(['#', ';']).next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            if let Some(path) = text.strip_prefix("include ") {
                self.include(&place, path.trim(), depth)?;
            } else if let Some(rest) = text.strip_prefix('[') {
                if depth > 0 {
                    let what = "an included file has a section";
                    return Err(
                        place.refuse(what, "move the section to the file that includes this one")
                    );
                }
                self.begin(place, rest)?;
            } else {
                self.setting(place, text)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, place: Place, rest: &str) -> Result<(), ProfileError> {
        let Some(name) = rest.strip_suffix(']') else {
            let what = format!("the name of a section does not end: {rest:?}");
            return Err(place.refuse(what, "close it with `]`, and put nothing after it"));
        };
        if name.trim().is_empty() {
            return Err(place.refuse("a section without a name", "name it, such as `[job]`"));
        }
        self.sections += 1;
        self.section = Some(if name == "global" { Section::Global } else { Section::Job });
        if name != "global" {
            let (name, values) = (name.to_owned(), self.global.clone());
            let used = Rc::clone(&self.read.used);
            self.read.jobs.push(Job { name, place, values, used });
        }
        Ok(())
    }

    /// Reads an included file. The path of the file is relative to the working directory or, if the
    /// file does not exist there, to the folder of the file that includes it.
    fn include(&mut self, place: &Place, path: &str, depth: usize) -> Result<(), ProfileError> {
        if depth == INCLUDES_MAX {
            let what = format!("{INCLUDES_MAX} files include each other");
            return Err(place.refuse(what, "a file must not include itself"));
        }
        let beside = Path::new(&*place.file).parent().map(|folder| folder.join(path));
        let path = Path::new(path).to_owned();
        let found = if path.exists() { path } else { beside.unwrap_or(path) };
        let text = read_text(&found).map_err(|error| match error {
            ProfileError::Read { source, .. } => {
                let what = format!("{} cannot be read: {source}", found.display());
                place.refuse(what, "correct the path, or put its lines here")
            }
            other => other,
        })?;
        self.file(&Rc::from(found.display().to_string()), &text, depth + 1)
    }

    fn setting(&mut self, place: Place, text: &str) -> Result<(), ProfileError> {
        // An option that has no value means the value 1.
        let (written, value) = text.split_once('=').unwrap_or((text, "1"));
        let (written, value) = (written.trim(), value.trim());
        let alias = ALIASES.iter().find(|(alias, _)| *alias == written);
        let word = alias.map_or(written, |(_, word)| word);
        let Some(treatment) = words::treatment(word) else {
            let known = words::all();
            return Err(ProfileError::UnknownWord {
                file: place.file.to_string(),
                line: place.line,
                word: written.to_owned(),
                nearest: nearest(word, &known),
                known: words::READ.join(", "),
            });
        };
        let values = match (self.section, self.read.jobs.last_mut()) {
            (Some(Section::Global), _) => &mut self.global,
            (Some(Section::Job), Some(job)) => {
                if word == "name" {
                    value.clone_into(&mut job.name);
                }
                &mut job.values
            }
            _ => {
                let what = format!("`{written}` is before the first section");
                return Err(place.refuse(what, "put it below `[global]` or a job"));
            }
        };
        match treatment {
            Treatment::Read(word) => {
                self.order += 1;
                let (text, order, section) = (value.to_owned(), self.order, self.sections);
                let given = Value { text, place: place.clone(), order, section };
                let before = values.insert(word.to_owned(), given);
                if let Some(before) = before.filter(|before| before.section == section) {
                    let why = format!("{place} overrides it");
                    self.read.skipped.push(before.place.skipped(written, &why));
                    self.read.given.retain(|given| given.place != before.place);
                }
                let written = written.to_owned();
                self.read.given.push(Given { place, word, written });
            }
            Treatment::Skip(why) => self.read.skipped.push(place.skipped(written, why)),
            Treatment::Change(..) if value == "0" => {
                self.read.skipped.push(place.skipped(written, "it is off"));
            }
            Treatment::Change(what, action) => self.read.traps.push(trap(
                format!("{place}: `{written}`: {what}"),
                "fio behaves differently",
                action,
            )),
            Treatment::Refuse(unless, _) if unless.contains(&value) => {
                self.read.skipped.push(place.skipped(written, "the value is the default"));
            }
            Treatment::Refuse(_, action) => {
                let what = format!("`{written}` is {value:?}, which would be another load");
                return Err(place.refuse(what, action));
            }
        }
        Ok(())
    }
}

//! Keys and values of a configuration.
//!
//! Not here: what they become (icf).
//!
//! Invariant: all workers are alike, since one load is offered at a time.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::super::SECTOR_BYTES;
use super::super::error::{ProfileError, refuse};

/// What is needed of a configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    pub(super) run_ms: u64,
    pub(super) ramp_ms: u64,
    pub(super) specs: BTreeMap<String, Spec>,
    /// Names of access specifications and the lines they stand in.
    pub(super) assigned: Vec<(String, usize)>,
    pub(super) managers: u32,
    /// Of each manager.
    pub(super) workers: u32,
    /// Outstanding operations of each worker.
    pub(super) depth: u32,
    /// `None`: all of the disk.
    pub(super) size_bytes: Option<u64>,
    pub(super) size_line: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Spec {
    pub(super) lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) bytes: u32,
    pub(super) share_pct: u32,
    pub(super) read_pct: u32,
    pub(super) random_pct: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Worker {
    depth: u32,
    sectors: u64,
    assigned: Vec<String>,
}

/// Reads a configuration.
pub(super) fn parse(file: &str, text: &str) -> Result<Config, ProfileError> {
    let mut reader = Reader { file, ..Reader::default() };
    for (number, raw) in (1..).zip(text.lines()) {
        match raw.strip_prefix('\'') {
            Some(comment) if comment.starts_with([' ', '\t']) => {}
            Some(key) => reader.key(key.trim(), number)?,
            None if raw.trim().is_empty() => {}
            None => reader.value(raw.trim(), number)?,
        }
    }
    reader.finish()
}

#[derive(Default)]
struct Reader<'a> {
    file: &'a str,
    config: Config,
    key: String,
    spec: String,
    managers: Vec<Vec<Worker>>,
}

impl Reader<'_> {
    fn key(&mut self, key: &str, line: usize) -> Result<(), ProfileError> {
        self.key = key.to_ascii_lowercase();
        if self.key == "worker" {
            match self.managers.last_mut() {
                Some(workers) => workers.push(Worker::default()),
                None => {
                    let action = "put it below `'Manager ID, manager name`";
                    return Err(refuse(self.file, line, "a worker before any manager", action));
                }
            }
        }
        Ok(())
    }

    fn value(&mut self, text: &str, line: usize) -> Result<(), ProfileError> {
        let file = self.file;
        let key = self.key.clone();
        let worker = self.managers.last_mut().and_then(|workers| workers.last_mut());
        match (key.as_str(), worker) {
            ("run time", _) => {
                let [hours, minutes, seconds] = numbers::<3>(file, line, text, None)?;
                let seconds = hours
                    .saturating_mul(3600)
                    .saturating_add(minutes.saturating_mul(60))
                    .saturating_add(seconds);
                self.config.run_ms = seconds.saturating_mul(1000);
            }
            (key, _) if key.starts_with("ramp up time") => {
                let [seconds] = numbers::<1>(file, line, text, None)?;
                self.config.ramp_ms = seconds.saturating_mul(1000);
            }
            ("test type", _) if !text.eq_ignore_ascii_case("normal") => {
                let what = format!("the test type is {text}: several loads, one after the other");
                return Err(refuse(file, line, what, "save it as NORMAL, one file for each load"));
            }
            ("access specification name,default assignment", _) => {
                text.split(',').next().unwrap_or_default().trim().clone_into(&mut self.spec);
                self.config.specs.insert(self.spec.clone(), Spec::default());
            }
            (key, _) if key.starts_with("size,% of size") => {
                let read = access(file, line, text)?;
                self.config.specs.entry(self.spec.clone()).or_default().lines.push(read);
            }
            ("manager id, manager name", _) => self.managers.push(Vec::new()),
            ("worker type", _) if !text.eq_ignore_ascii_case("disk") => {
                let what = format!("a worker of type {text}");
                return Err(refuse(file, line, what, "only DISK workers measure storage"));
            }
            (key, Some(worker)) if key.starts_with("number of outstanding ios") => {
                let [depth] = numbers::<1>(file, line, text, Some(','))?;
                worker.depth = u32::try_from(depth).unwrap_or(u32::MAX);
                if !(1..=65_536).contains(&worker.depth) {
                    let what = format!("{depth} operations outstanding");
                    return Err(refuse(file, line, what, "give 1 to 65536"));
                }
            }
            (key, Some(worker)) if key.starts_with("disk maximum size") => {
                let [sectors] = numbers::<1>(file, line, text, Some(','))?;
                worker.sectors = sectors;
                self.config.size_line = line;
            }
            ("assigned access specs", Some(worker)) => {
                worker.assigned.push(text.to_owned());
                let known = self.config.assigned.iter().any(|(name, _)| name == text);
                if !known {
                    self.config.assigned.push((text.to_owned(), line));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<Config, ProfileError> {
        let (file, mut config) = (self.file, self.config);
        let refuse = |what: &str, action: &str| Err(refuse(file, 1, what, action));
        let Some(worker) = self.managers.first().and_then(|workers| workers.first()) else {
            return refuse("there is no worker", "save the file with managers and workers");
        };
        let alike = |workers: &Vec<Worker>| {
            workers.len() == self.managers[0].len() && workers.iter().all(|other| other == worker)
        };
        if !self.managers.iter().all(alike) {
            return refuse("workers differ from each other", "make them alike, or use two files");
        }
        if worker.assigned.is_empty() || worker.depth == 0 {
            return refuse(
                "workers have nothing to do",
                "assign access specifications and a depth",
            );
        }
        if config.run_ms == 0 {
            return refuse("the run time is 0, which is for ever", "give a time");
        }
        let bad = |spec: &&Spec| spec.lines.iter().map(|line| line.share_pct).sum::<u32>() != 100;
        if config.specs.values().any(|spec| bad(&spec)) {
            return refuse("shares of sizes are not 100 % together", "correct `% of size`");
        }
        config.size_line = config.size_line.max(1);
        config.depth = worker.depth;
        config.workers = self.managers[0].len() as u32;
        config.managers = self.managers.len() as u32;
        config.size_bytes = worker.sectors.checked_mul(SECTOR_BYTES).filter(|bytes| *bytes > 0);
        Ok(config)
    }
}

/// `size,% of size,% reads,% random,delay,burst,align,reply`
fn access(file: &str, line: usize, text: &str) -> Result<Line, ProfileError> {
    let values = numbers::<8>(file, line, text, Some(','))?;
    let [bytes, share, read, random, delay, burst, align, reply] = values;
    let bad = |what: &dyn Display, action: &str| Err(refuse(file, line, what.to_string(), action));
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) || bytes > 64 << 20 {
        return bad(
            &format_args!("blocks of {bytes} bytes"),
            "give a multiple of 512 up to 64 MiB",
        );
    }
    if share > 100 || read > 100 || random > 100 {
        return bad(&"a share is over 100 percent", "give 0 to 100");
    }
    if delay != 0 || burst != 1 {
        let action = "use a delay of 0 and a burst of 1, or an open loop of our own";
        return bad(&format_args!("a delay of {delay} ms after {burst} operations"), action);
    }
    if align > bytes || (align > 0 && !bytes.is_multiple_of(align)) {
        return bad(&format_args!("blocks aligned to {align} bytes"), "align them to their size");
    }
    if reply != 0 {
        return bad(&"a reply is of network tests", "give a reply of 0");
    }
    let [bytes, share_pct, read_pct, random_pct] =
        [bytes, share, read, random].map(|value| value as u32);
    Ok(Line { bytes, share_pct, read_pct, random_pct })
}

/// The first `N` numbers of a line.
fn numbers<const N: usize>(
    file: &str,
    line: usize,
    text: &str,
    between: Option<char>,
) -> Result<[u64; N], ProfileError> {
    let parts: Vec<&str> = match between {
        Some(between) => text.split(between).map(str::trim).collect(),
        None => text.split_whitespace().collect(),
    };
    let read = parts.iter().take(N).map(|part| part.parse::<u64>().ok());
    let read: Option<Vec<u64>> = read.collect();
    let read = read.and_then(|values| <[u64; N]>::try_from(values).ok());
    read.ok_or_else(|| {
        let what = format!("{text:?} are not {N} numbers");
        refuse(file, line, what, "save the file again with Iometer")
    })
}

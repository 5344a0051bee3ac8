//! Phases of the small files: create, stat and delete, with ordered names and with random names.
//!
//! `large` runs the phases of the large file.
//!
//! Invariants: the files are empty, as bonnie++ creates them by default; a phase that changes the
//! directory flushes it at the end, and this flush counts in the phase's time.

use std::fs::File;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::drive::Progress;
use super::timing::Timing;
use super::{BonnieError, Figure, Phase};

/// Number of random characters in a file name.
const RANDOM_CHARACTERS: usize = 8;

/// Directory that contains the small files.
pub(super) struct Small<'a> {
    directory: PathBuf,
    files: u32,
    seed: u64,
    progress: &'a Progress,
}

impl<'a> Small<'a> {
    pub(super) fn new(directory: &Path, files: u32, seed: u64, progress: &'a Progress) -> Self {
        Self { directory: directory.join("small"), files, seed, progress }
    }

    /// Runs all six phases of the small files and returns their figures.
    pub(super) fn phases(&self) -> Result<Vec<Figure>, BonnieError> {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let mut random = || -> String {
            (0..RANDOM_CHARACTERS).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect()
        };
        let ascending: Vec<String> =
            (0..self.files).map(|number| format!("{number:07}{}", random())).collect();
        let mixed: Vec<String> =
            (0..self.files).map(|number| format!("{}{number:07}", random())).collect();
        self.make()?;
        let mut figures = vec![self.create(Phase::SeqCreate, &ascending)?];
        let listed = self.listed()?;
        figures.push(self.stat(Phase::SeqStat, &listed)?);
        figures.push(self.delete(Phase::SeqDelete, &listed)?);
        figures.push(self.create(Phase::RandomCreate, &mixed)?);
        let mut shuffled = mixed;
        shuffled.shuffle(&mut rng);
        figures.push(self.stat(Phase::RandomStat, &shuffled)?);
        shuffled.shuffle(&mut rng);
        figures.push(self.delete(Phase::RandomDelete, &shuffled)?);
        std::fs::remove_dir(&self.directory).map_err(self.error("delete"))?;
        Ok(figures)
    }

    fn error(&self, what: &'static str) -> impl Fn(std::io::Error) -> BonnieError {
        let path = self.directory.display().to_string();
        move |source| BonnieError::Io { path: path.clone(), what, source }
    }

    fn make(&self) -> Result<(), BonnieError> {
        std::fs::create_dir(&self.directory).map_err(self.error("make"))
    }

    /// Returns the file names in the order in which the directory lists them.
    fn listed(&self) -> Result<Vec<String>, BonnieError> {
        let entries = std::fs::read_dir(&self.directory).map_err(self.error("list"))?;
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.map_err(self.error("list"))?;
            Ok(entry.file_name().to_string_lossy().into_owned())
        };
        entries.map(name).collect()
    }

    fn create(&self, phase: Phase, names: &[String]) -> Result<Figure, BonnieError> {
        self.each(phase, names, "create a file in", |path| File::create_new(path).map(drop))
    }

    fn stat(&self, phase: Phase, names: &[String]) -> Result<Figure, BonnieError> {
        self.each(phase, names, "look up a file in", |path| path.metadata().map(drop))
    }

    fn delete(&self, phase: Phase, names: &[String]) -> Result<Figure, BonnieError> {
        self.each(phase, names, "delete a file in", |path| std::fs::remove_file(path))
    }

    fn each(
        &self,
        phase: Phase,
        names: &[String],
        what: &'static str,
        operation: impl Fn(&Path) -> std::io::Result<()>,
    ) -> Result<Figure, BonnieError> {
        let mut timing = Timing::begin(phase);
        for name in names {
            let path = self.directory.join(name);
            timing.operation(|| operation(&path)).map_err(self.error(what))?;
            self.progress.add(1)?;
        }
        if !matches!(phase, Phase::SeqStat | Phase::RandomStat) {
            let flushed = File::open(&self.directory).and_then(|directory| directory.sync_all());
            flushed.map_err(self.error("flush"))?;
        }
        Ok(timing.end(names.len() as f64))
    }
}

/// Number of progress steps in all phases of the small files together.
pub(super) fn steps(files: u32) -> u64 {
    6 * u64::from(files)
}

//! The verbs that measure nothing: compare, report, lint, profiles and export.
//!
//! Not here: the code that compares, reports and checks (weir-bench).

use std::path::{Path, PathBuf};

use serde::Serialize;
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_bench::compare::Comparison;
use weir_bench::profile::{self, Machine, Options, Skipped, Trap};
use weir_bench::report::{self, Named};
use weir_bench::target::Address;
use weir_bench::verdict::JudgedRun;

use crate::bench::answer::{Answer, invalid};
use crate::bench::folder;
use crate::bench::plan::{Known, Loaded, ProfileArgs};
use crate::cli::base::output;
use crate::cli::base::output::Style;

/// Compares two results.
///
/// Each side is the path of a result, and the size of the target's cache if the user states it.
pub(super) fn compare(
    old: (&Path, Option<u64>),
    new: (&Path, Option<u64>),
    json: bool,
) -> Result<Answer, ApiError> {
    let judged = |(path, cache): (&Path, Option<u64>)| {
        let mut result = folder::read(path)?;
        if let Some(bytes) = cache {
            let target = &mut result.target;
            (target.cache_bytes, target.cache_source) = (Some(bytes), Some("told".to_owned()));
        }
        Ok::<_, ApiError>(JudgedRun::of(result))
    };
    let comparison = Comparison::of(&judged(old)?, &judged(new)?);
    output::print(&if json { comparison.json() + "\n" } else { comparison.text() })?;
    Ok(if comparison.is_refused() { Answer::No } else { Answer::Yes })
}

/// Writes the report of a result again, or one report on several results, with results of peers.
pub(super) fn report(
    results: &[PathBuf],
    peers: &[PathBuf],
    out: Option<&Path>,
    json: bool,
) -> Result<Answer, ApiError> {
    let cannot =
        |error: &dyn std::fmt::Display| ApiError::new(ErrorKind::Unavailable, error.to_string());
    let prepared =
        |directory: &Path| std::fs::create_dir_all(directory).map_err(|error| cannot(&error));
    let files = if let ([result], []) = (results, peers) {
        let judged = JudgedRun::of(folder::read(result)?);
        let beside = if result.is_dir() { Some(result.as_path()) } else { result.parent() };
        let directory = out.or(beside).unwrap_or(Path::new("."));
        prepared(directory)?;
        report::write(&judged, directory)
    } else {
        let own = results.iter().map(|path| named(path, false));
        let all = own.chain(peers.iter().map(|path| named(path, true)));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let directory = out.unwrap_or(Path::new("."));
        prepared(directory)?;
        report::write_several(&all, directory)
    };
    let files = files.map_err(|error| cannot(&error))?;
    if json {
        #[derive(Serialize)]
        struct Files {
            files: Vec<String>,
        }
        let files = files.iter().map(|file| file.display().to_string()).collect();
        output::print(&output::json(&Files { files })?)?;
    } else {
        files.iter().try_for_each(|file| output::print(&format!("{}\n", file.display())))?;
    }
    Ok(Answer::Yes)
}

/// Reads one of several results. Its name in the report is the name of its directory.
fn named(path: &Path, is_peer: bool) -> Result<Named, ApiError> {
    let run = JudgedRun::of(folder::read(path)?);
    let directory = if path.is_dir() { Some(path) } else { path.parent() };
    let name = directory.and_then(Path::file_name).unwrap_or(path.as_os_str());
    Ok(Named { name: name.to_string_lossy().into_owned(), run, is_peer })
}

#[derive(Serialize)]
struct Traps {
    traps: Vec<ReportedTrap>,
    skipped: Vec<Skipped>,
}

#[derive(Serialize)]
struct ReportedTrap {
    what: String,
    why: String,
    action: String,
}

/// Prints the traps of a profile on this machine, and the ignored settings of a job file.
pub(super) fn lint(arguments: &ProfileArgs, json: bool) -> Result<Answer, ApiError> {
    let Loaded { spec, mut traps, skipped } = arguments.load(&Known::default())?;
    traps.extend(profile::lint(&spec, &this_machine()));
    let count = traps.len();
    let told = |Trap { what, why, action }| ReportedTrap { what, why, action };
    let traps: Vec<ReportedTrap> = traps.into_iter().map(told).collect();
    if json {
        output::print(&output::json(&Traps { traps, skipped })?)?;
    } else {
        for Skipped { file, line, word, why } in &skipped {
            output::print(&format!("{file}:{line}: `{word}` is skipped: {why}\n"))?;
        }
        for ReportedTrap { what, why, action } in &traps {
            output::print(&format!("{what}\n  why: {why}\n  do:  {action}\n"))?;
        }
        let found = if count == 0 { "no trap found".to_owned() } else { format!("{count} traps") };
        output::say(&format!("{}: {found}", spec.name));
    }
    Ok(if count == 0 { Answer::Yes } else { Answer::No })
}

fn this_machine() -> Machine {
    let memory = rustix::system::sysinfo();
    Machine {
        memory_bytes: memory.totalram.saturating_mul(u64::from(memory.mem_unit)),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
    }
}

#[derive(Serialize)]
struct Profiles {
    profiles: Vec<Profile>,
}

#[derive(Serialize)]
struct Profile {
    name: &'static str,
    title: String,
    rows: usize,
    variants: Vec<String>,
}

/// Prints the built-in profiles.
pub(super) fn profiles(name: Option<&str>, json: bool) -> Result<Answer, ApiError> {
    if let Some(name) = name {
        let Some((_, text)) = profile::known(name) else {
            let message = format!("there is no profile {name:?}");
            let known = profile::names().join(", ");
            return Err(ApiError::new(ErrorKind::NotFound, message)
                .with_action(format!("built-in profiles: {known}")));
        };
        output::print(text)?;
        return Ok(Answer::Yes);
    }
    let mut profiles = Vec::new();
    for name in profile::names() {
        let spec = profile::load(name, &Options::default()).map_err(|error| invalid(&error))?;
        let variants = profile::variants(name).map_err(|error| invalid(&error))?;
        profiles.push(Profile { name, title: spec.title, rows: spec.cells.len(), variants });
    }
    if json {
        output::print(&output::json(&Profiles { profiles })?)?;
    } else {
        let rows: Vec<[String; 4]> = profiles
            .into_iter()
            .map(|Profile { name, title, rows, variants }| {
                [name.to_owned(), rows.to_string(), title, variants.join(", ")]
            })
            .collect();
        let header = ["NAME", ">ROWS", "TITLE", "VARIANTS"];
        output::print(&output::table(header, &rows, Style::new(false)))?;
    }
    Ok(Answer::Yes)
}

/// Prints a profile as a job file for fio.
pub(super) fn export(arguments: &ProfileArgs, target: Option<&str>) -> Result<Answer, ApiError> {
    let Loaded { spec, traps, .. } = arguments.load(&Known::default())?;
    for trap in &traps {
        output::say(&format!("weir: {}; {}", trap.what, trap.action));
    }
    let mut text = profile::export_fio(&spec).map_err(|error| invalid(&error))?;
    if let Some(target) = target {
        let Ok(Address::File(path)) = Address::parse(target) else {
            return Err(invalid(&"a job file names a file or a device: write its path"));
        };
        let Some(path) = path.to_str().and_then(profile::fio_path) else {
            let what = format!("fio cannot read the path {target:?}");
            return Err(
                invalid(&what).with_action("use a link to it whose name has no # ; $ or backslash")
            );
        };
        text = text.replace(profile::FIO_TARGET, &path);
    }
    output::print(&text)?;
    Ok(Answer::Yes)
}

//! Builds test programs with cargo and lists their tests.
//!
//! Not here: the processes in which tests run (process.rs).
//!
//! Invariant: the runner uses the same programs as `cargo test` with the same arguments.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use weir_command::command;

use super::Suite;

/// A test program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) package: String,
    /// Name and kind of the cargo target, from which the option that selects the target is made.
    pub(super) target: Target,
    /// Path of the executable.
    path: PathBuf,
    /// Folder of the package, in which cargo runs its tests.
    folder: PathBuf,
    /// The `--profile` option in the command with which a developer repeats a test.
    profile: String,
}

/// A cargo target.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: String,
    kind: String,
}

/// One test of a program.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) program: Arc<Program>,
    /// Name of the test within the program.
    pub(super) name: String,
    pub(super) is_ignored: bool,
    /// Number of this run of the test under `--repeat`, from 1.
    round: u32,
}

impl Case {
    /// Returns the unique name of the test: package, target and test name. The target is left out
    /// if it is the library or the main binary.
    pub(super) fn id(&self) -> String {
        let Program { package, target, .. } = &*self.program;
        match target.kind.as_str() {
            "test" => format!("{package}::{}::{}", target.name, self.name),
            _ => format!("{package}::{}", self.name),
        }
    }

    pub(super) fn in_round(&self, round: u32) -> Self {
        Self { round, ..self.clone() }
    }

    /// Returns the path of the log file below the suite's folder.
    pub(super) fn log(&self, folder: &Path) -> PathBuf {
        let target =
            if self.program.target.kind == "test" { &*self.program.target.name } else { "" };
        let round = if self.round > 1 { format!(".{}", self.round) } else { String::new() };
        let file = format!("{}{round}.log", self.name.replace("::", "."));
        folder.join(&self.program.package).join(target).join(file)
    }

    /// Returns the command that runs only this test, in the environment that cargo sets.
    pub(super) fn command(&self) -> Command {
        let Program { package, path, folder, .. } = &*self.program;
        let mut command = Command::new(path);
        command.args(["--exact", &self.name, "--nocapture"]).current_dir(folder);
        command.env("CARGO_MANIFEST_DIR", folder).env("CARGO_PKG_NAME", package);
        command.env("CARGO_MANIFEST_PATH", folder.join("Cargo.toml"));
        // Set the root for insta, which would otherwise call cargo in every test process.
        command.env("INSTA_WORKSPACE_ROOT", command::root());
        command
    }

    /// Returns the command line with which a developer runs only this test.
    pub(super) fn typed(&self) -> String {
        let Program { package, target, profile, .. } = &*self.program;
        let option = match target.kind.as_str() {
            "test" if package == "weir" => return format!("make e2e FILTER={}", self.id()),
            "test" | "bin" => format!("--{} {}", target.kind, target.name),
            _ => "--lib".to_owned(),
        };
        let name = &self.name;
        format!("cargo test{profile} --package {package} {option} -- --exact {name} --nocapture")
    }
}

#[cfg(test)]
impl Case {
    /// Creates a test of a program that does not exist.
    pub(super) fn planted(package: &str, kind: &str, path: PathBuf, name: &str) -> Self {
        let folder = path.parent().expect("the program lies in a folder").to_owned();
        let target = Target { name: "all".to_owned(), kind: kind.to_owned() };
        let (package, profile) = (package.to_owned(), " --profile ci".to_owned());
        let program = Arc::new(Program { package, target, path, folder, profile });
        Self { program, name: name.to_owned(), is_ignored: false, round: 1 }
    }
}

/// Fields that the runner reads from one line of cargo's JSON.
#[derive(serde::Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<MessageTarget>,
    executable: Option<PathBuf>,
    profile: Option<MessageProfile>,
}

#[derive(serde::Deserialize)]
struct MessageTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(serde::Deserialize)]
struct MessageProfile {
    test: bool,
}

/// Builds a suite's programs and lists their tests.
pub(super) fn cases(suite: &Suite) -> Result<Vec<Case>> {
    let mut cargo = command::command("cargo");
    cargo.args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    cargo.args(&suite.arguments).stderr(Stdio::inherit());
    let output = cargo.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("`{}` failed ({})", command::show(&cargo), output.status);
    }
    let profile = suite.arguments.iter().position(|argument| argument == "--profile");
    let profile = profile.and_then(|at| suite.arguments.get(at + 1));
    let profile = profile.map(|name| format!(" --profile {name}")).unwrap_or_default();
    let mut cases = Vec::new();
    for program in programs(&String::from_utf8_lossy(&output.stdout), &profile)? {
        cases.extend(listed(&Arc::new(program))?);
    }
    if cases.is_empty() {
        bail!("`{}` built no tests", command::show(&cargo));
    }
    Ok(cases)
}

/// Finds the test programs in cargo's messages.
pub(super) fn programs(messages: &str, profile: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("a message of cargo")?;
        let is_test = message.profile.is_some_and(|profile| profile.test);
        if message.reason != "compiler-artifact" || !is_test {
            continue;
        }
        let (Some(path), Some(target)) = (message.executable, message.target) else { continue };
        let manifest = message.manifest_path.context("an artifact of cargo has no manifest")?;
        let folder = manifest.parent().context("a manifest lies in a folder")?.to_owned();
        // In this workspace each package has the same name as its folder.
        let package = folder.file_name().context("a folder has a name")?;
        programs.push(Program {
            package: package.to_string_lossy().into_owned(),
            target: Target {
                name: target.name,
                kind: target.kind.into_iter().next().unwrap_or_default(),
            },
            path,
            folder,
            profile: profile.to_owned(),
        });
    }
    Ok(programs)
}

/// Lists the tests of a program in the order of libtest.
fn listed(program: &Arc<Program>) -> Result<Vec<Case>> {
    let list = |options: &[&str]| {
        let mut command = Command::new(&program.path);
        command.args(["--list", "--format", "terse"]).args(options).current_dir(&program.folder);
        command::output(&mut command)
    };
    let ignored = list(&["--ignored"])?;
    let ignored: Vec<&str> = names(&ignored).collect();
    let case = |name: &str| Case {
        program: Arc::clone(program),
        name: name.to_owned(),
        is_ignored: ignored.contains(&name),
        round: 1,
    };
    Ok(names(&list(&[])?).map(case).collect())
}

/// Returns the test names in libtest's terse list, which also contains benchmarks.
pub(super) fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_suffix(": test"))
}

//! The packages of this workspace, from cargo's metadata, and its Rust files, from git.
//!
//! Not here: the rules about packages and files (tidy/layers.rs, affected.rs).
//!
//! Invariant: packages are in the order of cargo, sorted by name; files are sorted by path.

use std::path::{Path, PathBuf};

use anyhow::Result;
use weir_command::command;

/// A package of the workspace and its dependencies.
#[derive(serde::Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Path of its Cargo.toml.
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

impl Package {
    /// Returns the folder of the package, relative to the workspace root.
    pub(crate) fn folder(&self, root: &Path) -> PathBuf {
        let folder = self.manifest_path.parent().unwrap_or(Path::new(""));
        folder.strip_prefix(root).unwrap_or(folder).to_owned()
    }
}

/// One entry of a `[dependencies]` section, of normal, dev or build dependencies.
#[derive(serde::Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `dev`, `build`, or `None` for a normal dependency.
    pub(crate) kind: Option<String>,
}

impl Dependency {
    pub(crate) fn is_dev(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

#[derive(serde::Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// Returns all packages of the workspace.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let args = ["metadata", "--no-deps", "--format-version", "1"];
    let json = command::output(command::command("cargo").args(args))?;
    Ok(serde_json::from_str::<Metadata>(&json)?.packages)
}

/// Returns the paths, from the workspace root, of the files that git tracks or would add and that
/// match the patterns of git.
pub(crate) fn files(patterns: &[&str]) -> Result<Vec<String>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"];
    let listed = command::git(&[&list[..], patterns].concat())?;
    // git lists a deleted file until the deletion is committed, so check whether the file exists.
    let exists = |path: &&str| !path.is_empty() && command::root().join(path).is_file();
    let mut files: Vec<String> = listed.split('\0').filter(exists).map(str::to_owned).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

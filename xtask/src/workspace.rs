//! The packages of this workspace, as cargo sees them.
//!
//! Not here: the rules for them (tidy/order.rs, affected.rs).
//!
//! Invariant: packages come in cargo's order, which is that of their names.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command;

/// A package and what it depends on.
#[derive(serde::Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its Cargo.toml.
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

impl Package {
    /// Its folder, from the workspace root.
    pub(crate) fn folder(&self, root: &Path) -> PathBuf {
        let folder = self.manifest_path.parent().unwrap_or(Path::new(""));
        folder.strip_prefix(root).unwrap_or(folder).to_owned()
    }
}

/// One line of `[dependencies]` or its kin.
#[derive(serde::Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `dev`, `build`, or none for a plain dependency.
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

/// All packages of the workspace.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let args = ["metadata", "--no-deps", "--format-version", "1"];
    let json = command::output(command::command("cargo").args(args))?;
    Ok(serde_json::from_str::<Metadata>(&json)?.packages)
}

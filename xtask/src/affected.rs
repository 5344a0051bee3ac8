//! Finds the packages that a change can break: the changed packages and the packages that use them.
//!
//! Not here: the checks of the packages that are found (check.rs).
//!
//! Invariant: a changed file that belongs to no package affects every package, unless it is
//! documentation.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use weir_command::command;

use crate::workspace::{self, Package};

/// Files outside of the packages' folders, each with the package that a change of the file affects:
/// the file belongs to the package, or a test of the package compares the file with the code.
const READERS: &[(&str, &str)] = &[
    ("docs/errors.md", "weir-api"),
    ("docs/openapi.json", "weir-api"),
    ("docs/format/", "weir-format"),
    ("profiles/", "weir-bench"),
];

/// Packages that must be tested, each with the reason; empty if only documentation changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Affected {
    /// All packages are affected, because this file changed.
    Everything(String),
    /// The named packages are affected, each with the reason.
    Packages(BTreeMap<String, String>),
}

/// Returns the packages affected by all changes since a revision: commits, uncommitted changes and
/// untracked files.
pub(crate) fn since(revision: &str) -> Result<Affected> {
    // With `--no-renames`, git lists a moved file under its old path as well. `rev-parse` checks
    // that the revision is valid, because `git diff` might take an invalid one for a file name.
    let revision =
        command::git(&["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")])?;
    let changed = command::git(&["diff", "--name-only", "--no-renames", "-z", &revision])?;
    let untracked = command::git(&["ls-files", "--others", "--exclude-standard", "-z"])?;
    let files = changed.split('\0').chain(untracked.split('\0')).filter(|file| !file.is_empty());
    Ok(affected(&workspace::packages()?, command::root(), files))
}

fn affected<'a>(
    packages: &[Package],
    root: &Path,
    files: impl Iterator<Item = &'a str>,
) -> Affected {
    let mut found = BTreeMap::new();
    for file in files {
        let home =
            packages.iter().find(|package| Path::new(file).starts_with(package.folder(root)));
        let reader = READERS.iter().find(|(path, _)| file.starts_with(path));
        let package = home.map(|package| package.name.as_str()).or(reader.map(|(_, name)| *name));
        match package {
            Some(package) => {
                found.entry(package.to_owned()).or_insert_with(|| format!("{file} changed"));
            }
            None if Path::new(file).extension().is_some_and(|extension| extension == "md") => {}
            None => return Affected::Everything(file.to_owned()),
        }
    }
    // A changed package affects every package that links it, transitively.
    while add_dependents(packages, &mut found, |kind_is_dev| !kind_is_dev) {}
    // A dev-dependency affects only the tests of the packages that depend on it directly. So do not
    // repeat this step: it would add packages that link these dependents.
    add_dependents(packages, &mut found, |kind_is_dev| kind_is_dev);
    Affected::Packages(found)
}

/// Adds the packages that depend on a package in `found`, by a dependency of the selected kind.
/// Returns true if it added a package.
fn add_dependents(
    packages: &[Package],
    found: &mut BTreeMap<String, String>,
    is_meant: impl Fn(bool) -> bool,
) -> bool {
    let mut new = BTreeMap::new();
    for package in packages.iter().filter(|package| !found.contains_key(&package.name)) {
        let mut meant = package.dependencies.iter().filter(|one| is_meant(one.is_dev()));
        if let Some(dependency) = meant.find(|dependency| found.contains_key(&dependency.name)) {
            new.insert(package.name.clone(), format!("depends on {}", dependency.name));
        }
    }
    let is_more = !new.is_empty();
    found.extend(new);
    is_more
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependency = |(name, kind): &(&str, Option<&str>)| Dependency {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
        };
        Package {
            name: name.to_owned(),
            manifest_path: format!("/w/crates/{name}/Cargo.toml").into(),
            dependencies: dependencies.iter().map(dependency).collect(),
        }
    }

    fn names(files: &[&str]) -> Option<Vec<String>> {
        let packages = [
            package("base", &[]),
            package("pool", &[("base", None)]),
            package("bin", &[("pool", None), ("sim", Some("dev"))]),
            package("sim", &[("base", Some("build"))]),
            package("tests", &[("sim", Some("dev"))]),
            package("above", &[("tests", None)]),
            package("base-tools", &[]),
            package("weir-format", &[]),
        ];
        match affected(&packages, Path::new("/w"), files.iter().copied()) {
            Affected::Everything(_) => None,
            Affected::Packages(found) => Some(found.into_keys().collect()),
        }
    }

    #[test]
    fn change_affects_its_package_and_all_dependents() {
        let all = ["base", "bin", "pool", "sim", "tests"];
        assert_eq!(names(&["crates/base/src/a.rs"]).unwrap(), all);
        assert_eq!(names(&["crates/pool/Cargo.toml"]).unwrap(), ["bin", "pool"]);
        assert_eq!(names(&["crates/base-tools/src/a.rs"]).unwrap(), ["base-tools"]);
        // `sim` is only a dev-dependency. It affects `bin` and `tests`, whose tests link it, but
        // not `above`, which links `tests`.
        assert_eq!(names(&["crates/sim/src/a.rs"]).unwrap(), ["bin", "sim", "tests"]);
    }

    #[test]
    fn files_outside_packages_affect_all_documentation_none() {
        for file in ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "docs/new.json", "Makefile"]
        {
            assert_eq!(names(&["crates/pool/src/a.rs", file]), None, "{file}");
        }
        assert_eq!(names(&["README.md", "docs/security.md"]).unwrap(), Vec::<String>::new());
        assert_eq!(names(&[]).unwrap(), Vec::<String>::new());
        assert_eq!(names(&["docs/format/disk.md"]).unwrap(), ["weir-format"]);
        // A documentation file in a package's folder may be a part of the package.
        assert_eq!(names(&["crates/pool/README.md"]).unwrap(), ["bin", "pool"]);
    }

    #[test]
    fn each_package_has_its_reason() {
        let packages = [package("base", &[]), package("pool", &[("base", None)])];
        let files = ["crates/base/src/a.rs"].into_iter();
        let Affected::Packages(found) = affected(&packages, Path::new("/w"), files) else {
            panic!("a package has changed");
        };
        assert_eq!(found["base"], "crates/base/src/a.rs changed");
        assert_eq!(found["pool"], "depends on base");
    }

    #[test]
    fn unknown_revision_is_refused() {
        assert!(since("no-such-revision").is_err());
        assert!(since("--help").is_err());
    }
}

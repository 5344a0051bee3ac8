//! `cargo xtask licences`: checks the licence, name and source of each dependency.
//!
//! Not here: security advisories and other checks of cargo-deny. `make soak` runs cargo-deny with
//! the same deny.toml.
//!
//! Invariants:
//! - deny.toml has the rules; a key of deny.toml that this check does not know is an error;
//! - a package without an SPDX expression is a finding.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};
use weir_command::command;

/// Keys of deny.toml that this check uses.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Graph {
    targets: Vec<String>,
    all_features: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Licences {
    allow: Vec<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "known, and without effect here")]
    unused_allowed_license: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    /// Names of banned crates.
    #[serde(default)]
    deny: Vec<Ban>,
    #[serde(default)]
    #[expect(dead_code, reason = "no more than a warning")]
    multiple_versions: String,
    wildcards: String,
    allow_wildcard_paths: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ban {
    Name(String),
    Table {
        #[serde(rename = "crate", alias = "name")]
        name: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: String,
    unknown_git: String,
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A dependency that is linked or built on at least one platform.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// Registry or repository of the package; `None` for a package in a local folder.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

/// Runs `cargo xtask licences`.
pub(crate) fn main() -> Result<()> {
    let path = command::root().join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rules = parse(&text)?;
    let packages = packages(&rules.graph)?;
    let findings = judge(&rules, &packages)?;
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("licences: {} findings", findings.len());
    }
    println!("licences: {} packages read, nothing found", packages.len());
    Ok(())
}

/// Parses deny.toml; refuses settings that allow more than this check does.
fn parse(text: &str) -> Result<Rules> {
    let rules: Rules = toml::from_str(text).context("deny.toml")?;
    let Rules { bans, sources, .. } = &rules;
    for (key, value) in [
        ("bans.wildcards", &bans.wildcards),
        ("sources.unknown-registry", &sources.unknown_registry),
        ("sources.unknown-git", &sources.unknown_git),
    ] {
        ensure!(value == "deny", "deny.toml: {key} is {value:?}; this check knows only \"deny\"");
    }
    ensure!(bans.allow_wildcard_paths, "deny.toml: bans.allow-wildcard-paths must be true");
    Ok(rules)
}

/// Returns the packages of the lock file that are used on any platform, without duplicates.
fn packages(graph: &Graph) -> Result<Vec<Package>> {
    let mut packages = BTreeMap::new();
    for target in &graph.targets {
        let mut cargo = command::command("cargo");
        cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", target]);
        if graph.all_features {
            cargo.arg("--all-features");
        }
        let metadata: Metadata = serde_json::from_str(&command::output(&mut cargo)?)?;
        for package in metadata.packages {
            packages.insert((package.name.clone(), package.version.clone()), package);
        }
    }
    Ok(packages.into_values().collect())
}

/// Checks the packages against the rules; returns one line for each finding.
fn judge(rules: &Rules, packages: &[Package]) -> Result<Vec<String>> {
    let allowed: Vec<Licensee> = rules
        .licenses
        .allow
        .iter()
        .map(|name| Licensee::parse(name).with_context(|| format!("deny.toml: licence {name}")))
        .collect::<Result<_>>()?;
    let banned: BTreeSet<&str> = rules
        .bans
        .deny
        .iter()
        .map(|ban| match ban {
            Ban::Name(name) | Ban::Table { name } => name.as_str(),
        })
        .collect();
    let mut findings = Vec::new();
    for package in packages {
        let mut find = |what: String| {
            findings.push(format!("{} {}: {what}", package.name, package.version));
        };
        match &package.license {
            None => find("Cargo.toml names no licence".to_owned()),
            Some(licence) => match is_allowed(licence, &allowed) {
                Ok(true) => {}
                Ok(false) => find(format!("licence {licence} is not allowed by deny.toml")),
                Err(error) => find(format!("licence {licence:?} is no SPDX expression: {error:#}")),
            },
        }
        if banned.contains(package.name.as_str()) {
            find("banned by deny.toml".to_owned());
        }
        if let Some(source) = &package.source {
            let registry = source.strip_prefix("registry+");
            let is_known =
                |registry: &str| rules.sources.allow_registry.iter().any(|one| one == registry);
            if !registry.is_some_and(is_known) {
                find(format!("comes from {source}, which deny.toml does not allow"));
            }
        }
        for dependency in &package.dependencies {
            if dependency.req == "*" && dependency.path.is_none() {
                find(format!("takes any version of {}", dependency.name));
            }
        }
    }
    Ok(findings)
}

/// Returns true if the allowed licences satisfy an expression of crates.io, where `/` means `OR`.
fn is_allowed(expression: &str, allowed: &[Licensee]) -> Result<bool> {
    let expression = Expression::parse_mode(expression, ParseMode::LAX)
        .map_err(|error| anyhow::anyhow!("{}", error.reason))?;
    Ok(expression.evaluate(|asked| allowed.iter().any(|licence| licence.satisfies(asked))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

    fn rules() -> String {
        fs::read_to_string(command::root().join("deny.toml")).unwrap()
    }

    fn package(license: Option<&str>, source: Option<&str>) -> Package {
        Package {
            name: "planted".to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
            dependencies: Vec::new(),
        }
    }

    fn findings(rules: &str, package: Package) -> usize {
        judge(&parse(rules).unwrap(), &[package]).unwrap().len()
    }

    #[test]
    fn expressions_are_evaluated() {
        for (licence, is_fine) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT/Apache-2.0", true),
            ("GPL-2.0/MIT", true),
            ("(MIT OR GPL-3.0-only) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("Apache-2.0 AND MIT OR MPL-2.0", true),
            ("MPL-2.0 AND (MIT OR Apache-2.0)", false),
            ("my own words", false),
        ] {
            let found = findings(&rules(), package(Some(licence), Some(CRATES_IO)));
            assert_eq!(found, usize::from(!is_fine), "{licence}");
        }
        assert_eq!(findings(&rules(), package(None, Some(CRATES_IO))), 1);
    }

    #[test]
    fn sources_bans_and_wildcards_are_found() {
        let mit = |source| package(Some("MIT"), source);
        assert_eq!(findings(&rules(), mit(None)), 0);
        for source in ["git+https://example.org/a", "registry+https://example.org", "a"] {
            assert_eq!(findings(&rules(), mit(Some(source))), 1, "{source}");
        }
        for ban in ["\"planted\"", "{ crate = \"planted\" }"] {
            let banned = rules().replace("[bans]", &format!("[bans]\ndeny = [{ban}]"));
            assert_eq!(findings(&banned, mit(None)), 1, "{ban}");
        }
        let wildcard = |path: Option<&str>| {
            let path = path.map(str::to_owned);
            let dependency = Dependency { name: "any".to_owned(), req: "*".to_owned(), path };
            Package { dependencies: vec![dependency], ..mit(None) }
        };
        assert_eq!(findings(&rules(), wildcard(None)), 1);
        assert_eq!(findings(&rules(), wildcard(Some("/w/any"))), 0);
    }

    #[test]
    fn unknown_rules_are_refused() {
        assert!(parse(&rules().replace("[bans]", "[bans]\nskip = []")).is_err());
        assert!(parse(&rules().replace("wildcards = \"deny\"", "wildcards = \"warn\"")).is_err());
        assert!(parse(&format!("{}\n[advisories]\n", rules())).is_err());
    }
}

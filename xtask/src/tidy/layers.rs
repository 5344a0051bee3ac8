//! Layers of crates: a crate imports only crates in the layers that its own layer may import.
//!
//! Not here: dev-dependencies, which may be in any layer; cycles within a layer, which cargo
//! forbids.
//!
//! Invariant: a crate of the workspace that is in none of the layers' folders is a finding.

use std::path::Path;

use crate::tidy::finding::{Finding, Rule};
use crate::workspace::Package;

/// A layer: its folder, and the folders that its crates may import.
struct Layer {
    folder: &'static str,
    imports: &'static [&'static str],
}

const BASE: &str = "crates/base";
const ENGINE: &str = "crates/engine";
const PROTOCOL: &str = "crates/protocol";
const CONTROL: &str = "crates/control";
const TOOLS: &str = "crates/tools";

/// All layers, the lowest first. Engine and protocol do not import each other; control imports the
/// engine and the protocols.
const LAYERS: [Layer; 7] = [
    Layer { folder: BASE, imports: &[BASE] },
    Layer { folder: ENGINE, imports: &[BASE, ENGINE] },
    Layer { folder: PROTOCOL, imports: &[BASE, PROTOCOL] },
    Layer { folder: CONTROL, imports: &[BASE, ENGINE, PROTOCOL, CONTROL] },
    Layer { folder: TOOLS, imports: &[BASE, ENGINE, PROTOCOL, CONTROL, TOOLS, "bin"] },
    Layer { folder: "bin", imports: &[BASE, ENGINE, PROTOCOL, CONTROL, "bin"] },
    Layer { folder: "xtask", imports: &[BASE] },
];

/// Tools that a crate of another layer may import: bin/weir uses two tools as libraries, and xtask
/// starts programs with the third.
const LENT_TOOLS: [(&str, &str); 3] =
    [("bin", "weir-bench"), ("bin", "weir-initiator"), ("xtask", "weir-command")];

/// Returns the folders of the layers, the lowest first.
pub(super) fn folders() -> impl DoubleEndedIterator<Item = &'static str> {
    LAYERS.iter().map(|layer| layer.folder)
}

/// Returns the findings of the workspace in `root`.
pub(super) fn check(root: &Path, packages: &[Package]) -> Vec<Finding> {
    let layer_of = |name: &str| {
        let package = packages.iter().find(|package| package.name == name)?;
        let folder = package.folder(root);
        Some(LAYERS.iter().find(|layer| folder.starts_with(layer.folder)))
    };
    let mut findings = Vec::new();
    let mut find = |name: &str, what: String| {
        let path = name.to_owned();
        findings.push(Finding { rule: Rule::Layer, path, line: 1, count: 1, what });
    };
    for package in packages {
        let Some(Some(own)) = layer_of(&package.name) else {
            find(&package.name, "in no folder of a layer (xtask/src/tidy/layers.rs)".to_owned());
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| !dependency.is_dev()) {
            // Crates from outside the workspace are in no layer.
            let Some(Some(other)) = layer_of(&dependency.name) else { continue };
            let is_lent = LENT_TOOLS.contains(&(own.folder, dependency.name.as_str()));
            if !own.imports.contains(&other.folder) && !is_lent {
                let (here, name, there) = (own.folder, &dependency.name, other.folder);
                find(&package.name, format!("{here} may not import {name} of {there}"));
            }
        }
    }
    findings
}

//! The layout grammar: `a b`, `mirror a b mirror c d`, `raidz2 a b c d`, `log mirror a b`, `spare a
//! b`; and the identity of disks.
//!
//! Not here: rules for all clients ([`weir_api::types::PoolCreate`] checks those).
//!
//! Invariants:
//! - all returned paths are absolute, because the server has another working directory;
//! - no disk occurs twice, even under different paths.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use weir_api::types::{VdevKind, VdevRole, VdevSpec};
use weir_api::{ApiError, Error};
use weir_base::ErrorKind;

use crate::cli::base::hints;

/// True for a word of zpool's grammar that has no vdev kind in this version of Weir.
fn is_unsupported(word: &str) -> bool {
    word.starts_with("raidz")
        || word.starts_with("draid")
        || matches!(word, "cache" | "dedup" | "special")
}

/// Returns the kind of the vdev that starts with this word; `raidz` means `raidz1`, as in zpool.
fn kind_of(word: &str) -> Option<VdevKind> {
    match word {
        "mirror" => Some(VdevKind::Mirror),
        "raidz" | "raidz1" => Some(VdevKind::Raidz1),
        "raidz2" => Some(VdevKind::Raidz2),
        "raidz3" => Some(VdevKind::Raidz3),
        _ => None,
    }
}

/// Returns the role that a word gives to the vdevs after it.
fn role_of(word: &str) -> Option<VdevRole> {
    match word {
        "log" => Some(VdevRole::Log),
        "spare" => Some(VdevRole::Spare),
        _ => None,
    }
}

/// Parses the words after the pool's name.
pub(crate) fn parse(words: &[String]) -> Result<Vec<VdevSpec>, ApiError> {
    let mut vdevs: Vec<VdevSpec> = Vec::new();
    let (mut in_vdev, mut role) = (false, VdevRole::Data);
    let mut seen = HashMap::new();
    for word in words {
        if let Some(kind) = kind_of(word) {
            vdevs.push(VdevSpec { kind, role, disks: Vec::new() });
            in_vdev = true;
            continue;
        }
        if let Some(next) = role_of(word) {
            (in_vdev, role) = (false, next);
            continue;
        }
        if matches!(word.as_str(), "stripe" | "striped") && !Path::new(word).exists() {
            let message = format!("{word} is not a keyword: disks named alone are striped");
            let action = hints::line_without(word);
            return Err(ApiError::new(ErrorKind::Invalid, message).with_action(action));
        }
        if is_unsupported(word) || word == "disk" {
            return Err(no_such_vdev(word));
        }
        if let Some(kind) = meant(word) {
            let message = format!("no disk is called {word}");
            return Err(ApiError::new(ErrorKind::NotFound, message)
                .with_action(format!("write {kind}, or ./{word} for a file of that name")));
        }
        let path = absolute(word)?;
        if let Some(first) = seen.insert(Identity::of(Path::new(&path)), word.clone()) {
            let first = (first != *word).then_some(first);
            return Err(Error::DiskTwice { path: word.clone(), first }.into());
        }
        match vdevs.last_mut() {
            Some(vdev) if in_vdev => vdev.disks.push(path),
            _ => vdevs.push(VdevSpec { kind: VdevKind::Disk, role, disks: vec![path] }),
        }
    }
    Ok(vdevs)
}

/// Returns the word of the grammar that a word probably misspells; `None` for a path or an existing
/// file.
fn meant(word: &str) -> Option<&'static str> {
    const WORDS: [&str; 6] = ["mirror", "raidz1", "raidz2", "raidz3", "log", "spare"];
    let is_bare = !word.contains(['/', '.']) && !Path::new(word).exists();
    WORDS.into_iter().find(|known| is_bare && strsim::osa_distance(word, known) == 1)
}

fn no_such_vdev(word: &str) -> ApiError {
    let message = if word == "disk" {
        "disk is not a keyword here: a single disk is named by its path alone".to_owned()
    } else {
        format!(
            "this version has no {word} vdevs; it has disks, mirror, raidz1 to raidz3, log, spare"
        )
    };
    let action = format!("use one of these, or write ./{word} for a file of that name");
    ApiError::new(ErrorKind::Invalid, message).with_action(action)
}

/// Makes a path absolute without resolving links, so that names below `/dev/disk/by-id` stay.
pub(crate) fn absolute(path: &str) -> Result<String, ApiError> {
    let bad = |why: String| {
        ApiError::new(ErrorKind::Invalid, format!("cannot use the path {path:?}: {why}"))
    };
    let absolute = std::path::absolute(path).map_err(|error| bad(error.to_string()))?;
    absolute.into_os_string().into_string().map_err(|_| bad("it is not valid UTF-8".to_owned()))
}

/// Identity of the disk at a path. Disks that do not exist on this machine (the server may be
/// remote) are compared by their paths.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    Device { number: u64 },
    File { dev: u64, ino: u64 },
    Unseen(PathBuf),
}

impl Identity {
    fn of(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(meta) if meta.file_type().is_block_device() => Self::Device { number: meta.rdev() },
            Ok(meta) => Self::File { dev: meta.dev(), ino: meta.ino() },
            Err(_) => Self::Unseen(path.components().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn printed(text: &str) -> String {
        let vdevs = parse(&words(text)).expect(text);
        let role = |v: &VdevSpec| match v.role {
            VdevRole::Data => String::new(),
            other => format!("{} ", other.name()),
        };
        let one = |v: &VdevSpec| format!("{}{}({})", role(v), v.kind.name(), v.disks.join(" "));
        vdevs.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn zpool_layouts_are_parsed() {
        assert_eq!(printed("/x"), "disk(/x)");
        assert_eq!(printed("/x /y"), "disk(/x) disk(/y)");
        assert_eq!(printed("mirror /x /y mirror /z /w"), "mirror(/x /y) mirror(/z /w)");
        assert_eq!(printed("/v mirror /x /y /z"), "disk(/v) mirror(/x /y /z)");
        assert_eq!(printed("raidz2 /x /y /z"), "raidz2(/x /y /z)");
        assert_eq!(printed("raidz /x /y raidz3 /z"), "raidz1(/x /y) raidz3(/z)");
        assert_eq!(
            printed("mirror /x /y log mirror /l /m spare /s /t"),
            "mirror(/x /y) log mirror(/l /m) spare disk(/s) spare disk(/t)"
        );
        assert_eq!(printed("/x log /l"), "disk(/x) log disk(/l)");
        // The request itself checks the number of disks of each vdev.
        assert_eq!(printed("mirror mirror /x"), "mirror() mirror(/x)");
    }

    #[test]
    fn relative_paths_become_absolute() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(printed("x"), format!("disk({})", here.join("x").display()));
    }

    #[test]
    fn reserved_words_are_not_used_as_files() {
        for word in ["raidz4", "draid2:4d", "special", "cache", "disk"] {
            let error = parse(&words(&format!("{word} /x /y"))).expect_err(word);
            assert!(error.message.contains(word) && error.action.contains(&format!("./{word}")));
        }
        assert!(parse(&words("./raidz1")).is_ok_and(|vdevs| vdevs[0].kind == VdevKind::Disk));
    }

    #[test]
    fn disk_named_twice_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::write(at("a"), "").unwrap();
        fs::hard_link(at("a"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("a"), at("soft")).unwrap();
        fs::create_dir(at("d")).unwrap();
        for other in ["a", "hard", "soft", "./a", "d/../a"] {
            let error = parse(&["mirror".to_owned(), at("a"), at(other)]).expect_err(other);
            assert!(error.message.contains("twice"), "{error}");
        }
        let error = parse(&words("/absent/x /absent/./x")).expect_err("same path");
        assert!(error.message.contains("/absent/x"), "{error}");
    }
}

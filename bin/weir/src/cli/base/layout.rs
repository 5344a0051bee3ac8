//! The grammar of layouts: `a b`, `mirror a b mirror c d`, `raidz2 a b c d`, `log mirror a b`,
//! `spare a b`; and the check whether two paths are one disk.
//!
//! Not here: rules that apply to all clients ([`weir_api::types::PoolCreate`] checks them).
//!
//! Invariants:
//! - all returned paths are absolute, because the server has a different working directory;
//! - no disk is returned twice, even if the user typed two different paths to it.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use weir_api::types::{VdevKind, VdevRole, VdevSpec};
use weir_api::{ApiError, Error};
use weir_base::{ErrorKind, names, size};

use crate::cli::base::typed;

/// Layouts of md and of RAID controllers, each with the layout of Weir.
const RAID: [(&str, &str); 9] = [
    ("raid1", "mirror"),
    ("raid-1", "mirror"),
    ("mirrored", "mirror"),
    ("raid5", "raidz1"),
    ("raid-5", "raidz1"),
    ("raid6", "raidz2"),
    ("raid-6", "raidz2"),
    ("raid7", "raidz3"),
    ("raid-z", "raidz1"),
];

/// Returns the error for a word that is a layout of another tool; `None` if a file has this name.
fn of_raid(word: &str) -> Option<ApiError> {
    let invalid = |message: String| ApiError::new(ErrorKind::Invalid, message);
    let lower = word.to_ascii_lowercase();
    if Path::new(word).exists() {
        return None;
    }
    if matches!(lower.as_str(), "raid0" | "raid-0" | "stripe" | "striped") {
        let message = format!("{word} is not a keyword: disks named alone are striped");
        return Some(invalid(message).with_action(typed::line_without(word)));
    }
    if matches!(lower.as_str(), "raid10" | "raid-10" | "raid1+0") {
        let line = typed::rewritten(|words| pairs(words, word));
        let message = format!("{word} is a mirror for each pair of disks here");
        return Some(invalid(message).with_action(line));
    }
    let (_, layout) = RAID.iter().find(|(raid, _)| *raid == lower)?;
    let error = invalid(format!("{word} is called {layout} here"));
    Some(typed::with_line(error, typed::line_with(word, layout)))
}

/// Replaces the layout `word` and the disks after it by a `mirror` for each two of these disks.
fn pairs(mut words: Vec<String>, word: &str) -> Vec<String> {
    let at = words.iter().position(|known| known == word).unwrap_or(words.len());
    let is_end = |word: &String| word.starts_with('-') || is_keyword(word);
    let after = words.iter().skip(at + 1).position(is_end);
    let end = after.map_or(words.len(), |after| at + 1 + after);
    let disks: Vec<String> = words.drain(at.min(end)..end).skip(1).collect();
    let mut mirrors = Vec::new();
    for pair in disks.chunks(2) {
        mirrors.push("mirror".to_owned());
        mirrors.extend(pair.iter().cloned());
        if pair.len() == 1 {
            mirrors.push("DISK".to_owned());
        }
    }
    words.splice(at..at, mirrors);
    words
}

/// Returns the error for a size that the user typed in the place of a disk.
fn of_size(word: &str, all: &[String]) -> Option<ApiError> {
    if word.contains('/') || Path::new(word).exists() || size::parse(word).is_err() {
        return None;
    }
    let message = format!("{word} is a size, and a pool takes no size: it uses its whole disks");
    let is_alone = all.iter().all(|other| other == word || is_keyword(other));
    let line = if is_alone {
        typed::line_with(word, "DISK").unwrap_or_default()
    } else {
        typed::line_without(word)
    };
    Some(ApiError::new(ErrorKind::Invalid, message).with_action(line))
}

/// True for a keyword of the layout grammar.
fn is_keyword(word: &str) -> bool {
    kind_of(word).is_some() || role_of(word).is_some()
}

/// Checks that the user typed the name of the pool before its disks. `others` are the words after
/// `name`. The error has the typed command with the name of the pool moved to the front.
pub(crate) fn check_pool_first(name: &str, others: &[&str]) -> Result<(), ApiError> {
    let Err(error) = names::pool(name) else { return Ok(()) };
    let is_pool = |word: &&&str| {
        names::pool(word).is_ok() && !is_keyword(word) && !Path::new(**word).exists()
    };
    let is_disk = name.contains('/') || Path::new(name).exists();
    if !is_disk && !is_keyword(name) {
        return Err(Error::from(error).into());
    }
    // After a keyword such as `mirror`, all words may be disks, so only the first word can be the
    // pool.
    let pool = if is_disk { others.iter().rfind(is_pool) } else { others.first().filter(is_pool) };
    let line = match pool {
        Some(pool) => typed::moved(pool, name),
        None => Some(typed::rewritten(|mut words| {
            let at = words.iter().position(|word| word == name).unwrap_or(words.len());
            words.insert(at, "NAME".to_owned());
            words
        })),
    };
    let what = if is_disk { "a disk" } else { "a keyword of the pool layout" };
    let message = format!("{name:?} is {what}: the name of the pool comes first");
    Err(ApiError::new(ErrorKind::Invalid, message).with_action(line.unwrap_or_default()))
}

/// True for a vdev kind of zpool that this version of Weir does not have.
fn is_unsupported(word: &str) -> bool {
    word.starts_with("raidz")
        || word.starts_with("draid")
        || matches!(word, "cache" | "dedup" | "special")
}

/// Returns the kind of vdev that starts with this word; `raidz` is the same as `raidz1`, as for
/// zpool.
fn kind_of(word: &str) -> Option<VdevKind> {
    match word {
        "mirror" => Some(VdevKind::Mirror),
        "raidz" | "raidz1" => Some(VdevKind::Raidz1),
        "raidz2" => Some(VdevKind::Raidz2),
        "raidz3" => Some(VdevKind::Raidz3),
        _ => None,
    }
}

/// Returns the role that this word gives to the vdevs behind it.
fn role_of(word: &str) -> Option<VdevRole> {
    match word {
        "log" => Some(VdevRole::Log),
        "spare" => Some(VdevRole::Spare),
        _ => None,
    }
}

/// Parses the words behind the name of the pool.
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
        if let Some(error) = of_raid(word).or_else(|| of_size(word, words)) {
            return Err(error);
        }
        if is_unsupported(word) || word == "disk" {
            return Err(no_such_vdev(word));
        }
        if let Some(kind) = meant(word) {
            let message = format!("no disk is called {word}");
            let line = typed::line_with(word, kind);
            return Err(ApiError::new(ErrorKind::NotFound, message)
                .with_action(line.unwrap_or_else(|| format!("write {kind}"))));
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

/// Returns the keyword of the grammar that the user probably misspelled; `None` for a path or the
/// name of an existing file.
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

/// Makes a path absolute without following links: a name below `/dev/disk/by-id` is kept.
pub(crate) fn absolute(path: &str) -> Result<String, ApiError> {
    let bad = |why: String| {
        ApiError::new(ErrorKind::Invalid, format!("cannot use the path {path:?}: {why}"))
    };
    let absolute = std::path::absolute(path).map_err(|error| bad(error.to_string()))?;
    absolute.into_os_string().into_string().map_err(|_| bad("it is not valid UTF-8".to_owned()))
}

/// Identity of the disk at a path. The path itself is the identity if this machine has no such
/// disk: the server may be on another machine.
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
        // The parser accepts vdevs with too few disks: the check of the request refuses them.
        assert_eq!(printed("mirror mirror /x"), "mirror() mirror(/x)");
    }

    #[test]
    fn words_of_raid_are_refused_with_the_layout() {
        for (word, part) in [
            ("raid1", "raid1 is called mirror here"),
            ("raid5", "raid5 is called raidz1 here"),
            ("RAID6", "RAID6 is called raidz2 here"),
            ("raid10", "a mirror for each pair"),
            ("raid0", "disks named alone are striped"),
            ("5GiB", "5GiB is a size, and a pool takes no size"),
        ] {
            let error = parse(&words(&format!("{word} /x /y"))).expect_err(word);
            assert!(error.message.contains(part), "{error}");
        }
        let line = |text: &str| pairs(words(text), "raid10").join(" ");
        assert_eq!(line("pool create t raid10 a b c d"), { "pool create t mirror a b mirror c d" });
        assert_eq!(line("raid10 a b c spare d"), "mirror a b mirror c DISK spare d");
    }

    #[test]
    fn pool_comes_before_its_disks() {
        for (name, others, is_ok) in [
            ("tank", &["/a"][..], true),
            ("mirror", &["tank", "/a", "/b"], false),
            ("/a", &["tank"], false),
            ("/a", &["/b"], false),
        ] {
            assert_eq!(check_pool_first(name, others).is_ok(), is_ok, "{name}");
        }
        let error = check_pool_first("/a", &["tank"]).expect_err("the disk is first");
        assert_eq!(error.message, "\"/a\" is a disk: the name of the pool comes first");
        let error = check_pool_first("1", &[]).expect_err("a bad name");
        assert!(error.message.starts_with("bad pool name"), "{error}");
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

//! Invalid command lines whose meaning is obvious. Examples: the words and the word order of
//! another tool, or a size or a snapshot's name typed as two words.
//!
//! Not here: single words that have another meaning in other tools (`hints`), errors of the server.
//!
//! Invariants:
//! - these functions see only command lines that the grammar refuses;
//! - an explanation has a message and the next command; that command keeps the user's words.

use weir_base::{names, size};

use crate::cli::base::typed::shown;

/// Explanation of an invalid command line: a message, and the command to type next.
pub(crate) type Explained = (String, String);

/// Options of other tools. Each has the words with which the command starts, the foreign option,
/// the option of Weir with its meaning, and a placeholder if that option needs a value.
const OPTIONS: [(&[&str], &str, &[&str], &str); 9] = [
    (&["export", "create"], "--ro", &["--read-only"], ""),
    (&["export", "create"], "--readonly", &["--read-only"], ""),
    (&["volume", "create"], "--thick", &["-o", "refreservation=auto"], ""),
    (&["target", "allow"], "--user", &["--chap-user"], ""),
    (&["target", "allow"], "--username", &["--chap-user"], ""),
    (&["target", "allow"], "--password", &["--chap-secret-file", "FILE"], SECRET),
    (&["target", "allow"], "--secret", &["--chap-secret-file", "FILE"], SECRET),
    (&["target", "allow"], "--chap-secret", &["--chap-secret-file", "FILE"], SECRET),
    (&["target", "allow"], "--chap-password", &["--chap-secret-file", "FILE"], SECRET),
];

const SECRET: &str = "a secret is read from a file, because other users can see the command line";

/// Explains a command line that the grammar refuses. `wrong` is the argument that the grammar
/// refuses.
pub(crate) fn explained(words: &[String], wrong: Option<&str>) -> Option<Explained> {
    let texts: Vec<&str> = words.iter().map(String::as_str).collect();
    of_tools(&texts).or_else(|| of_commands(&texts, wrong)).or_else(|| of_options(&texts))
}

fn line(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    shown(&[], &words)
}

#[expect(clippy::unnecessary_wraps, reason = "the arms of a match return it")]
fn said(message: &str, words: &[&str]) -> Option<Explained> {
    Some((message.to_owned(), line(words)))
}

fn joined<'a>(start: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [start, rest].concat()
}

/// Explains a command of another tool.
fn of_tools(words: &[&str]) -> Option<Explained> {
    let (first, rest) = words.split_first()?;
    match *first {
        "targetcli" | "zpool" if !rest.is_empty() => of_tools(rest),
        "rbd" => rbd(rest),
        "ceph" => {
            let message = "weir has no command \"ceph\"";
            match rest.first().copied() {
                Some("osd") => said(message, &["pool", "status"]),
                Some("df") => said(message, &["list"]),
                _ => said(message, &["status"]),
            }
        }
        "fio" => fio(rest),
        "filesystems" | "subvolume" => {
            said("filesystems have the command \"filesystem\"", &joined(&["filesystem"], rest))
        }
        "dataset" | "datasets" => {
            let message = "a dataset is a volume or a filesystem";
            match rest {
                ["create", name] => said(message, &["volume", "create", name, "10GiB"]),
                ["destroy" | "delete" | "rm" | "remove", name, ..] => {
                    said(message, &["volume", "destroy", name])
                }
                ["list" | "ls", ..] | [] => said(message, &["volume", "list"]),
                _ => said(message, &["volume", "--help"]),
            }
        }
        "disk" | "disks" | "device" | "devices" => Some((
            "disks have no commands of their own".to_owned(),
            "weir pool status shows the disks of the pools, lsblk the others".to_owned(),
        )),
        "trim" => no_trim(rest.iter().find(|word| !word.starts_with('-')).copied()),
        "acl" => acl(rest),
        "lvcreate" => lvcreate(rest),
        "lvextend" | "lvresize" => lvextend(rest),
        first if first.trim_start_matches('/').starts_with("backstores") => {
            let message = "a LUN needs no backstore";
            match rest.iter().rev().find(|word| names::dataset(word).is_ok()) {
                Some(volume) => said(message, &["lun", "add", "TARGET", volume]),
                None => said(message, &["lun", "add", "TARGET", "VOLUME"]),
            }
        }
        first if first.starts_with("/iscsi") => {
            let rest = joined(&["iscsi"], rest);
            of_tools(&rest)
        }
        "iscsi" => match rest {
            ["create", name] => {
                said("iSCSI volumes are LUNs of targets", &["target", "create", name])
            }
            ["list" | "ls" | "show", ..] | [] => {
                said("iSCSI volumes are LUNs of targets", &["target", "list"])
            }
            _ => None,
        },
        _ => None,
    }
}

/// Explains a job of fio, which the user typed after `weir`.
fn fio(words: &[&str]) -> Option<Explained> {
    let target = words.iter().find_map(|word| word.strip_prefix("--filename="));
    let target = target.unwrap_or("FILE");
    let job = words
        .iter()
        .find(|word| word.rsplit_once('.').is_some_and(|(_, end)| matches!(end, "fio" | "job")));
    let run = ["bench", "run"];
    let message = "fio jobs run with weir bench";
    match job {
        Some(job) => said(message, &joined(&run, &["-p", job, "--target", target])),
        None => Some((
            message.to_owned(),
            format!(
                "{}; with a job file: {}",
                line(&joined(&run, &["--target", target])),
                line(&joined(&run, &["-p", "JOB.fio", "--target", target]))
            ),
        )),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the arms of a match return it")]
fn no_trim(pool: Option<&str>) -> Option<Explained> {
    let message = "a pool is not trimmed: clients free space, and the pool reuses it";
    let status = line(&["pool", "status", "-v", pool.unwrap_or("POOL")]);
    Some((message.to_owned(), format!("at the client: fstrim -av; to see the space: {status}")))
}

/// Explains a command of rbd, for Ceph's block devices. In rbd, a size without a unit is in MiB.
fn rbd(words: &[&str]) -> Option<Explained> {
    let message = "an RBD image is a volume here";
    let (verb, rest) = words.split_first().unwrap_or((&"ls", &[]));
    let (mut name, mut size, mut at) = (None, None, 0);
    while let Some(word) = rest.get(at) {
        if let Some(text) = word.strip_prefix("--size=") {
            size = Some(text);
        } else if matches!(*word, "--size" | "-s") {
            at += 1;
            size = rest.get(at).copied();
        } else if !word.starts_with('-') {
            name = name.or(Some(*word));
        }
        at += 1;
    }
    let unit = size.map(|size| {
        let is_bare = size::has_no_unit(size);
        if is_bare { format!("{size}MiB") } else { size.to_owned() }
    });
    let size = unit.as_deref().unwrap_or("10GiB");
    match (*verb, name) {
        ("create", name) => said(message, &["volume", "create", name.unwrap_or("NAME"), size]),
        ("resize", name) => said(message, &["volume", "resize", name.unwrap_or("NAME"), size]),
        ("ls" | "list", None) => said(message, &["volume", "list"]),
        ("ls" | "list", Some(pool)) => said(message, &["volume", "list", pool]),
        ("info", Some(name)) => said(message, &["volume", "show", name]),
        ("rm" | "remove", Some(name)) => said(message, &["volume", "destroy", name]),
        ("map", Some(name)) => said(message, &["export", "create", "nbd", name]),
        ("unmap", Some(name)) => said(message, &["export", "delete", name]),
        ("snap", Some("create")) => {
            let name = rest.get(1).copied().unwrap_or("VOLUME@NAME");
            said(message, &["snapshot", "create", name])
        }
        _ => said(message, &["volume", "--help"]),
    }
}

/// Explains `acl add TARGET INITIATOR`, a command of other iSCSI targets.
fn acl(words: &[&str]) -> Option<Explained> {
    let message = "the allow list of a target is its ACL";
    let (verb, rest) = words.split_first()?;
    let missing: &[&str] = match rest {
        [] => &["TARGET", "INITIATOR"],
        [_] => &["INITIATOR"],
        _ => &[],
    };
    match *verb {
        "add" | "create" | "set" | "allow" => {
            said(message, &joined(&["target", "allow"], &joined(rest, missing)))
        }
        "del" | "delete" | "rm" | "remove" | "deny" => {
            said(message, &joined(&["target", "deny"], &joined(rest, missing)))
        }
        "list" | "ls" | "show" => match rest.first() {
            Some(target) => said(message, &["target", "show", target]),
            None => said(message, &["target", "list"]),
        },
        _ => None,
    }
}

/// Returns the values of the LVM options for a size and a name, the other words, and whether `-s`
/// is set.
fn lvm<'a>(words: &[&'a str]) -> (Option<&'a str>, Option<&'a str>, Vec<&'a str>, bool) {
    let (mut size, mut name, mut rest, mut is_snapshot) = (None, None, Vec::new(), false);
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let option = match *word {
            "-L" | "--size" | "-V" | "--virtualsize" => Some(&mut size),
            "-n" | "--name" => Some(&mut name),
            _ => None,
        };
        if let Some(option) = option {
            at += 1;
            *option = words.get(at).copied();
        } else if matches!(*word, "-s" | "--snapshot") {
            is_snapshot = true;
        } else if let Some(joined) = word.strip_prefix("-L").filter(|text| !text.is_empty()) {
            size = Some(joined);
        } else if !word.starts_with('-') {
            rest.push(*word);
        }
        at += 1;
    }
    (size, name, rest, is_snapshot)
}

/// Explains `lvcreate -L SIZE -n NAME GROUP` and `lvcreate -s -n NAME GROUP/VOLUME`.
fn lvcreate(words: &[&str]) -> Option<Explained> {
    let (size, name, rest, is_snapshot) = lvm(words);
    let group = rest.first().map(|group| group.trim_start_matches("/dev/"));
    if let (true, Some(name), Some(volume)) = (is_snapshot, name, group) {
        let snapshot = format!("{volume}@{name}");
        return said("a snapshot belongs to its volume", &["snapshot", "create", &snapshot]);
    }
    if is_snapshot || (size.is_none() && name.is_none()) {
        return None;
    }
    let volume = match (group, name) {
        (Some(group), Some(name)) => format!("{group}/{name}"),
        (Some(group), None) => format!("{group}/NAME"),
        (None, Some(name)) => format!("POOL/{name}"),
        (None, None) => "POOL/NAME".to_owned(),
    };
    let size = size.unwrap_or("SIZE");
    said("a logical volume is a volume of a pool", &["volume", "create", &volume, size])
}

/// Explains `lvextend -L +SIZE GROUP/VOLUME`.
fn lvextend(words: &[&str]) -> Option<Explained> {
    let (size, _, rest, _) = lvm(words);
    let volume = rest.first()?.trim_start_matches("/dev/");
    said("a logical volume is a volume of a pool", &["volume", "resize", volume, size?])
}

/// Explains a command of Weir that has too many words.
fn of_commands(words: &[&str], wrong: Option<&str>) -> Option<Explained> {
    match *words {
        ["pool", "trim", ref rest @ ..] => {
            return no_trim(rest.iter().find(|word| !word.starts_with('-')).copied());
        }
        ["pool", "labelclear", ref rest @ ..] => {
            let disk = rest.iter().rfind(|word| !word.starts_with('-')).unwrap_or(&"DISK");
            return Some((
                "a disk of an old pool is not cleared: a new pool can use it".to_owned(),
                format!("{}, with --force if it has an old pool", {
                    line(&["pool", "create", "NAME", disk])
                }),
            ));
        }
        ["pool", "list", "-v", ref rest @ ..] => {
            return said("pool status shows the disks", &joined(&["pool", "status"], rest));
        }
        ["snapshot", "diff", ref rest @ ..] => {
            let volume = rest.first().and_then(|name| name.split('@').next()).unwrap_or("VOLUME");
            return said(
                "the data of snapshots is not compared; this is the space written since the last",
                &["get", "written", volume],
            );
        }
        ["export", "delete", "nbd", name, ref rest @ ..] => {
            let command = joined(&["export", "delete", name], rest);
            return said("an export is deleted by its name", &command);
        }
        ["export" | "share", "nbd", ref rest @ ..] if !rest.is_empty() => {
            let command = joined(&["export", "create", "nbd"], rest);
            return said("an export is created", &command);
        }
        ["send", name, older, ref rest @ ..]
            if name.contains('@') && names::snapshot(name).is_ok() && wrong == Some(older) =>
        {
            return sent(name, older, rest);
        }
        ["snapshot", verb @ ("rollback" | "hold" | "release" | "clone" | "rename"), ..] => {
            if let Some(found) = own_name(words, verb, wrong) {
                return Some(found);
            }
        }
        _ => {}
    }
    let wrong = wrong?;
    split_size(words, wrong).or_else(|| negative(words, wrong))
}

/// Explains `send tank/vm1@monday @tue`: in Weir the older snapshot is given with an option.
fn sent(name: &str, other: &str, rest: &[&str]) -> Option<Explained> {
    let volume = name.split('@').next()?;
    let newer = if other.starts_with('@') { format!("{volume}{other}") } else { other.to_owned() };
    names::snapshot(&newer).ok()?;
    let command = line(&joined(&["send", "-i", name, &newer], rest));
    let out = if rest.contains(&"-n") { "" } else { " > FILE" };
    Some(("the older snapshot is given with -i".to_owned(), format!("{command}{out}")))
}

/// Explains `snapshot rollback tank/vm1 monday`: in Weir the name is one word.
fn own_name(words: &[&str], verb: &str, wrong: Option<&str>) -> Option<Explained> {
    let own = wrong.filter(|own| !own.contains(['/', '@']) && !own.starts_with('-'))?;
    let at = words.iter().position(|word| *word == own).filter(|at| *at > 2)?;
    let name = format!("{}@{own}", words[at - 1]);
    names::snapshot(&name).ok()?;
    let command = [&words[..at - 1], &[name.as_str()], &words[at + 1..]].concat();
    let message = format!("snapshot {verb} takes the full name of a snapshot");
    said(&message, &command)
}

/// Explains `volume create tank/v 10 GiB`: in Weir the size is one word.
fn split_size(words: &[&str], unit: &str) -> Option<Explained> {
    let at = words.iter().position(|word| *word == unit).filter(|at| *at > 1)?;
    let joined = format!("{}{unit}", words[at - 1]);
    let is_size = size::has_no_unit(words[at - 1].trim_start_matches('+'));
    size::parse(joined.trim_start_matches('+')).ok().filter(|_| is_size)?;
    let command = [&words[..at - 1], &[joined.as_str()], &words[at + 1..]].concat();
    said("write number and unit together", &command)
}

/// Explains a negative size, which the grammar reads as an option. Never suggests a size for an
/// existing volume: the volume could shrink to it.
fn negative(words: &[&str], wrong: &str) -> Option<Explained> {
    if let ["volume", "resize", ..] = words {
        return None;
    }
    let digits = wrong.strip_prefix('-').filter(|text| text.starts_with(char::is_numeric))?;
    let at = words.iter().position(|word| word.starts_with(wrong) && word[1..].starts_with(digits));
    let at = at?;
    let text = words[at];
    let error = size::parse(text).err()?;
    let meant = error.meant()?;
    let command = [&words[..at], &[meant], &words[at + 1..]].concat();
    said(&error.to_string(), &command)
}

/// Explains options of other tools. If the value of an option is a secret, the suggested command
/// has an option for a file with the secret instead.
fn of_options(words: &[&str]) -> Option<Explained> {
    let known = |word: &str| {
        let name = word.split('=').next().unwrap_or_default();
        OPTIONS.iter().find(|(start, option, ..)| words.starts_with(start) && *option == name)
    };
    let first = words.iter().find_map(|word| known(word))?;
    let (mut command, mut at) = (Vec::new(), 0);
    let mut message = first.3;
    while let Some(word) = words.get(at) {
        match known(word) {
            Some((_, _, right, why)) => {
                command.extend(right.iter().map(|word| (*word).to_owned()));
                let value = word.split_once('=').map(|(_, value)| value.to_owned());
                if right.contains(&"FILE") {
                    // Leave out the secret itself.
                    at += usize::from(value.is_none());
                } else {
                    command.extend(value);
                }
                message = if message.is_empty() { why } else { message };
            }
            None => command.push((*word).to_owned()),
        }
        at += 1;
    }
    let message = if message.is_empty() {
        format!("there is no option {}; the option is {}", first.1, first.2[0])
    } else {
        message.to_owned()
    };
    Some((message, shown(&[], &command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invalid lines, each with the argument that the grammar refuses, a part of the message, and
    /// the start of the next command.
    const EXPLAINED: &[(&str, Option<&str>, &str, &str)] = &[
        ("rbd create --size 1024 tank/vm9", None, "an RBD image is a volume here", {
            "weir volume create tank/vm9 1024MiB"
        }),
        ("rbd create tank/vm9 --size 2G", None, "an RBD image", {
            "weir volume create tank/vm9 2G"
        }),
        ("rbd rm tank/vm9", None, "an RBD image", "weir volume destroy tank/vm9"),
        ("rbd snap create tank/vm9@a", None, "", "weir snapshot create tank/vm9@a"),
        ("ceph -s", None, "no command \"ceph\"", "weir status"),
        ("fio --rw=randread --filename=/mnt/f", None, "fio jobs run with weir bench", {
            "weir bench run --target /mnt/f; with a job file: weir bench run -p JOB.fio \
                 --target /mnt/f"
        }),
        ("fio job.fio", None, "fio jobs", "weir bench run -p job.fio --target FILE"),
        ("dataset create tank/data", None, "a dataset is a volume or a filesystem", {
            "weir volume create tank/data 10GiB"
        }),
        ("subvolume create tank/home", None, "filesystems have", {
            "weir filesystem create tank/home"
        }),
        ("filesystems list", None, "filesystems have", "weir filesystem list"),
        ("backstores/block create vm2 tank/vm2", None, "a LUN needs no backstore", {
            "weir lun add TARGET tank/vm2"
        }),
        ("targetcli /backstores/block create vm2 tank/vm2", None, "a LUN needs no", {
            "weir lun add TARGET tank/vm2"
        }),
        ("iscsi create iqn.2003-01.org.x:t1", None, "LUNs of targets", {
            "weir target create iqn.2003-01.org.x:t1"
        }),
        ("acl add vms iqn.1993-08.org.debian:01:x", None, "the allow list", {
            "weir target allow vms iqn.1993-08.org.debian:01:x"
        }),
        ("acl rm vms iqn.1993-08.org.debian:01:x", None, "the allow list", {
            "weir target deny vms iqn.1993-08.org.debian:01:x"
        }),
        ("acl add vms", None, "", "weir target allow vms INITIATOR"),
        ("lvcreate -L 1G -n data tank", None, "a logical volume", {
            "weir volume create tank/data 1G"
        }),
        ("lvcreate -s -n monday /dev/tank/data", None, "a snapshot belongs", {
            "weir snapshot create tank/data@monday"
        }),
        ("lvextend -L +1G tank/data", None, "", "weir volume resize tank/data +1G"),
        ("disk list", None, "disks have no commands", "weir pool status shows the disks"),
        ("trim tank", None, "a pool is not trimmed", {
            "at the client: fstrim -av; to see the space: weir pool status -v tank"
        }),
        ("pool labelclear d5", None, "is not cleared", "weir pool create NAME d5, with"),
        ("pool list -v", Some("-v"), "shows the disks", "weir pool status"),
        ("snapshot diff tank/vm1@a", None, "not compared", "weir get written tank/vm1"),
        ("export delete nbd tank/vm1", Some("tank/vm1"), "", "weir export delete tank/vm1"),
        ("share nbd tank/vm2", None, "", "weir export create nbd tank/vm2"),
        ("export nbd tank/vm3", None, "", "weir export create nbd tank/vm3"),
        ("send tank/vm1@monday @tue", Some("@tue"), "the older snapshot is given with -i", {
            "weir send -i tank/vm1@monday tank/vm1@tue > FILE"
        }),
        ("snapshot rollback tank/vm1 monday", Some("monday"), "the full name", {
            "weir snapshot rollback tank/vm1@monday"
        }),
        ("volume create tank/s7 10 GiB", Some("GiB"), "write number and unit together", {
            "weir volume create tank/s7 10GiB"
        }),
        ("volume create tank/s5 -10GiB", Some("-1"), "a size cannot be negative", {
            "weir volume create tank/s5 10GiB"
        }),
        ("export create nbd tank/o1 --ro", Some("--ro"), "no option --ro", {
            "weir export create nbd tank/o1 --read-only"
        }),
        ("volume create tank/v 1TiB --thick", Some("--thick"), "", {
            "weir volume create tank/v 1TiB -o refreservation=auto"
        }),
        ("target allow vms iqn.x --user admin --password hunter2", None, "from a file", {
            "weir target allow vms iqn.x --chap-user admin --chap-secret-file FILE"
        }),
    ];

    #[test]
    fn explanation_has_a_message_and_a_command() {
        for (typed, wrong, message, next) in EXPLAINED {
            let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
            let found = explained(&words, *wrong);
            let (text, command) = found.unwrap_or_else(|| panic!("{typed}"));
            assert!(text.contains(message), "{typed}: {text}");
            assert!(command.starts_with(next), "{typed}: {command}");
        }
        let none = |typed: &str| {
            let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
            assert_eq!(explained(&words, None), None, "{typed}");
        };
        let negative = ["volume", "resize", "tank/vm3", "-10MiB", "--shrink"].map(str::to_owned);
        assert_eq!(explained(&negative, Some("-1")), None);
        none("volume list tank");
        none("lvcreate -s 1G tank/vm1");
    }
}

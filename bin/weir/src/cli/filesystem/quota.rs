//! `weir filesystem quota` and `weir filesystem usage`.
//!
//! Invariant: the machine on which the command runs resolves the names of users and groups; the
//! server only knows numbers.

use clap::{Args, ValueEnum};
use nix::unistd::{Gid, Group, Uid, User};
use weir_api::ApiError;
use weir_api::types::{
    FileOwner, FilesystemQuota, FilesystemUsage, Outcome, OwnerUsage, ShowFilesystemUsage,
};
use weir_base::{ErrorKind, size};

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::output;
use crate::cli::base::session::Session;
use crate::cli::base::sizes::check_unit;
use crate::cli::volume::check_name;

const NOUN: &str = "filesystem";

#[derive(Debug, Args)]
pub(crate) struct QuotaArgs {
    /// Full name, such as tank/home
    name: String,
    /// Set the quota of a user, such as alice 20GiB; none removes it
    #[arg(long, num_args = 2, value_names = ["USER", "SIZE"])]
    user: Vec<String>,
    /// Set the quota of a group
    #[arg(long, num_args = 2, value_names = ["GROUP", "SIZE"])]
    group: Vec<String>,
    /// Set the quota of a project, by its number
    #[arg(long, num_args = 2, value_names = ["NUMBER", "SIZE"])]
    project: Vec<String>,
    /// Limit the number of files and directories instead of their size
    #[arg(long)]
    files: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// Full name, such as tank/home
    name: String,
    /// Show only users, groups or projects
    #[arg(long, value_name = "KIND")]
    by: Option<Kind>,
    #[command(flatten)]
    list: ListArgs,
}

/// Kind of an owner of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    User,
    Group,
    Project,
}

impl From<Kind> for FileOwner {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::User => Self::User,
            Kind::Group => Self::Group,
            Kind::Project => Self::Project,
        }
    }
}

/// Finds the number of a user, group or project.
fn number(owner: FileOwner, text: &str) -> Result<u32, ApiError> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let found = match owner {
        FileOwner::User => User::from_name(text).ok().flatten().map(|user| user.uid.as_raw()),
        FileOwner::Group => Group::from_name(text).ok().flatten().map(|group| group.gid.as_raw()),
        FileOwner::Project => None,
    };
    found.ok_or_else(|| {
        let kind = owner.name();
        let message = format!("this machine has no {kind} {text:?}");
        let action = match owner {
            FileOwner::User => "give the number of the user; 'getent passwd' lists the users",
            FileOwner::Group => "give the number of the group; 'getent group' lists the groups",
            FileOwner::Project => "give the number of the project",
        };
        ApiError::new(ErrorKind::Invalid, message).with_action(action)
    })
}

/// Name of a user or group on this machine, or the number.
fn owner_name(owner: FileOwner, id: u32) -> String {
    let found = match owner {
        FileOwner::User => User::from_uid(Uid::from_raw(id)).ok().flatten().map(|user| user.name),
        FileOwner::Group => {
            Group::from_gid(Gid::from_raw(id)).ok().flatten().map(|group| group.name)
        }
        FileOwner::Project => None,
    };
    found.unwrap_or_else(|| id.to_string())
}

/// Decodes a quota: a size, or a number of files; `none` is 0.
fn limit(text: &str, counts_files: bool) -> Result<u64, ApiError> {
    if text == "none" {
        return Ok(0);
    }
    let bad = |why: String| {
        ApiError::new(ErrorKind::Invalid, why)
            .with_action("give a quota such as 20GiB, or none to remove it")
    };
    let value = if counts_files {
        text.parse().map_err(|_| bad(format!("{text:?} is no number of files")))?
    } else {
        check_unit(text)?;
        size::parse(text).map_err(|error| bad(error.to_string()))?
    };
    match value {
        0 => Err(bad("a quota of 0 would allow no file".to_owned())),
        value => Ok(value),
    }
}

pub(crate) fn quota(arguments: QuotaArgs, session: &Session) -> Result<(), ApiError> {
    let QuotaArgs { name, user, group, project, files } = arguments;
    check_name(session, NOUN, &name)?;
    let kinds = [(FileOwner::User, user), (FileOwner::Group, group), (FileOwner::Project, project)];
    let mut requests = Vec::new();
    for (owner, words) in kinds {
        for pair in words.chunks_exact(2) {
            let (id, limit) = (number(owner, &pair[0])?, limit(&pair[1], files)?);
            let (quota_bytes, quota_files) =
                if files { (None, Some(limit)) } else { (Some(limit), None) };
            let name = name.clone();
            requests.push(FilesystemQuota { name, owner, id, quota_bytes, quota_files });
        }
    }
    if requests.is_empty() {
        return Err(ApiError::new(ErrorKind::Invalid, "no quota is given").with_action(format!(
            "weir filesystem quota {name} --user NAME SIZE; 'weir filesystem usage {name}' shows \
             the present quotas"
        )));
    }
    for request in requests {
        let change = session.call(request)?;
        session.say(&said(&change.usage, change.outcome));
        session.print(&change, |_| String::new())?;
    }
    Ok(())
}

fn said(usage: &OwnerUsage, outcome: Outcome) -> String {
    let OwnerUsage { owner, id, quota_bytes, quota_files, .. } = usage;
    let name = owner_name(*owner, *id);
    let size = quota_bytes.map(|bytes| size::Human(bytes).to_string());
    let files = quota_files.map(|files| format!("{files} files"));
    let quotas: Vec<String> = size.into_iter().chain(files).collect();
    let quotas = if quotas.is_empty() { "none".to_owned() } else { quotas.join(", ") };
    let unchanged = if outcome == Outcome::Unchanged { ", as before" } else { "" };
    format!("quota of {} {name}: {quotas}{unchanged}", owner.name())
}

/// Titles of the columns of `usage`.
const TITLES: [&str; 6] = ["KIND", "OWNER", ">USED", ">QUOTA", ">FILES", ">FILE-QUOTA"];

pub(crate) fn usage(arguments: UsageArgs, session: &Session) -> Result<(), ApiError> {
    let UsageArgs { name, by, list } = arguments;
    check_name(session, NOUN, &name)?;
    let Some(list) = list.list(&TITLES, &[])? else { return Ok(()) };
    let mut answer = session.call(ShowFilesystemUsage { name })?;
    let by = by.map(FileOwner::from);
    answer.owners.retain(|usage| by.is_none_or(|by| by == usage.owner));
    if answer.left_out > 0 {
        session.say(&format!("{} further owners are not shown", answer.left_out));
    }
    session.print(&answer, |all: &FilesystemUsage| list.table(all.owners.iter().map(row)))
}

fn row(usage: &OwnerUsage) -> [Cell; 6] {
    let quota = |quota: Option<u64>, cell: fn(u64) -> Cell| quota.map_or_else(|| "-".into(), cell);
    [
        usage.owner.name().into(),
        output::clean(&owner_name(usage.owner, usage.id)).into(),
        Cell::Size(usage.used_bytes),
        quota(usage.quota_bytes, Cell::Size),
        Cell::number(usage.files),
        quota(usage.quota_files, Cell::number),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_sizes_counts_or_none() {
        assert_eq!(limit("20GiB", false).unwrap(), 20 << 30);
        assert_eq!(limit("none", false).unwrap(), 0);
        assert_eq!(limit("1000", true).unwrap(), 1000);
        for (text, files) in
            [("0", false), ("0", true), ("x", false), ("20GiB", true), ("-1", true)]
        {
            limit(text, files).expect_err(text);
        }
    }

    #[test]
    fn owners_have_names_or_numbers() {
        assert_eq!(number(FileOwner::User, "root").unwrap(), 0);
        assert_eq!(number(FileOwner::Project, "7").unwrap(), 7);
        assert_eq!(owner_name(FileOwner::Group, 0), "root");
        assert_eq!(owner_name(FileOwner::User, 4_000_000_001), "4000000001");
        let error = number(FileOwner::User, "no such user").unwrap_err().to_string();
        assert!(error.contains("no user"), "{error}");
        number(FileOwner::Project, "home").expect_err("projects have no names");
    }
}

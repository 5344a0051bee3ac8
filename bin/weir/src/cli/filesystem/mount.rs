//! `weir mount` and `weir unmount`.
//!
//! The server makes the mounts: they exist on the machine of the server.
//!
//! Invariant: a relative directory is never sent to the server, whose working directory is another.

use clap::{Args, ValueEnum};
use weir_api::ApiError;
use weir_api::types::{
    FilesystemMount, FilesystemUnmount, ListMounts, Mount, Outcome, Request as _,
};
use weir_base::{ErrorKind, names};

use crate::cli::base::session::Session;

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// Full name of a filesystem or snapshot, such as tank/home or tank/home@monday
    name: String,
    /// An empty directory, such as /srv/home; without it, the filesystem's mountpoint
    directory: Option<String>,
    /// Mount options
    #[arg(short = 'o', value_name = "OPTION")]
    options: Vec<MountOption>,
}

/// Options of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MountOption {
    /// Refuse changes; the server does not mount the filesystem again at its next start
    Ro,
    /// Allow changes
    Rw,
}

#[derive(Debug, Args)]
pub(crate) struct UnmountArgs {
    /// Full name of the mounted filesystem or snapshot, or the directory of the mount
    #[arg(value_name = "NAME|DIRECTORY")]
    place: String,
    /// Unmount although programs use files of the mount; they get errors from then on
    #[arg(short, long)]
    force: bool,
}

/// Returns a directory as an absolute path without a slash at its end.
fn absolute(directory: &str) -> Result<String, ApiError> {
    let bad = |why: String| {
        ApiError::new(ErrorKind::Invalid, format!("directory {directory}: {why}"))
            .with_action("name the directory by its full path, such as /srv/home")
    };
    let path = std::path::absolute(directory).map_err(|error| bad(error.to_string()))?;
    let path = path.into_os_string().into_string();
    let path = path.map_err(|_| bad("the name is not UTF-8".to_owned()))?;
    let shorter = path.trim_end_matches('/');
    Ok(if shorter.is_empty() { path } else { shorter.to_owned() })
}

pub(crate) fn mount(arguments: MountArgs, session: &Session) -> Result<(), ApiError> {
    let MountArgs { name, directory, options } = arguments;
    if options.contains(&MountOption::Ro) && options.contains(&MountOption::Rw) {
        let message = "the options ro and rw contradict each other";
        return Err(ApiError::new(ErrorKind::Invalid, message).with_action("give one of them"));
    }
    let directory = directory.as_deref().map(absolute).transpose()?;
    let read_only = options.contains(&MountOption::Ro);
    let request = FilesystemMount { name, directory, read_only };
    request.check()?;
    let change = session.call(request)?;
    let Mount { name, directory, read_only } = &change.mount;
    let rights = if *read_only { ", read-only" } else { "" };
    session.say(&match change.outcome {
        Outcome::Unchanged => format!("{name} is mounted at {directory} already{rights}"),
        _ => format!("{name} is mounted at {directory}{rights}"),
    });
    session.print(&change, |_| String::new())
}

pub(crate) fn unmount(arguments: UnmountArgs, session: &Session) -> Result<(), ApiError> {
    let UnmountArgs { place, force } = arguments;
    let name = if names::dataset(&place).is_err() {
        let directory = absolute(&place)?;
        let mounts = session.call(ListMounts {})?.mounts;
        let found = mounts.into_iter().find(|mount| mount.directory == directory);
        let none = || {
            let message = format!("no filesystem of this server is mounted at {directory}");
            ApiError::new(ErrorKind::NotFound, message).with_action("weir filesystem list")
        };
        found.ok_or_else(none)?.name
    } else {
        place
    };
    let change = session.call(FilesystemUnmount { name, force })?;
    let Mount { name, directory, read_only } = &change.mount;
    session.say(&format!("{name} is no longer mounted at {directory}"));
    if !read_only {
        session.say(&format!(
            "the server mounts it again at its next start; to end that: weir set mountpoint=none \
             {name}"
        ));
    }
    session.print(&change, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_become_absolute() {
        assert_eq!(absolute("/srv/home/").unwrap(), "/srv/home");
        assert_eq!(absolute("/").unwrap(), "/");
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute("./x").unwrap(), here.join("x").to_str().unwrap());
    }
}

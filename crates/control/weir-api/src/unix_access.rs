//! Peer credentials of unix sockets: identifies the user at the other end, and gives this user its
//! rights.
//!
//! Tokens are in `token`, authorization of calls is in `authorization`.
//!
//! Invariants:
//! - root, the user of the server and members of the group `weir` are admins; every other user is
//!   unauthenticated, even if an administrator has opened the socket's mode;
//! - only root and the user of the server may name any file; for others the server opens only files
//!   in its directories;
//! - the names of users and groups come from `/etc/passwd` and `/etc/group` alone, because a
//!   network lookup could delay every caller. A user of a directory service is shown by number.

use std::fs;

use crate::access::{Files, Rights, Role, Scope};
use crate::caller::Caller;

/// Group whose members administer the server.
pub const GROUP: &str = "weir";

/// The users that may call over a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixAccess {
    owner: u32,
    group: Option<u32>,
}

/// The process at the other end of a connection, from `SO_PEERCRED`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: Option<i32>,
}

impl UnixAccess {
    /// Returns the access settings of a server in this process. The socket belongs to the group
    /// `weir` if this process may set that group: as root, or if the group is its own.
    pub(crate) fn of_this_process() -> Self {
        Self { owner: rustix::process::geteuid().as_raw(), group: socket_group(GROUP) }
    }

    /// Returns the access settings of a server that runs as user `owner` and whose socket belongs
    /// to `group`.
    pub fn new(owner: u32, group: Option<u32>) -> Self {
        Self { owner, group }
    }

    /// Returns the group of the socket.
    pub(crate) fn group(&self) -> Option<u32> {
        self.group
    }

    /// True if a user is root or the user of the server.
    pub(crate) fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner
    }

    /// Identifies the caller of a connection.
    pub(crate) fn caller(&self, process: Process) -> Caller {
        let Process { uid, gid, pid } = process;
        let name = match user_name(uid) {
            Some(name) => format!("{name} (uid {uid})"),
            None => format!("uid {uid}"),
        };
        let files = if self.is_owner(uid) {
            Files::Any
        } else if self.group.is_some_and(|group| gid == group || is_member(pid, uid, group)) {
            Files::Named
        } else {
            return Caller::unauthenticated(name);
        };
        Caller::new(name, Rights { role: Role::Admin, scope: Scope::All, files })
    }
}

/// True if a process has the group as a supplementary group. This is a second check, after the
/// kernel has checked the permissions of the socket. `/proc` does not show a process of another
/// container: its result is false, so only its primary group counts.
fn is_member(pid: Option<i32>, uid: u32, group: u32) -> bool {
    let Some(pid) = pid.filter(|pid| *pid > 0) else { return false };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    is_member_by(&status, uid, group)
}

fn is_member_by(status: &str, uid: u32, group: u32) -> bool {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // The second number of the line is the effective user. If the process id was reused, the new
    // process must at least have the same user.
    field("Uid:").get(1) == Some(&uid.to_string()) && field("Groups:").contains(&group.to_string())
}

/// Returns the GID of a group of this machine, if this process may give a socket to the group: as
/// root to any group, otherwise only to its own.
pub fn socket_group(name: &str) -> Option<u32> {
    let own_group = rustix::process::getegid().as_raw();
    let is_root = rustix::process::geteuid().is_root();
    group_number(name).filter(|group| is_root || *group == own_group)
}

/// Returns the GID of a group of this machine.
fn group_number(name: &str) -> Option<u32> {
    entry(&fs::read_to_string("/etc/group").ok()?, 0, name)?.get(2)?.parse().ok()
}

fn user_name(uid: u32) -> Option<String> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let name = entry(&users, 2, &uid.to_string())?.first()?.to_string();
    // Only printable names are accepted, because logs and terminals show the name.
    name.bytes().all(|byte| byte.is_ascii_graphic()).then_some(name)
}

/// Returns the fields of the first line whose field number `field` is `wanted`, in a table with
/// colons between its fields.
fn entry<'t>(table: &'t str, field: usize, wanted: &str) -> Option<Vec<&'t str>> {
    let mut lines = table.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.find(|fields| fields.get(field) == Some(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOOR: UnixAccess = UnixAccess { owner: 1000, group: Some(990) };

    fn caller(uid: u32, gid: u32) -> Caller {
        DOOR.caller(Process { uid, gid, pid: None })
    }

    #[test]
    fn only_root_owner_and_group_members_are_admins() {
        for (uid, gid, files) in
            [(0, 0, Some(Files::Any)), (1000, 1, Some(Files::Any)), (7, 990, Some(Files::Named))]
        {
            let caller = caller(uid, gid);
            assert_eq!(caller.rights().map(|rights| rights.files), files, "{caller}");
            assert_eq!(caller.rights().map(|rights| rights.role), Some(Role::Admin));
        }
        assert_eq!(caller(65534, 65534).rights(), None);
        let private = UnixAccess { owner: 1000, group: None };
        assert_eq!(private.caller(Process { uid: 7, gid: 990, pid: None }).rights(), None);
        assert!(caller(0, 0).to_string().contains("uid 0"));
    }

    #[test]
    fn supplementary_groups_count_for_a_process_of_the_same_user() {
        let status = "Name:\tsh\nUid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\nGroups:\t7 990 1001 \n";
        assert!(is_member_by(status, 7, 990));
        assert!(!is_member_by(status, 7, 99));
        assert!(!is_member_by(status, 8, 990));
        assert!(!is_member_by("", 7, 990));
    }

    #[test]
    fn tables_of_users_are_read_by_field() {
        let table = "root:x:0:0:root:/root:/bin/bash\njoe:x:7:7::/home/joe:/bin/sh\n";
        assert_eq!(entry(table, 2, "7").unwrap()[0], "joe");
        assert_eq!(entry(table, 0, "root").unwrap()[2], "0");
        assert_eq!(entry(table, 2, "70"), None);
    }
}

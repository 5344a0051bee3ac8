//! `weir share`: the verbs of shares.
//!
//! Not here: the NFS protocol through which clients use a share.
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{
    CallStatistics, ListShares, Share, ShareAllow, ShareCalls, ShareChange, ShareClient,
    ShareCreate, ShareDelete, ShareDeny, ShareName, ShareProtocol, ShareStatistics, ShowShare,
    ShowShareStatistics,
};
use weir_base::ErrorKind;
use weir_base::size::Human;

use crate::cli::base::leave::LeaveArgs;
use crate::cli::base::list::{Cell, ListArgs, Set};
use crate::cli::base::output;
use crate::cli::base::session::Session;

/// Help of the argument with rules.
const RULES: &str = "Clients with their rights: CLIENT[:OPTION,...]. CLIENT is an address, a \
                     network such as 10.0.0.0/8 or [fd00::]/8, a host name, a netgroup such as \
                     @admins, or * for all; the most exact rule decides. Options: rw (default) or \
                     ro; root_squash (default), no_root_squash or all_squash; secure (default: \
                     only ports below 1024) or insecure; anonuid=N, anongid=N; manage_gids \
                     (the server looks up the groups of users)";

#[derive(Debug, Subcommand)]
pub(crate) enum ShareVerb {
    /// Share a filesystem with NFS clients; without --allow no client may use it yet
    Create {
        /// Protocol: nfs
        protocol: String,
        /// Full name of the filesystem, such as tank/home
        filesystem: String,
        /// Directory of the filesystem that clients mount, such as projects/a [default: its root]
        #[arg(long, value_name = "PATH")]
        directory: Option<String>,
        /// Name of the share; clients mount the path /NAME [default: the name of the filesystem,
        /// with the directory]
        #[arg(long)]
        name: Option<String>,
        #[arg(long, value_name = "RULE", help = RULES)]
        allow: Vec<String>,
        /// Acknowledge changes of names and attributes before they are durable: faster, but a crash
        /// of the server loses the last seconds
        #[arg(long = "async")]
        asynchronous: bool,
    },
    /// List shares
    List {
        /// Show the rules of the clients too
        #[arg(short = 'v')]
        verbose: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a share: its clients, and the commands that mount it
    Show {
        /// Name of the share
        name: String,
    },
    /// Allow clients to use a share; a rule replaces the rule of the same clients
    Allow {
        /// Name of the share
        name: String,
        #[arg(required = true, value_name = "RULE", help = RULES)]
        rules: Vec<String>,
    },
    /// Remove the rules of clients; their next calls fail
    Deny {
        /// Name of the share
        name: String,
        /// Addresses, networks, host names or netgroups as 'weir share show' lists them
        #[arg(required = true, value_name = "CLIENT")]
        clients: Vec<String>,
    },
    /// Show the calls of a share and of its clients, with their latency
    Stat {
        /// Name of the share
        name: String,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Delete a share; refused while clients use it
    Delete {
        /// Name of the share
        name: String,
        #[command(flatten)]
        leave: LeaveArgs,
    },
}

const NFS: ShareProtocol = ShareProtocol::Nfs;

/// Name of a share from an argument, which may be the path that clients mount.
fn own_name(typed: String) -> String {
    typed.strip_prefix('/').map(str::to_owned).unwrap_or(typed)
}

pub(crate) fn run(verb: ShareVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ShareVerb::Create { protocol, filesystem, directory, name, allow, asynchronous } => {
            let protocol = self::protocol(&protocol, &filesystem)?;
            let directory = directory.map(|path| path.trim_matches('/').to_owned());
            let directory = directory.filter(|path| !path.is_empty());
            let name = name.map(own_name);
            let request =
                ShareCreate { protocol, filesystem, directory, name, allow, asynchronous };
            let change = session.call(request)?;
            say(session, &change);
            say_names(session, &change.share);
            if change.share.allow.is_empty() {
                let name = &change.share.name;
                session.say(&format!("no client may use it yet: weir share allow {name} CLIENT"));
            }
            if let Some(why) = &change.share.unavailable {
                session.say(&format!("clients cannot use it now: {why}"));
            }
            session.print(&change, |change| lines(&change.share.mount))
        }
        ShareVerb::List { list, verbose } => self::list(session, &list, verbose),
        ShareVerb::Show { name } => {
            let share = session.call(ShowShare { protocol: NFS, name: own_name(name) })?;
            session.print(&share, show)
        }
        ShareVerb::Allow { name, rules } => {
            let change = session.call(ShareAllow { protocol: NFS, name: own_name(name), rules })?;
            say(session, &change);
            say_names(session, &change.share);
            session.print(&change, |change| lines(&change.share.allow))
        }
        ShareVerb::Deny { name, clients } => {
            let change =
                session.call(ShareDeny { protocol: NFS, name: own_name(name), clients })?;
            say(session, &change);
            session.print(&change, |change| lines(&change.share.allow))
        }
        ShareVerb::Stat { name, list } => statistics(session, own_name(name), &list),
        ShareVerb::Delete { name, leave } => {
            let name = own_name(name);
            let answer = leave.call(session, |force| {
                session.call(ShareDelete { protocol: NFS, name: name.clone(), force })
            })?;
            session.say(&output::outcome("share", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

fn say(session: &Session, change: &ShareChange) {
    session.say(&output::outcome("share", &change.share.name, change.outcome));
}

/// Warns about names in the rules that name no client now.
fn say_names(session: &Session, share: &Share) {
    for name in share.names.iter().filter(|name| name.address_count == 0) {
        session.say(&output::clean(&addresses(name)));
    }
}

/// Addresses of a name in rules, or the reason why it has none.
fn addresses(of: &ShareName) -> String {
    let problem = of.problem.as_deref();
    if of.address_count == 0 {
        let why = problem.unwrap_or("the name services know none");
        return format!("{} has no address now: {why}", of.name);
    }
    let more = u64::from(of.address_count).saturating_sub(of.addresses.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let problem = problem.map(|problem| format!("; {problem}")).unwrap_or_default();
    format!("{}: {}{more}{problem}", of.name, of.addresses.join(" "))
}

fn protocol(word: &str, filesystem: &str) -> Result<ShareProtocol, ApiError> {
    if word == NFS.name() {
        return Ok(NFS);
    }
    let (message, filesystem) = match word {
        "smb" | "cifs" => (format!("{word} is not in this version"), filesystem),
        // The user typed the protocol and the filesystem in the wrong order.
        _ if filesystem == NFS.name() => {
            (format!("{word} is not a protocol of shares: the protocol comes first"), word)
        }
        _ => (format!("{word} is not a protocol of shares"), filesystem),
    };
    Err(ApiError::new(ErrorKind::Invalid, message)
        .with_action(format!("weir share create nfs {filesystem}")))
}

fn lines(texts: &[String]) -> String {
    texts.iter().map(|text| output::clean(text) + "\n").collect()
}

/// Columns that `list` shows without -v and -o.
const SHORT: Set = ("default", &["name", "protocol", "filesystem", "directory", "clients"]);

fn list(session: &Session, list: &ListArgs, verbose: bool) -> Result<(), ApiError> {
    let titles = ["NAME", "PROTOCOL", "FILESYSTEM", "DIRECTORY", ">CLIENTS", "ALLOW"];
    let sets: &[Set] = if verbose { &[] } else { &[SHORT] };
    let Some(list) = list.list(&titles, sets)? else { return Ok(()) };
    let answer = session.call(ListShares {})?;
    if answer.shares.is_empty() {
        session.say("there are no shares");
    }
    let row = |share: &Share| {
        [
            share.name.clone().into(),
            share.protocol.name().into(),
            share.filesystem.clone().into(),
            share.directory.clone().unwrap_or_else(|| "-".to_owned()).into(),
            Cell::number(share.clients.into()),
            if share.allow.is_empty() { "none".into() } else { share.allow.join(" ").into() },
        ]
    };
    session.print(&answer, |all| list.table(all.shares.iter().map(row)))
}

fn show(share: &Share) -> String {
    let directory = share.directory.as_deref().unwrap_or("the root");
    let durable = if share.asynchronous {
        "after the reply (--async): a crash loses the last seconds"
    } else {
        "before the reply"
    };
    let allow = if share.allow.is_empty() { "no client".to_owned() } else { share.allow.join(" ") };
    let mut rows = vec![
        ("share", share.name.clone()),
        ("protocol", share.protocol.name().to_owned()),
        ("filesystem", share.filesystem.clone()),
        ("directory", directory.to_owned()),
        ("allow", allow),
        ("names are durable", durable.to_owned()),
        ("clients", share.clients.to_string()),
    ];
    rows.extend(share.names.iter().map(|name| ("name", addresses(name))));
    rows.extend(share.unavailable.iter().map(|why| ("not available", why.clone())));
    rows.extend(share.mount.iter().map(|command| ("on a client", command.clone())));
    let line = |(title, text): &(&str, String)| format!("{title:<18}{}\n", output::clean(text));
    rows.iter().map(line).collect()
}

fn statistics(session: &Session, name: String, list: &ListArgs) -> Result<(), ApiError> {
    let titles = [
        "CLIENT",
        ">READS",
        ">READ",
        ">READ P50",
        ">READ P99",
        ">WRITES",
        ">WRITTEN",
        ">WRITE P50",
        ">WRITE P99",
        ">OTHER",
        ">OTHER P50",
        ">OTHER P99",
        ">ERRORS",
        ">IDLE",
    ];
    let Some(list) = list.list(&titles, &[])? else { return Ok(()) };
    let answer = session.call(ShowShareStatistics { protocol: NFS, name })?;
    let ShareStatistics { squashed, refused, stale, .. } = answer;
    if squashed + refused + stale > 0 {
        session.say(&format!("{squashed} calls squashed, {refused} refused, {stale} stale"));
    }
    let rows = |of: &ShareStatistics| {
        let clients = of.clients.iter().map(|client: &ShareClient| {
            row(&client.address, &client.calls, Some(client.idle_seconds))
        });
        std::iter::once(row("all", &of.calls, None)).chain(clients).collect::<Vec<_>>()
    };
    session.print(&answer, |of| list.table(rows(of)))
}

fn row(client: &str, calls: &ShareCalls, idle: Option<u64>) -> [Cell; 14] {
    let time = |of: &CallStatistics, micros: u64| -> Cell {
        if of.calls == 0 { "-".into() } else { format!("{micros}us").into() }
    };
    let [reads, writes, other] = [&calls.reads, &calls.writes, &calls.metadata];
    [
        client.to_owned().into(),
        Cell::number(reads.calls),
        Human(calls.read_bytes).to_string().into(),
        time(reads, reads.p50_us),
        time(reads, reads.p99_us),
        Cell::number(writes.calls),
        Human(calls.written_bytes).to_string().into(),
        time(writes, writes.p50_us),
        time(writes, writes.p99_us),
        Cell::number(other.calls),
        time(other, other.p50_us),
        time(other, other.p99_us),
        Cell::number(calls.errors),
        idle.map_or_else(|| "-".into(), |seconds| format!("{seconds}s").into()),
    ]
}

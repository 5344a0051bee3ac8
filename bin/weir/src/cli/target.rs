//! `weir target`: the verbs of iSCSI targets.
//!
//! Not here: logical units (lun), the iSCSI protocol.
//!
//! Invariants:
//! - each verb checks its arguments as far as possible, and then makes one call;
//! - a secret is never an argument; the command reads it from a file that only its owner may read.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use weir_api::ApiError;
use weir_api::token::SecretText;
use weir_api::types::{
    ChapAccount, InitiatorAllow, InitiatorDeny, ListTargets, Outcome, ShowTarget, Target,
    TargetChange, TargetCreate, TargetDelete, target_name,
};
use weir_base::ErrorKind;
use weir_base::private::read_secret;

use crate::cli::base::leave::LeaveArgs;
use crate::cli::base::list::{Cell, List, ListArgs};
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;
use crate::cli::base::{output, typed};
use crate::cli::lun;
use crate::selftest::run as selftest;

#[derive(Debug, Subcommand)]
pub(crate) enum TargetVerb {
    /// Create a target; without --allow no initiator may log in yet
    Create {
        /// Short name such as vms, expanded to iqn.2026-01.org.weir:vms, or a full iSCSI name
        name: String,
        /// iSCSI name of an initiator that may log in, or '*' for all; may be repeated
        #[arg(long, value_name = "INITIATOR")]
        allow: Vec<String>,
    },
    /// List targets
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a target: portals, logical units, allowed initiators and sessions
    Show {
        /// Name of the target
        name: String,
    },
    /// Delete a target; refused while initiators are logged in
    Delete {
        /// Name of the target
        name: String,
        #[command(flatten)]
        leave: LeaveArgs,
    },
    /// Allow an initiator to log in, or change its CHAP settings; CHAP is removed only by --no-chap
    Allow(AllowArgs),
    /// Remove an initiator from the allow list and end its sessions
    Deny {
        /// Name of the target
        target: String,
        /// iSCSI name of the initiator, or '*'
        initiator: String,
    },
    /// Test zeroing, cloning, unmapping and locking offloads on scratch volumes, and show their
    /// savings
    Selftest(selftest::SelftestArgs),
}

#[derive(Debug, Args)]
pub(crate) struct AllowArgs {
    /// Name of the target
    target: String,
    /// iSCSI name of the initiator, or '*' for initiators without an entry of their own
    initiator: String,
    /// User name with which the initiator authenticates by CHAP
    #[arg(long, value_name = "NAME", requires = "chap_secret_file")]
    chap_user: Option<String>,
    /// File with the CHAP secret of --chap-user, at least 12 bytes, readable only by you
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    chap_secret_file: Option<PathBuf>,
    /// User name with which the target authenticates to the initiator (mutual CHAP); the initiator
    /// must then request it
    #[arg(long, value_name = "NAME", requires_all = ["mutual_secret_file", "chap_user"])]
    mutual_user: Option<String>,
    /// File with the CHAP secret of --mutual-user; must differ from the initiator's secret
    #[arg(long, value_name = "FILE", requires = "mutual_user")]
    mutual_secret_file: Option<PathBuf>,
    /// Remove CHAP: the initiator can log in without authentication
    #[arg(long, conflicts_with_all = ["chap_user", "mutual_user"])]
    no_chap: bool,
}

/// Lengths of a CHAP secret that the server accepts, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 12..=255;

fn account(user: Option<String>, file: Option<&Path>) -> Result<Option<ChapAccount>, ApiError> {
    let (Some(user), Some(file)) = (user, file) else { return Ok(None) };
    let mut secret = read_secret(file).map_err(|error| {
        ApiError::new(error.kind(), error.to_string()).with_action(error.action())
    })?;
    while secret.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        secret.pop();
    }
    if !SECRET_BYTES.contains(&secret.len()) {
        let (file, bytes) = (file.display(), secret.len());
        let message = format!("{file} has {bytes} bytes; a CHAP secret has 12 to 255");
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action(format!("openssl rand -hex 16 > {file}; chmod 600 {file}")));
    }
    let secret = String::from_utf8(secret).map_err(|_| {
        let message = format!("secret file {}: the secret is not valid UTF-8", file.display());
        ApiError::new(ErrorKind::Invalid, message)
            .with_action("write one of letters and digits: openssl rand -hex 16")
    })?;
    Ok(Some(ChapAccount { user, secret: Some(SecretText::new(secret)), secret_file: None }))
}

pub(crate) fn run(verb: TargetVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        TargetVerb::Create { name, allow } => create(&name, allow, session),
        TargetVerb::List { list } => self::list(session, &list),
        TargetVerb::Show { name } => {
            let target = session.call(ShowTarget { name: target_name(&name) })?;
            session.print(&target, show)
        }
        TargetVerb::Delete { name, leave } => {
            let name = target_name(&name);
            let answer = leave
                .call(session, |force| session.call(TargetDelete { name: name.clone(), force }))?;
            session.say(&output::outcome("target", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
        TargetVerb::Allow(arguments) => {
            check_order("allow", &arguments.target, &arguments.initiator)?;
            let request = InitiatorAllow {
                target: target_name(&arguments.target),
                initiator: match arguments.initiator.as_str() {
                    "any" | "all" => "*".to_owned(),
                    name => name.to_ascii_lowercase(),
                },
                chap: account(arguments.chap_user, arguments.chap_secret_file.as_deref())?,
                mutual: account(arguments.mutual_user, arguments.mutual_secret_file.as_deref())?,
                no_chap: arguments.no_chap,
            };
            let initiator = request.initiator.clone();
            let change = session.call(request)?;
            say_initiator(session, &initiator, &change);
            session.print(&change, |_| String::new())
        }
        TargetVerb::Deny { target, initiator } => {
            check_order("deny", &target, &initiator)?;
            let initiator = initiator.to_ascii_lowercase();
            let key = InitiatorDeny { target: target_name(&target), initiator: initiator.clone() };
            let change = session.call(key)?;
            say_initiator(session, &initiator, &change);
            session.print(&change, |_| String::new())
        }
        TargetVerb::Selftest(arguments) => selftest::run(arguments, session),
    }
}

/// Rejects an initiator and a target in the wrong order: the second name is not the name of an
/// initiator.
fn check_order(verb: &str, target: &str, initiator: &str) -> Result<(), ApiError> {
    let is_full = |name: &str| target_name(name) == name.to_ascii_lowercase();
    let is_any = matches!(initiator, "*" | "any" | "all");
    if is_any || is_full(initiator) || !is_full(target) {
        return Ok(());
    }
    let message = format!("{initiator} is a target: the target comes before the initiator");
    let line = typed::swapped(target, initiator);
    let line = line.unwrap_or_else(|| format!("weir target {verb} {initiator} {target}"));
    Err(ApiError::new(ErrorKind::Invalid, message).with_action(line))
}

fn say_initiator(session: &Session, initiator: &str, change: &TargetChange) {
    let done = match change.outcome {
        Outcome::Created => "allowed",
        Outcome::Changed => "allowed, with other settings",
        Outcome::Removed => "denied",
        Outcome::Unchanged => "already allowed",
    };
    session.say(&format!("initiator {initiator} at {}: {done}", change.target.name));
}

fn create(name: &str, allow: Vec<String>, session: &Session) -> Result<(), ApiError> {
    let name = target_name(name);
    let request = TargetCreate { name: name.clone() };
    let mut change = session.call(request)?;
    session.say(&output::outcome("target", &name, change.outcome));
    for initiator in allow {
        let initiator = initiator.to_ascii_lowercase();
        let request = InitiatorAllow {
            target: name.clone(),
            initiator: initiator.clone(),
            chap: None,
            mutual: None,
            no_chap: false,
        };
        let allowed = session.call(request)?;
        say_initiator(session, &initiator, &allowed);
        change.target = allowed.target;
    }
    session.print(&change, |change| portals(&change.target))
}

fn portals(target: &Target) -> String {
    target.portals.iter().map(|portal| output::clean(portal) + "\n").collect()
}

fn list(session: &Session, list: &ListArgs) -> Result<(), ApiError> {
    let titles = ["NAME", ">LUNS", ">INITIATORS", ">SESSIONS", "PORTALS"];
    let Some(list) = list.list(&titles, &[])? else { return Ok(()) };
    let answer = session.call(ListTargets {})?;
    if answer.targets.is_empty() {
        session.say("there are no targets");
    }
    let row = |target: &Target| {
        [
            target.name.clone().into(),
            Cell::number(target.luns.len() as u64),
            Cell::number(target.initiators.len() as u64),
            Cell::number(target.sessions.len() as u64),
            target.portals.join(" ").into(),
        ]
    };
    session.print(&answer, |all| list.table(all.targets.iter().map(row)))
}

fn show(target: &Target) -> String {
    let style = Style::new(false);
    let mut text =
        output::labelled(&[("target", &target.name), ("portals", &target.portals.join(" "))]);
    let mut part = |title: &str, rows: String| {
        if !rows.is_empty() {
            text += &["\n", title, "\n", &rows].concat();
        }
    };
    part("logical units", lun::table(std::slice::from_ref(target), &List::all(&lun::TITLES)));
    let initiator = |entry: &weir_api::types::TargetInitiator| {
        let user = |user: &Option<String>| user.clone().unwrap_or_else(|| "-".to_owned());
        [entry.initiator.clone(), user(&entry.chap_user), user(&entry.mutual_user)]
    };
    let rows: Vec<_> = target.initiators.iter().map(initiator).collect();
    let header = ["INITIATOR", "CHAP", "MUTUAL"];
    part(
        "may log in",
        if rows.is_empty() { String::new() } else { output::table(header, &rows, style) },
    );
    part("logged in", sessions(target, style));
    text
}

fn sessions(target: &Target, style: Style) -> String {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let row = |session: &weir_api::types::TargetSession| {
        [
            session.initiator.clone(),
            session.address.clone(),
            output::date(session.since_unix_ms),
            yes(session.chap),
            yes(session.header_digest || session.data_digest),
            session.commands.to_string(),
            style.size(session.read_bytes),
            style.size(session.written_bytes),
        ]
    };
    let rows: Vec<_> = target.sessions.iter().map(row).collect();
    let header =
        ["INITIATOR", "FROM", "SINCE", "CHAP", "DIGESTS", ">COMMANDS", ">READ", ">WRITTEN"];
    if rows.is_empty() { String::new() } else { output::table(header, &rows, style) }
}

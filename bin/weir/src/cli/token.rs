//! `weir token`: credentials for callers without an account on this machine.
//!
//! Not here: what roles and scopes allow (weir-api `access`).
//!
//! Invariant: a token's secret goes to standard output or into a new file of mode 0600, never into
//! an argument or a message.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use weir_api::ApiError;
use weir_api::access::Role;
use weir_api::types::{ListTokens, Request as _, Token, TokenCreate, TokenCreated, TokenRevoke};
use weir_base::{Clock as _, ErrorKind, SystemClock};

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::output;
use crate::cli::base::session::Session;

/// Default lifetime of a token, so that a forgotten token expires.
const EXPIRES: &str = "1y";

#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Create a token and print it; it cannot be shown again
    Create {
        /// Name of the token, which identifies its holder in history and events
        name: String,
        /// Calls that the token allows
        #[arg(long, value_enum)]
        role: RoleName,
        /// Object that the token may access: a pool (tank), a volume (tank/vm1) or a prefix of
        /// volumes (tank/k8s-*); may be repeated [default: everything]
        #[arg(long, value_name = "NAME")]
        scope: Vec<String>,
        /// Lifetime, such as 90d, or never
        #[arg(long, value_name = "TIME", default_value = EXPIRES)]
        expires: String,
        /// Write the token to this new file, readable only by you, instead of printing it
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List tokens: role, scope, expiry, time and address of the last use
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Revoke a token; later calls with it are refused
    Revoke {
        /// Name of the token
        name: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RoleName {
    /// Read only
    Viewer,
    /// Also create, snapshot, export, send, receive, scrub and run
    Operator,
    /// Also destroy objects; change disks, settings and tokens
    Admin,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Viewer => Self::Viewer,
            RoleName::Operator => Self::Operator,
            RoleName::Admin => Self::Admin,
        }
    }
}

pub(crate) fn run(verb: TokenVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        TokenVerb::Create { name, role, scope, expires, out } => {
            let expires_unix_ms = end(&expires, SystemClock::default().unix_ms())?;
            let request = TokenCreate { name, role: role.into(), scope, expires_unix_ms };
            request.check()?;
            create(session, request, out.as_deref())
        }
        TokenVerb::List { list } => self::list(session, &list),
        TokenVerb::Revoke { name } => {
            let gone = session.call(TokenRevoke { name })?;
            session.say(&output::outcome("token", &gone.name, gone.outcome));
            session.print(&gone, |_| String::new())
        }
    }
}

/// Returns the time at which a token with the lifetime `text` expires; `None` for never.
fn end(text: &str, now_ms: u64) -> Result<Option<u64>, ApiError> {
    if text == "never" {
        return Ok(None);
    }
    let bad = |why: &dyn std::fmt::Display| {
        ApiError::new(ErrorKind::Invalid, format!("bad time {text:?}: {why}"))
            .with_action("write a number and a unit, such as 90d or 1y, or never")
    };
    let time = humantime::parse_duration(text).map_err(|error| bad(&error))?;
    let end = u64::try_from(time.as_millis()).ok().and_then(|ms| now_ms.checked_add(ms));
    end.map(Some).ok_or_else(|| bad(&"it is too long"))
}

fn create(session: &Session, request: TokenCreate, out: Option<&Path>) -> Result<(), ApiError> {
    // Create the file before the call: without a file, the token that the server returns would be
    // lost.
    let file = out.map(|path| {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        made.map_err(|error| unwritten(path, &error))
    });
    let file = file.transpose()?;
    let made = match session.call(request) {
        Ok(made) => made,
        Err(error) => {
            if let Some(path) = out {
                drop(std::fs::remove_file(path));
            }
            return Err(error);
        }
    };
    let TokenCreated { token, secret, .. } = &made;
    let until = token
        .expires_unix_ms
        .map_or("it does not expire".to_owned(), |end| format!("it expires {}", output::date(end)));
    session.say(&format!("token {}: created, {}; {until}", token.name, token.role.name()));
    if let (Some(mut file), Some(path)) = (file, out) {
        let line = format!("{}\n", secret.expose());
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|error| unwritten(path, &error))?;
        session.say(&format!("written to {0}; use it with WEIR_TOKEN_FILE={0}", path.display()));
        return session.print(token, |_| String::new());
    }
    session.say("shown only once:");
    session.print(&made, |made| format!("{}\n", made.secret.expose()))
}

fn unwritten(path: &Path, error: &std::io::Error) -> ApiError {
    ApiError::new(ErrorKind::Unavailable, format!("cannot write {}: {error}", path.display()))
        .with_action("name a new file in a directory that you can write")
}

fn list(session: &Session, list: &ListArgs) -> Result<(), ApiError> {
    let titles = ["NAME", "ROLE", "SCOPE", "EXPIRES", "LAST USED", "FROM"];
    let Some(list) = list.list(&titles, &[])? else { return Ok(()) };
    let answer = session.call(ListTokens {})?;
    if answer.tokens.is_empty() {
        session.say("there are no tokens");
    }
    if answer.refused > 0 {
        let times = answer.refused;
        session
            .say(&format!("calls rejected for an invalid token since the server started: {times}"));
    }
    let row = |token: &Token| {
        let scope = if token.scope.is_empty() { "all".to_owned() } else { token.scope.join(",") };
        let expires = token.expires_unix_ms.map_or("never".to_owned(), output::date);
        let expires = if token.is_expired { format!("EXPIRED {expires}") } else { expires };
        let expiry = token.expires_unix_ms.map_or(f64::INFINITY, |ms| ms as f64);
        [
            token.name.clone().into(),
            token.role.name().into(),
            scope.into(),
            Cell::Keyed(expires, expiry),
            Cell::date_or(token.last_used_unix_ms, "never"),
            Cell::or_dash(token.last_used_from.as_deref()),
        ]
    };
    session.print(&answer, |all| list.table(all.tokens.iter().map(row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_lifetimes_are_parsed() {
        assert_eq!(end("never", 7).unwrap(), None);
        assert_eq!(end("1s", 7).unwrap(), Some(1007));
        assert!(end("soon", 7).is_err());
        assert!(end("100000000000y", 7).is_err());
    }
}

//! Calls to the server, and the output of their responses.
//!
//! Not here: the definitions of the calls (weir-api).
//!
//! Invariants:
//! - with `--json`, standard output has exactly one object, with the field `schema_version`;
//! - with `--json`, no messages are printed.

use std::env::{self, VarError};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use weir_api::place::{API_PORT, API_VARIABLE, default_server};
use weir_api::token::SecretText;
use weir_api::types::{
    HistoryEntry, ListBookmarks, ListExports, ListFilesystems, ListHistory, ListPools,
    ListSnapshots, ListTargets, ListTokens, ListVolumes, target_name,
};
use weir_api::{Address, ApiError, Call, Client};
use weir_base::{ErrorKind, private};

use crate::cli::base::remote::RootRemote;
use crate::cli::base::{output, typed};

/// Environment variable with the path of the token file. A token is never an argument, because
/// every user of the machine can see the arguments of a process.
const TOKEN_FILE_VARIABLE: &str = "WEIR_TOKEN_FILE";

/// Environment variable with the token itself, used if [`TOKEN_FILE_VARIABLE`] is not set.
const TOKEN_VARIABLE: &str = "WEIR_TOKEN";

/// Environment variable with the path of a file with CA certificates.
const CA_VARIABLE: &str = "WEIR_CA";

/// Creates a client of the server at this address.
fn client(text: &str, ca: Option<&Path>, has_token: bool) -> Result<Client, ApiError> {
    if let Some(rest) = text.strip_prefix("https://") {
        let Some(ca) = ca else {
            let message = format!("no CA certificate is given to verify the server {text}");
            return Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action("name the CA that signed its certificate: --ca FILE, or WEIR_CA"));
        };
        return match Address::parse(rest, API_PORT)? {
            Address::Tcp { host, port } => Ok(Client::https(&host, port, ca)?),
            Address::Unix(_) => {
                Err(ApiError::new(ErrorKind::Invalid, format!("bad address {text:?}"))
                    .with_action("write https://HOST:PORT"))
            }
        };
    }
    let address = Address::parse(text, API_PORT).map_err(|error| {
        let error = ApiError::from(error);
        let unix = format!("unix:{text}");
        let line = typed::line_with(text, &unix).filter(|_| text.contains('/'));
        typed::with_line(error, line)
    })?;
    if has_token && !address.is_local() && !text.starts_with("http://") {
        let message = format!("the token would be sent to {address} in clear text");
        return Err(ApiError::new(ErrorKind::Permission, message).with_action(format!(
            "use TLS: --api https://{address} --ca FILE; only on a trusted network: --api \
             http://{address}"
        )));
    }
    Ok(Client::new(address))
}

/// Returns the token that the client sends. `None` if neither environment variable is set: on the
/// server's own machine, a user needs no token.
fn token() -> Result<Option<SecretText>, ApiError> {
    let bad = |why: String| {
        ApiError::new(ErrorKind::Invalid, why).with_action("create a new one: weir token create")
    };
    let text = match (env::var_os(TOKEN_FILE_VARIABLE), env::var_os(TOKEN_VARIABLE)) {
        (Some(file), _) => {
            let bytes = private::read_secret(Path::new(&file)).map_err(|error| {
                ApiError::new(error.kind(), error.to_string()).with_action(error.action())
            })?;
            String::from_utf8(bytes).ok()
        }
        (None, Some(token)) => token.into_string().ok(),
        (None, None) => return Ok(None),
    };
    let text = text.unwrap_or_default().trim().to_owned();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let name = if env::var_os(TOKEN_FILE_VARIABLE).is_some() {
            TOKEN_FILE_VARIABLE
        } else {
            TOKEN_VARIABLE
        };
        return Err(bad(format!("{name} contains no token")));
    }
    Ok(Some(SecretText::new(text)))
}

fn only(mut names: Vec<String>) -> Option<String> {
    if names.len() == 1 { names.pop() } else { None }
}

/// Adds the nearest name, or the snapshots of the volume, to the message of an error about a
/// missing object. Replaces the action of the error by the command that lists such objects.
fn with_list(
    mut error: ApiError,
    noun: &str,
    name: &str,
    near: Option<&str>,
    names: &[String],
) -> ApiError {
    /// Maximum number of snapshots that an error names.
    const NAMED_MAX: usize = 5;
    let volume = name.split(['@', '#']).next().unwrap_or_default();
    let own = |full: &String| full.get(volume.len()..).unwrap_or_default().to_owned();
    if noun == "snapshot" && !names.is_empty() {
        let newest: Vec<String> = names.iter().rev().take(NAMED_MAX).rev().map(own).collect();
        let rest = if names.len() > NAMED_MAX { " and older ones" } else { "" };
        let list = newest.join(", ");
        error.message = format!("{}; {volume} has {list}{rest}", error.message);
    } else if let Some(near) = near {
        error.message = format!("{}; there is {near}", error.message);
    }
    let pool = name.split('/').next().unwrap_or_default();
    let has_pool = names.iter().any(|known| known.split('/').next() == Some(pool));
    match noun {
        "volume" if has_pool => error.with_action(format!("weir volume list {pool}")),
        "snapshot" | "bookmark" if !names.is_empty() => {
            error.with_action(format!("weir {noun} list {volume}"))
        }
        _ => error,
    }
}

/// Returns the command that imports a pool; `None` if the last change of the pool was not an
/// export.
fn import_line(pool: &str, history: &[HistoryEntry]) -> Option<String> {
    /// Maximum number of directories in the command.
    const DIRS_MAX: usize = 4;
    let verb = |entry: &HistoryEntry| {
        let verb = entry.call.split_whitespace().nth(1).unwrap_or_default();
        ["create", "import", "export", "destroy"].contains(&verb)
            && entry.call.starts_with("pool ")
            && entry.error.is_none()
    };
    let last = history.iter().rfind(|entry| verb(entry))?;
    last.call.split_whitespace().nth(1).filter(|verb| *verb == "export")?;
    let mut dirs: Vec<&str> = Vec::new();
    for entry in history.iter().filter(|entry| entry.error.is_none()) {
        let paths = entry.call.split_whitespace().filter(|word| word.starts_with('/'));
        let parents = paths.filter_map(|path| path.rsplit_once('/')).map(|(dir, _)| dir);
        for dir in parents.filter(|dir| !dir.is_empty()) {
            if entry.call.starts_with("pool ") && !dirs.contains(&dir) && dirs.len() < DIRS_MAX {
                dirs.push(dir);
            }
        }
    }
    if dirs.is_empty() {
        dirs.push("DIR");
    }
    let search = dirs.iter().flat_map(|dir| ["-d", dir]);
    let words = ["pool", "import"].into_iter().chain(search).chain([pool]);
    Some(typed::shown(&[], &words.map(str::to_owned).collect::<Vec<_>>()))
}

/// A client of the server, with the output format of this command.
pub(crate) struct Session {
    client: Client,
    runtime: Runtime,
    json: bool,
    /// Address of a server on another machine; `None` for a server on this machine.
    remote: Option<String>,
}

impl Session {
    /// Finds the server: at the address in `--api`, else in `WEIR_API`, else at the default
    /// addresses.
    pub(crate) fn open(root: &RootRemote, near: &RootRemote) -> Result<Self, ApiError> {
        let given = match near.api.as_ref().or(root.api.as_ref()) {
            Some(text) => Some(text.clone()),
            None => match env::var(API_VARIABLE) {
                Ok(text) => Some(text),
                Err(VarError::NotPresent) => None,
                Err(VarError::NotUnicode(_)) => {
                    let message = format!("{API_VARIABLE} is not valid UTF-8");
                    return Err(ApiError::new(ErrorKind::Invalid, message));
                }
            },
        };
        let token = token()?;
        let ca = near.ca.clone().or_else(|| root.ca.clone());
        let ca = ca.or_else(|| env::var_os(CA_VARIABLE).map(PathBuf::from));
        let remote = given.as_deref().and_then(|text| {
            let place = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
            let address = Address::parse(place.unwrap_or(text), API_PORT).ok()?;
            Some(address).filter(|address| !address.is_local()).map(|address| address.to_string())
        });
        let mut client = match given {
            None => Client::new(default_server()),
            Some(text) => client(&text, ca.as_deref(), token.is_some())?,
        };
        if let Some(token) = token {
            client = client.with_token(token);
        }
        if let Some(seconds) = near.timeout.or(root.timeout) {
            client = client.with_timeout(Duration::from_secs(seconds));
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            ApiError::new(ErrorKind::Unavailable, format!("cannot start a runtime: {error}"))
        })?;
        Ok(Self { client, runtime, json: near.json || root.json, remote })
    }

    /// Makes one call.
    pub(crate) fn call<C: Call>(&self, call: C) -> Result<C::Answer, ApiError> {
        self.wait(self.client.call(call)).map_err(|error| self.with_nearest(error))
    }

    /// Adds details to an error that the server cannot add: the nearest name of an existing object,
    /// the directories of an exported pool, or another way to reach the server.
    fn with_nearest(&self, error: ApiError) -> ApiError {
        match error.kind {
            ErrorKind::NotFound => self.with_name(error),
            // The user may not open the server's socket: the action of this error starts with these
            // words.
            ErrorKind::Permission if error.action.starts_with("run it as root") => {
                let has_group = |text: String| text.lines().any(|line| line.starts_with("weir:"));
                if std::fs::read_to_string("/etc/group").is_ok_and(has_group) {
                    return error;
                }
                let line = typed::rewritten(|words| words);
                error.with_action(format!(
                    "sudo {line}; or as root: groupadd weir; usermod -aG weir USER; then start the \
                     server again; a token works over TCP"
                ))
            }
            ErrorKind::Unavailable if error.action.starts_with("start it with `weir serve`") => {
                match &self.remote {
                    Some(place) => error.with_action(format!(
                        "on that machine: weir serve --api {place} --tls-cert FILE --tls-key FILE; \
                         or check the port and the firewall"
                    )),
                    None => error,
                }
            }
            _ => error,
        }
    }

    /// Adds the nearest existing name to an error about a missing object. If the typed verb removes
    /// objects, the message names the object, but no command that removes it is suggested.
    fn with_name(&self, mut error: ApiError) -> ApiError {
        const IN_DIR: &str = "weir pool import -d DIR ";
        if let Some(rest) = error.action.strip_prefix(IN_DIR) {
            let name = rest.split([',', ' ']).next().unwrap_or_default();
            let line = self.exported(name);
            return typed::with_line(error, line);
        }
        let Some((noun, name)) = typed::missing(&error.message) else { return error };
        let (noun, name) = (noun.to_owned(), name.to_owned());
        if noun == "pool"
            && let Some(line) = self.exported(&name)
        {
            error.message = format!("no imported pool is called {name}");
            return error.with_action(line);
        }
        let names = self.names(&noun, &name);
        let near = typed::nearest(&name, names.iter().map(String::as_str));
        if typed::is_removal() || noun == "snapshot" {
            let line = near.and_then(|near| typed::line_with(&name, near));
            if let Some(line) = line.filter(|_| !typed::is_removal()) {
                return error.with_action(line);
            }
            return with_list(error, &noun, &name, near, &names);
        }
        // The user may have typed a target's name without its prefix, so compare both forms.
        let prefix = target_name("");
        let line = near.and_then(|near| {
            typed::line_with(&name, near).or_else(|| {
                let short = |name: &str| name.strip_prefix(&prefix).map(str::to_owned);
                typed::line_with(&short(&name)?, &short(near)?)
            })
        });
        typed::with_line(error, line)
    }

    /// Returns the names of all objects of a kind. For snapshots and bookmarks, returns only those
    /// that belong to the volume in `name`.
    fn names(&self, noun: &str, name: &str) -> Vec<String> {
        let volume = || Some(name.split(['@', '#']).next().unwrap_or_default().to_owned());
        let found: Result<Vec<String>, ApiError> = match noun {
            "pool" => {
                let pools = self.wait(self.client.call(ListPools {}));
                pools.map(|all| all.pools.into_iter().map(|pool| pool.name).collect())
            }
            "volume" => {
                let volumes = self.wait(self.client.call(ListVolumes { pool: None }));
                volumes.map(|all| all.volumes.into_iter().map(|volume| volume.name).collect())
            }
            "filesystem" => {
                let all = self.wait(self.client.call(ListFilesystems { pool: None }));
                all.map(|all| all.filesystems.into_iter().map(|one| one.name).collect())
            }
            "snapshot" => {
                let all = self.wait(self.client.call(ListSnapshots::from(volume())));
                all.map(|all| all.snapshots.into_iter().map(|snapshot| snapshot.name).collect())
            }
            "bookmark" => {
                let all = self.wait(self.client.call(ListBookmarks { of: volume() }));
                all.map(|all| all.bookmarks.into_iter().map(|mark| mark.name).collect())
            }
            "export" => {
                let all = self.wait(self.client.call(ListExports {}));
                all.map(|all| all.exports.into_iter().map(|export| export.name).collect())
            }
            "target" => {
                let all = self.wait(self.client.call(ListTargets {}));
                all.map(|all| all.targets.into_iter().map(|target| target.name).collect())
            }
            "token" => {
                let all = self.wait(self.client.call(ListTokens {}));
                all.map(|all| all.tokens.into_iter().map(|token| token.name).collect())
            }
            _ => return Vec::new(),
        };
        found.unwrap_or_default()
    }

    /// Returns the command that imports a pool which was exported from this server. The command
    /// names the directories of its disks.
    fn exported(&self, pool: &str) -> Option<String> {
        let key = ListHistory { name: pool.to_owned() };
        let history = self.wait(self.client.call(key)).ok()?.entries;
        import_line(pool, &history)
    }

    /// Returns the names of a volume's snapshots, oldest first.
    pub(crate) fn snapshots_of(&self, volume: &str) -> Vec<String> {
        self.names("snapshot", volume)
    }

    /// Checks that a snapshot exists before the user must confirm a change of it.
    pub(crate) fn check_snapshot(&self, name: &str) -> Result<(), ApiError> {
        let volume = name.split('@').next().unwrap_or_default().to_owned();
        let all = self.call(ListSnapshots::from(Some(volume)))?;
        if all.snapshots.iter().any(|snapshot| snapshot.name == name) {
            return Ok(());
        }
        let message = format!("snapshot {name} does not exist");
        Err(self.with_nearest(ApiError::new(ErrorKind::NotFound, message)))
    }

    /// Checks that a bookmark exists before the user must confirm its destruction.
    pub(crate) fn check_bookmark(&self, name: &str) -> Result<(), ApiError> {
        let volume = name.split('#').next().unwrap_or_default().to_owned();
        let all = self.call(ListBookmarks { of: Some(volume) })?;
        if all.bookmarks.iter().any(|mark| mark.name == name) {
            return Ok(());
        }
        let message = format!("bookmark {name} does not exist");
        Err(self.with_nearest(ApiError::new(ErrorKind::NotFound, message)))
    }

    /// Returns the name of the pool if there is exactly one.
    pub(crate) fn only_pool(&self) -> Option<String> {
        only(self.names("pool", ""))
    }

    /// Returns the short name of the target if there is exactly one.
    pub(crate) fn only_target(&self) -> Option<String> {
        let name = only(self.names("target", ""))?;
        Some(name.strip_prefix(&target_name("")).map_or(name.clone(), str::to_owned))
    }

    /// Returns the full name of the volume with this name in its pool, if exactly one pool has such
    /// a volume.
    pub(crate) fn only_volume(&self, own: &str) -> Option<String> {
        let mut names = self.names("volume", "");
        names.retain(|name| name.split_once('/').is_some_and(|(_, known)| known == own));
        only(names)
    }

    /// Returns the client, for calls whose request or response is a stream.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for the response of a call that was already started.
    pub(crate) fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let mut done = None;
        self.drive(pin!(async { done = Some(answer.await) }));
        done.expect("the future above stores the answer before it ends")
    }

    /// Runs a future to its end. This is a separate function, so that the compiler generates its
    /// code only once for all types of responses.
    fn drive(&self, work: Pin<&mut dyn Future<Output = ()>>) {
        self.runtime.block_on(work);
    }

    /// Prints a response: as JSON, or as the text that `human` returns.
    pub(crate) fn print<T: Serialize>(
        &self,
        answer: &T,
        human: impl FnOnce(&T) -> String,
    ) -> Result<(), ApiError> {
        if self.json {
            output::print(&output::json(answer)?)
        } else {
            output::print(&human(answer))
        }
    }

    /// With `--json`, prints a response to standard error, for a verb that writes a stream to
    /// standard output.
    pub(crate) fn print_aside<T: Serialize>(&self, answer: &T) -> Result<(), ApiError> {
        if self.json {
            output::say(output::json(answer)?.trim_end());
        }
        Ok(())
    }

    /// True if messages go to a terminal and the output format is not JSON.
    pub(crate) fn is_watched(&self) -> bool {
        !self.json && std::io::stderr().is_terminal()
    }

    /// Prints a message, unless the output format is JSON.
    pub(crate) fn say(&self, text: &str) {
        if !self.json {
            output::say(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(call: &str) -> HistoryEntry {
        HistoryEntry {
            unix_ms: 1,
            took_ms: 1,
            who: "root".to_owned(),
            pool: "cold".to_owned(),
            call: call.to_owned(),
            outcome: "changed".to_owned(),
            error: None,
            times: 1,
        }
    }

    #[test]
    fn exported_pool_is_imported_from_the_directories_of_its_disks() {
        let mut history = vec![
            entry("pool create cold mirror /srv/a.img /srv/b.img"),
            entry("pool add cold /mnt/c.img"),
        ];
        assert_eq!(import_line("cold", &history), None, "it is imported");
        history.push(entry("pool export cold"));
        let line = import_line("cold", &history);
        assert_eq!(line.as_deref(), Some("weir pool import -d /srv -d /mnt cold"));
        history.push(entry("pool destroy cold"));
        assert_eq!(import_line("cold", &history), None);
    }
}

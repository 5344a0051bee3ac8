//! A call to the server, and the output of its response.
//!
//! Not here: the calls (weir-api).
//!
//! Invariants:
//! - `--json` prints one object with `schema_version` and nothing else;
//! - `--json` suppresses messages.

use std::env::{self, VarError};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use weir_api::place::{API_PORT, API_VARIABLE, default_server};
use weir_api::token::SecretText;
use weir_api::types::{ListPools, ListVolumes};
use weir_api::{Address, ApiError, Call, Client};
use weir_base::{ErrorKind, private};

use crate::cli::base::remote::RootRemote;
use crate::cli::base::{hints, output};

/// Variable with the path of the token file. Tokens are never arguments, because every user of the
/// machine can see the arguments of a process.
const TOKEN_FILE_VARIABLE: &str = "WEIR_TOKEN_FILE";

/// Variable with the token itself, used if [`TOKEN_FILE_VARIABLE`] is not set.
const TOKEN_VARIABLE: &str = "WEIR_TOKEN";

/// Variable with the path of the CA certificates.
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
    let address = Address::parse(text, API_PORT)?;
    if has_token && !address.is_local() && !text.starts_with("http://") {
        let message = format!("the token would be sent to {address} in clear text");
        return Err(ApiError::new(ErrorKind::Permission, message).with_action(format!(
            "use TLS: --api https://{address} --ca FILE; only on a trusted network: --api \
             http://{address}"
        )));
    }
    Ok(Client::new(address))
}

/// Returns the token to send; `None` for a user of the server's machine.
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

/// A client of the server and the output format.
pub(crate) struct Session {
    client: Client,
    runtime: Runtime,
    json: bool,
}

impl Session {
    /// Finds the server by `--api`, then by `WEIR_API`, then at the default addresses.
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
        Ok(Self { client, runtime, json: near.json || root.json })
    }

    /// Makes one call.
    pub(crate) fn call<C: Call>(&self, call: C) -> Result<C::Answer, ApiError> {
        self.wait(self.client.call(call)).map_err(|error| self.with_nearest(error))
    }

    /// Adds the typed command line with the nearest existing name to an error about a missing pool
    /// or volume.
    fn with_nearest(&self, error: ApiError) -> ApiError {
        let Some((noun, name)) = hints::missing(&error.message) else { return error };
        if error.kind != ErrorKind::NotFound {
            return error;
        }
        let names: Vec<String> = match noun {
            "pool" => {
                let pools = self.wait(self.client.call(ListPools {}));
                pools.map(|all| all.pools.into_iter().map(|pool| pool.name).collect())
            }
            "volume" => {
                let volumes = self.wait(self.client.call(ListVolumes { pool: None }));
                volumes.map(|all| all.volumes.into_iter().map(|volume| volume.name).collect())
            }
            _ => return error,
        }
        .unwrap_or_default();
        let near = hints::nearest(name, names.iter().map(String::as_str));
        match near.and_then(|near| hints::line_with(name, near)) {
            Some(line) => error.with_action(line),
            None => error,
        }
    }

    /// Returns the name of the only pool.
    pub(crate) fn only_pool(&self) -> Option<String> {
        let mut pools = self.wait(self.client.call(ListPools {})).ok()?.pools;
        if pools.len() == 1 { pools.pop().map(|pool| pool.name) } else { None }
    }

    /// Returns the client, for calls whose body is a stream.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for the response of an earlier call.
    pub(crate) fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let mut done = None;
        self.drive(pin!(async { done = Some(answer.await) }));
        done.expect("the future above stores the answer before it ends")
    }

    /// Runs a future to its end. This is a separate function, so that the code is compiled once and
    /// not for each type of response.
    fn drive(&self, work: Pin<&mut dyn Future<Output = ()>>) {
        self.runtime.block_on(work);
    }

    /// Prints a response: as JSON, or as text formatted by `human`.
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

    /// Prints a response if `--json` is set, on standard error. Used by verbs whose standard output
    /// is a stream.
    pub(crate) fn print_aside<T: Serialize>(&self, answer: &T) -> Result<(), ApiError> {
        if self.json {
            output::say(output::json(answer)?.trim_end());
        }
        Ok(())
    }

    /// True if messages go to a terminal and the output is not JSON.
    pub(crate) fn is_watched(&self) -> bool {
        !self.json && std::io::stderr().is_terminal()
    }

    /// Prints a message, unless the output is JSON.
    pub(crate) fn say(&self, text: &str) {
        if !self.json {
            output::say(text);
        }
    }
}

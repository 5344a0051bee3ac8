//! One call to the server and the way its answer is printed.
//!
//! Not here: the calls (weir-api).
//!
//! Invariants:
//! - `--json` prints one object with `schema_version` and nothing else;
//! - talk is silent with `--json`.

use std::env::{self, VarError};
use std::io::IsTerminal as _;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use weir_api::place::{API_PORT, API_VARIABLE, default_server};
use weir_api::{Address, Answer, ApiError, Client};
use weir_base::ErrorKind;

use crate::args::RootRemote;
use crate::output;

/// A server to call and a way to print.
pub(crate) struct Session {
    client: Client,
    runtime: Runtime,
    json: bool,
}

impl Session {
    /// Finds the server: `--api`, then `WEIR_API`, then the default places.
    pub(crate) fn open(root: &RootRemote, near: &RootRemote) -> Result<Self, ApiError> {
        let address = match near.api.as_ref().or(root.api.as_ref()) {
            Some(text) => Address::parse(text, API_PORT)?,
            None => match env::var(API_VARIABLE) {
                Ok(text) => Address::parse(&text, API_PORT)?,
                Err(VarError::NotPresent) => default_server(),
                Err(VarError::NotUnicode(_)) => {
                    let message = format!("{API_VARIABLE} is not valid UTF-8");
                    return Err(ApiError::new(ErrorKind::Invalid, message));
                }
            },
        };
        let mut client = Client::new(address);
        if let Some(seconds) = near.timeout.or(root.timeout) {
            client = client.with_timeout(Duration::from_secs(seconds));
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            ApiError::new(ErrorKind::Unavailable, format!("cannot start a runtime: {error}"))
        })?;
        Ok(Self { client, runtime, json: near.json || root.json })
    }

    /// Makes one call.
    pub(crate) fn call<T>(
        &self,
        call: impl FnOnce(&Client) -> Answer<'_, T>,
    ) -> Result<T, ApiError> {
        self.wait(call(&self.client))
    }

    /// Waits for what an earlier call began.
    pub(crate) fn wait<T>(&self, answer: Answer<'_, T>) -> Result<T, ApiError> {
        self.runtime.block_on(answer)
    }

    /// Prints an answer: as JSON, or as the text `human` makes of it.
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

    /// With `--json`, prints to standard error, where standard output is taken.
    pub(crate) fn print_aside<T: Serialize>(&self, answer: &T) -> Result<(), ApiError> {
        if self.json {
            output::say(output::json(answer)?.trim_end());
        }
        Ok(())
    }

    /// Whether a person watches: talk goes to a terminal, and data is not JSON.
    pub(crate) fn is_watched(&self) -> bool {
        !self.json && std::io::stderr().is_terminal()
    }

    /// Says something that is not data.
    pub(crate) fn say(&self, text: &str) {
        if !self.json {
            output::say(text);
        }
    }
}

//! Tokens: what a caller shows that is not a user of this machine, and what each may do.
//!
//! Not here: how a token is checked (the server), how it travels (`token`).
//!
//! Invariant: the secret of a token is in the answer of the call that made it, and nowhere else.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::request::{names_nothing_else, no_rules, outcome_and_no_other_name};
use super::{Outcome, Request};
use crate::Error;
use crate::access::{Role, Scope};
use crate::token::SecretText;

/// A token to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenCreate {
    /// Its name: history and events call its holder so.
    pub name: String,
    /// What sort of calls it is good for.
    pub role: Role,
    /// What it may touch: pools (`tank`), volumes (`tank/vm1`) and prefixes of volumes
    /// (`tank/k8s-*`); everything without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// When it ends; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
}

impl Request for TokenCreate {
    fn check(&self) -> Result<(), Error> {
        names::tag(&self.name)?;
        Scope::parse(&self.scope).map(drop)
    }

    fn details(&self) -> String {
        let scope = if self.scope.is_empty() { "all".to_owned() } else { self.scope.join(",") };
        format!("{} {} {scope}", self.name, self.role.name())
    }
}

/// A token to be revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRevoke {
    /// Name of the token.
    pub name: String,
}

impl Request for TokenRevoke {
    fn check(&self) -> Result<(), Error> {
        Ok(names::tag(&self.name)?)
    }

    fn details(&self) -> String {
        self.name.clone()
    }
}

/// All tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTokens {}

no_rules!(ListTokens);

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Its name.
    pub name: String,
    /// What sort of calls it is good for.
    pub role: Role,
    /// What it may touch; everything if empty.
    pub scope: Vec<String>,
    /// Who made it.
    pub created_by: String,
    /// When that was.
    pub created_unix_ms: u64,
    /// When it ends.
    pub expires_unix_ms: Option<u64>,
    /// Whether that has come.
    pub is_expired: bool,
    /// When it was used last, to a minute.
    pub last_used_unix_ms: Option<u64>,
    /// From where.
    pub last_used_from: Option<String>,
}

/// The answer of a call that made a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The token.
    pub token: Token,
    /// What its holder shows. It is told this once: the server keeps only a hash of it.
    #[schema(value_type = String)]
    pub secret: SecretText,
}

// The calls are refused to every scope.
outcome_and_no_other_name!(TokenCreated);

/// Tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// By name.
    pub tokens: Vec<Token>,
    /// Calls that this run of the server refused for a token that it does not know.
    pub refused: u64,
}

names_nothing_else!(TokenList);

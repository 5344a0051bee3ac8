//! Tokens: credentials of callers that are not users of this machine, with a role and a scope.
//!
//! The server verifies tokens; `crate::token` defines their format in HTTP.
//!
//! Invariant: only the response of the call that creates a token contains its secret.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::request::{names_nothing_else, no_rules, outcome_and_no_other_name};
use super::{Outcome, Request};
use crate::Error;
use crate::access::{Role, Scope};
use crate::token::SecretText;

/// Request to create a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenCreate {
    /// Name of the token, which history and events show as the caller.
    pub name: String,
    /// Role: the calls that the token permits.
    pub role: Role,
    /// Objects that the token permits access to: pools (`tank`), volumes (`tank/vm1`) and prefixes
    /// of volumes (`tank/k8s-*`). Empty: all objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Expiry time; absent: the token does not expire.
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

/// Request to revoke a token.
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

/// Request to list all tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTokens {}

no_rules!(ListTokens);

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Name of the token.
    pub name: String,
    /// Role: the calls that the token permits.
    pub role: Role,
    /// Objects that the token permits access to. Empty: all objects.
    pub scope: Vec<String>,
    /// Caller that created the token.
    pub created_by: String,
    /// Creation time.
    pub created_unix_ms: u64,
    /// Expiry time; absent: the token does not expire.
    pub expires_unix_ms: Option<u64>,
    /// True if the token has expired.
    pub is_expired: bool,
    /// Time of the last use, accurate to a minute.
    pub last_used_unix_ms: Option<u64>,
    /// Address of the last use.
    pub last_used_from: Option<String>,
}

/// Response of the call that creates a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The token.
    pub token: Token,
    /// The secret. No other call returns it, because the server stores only its hash.
    #[schema(value_type = String)]
    pub secret: SecretText,
}

// A caller with a scope may not create tokens.
outcome_and_no_other_name!(TokenCreated);

/// Tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// The tokens, by name.
    pub tokens: Vec<Token>,
    /// Number of calls that the server has refused since its start because of an unknown token.
    pub refused: u64,
}

names_nothing_else!(TokenList);

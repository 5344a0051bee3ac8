//! The traits that all requests and responses implement.
//!
//! The requests and responses are in the other files of `types`; `calls` transports them over HTTP.
//!
//! Invariants:
//! - [`Request::check`] depends only on the request, never on the state of the server;
//! - a response to a caller with a scope passes [`Answer::keep`]. This function has no default, so
//!   a new response type does not compile without it;
//! - after [`Answer::keep`], a response contains no name of a pool, volume, snapshot, bookmark or
//!   export outside the scope, nor the state, size or property of such an object. Texts for users
//!   stay, with the names in them replaced.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Error;
use crate::access::{Resources, Role, Scope};
use crate::wire::ApiError;

/// A request: the arguments of one call.
pub trait Request: Serialize + DeserializeOwned + ToSchema + Send + Sync + 'static {
    /// Checks the request without reading any state.
    ///
    /// # Errors
    /// The first rule that the request breaks.
    fn check(&self) -> Result<(), Error>;

    /// Returns the full names of the objects in the request. The scope of the caller must cover all
    /// these objects.
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Returns the object that history and events show for the call. The first part of its name is
    /// the pool to which the history entry belongs.
    fn about(&self) -> String {
        self.names().first().copied().unwrap_or_default().to_owned()
    }

    /// Returns further details for history and events, such as the tag of a hold.
    fn details(&self) -> String {
        String::new()
    }

    /// Returns the kind of the event for the call, if it differs from the name of the operation.
    fn kind(&self) -> Option<&'static str> {
        None
    }

    /// True if this request changes nothing although other requests of the same call do. The server
    /// does not record such a request.
    fn is_dry_run(&self) -> bool {
        false
    }

    /// Returns the role that this request needs; `operations` is the role that the table has for
    /// the call.
    fn role(&self, operations: Role) -> Role {
        operations
    }

    /// Returns the resources that this request accesses; `operations` is the value that the table
    /// has for the call.
    fn reach(&self, operations: Resources) -> Resources {
        operations
    }

    /// Returns the request, limited so that its response fits in one page.
    #[must_use]
    fn limited(self) -> Self {
        self
    }
}

/// A response of a call.
pub trait Answer: Serialize + DeserializeOwned + ToSchema + Send + 'static {
    /// Name of the field with the entries of a paginated list.
    const ENTRIES: Option<&'static str> = None;

    /// Removes the names of objects outside the scope, with the state and properties of these
    /// objects.
    fn keep(&mut self, scope: &Scope);

    /// Returns the outcome of a changing call; `None` for calls that change nothing.
    fn outcome(&self) -> Option<Outcome> {
        None
    }

    /// Returns the requested page of a list.
    ///
    /// # Errors
    /// `NotFound` if the last entry of the previous page is no longer in the list.
    fn page(self, _page: &Page) -> Result<Self, ApiError> {
        Ok(self)
    }
}

/// The requested page of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// `next` of the previous page.
    pub after: Option<String>,
    /// Maximum number of entries on the page.
    pub limit: Option<usize>,
}

/// Implements [`Answer`] for responses without objects of a pool, and for responses that name only
/// objects of their request, which the authorizer has already checked.
macro_rules! names_nothing_else {
    ($($answer:ty),* $(,)?) => {
        $(impl crate::types::request::Answer for $answer {
            fn keep(&mut self, _scope: &crate::access::Scope) {}
        })*
    };
}

/// Implements [`Answer`] like `names_nothing_else`, for responses with the field `outcome`.
macro_rules! outcome_and_no_other_name {
    ($($answer:ty),* $(,)?) => {
        $(impl crate::types::request::Answer for $answer {
            fn keep(&mut self, _scope: &crate::access::Scope) {}

            fn outcome(&self) -> Option<crate::types::request::Outcome> {
                Some(self.outcome)
            }
        })*
    };
}

/// Implements [`Request`] for a request that has no rules and names no object of a pool.
macro_rules! no_rules {
    ($request:ty) => {
        impl crate::types::request::Request for $request {
            fn check(&self) -> Result<(), crate::Error> {
                Ok(())
            }
        }
    };
}

/// Implements [`Request`] for a request with one rule: `$check` must accept the name in the field
/// `$field`.
macro_rules! one_name {
    ($check:path, $field:ident: $request:ty) => {
        impl crate::types::request::Request for $request {
            fn check(&self) -> Result<(), crate::Error> {
                $check(&self.$field)?;
                Ok(())
            }

            fn names(&self) -> Vec<&str> {
                vec![&self.$field]
            }
        }
    };
}

pub(super) use {names_nothing_else, no_rules, one_name, outcome_and_no_other_name};

/// Outcome of a changing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The call created the object.
    Created,
    /// The object existed, and the call changed it.
    Changed,
    /// The object existed, and the call removed it.
    Removed,
    /// The object was in the requested state before the call.
    Unchanged,
}

/// Response of a call that removes an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// The outcome of the call.
    pub outcome: Outcome,
    /// Name of the removed object.
    pub name: String,
}

outcome_and_no_other_name!(Removed);

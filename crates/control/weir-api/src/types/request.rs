//! The traits of requests and answers.
//!
//! Not here: the requests and answers (the other files of `types`), how they travel (`calls`).
//!
//! Invariants:
//! - [`Request::check`] looks at the request alone, not at any state;
//! - an answer to a caller with a scope passes [`Answer::keep`], which has no default: a new type
//!   of answer does not compile without one;
//! - a kept answer names no pool, volume, snapshot, bookmark or export outside of the scope, and
//!   has no state, size or property of one; texts for people lose only the names outside.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Error;
use crate::access::{Reach, Role, Scope};
use crate::wire::ApiError;

/// A request: what one call is made with.
pub trait Request: Serialize + DeserializeOwned + ToSchema + Send + Sync + 'static {
    /// Checks the request without a look at any state.
    ///
    /// # Errors
    /// The first rule that the request breaks.
    fn check(&self) -> Result<(), Error>;

    /// Full names that the request is about: the scope of the caller must cover all of them.
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The name that the record has for the subject. Its first part is the pool that the entry
    /// belongs to.
    fn about(&self) -> String {
        self.names().first().copied().unwrap_or_default().to_owned()
    }

    /// The rest of the entry in the record, such as the tag of a hold.
    fn details(&self) -> String {
        String::new()
    }

    /// Kind of the event that records the call, where that is not the name of the operation.
    fn kind(&self) -> Option<&'static str> {
        None
    }

    /// Whether the call changes nothing although its operation does: it is not recorded.
    fn is_dry_run(&self) -> bool {
        false
    }

    /// The role that this request needs; `operations` is the role of its row.
    fn role(&self, operations: Role) -> Role {
        operations
    }

    /// The reach of this request; `operations` is the reach of its row.
    fn reach(&self, operations: Reach) -> Reach {
        operations
    }

    /// The request with the limits of one answer applied.
    #[must_use]
    fn limited(self) -> Self {
        self
    }
}

/// An answer of a call.
pub trait Answer: Serialize + DeserializeOwned + ToSchema + Send + 'static {
    /// Field with the entries of a list that is answered a page at a time.
    const ENTRIES: Option<&'static str> = None;

    /// Removes the names outside of the scope with their state and properties.
    fn keep(&mut self, scope: &Scope);

    /// The outcome of a changing call. None for calls that change nothing.
    fn outcome(&self) -> Option<Outcome> {
        None
    }

    /// The page of a list that was asked for.
    ///
    /// # Errors
    /// `NotFound` if the entry that the page begins behind is no longer in the list.
    fn page(self, _page: &Page) -> Result<Self, ApiError> {
        Ok(self)
    }
}

/// Which part of a list to answer.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// `next` of the page before.
    pub after: Option<String>,
    /// At most this many entries.
    pub limit: Option<usize>,
}

/// Implements [`Answer`] for answers that name only objects of the request, which the gate checked,
/// or no object of a pool.
macro_rules! names_nothing_else {
    ($($answer:ty),* $(,)?) => {
        $(impl crate::types::request::Answer for $answer {
            fn keep(&mut self, _scope: &crate::access::Scope) {}
        })*
    };
}

/// The same for answers with the field `outcome`.
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

/// Implements [`Request`] for a request without rules that names no object of a pool.
macro_rules! no_rules {
    ($request:ty) => {
        impl crate::types::request::Request for $request {
            fn check(&self) -> Result<(), crate::Error> {
                Ok(())
            }
        }
    };
}

/// Implements [`Request`] for a request with one rule: `$check` accepts the name in `$field`.
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

/// The outcome of a changing call.
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

/// The answer of a call that removes an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// The outcome of the call.
    pub outcome: Outcome,
    /// Name of the removed object.
    pub name: String,
}

outcome_and_no_other_name!(Removed);

//! Authorization: checks the caller's role and scope for a call.
//!
//! Identification of the caller is in `unix_access` and `token`, the role of each call is in
//! `calls::table`, the filter of responses is [`Answer::keep`](crate::types::Answer::keep).
//!
//! Invariants:
//! - a caller without rights may make no call;
//! - the scope must cover every object that a call accesses; a caller with a scope may not make a
//!   call that accesses the machine or more than one pool;
//! - a refusal never reveals whether an object with the refused name exists.

use weir_base::ErrorKind;

use crate::access::{Resources, Role, Scope};
use crate::caller;
use crate::calls::call::Operation;
use crate::wire::ApiError;

/// Checks the role and the scope of the current caller for a call that accesses the objects with
/// these names. Returns the scope.
///
/// # Errors
/// `Permission` if the role is too low, or for the first name that the scope does not cover.
pub fn authorize(
    operation: &Operation,
    role: Role,
    reach: Resources,
    names: &[&str],
) -> Result<Scope, ApiError> {
    at_least(role)?;
    let scope = scope();
    let pool = |name: &&str| name.split(['/', '@', '#']).next().unwrap_or_default().to_owned();
    match reach {
        Resources::Any | Resources::Session => {}
        Resources::Named | Resources::LookedUp => {
            if let Some(name) = names.iter().find(|name| !scope.covers(name)) {
                return Err(outside(name));
            }
        }
        Resources::Filtered => {
            if let Some(pool) = names.iter().map(pool).find(|pool| !scope.reaches(pool)) {
                return Err(outside(&pool));
            }
        }
        Resources::Machine if scope.is_all() => {}
        Resources::Machine => {
            let caller = caller::current();
            let message =
                format!("{} affects objects outside the scope of {caller}", operation.name);
            return Err(ApiError::new(ErrorKind::Permission, message)
                .with_action("use a token without a scope, or the unix socket"));
        }
    }
    Ok(scope)
}

/// Replaces names outside the scope in the texts of an error.
pub(crate) fn keep_error(error: &ApiError, scope: &Scope) -> ApiError {
    let [message, action] = [&error.message, &error.action].map(|text| scope.cut_text(text));
    ApiError { kind: error.kind, message, action, field: error.field.clone() }
}

/// Returns the scope of the caller; it covers no object for a caller without rights.
fn scope() -> Scope {
    let caller = caller::current();
    caller.rights().map_or(Scope::Only(Vec::new()), |rights| rights.scope.clone())
}

/// Returns the error for a name outside the scope of the current caller.
pub fn outside(name: &str) -> ApiError {
    let caller = caller::current();
    let message = format!("{name:?} is outside the scope of {caller}");
    ApiError::new(ErrorKind::Permission, message)
        .with_action("use a token whose scope covers it: weir token create --scope")
}

/// Checks that the current caller has at least this role.
///
/// # Errors
/// `Permission` if the role of the caller is lower.
pub fn at_least(needed: Role) -> Result<(), ApiError> {
    let caller = caller::current();
    if caller.rights().is_some_and(|rights| rights.role >= needed) {
        return Ok(());
    }
    let is = caller.rights().map_or("none", |rights| rights.role.name());
    let message =
        format!("this call needs the role {}; the role of {caller} is {is}", needed.name());
    Err(ApiError::new(ErrorKind::Permission, message)
        .with_action("use a token of that role: weir token create --role"))
}

//! Shares: which clients may use which directories, and as which users.

mod identity;
mod rules;
mod table;

pub use identity::{Identity, Refusal, identify};
pub use rules::{Rights, Rule, RuleError, Rules, Squash};
pub use table::{Share, Shares};

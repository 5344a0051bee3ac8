//! Shares: which clients may use which directories, and as which users.

mod clients;
mod groups;
mod identity;
mod incidents;
mod lookup_threads;
mod names;
mod rules;
mod statistics;
mod table;
mod watcher;

pub use clients::ClientName;
pub use groups::{FindGroups, Groups};
pub(crate) use identity::identify_caller;
pub use identity::{Identity, Refusal, identify};
pub use incidents::{Incident, IncidentCounts, Incidents};
pub use names::{FindHosts, FoundHost, NameState, NameWaits, Names};
pub use rules::{Decision, Rights, Rule, RuleError, Rules, Squash};
pub(crate) use statistics::Completed;
pub use statistics::{CallClass, CallFigures, ClassFigures, ClientFigures, ShareStatistics};
pub(crate) use table::Found;
pub use table::{Share, Shares};
pub use watcher::{Watcher, WatcherSlot};

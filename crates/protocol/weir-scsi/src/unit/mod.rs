//! State of a logical unit: reservations, unit attentions, range locks, ROD tokens, I_T_L nexuses.

pub(crate) mod attention;
pub(crate) mod copies;
pub(crate) mod itl_nexus;
pub(crate) mod logical_unit;
pub(crate) mod mode;
pub(crate) mod nexus_name;
pub(crate) mod nexus_state;
pub(crate) mod options;
pub(crate) mod range;
pub(crate) mod range_lock;
pub mod reservation;
pub(crate) mod reservations;
pub(crate) mod rod_tokens;
pub(crate) mod token_use;

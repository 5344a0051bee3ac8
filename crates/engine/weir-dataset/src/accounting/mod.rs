//! Quotas, reservations and used space.

pub(crate) mod check;
pub(crate) mod limits;
pub(crate) mod unique;

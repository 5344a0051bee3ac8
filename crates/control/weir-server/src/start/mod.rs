//! Start and stop of the server, execution of its calls, and the calls about the server itself.

pub(crate) mod demo;
pub(crate) mod options;
pub mod process;
pub(crate) mod recorder;
#[cfg(test)]
pub(crate) mod rights_walk;
pub(crate) mod run;
pub(crate) mod server_calls;

//! Full feature phase of one connection, without the socket.

pub(crate) mod answer;
pub(crate) mod command;
pub(crate) mod gather;
pub(crate) mod management;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod outbox;
pub(crate) mod pending;
pub(crate) mod rest;
pub(crate) mod sequence;
pub(crate) mod state;
pub(crate) mod text;

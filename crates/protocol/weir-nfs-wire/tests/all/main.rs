//! Tests of the messages: round trips, layouts, replies that a server encodes piece by piece,
//! bytes of other implementations.
//!
//! weir-oncrpc tests the RPC headers.
//!
//! Invariant: no test needs a network.

mod captured;
mod generate;
mod layouts;
mod pieces;
mod round_trips;

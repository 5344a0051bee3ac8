//! XDR: external data representation (RFC 4506).

mod error;

mod decoder;
mod encoder;

mod types;

mod macros;

pub use decoder::Decoder;
pub use encoder::{Encoder, padding};
pub use error::XdrError;
pub use types::{Array, Failed, List, Opaque, UNBOUNDED, Xdr};

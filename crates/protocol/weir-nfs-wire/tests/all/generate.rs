//! Generator of valid messages: replaces the fields of random bytes that the decoder rejects.
//!
//! Invariant: a generated message has random values in all fields that may have any value.

use weir_block::OutBuf;
use weir_oncrpc::{Decoder, Encoder, XdrError};

/// Length of the random input. The generated messages are shorter.
const INPUT_BYTES: usize = 8192;

/// Maximum number of repairs of one message.
const REPAIRS_MAX: usize = 400;

/// Returns the bytes of a valid message. `None` if there were too many repairs.
pub(crate) fn message(
    seed: u64,
    decode: impl Fn(&mut Decoder<'_>) -> Result<(), XdrError>,
) -> Option<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes: Vec<u8> = (0..INPUT_BYTES).map(|_| random.u8(..)).collect();
    for _ in 0..REPAIRS_MAX {
        let mut input = Decoder::new(&bytes);
        let result = decode(&mut input);
        let used = bytes.len() - input.rest().len();
        if result.is_ok() {
            bytes.truncate(used);
            return Some(bytes);
        }
        // The decoder is behind the length, discriminant or Boolean that it rejected. 0 to 7 are
        // values of most enumerations; the longer lengths are bounds of types.
        let lengths = [31, 64, 255, 1024];
        let number = random.choice(lengths).filter(|_| random.u8(..8) == 0);
        let number = number.unwrap_or_else(|| random.u32(..8));
        bytes.get_mut(used - 4..used)?.copy_from_slice(&number.to_be_bytes());
    }
    None
}

/// Returns the bytes that `encode` appends.
pub(crate) fn encoded(encode: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut out = OutBuf::default();
    encode(&mut Encoder::new(&mut out));
    out.filled().to_vec()
}

//! Tests of the XDR types, with layouts from RFC 4506.

use weir_block::OutBuf;

use super::*;

fn encoded<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    let mut out = OutBuf::default();
    value.encode(&mut Encoder::new(&mut out));
    out.filled().to_vec()
}

crate::xdr_enum! {
    /// Status of the tests.
    enum Status {
        /// An error.
        NotFound = 2,
    }
}

crate::xdr_struct! {
    /// Structure of the tests.
    struct Pair<'a> {
        /// A name.
        pub name: Opaque<'a, 5>,
        /// A number.
        pub number: i32,
    }
}

#[test]
fn rfc_example_of_a_file_is_encoded_and_decoded() {
    // RFC 4506 section 7: struct file { string filename<255>; filetype type; string owner<32>;
    // opaque data<65536>; } with the name "sillyprog", EXEC and the arm "lisp".
    let bytes =
        b"\0\0\0\x09sillyprog\0\0\0\0\0\0\x02\0\0\0\x04lisp\0\0\0\x04john\0\0\0\x06(quit)\0\0";
    let mut input = Decoder::new(bytes);
    assert_eq!(input.opaque(255), Ok(&b"sillyprog"[..]));
    assert_eq!(input.u32(), Ok(2));
    assert_eq!(input.opaque(255), Ok(&b"lisp"[..]));
    assert_eq!(input.opaque(32), Ok(&b"john"[..]));
    assert_eq!(input.opaque(65536), Ok(&b"(quit)"[..]));
    assert_eq!(input.finish(), Ok(()));
    let mut out = OutBuf::default();
    let mut encoder = Encoder::new(&mut out);
    encoder.opaque(b"sillyprog");
    encoder.u32(2);
    encoder.opaque(b"lisp");
    encoder.opaque(b"john");
    encoder.opaque(b"(quit)");
    assert_eq!(out.filled(), bytes);
}

#[test]
fn lengths_above_the_bound_are_rejected_before_the_bytes_are_read() {
    let too_long = Err(XdrError::TooLong { len: 6, max: 5 });
    assert_eq!(Opaque::<5>::decode_whole(&[0, 0, 0, 6]), too_long);
    let too_long = XdrError::TooLong { len: 0xffff_ffff, max: 5 };
    assert_eq!(Array::<u32, 5>::decode_whole(&[0xff; 4]), Err(too_long));
    assert_eq!(Opaque::<5>::new(b"123456"), Err(XdrError::TooLong { len: 6, max: 5 }));
    assert!(Array::<u32, 1>::new(vec![1, 2]).is_err());
}

#[test]
fn padding_is_sent_as_zeros_and_accepted_as_any_bytes() {
    assert_eq!(encoded(&Opaque::<5>::new(b"12345").unwrap()), b"\0\0\0\x0512345\0\0\0");
    let padded = b"\0\0\0\x0512345xyz";
    assert_eq!(Opaque::<5>::decode_whole(padded).map(|opaque| opaque.bytes()), Ok(&b"12345"[..]));
    assert_eq!(Opaque::<5>::decode_whole(&padded[..11]), Err(XdrError::Truncated));
    assert_eq!(encoded(&[1_u8, 2, 3]), [1, 2, 3, 0]);
    assert_eq!(<[u8; 3]>::decode_whole(&[1, 2, 3, 9]), Ok([1, 2, 3]));
    assert_eq!([0, 1, 2, 3, 4, 5].map(crate::xdr::padding), [0, 3, 2, 1, 0, 3]);
}

#[test]
fn numbers_outside_an_enumeration_are_rejected() {
    let unknown = |name, value| Err(XdrError::UnknownValue { name, value });
    assert_eq!(bool::decode_whole(&[0, 0, 0, 2]).map(u32::from), unknown("bool", 2));
    assert_eq!(Status::decode_whole(&[0, 0, 0, 3]).map(|s| s as u32), unknown("Status", 3));
    assert_eq!(Status::decode_whole(&[0, 0, 0, 2]), Ok(Status::NotFound));
    assert_eq!(Status::ALL, [Status::NotFound]);
}

#[test]
fn composed_types_round_trip_and_truncated_ones_are_rejected() {
    fn check<'a, T: Xdr<'a> + PartialEq + std::fmt::Debug>(value: &T, bytes: &'a [u8]) {
        assert_eq!(encoded(value), bytes);
        assert_eq!(T::decode_whole(bytes).as_ref(), Ok(value));
        for len in 0..bytes.len() {
            assert_eq!(T::decode_whole(&bytes[..len]), Err(XdrError::Truncated), "{len}");
        }
    }
    let pair = Pair { name: Opaque::new(b"ab").unwrap(), number: -2 };
    let pair_bytes = b"\0\0\0\x02ab\0\0\xff\xff\xff\xfe";
    check(&pair, pair_bytes);
    check(&Some(7_u64), b"\0\0\0\x01\0\0\0\0\0\0\0\x07");
    check(&None::<u64>, b"\0\0\0\0");
    check(&Array::<u32, 3>::new(vec![5, 6]).unwrap(), b"\0\0\0\x02\0\0\0\x05\0\0\0\x06");
    check(&List(vec![true, false]), b"\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\0");
    check(&Ok::<_, Failed<Status, u32>>(pair), &[&[0; 4], &pair_bytes[..]].concat());
    let failed = Failed { status: Status::NotFound, info: 9 };
    check(&Err::<Pair<'_>, _>(failed), b"\0\0\0\x02\0\0\0\x09");
    let trailing = Err(XdrError::Trailing { bytes: 1 });
    assert_eq!(u32::decode_whole(&[0; 5]), trailing);
}

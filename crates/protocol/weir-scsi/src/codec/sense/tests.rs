//! Tests of the encodings of sense data, and of the sense code (key, ASC and ASCQ) that each error
//! kind of the storage has.
//!
//! The tests of `command` check the sense data of failed commands.

use weir_base::ErrorKind;
use weir_block::ExportError;

use super::*;
use crate::Status;
use crate::codec::refusal::Refusal;

#[test]
fn sense_data_in_fixed_format() {
    let sense = MISCOMPARE.with_information(0x1234);
    let expected = [0xF0, 0, 0xE, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x1D, 0, 0, 0, 0, 0];
    assert_eq!(sense.to_bytes(), expected);
    let wide = MISCOMPARE.with_information(1 << 40);
    assert_eq!(wide.to_bytes()[..7], [0x70, 0, 0xE, 0, 0, 0, 0]);
    let field = invalid_cdb_bit(1, 4).to_bytes();
    assert_eq!((field.len(), &field[15..]), (18, &[0xCC, 0, 1][..]));
    assert_eq!(invalid_parameter(0x0203).to_bytes()[15..], [0x80, 2, 3]);
}

#[test]
fn sense_data_in_descriptor_format() {
    let mut sense = OUT_OF_RANGE;
    sense.descriptor = true;
    assert_eq!(sense.to_bytes(), [0x72, 5, 0x21, 0, 0, 0, 0, 0]);
    sense = sense.with_information(1 << 40);
    let expected = [0, 10, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0];
    assert_eq!(sense.to_bytes(), [&[0x72, 5, 0x21, 0, 0, 0, 0, 12], &expected[..]].concat());
    let mut field = invalid_cdb(7);
    field.descriptor = true;
    assert_eq!(field.to_bytes()[7..], [8, 2, 6, 0, 0, 0xC0, 0, 7, 0]);
}

#[test]
fn every_error_kind_has_its_sense_code() {
    for kind in ErrorKind::ALL {
        let refusal = Refusal::from(ExportError::new(kind, "no"));
        let expected = match kind.name() {
            "busy" => {
                assert_eq!(refusal, Refusal::Status(Status::Busy));
                continue;
            }
            "invalid" => (0x5, 0x21, 0),
            "not_found" => (0x5, 0x25, 0),
            "no_space" => (0x7, 0x27, 7),
            "read_only" | "permission" => (0x7, 0x27, 0),
            "unavailable" => (0x2, 0x04, 0),
            "data" => (0x3, 0x11, 0),
            _ => (0x4, 0x44, 0),
        };
        let Refusal::Check(sense) = refusal else { panic!("{kind:?}") };
        assert_eq!((sense.key, sense.asc, sense.ascq), expected, "{kind:?}");
    }
}

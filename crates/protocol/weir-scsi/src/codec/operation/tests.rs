//! Tests that the command table is consistent and that the fields of block commands are decoded.
//!
//! The tests of the commands are in `tests/all/commands.rs`.

use super::*;

#[test]
fn find_returns_every_command_of_the_table() {
    for operation in OPERATIONS {
        let mut cdb = operation.usage.to_vec();
        cdb.resize(16, 0);
        cdb[operation.usage.len() - 1] = 0;
        if operation.has_service_action {
            cdb[1] &= SERVICE_ACTION;
        }
        let found = Operation::find(&cdb).unwrap();
        assert!(std::ptr::eq(found, operation), "{operation:?}");
        let expected = match operation.code() >> 5 {
            0 => 6,
            1 | 2 => 10,
            4 => 16,
            _ => 12,
        };
        assert_eq!(operation.usage.len(), expected, "{operation:?}");
        assert!(Operation::find(&cdb[..expected - 1]).is_err());
        cdb[expected - 1] = 4;
        assert_eq!(Operation::find(&cdb).unwrap_err(), invalid_cdb_bit(expected as u16 - 1, 2));
    }
}

#[test]
fn unknown_operation_codes_are_refused() {
    assert_eq!(Operation::find(&[]).unwrap_err(), NO_OPERATION);
    assert_eq!(Operation::find(&[0xFF; 16]).unwrap_err(), NO_OPERATION);
    assert_eq!(Operation::find(&[0x5E, 9, 0, 0]).unwrap_err(), invalid_cdb_bit(1, 4));
}

#[test]
fn extent_decodes_lba_and_length_of_every_cdb_size() {
    let at = |lba, blocks, field| Extent { lba, blocks, field };
    assert_eq!(extent(&[0x08, 0xFF, 2, 3, 0, 0]), at(0x1F_0203, 256, 4));
    assert_eq!(extent(&[0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0]), at(0x0102_0304, 0x0506, 7));
    assert_eq!(extent(&[0xA8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]), at(0x0102_0304, 0x0506_0708, 6));
    let wide = [0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0];
    assert_eq!(extent(&wide), at(0x0102_0304_0506_0708, 0x090A_0B0C, 10));
}

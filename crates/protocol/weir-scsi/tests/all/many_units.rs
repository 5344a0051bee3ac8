//! Test of a target with the maximum number of logical units.
//!
//! Invariant: no step takes more than linear time in the number of units; a quadratic step exceeds
//! the time limit of the test.

use std::sync::Arc;

use crate::common::{MemoryMedium, initiator, run, target};
use weir_scsi::limits::LUN_MAX;
use weir_scsi::reservation::ReservationState;
use weir_scsi::{Identity, Options, Unit};

/// Number of sessions that exist while the test adds units.
const SESSIONS: u8 = 4;

fn unit(number: u16) -> Arc<Unit> {
    let mut naa = [0x60; 16];
    naa[14..].copy_from_slice(&number.to_be_bytes());
    let (product, revision) = ("VOLUME".to_owned(), "0.1".to_owned());
    let identity = Identity { product, revision, serial: number.to_string(), naa };
    let medium = Arc::new(MemoryMedium::new(4096));
    Unit::new(medium, identity, Options::default(), ReservationState::default(), None)
}

#[test]
fn report_luns_lists_every_unit_of_a_full_target() {
    let target = target();
    let sessions: Vec<_> = (0..SESSIONS).map(|number| target.nexus(initiator(number), 1)).collect();
    let units = LUN_MAX + 1;
    for number in 0..units {
        assert!(target.add_lun(number, unit(number)));
    }
    let nexus = target.nexus(initiator(9), 1);
    run(&nexus, &[0x12, 0, 0, 0, 96, 0], &[]).good();
    let cdb = [0xA0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0];
    let list = run(&nexus, &cdb, &[]).good();
    assert_eq!(list.len(), 8 + 8 * usize::from(units));
    drop(nexus);
    for number in 0..units {
        drop(target.remove_lun(number));
    }
    drop(sessions);
}

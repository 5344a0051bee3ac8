//! Times of a target with as many logical units as it may have.
//!
//! Invariant: no step takes more than linear time in the number of units.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{MemoryMedium, initiator, run, target};
use weir_scsi::limits::LUN_MAX;
use weir_scsi::reservation::ReservationState;
use weir_scsi::{Identity, Nexus, Options, Target, Unit};

/// Number of sessions while units are added.
const SESSIONS: u8 = 4;

fn unit(number: u16) -> Arc<Unit> {
    let mut naa = [0x60; 16];
    naa[14..].copy_from_slice(&number.to_be_bytes());
    let (product, revision) = ("VOLUME".to_owned(), "0.1".to_owned());
    let identity = Identity { product, revision, serial: number.to_string(), naa };
    let medium = Arc::new(MemoryMedium::new(4096));
    Unit::new(medium, identity, Options::default(), ReservationState::default(), None)
}

/// Adds units to a target with this number of sessions; returns the time for each unit.
fn add(target: &Arc<Target>, units: u16, sessions: u8) -> (Vec<Box<dyn Nexus>>, Duration) {
    let nexus = |number| Box::new(target.nexus(initiator(number), 1)) as Box<dyn Nexus>;
    let nexuses = (0..sessions).map(nexus).collect();
    let begun = Instant::now();
    for number in 0..units {
        assert!(target.add_lun(number, unit(number)));
    }
    (nexuses, begun.elapsed() / u32::from(units))
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = work();
    (done, begun.elapsed())
}

#[test]
#[ignore = "prints times; run it alone and with --nocapture"]
#[expect(clippy::print_stdout, reason = "the times are the result")]
fn times_with_many_units() {
    for units in [2048, 4096, 8192, LUN_MAX + 1] {
        let idle = target();
        let (_, alone) = add(&idle, units, 0);
        let target = target();
        let (nexuses, each) = add(&target, units, SESSIONS);
        let (nexus, login) = timed(|| {
            let nexus = target.nexus(initiator(9), 1);
            run(&nexus, &[0x12, 0, 0, 0, 96, 0], &[]).good();
            nexus
        });
        let cdb = [0xA0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0];
        let (list, report) = timed(|| run(&nexus, &cdb, &[]).good());
        assert_eq!(list.len(), 8 + 8 * usize::from(units));
        let ((), logout) = timed(|| drop(nexus));
        let ((), removal) = timed(|| {
            (0..units).for_each(|number| drop(target.remove_lun(number)));
        });
        println!(
            "{units} units: add {alone:?} each, with {SESSIONS} sessions {each:?} each; \
             login and INQUIRY {login:?}; REPORT LUNS {report:?}; logout {logout:?}; \
             remove {:?} each",
            removal / u32::from(units)
        );
        drop(nexuses);
    }
}

//! Tests of reservations that use the commands of initiators.
//!
//! Tests of the rules of persistent reservations are in `src/unit/reservation/tests.rs`.

use std::sync::Arc;

use crate::common::{
    Answer, MemoryMedium, SIZE, identity, initiator, ready, run, simple, target, wide,
};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use weir_base::ErrorKind;
use weir_block::ExportError;
use weir_scsi::limits::PARAMETER_BYTES_MAX;
use weir_scsi::reservation::ReservationState;
use weir_scsi::{Lun, Management, Nexus, Options, Status, Unit, UnitStore};

const CONFLICT: Status = Status::ReservationConflict;

/// Runs PERSISTENT RESERVE OUT with a parameter list of these fields.
fn out(nexus: &dyn Nexus, action: u8, kind: u8, key: u64, new: u64, flags: u8) -> Answer {
    let mut list = [key.to_be_bytes(), new.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    run(nexus, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], &list)
}

fn input(nexus: &dyn Nexus, action: u8) -> Vec<u8> {
    run(nexus, &[0x5E, action, 0, 0, 0, 0, 0, 16, 0, 0], &[]).good()
}

fn write(nexus: &dyn Nexus) -> Status {
    run(nexus, &wide(0x8A, 0, 0, 1), &[1; 512]).status()
}

fn read(nexus: &dyn Nexus) -> Status {
    run(nexus, &wide(0x88, 0, 0, 1), &[]).status()
}

#[test]
fn every_type_grants_the_access_of_table_71() {
    // Columns: reservation type; read and write access of other registrants; read and write access
    // of unregistered nexuses.
    let table = [
        (1, [true, false], [true, false]),
        (3, [false, false], [false, false]),
        (5, [true, true], [true, false]),
        (6, [true, true], [false, false]),
        (7, [true, true], [true, false]),
        (8, [true, true], [false, false]),
    ];
    let (_medium, _unit, target, holder) = simple();
    let registered = ready(&target, 2);
    let stranger = ready(&target, 3);
    for (kind, registrants, strangers) in table {
        out(&*holder, 0, 0, 0, 1, 0).good();
        out(&*registered, 0, 0, 0, 2, 0).good();
        assert_eq!(out(&*stranger, 1, kind, 0, 0, 0).status(), CONFLICT);
        out(&*holder, 1, kind, 1, 0, 0).good();
        assert_eq!((read(&*holder), write(&*holder)), (Status::Good, Status::Good));
        for (nexus, [reads, writes]) in [(&registered, registrants), (&stranger, strangers)] {
            let expected = |may: bool| if may { Status::Good } else { CONFLICT };
            assert_eq!(read(&**nexus), expected(reads), "type {kind}");
            assert_eq!(write(&**nexus), expected(writes), "type {kind}");
            for always in [&[0; 6][..], &[0x12, 0, 0, 0, 96, 0], &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
            {
                run(&**nexus, always, &[]).good();
            }
        }
        let shown = input(&*stranger, 1);
        let key = u64::from(kind < 7);
        assert_eq!((&shown[8..16], shown[21]), (&key.to_be_bytes()[..], kind));
        out(&*holder, 3, 0, 1, 0, 0).good();
        assert_eq!(run(&*registered, &[0; 6], &[]).sense(), (6, 0x2A, 3));
        assert_eq!(write(&*stranger), Status::Good);
    }
}

#[test]
fn affected_nexuses_receive_unit_attentions() {
    let (_medium, _unit, target, first) = simple();
    let second = ready(&target, 2);
    out(&*first, 0, 0, 0, 1, 0).good();
    out(&*second, 0, 0, 0, 2, 0).good();
    assert_eq!(
        input(&*first, 0)[3..],
        [2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    );
    out(&*first, 1, 5, 1, 0, 0).good();
    // Send RELEASE with a wrong reservation type, then with the right type.
    assert_eq!(out(&*first, 2, 6, 1, 0, 0).sense(), (5, 0x26, 4));
    out(&*first, 2, 5, 1, 0, 0).good();
    assert_eq!(run(&*second, &[0; 6], &[]).sense(), (6, 0x2A, 4));
    // Send PREEMPT while the victim holds a reservation, and while it holds none.
    out(&*first, 1, 1, 1, 0, 0).good();
    let aborts = first.aborts(Lun::new(0));
    out(&*second, 5, 3, 2, 1, 0).good();
    assert_eq!(first.aborts(Lun::new(0)), aborts + 1);
    assert_eq!(run(&*first, &[0; 6], &[]).sense(), (6, 0x2A, 5));
    assert_eq!((read(&*first), write(&*second)), (CONFLICT, Status::Good));
    assert_eq!(out(&*first, 0, 0, 1, 5, 0).status(), CONFLICT);
    out(&*first, 6, 0, 77, 5, 0).good();
    assert_eq!(out(&*second, 4, 3, 2, 9, 0).status(), CONFLICT);
    assert_eq!(out(&*second, 4, 3, 2, 0, 0).sense(), (5, 0x26, 0));
    // If the holder unregisters, its reservation is released.
    out(&*second, 0, 0, 2, 0, 0).good();
    assert_eq!((read(&*first), read(&*second)), (Status::Good, Status::Good));
    let status = input(&*first, 3);
    assert_eq!(usize::from(status[7]), status.len() - 8);
    let name = initiator(1).to_string();
    assert_eq!(status[8..16], 5_u64.to_be_bytes());
    assert_eq!((&status[26..28], status[32]), (&[0, 1][..], 0x45));
    assert_eq!(&status[36..36 + name.len()], name.as_bytes());
}

/// Sends requests with invalid fields, and checks the reported capabilities.
#[test]
fn invalid_requests_change_nothing() {
    let (_medium, unit, _target, nexus) = simple();
    out(&*nexus, 0, 0, 0, 1, 0).good();
    let before = unit.reservations();
    assert_eq!(out(&*nexus, 1, 2, 1, 0, 0).sense(), (5, 0x24, 0));
    assert_eq!(out(&*nexus, 1, 0x11, 1, 0, 0).sense(), (5, 0x24, 0));
    // Request APTPL from a unit that has no store.
    assert_eq!(out(&*nexus, 0, 0, 1, 1, 1).sense(), (5, 0x26, 0));
    assert_eq!(out(&*nexus, 9, 0, 1, 1, 0).sense(), (5, 0x24, 0));
    for len in [0, 23, 25] {
        let answer = run(&*nexus, &[0x5F, 1, 1, 0, 0, 0, 0, 0, len, 0], &[0; 32]);
        assert_eq!(answer.sense(), (5, 0x1A, 0));
    }
    assert_eq!(unit.reservations(), before);
    assert_eq!(input(&*nexus, 2), [0, 8, 0x1C, 0x80, 0xEA, 1, 0, 0]);
    for action in 4..32 {
        let answer = run(&*nexus, &[0x5E, action, 0, 0, 0, 0, 0, 16, 0, 0], &[]);
        assert_eq!(answer.sense(), (5, 0x24, 0));
    }
}

/// Returns the TransportID of an initiator port.
fn transport_id(number: u8) -> Vec<u8> {
    let mut name = initiator(number).to_string().into_bytes();
    name.resize(name.len() / 4 * 4 + 4, 0);
    [&[0x45, 0, 0, name.len() as u8][..], &name].concat()
}

#[test]
fn parameter_list_beyond_the_limit_is_refused() {
    let (_medium, unit, _target, nexus) = simple();
    // Registers one other initiator port. Zeros pad the name of the port to the list length.
    let register = |list_len: usize| {
        let mut id = transport_id(2);
        id.resize(list_len - 28, 0);
        let text_len = (id.len() as u16 - 4).to_be_bytes();
        id[2..4].copy_from_slice(&text_len);
        let mut list = [[0; 8], 1_u64.to_be_bytes(), [0; 8]].concat();
        list[20] = 0x08;
        list.extend((id.len() as u32).to_be_bytes());
        list.extend(id);
        let mut cdb = vec![0x5F, 0, 0, 0, 0];
        cdb.extend((list.len() as u32).to_be_bytes());
        run(&*nexus, &cdb, &list)
    };
    assert_eq!(register(PARAMETER_BYTES_MAX + 4).sense(), (5, 0x1A, 0));
    assert!(unit.reservations().registrations.is_empty());
    register(PARAMETER_BYTES_MAX).good();
    assert_eq!(unit.reservations().registrations.len(), 2);
}

#[test]
fn other_ports_are_registered_and_receive_the_reservation() {
    let (_medium, unit, target, nexus) = simple();
    let ids = [transport_id(2), transport_id(3)].concat();
    let mut list = [[0; 8], 1_u64.to_be_bytes(), [0; 8]].concat();
    list[20] = 0x0C;
    list.extend((ids.len() as u32).to_be_bytes());
    list.extend(&ids);
    let cdb = [0x5F, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    let mut cut = list.clone();
    cut[27] -= 4;
    assert_eq!(run(&*nexus, &cdb, &cut).sense(), (5, 0x26, 0));
    run(&*nexus, &cdb, &list).good();
    // Three initiators are registered at two target ports each.
    let state = unit.reservations();
    assert_eq!(state.registrations.len(), 6);
    assert!(state.registrations.iter().all(|known| known.key == 1));
    assert_eq!(run(&*nexus, &cdb, &list).sense(), (5, 0x24, 0));
    out(&*nexus, 1, 3, 1, 0, 0).good();
    // Send REGISTER AND MOVE to a new initiator at the second target port.
    let id = transport_id(4);
    let mut list = [1_u64.to_be_bytes(), 9_u64.to_be_bytes()].concat();
    list.extend([0, 2, 0, 2]);
    list.extend((id.len() as u32).to_be_bytes());
    list.extend(&id);
    let cdb = [0x5F, 7, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    list[19] = 3;
    assert_eq!(run(&*nexus, &cdb, &list).sense(), (5, 0x26, 0));
    list[19] = 2;
    run(&*nexus, &cdb, &list).good();
    let fourth = target.nexus(initiator(4), 2);
    run(&fourth, &[0; 6], &[]);
    assert_eq!((write(&fourth), read(&*nexus)), (Status::Good, CONFLICT));
    assert_eq!(unit.reservations().registrations.len(), 6);
}

#[derive(Default)]
struct Kept {
    state: Mutex<Option<ReservationState>>,
    write_cache: Mutex<Option<bool>>,
    fails: Mutex<bool>,
}

impl UnitStore for Kept {
    fn save(&self, state: ReservationState) -> LocalBoxFuture<'_, Result<(), ExportError>> {
        async move {
            if *self.fails.lock() {
                return Err(ExportError::new(ErrorKind::Internal, "made to fail"));
            }
            *self.state.lock() = Some(state);
            Ok(())
        }
        .boxed_local()
    }

    fn save_write_cache(&self, on: bool) -> LocalBoxFuture<'_, Result<(), ExportError>> {
        async move {
            if *self.fails.lock() {
                return Err(ExportError::new(ErrorKind::Internal, "made to fail"));
            }
            *self.write_cache.lock() = Some(on);
            Ok(())
        }
        .boxed_local()
    }
}

#[test]
fn reservations_survive_a_loss_of_power() {
    let kept = Arc::new(Kept::default());
    let make = |state: ReservationState| {
        let medium = Arc::new(MemoryMedium::new(SIZE));
        let store: Arc<dyn UnitStore> = Arc::<Kept>::clone(&kept);
        let unit = Unit::new(medium, identity(1), Options::default(), state, Some(store));
        let target = target();
        assert!(target.add_lun(0, unit));
        target
    };
    let target = make(ReservationState::default());
    let nexus = ready(&target, 1);
    out(&*nexus, 0, 0, 0, 1, 0).good();
    assert!(kept.state.lock().is_none(), "kept without being asked to");
    out(&*nexus, 6, 0, 0, 1, 1).good();
    out(&*nexus, 1, 1, 1, 0, 0).good();
    *kept.fails.lock() = true;
    assert_eq!(out(&*nexus, 2, 1, 1, 0, 0).sense(), (4, 0x44, 0));
    *kept.fails.lock() = false;
    let text = serde_json::to_string(&*kept.state.lock()).unwrap();
    let state: Option<ReservationState> = serde_json::from_str(&text).unwrap();
    let target = make(state.unwrap());
    let (same, other) = (ready(&target, 1), ready(&target, 2));
    assert_eq!((write(&*same), write(&*other)), (Status::Good, CONFLICT));
    assert_eq!(input(&*same, 2)[2..4], [0x1D, 0x81]);
    out(&*same, 6, 0, 0, 1, 0).good();
    assert_eq!(*kept.state.lock(), Some(ReservationState::default()));
    assert_eq!(write(&*other), CONFLICT);
}

/// Returns WCE of the caching page in its current, changeable, default and saved values.
fn caches(nexus: &dyn Nexus) -> Vec<bool> {
    let cached = |values: u8| {
        let answer = run(nexus, &[0x1A, 8, values << 6 | 8, 0, 255, 0], &[]).good();
        assert_eq!(answer[4], 0x88, "PS");
        answer[6] & 4 != 0
    };
    (0..4).map(cached).collect()
}

#[test]
fn saved_write_cache_setting_survives_restart_and_reset() {
    let kept = Arc::new(Kept::default());
    let make = || {
        let medium = Arc::new(MemoryMedium::new(SIZE));
        let store: Arc<dyn UnitStore> = Arc::<Kept>::clone(&kept);
        let saved_write_cache = *kept.write_cache.lock();
        let options = Options { saved_write_cache, ..Options::default() };
        let state = ReservationState::default();
        let unit = Unit::new(medium, identity(1), options, state, Some(store));
        let target = target();
        assert!(target.add_lun(0, Arc::clone(&unit)));
        (target, unit)
    };
    let mut list = vec![0; 24];
    (list[4], list[5]) = (0x88, 18);
    let (target, _unit) = make();
    let nexus = ready(&target, 1);
    assert_eq!(caches(&*nexus), [true; 4]);
    // Turn the write cache off without SP.
    run(&*nexus, &[0x15, 0x10, 0, 0, 24, 0], &list).good();
    assert_eq!(caches(&*nexus), [false, true, true, true]);
    assert_eq!(*kept.write_cache.lock(), None);
    // If the store fails to save, MODE SELECT changes nothing.
    list[6] = 4;
    *kept.fails.lock() = true;
    assert_eq!(run(&*nexus, &[0x15, 0x11, 0, 0, 24, 0], &list).sense(), (4, 0x44, 0));
    assert_eq!(caches(&*nexus), [false, true, true, true]);
    *kept.fails.lock() = false;
    list[6] = 0;
    run(&*nexus, &[0x15, 0x11, 0, 0, 24, 0], &list).good();
    assert_eq!(caches(&*nexus), [false, true, true, false]);
    assert_eq!(*kept.write_cache.lock(), Some(false));
    let (target, unit) = make();
    assert!(!unit.write_cache());
    let nexus = ready(&target, 1);
    assert_eq!(caches(&*nexus), [false, true, true, false]);
    assert_eq!(
        nexus.manage(Lun::new(0), Management::LunReset),
        weir_scsi::TaskManagementResponse::Complete
    );
    assert!(!unit.write_cache());
}

#[test]
fn spc_2_reserve_and_release() {
    let (_medium, _unit, target, first) = simple();
    let second = ready(&target, 2);
    let (reserve, release) = ([0x16, 0, 0, 0, 0, 0], [0x17, 0, 0, 0, 0, 0]);
    run(&*first, &reserve, &[]).good();
    run(&*first, &reserve, &[]).good();
    assert_eq!((write(&*first), write(&*second)), (Status::Good, CONFLICT));
    for refused in [&[0; 6][..], &reserve, &[0x1A, 0, 0x3F, 0, 255, 0]] {
        assert_eq!(run(&*second, refused, &[]).status(), CONFLICT);
    }
    assert_eq!(out(&*first, 0, 0, 0, 1, 0).status(), CONFLICT);
    run(&*second, &[0x12, 0, 0, 0, 96, 0], &[]).good();
    run(&*second, &release, &[]).good();
    assert_eq!(read(&*second), CONFLICT);
    run(&*first, &release, &[]).good();
    run(&*second, &reserve, &[]).good();
    // The loss of a nexus releases its SPC-2 reservation, and a reset releases it too.
    drop(second);
    run(&*first, &reserve, &[]).good();
    let second = ready_later(&target);
    assert_eq!(read(&*second), CONFLICT);
    second.manage(Lun::new(0), Management::LunReset);
    run(&*first, &[0; 6], &[]);
    run(&*second, &[0; 6], &[]);
    assert_eq!((read(&*first), read(&*second)), (Status::Good, Status::Good));
    // If persistent reservations exist, RESERVE of a registrant with access ends with GOOD, but
    // makes no SPC-2 reservation.
    out(&*first, 0, 0, 0, 1, 0).good();
    assert_eq!(run(&*second, &reserve, &[]).status(), CONFLICT);
    out(&*first, 1, 1, 1, 0, 0).good();
    run(&*first, &reserve, &[]).good();
    run(&*first, &release, &[]).good();
    assert_eq!(write(&*second), CONFLICT);
}

/// Returns a second nexus to a unit that another nexus has reserved. The nexus has already received
/// its first unit attention, POWER ON.
fn ready_later(target: &Arc<weir_scsi::Target>) -> Box<dyn Nexus> {
    let nexus = Box::new(target.nexus(initiator(2), 1));
    assert_eq!(run(&*nexus, &[0; 6], &[]).sense(), (6, 0x29, 0));
    nexus
}

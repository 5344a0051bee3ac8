//! PERSISTENT RESERVE IN and OUT, RESERVE and RELEASE.
//!
//! `unit::reservation` computes the effect of each request on the reservation state.
//!
//! Spec: SPC-4 6.15 and 6.16; SPC-2 5.6 and 7.21 for RESERVE and RELEASE.
//!
//! Invariants:
//! - the unit applies one change at a time; a change that must survive a loss of power is saved
//!   before any command sees it;
//! - PREEMPT sends its response only after the end of all writes that the victims' former access
//!   allowed.

use std::sync::atomic::Ordering;

use weir_block::OutBuf;

use crate::codec::operation::SERVICE_ACTION;
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{
    LIST_LENGTH, Sense, invalid_cdb, invalid_cdb_bit, invalid_parameter, key,
};
use crate::command::task::{Task, reply};
use crate::fields::{be16, be32, be64, bit, byte};
use crate::limits::PARAMETER_BYTES_MAX;
use crate::unit::attention::Attention;
use crate::unit::logical_unit::Unit;
use crate::unit::reservation::{
    Change, Denied, Kind, Path, Registration, Request, ReservationState,
};
use crate::unit::reservations::CONFLICT;

/// APTPL (activate persist through power loss).
const APTPL: u8 = 0x01;
const ALL_TG_PT: u8 = 0x04;
const SPEC_I_PT: u8 = 0x08;

/// RESERVE (6) and (10). A registrant that has access through a persistent reservation gets GOOD,
/// but no SPC-2 reservation (SPC-4 5.13.3).
pub(crate) fn reserve(task: &Task<'_>) -> Outcome {
    if bit(task.cdb, 1, 0x1F) {
        // The command requests a third-party or extent reservation, which the target does not
        // support.
        return Err(invalid_cdb(1).into());
    }
    let reservations = &task.unit.reservations;
    let state = reservations.state.write();
    if !state.registrations.is_empty() {
        return compatible(&state, task);
    }
    match reservations.legacy.load(Ordering::SeqCst) {
        0 => {
            reservations.legacy.store(task.itl_nexus.id, Ordering::SeqCst);
            reservations.any.store(true, Ordering::SeqCst);
            Ok(())
        }
        holder if holder == task.itl_nexus.id => Ok(()),
        _ => Err(CONFLICT),
    }
}

/// RELEASE (6) and (10). If another nexus holds the SPC-2 reservation, the command releases nothing
/// and ends with GOOD.
pub(crate) fn release(task: &Task<'_>) -> Outcome {
    if bit(task.cdb, 1, 0x1F) {
        return Err(invalid_cdb(1).into());
    }
    let reservations = &task.unit.reservations;
    {
        let state = reservations.state.read();
        if !state.registrations.is_empty() {
            return compatible(&state, task);
        }
    }
    reservations.forget(task.itl_nexus.id);
    Ok(())
}

fn compatible(state: &ReservationState, task: &Task<'_>) -> Outcome {
    let path = &task.itl_nexus.name.path;
    let is_registered = state.key(path).is_some();
    let has_access = state.reservation.is_some() && state.allows(path, true);
    if is_registered && has_access { Ok(()) } else { Err(CONFLICT) }
}

/// Executes PERSISTENT RESERVE IN.
pub(crate) fn input(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let reservations = &task.unit.reservations;
    let legacy = reservations.legacy.load(Ordering::SeqCst);
    if legacy != 0 && legacy != task.itl_nexus.id {
        return Err(CONFLICT);
    }
    let state = reservations.state.read();
    let content = match byte(task.cdb, 1) & SERVICE_ACTION {
        0 => state.registrations.iter().flat_map(|known| known.key.to_be_bytes()).collect(),
        1 => reservation_descriptor(&state),
        2 => {
            let bytes = capabilities(&state, reservations.store.is_some());
            reply(out, &bytes, task.allocation());
            return Ok(());
        }
        3 => state.registrations.iter().flat_map(|known| full_status(&state, known)).collect(),
        _ => return Err(invalid_cdb_bit(1, 4).into()),
    };
    let mut bytes = state.generation.to_be_bytes().to_vec();
    bytes.extend((content.len() as u32).to_be_bytes());
    bytes.extend(content);
    reply(out, &bytes, task.allocation());
    Ok(())
}

fn reservation_descriptor(state: &ReservationState) -> Vec<u8> {
    let Some(reservation) = &state.reservation else { return Vec::new() };
    // An all-registrants reservation has no single reservation key, so its key field is 0.
    let key = if reservation.kind.is_of_all() { None } else { state.key(&reservation.holder) };
    let mut bytes = key.unwrap_or(0).to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, 0, 0, reservation.kind as u8, 0, 0]);
    bytes
}

/// REPORT CAPABILITIES: CRH, SIP_C and ATP_C are set, and all six reservation types are supported.
fn capabilities(state: &ReservationState, can_persist: bool) -> Vec<u8> {
    let capable = 0x1C | u8::from(can_persist);
    vec![0, 8, capable, 0x80 | u8::from(state.persists), 0xEA, 0x01, 0, 0]
}

fn full_status(state: &ReservationState, known: &Registration) -> Vec<u8> {
    let holds = state.holds(&known.path);
    let kind = state.reservation.as_ref().filter(|_| holds).map_or(0, |there| there.kind as u8);
    let mut bytes = known.key.to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0]);
    bytes.extend(known.path.relative_port.to_be_bytes());
    let transport = transport_id(&known.path.initiator_port);
    bytes.extend((transport.len() as u32).to_be_bytes());
    bytes.extend(transport);
    bytes
}

/// iSCSI TransportID of an initiator port (SPC-4 7.6.4.6).
fn transport_id(name: &str) -> Vec<u8> {
    let mut text = name.as_bytes().to_vec();
    let len = (text.len() + 1).next_multiple_of(4).max(20);
    text.resize(len, 0);
    let mut bytes = vec![0x45, 0];
    bytes.extend((len as u16).to_be_bytes());
    bytes.extend(text);
    bytes
}

/// Decodes the TransportID at the start of `bytes`. Returns the initiator port name and the length
/// of the TransportID. Refuses a TransportID without an ISID, because it does not identify one
/// initiator port.
fn parse_transport_id(bytes: &[u8], at: usize) -> Result<(String, usize), Sense> {
    let invalid = invalid_parameter(at as u16);
    let len = 4 + usize::from(be16(bytes, 2));
    let text = bytes.get(4..len).ok_or(invalid_parameter(at as u16 + 2))?;
    if byte(bytes, 0) != 0x45 || !len.is_multiple_of(4) || len < 24 {
        return Err(invalid);
    }
    let name = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| invalid.clone())?;
    if !name.contains(",i,0x") || name.len() == text.len() || name.len() > 240 {
        return Err(invalid);
    }
    Ok((name.to_ascii_lowercase(), len))
}

/// Executes PERSISTENT RESERVE OUT.
pub(crate) async fn output(task: &Task<'_>) -> Outcome {
    let action = byte(task.cdb, 1) & SERVICE_ACTION;
    let list_len = be32(task.cdb, 5) as usize;
    if !(24..=PARAMETER_BYTES_MAX).contains(&list_len) {
        return Err(LIST_LENGTH.into());
    }
    let list = task.data(list_len as u64)?;
    let request = request(task, action, list)?;
    let reservations = &task.unit.reservations;
    let change = {
        let _turn = reservations.turn.lock().await;
        if reservations.legacy.load(Ordering::SeqCst) != 0 {
            return Err(CONFLICT);
        }
        let before = reservations.state();
        let change =
            before.apply(&task.itl_nexus.name.path, be64(list, 0), request).map_err(refusal)?;
        let keeps = before.persists || change.state.persists;
        if let Some(store) = reservations.store.as_ref().filter(|_| keeps) {
            let kept = if change.state.persists {
                change.state.clone()
            } else {
                ReservationState::default()
            };
            store.save(kept).await?;
        }
        reservations.publish(change.state.clone())?;
        change
    };
    tell(task.unit, &change);
    if matches!(action, 4 | 5) {
        end_tasks(task, &change, action == 5).await;
    }
    Ok(())
}

fn tell(unit: &Unit, change: &Change) {
    let about = [
        (&change.released, Attention::RESERVATIONS_RELEASED),
        (&change.cleared, Attention::RESERVATIONS_PREEMPTED),
        (&change.preempted, Attention::REGISTRATIONS_PREEMPTED),
    ];
    for (paths, attention) in about {
        if !paths.is_empty() {
            unit.raise(attention, |itl_nexus| paths.contains(&itl_nexus.name.path));
        }
    }
}

/// Waits until no write of PREEMPT's victims is running. The victims are the paths whose
/// registration PREEMPT removed. The wait cannot deadlock: the caller has already released the lock
/// `turn`, so the commands of the victims wait for nothing that this command holds.
async fn end_tasks(task: &Task<'_>, change: &Change, aborts: bool) {
    let victims: Vec<_> = task
        .unit
        .itl_nexuses()
        .into_iter()
        .filter(|itl_nexus| {
            itl_nexus.id != task.itl_nexus.id && change.preempted.contains(&itl_nexus.name.path)
        })
        .collect();
    if aborts {
        victims.iter().for_each(|itl_nexus| itl_nexus.abort());
    }
    task.unit.ranges.fence();
    for itl_nexus in victims {
        itl_nexus.ended().await;
    }
}

fn refusal(denied: Denied) -> Refusal {
    match denied {
        Denied::Conflict => CONFLICT,
        Denied::Parameter(at) => invalid_parameter(at).into(),
        Denied::Block(at) => invalid_cdb(at).into(),
        Denied::Release => Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x04).into(),
        Denied::Room => Sense::new(key::ILLEGAL_REQUEST, 0x55, 0x04).into(),
    }
}

/// Decodes the parameter list of PERSISTENT RESERVE OUT.
fn request(task: &Task<'_>, action: u8, list: &[u8]) -> Result<Request, Refusal> {
    if action == 7 {
        return move_request(task, list);
    }
    let flags = byte(list, 20);
    let specifies = flags & SPEC_I_PT != 0;
    if specifies && action != 0 {
        return Err(invalid_parameter(20).into());
    }
    if list.len() != 24 && !specifies {
        return Err(LIST_LENGTH.into());
    }
    let kind = || match byte(task.cdb, 2) {
        // The only supported scope is the logical unit.
        scoped if scoped >> 4 != 0 => Err(invalid_cdb_bit(2, 7)),
        scoped => Kind::of(scoped).ok_or(invalid_cdb_bit(2, 3)),
    };
    Ok(match action {
        0 | 6 => Request::Register {
            new_key: be64(list, 8),
            ignores_key: action == 6,
            persists: persists(task, flags, 20)?,
            others: others(task, list, flags)?,
        },
        1 => Request::Reserve(kind()?),
        2 => Request::Release(kind()?),
        3 => Request::Clear,
        4 | 5 => Request::Preempt { victims: be64(list, 8), kind: kind()? },
        _ => return Err(invalid_cdb_bit(1, 4).into()),
    })
}

fn persists(task: &Task<'_>, flags: u8, at: u16) -> Result<bool, Sense> {
    let persists = flags & APTPL != 0;
    if persists && task.unit.reservations.store.is_none() {
        return Err(invalid_parameter(at));
    }
    Ok(persists)
}

/// Returns the additional paths to register: the initiator ports listed with SPEC_I_PT, and with
/// ALL_TG_PT every initiator port of this request at all target ports.
fn others(task: &Task<'_>, list: &[u8], flags: u8) -> Result<Vec<Path>, Refusal> {
    let name = &task.itl_nexus.name;
    let mut initiators = vec![name.path.initiator_port.clone()];
    if flags & SPEC_I_PT != 0 {
        if task.unit.reservations.state.read().key(&name.path).is_some() {
            return Err(invalid_cdb(1).into());
        }
        let len = be32(list, 24) as usize;
        let end = 28_usize.checked_add(len).ok_or(LIST_LENGTH)?;
        if list.len() < 28 || end > list.len() {
            return Err(LIST_LENGTH.into());
        }
        let mut at = 28;
        while at < end {
            let rest = list.get(at..end).unwrap_or_default();
            let (initiator, used) = parse_transport_id(rest, at)?;
            initiators.push(initiator);
            at += used;
        }
    }
    let mut ports = vec![name.path.relative_port];
    if flags & ALL_TG_PT != 0 {
        ports.extend(name.ports.iter().map(|port| port.relative));
    }
    let target = &name.path.target;
    let path = |initiator: &String, relative_port: u16| Path {
        initiator_port: initiator.clone(),
        target: target.clone(),
        relative_port,
    };
    let paths =
        initiators.iter().flat_map(|initiator| ports.iter().map(|&port| path(initiator, port)));
    Ok(paths.filter(|path| *path != name.path).collect())
}

/// Decodes the parameter list of REGISTER AND MOVE (SPC-4 6.16.4).
fn move_request(task: &Task<'_>, list: &[u8]) -> Result<Request, Refusal> {
    let flags = byte(list, 17);
    let len = be32(list, 20) as usize;
    if 24_usize.checked_add(len) != Some(list.len()) {
        return Err(LIST_LENGTH.into());
    }
    let (initiator_port, used) = parse_transport_id(list.get(24..).unwrap_or_default(), 24)?;
    if used != len {
        return Err(invalid_parameter(20).into());
    }
    let relative_port = be16(list, 18);
    let name = &task.itl_nexus.name;
    if !name.ports.iter().any(|port| port.relative == relative_port) {
        return Err(invalid_parameter(18).into());
    }
    Ok(Request::Move {
        new_key: be64(list, 8),
        to: Path { initiator_port, target: name.path.target.clone(), relative_port },
        leaves: flags & 0x02 != 0,
        persists: persists(task, flags, 17)?,
    })
}

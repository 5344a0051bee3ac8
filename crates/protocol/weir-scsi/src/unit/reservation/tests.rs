//! Compares persistent reservations with a reference implementation of their rules.
//!
//! The tests of the commands are in `tests/all/reservations.rs`.

use proptest::prelude::*;

use super::*;

const PATHS: usize = 4;
const KINDS: [u8; 6] = [1, 3, 5, 6, 7, 8];

fn path(number: usize) -> Path {
    Path {
        initiator_port: format!("host{},i,0x01", number / 2),
        target: "target".to_owned(),
        relative_port: number as u16 % 2,
    }
}

/// Access under each reservation type, from SPC-4 table 71: (read, write) for the holder, for other
/// registrants, and for unregistered nexuses.
fn rights(kind: u8) -> [(bool, bool); 3] {
    let (all, read, none) = ((true, true), (true, false), (false, false));
    match kind {
        1 => [all, read, read],
        3 => [all, none, none],
        5 | 7 => [all, all, read],
        6 | 8 => [all, all, none],
        _ => unreachable!(),
    }
}

/// Reference state: the reservation key of each path (0 for an unregistered path), and the
/// reservation type with the holder.
#[derive(Clone, Debug, Default)]
struct Rules {
    keys: [u64; PATHS],
    held: Option<(u8, usize)>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Register { who: usize, key: u64, new: u64, ignores: bool },
    Reserve { who: usize, key: u64, kind: u8 },
    Release { who: usize, key: u64, kind: u8 },
    Clear { who: usize, key: u64 },
    Preempt { who: usize, key: u64, victims: u64, kind: u8 },
    Move { who: usize, key: u64, new: u64, to: usize, leaves: bool },
}

impl Rules {
    fn holds(&self, who: usize) -> bool {
        match self.held {
            Some((7 | 8, _)) => self.keys[who] != 0,
            Some((_, holder)) => holder == who,
            None => false,
        }
    }

    /// Returns whether the request succeeds, and the paths that lost their registration to another
    /// path.
    fn step(&mut self, step: Step) -> (bool, Vec<usize>) {
        let before = self.clone();
        let registered = |who: usize, key: u64| before.keys[who] != 0 && before.keys[who] == key;
        match step {
            Step::Register { who, key, new, ignores } => {
                if !ignores && before.keys[who] != key {
                    return (false, vec![]);
                }
                let held = self.holds(who);
                self.keys[who] = new;
                let of_all = matches!(self.held, Some((7 | 8, _)));
                if new == 0 && ((held && !of_all) || self.keys == [0; PATHS]) {
                    self.held = None;
                }
                (true, vec![])
            }
            Step::Reserve { who, key, kind } => {
                let free = match before.held {
                    None => true,
                    Some((there, _)) => there == kind && before.holds(who),
                };
                if free && registered(who, key) && before.held.is_none() {
                    self.held = Some((kind, who));
                }
                (free && registered(who, key), vec![])
            }
            Step::Release { who, key, kind } => {
                let wrong =
                    before.holds(who) && before.held.is_some_and(|(there, _)| there != kind);
                if !registered(who, key) || wrong {
                    return (false, vec![]);
                }
                if before.holds(who) {
                    self.held = None;
                }
                (true, vec![])
            }
            Step::Clear { who, key } => {
                if registered(who, key) {
                    *self = Self::default();
                }
                (registered(who, key), vec![])
            }
            Step::Preempt { who, key, victims, kind } => {
                if !registered(who, key) {
                    return (false, vec![]);
                }
                self.preempt(who, victims, kind)
            }
            Step::Move { who, key, new, to, leaves } => {
                let holds_alone = matches!(before.held, Some((1..=6, holder)) if holder == who);
                if !registered(who, key) || !holds_alone || new == 0 || to == who {
                    return (false, vec![]);
                }
                self.keys[to] = new;
                if leaves {
                    self.keys[who] = 0;
                }
                self.held = self.held.map(|(kind, _)| (kind, to));
                (true, vec![])
            }
        }
    }

    fn preempt(&mut self, who: usize, victims: u64, kind: u8) -> (bool, Vec<usize>) {
        let others = (0..PATHS).filter(|&other| other != who && self.keys[other] != 0);
        let (gone, takes): (Vec<usize>, bool) = match self.held {
            Some((7 | 8, _)) if victims == 0 => (others.collect(), true),
            Some((1..=6, holder)) if self.keys[holder] == victims => {
                (others.filter(|&other| self.keys[other] == victims).collect(), true)
            }
            _ => {
                let named = |other: &usize| victims != 0 && self.keys[*other] == victims;
                ((0..PATHS).filter(named).collect(), false)
            }
        };
        if !takes && gone.is_empty() {
            return (false, vec![]);
        }
        gone.iter().for_each(|&gone| self.keys[gone] = 0);
        if takes {
            self.held = Some((kind, who));
        } else if self.keys == [0; PATHS] {
            self.held = None;
        }
        (true, gone.into_iter().filter(|&gone| gone != who).collect())
    }
}

fn apply(state: &ReservationState, step: Step) -> Result<Change, Denied> {
    let kind = |code: u8| Kind::of(code).unwrap();
    let (who, key, request) = match step {
        Step::Register { who, key, new, ignores } => {
            let (persists, others) = (false, vec![]);
            let request =
                Request::Register { new_key: new, ignores_key: ignores, persists, others };
            (who, key, request)
        }
        Step::Reserve { who, key, kind: code } => (who, key, Request::Reserve(kind(code))),
        Step::Release { who, key, kind: code } => (who, key, Request::Release(kind(code))),
        Step::Clear { who, key } => (who, key, Request::Clear),
        Step::Preempt { who, key, victims, kind: code } => {
            (who, key, Request::Preempt { victims, kind: kind(code) })
        }
        Step::Move { who, key, new, to, leaves } => {
            (who, key, Request::Move { new_key: new, to: path(to), leaves, persists: false })
        }
    };
    state.apply(&path(who), key, request)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0..PATHS;
    let key = || 0..3_u64;
    let kind = || proptest::sample::select(&KINDS[..]);
    let step = prop_oneof![
        4 => (who(), key(), key(), any::<bool>())
            .prop_map(|(who, key, new, ignores)| Step::Register { who, key, new, ignores }),
        3 => (who(), key(), kind()).prop_map(|(who, key, kind)| Step::Reserve { who, key, kind }),
        2 => (who(), key(), kind()).prop_map(|(who, key, kind)| Step::Release { who, key, kind }),
        1 => (who(), key()).prop_map(|(who, key)| Step::Clear { who, key }),
        3 => (who(), key(), key(), kind())
            .prop_map(|(who, key, victims, kind)| Step::Preempt { who, key, victims, kind }),
        2 => (who(), key(), key(), who(), any::<bool>())
            .prop_map(|(who, key, new, to, leaves)| Step::Move { who, key, new, to, leaves }),
    ];
    proptest::collection::vec(step, 1..60)
}

fn sorted(mut paths: Vec<Path>) -> Vec<Path> {
    paths.sort_by_key(|path| (path.initiator_port.clone(), path.relative_port));
    paths
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_requests_match_the_reference_rules(steps in steps()) {
        let mut rules = Rules::default();
        let mut state = ReservationState::default();
        for step in steps {
            let before = rules.clone();
            let (done, gone) = rules.step(step);
            match apply(&state, step) {
                Ok(change) => {
                    prop_assert!(done, "{:?} was done in {:?}", step, before);
                    let gone = sorted(gone.into_iter().map(path).collect());
                    prop_assert_eq!(sorted(change.preempted.clone()), gone);
                    state = change.state;
                }
                Err(_) => prop_assert!(!done, "{:?} was refused in {:?}", step, before),
            }
            for who in 0..PATHS {
                let path = path(who);
                prop_assert_eq!(state.key(&path).unwrap_or(0), rules.keys[who], "{:?}", step);
                prop_assert_eq!(state.holds(&path), rules.holds(who), "{:?}", step);
                let (reads, writes) = rules.held.map_or((true, true), |(kind, _)| {
                    let registered = usize::from(rules.keys[who] == 0);
                    rights(kind)[if rules.holds(who) { 0 } else { 1 + registered }]
                });
                prop_assert_eq!(state.allows(&path, false), reads, "{:?}", step);
                prop_assert_eq!(state.allows(&path, true), writes, "{:?}", step);
            }
            prop_assert_eq!(state.reservation.is_some(), rules.held.is_some(), "{:?}", step);
            prop_assert!(state.reservation.is_none() || !state.registrations.is_empty());
        }
    }
}

#[test]
fn registrations_are_bounded() {
    let mut state = ReservationState::default();
    let others = |from: u16| -> Vec<Path> {
        (from..from + 600).map(|port| Path { relative_port: port, ..path(0) }).collect()
    };
    let register =
        |others| Request::Register { new_key: 1, ignores_key: false, persists: false, others };
    state = state.apply(&path(0), 0, register(others(10))).unwrap().state;
    assert_eq!(state.apply(&path(2), 0, register(others(1000))).unwrap_err(), Denied::Room);
    assert_eq!(state.registrations.len(), 601);
}

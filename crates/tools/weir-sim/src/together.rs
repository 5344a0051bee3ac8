//! Changes that are asked of one volume together: what it may hold meanwhile, and afterwards.
//!
//! Not here: asking for them (ranges), what the volume held before (history).
//!
//! Invariants:
//! - nobody else changes the volume meanwhile;
//! - there is one order of all changes, in which whatever ended before another began comes first,
//!   and a clone holds what its source held at one moment between its call and its end;
//! - writes come in the order in which they were asked for, each whole: a crash leaves out the last
//!   ones, and clones that were not promised.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::books::Book;
use crate::history::Tag;

/// A moment of one [`Together`]: each beginning and end has its own.
pub(crate) type Moment = usize;

/// What a clone refers to.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A snapshot of this content.
    Snapshot(Vec<Tag>),
    /// Another volume after some prefix of at least, and if that is known at most, so many entries.
    Other { volume: usize, least: usize, most: Option<usize> },
    /// The volume itself.
    Itself,
}

/// What a range is to hold.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Written(Vec<Tag>),
    /// As much of a source, from a sector on.
    Cloned {
        source: Source,
        from: usize,
    },
}

/// One of the changes.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Sectors of the volume.
    pub(crate) to: Range<usize>,
    pub(crate) what: What,
    /// When it was acknowledged.
    pub(crate) ended: Option<Moment>,
    /// Every recovery must show it.
    is_promised: bool,
}

/// Changes by the moment in which each began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Together {
    changes: BTreeMap<Moment, Change>,
    now: Moment,
}

impl Together {
    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A change is asked for.
    pub(crate) fn begin(&mut self, to: Range<usize>, what: What) -> Moment {
        let began = self.tick();
        self.changes.insert(began, Change { to, what, ended: None, is_promised: false });
        began
    }

    /// It is acknowledged; `entries`: of the history of its source by now.
    pub(crate) fn end(&mut self, began: Moment, entries: usize) {
        let now = self.tick();
        let change = self.changes.get_mut(&began).expect("it was asked for");
        change.ended = Some(now);
        if let What::Cloned { source, .. } = &mut change.what {
            // Nothing of it is logged: it is acknowledged when it is on disk.
            change.is_promised = true;
            if let Source::Other { most, .. } = source {
                *most = Some(entries);
            }
        }
    }

    /// It was refused: nothing of it is there.
    pub(crate) fn refuse(&mut self, began: Moment) {
        self.changes.remove(&began);
    }

    /// A flush or a read begins.
    pub(crate) fn moment(&mut self) -> Moment {
        self.tick()
    }

    /// A flush that began then has returned.
    pub(crate) fn flushed(&mut self, then: Moment) {
        let ended = |change: &&mut Change| change.ended.is_some_and(|end| end < then);
        self.changes.values_mut().filter(ended).for_each(|change| change.is_promised = true);
    }

    /// Whether every recovery must show something of it.
    pub(crate) fn is_promised(&self) -> bool {
        self.changes.values().any(|change| change.is_promised)
    }

    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.values()
    }

    /// Whether a recovery may find this of a volume that held `before`.
    pub(crate) fn survives_as(&self, before: &[Tag], found: &[Tag], all: &[Book]) -> bool {
        self.shows(before, (0, found), all, |change| change.is_promised)
    }

    /// Whether the volume may hold this once all has ended.
    pub(crate) fn ends_as(&self, before: &[Tag], found: &[Tag], all: &[Book]) -> bool {
        self.shows(before, (0, found), all, |_| true)
    }

    /// Whether a read from a sector on that began then may return this now.
    pub(crate) fn reads(
        &self,
        (before, all): (&[Tag], &[Book]),
        found: (usize, &[Tag]),
        then: Moment,
    ) -> bool {
        self.shows(before, found, all, |change| change.ended.is_some_and(|end| end < then))
    }

    /// Whether some of the changes, those that must be there among them, leave this from a
    /// sector on.
    fn shows(
        &self,
        before: &[Tag],
        (from, found): (usize, &[Tag]),
        all: &[Book],
        must: impl Fn(&Change) -> bool,
    ) -> bool {
        let mut search = Search { steps: Vec::new(), from, found };
        let (mut musts, mut writes) = (0, Vec::new());
        for (began, change) in &self.changes {
            let (at, is_write) = (search.steps.len(), matches!(change.what, What::Written(_)));
            // The engine takes a write in the moment in which it acknowledges it.
            if is_write && change.ended.is_none() {
                continue;
            }
            search.steps.push(Step::of(*began, change, all));
            musts |= u32::from(must(change)) << at;
            if is_write {
                writes.push(1 << at);
            }
        }
        let are_in_order = |some: u32| {
            let mut there = writes.iter().map(|write| some & write != 0);
            there.by_ref().all(|is_there| is_there) || !there.any(|is_there| is_there)
        };
        let every = (1_u32 << search.steps.len()) - 1;
        (0..=every)
            .rev()
            .filter(|some| some & musts == musts && are_in_order(*some))
            .any(|some| search.leads_there(some, &mut Vec::new(), &mut vec![before.to_vec()]))
    }
}

/// A change as the search for an order takes it.
struct Step {
    began: Moment,
    ended: Option<Moment>,
    to: Range<usize>,
    becomes: Becomes,
}

enum Becomes {
    /// One of these contents.
    OneOf(Vec<Vec<Tag>>),
    /// What the volume itself held from a sector on.
    Itself(usize),
}

impl Step {
    fn of(began: Moment, change: &Change, all: &[Book]) -> Self {
        let Change { to, what, ended, .. } = change.clone();
        let becomes = match what {
            What::Written(tags) => Becomes::OneOf(vec![tags]),
            What::Cloned { source: Source::Itself, from } => Becomes::Itself(from),
            What::Cloned { source: Source::Snapshot(tags), from } => {
                Becomes::OneOf(vec![tags[from..from + to.len()].to_vec()])
            }
            What::Cloned { source: Source::Other { volume, least, most }, from } => {
                let history = &all[volume].history;
                let most = most.unwrap_or(history.acknowledged());
                Becomes::OneOf(history.contents(from..from + to.len(), least..=most))
            }
        };
        Self { began, ended, to, becomes }
    }
}

/// Looks for an order of changes that leaves what was found.
struct Search<'a> {
    steps: Vec<Step>,
    /// First sector of what was found.
    from: usize,
    found: &'a [Tag],
}

impl Search<'_> {
    /// Whether the changes that are left, a set of bits, can make of the last of `states` what was
    /// found. `states` begins with what was before, then what each of those `done` made of it.
    fn leads_there(&self, left: u32, done: &mut Vec<usize>, states: &mut Vec<Vec<Tag>>) -> bool {
        let rest: Vec<usize> = (0..self.steps.len()).filter(|at| left >> at & 1 == 1).collect();
        let state = states.last().expect("there is what was before");
        // What no later one replaces is as it was found.
        let stays = |sector| !rest.iter().any(|at| self.steps[*at].to.contains(&sector));
        let differs = |(sector, tag): (usize, &Tag)| state[sector] != *tag && stays(sector);
        if (self.from..).zip(self.found).any(differs) {
            return false;
        }
        if rest.is_empty() {
            return true;
        }
        let ends_before =
            |at: usize, began| self.steps[at].ended.is_some_and(|ended| ended < began);
        for &next in &rest {
            let Step { began, to, becomes, .. } = &self.steps[next];
            if rest.iter().any(|at| ends_before(*at, *began)) {
                continue;
            }
            let contents = match becomes {
                Becomes::OneOf(contents) => contents.clone(),
                Becomes::Itself(from) => {
                    let known = done.iter().rposition(|at| ends_before(*at, *began));
                    let since = &states[known.map_or(0, |at| at + 1)..];
                    since.iter().map(|state| state[*from..from + to.len()].to_vec()).collect()
                }
            };
            for content in contents {
                let mut state = states.last().expect("there is what was before").clone();
                state[to.clone()].copy_from_slice(&content);
                states.push(state);
                done.push(next);
                let leads = self.leads_there(left & !(1 << next), done, states);
                done.pop();
                states.pop();
                if leads {
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::Books;

    const BEFORE: [Tag; 6] = [2, 4, 6, 8, 10, 12];

    fn clone_of(source: Source, from: usize) -> What {
        What::Cloned { source, from }
    }

    #[test]
    fn a_write_beside_a_clone_comes_before_it_or_after_it() {
        let mut together = Together::default();
        let clone = together.begin(0..4, clone_of(Source::Snapshot(vec![20, 22, 24, 26]), 0));
        let write = together.begin(2..5, What::Written(vec![30, 32, 34]));
        let ends = |together: &Together, found: [Tag; 6]| together.ends_as(&BEFORE, &found, &[]);
        let survives = |t: &Together, found: [Tag; 6]| t.survives_as(&BEFORE, &found, &[]);
        assert!(survives(&together, BEFORE) && survives(&together, [20, 22, 24, 26, 10, 12]));
        assert!(!survives(&together, [2, 4, 30, 32, 34, 12]), "it is not acknowledged");
        together.end(write, 0);
        assert!(survives(&together, BEFORE) && survives(&together, [2, 4, 30, 32, 34, 12]));
        assert!(!together.is_promised());
        together.end(clone, 0);
        assert!(together.is_promised() && !survives(&together, BEFORE));
        assert!(survives(&together, [20, 22, 24, 26, 10, 12]));
        for good in [[20, 22, 30, 32, 34, 12], [20, 22, 24, 26, 34, 12]] {
            assert!(ends(&together, good) && survives(&together, good));
        }
        for torn in [[20, 22, 24, 32, 34, 12], [20, 22, 30, 32, 10, 12], [20, 22, 24, 26, 10, 12]] {
            assert!(!ends(&together, torn), "{torn:?}");
        }
        let then = together.moment();
        for (tag, may) in [(24, true), (30, true), (6, false)] {
            assert_eq!(together.reads((&BEFORE, &[]), (2, &[tag]), then), may);
        }
        together.flushed(then);
        assert!(!survives(&together, [20, 22, 24, 26, 10, 12]));
    }

    #[test]
    fn what_ends_before_another_begins_comes_first() {
        let mut together = Together::default();
        let write = together.begin(0..2, What::Written(vec![30, 32]));
        together.end(write, 0);
        let first = together.begin(2..4, clone_of(Source::Itself, 0));
        together.end(first, 0);
        let second = together.begin(1..3, clone_of(Source::Itself, 2));
        together.end(second, 0);
        assert!(together.ends_as(&BEFORE, &[30, 30, 32, 32, 10, 12], &[]));
        for bad in [[30, 6, 8, 32, 10, 12], [30, 30, 32, 4, 10, 12], [30, 2, 4, 4, 10, 12]] {
            assert!(!together.ends_as(&BEFORE, &bad, &[]), "{bad:?}");
        }
    }

    #[test]
    fn clones_at_the_same_time_may_change_places() {
        let mut together = Together::default();
        let one = together.begin(0..2, clone_of(Source::Itself, 2));
        let other = together.begin(2..4, clone_of(Source::Itself, 0));
        together.end(one, 0);
        together.end(other, 0);
        for good in [[6, 8, 2, 4, 10, 12], [6, 8, 6, 8, 10, 12], [2, 4, 2, 4, 10, 12]] {
            assert!(together.ends_as(&BEFORE, &good, &[]), "{good:?}");
        }
        for bad in [[6, 4, 2, 8, 10, 12], BEFORE] {
            assert!(!together.ends_as(&BEFORE, &bad, &[]), "{bad:?}");
        }
    }

    #[test]
    fn a_clone_holds_one_moment_of_another_volume() {
        let mut books = Books::new(1, 0, 1, 1);
        for tag in [14, 16, 18] {
            books.volumes[0].history.acknowledge(0, vec![tag; 2]);
        }
        let mut together = Together::default();
        let source = Source::Other { volume: 0, least: 1, most: None };
        let clone = together.begin(4..6, clone_of(source, 0));
        together.end(clone, 2);
        for (tags, may) in [
            ([0, 0], false),
            ([14, 14], true),
            ([16, 16], true),
            ([14, 16], false),
            ([18; 2], false),
        ] {
            let found = [2, 4, 6, 8, tags[0], tags[1]];
            assert_eq!(together.ends_as(&BEFORE, &found, &books.volumes), may, "{tags:?}");
        }
    }
}

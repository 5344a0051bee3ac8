//! Concurrent changes to one volume: computes its possible contents during and after the changes.
//!
//! The module `ranges` makes the changes; `history` holds the content before the changes.
//!
//! Invariants:
//! - while the changes run, no other actor changes the volume;
//! - one order of all changes explains the result: a change that ended before another began comes
//!   first, and a clone copies the state of its source at one point in time between its call and
//!   its acknowledgement;
//! - writes take effect in issue order, each completely; a crash drops only the last writes, and
//!   clones that were not acknowledged.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::expected::Book;
use crate::history::Tag;

/// Logical time within one [`ConcurrentChanges`]; all starts and ends of changes have different
/// times.
pub(crate) type LogicalTime = usize;

/// Source of a clone.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A snapshot with this content.
    Snapshot(Vec<Tag>),
    /// Another volume after a prefix of its changes. The prefix has at least `least` and, if known,
    /// at most `most` entries.
    Other { volume: usize, least: usize, most: Option<usize> },
    /// The volume that the change modifies.
    Itself,
}

/// New content of a range.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Written(Vec<Tag>),
    /// The sectors of a source from `from` on.
    Cloned {
        source: Source,
        from: usize,
    },
}

/// One change of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Sectors of the volume that change.
    pub(crate) to: Range<usize>,
    pub(crate) what: What,
    /// Logical time of the acknowledgement; `None` before it.
    pub(crate) ended: Option<LogicalTime>,
    /// If true, the change is durable: every recovery must contain it.
    is_durable: bool,
}

/// Changes of one volume by the time at which each began.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConcurrentChanges {
    changes: BTreeMap<LogicalTime, Change>,
    now: LogicalTime,
}

impl ConcurrentChanges {
    fn tick(&mut self) -> LogicalTime {
        self.now += 1;
        self.now
    }

    /// Records the start of a change.
    pub(crate) fn begin(&mut self, to: Range<usize>, what: What) -> LogicalTime {
        let began = self.tick();
        self.changes.insert(began, Change { to, what, ended: None, is_durable: false });
        began
    }

    /// Records the acknowledgement of a change. `entries`: current number of entries in the history
    /// of the volume from which a clone copies.
    pub(crate) fn end(&mut self, began: LogicalTime, entries: usize) {
        let now = self.tick();
        let change = self.changes.get_mut(&began).expect("it was asked for");
        change.ended = Some(now);
        if let What::Cloned { source, .. } = &mut change.what {
            // Clones are not in the intent log: they are durable when acknowledged.
            change.is_durable = true;
            if let Source::Other { most, .. } = source {
                *most = Some(entries);
            }
        }
    }

    /// Removes a refused change, which has no effect.
    pub(crate) fn refuse(&mut self, began: LogicalTime) {
        self.changes.remove(&began);
    }

    /// Records the start of a flush or a read; returns its logical time.
    pub(crate) fn moment(&mut self) -> LogicalTime {
        self.tick()
    }

    /// Records the end of a flush that began at `then`.
    pub(crate) fn flushed(&mut self, then: LogicalTime) {
        let ended = |change: &&mut Change| change.ended.is_some_and(|end| end < then);
        self.changes.values_mut().filter(ended).for_each(|change| change.is_durable = true);
    }

    /// True if every recovery must contain at least one of the changes.
    pub(crate) fn is_durable(&self) -> bool {
        self.changes.values().any(|change| change.is_durable)
    }

    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.values()
    }

    /// True if a recovery may find this content of a volume that held `before`.
    pub(crate) fn survives_as(&self, before: &[Tag], found: &[Tag], all: &[Book]) -> bool {
        self.shows(before, (0, found), all, |change| change.is_durable)
    }

    /// True if the volume may have this content after all changes have ended.
    pub(crate) fn ends_as(&self, before: &[Tag], found: &[Tag], all: &[Book]) -> bool {
        self.shows(before, (0, found), all, |_| true)
    }

    /// True if a read that began at `then` may now return `found`: the number of its first sector,
    /// and the tags of its sectors.
    pub(crate) fn reads(
        &self,
        (before, all): (&[Tag], &[Book]),
        found: (usize, &[Tag]),
        then: LogicalTime,
    ) -> bool {
        self.shows(before, found, all, |change| change.ended.is_some_and(|end| end < then))
    }

    /// True if some of the changes, including all changes for which `must` returns true, produce
    /// the content `found`, which starts at sector `from` of the volume.
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
            // The engine applies a write and acknowledges it in one step, so a write without an
            // acknowledgement has no effect yet.
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

/// A change, as a step in the search for an order of all changes.
struct Step {
    began: LogicalTime,
    ended: Option<LogicalTime>,
    to: Range<usize>,
    becomes: Becomes,
}

enum Becomes {
    /// The sectors get one of these contents.
    OneOf(Vec<Vec<Tag>>),
    /// The sectors get the content of the same volume, from this sector on.
    Itself(usize),
}

impl Step {
    fn of(began: LogicalTime, change: &Change, all: &[Book]) -> Self {
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

/// Search for an order of changes that produces the found content.
struct Search<'a> {
    steps: Vec<Step>,
    /// First sector of the found content.
    from: usize,
    found: &'a [Tag],
}

impl Search<'_> {
    /// True if the changes in the bit set `left`, in some order, turn the present content into the
    /// found content. The present content is the last of `states`; before it are the content before
    /// all changes and the content after each change in `done`.
    fn leads_there(&self, left: u32, done: &mut Vec<usize>, states: &mut Vec<Vec<Tag>>) -> bool {
        let rest: Vec<usize> = (0..self.steps.len()).filter(|at| left >> at & 1 == 1).collect();
        let state = states.last().expect("there is what was before");
        // If no remaining change overwrites a sector, the sector's content is final. If the final
        // content differs from `found`, this order of changes is wrong.
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
    use crate::expected::ExpectedState;

    const BEFORE: [Tag; 6] = [2, 4, 6, 8, 10, 12];

    fn clone_of(source: Source, from: usize) -> What {
        What::Cloned { source, from }
    }

    #[test]
    fn write_concurrent_with_a_clone_precedes_or_follows_it() {
        let mut concurrent = ConcurrentChanges::default();
        let clone = concurrent.begin(0..4, clone_of(Source::Snapshot(vec![20, 22, 24, 26]), 0));
        let write = concurrent.begin(2..5, What::Written(vec![30, 32, 34]));
        let ends = |concurrent: &ConcurrentChanges, found: [Tag; 6]| {
            concurrent.ends_as(&BEFORE, &found, &[])
        };
        let survives = |t: &ConcurrentChanges, found: [Tag; 6]| t.survives_as(&BEFORE, &found, &[]);
        assert!(survives(&concurrent, BEFORE) && survives(&concurrent, [20, 22, 24, 26, 10, 12]));
        assert!(!survives(&concurrent, [2, 4, 30, 32, 34, 12]), "it is not acknowledged");
        concurrent.end(write, 0);
        assert!(survives(&concurrent, BEFORE) && survives(&concurrent, [2, 4, 30, 32, 34, 12]));
        assert!(!concurrent.is_durable());
        concurrent.end(clone, 0);
        assert!(concurrent.is_durable() && !survives(&concurrent, BEFORE));
        assert!(survives(&concurrent, [20, 22, 24, 26, 10, 12]));
        for good in [[20, 22, 30, 32, 34, 12], [20, 22, 24, 26, 34, 12]] {
            assert!(ends(&concurrent, good) && survives(&concurrent, good));
        }
        for torn in [[20, 22, 24, 32, 34, 12], [20, 22, 30, 32, 10, 12], [20, 22, 24, 26, 10, 12]] {
            assert!(!ends(&concurrent, torn), "{torn:?}");
        }
        let then = concurrent.moment();
        for (tag, may) in [(24, true), (30, true), (6, false)] {
            assert_eq!(concurrent.reads((&BEFORE, &[]), (2, &[tag]), then), may);
        }
        concurrent.flushed(then);
        assert!(!survives(&concurrent, [20, 22, 24, 26, 10, 12]));
    }

    #[test]
    fn change_that_ends_before_another_begins_comes_first() {
        let mut concurrent = ConcurrentChanges::default();
        let write = concurrent.begin(0..2, What::Written(vec![30, 32]));
        concurrent.end(write, 0);
        let first = concurrent.begin(2..4, clone_of(Source::Itself, 0));
        concurrent.end(first, 0);
        let second = concurrent.begin(1..3, clone_of(Source::Itself, 2));
        concurrent.end(second, 0);
        assert!(concurrent.ends_as(&BEFORE, &[30, 30, 32, 32, 10, 12], &[]));
        for bad in [[30, 6, 8, 32, 10, 12], [30, 30, 32, 4, 10, 12], [30, 2, 4, 4, 10, 12]] {
            assert!(!concurrent.ends_as(&BEFORE, &bad, &[]), "{bad:?}");
        }
    }

    #[test]
    fn concurrent_clones_may_swap_two_ranges() {
        let mut concurrent = ConcurrentChanges::default();
        let one = concurrent.begin(0..2, clone_of(Source::Itself, 2));
        let other = concurrent.begin(2..4, clone_of(Source::Itself, 0));
        concurrent.end(one, 0);
        concurrent.end(other, 0);
        for good in [[6, 8, 2, 4, 10, 12], [6, 8, 6, 8, 10, 12], [2, 4, 2, 4, 10, 12]] {
            assert!(concurrent.ends_as(&BEFORE, &good, &[]), "{good:?}");
        }
        for bad in [[6, 4, 2, 8, 10, 12], BEFORE] {
            assert!(!concurrent.ends_as(&BEFORE, &bad, &[]), "{bad:?}");
        }
    }

    #[test]
    fn clone_holds_another_volume_at_one_point_in_time() {
        let mut expected = ExpectedState::new(1, 0, 1, 1);
        for tag in [14, 16, 18] {
            expected.volumes[0].history.acknowledge(0, vec![tag; 2]);
        }
        let mut concurrent = ConcurrentChanges::default();
        let source = Source::Other { volume: 0, least: 1, most: None };
        let clone = concurrent.begin(4..6, clone_of(source, 0));
        concurrent.end(clone, 2);
        for (tags, may) in [
            ([0, 0], false),
            ([14, 14], true),
            ([16, 16], true),
            ([14, 16], false),
            ([18; 2], false),
        ] {
            let found = [2, 4, 6, 8, tags[0], tags[1]];
            assert_eq!(concurrent.ends_as(&BEFORE, &found, &expected.volumes), may, "{tags:?}");
        }
    }
}

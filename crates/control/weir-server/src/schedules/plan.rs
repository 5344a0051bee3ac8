//! Planning: which snapshots a schedule takes and destroys at a given time.
//!
//! `schedule_calls` executes the plan; this file reads neither a clock nor a pool.
//!
//! A scheduled snapshot is named by its sort (hourly, daily …) and the minute of its creation in
//! UTC, such as `auto-hourly-2026-11-22-1000`. Each sort divides time into slots, such as hours. A
//! sort is due if the volume has no scheduled snapshot of this sort in the current slot or later.
//!
//! Invariants:
//! - however many slots were missed, a schedule takes only one snapshot of a sort at a time;
//! - after the clock was set back, the schedule waits until the clock reaches its former time;
//! - the plan destroys only the schedule's own snapshots above their sort's count, oldest first.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_api::types::{Every, Keep};

const MINUTE_MS: u64 = 60 * 1000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Days from Monday to the weekday of 1 January 1970, which was a Thursday.
const DAYS_AFTER_MONDAY: u64 = 3;

/// The due work of a schedule for one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Sorts of snapshots (hourly, daily and so on) that are due.
    pub(crate) take: Vec<Every>,
    /// Names of the excess snapshots, oldest first.
    pub(crate) destroy: Vec<String>,
    /// A snapshot of the schedule with a time in the future. No snapshot of its sort is taken until
    /// then.
    pub(crate) ahead: Option<String>,
}

/// Plans the snapshots to take and to destroy; `names` are the schedule's own snapshots of a volume
/// in any order.
pub(crate) fn plan(now_ms: u64, keep: &Keep, prune_only: bool, names: &[String]) -> Plan {
    let mut plan = Plan::default();
    for (every, count) in keep.wanted() {
        let of_sort = |name: &String| Some((taken_at(every, name)?, name.clone()));
        let mut taken: Vec<(u64, String)> = names.iter().filter_map(of_sort).collect();
        taken.sort();
        let now_slot = slot(every, now_ms);
        match taken.last() {
            _ if prune_only || count == 0 => {}
            Some((at, name)) if slot(every, *at) > now_slot => plan.ahead = Some(name.clone()),
            Some((at, _)) if slot(every, *at) == now_slot => {}
            _ => plan.take.push(every),
        }
        let excess = taken.len().saturating_sub(count as usize);
        plan.destroy.extend(taken.drain(..excess).map(|(_, name)| name));
    }
    plan
}

/// Returns the sorts with more snapshots of the volume than the schedule keeps, because other
/// creators took snapshots with names of the sort. Each sort comes with the other creators'
/// snapshots, the oldest first.
pub(crate) fn beyond(keep: &Keep, ours: &[String], others: &[String]) -> Vec<(Every, Vec<String>)> {
    let beyond = |(every, count): (Every, u32)| {
        let of_sort = |name: &&String| taken_at(every, name).is_some();
        let mut theirs: Vec<String> = others.iter().filter(of_sort).cloned().collect();
        theirs.sort();
        let all = ours.iter().filter(of_sort).count() + theirs.len();
        (!theirs.is_empty() && all > count as usize).then_some((every, theirs))
    };
    keep.wanted().filter_map(beyond).collect()
}

/// Returns the name of a snapshot of this sort that is taken now.
pub(crate) fn name(every: Every, now_ms: u64) -> String {
    let text = text(now_ms);
    let (date, time) = (&text[..10], &text[11..]);
    format!("auto-{}-{date}-{}{}", every.name(), &time[..2], &time[3..5])
}

/// Returns the time at which the next slot of this sort begins; it is later than `now_ms`.
pub(crate) fn next(every: Every, now_ms: u64) -> u64 {
    // The start of a slot plus `step` is in the next slot, because `step` is at least the longest
    // slot of this sort and less than two slots.
    let step = match every {
        Every::Frequently => 15 * MINUTE_MS,
        Every::Hourly => HOUR_MS,
        Every::Daily => DAY_MS,
        Every::Weekly => 7 * DAY_MS,
        Every::Monthly => 31 * DAY_MS,
        Every::Yearly => 366 * DAY_MS,
    };
    if now_ms + step > LATEST_MS {
        // The calendar ends with the year 9999. The result is still later than `now_ms`, so no
        // caller loops for ever.
        return now_ms + step;
    }
    slot(every, slot(every, now_ms) + step)
}

/// Returns the start of the slot of this sort that contains the time `at_ms`.
fn slot(every: Every, at_ms: u64) -> u64 {
    match every {
        Every::Frequently => at_ms - at_ms % (15 * MINUTE_MS),
        Every::Hourly => at_ms - at_ms % HOUR_MS,
        Every::Daily => at_ms - at_ms % DAY_MS,
        Every::Weekly => {
            let day = at_ms / DAY_MS;
            day.saturating_sub((day + DAYS_AFTER_MONDAY) % 7) * DAY_MS
        }
        Every::Monthly => begins(&format!("{}-01T00:00:00Z", &text(at_ms)[..7]), at_ms),
        Every::Yearly => begins(&format!("{}-01-01T00:00:00Z", &text(at_ms)[..4]), at_ms),
    }
}

fn begins(text: &str, at_ms: u64) -> u64 {
    // The text contains a formatted time, so it can be parsed.
    read(text).unwrap_or(at_ms)
}

/// Latest time with a calendar date: the end of the year 9999.
const LATEST_MS: u64 = 253_402_300_799_000;

/// Formats a time as `YYYY-MM-DDTHH:MM:SSZ`.
fn text(at_ms: u64) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(at_ms.min(LATEST_MS));
    humantime::format_rfc3339_seconds(at).to_string()
}

fn read(text: &str) -> Option<u64> {
    let at: SystemTime = humantime::parse_rfc3339(text).ok()?;
    Some(at.duration_since(UNIX_EPOCH).ok()?.as_millis() as u64)
}

/// Returns the time at which a snapshot of this name was taken; `None` if a schedule cannot have
/// chosen the name.
fn taken_at(every: Every, name: &str) -> Option<u64> {
    let stamp = name.strip_prefix("auto-")?.strip_prefix(every.name())?.strip_prefix('-')?;
    let (date, time) = stamp.split_at_checked(10)?;
    let (hour, minute) = time.strip_prefix('-')?.split_at_checked(2)?;
    let at = read(&format!("{date}T{hour}:{minute}:00Z"))?;
    // A name with the same time in another notation was chosen by a user.
    (self::name(every, at) == name).then_some(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> u64 {
        read(text).unwrap()
    }

    fn all(count: u32) -> Keep {
        let text = Every::ALL.map(|every| format!("{}={count}", every.name())).join(",");
        Keep::parse(&text).unwrap()
    }

    #[test]
    fn slots_begin_at_calendar_boundaries() {
        // The time `now` is on a Sunday.
        let now = at("2026-11-22T10:59:59Z");
        for (every, begin, next_begins, called) in [
            (Every::Frequently, "2026-11-22T10:45:00Z", "2026-11-22T11:00:00Z", "frequently"),
            (Every::Hourly, "2026-11-22T10:00:00Z", "2026-11-22T11:00:00Z", "hourly"),
            (Every::Daily, "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z", "daily"),
            (Every::Weekly, "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z", "weekly"),
            (Every::Monthly, "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z", "monthly"),
            (Every::Yearly, "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "yearly"),
        ] {
            assert_eq!(text(slot(every, now)), begin);
            assert_eq!(text(next(every, now)), next_begins);
            assert_eq!(name(every, now), format!("auto-{called}-2026-11-22-1059"));
        }
        assert_eq!(text(next(Every::Monthly, at("2027-01-31T23:59:00Z"))), "2027-02-01T00:00:00Z");
        assert_eq!(text(next(Every::Monthly, at("2028-02-29T00:00:00Z"))), "2028-03-01T00:00:00Z");
        for every in Every::ALL {
            for now in [at("9999-01-01T00:00:00Z"), LATEST_MS, 2 * LATEST_MS] {
                assert!(next(every, now) > now, "{every:?} {now}");
            }
        }
    }

    #[test]
    fn snapshots_with_other_names_are_kept() {
        for other in [
            "monday",
            "auto-hourly",
            "auto-hourly-2026-11-22",
            "auto-hourly-2026-11-22-100",
            "auto-hourly-2026-11-22-10000",
            "auto-hourly-2026-13-22-1000",
            "auto-hourly-2026-11-22-2500",
            "auto-hourly-2026-11-22-1000-mine",
            "auto-daily-2026-11-22-1000",
            "xauto-hourly-2026-11-22-1000",
            "auto-hourly-2026-11-2\u{e4}-1000",
        ] {
            assert_eq!(taken_at(Every::Hourly, other), None, "{other}");
        }
        let keep = Keep::parse("hourly=1").unwrap();
        let names = ["monday", "auto-daily-2020-01-01-0000", "auto-hourly-2026-11-22-0900"];
        let names = names.map(str::to_owned);
        let plan = plan(at("2026-11-22T10:00:00Z"), &keep, false, &names);
        assert_eq!((plan.take, plan.destroy), (vec![Every::Hourly], Vec::new()));
    }

    #[test]
    fn excess_snapshots_of_other_creators_are_reported() {
        let keep = Keep::parse("hourly=2,daily=1").unwrap();
        let [ours, others] = [
            ["auto-hourly-2026-11-22-0900", "auto-daily-2026-11-22-0000"],
            ["auto-hourly-2026-11-22-0800", "monday"],
        ]
        .map(|names| names.map(str::to_owned));
        assert_eq!(beyond(&keep, &ours, &others), []);
        let more = Keep::parse("hourly=1,daily=0").unwrap();
        assert_eq!(beyond(&more, &ours, &others), [(Every::Hourly, vec![others[0].clone()])]);
        assert_eq!(beyond(&more, &ours, &[]), []);
    }

    #[test]
    fn prune_only_and_count_zero_take_no_snapshots() {
        let now = at("2026-11-22T10:00:00Z");
        let names = ["0700", "0800", "0900"].map(|time| format!("auto-hourly-2026-11-22-{time}"));
        let keep = Keep::parse("hourly=2,daily=1").unwrap();
        let plan_of = |keep: &Keep, prune_only| plan(now, keep, prune_only, &names);
        let taking = plan_of(&keep, false);
        assert_eq!(taking.take, [Every::Hourly, Every::Daily]);
        let pruning = plan_of(&keep, true);
        assert_eq!((pruning.take, pruning.destroy), (Vec::new(), vec![names[0].clone()]));
        let none = plan_of(&Keep::parse("hourly=0").unwrap(), false);
        assert_eq!((none.take, none.destroy), (Vec::new(), names.to_vec()));
        // A snapshot with a time in the future does not matter to a schedule that takes no
        // snapshots.
        let ahead = ["auto-hourly-2027-01-01-0000".to_owned()];
        assert_eq!(plan(now, &keep, true, &ahead), Plan::default());
    }

    #[test]
    fn schedule_waits_after_the_clock_was_set_back() {
        let keep = Keep::parse("hourly=3").unwrap();
        let names = vec!["auto-hourly-2026-11-22-1000".to_owned()];
        let back = plan(at("2026-11-22T09:30:00Z"), &keep, false, &names);
        assert_eq!((back.take, back.ahead), (Vec::new(), Some(names[0].clone())));
        let same = plan(at("2026-11-22T10:59:00Z"), &keep, false, &names);
        assert_eq!(same, Plan::default());
        let later = plan(at("2026-11-22T11:00:00Z"), &keep, false, &names);
        assert_eq!(later.take, [Every::Hourly]);
    }

    /// Carries out a plan at once, as the server does.
    fn follow(now: u64, keep: &Keep, names: &mut Vec<String>) -> Plan {
        let first = plan(now, keep, false, names);
        names.extend(first.take.iter().map(|every| name(*every, now)));
        let second = plan(now, keep, false, names);
        assert_eq!(second.take, [], "what was taken is not due");
        names.retain(|name| !second.destroy.contains(name));
        Plan { destroy: second.destroy, ..first }
    }

    proptest! {
        #[test]
        fn generated_names_parse_to_their_time(now in 0..LATEST_MS, sort in 0..Every::ALL.len()) {
            let every = Every::ALL[sort];
            prop_assert_eq!(taken_at(every, &name(every, now)), Some(now - now % MINUTE_MS));
            prop_assert!(slot(every, now) <= now && now < next(every, now));
            prop_assert_eq!(slot(every, slot(every, now)), slot(every, now));
        }

        #[test]
        fn parsing_any_name_does_not_panic(name in "(auto-hourly-)?\\PC{0,24}") {
            let _: Option<u64> = taken_at(Every::Hourly, &name);
        }

        #[test]
        fn newest_snapshots_are_kept_after_any_clock_change(
            start in 1_000_000_000_000..2_000_000_000_000_u64,
            steps in proptest::collection::vec((0..40 * DAY_MS, any::<bool>()), 1..60),
            count in 1..5_u32,
        ) {
            let keep = all(count);
            let mut names = vec!["mine".to_owned()];
            let (mut now, mut latest) = (start, 0);
            for (step, back) in steps {
                // The clock mostly steps forwards; a step back is less than an hour.
                now = if back { now - step % HOUR_MS } else { now + step };
                let before = names.clone();
                let done = follow(now, &keep, &mut names);
                prop_assert!(names.contains(&"mine".to_owned()));
                for (every, _) in keep.wanted() {
                    let of = |names: &[String]| {
                        let mut at: Vec<u64> =
                            names.iter().filter_map(|name| taken_at(every, name)).collect();
                        at.sort_unstable();
                        at
                    };
                    let (old, new) = (of(&before), of(&names));
                    prop_assert!(new.len() <= count as usize);
                    // Each slot has one snapshot. A pass adds at most one snapshot of a sort, even
                    // if the clock skipped many slots.
                    let mut slots: Vec<u64> = new.iter().map(|at| slot(every, *at)).collect();
                    slots.dedup();
                    prop_assert_eq!(slots.len(), new.len());
                    let due = slot(every, now) > slot(every, latest);
                    prop_assert_eq!(done.take.contains(&every), due);
                    // Destroyed snapshots are older than the remaining ones.
                    let gone = old.iter().filter(|at| !new.contains(at)).max();
                    prop_assert!(gone.is_none_or(|gone| new.iter().all(|at| at > gone)));
                }
                latest = latest.max(now);
            }
        }
    }
}

//! Snapshot schedules: the intervals at which the server takes snapshots, and the number of
//! snapshots that it keeps for each interval.
//!
//! The server decides when a snapshot is due.
//!
//! Invariant: for an interval that is absent in a schedule, the server neither takes nor destroys
//! snapshots. For an interval with the count 0, it takes no snapshots and destroys the existing
//! ones.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::page::paged;
use super::request::{no_rules, outcome_and_no_other_name};
use super::{Answer, Outcome, Page, Request, page};
use crate::Error;
use crate::access::Scope;
use crate::wire::ApiError;

/// Maximum number of snapshots of one interval: more than a year of hourly snapshots.
const KEPT_MAX: u32 = 10_000;

/// Interval between automatic snapshots, in UTC.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Every {
    /// Each quarter of an hour.
    Frequently,
    /// Each hour.
    Hourly,
    /// Each day at 00:00.
    Daily,
    /// Each Monday at 00:00.
    Weekly,
    /// On the first day of each month at 00:00.
    Monthly,
    /// On 1 January of each year at 00:00.
    Yearly,
}

impl Every {
    /// All intervals, from the shortest to the longest.
    pub const ALL: [Self; 6] =
        [Self::Frequently, Self::Hourly, Self::Daily, Self::Weekly, Self::Monthly, Self::Yearly];

    /// Returns the name of the interval in JSON, on the command line and in the names of snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frequently => "frequently",
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
            Self::Yearly => "yearly",
        }
    }
}

/// Number of snapshots to keep, for each interval. The schedule ignores absent intervals. For an
/// interval with the count 0, it takes no snapshots and destroys the existing ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// Number of quarter-hourly snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequently: Option<u32>,
    /// Number of hourly snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly: Option<u32>,
    /// Number of daily snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily: Option<u32>,
    /// Number of weekly snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weekly: Option<u32>,
    /// Number of monthly snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monthly: Option<u32>,
    /// Number of yearly snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yearly: Option<u32>,
}

impl Keep {
    /// Returns the number of snapshots of this interval that the schedule keeps.
    pub const fn of(&self, every: Every) -> Option<u32> {
        match every {
            Every::Frequently => self.frequently,
            Every::Hourly => self.hourly,
            Every::Daily => self.daily,
            Every::Weekly => self.weekly,
            Every::Monthly => self.monthly,
            Every::Yearly => self.yearly,
        }
    }

    fn of_mut(&mut self, every: Every) -> &mut Option<u32> {
        match every {
            Every::Frequently => &mut self.frequently,
            Every::Hourly => &mut self.hourly,
            Every::Daily => &mut self.daily,
            Every::Weekly => &mut self.weekly,
            Every::Monthly => &mut self.monthly,
            Every::Yearly => &mut self.yearly,
        }
    }

    /// Returns the intervals of the schedule, each with the number of snapshots that it keeps.
    pub fn wanted(&self) -> impl Iterator<Item = (Every, u32)> {
        let keep = *self;
        Every::ALL.into_iter().filter_map(move |every| Some((every, keep.of(every)?)))
    }

    /// Parses a text such as `hourly=24,daily=7`.
    ///
    /// # Errors
    /// [`Error::Schedule`] with the part of the text that is invalid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut keep = Self::default();
        for part in text.split(',') {
            let bad = |why| Error::Schedule { part: part.to_owned(), why };
            let (word, count) = part.split_once('=').ok_or_else(|| bad("there is no '='"))?;
            let every = Every::ALL.into_iter().find(|every| every.name() == word);
            let every = every.ok_or_else(|| {
                bad("the intervals are frequently, hourly, daily, weekly, monthly, yearly")
            })?;
            let count = count.parse().map_err(|_| bad("the count is not a number"))?;
            if keep.of_mut(every).replace(count).is_some() {
                return Err(bad("it is given twice"));
            }
        }
        keep.check()?;
        Ok(keep)
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |every: Every, count, why| {
            let part = format!("{}={count}", every.name());
            Err(Error::Schedule { part, why })
        };
        let mut any = false;
        for (every, count) in self.wanted() {
            any = true;
            match count {
                0..=KEPT_MAX => {}
                _ => return bad(every, count, "at most 10000 are kept"),
            }
        }
        let nothing = || Error::Schedule { part: String::new(), why: "it keeps nothing" };
        if any { Ok(()) } else { Err(nothing()) }
    }
}

impl std::fmt::Display for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> =
            self.wanted().map(|(every, count)| format!("{}={count}", every.name())).collect();
        f.write_str(&parts.join(","))
    }
}

/// Request to create or replace a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSet {
    /// A volume such as `tank/vm1`, or a pool: all its volumes without a schedule of their own.
    pub name: String,
    /// Number of snapshots to keep, for each interval.
    pub keep: Keep,
    /// Take no snapshots and only destroy excess ones, for example on a volume that receives
    /// snapshots from another server.
    #[serde(default, skip_serializing_if = "is_false")]
    pub prune_only: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde calls")]
pub(super) const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Request for ScheduleSet {
    fn check(&self) -> Result<(), Error> {
        check_scheduled(&self.name)?;
        self.keep.check()
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn details(&self) -> String {
        self.keep.to_string()
    }
}

/// Request to delete a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleClear {
    /// The volume or pool; write `/` as `%2F`.
    pub name: String,
}

impl Request for ScheduleClear {
    fn check(&self) -> Result<(), Error> {
        check_scheduled(&self.name)
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }
}

/// Request to list all schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSchedules {}

no_rules!(ListSchedules);

/// Checks that `name` is the name of a volume or a pool.
pub fn check_scheduled(name: &str) -> Result<(), Error> {
    if name.contains('/') {
        names::volume(name)?;
    } else {
        names::pool(name)?;
    }
    Ok(())
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// The volume or the pool.
    pub name: String,
    /// Number of snapshots to keep, for each interval.
    pub keep: Keep,
    /// True if the schedule takes no snapshots and only destroys excess ones.
    #[serde(default)]
    pub prune_only: bool,
    /// Time of the next snapshot; absent while the pool is closed or if the schedule only prunes.
    pub next_unix_ms: Option<u64>,
}

/// Schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleList {
    /// The schedules, by name.
    pub schedules: Vec<Schedule>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for ScheduleList {
    const ENTRIES: Option<&'static str> = Some("schedules");

    fn keep(&mut self, scope: &Scope) {
        self.schedules.retain(|schedule| scope.covers(&schedule.name));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(ScheduleList, schedules: Schedule, |entry| &entry.name);

/// Response of the call that sets a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The schedule after the call.
    pub schedule: Schedule,
}

outcome_and_no_other_name!(ScheduleChange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_parse_as_they_print() {
        let text = "frequently=4,hourly=24,daily=7,weekly=4,monthly=12,yearly=1";
        assert_eq!(Keep::parse(text).expect("all sorts").to_string(), text);
        let keep = Keep::parse("daily=7,hourly=24").expect("any order");
        assert_eq!(keep, Keep { hourly: Some(24), daily: Some(7), ..Keep::default() });
        for (text, part) in [
            ("", "'='"),
            ("hourly", "'='"),
            ("hourly=", "not a number"),
            ("hourly=-1", "not a number"),
            ("hourly=10001", "10000"),
            ("hourly=1,hourly=2", "twice"),
            ("minutely=5", "frequently"),
        ] {
            let error = Keep::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
        let none = Keep::parse("hourly=0,daily=7").expect("0 keeps none");
        assert_eq!((none.hourly, none.to_string()), (Some(0), "hourly=0,daily=7".to_owned()));
        let nothing = ScheduleSet { name: "tank".into(), keep: Keep::default(), prune_only: false };
        assert!(nothing.check().expect_err("empty").to_string().contains("nothing"));
        assert!(check_scheduled("tank/a@b").is_err());
    }
}

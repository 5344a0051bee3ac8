//! `weir schedule`: snapshots that the server takes on a schedule.
//!
//! Not here: the times at which snapshots are due (the server decides).
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{
    Every, Keep, ListSchedules, Schedule, ScheduleClear, ScheduleSet, check_scheduled,
};
use weir_base::ErrorKind;

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::session::Session;
use crate::cli::base::{output, typed};

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleVerb {
    /// Take snapshots of a volume, or of all volumes of a pool, on a schedule
    ///
    /// Times are UTC. The first snapshots are taken immediately. Their names hold the kind and the
    /// time, such as auto-hourly-2026-11-22-1000. The server destroys only snapshots with such
    /// names: the oldest beyond the count, unless they are held, cloned or exported. On a replica,
    /// a schedule only destroys excess snapshots.
    Set {
        /// A volume such as tank/vm1, or a pool, for all its volumes without their own schedule
        name: String,
        /// Number of snapshots to keep of each kind, such as
        /// hourly=24,daily=7,weekly=4,monthly=12,yearly=1; frequently=4 takes one every 15 minutes;
        /// hourly=0 takes none and destroys the existing ones
        #[arg(value_name = "SORT=COUNT...", required = true)]
        keep: Vec<String>,
        /// Take no snapshots; destroy excess snapshots
        #[arg(long)]
        prune_only: bool,
    },
    /// List schedules
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Delete a schedule; its snapshots stay
    Clear {
        /// Name of the volume or pool
        name: String,
    },
}

pub(crate) fn run(verb: ScheduleVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ScheduleVerb::Set { name, keep, prune_only } => {
            let keep = self::keep(&name, &keep)?;
            check_scheduled(&name)?;
            let request = ScheduleSet { name, keep, prune_only };
            let change = session.call(request)?;
            session.say(&output::outcome("schedule", &change.schedule.name, change.outcome));
            session.print(&change, |_| String::new())
        }
        ScheduleVerb::List { list } => self::list(session, &list),
        ScheduleVerb::Clear { name } => {
            check_scheduled(&name)?;
            let answer = session.call(ScheduleClear { name })?;
            session.say(&output::outcome("schedule", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

/// Parses how many snapshots of each kind to keep. An error has the command that the user probably
/// meant.
fn keep(name: &str, words: &[String]) -> Result<Keep, ApiError> {
    /// Number to suggest for each interval, if the user typed the interval without a number.
    const COUNTS: [(Every, u32); 6] = [
        (Every::Frequently, 4),
        (Every::Hourly, 24),
        (Every::Daily, 7),
        (Every::Weekly, 4),
        (Every::Monthly, 12),
        (Every::Yearly, 1),
    ];
    let error = match Keep::parse(&words.join(",")) {
        Ok(keep) => return Ok(keep),
        Err(error) => ApiError::from(error),
    };
    let count_of = |word: &str| {
        let found = COUNTS.into_iter().find(|(every, _)| every.name() == word);
        found.map(|(every, count)| format!("{}={count}", every.name()))
    };
    // The user typed the interval before the object, such as "schedule set hourly tank/vm1".
    if let (Some(kept), [object]) = (count_of(name.split('=').next().unwrap_or_default()), words)
        && check_scheduled(object).is_ok()
    {
        let kept = if name.contains('=') { name.to_owned() } else { kept };
        let message = format!("{name} is no volume: the volume or pool comes first");
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action(format!("weir schedule set {object} {kept}")));
    }
    let intervals = || Every::ALL.into_iter().map(Every::name);
    let wrong = words.iter().flat_map(|word| word.split(',')).find_map(|part| {
        let interval = part.split('=').next().unwrap_or_default();
        if let Some(kept) = count_of(interval).filter(|_| !part.contains('=')) {
            return typed::line_with(part, &kept);
        }
        let near = typed::nearest(interval, intervals()).filter(|near| *near != interval)?;
        typed::line_with(part, &part.replacen(interval, near, 1))
    });
    Err(typed::with_line(error, wrong))
}

fn list(session: &Session, list: &ListArgs) -> Result<(), ApiError> {
    let Some(list) = list.list(&["NAME", "KEEPS", "NEXT"], &[])? else { return Ok(()) };
    let answer = session.call(ListSchedules {})?;
    if answer.schedules.is_empty() {
        session.say("there are no schedules");
    }
    let row = |schedule: &Schedule| {
        let none = if schedule.prune_only { "prunes only" } else { "-" };
        let next = Cell::date_or(schedule.next_unix_ms, none);
        [schedule.name.clone().into(), schedule.keep.to_string().into(), next]
    };
    session.print(&answer, |all| list.table(all.schedules.iter().map(row)))
}

//! `weir schedule`: snapshots that the server takes by itself.
//!
//! Not here: when one is due (the server).
//!
//! Invariant: a verb is one call; whatever can be judged here is judged before the call.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{Keep, ListSchedules, Schedule, ScheduleClear, ScheduleSet, check_scheduled};

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleVerb {
    /// Take snapshots of a volume, or of all volumes of a pool, from now on
    ///
    /// Times are UTC. The first ones are taken at once. Snapshots are named after their sort and
    /// time, such as auto-hourly-2026-11-22-1000; only such names are destroyed, the oldest beyond
    /// the count, and none that is held, cloned or exported. On a replica, a schedule only destroys
    /// excess snapshots.
    Set {
        /// A volume such as tank/vm1, or a pool: all its volumes without a schedule of their own
        name: String,
        /// How many to keep of each sort, such as hourly=24,daily=7,weekly=4,monthly=12,yearly=1;
        /// frequently=4 is one each 15 minutes; hourly=0 takes none and destroys those there are
        #[arg(value_name = "SORT=COUNT...", required = true)]
        keep: Vec<String>,
        /// Take no snapshots; destroy excess snapshots
        #[arg(long)]
        prune_only: bool,
    },
    /// List schedules
    List {
        /// For scripts: no header, tabs
        #[arg(short = 'H')]
        script: bool,
    },
    /// Forget a schedule; the snapshots it took stay
    Clear {
        /// The volume or the pool
        name: String,
    },
}

pub(crate) fn run(verb: ScheduleVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ScheduleVerb::Set { name, keep, prune_only } => {
            check_scheduled(&name)?;
            let request = ScheduleSet { name, keep: Keep::parse(&keep.join(","))?, prune_only };
            let change = session.call(request)?;
            session.say(&output::outcome("schedule", &change.schedule.name, change.outcome));
            session.print(&change, |_| String::new())
        }
        ScheduleVerb::List { script } => list(session, Style::new(script)),
        ScheduleVerb::Clear { name } => {
            check_scheduled(&name)?;
            let answer = session.call(ScheduleClear { name })?;
            session.say(&output::outcome("schedule", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

fn list(session: &Session, style: Style) -> Result<(), ApiError> {
    let answer = session.call(ListSchedules {})?;
    if answer.schedules.is_empty() {
        session.say("there are no schedules");
    }
    let row = |schedule: &Schedule| {
        let next = schedule.next_unix_ms.map(output::date);
        let none = if schedule.prune_only { "prunes only" } else { "-" };
        let next = next.unwrap_or_else(|| none.to_owned());
        [schedule.name.clone(), schedule.keep.to_string(), next]
    };
    session.print(&answer, |all| {
        let rows: Vec<_> = all.schedules.iter().map(row).collect();
        let header = ["NAME", "KEEPS", "NEXT"];
        if rows.is_empty() { String::new() } else { output::table(header, &rows, style) }
    })
}

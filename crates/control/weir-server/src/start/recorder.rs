//! Runs management calls: records each change, and returns an error to the caller if disks are
//! unresponsive.
//!
//! The handlers of the calls are in the modules of their objects; `record` stores the records.
//!
//! Invariants:
//! - a changing call runs to completion and is recorded with its outcome, even if its caller has
//!   already received an error about unresponsive disks;
//! - a caller has its response within [`crate::monitor::call_timeout::CALL_TIMEOUT`], unless disks
//!   still complete I/O for the call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_api::{ApiError, AuditLine, Pending, Run, Work, caller};
use weir_base::Slot;

use crate::access::activity::Activity;
use crate::answer::errors::internal;
use crate::monitor::call_timeout::CallTimeout;
use crate::record::call_record::Call;
use crate::state::saved_state::SavedPool;
use crate::state::server::Manager;

/// Interval of the checks for unresponsive disks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

impl Run for Manager {
    fn run(&self, line: AuditLine, is_recorded: bool, work: Work) -> Pending<'_, ()> {
        let call = Call::new(line.kind, &line.about, &line.details);
        let (pool, record) = (call.pool.clone(), self.record.clone());
        let recorded = async move {
            let start = Instant::now();
            let outcome = work.await;
            if is_recorded {
                let done = outcome.as_ref().map(|done| done.expect("a change has an outcome"));
                record.add(call, start, done);
            }
            outcome.map(drop)
        };
        wait_patiently(self, pool, Box::pin(recorded))
    }
}

/// Runs a call that changes nothing. If the disks of the pool in `name` are unresponsive, returns
/// an error before the call has completed.
pub(crate) async fn patiently<T: Send + 'static>(
    manager: &Manager,
    name: &str,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    let answer = Slot::default();
    let into = answer.clone();
    let work = async move {
        into.fill(work.await?);
        Ok(())
    };
    let pool = name.split('/').next().unwrap_or_default().to_owned();
    wait_patiently(manager, pool, Box::pin(work)).await?;
    Ok(answer.take())
}

fn wait_patiently<'a>(
    manager: &'a Manager,
    pool: String,
    work: Pending<'static, ()>,
) -> Pending<'a, ()> {
    let pools = || {
        let state = manager.state.lock();
        let pools = state.state.pools.iter();
        let of_pool = |pool: &SavedPool| {
            let name = pool.name.clone();
            pool.disks.clone().into_iter().map(move |disk| (disk, name.clone()))
        };
        pools.flat_map(of_pool).collect()
    };
    let activity = Arc::new(Activity::of_caller(&manager.files.dirs, pools));
    let covered = Arc::clone(&activity).cover(work);
    let mut task = tokio::spawn(caller::on_behalf_of(caller::current(), covered));
    Box::pin(async move {
        let mut call_timeout = CallTimeout::new();
        loop {
            tokio::select! {
                done = &mut task => {
                    return done.unwrap_or_else(|error| Err(internal("the call failed inside the \
                                                                     server", &error)));
                }
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            if let Some(error) = call_timeout.lost(manager, &pool, &activity) {
                return Err(error);
            }
        }
    })
}

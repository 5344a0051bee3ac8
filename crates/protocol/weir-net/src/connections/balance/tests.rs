//! Tests of balancing decisions for workers with all kinds of load.

use super::*;

fn busy(capacity: f64, active: usize) -> Share {
    Share { capacity, is_busy: true, active }
}

fn idle(capacity: f64, active: usize) -> Share {
    Share { capacity, is_busy: false, active }
}

fn moved(from: usize, to: usize, count: usize) -> Move {
    Move { from, to, count }
}

#[test]
fn sessions_move_to_the_worker_with_more_cpu() {
    assert_eq!(decide(&[busy(0.4, 32), busy(0.6, 32)]), Some(moved(0, 1, 6)));
    assert_eq!(decide(&[busy(0.6, 38), busy(0.4, 26)]), None, "each has as much");
    assert_eq!(decide(&[busy(1.0, 4), busy(1.0, 0)]), Some(moved(0, 1, 2)));
    assert_eq!(decide(&[busy(1.0, 2), busy(1.0, 9), idle(1.0, 1)]), Some(moved(1, 2, 4)));
}

#[test]
fn nothing_moves_without_a_busy_worker_or_a_gain() {
    assert_eq!(decide(&[idle(1.0, 30), idle(1.0, 2)]), None, "nobody lacks anything");
    assert_eq!(decide(&[busy(1.0, 1), idle(1.0, 0)]), None, "one session is not divided");
    assert_eq!(decide(&[busy(1.0, 2), busy(1.0, 1)]), None, "it would only change sides");
    assert_eq!(decide(&[busy(1.0, 8)]), None);
    assert_eq!(decide(&[]), None);
    assert_eq!(decide(&[busy(0.0, 5), busy(0.0, 5)]), None, "no core for anybody");
}

/// Tests many CPU times of two workers. A move distributes the sessions as evenly as whole sessions
/// allow, so the next decision moves no session back.
#[test]
fn next_decision_never_reverses_a_move() {
    for (giver, taker) in [(0.1, 1.0), (0.5, 0.5), (0.9, 0.2), (0.33, 0.34)] {
        for (a, b) in [(2, 0), (64, 0), (17, 16), (5, 60), (33, 31)] {
            let Some(Move { from, count, .. }) = decide(&[busy(giver, a), busy(taker, b)]) else {
                continue;
            };
            let (a, b) = if from == 0 { (a - count, b + count) } else { (a + count, b - count) };
            assert_eq!(decide(&[busy(giver, a), busy(taker, b)]), None, "{giver} {taker} {a} {b}");
        }
    }
}

#[test]
fn schedstat_reports_run_and_wait_time() {
    let load = Load::default();
    load.runs_here();
    let thread = load.thread.load(Ordering::Relaxed);
    let before = times(thread).expect("this kernel counts");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    let now = times(thread).expect("this kernel counts");
    let had = (now.ran + now.waited).saturating_sub(before.ran + before.waited);
    assert!(had > Duration::from_millis(25), "{had:?}");
    assert_eq!(times(0), None);
}

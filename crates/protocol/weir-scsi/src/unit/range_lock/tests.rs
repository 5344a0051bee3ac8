//! Tests of range locks: order, cancelled commands and the number of wakes.

use std::sync::Arc;
use std::task::Wake;

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;

const BLOCK: Range = Range { start: 0, end: 8 };

/// Waker that counts its calls.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Command that waits for a lock, is polled by the test, and counts the calls of its waker.
struct Command<'a> {
    lock: Pin<Box<dyn Future<Output = Vec<Held<'a>>> + 'a>>,
    wakes: Arc<Wakes>,
    held: Option<Vec<Held<'a>>>,
}

impl<'a> Command<'a> {
    fn new(ranges: &'a Ranges, wanted: Vec<(Range, Hold)>) -> Self {
        let lock = Box::pin(async move { ranges.all(&wanted).await });
        let mut command = Self { lock, wakes: Arc::default(), held: None };
        command.poll();
        command
    }

    /// Returns true if the lock is granted.
    fn poll(&mut self) -> bool {
        if self.held.is_none() {
            let waker = Waker::from(self.wakes.clone());
            if let Poll::Ready(held) = self.lock.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.held = Some(held);
            }
        }
        self.held.is_some()
    }

    fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }
}

fn wakes(commands: &[Command<'_>]) -> Vec<usize> {
    commands.iter().map(Command::wakes).collect()
}

// Regression: each released lock woke every command that waited for an overlapping range. All but
// one of them found another lock ahead and waited again.
#[test]
fn released_lock_wakes_only_the_next_command() {
    let ranges = Ranges::default();
    let alone = || Command::new(&ranges, vec![(BLOCK, Hold::Exclusive)]);
    let mut commands: Vec<Command<'_>> = (0..100).map(|_| alone()).collect();
    assert!(commands[0].poll() && !commands[1].poll());
    for next in 1..commands.len() {
        let released = commands[next - 1].held.take();
        drop(released);
        let woken = wakes(&commands);
        assert!(woken[1..=next].iter().all(|wakes| *wakes == 1), "{woken:?}");
        assert!(woken[next + 1..].iter().all(|wakes| *wakes == 0), "{woken:?}");
        assert!(commands[next].poll());
    }
}

#[test]
fn released_lock_wakes_all_shared_writers_before_the_next_exclusive_one() {
    let ranges = Ranges::default();
    let new = |hold, end| Command::new(&ranges, vec![(Range { start: 0, end }, hold)]);
    let holder = new(Hold::Exclusive, 8);
    let waiting =
        [new(Hold::Shared, 8), new(Hold::Shared, 4), new(Hold::Exclusive, 2), new(Hold::Shared, 2)];
    let apart = Command::new(&ranges, vec![(Range { start: 8, end: 9 }, Hold::Shared)]);
    assert!(apart.held.is_some());
    drop(holder);
    assert_eq!(wakes(&waiting), [1, 1, 0, 0]);
    let [mut first, second, mut third, fourth] = waiting;
    assert!(first.poll());
    drop(first);
    assert_eq!(third.wakes(), 0, "the second writer was woken and has the lock");
    drop(second);
    assert_eq!([third.wakes(), fourth.wakes()], [1, 0]);
    assert!(third.poll());
    drop((third, apart));
    assert_eq!(fourth.wakes(), 1);
}

#[test]
fn cancelled_command_wakes_the_next_one() {
    let ranges = Ranges::default();
    let alone = || Command::new(&ranges, vec![(BLOCK, Hold::Exclusive)]);
    let (holder, woken, waiting, mut last) = (alone(), alone(), alone(), alone());
    drop(holder);
    assert_eq!(woken.wakes(), 1);
    drop(waiting);
    assert_eq!(last.wakes(), 0, "the woken command is still ahead");
    drop(woken);
    assert_eq!(last.wakes(), 1);
    assert!(last.poll());
}

#[test]
fn command_with_two_ranges_is_woken_once_for_each() {
    let ranges = Ranges::default();
    let far = Range { start: 20, end: 28 };
    let new = |wanted: &[Range]| {
        let wanted = wanted.iter().map(|range| (*range, Hold::Exclusive)).collect();
        Command::new(&ranges, wanted)
    };
    let (one, other) = (new(&[BLOCK]), new(&[far]));
    let mut both = new(&[BLOCK, far]);
    drop(one);
    assert_eq!(both.wakes(), 1);
    assert!(!both.poll());
    drop(other);
    assert_eq!(both.wakes(), 2);
    assert!(both.poll());
}

proptest! {
    // A command is woken exactly if its lock becomes free after a poll that found it blocked,
    // whichever commands end or are cancelled meanwhile.
    #[test]
    fn command_is_woken_once_and_when_its_lock_is_free(
        steps in prop::collection::vec((0..3_u8, 0..6_usize, 0..10_u64, 1..6_u64), 1..100),
    ) {
        let ranges = Ranges::default();
        let mut commands: Vec<Command<'_>> = Vec::new();
        for (step, at, start, len) in steps {
            let chosen = at.min(commands.len().saturating_sub(1));
            if step == 0 || commands.is_empty() {
                let hold = [Hold::Shared, Hold::Exclusive, Hold::Stable][at % 3];
                let range = Range { start, end: start + len };
                commands.push(Command::new(&ranges, vec![(range, hold)]));
            } else if step == 1 {
                let command = &mut commands[chosen];
                let was_held = command.held.is_some();
                let is_held = command.poll();
                prop_assert!(was_held || is_held == (command.wakes() == 1));
            } else {
                drop(commands.remove(chosen));
            }
            let mut table = ranges.table.lock();
            let tickets: Vec<u64> = table.entries.iter().map(|entry| entry.ticket).collect();
            for (command, ticket) in commands.iter().zip(tickets) {
                let is_free = table.may_go(ticket);
                let waits = command.held.is_none();
                prop_assert!(!waits || is_free == (command.wakes() == 1));
                prop_assert!(waits || is_free && command.wakes() <= 1);
            }
        }
        drop(commands);
        prop_assert!(ranges.quick().is_some() && ranges.table.lock().entries.is_empty());
    }
}

#[test]
fn overlapping_writers_wait_in_order_of_arrival() {
    let ranges = Ranges::default();
    let first = ranges.shared(Range { start: 0, end: 10 }).now_or_never().unwrap();
    let beside = ranges.shared(Range { start: 5, end: 15 }).now_or_never().unwrap();
    assert!(ranges.quick().is_some());
    assert!(ranges.try_alone(Range { start: 9, end: 12 }).is_none());
    let far = ranges.try_alone(Range { start: 20, end: 30 }).unwrap();
    assert!(ranges.quick().is_none());
    let mut waiting = Box::pin(ranges.alone(Range { start: 9, end: 12 }));
    assert!(waiting.as_mut().now_or_never().is_none());
    let mut behind = Box::pin(ranges.shared(Range { start: 11, end: 13 }));
    assert!(behind.as_mut().now_or_never().is_none());
    drop(first);
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(beside);
    assert!(behind.as_mut().now_or_never().is_none(), "overtook who came before");
    let alone = waiting.as_mut().now_or_never().unwrap();
    drop(alone);
    assert!(behind.as_mut().now_or_never().is_some());
    drop((far, waiting, behind));
    assert!(ranges.quick().is_some() && ranges.table.lock().entries.is_empty());
}

#[test]
fn stable_ranges_admit_readers_and_exclude_writers() {
    let ranges = Ranges::default();
    let first = Range { start: 0, end: 10 };
    let second = Range { start: 20, end: 30 };
    let writer = ranges.shared(first).now_or_never().unwrap();
    let wanted = [(first, Hold::Stable), (second, Hold::Shared)];
    let mut waiting = Box::pin(ranges.all(&wanted));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(ranges.quick().is_none());
    drop(writer);
    let held = waiting.as_mut().now_or_never().unwrap();
    let beside = ranges.all(&[(first, Hold::Stable)]).now_or_never().unwrap();
    let mut writer = Box::pin(ranges.shared(first));
    assert!(writer.as_mut().now_or_never().is_none());
    assert!(ranges.shared(second).now_or_never().is_some());
    assert!(ranges.try_alone(first).is_none() && ranges.try_alone(second).is_none());
    drop((held, waiting));
    assert!(writer.as_mut().now_or_never().is_none());
    drop(beside);
    assert!(writer.as_mut().now_or_never().is_some());
    assert!(ranges.quick().is_some() && ranges.table.lock().entries.is_empty());
}

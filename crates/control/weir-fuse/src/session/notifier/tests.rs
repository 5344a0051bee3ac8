//! Tests of the queue of changes and of the notifier.
//!
//! Invariant: the test controls the kernel, so no test needs a mount.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::*;
use crate::limits::{CHANGES_MAX, FIRST_CHANGE_WAIT, KERNEL_ANSWER_LIMIT};
use crate::operations::other_changes::OtherChanges;
use crate::session::kernel_caches::{EndOfCaches, KernelCaches};

const FILE: ObjectId = ObjectId(7);
const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_mins(1);

/// A kernel that records notifications. While it is stuck, notifications wait.
#[derive(Default)]
struct Fake {
    state: Mutex<FakeState>,
    changed: Condvar,
}

#[derive(Default)]
struct FakeState {
    is_stuck: bool,
    names: Vec<(ObjectId, Vec<u8>)>,
    inodes: Vec<(ObjectId, Option<Range<u64>>)>,
}

impl Fake {
    fn set_stuck(&self, is_stuck: bool) {
        self.state.lock().is_stuck = is_stuck;
        self.changed.notify_all();
    }

    fn record(&self, record: impl FnOnce(&mut FakeState)) {
        let mut state = self.state.lock();
        while state.is_stuck {
            self.changed.wait(&mut state);
        }
        record(&mut state);
    }

    fn inodes(&self) -> usize {
        self.state.lock().inodes.len()
    }
}

impl Kernel for Arc<Fake> {
    fn drop_name(&self, directory: ObjectId, name: &[u8]) -> io::Result<()> {
        self.record(|state| state.names.push((directory, name.to_vec())));
        Ok(())
    }

    fn drop_inode(&self, number: ObjectId, data: Option<&Range<u64>>) -> io::Result<()> {
        self.record(|state| state.inodes.push((number, data.cloned())));
        Ok(())
    }
}

/// Starts a notifier. Another protocol has already changed the filesystem.
fn start_changed() -> (Arc<Fake>, KernelCaches, EndOfCaches) {
    let started = start();
    invalidate(&started.1, Changed::default());
    started
}

fn start() -> (Arc<Fake>, KernelCaches, EndOfCaches) {
    let kernel = Arc::new(Fake::default());
    let (caches, end, messages) = KernelCaches::new("tank/home", OtherChanges::default());
    let of_thread = Arc::clone(&kernel);
    std::thread::spawn(move || run(&of_thread, &messages));
    (kernel, caches, end)
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    weir_device::new_runtime().unwrap().block_on(work)
}

fn invalidate(caches: &KernelCaches, changed: Changed) {
    on_runtime(caches.invalidate(changed));
}

/// A thread that reports a change of [`FILE`].
fn caller(caches: &KernelCaches) -> std::thread::JoinHandle<()> {
    let caches = caches.clone();
    std::thread::spawn(move || invalidate(&caches, Changed::default().inode(FILE)))
}

fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn change_is_dropped_from_the_kernel_before_the_call_returns() {
    let (kernel, caches, _end) = start();
    let changed = Changed::default().name(ObjectId(1), b"f").data(FILE, 4..9);
    invalidate(&caches, changed);
    let state = kernel.state.lock();
    assert_eq!(state.names, [(ObjectId(1), b"f".to_vec())]);
    assert_eq!(state.inodes, [(ObjectId(1), None), (FILE, Some(4..9))]);
}

#[test]
fn first_change_waits_until_earlier_answers_are_stored() {
    let (_kernel, caches, _end) = start();
    let begun = Instant::now();
    invalidate(&caches, Changed::default().inode(FILE));
    assert!(begun.elapsed() >= FIRST_CHANGE_WAIT);
    let begun = Instant::now();
    (0..100).for_each(|_| invalidate(&caches, Changed::default().inode(FILE)));
    assert!(begun.elapsed() < FIRST_CHANGE_WAIT, "only the first one");
}

#[test]
fn callers_wait_for_a_place_in_the_queue() {
    let (kernel, caches, _end) = start_changed();
    kernel.set_stuck(true);
    let queued = on_runtime(async {
        // Each call queues its change when it is polled first.
        let calls = (0..CHANGES_MAX).map(|_| caches.invalidate(Changed::default().inode(FILE)));
        let mut calls: Vec<_> = calls.map(Box::pin).collect();
        for call in &mut calls {
            assert!(futures_util::poll!(call).is_pending());
        }
        calls.len()
    });
    assert_eq!(queued, CHANGES_MAX);
    let waiting = caller(&caches);
    std::thread::sleep(SOON);
    assert!(!waiting.is_finished(), "the queue is full");
    kernel.set_stuck(false);
    waiting.join().unwrap();
    // The callers of the queued changes no longer waited, and the kernel still got the changes.
    assert_eq!(kernel.inodes(), CHANGES_MAX + 1);
}

#[test]
fn end_of_the_mount_releases_all_callers_of_a_stuck_kernel() {
    let (kernel, caches, end) = start_changed();
    kernel.set_stuck(true);
    let callers: Vec<_> = (0..20).map(|_| caller(&caches)).collect();
    std::thread::sleep(SOON);
    assert!(callers.iter().all(|caller| !caller.is_finished()));
    let begun = Instant::now();
    drop(end);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    assert!(begun.elapsed() < KERNEL_ANSWER_LIMIT / 2);
    invalidate(&caches, Changed::default().inode(FILE));
    kernel.set_stuck(false);
    // The thread of the notifier ends after the queued changes.
    wait_until(|| Arc::strong_count(&kernel) == 1);
    assert_eq!(kernel.inodes(), 20, "the changes before the end");
}

#[test]
fn mount_that_does_not_start_releases_its_callers() {
    let (caches, end, messages) = KernelCaches::new("tank/home", OtherChanges::default());
    let waiting = caller(&caches);
    std::thread::sleep(SOON);
    assert!(!waiting.is_finished(), "the notifier comes later");
    drop(messages);
    waiting.join().unwrap();
    invalidate(&caches, Changed::default().inode(FILE));
    drop(end);
}

#[test]
fn caller_of_a_stuck_kernel_stops_to_wait_but_the_change_is_not_lost() {
    let (kernel, caches, _end) = start_changed();
    kernel.set_stuck(true);
    let begun = Instant::now();
    invalidate(&caches, Changed::default().inode(FILE));
    assert!(begun.elapsed() >= KERNEL_ANSWER_LIMIT);
    assert_eq!(kernel.inodes(), 0);
    kernel.set_stuck(false);
    wait_until(|| kernel.inodes() >= 1);
}

#[test]
fn ranges_of_the_kernel_are_signed_and_end_with_the_file() {
    assert_eq!(kernel_range(&(4..9)), (4, 5));
    assert_eq!(kernel_range(&(4..u64::MAX)), (4, 0));
    assert_eq!(kernel_range(&(4..1 << 63)), (4, 0));
    assert_eq!(kernel_range(&(9..9)), (9, 1), "length 0 would be the rest of the file");
    assert_eq!(kernel_range(&(u64::MAX..u64::MAX)), (i64::MAX, 0));
}

//! Unit attentions: what an initiator is to learn with its next command.
//!
//! Not here: which commands report them (`task`), what raises them.
//!
//! Spec: SAM-5 5.14.
//!
//! Invariants:
//! - each is pending at most once, so that a silent initiator costs a few bytes;
//! - a look at whether there is one costs an atomic load.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::codec::sense::{Sense, key};

/// Additional sense code and qualifier of a unit attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attention(pub(crate) u8, pub(crate) u8);

impl Attention {
    /// A nexus that is new to the logical unit.
    pub(crate) const POWER_ON: Self = Self(0x29, 0x00);
    /// The logical unit was reset by task management.
    pub(crate) const RESET: Self = Self(0x29, 0x03);
    /// Somebody selected other mode parameters.
    pub(crate) const MODE_CHANGED: Self = Self(0x2A, 0x01);
    /// A reservation was taken away by CLEAR.
    pub(crate) const RESERVATIONS_PREEMPTED: Self = Self(0x2A, 0x03);
    /// A reservation that gave this nexus access ended.
    pub(crate) const RESERVATIONS_RELEASED: Self = Self(0x2A, 0x04);
    /// The registration of this nexus was taken away.
    pub(crate) const REGISTRATIONS_PREEMPTED: Self = Self(0x2A, 0x05);
    /// The logical unit has another size.
    pub(crate) const CAPACITY_CHANGED: Self = Self(0x2A, 0x09);
    /// Space runs short.
    pub(crate) const SOFT_THRESHOLD: Self = Self(0x38, 0x07);
    /// There are other logical units now.
    pub(crate) const LUNS_CHANGED: Self = Self(0x3F, 0x0E);

    /// As sense data.
    pub(crate) const fn sense(self) -> Sense {
        Sense::new(key::UNIT_ATTENTION, self.0, self.1)
    }
}

/// Those of one nexus on one logical unit.
pub(crate) struct Attentions {
    pending: AtomicBool,
    queue: Mutex<VecDeque<Attention>>,
}

impl Attentions {
    /// Of a new nexus: the first thing that it learns is that everything may have changed.
    pub(crate) fn new() -> Self {
        Self {
            pending: AtomicBool::new(true),
            queue: Mutex::new(VecDeque::from([Attention::POWER_ON])),
        }
    }

    /// Adds one. A reset goes before all others, as it says more (SAM-5 5.14).
    pub(crate) fn raise(&self, attention: Attention) {
        let mut queue = self.queue.lock();
        if !queue.contains(&attention) {
            if attention == Attention::RESET {
                queue.push_front(attention);
            } else {
                queue.push_back(attention);
            }
        }
        self.pending.store(true, Ordering::Release);
    }

    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes the first.
    pub(crate) fn take(&self) -> Option<Attention> {
        if !self.pending.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.queue.lock();
        let first = queue.pop_front();
        self.pending.store(!queue.is_empty(), Ordering::Release);
        first
    }

    /// Forgets one that was learnt otherwise.
    pub(crate) fn clear(&self, attention: Attention) {
        if self.pending.load(Ordering::Acquire) {
            let mut queue = self.queue.lock();
            queue.retain(|&pending| pending != attention);
            self.pending.store(!queue.is_empty(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_and_a_reset_first() {
        let attentions = Attentions::new();
        attentions.raise(Attention::MODE_CHANGED);
        attentions.raise(Attention::MODE_CHANGED);
        attentions.raise(Attention::RESET);
        attentions.raise(Attention::LUNS_CHANGED);
        attentions.clear(Attention::LUNS_CHANGED);
        let told: Vec<_> = std::iter::from_fn(|| attentions.take()).collect();
        assert_eq!(told, [Attention::RESET, Attention::POWER_ON, Attention::MODE_CHANGED]);
        assert_eq!(attentions.take(), None);
    }
}

//! Unit attention conditions: events that an initiator receives in the response to its next
//! command.
//!
//! The commands and the target raise the conditions; `dispatch::run` reports them.
//!
//! Spec: SAM-5 5.14.
//!
//! Invariants:
//! - each condition is pending at most once, so the queue of an idle initiator stays short;
//! - the check for a pending condition is one atomic load.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::codec::sense::{Sense, key};

/// Additional sense code and qualifier of a unit attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attention(pub(crate) u8, pub(crate) u8);

impl Attention {
    /// Power on: the nexus is new to the logical unit.
    pub(crate) const POWER_ON: Self = Self(0x29, 0x00);
    /// A task management function reset the logical unit.
    pub(crate) const RESET: Self = Self(0x29, 0x03);
    /// Another nexus changed mode parameters.
    pub(crate) const MODE_CHANGED: Self = Self(0x2A, 0x01);
    /// CLEAR removed the reservation and all registrations.
    pub(crate) const RESERVATIONS_PREEMPTED: Self = Self(0x2A, 0x03);
    /// The reservation that gave this nexus access was released.
    pub(crate) const RESERVATIONS_RELEASED: Self = Self(0x2A, 0x04);
    /// PREEMPT removed the registration of this nexus.
    pub(crate) const REGISTRATIONS_PREEMPTED: Self = Self(0x2A, 0x05);
    /// The capacity of the logical unit changed.
    pub(crate) const CAPACITY_CHANGED: Self = Self(0x2A, 0x09);
    /// Available space fell below the soft threshold.
    pub(crate) const SOFT_THRESHOLD: Self = Self(0x38, 0x07);
    /// The set of mapped logical units changed. `nexus_state` stores this condition once for each
    /// I_T nexus.
    pub(crate) const LUNS_CHANGED: Self = Self(0x3F, 0x0E);

    /// Sense data of the condition.
    pub(crate) const fn sense(self) -> Sense {
        Sense::new(key::UNIT_ATTENTION, self.0, self.1)
    }
}

/// Pending unit attention conditions of one I_T_L nexus.
pub(crate) struct Attentions {
    pending: AtomicBool,
    queue: Mutex<VecDeque<Attention>>,
}

impl Attentions {
    /// Creates the conditions of a new nexus: POWER ON, after which an initiator assumes that any
    /// state of the unit may have changed.
    pub(crate) fn new() -> Self {
        Self {
            pending: AtomicBool::new(true),
            queue: Mutex::new(VecDeque::from([Attention::POWER_ON])),
        }
    }

    /// Adds a condition. RESET goes to the front of the queue, because it has the highest
    /// precedence (SAM-5 5.14).
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

    /// Returns true if a condition is pending.
    pub(crate) fn is_any(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Removes and returns the first pending condition.
    pub(crate) fn take(&self) -> Option<Attention> {
        if !self.pending.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.queue.lock();
        let first = queue.pop_front();
        self.pending.store(!queue.is_empty(), Ordering::Release);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_reported_once_and_reset_first() {
        let attentions = Attentions::new();
        attentions.raise(Attention::MODE_CHANGED);
        attentions.raise(Attention::MODE_CHANGED);
        attentions.raise(Attention::RESET);
        let told: Vec<_> = std::iter::from_fn(|| attentions.take()).collect();
        assert_eq!(told, [Attention::RESET, Attention::POWER_ON, Attention::MODE_CHANGED]);
        assert_eq!(attentions.take(), None);
    }
}

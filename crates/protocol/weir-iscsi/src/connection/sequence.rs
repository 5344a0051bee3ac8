//! Command numbering: CmdSN order and the command window.
//!
//! `state` keeps the requests that arrive ahead of their CmdSN.
//!
//! Spec: RFC 7143 4.2.2.1; sequence numbers compare as in RFC 1982.
//!
//! Invariant: MaxCmdSN never decreases.

/// Position of a request's CmdSN relative to the command window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The CmdSN equals ExpCmdSN.
    Now,
    /// The CmdSN is in the window, but commands with smaller CmdSNs have not arrived.
    Later,
    /// The CmdSN is a duplicate or outside the window; the target ignores the command.
    Never,
}

/// Command window, from ExpCmdSN to MaxCmdSN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    expected: u32,
    max: u32,
}

impl Sequence {
    /// Opens a window of `window` commands that starts at `first`.
    pub(super) const fn new(first: u32, window: u32) -> Self {
        Self { expected: first, max: first.wrapping_add(window).wrapping_sub(1) }
    }

    pub(super) const fn expected(self) -> u32 {
        self.expected
    }

    pub(super) const fn max(self) -> u32 {
        self.max
    }

    pub(super) const fn admission(self, cmd_sn: u32) -> Admission {
        let ahead = cmd_sn.wrapping_sub(self.expected).cast_signed();
        let window = self.max.wrapping_sub(self.expected).cast_signed();
        match ahead {
            0 if window >= 0 => Admission::Now,
            1.. if ahead <= window => Admission::Later,
            _ => Admission::Never,
        }
    }

    /// Counts the command with CmdSN ExpCmdSN as received.
    pub(super) const fn advance(&mut self) {
        self.expected = self.expected.wrapping_add(1);
    }

    /// Opens the window for `free` further commands. Never lowers MaxCmdSN, which the initiator
    /// already knows.
    pub(super) const fn open(&mut self, free: u32) {
        let max = self.expected.wrapping_add(free).wrapping_sub(1);
        if max.wrapping_sub(self.max).cast_signed() > 0 {
            self.max = max;
        }
    }

    /// Returns true if the window is closed: the initiator may send no further command.
    pub(super) const fn is_closed(self) -> bool {
        self.max.wrapping_sub(self.expected).cast_signed() < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_in_order_within_the_window_across_the_wrap() {
        let mut sequence = Sequence::new(u32::MAX, 4);
        assert_eq!(sequence.max(), 2);
        assert_eq!(sequence.admission(u32::MAX), Admission::Now);
        assert_eq!(sequence.admission(0), Admission::Later);
        assert_eq!(sequence.admission(2), Admission::Later);
        assert_eq!(sequence.admission(3), Admission::Never);
        assert_eq!(sequence.admission(u32::MAX - 1), Admission::Never);
        sequence.advance();
        assert_eq!((sequence.expected(), sequence.admission(u32::MAX)), (0, Admission::Never));
    }

    #[test]
    fn max_cmd_sn_never_decreases_and_a_closed_window_accepts_nothing() {
        let mut sequence = Sequence::new(10, 2);
        sequence.open(0);
        assert_eq!(sequence.max(), 11);
        sequence.advance();
        sequence.advance();
        assert!(sequence.is_closed());
        for cmd_sn in [11, 12, 13] {
            assert_eq!(sequence.admission(cmd_sn), Admission::Never);
        }
        sequence.open(1);
        assert_eq!(
            (sequence.admission(12), sequence.admission(13)),
            (Admission::Now, Admission::Never)
        );
    }
}

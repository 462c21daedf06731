//! The numbers of a session: which command may be sent (RFC 7143, 4.2.2.1).

/// `a < b` on numbers that come around (RFC 1982, 3.2).
const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Command numbering.
#[derive(Debug)]
pub(super) struct Sequence {
    cmd_sn: u32,
    max_cmd_sn: u32,
}

impl Sequence {
    pub(super) const fn new(cmd_sn: u32, max_cmd_sn: u32) -> Self {
        Self { cmd_sn, max_cmd_sn }
    }

    /// The number of a command that goes outside the order (RFC 7143, 4.2.2.1).
    pub(super) const fn current(&self) -> u32 {
        self.cmd_sn
    }

    /// Whether the target has room for the next command.
    pub(super) const fn is_open(&self) -> bool {
        !before(self.max_cmd_sn, self.cmd_sn)
    }

    /// The number of the next command in order.
    pub(super) const fn take(&mut self) -> u32 {
        let taken = self.cmd_sn;
        self.cmd_sn = taken.wrapping_add(1);
        taken
    }

    /// Takes the window a PDU tells: it never shrinks, and what contradicts itself is ignored
    /// (RFC 7143, 4.2.2.1).
    pub(super) const fn window(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        let sound = !before(max_cmd_sn, exp_cmd_sn.wrapping_sub(1));
        if sound && before(self.max_cmd_sn, max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_opens_across_the_turn_of_the_numbers() {
        let mut sequence = Sequence::new(u32::MAX, u32::MAX - 1);
        assert!(!sequence.is_open());
        sequence.window(u32::MAX, 0);
        assert_eq!((sequence.take(), sequence.take()), (u32::MAX, 0));
        assert!(!sequence.is_open());
    }

    #[test]
    fn a_window_does_not_shrink_and_nonsense_is_ignored() {
        let mut sequence = Sequence::new(1, 10);
        sequence.window(1, 5);
        sequence.window(30, 20);
        assert_eq!(sequence.max_cmd_sn, 10);
        // MaxCmdSN = ExpCmdSN - 1 is a closed window, and legal.
        sequence.window(13, 12);
        assert_eq!(sequence.max_cmd_sn, 12);
    }
}

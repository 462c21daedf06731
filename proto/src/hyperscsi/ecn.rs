//! Explicit congestion notification (RFC 3168): what packets come with, and whether a path carries it (spec, 9.3).

/// The ECN field in the IP header of a packet (RFC 3168, 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ecn {
    /// No ECN; so are all packets of links without it.
    #[default]
    NotEct,
    /// ECT(1), which this document's machines do not send.
    Ect1,
    /// ECT(0): routers may mark the packet where they would drop others.
    Ect0,
    /// Congestion was experienced.
    Ce,
}

/// How many packets have come with each codepoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EcnCounts {
    pub(super) ect0: u64,
    pub(super) ect1: u64,
    pub(super) ce: u64,
}

impl EcnCounts {
    pub(super) const fn add(&mut self, ecn: Ecn) {
        match ecn {
            Ecn::NotEct => {}
            Ecn::Ect0 => self.ect0 += 1,
            Ecn::Ect1 => self.ect1 += 1,
            Ecn::Ce => self.ce += 1,
        }
    }
}

/// Packets that are sent with ECT(0) before the peer has counted any (RFC 9000, A.4).
const TESTED: u64 = 10;

/// Probe time-outs after which no more of them are (RFC 9000, A.4).
const TIMEOUTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first packets are sent with ECT(0).
    Testing,
    /// It is not known yet what has become of them.
    Waiting,
    /// The path carries ECN.
    Capable,
    /// It does not, or both ends have not agreed on it.
    Failed,
}

/// Whether a path carries ECN from here to the peer (RFC 9000, 13.4.2).
#[derive(Debug)]
pub(super) struct PathEcn {
    state: State,
    /// It has carried ECN at its present address.
    was_capable: bool,
    /// Packets with ECT(0) since the test began: those sent, those of which nothing is known, and those lost.
    tested: u64,
    unknown: u64,
    lost: u64,
    /// Probe time-outs in the test.
    timeouts: u32,
    /// All packets sent with ECT(0).
    sent: u64,
    /// What the peer has counted by now, and when the test began.
    counts: EcnCounts,
    before: EcnCounts,
}

impl PathEcn {
    pub(super) const fn new(is_agreed: bool) -> Self {
        let none = EcnCounts { ect0: 0, ect1: 0, ce: 0 };
        Self {
            state: if is_agreed { State::Testing } else { State::Failed },
            was_capable: false,
            tested: 0,
            unknown: 0,
            lost: 0,
            timeouts: 0,
            sent: 0,
            counts: none,
            before: none,
        }
    }

    /// Packets that the peer has received with CE.
    pub(super) const fn marked(&self) -> u64 {
        self.counts.ce
    }

    /// What packets are sent with.
    pub(super) const fn codepoint(&self) -> Ecn {
        match self.state {
            State::Testing | State::Capable => Ecn::Ect0,
            State::Waiting | State::Failed => Ecn::NotEct,
        }
    }

    /// A packet was sent with ECT(0).
    pub(super) fn on_sent(&mut self) {
        self.sent += 1;
        self.tested += 1;
        self.unknown += 1;
        if self.state == State::Testing && self.tested >= TESTED {
            self.state = State::Waiting;
        }
    }

    /// As many packets that were sent with ECT(0) since the test began were acknowledged in any way, or lost.
    pub(super) fn settled(&mut self, acked: u64, lost: u64) {
        self.unknown = self.unknown.saturating_sub(acked + lost);
        self.lost += lost;
        // Something on the path drops what has ECT (RFC 9000, 13.4.2).
        if self.state == State::Waiting && self.lost >= self.tested {
            self.state = State::Failed;
        }
    }

    /// The peer has counted as much, and acknowledges as many packets that were sent with ECT(0). Only of acknowledgements with a
    /// higher number than all before (RFC 9000, 13.4.2.1). Whether there is congestion.
    pub(super) fn on_counts(&mut self, counts: EcnCounts, acked: u64) -> bool {
        let before = core::mem::replace(&mut self.counts, counts);
        if self.state == State::Failed {
            return false;
        }
        let arrived = counts.ect0.saturating_add(counts.ce);
        let known = before.ect0.saturating_add(before.ce);
        let falls = counts.ect0 < before.ect0 || counts.ce < before.ce;
        // Cleared, or made of what was sent without, or with something else.
        let is_mangled = falls
            || counts.ect1 > 0
            || arrived < known.saturating_add(acked)
            || arrived > self.sent;
        let has_ect0 =
            counts.ect0 > self.before.ect0 || self.was_capable && counts.ce > self.before.ce;
        // A path that marks everything says nothing by it: nor does one that says nothing of all.
        if is_mangled || !has_ect0 && self.state == State::Waiting && self.unknown == 0 {
            self.state = State::Failed;
            return false;
        }
        if has_ect0 {
            (self.state, self.was_capable) = (State::Capable, true);
        }
        self.state == State::Capable && counts.ce > before.ce
    }

    /// Packets were not acknowledged in time: it may be that the path drops what has ECT, so that this is tested, again: whether
    /// a test begins, to which nothing belongs that is in flight.
    pub(super) fn on_timeout(&mut self) -> bool {
        match self.state {
            State::Testing if self.tested > 0 => {
                self.timeouts += 1;
                if self.timeouts >= TIMEOUTS {
                    self.state = State::Waiting;
                }
            }
            State::Capable => {
                self.test();
                return true;
            }
            State::Testing | State::Waiting | State::Failed => {}
        }
        false
    }

    fn test(&mut self) {
        self.state = State::Testing;
        (self.tested, self.unknown, self.lost, self.timeouts) = (0, 0, 0, 0);
        self.before = self.counts;
    }

    /// The path goes elsewhere.
    pub(super) fn restart(&mut self, is_agreed: bool) {
        self.test();
        self.was_capable = false;
        if !is_agreed {
            self.state = State::Failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn counts(ect0: u64, ect1: u64, ce: u64) -> EcnCounts {
        EcnCounts { ect0, ect1, ce }
    }

    /// One whose first packets were all sent with ECT(0), as many of them lost.
    fn tested(lost: u64) -> PathEcn {
        let mut ecn = PathEcn::new(true);
        for _ in 0..TESTED {
            assert_eq!(ecn.codepoint(), Ecn::Ect0);
            ecn.on_sent();
        }
        assert_eq!(ecn.codepoint(), Ecn::NotEct, "nothing is known of them");
        ecn.settled(0, lost);
        ecn
    }

    /// RFC 9000, 13.4.2 and 13.4.2.1.
    #[test]
    fn path_is_used_with_ecn_if_all_that_arrives_is_counted() {
        let rows = [
            (counts(10, 0, 0), 0, true),
            (counts(7, 0, 3), 0, true),
            (counts(1, 0, 0), 9, true),
            (counts(0, 0, 10), 0, false),
            (counts(0, 0, 0), 0, false),
            (counts(9, 0, 0), 0, false),
            (counts(11, 0, 0), 0, false),
            (counts(9, 1, 0), 0, false),
            (counts(0, 0, 0), 10, false),
        ];
        for (counts, lost, expected) in rows {
            let mut ecn = tested(lost);
            let acked = TESTED - lost;
            if acked > 0 {
                ecn.settled(acked, 0);
                let is_congested = ecn.on_counts(counts, acked);
                assert_eq!(is_congested, expected && counts.ce > 0, "{counts:?}");
            }
            assert_eq!(ecn.codepoint() == Ecn::Ect0, expected, "{counts:?} {lost}");
        }
        assert_eq!(PathEcn::new(false).codepoint(), Ecn::NotEct);
    }

    #[test]
    fn path_that_stops_to_carry_ecn_is_found_out() {
        let mut ecn = tested(0);
        ecn.settled(10, 0);
        assert!(!ecn.on_counts(counts(10, 0, 0), 10));
        ecn.on_sent();
        ecn.settled(1, 0);
        let mut bleached = ecn;
        assert!(!bleached.on_counts(counts(10, 0, 0), 1));
        assert_eq!(bleached.codepoint(), Ecn::NotEct);
    }

    /// Where all is marked because others fill the queue the path stays with ECN, and where all that has ECT is dropped it does not.
    #[test]
    fn path_is_tested_again_after_a_probe_timeout() {
        for (marked, expected) in [(Some(10), Ecn::Ect0), (None, Ecn::NotEct)] {
            let mut ecn = tested(0);
            ecn.settled(10, 0);
            ecn.on_counts(counts(10, 0, 0), 10);
            assert!(ecn.on_timeout(), "what is in flight does not count");
            for _ in 0..TESTED {
                ecn.on_sent();
            }
            match marked {
                Some(marked) => {
                    ecn.settled(marked, 0);
                    assert!(ecn.on_counts(counts(10, 0, marked), marked));
                }
                None => ecn.settled(0, TESTED),
            }
            assert_eq!(ecn.codepoint(), expected);
        }
    }

    #[test]
    fn test_ends_after_some_probe_timeouts() {
        let mut ecn = PathEcn::new(true);
        ecn.on_sent();
        for timeouts in 1..=TIMEOUTS {
            assert!(!ecn.on_timeout());
            assert_eq!(ecn.codepoint() == Ecn::NotEct, timeouts == TIMEOUTS);
        }
        ecn.settled(0, 1);
        ecn.restart(true);
        assert_eq!(ecn.codepoint(), Ecn::Ect0, "another address");
    }
}

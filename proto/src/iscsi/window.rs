//! The command window: which CmdSN may come, and in which order commands are delivered
//! (RFC 7143, 4.2.2.1).

use std::collections::VecDeque;

/// A serial number of 32 bits (RFC 1982): it wraps, so that "before" means "less than half the circle
/// behind".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Serial(pub u32);

impl Serial {
    /// The number `steps` further on.
    #[must_use]
    pub const fn plus(self, steps: u32) -> Self {
        Self(self.0.wrapping_add(steps))
    }

    /// How many steps lead from `earlier` to here, around the circle.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this comes before `other`. Numbers half a circle apart have no order.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        let ahead = other.since(self);
        ahead != 0 && ahead < 1 << 31
    }
}

/// What became of a command that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// It is the next one: deliver it, then what [`CommandWindow::pop_ready`] gives.
    Next(T),
    /// It waits for those before it.
    Held,
    /// It lies outside the window or is there already: as if it had never come.
    Ignored,
}

#[derive(Debug)]
enum Slot<T> {
    Empty,
    Held(T),
    /// Counts as received, and is not to be delivered.
    Skipped,
}

/// The commands of a session by CmdSN: the receiving side.
///
/// Invariant: `waiting` never reaches beyond the last number allowed, so it is bounded by the room
/// that was opened; its first slot is the expected number's and is empty.
#[derive(Debug)]
pub struct CommandWindow<T> {
    /// ExpCmdSN.
    expected: Serial,
    /// How many numbers from `expected` on are allowed: MaxCmdSN - ExpCmdSN + 1.
    room: u32,
    waiting: VecDeque<Slot<T>>,
}

impl<T> CommandWindow<T> {
    /// A closed window in front of `expected`.
    #[must_use]
    pub const fn new(expected: Serial) -> Self {
        Self { expected, room: 0, waiting: VecDeque::new() }
    }

    /// ExpCmdSN.
    #[must_use]
    pub const fn expected(&self) -> Serial {
        self.expected
    }

    /// MaxCmdSN; one before ExpCmdSN while the window is closed.
    #[must_use]
    pub const fn last(&self) -> Serial {
        self.expected.plus(self.room).plus(u32::MAX)
    }

    /// Allows at least `room` commands from the expected one on. What was allowed before stays so:
    /// MaxCmdSN never goes back (RFC 7143, 4.2.2.1).
    pub fn open(&mut self, room: u32) {
        self.room = self.room.max(room);
    }

    /// A command with number `sn` came.
    pub fn admit(&mut self, sn: Serial, command: T) -> Admission<T> {
        let ahead = sn.since(self.expected);
        if ahead >= self.room {
            return Admission::Ignored;
        }
        if ahead == 0 {
            self.step();
            return Admission::Next(command);
        }
        match self.slot(ahead) {
            slot @ Slot::Empty => {
                *slot = Slot::Held(command);
                Admission::Held
            }
            _ => Admission::Ignored,
        }
    }

    /// Whether number `sn` lies in the window and has not come.
    #[must_use]
    pub fn awaits(&self, sn: Serial) -> bool {
        let ahead = sn.since(self.expected);
        let slot = self.waiting.get(ahead as usize);
        ahead < self.room && matches!(slot, None | Some(Slot::Empty))
    }

    /// All numbers before `sn` count as received, as far as they lie in the window. What is held stays so,
    /// for [`pop_ready`](Self::pop_ready).
    pub fn skip_before(&mut self, sn: Serial) {
        if !self.expected.is_before(sn) {
            return;
        }
        let missing = sn.since(self.expected).min(self.room);
        for ahead in 1..missing {
            let slot = self.slot(ahead);
            if matches!(slot, Slot::Empty) {
                *slot = Slot::Skipped;
            }
        }
        if missing > 0 {
            self.step();
        }
    }

    /// Number `sn` counts as received though it never came, because its command was aborted on the
    /// way. Whether it lies in the window and had not come.
    pub fn skip(&mut self, sn: Serial) -> bool {
        let ahead = sn.since(self.expected);
        if ahead >= self.room {
            return false;
        }
        if ahead == 0 {
            self.step();
            return true;
        }
        let slot = self.slot(ahead);
        let missing = matches!(slot, Slot::Empty);
        *slot = Slot::Skipped;
        missing
    }

    /// Drops held commands that `doomed` names; their numbers count as received.
    pub fn skip_held(&mut self, mut doomed: impl FnMut(&T) -> bool) {
        for slot in &mut self.waiting {
            if matches!(slot, Slot::Held(command) if doomed(command)) {
                *slot = Slot::Skipped;
            }
        }
    }

    /// The next held command whose turn has come.
    pub fn pop_ready(&mut self) -> Option<T> {
        loop {
            match self.waiting.front() {
                None | Some(Slot::Empty) => return None,
                Some(Slot::Held(_) | Slot::Skipped) => {}
            }
            if let Some(Slot::Held(command)) = self.step() {
                return Some(command);
            }
        }
    }

    fn step(&mut self) -> Option<Slot<T>> {
        self.expected = self.expected.plus(1);
        self.room -= 1;
        self.waiting.pop_front()
    }

    fn slot(&mut self, ahead: u32) -> &mut Slot<T> {
        let at = ahead as usize;
        while self.waiting.len() <= at {
            self.waiting.push_back(Slot::Empty);
        }
        &mut self.waiting[at]
    }
}

#[cfg(test)]
mod tests;

//! What the ends have agreed on, from epoch to epoch (spec, 10).

use std::collections::BTreeMap;

use super::super::codec::{Header, Opcode, Options, Sec};
use super::super::command::{Device, Handle, Level};
use super::super::keys::Root;
use super::super::outgoing::Outgoing;
use super::Transport;
use crate::cipher::NewCipher;
use crate::time::Time;

/// The levels of devices by their handles.
type Table = BTreeMap<u16, Level>;

/// The levels of devices: those of the epoch that this end sends in, and of the one before.
#[derive(Debug, Default)]
pub(super) struct Levels {
    now: Table,
    before: Table,
}

impl Levels {
    fn of(devices: &[Device]) -> Table {
        devices.iter().map(|device| (device.handle.0, device.level)).collect()
    }

    /// How the next packet of this message is protected: as the epoch wants it, however earlier ones were.
    pub(super) fn sec(&self, message: &Outgoing) -> Sec {
        match message.opcode {
            Opcode::Request | Opcode::Reply => {
                self.now.get(&message.device.0).map_or(message.sec, |level| Sec::of(*level))
            }
            _ => message.sec,
        }
    }
}

/// What counts once this end sends in the newest epoch.
#[derive(Debug)]
pub(super) struct PendingTerms {
    options: Options,
    levels: Table,
}

impl Transport {
    /// The devices of the connection, as they are from set-up on.
    pub(in crate::hyperscsi) fn set_devices(&mut self, devices: &[Device]) {
        self.levels.now = Levels::of(devices);
    }

    /// Whether a packet of a command for this device has the level that its epoch wants; any, if there is no such device.
    pub(in crate::hyperscsi) fn has_level(&self, header: &Header, device: Handle) -> bool {
        // Two epochs are alive at most, and a packet of the newest one has this end send in it.
        let is_now = (self.epochs.sending() & 3) as u8 == header.epoch;
        let table = if is_now { &self.levels.now } else { &self.levels.before };
        table.get(&device.0).is_none_or(|level| Sec::of(*level) == header.sec)
    }

    /// A re-authentication has succeeded. From the new epoch on these options count, whose cipher is this one, and these are
    /// the devices; all is as before without them.
    pub(in crate::hyperscsi) fn advance(
        &mut self,
        now: Time,
        root: Root,
        change: Option<(Options, NewCipher, &[Device])>,
    ) {
        let new_cipher = change.as_ref().map(|(_, new_cipher, _)| *new_cipher);
        self.epochs.advance(now, root, new_cipher);
        let (options, levels) = match change {
            Some((options, _, devices)) => (options, Levels::of(devices)),
            None => (self.options.clone(), self.levels.now.clone()),
        };
        self.next = Some(PendingTerms { options, levels });
        self.change_terms();
    }

    /// Goes over to what the newest epoch has brought, if this end sends in it.
    pub(super) fn change_terms(&mut self) {
        if self.epochs.sending() == self.epochs.root().1
            && let Some(PendingTerms { options, levels }) = self.next.take()
        {
            self.options = options;
            self.levels.before = core::mem::replace(&mut self.levels.now, levels);
        }
    }
}

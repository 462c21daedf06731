//! The server's re-authentication, and what it changes (spec, 10).

use std::collections::VecDeque;

use super::{ClientEvent, Running};
use crate::hyperscsi::codec::{DeviceChange, Opcode, Options};
use crate::hyperscsi::command::Device;
use crate::hyperscsi::compression::Codecs;
use crate::hyperscsi::config::{Config, Random};
use crate::hyperscsi::ended::Ended;
use crate::hyperscsi::noise::{Noise, Part};
use crate::time::Time;

/// What is told to the user once it counts: when this end sends in the epoch that has brought it.
#[derive(Debug)]
pub(super) struct PendingChange {
    epoch: u64,
    devices: Vec<Device>,
    /// What this end has announced.
    codecs: Codecs,
}

impl Running {
    /// Answers the server's re-authentication.
    pub(super) fn reauthenticate(
        &mut self,
        now: Time,
        config: &Config,
        body: &[u8],
        random: &mut Random,
    ) {
        let Some((&[2, epoch, 0, 0], message)) = body.split_first_chunk() else {
            return self.transport.end(Ended::Violation("a malformed re-authentication"));
        };
        if let Some((last, reply)) = &self.next_epoch
            && *last == epoch
        {
            return self.transport.control(Opcode::AdnReply, reply.clone());
        }
        let (root, newest) = self.transport.epochs.root();
        let is_next = ((newest + 1) & 3) as u8 == epoch && self.transport.epochs.is_settled();
        // The server asks again; what it changes is told of the devices that are listed then.
        let (Some(devices), true) = (&self.devices, is_next) else { return };
        let identity = &config.identity;
        let mut noise = Noise::next(Part::Responder, identity, &self.server, root, &mut random.0);
        let Ok(payload) = noise.read(message) else {
            return self.transport.end(Ended::Violation("a re-authentication with other keys"));
        };
        let own = Options::of(config);
        let least = self.transport.options().least;
        let theirs = Options::parse(&payload);
        let change = theirs.and_then(|theirs| {
            let devices = changed(devices, &theirs.devices)?;
            let agreed = own.agreed(&theirs, false);
            let new_cipher = config.cipher(*agreed.ciphers.first()?)?;
            let is_taken = devices.iter().all(|device| device.level >= least);
            let options = self.transport.options().changed_to(&agreed);
            is_taken.then_some((options, new_cipher, devices))
        });
        // An answer without options says that none are taken: all stays as it was, but for the keys.
        let announced = if change.is_some() { own.emit() } else { Vec::new() };
        let mut reply = vec![2, epoch, 0, 0];
        reply.extend_from_slice(&noise.write(&announced));
        self.transport.control(Opcode::AdnReply, reply.clone());
        self.next_epoch = Some((epoch, reply));
        let root = noise.finish();
        match change {
            Some((options, new_cipher, devices)) => {
                let change = (options, new_cipher, &devices[..]);
                let codecs = config.codecs;
                self.coming =
                    Some(PendingChange { epoch: newest + 1, devices: devices.clone(), codecs });
                self.transport.advance(now, root, Some(change));
            }
            None => self.transport.advance(now, root, None),
        }
    }

    /// Goes over to what the last re-authentication has brought, if it counts by now.
    pub(super) fn change(&mut self, events: &mut VecDeque<ClientEvent>) {
        let sending = self.transport.epochs.sending();
        let Some(coming) = self.coming.take_if(|coming| coming.epoch <= sending) else { return };
        self.requests.change_options(self.transport.options(), coming.codecs);
        if self.devices.as_ref() != Some(&coming.devices) {
            self.devices = Some(coming.devices.clone());
            events.push_back(ClientEvent::Changed { devices: coming.devices });
        }
    }
}

/// The devices after these changes; `None` if one of them is none of the devices.
fn changed(devices: &[Device], changes: &[DeviceChange]) -> Option<Vec<Device>> {
    let mut devices = devices.to_vec();
    for DeviceChange { handle, level, read_only } in changes {
        let device = devices.iter_mut().find(|device| device.handle == *handle)?;
        (device.level, device.read_only) = (*level, *read_only);
    }
    Some(devices)
}

//! Re-authentication at the server: new keys, and what changes with them (spec, 10).

use core::time::Duration;

use super::super::super::aead::Ciphers;
use super::super::super::codec::{DeviceChange, Opcode, Options};
use super::super::super::command::Device;
use super::super::super::compression::Codecs;
use super::super::super::config::{Config, Random};
use super::super::super::ended::Ended;
use super::super::super::noise::{Noise, Part};
use super::super::ChangeStep;
use super::Session;
use crate::time::Time;

/// How old the keys of an epoch get (spec, 10).
const EPOCH_TIME: Duration = Duration::from_secs(120);

/// How many packets they protect before the next epoch begins.
const EPOCH_PACKETS: u64 = 1 << 22;

/// Devices that one re-authentication changes: its message is one packet.
const CHANGES_MAX: usize = 200;

/// Keep-alive times for which a client may leave a re-authentication without an answer.
const UNANSWERED: u32 = 3;

/// The re-authentications of a connection.
#[derive(Debug, Default)]
pub(super) struct Reauthentications {
    /// The one without an answer.
    asked: Option<Pending>,
    /// The devices as they are to be, if that is not how they are.
    wanted: Option<Vec<Device>>,
    /// What has become of that, until the driver is told.
    step: Option<ChangeStep>,
    /// The client has taken it, and the epoch before is alive.
    is_completing: bool,
}

/// A re-authentication without an answer.
#[derive(Debug)]
struct Pending {
    noise: Noise,
    body: Vec<u8>,
    own: Options,
    /// What `own` names.
    ciphers: Ciphers,
    codecs: Codecs,
    again: Time,
    until: Time,
}

impl Session {
    /// Changes the devices by a re-authentication that begins as soon as one may.
    pub(in super::super) fn change_devices(&mut self, devices: Vec<Device>) {
        self.next.wanted = Some(devices);
    }

    /// What has become of what was wanted, since this was last asked.
    pub(in super::super) fn take_change(&mut self) -> Option<ChangeStep> {
        if let Some(step) = self.next.step.take() {
            return Some(step);
        }
        let is_complete = self.next.is_completing && self.transport.epochs.is_settled();
        self.next.is_completing &= !is_complete;
        is_complete.then_some(ChangeStep::Complete)
    }

    /// When the connection ends unless a packet of the new epoch comes, if none has. Those of the old one are taken until then:
    /// whoever is on the path could let no others pass.
    fn confirmed_by(&self) -> Option<Time> {
        let epochs = &self.transport.epochs;
        let is_unconfirmed = !epochs.is_settled() && !epochs.is_confirmed();
        is_unconfirmed.then(|| epochs.age().0 + self.unanswered_time())
    }

    /// How long a client may leave a re-authentication without an answer, or its new epoch without a packet.
    fn unanswered_time(&self) -> Duration {
        self.transport.options().keep_alive * UNANSWERED
    }

    /// Begins a re-authentication, or asks again, if that is due.
    pub(in super::super) fn handle_next_timeout(
        &mut self,
        now: Time,
        config: &Config,
        random: &mut Random,
    ) {
        let again = now + self.transport.probe_timeout();
        let next_at = self.next_at();
        if self.confirmed_by().is_some_and(|by| now >= by) {
            return self.end(Ended::Silent);
        }
        match &mut self.next.asked {
            // Who does not renew his proof has none.
            Some(asked) if now >= asked.until => self.end(Ended::Silent),
            Some(asked) if now >= asked.again => {
                asked.again = again;
                let body = asked.body.clone();
                self.transport.control(Opcode::AdnRequest, body);
            }
            None if now >= next_at => self.begin_next(now, again, config, random),
            Some(_) | None => {}
        }
    }

    /// When [`handle_next_timeout`](Self::handle_next_timeout) has something to do.
    pub(in super::super) fn next_again(&self) -> Option<Time> {
        match &self.next.asked {
            Some(asked) => Some(asked.again.min(asked.until)),
            None if self.transport.epochs.is_settled() => Some(self.next_at()),
            None => self.confirmed_by(),
        }
    }

    /// When the next re-authentication begins.
    fn next_at(&self) -> Time {
        let (begun, packets) = self.transport.epochs.age();
        let is_due = packets >= EPOCH_PACKETS || self.next.wanted.is_some();
        if is_due { begun } else { begun + EPOCH_TIME }
    }

    fn begin_next(&mut self, now: Time, again: Time, config: &Config, random: &mut Random) {
        if !self.transport.epochs.is_settled() {
            return;
        }
        let (root, newest) = self.transport.epochs.root();
        let identity = &config.identity;
        let mut noise = Noise::next(Part::Initiator, identity, &self.client, root, &mut random.0);
        let own = Options { devices: self.changes(), ..Options::of(config) };
        let mut body = vec![2, ((newest + 1) & 3) as u8, 0, 0];
        body.extend_from_slice(&noise.write(&own.emit()));
        self.transport.control(Opcode::AdnRequest, body.clone());
        let until = now + self.unanswered_time();
        let Config { ciphers, codecs, .. } = *config;
        self.next.asked = Some(Pending { noise, body, own, ciphers, codecs, again, until });
    }

    /// The devices that are to be others, or as many as one message holds.
    fn changes(&self) -> Vec<DeviceChange> {
        let wanted = self.next.wanted.as_deref().unwrap_or_default();
        let now = self.devices.as_deref().unwrap_or_default();
        let changes = wanted.iter().filter(|device| !now.contains(device));
        let changes = changes.map(|device| DeviceChange {
            handle: device.handle,
            level: device.level,
            read_only: device.read_only,
        });
        changes.take(CHANGES_MAX).collect()
    }

    /// Takes the answer to a re-authentication; a repeated one has no effect.
    pub(in super::super) fn handle_next(&mut self, now: Time, body: &[u8]) {
        let Some((start, message)) = body.split_first_chunk::<4>() else {
            return self.end(Ended::Violation("a malformed re-authentication"));
        };
        let Some(asked) = self.next.asked.take_if(|asked| asked.body[..4] == *start) else {
            return;
        };
        let Pending { mut noise, own, ciphers, codecs, .. } = asked;
        let Ok(payload) = noise.read(message) else {
            return self.end(Ended::Violation("a re-authentication with other keys"));
        };
        // An answer without options: the client takes none, or is older than they are.
        if payload.is_empty() {
            self.transport.advance(now, noise.finish(), None);
            // What is wanted since then is asked next.
            if own.devices == self.changes() {
                self.next.step = self.next.wanted.take().map(|_| ChangeStep::Refused);
            }
            return;
        }
        let agreed = Options::parse(&payload).map(|theirs| own.agreed(&theirs, true));
        let new_cipher = agreed.as_ref().and_then(|agreed| {
            let aead = agreed.ciphers.first()?;
            ciphers.iter().find(|(one, _)| one == aead).map(|(_, new_cipher)| *new_cipher)
        });
        let (Some(agreed), Some(new_cipher)) = (agreed, new_cipher) else {
            return self.end(Ended::Violation("a re-authentication with unusable options"));
        };
        let options = self.transport.options().changed_to(&agreed);
        self.slots.change(options.slots, options.data_max);
        self.compression.change(codecs, options.compression);
        let mut devices = self.devices.take().unwrap_or_default();
        for DeviceChange { handle, level, read_only } in own.devices {
            let changed = devices.iter_mut().filter(|device| device.handle == handle);
            changed.for_each(|it| (it.level, it.read_only) = (level, read_only));
        }
        self.transport.advance(now, noise.finish(), Some((options, new_cipher, &devices)));
        self.devices = Some(devices);
        let grant = self.slots.grant();
        self.transport.set_grant(now, grant, true);
        if self.next.wanted.is_some() && self.changes().is_empty() {
            self.next.wanted = None;
            self.next.step = Some(ChangeStep::Begun);
            self.next.is_completing = true;
        }
    }
}

//! Commands on their way to the device: when each goes, and what its client and others are told then.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use proto::scsi::sense::{Additional, Key};
use proto::scsi::{Residual, Sense, Status};

use super::super::super::answer::Abort;
use super::super::super::fault::Fault;
use super::super::super::{Nexus, Response};
use super::super::Core;
use super::PassThroughDevice;
use crate::log_limiter::Permit;
use crate::scsi_device::{
    Concurrency, DeviceAnswer, DeviceData, DeviceFailure, DeviceRequest, Place, Turn,
};

/// The additional sense code of any reset.
const RESET_CODE: u8 = Additional::POWER_ON_OR_RESET.code;

/// That of another medium.
const MEDIUM_CODE: u8 = Additional::MEDIUM_MAY_HAVE_CHANGED.code;

/// Whose command it is; none if it is ours.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) nexus: Option<Nexus>,
    /// Whether what else has happened is told in place of it.
    pub(super) is_told: bool,
}

impl Caller {
    /// This target asks, for no client.
    pub(super) const OURS: Self = Self { nexus: None, is_told: false };
}

impl Core {
    /// Sends one command when its turn comes. After a reset of ours the device tells of it, in place of carrying a command out:
    /// that is swallowed.
    pub(super) async fn send(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        (caller, mut place): (Caller, Place),
        request: DeviceRequest,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        loop {
            let turn = self.take_turn(passed, (caller, place), &request, abort).await?;
            // What those before have told is settled, as they have ended: nothing goes behind one that has failed.
            if let Some(told) = self.told_first(passed, caller)? {
                return Ok(told);
            }
            if let Some(nexus) = caller.nexus {
                self.state.unaware.check(nexus, passed.class, request.block[0])?;
            }
            let executed = passed.device.execute(turn.clone(), request.clone());
            match abort.unless(executed).await? {
                Err(DeviceFailure::NotBegun) => {
                    for sense in passed.device.take_unheard() {
                        self.note_sense(passed, Caller::OURS, &sense);
                    }
                }
                Err(why) => return Err(self.device_failed(passed, caller, why)),
                Ok(DeviceAnswer { status, data, sense, residual }) => {
                    if !self.note_sense(passed, caller, &sense) {
                        let data = if data.is_empty() { Vec::new() } else { vec![data] };
                        return Ok(Response { status, data, sense, residual });
                    }
                }
            }
            place = turn.back();
        }
    }

    /// Waits for the turn of a command. No other is beside the first one after a reset of ours: that one may have to be sent
    /// again, and would come behind it.
    async fn take_turn(
        &self,
        passed: &PassThroughDevice,
        (caller, mut place): (Caller, Place),
        request: &DeviceRequest,
        abort: &Abort,
    ) -> Result<Turn, Fault> {
        loop {
            let mut resets = passed.resets.subscribe();
            if *resets.borrow_and_update() > 0 {
                // The sender is ours: it is there as long as this.
                let _ = abort.unless(resets.wait_for(|under_way| *under_way == 0)).await?;
            }
            let concurrency = match passed.was_reset.load(Ordering::Acquire) {
                true => Concurrency::Alone,
                false => concurrency(passed, caller, request),
            };
            let turn = abort.unless(place.turn(concurrency)).await?;
            let is_reset = passed.was_reset.load(Ordering::Acquire);
            if *resets.borrow() == 0 && (!is_reset || concurrency == Concurrency::Alone) {
                return Ok(turn);
            }
            place = turn.back();
        }
    }

    /// What its client is told in place of a command: a unit attention, or a deferred error.
    pub(super) fn told_first(
        &self,
        passed: &PassThroughDevice,
        Caller { nexus, is_told }: Caller,
    ) -> Result<Option<Response>, Fault> {
        let Some(nexus) = nexus.filter(|_| is_told) else { return Ok(None) };
        if let Some(attention) = self.attend(|attentions| attentions.take(nexus)) {
            return Err(attention.into());
        }
        Ok(passed.clients.take_deferred(nexus).map(|sense| Response {
            status: Status::CheckCondition,
            data: Vec::new(),
            sense,
            residual: Residual::None,
        }))
    }

    /// Notes what the device tells beside the answer to a command; whether it has told of a reset of ours in place of that.
    pub(super) fn note_sense(
        self: &Arc<Self>,
        passed: &PassThroughDevice,
        caller: Caller,
        sense: &Bytes,
    ) -> bool {
        let told = Sense::parse(sense);
        if told.as_ref().is_some_and(|told| told.deferred) {
            // Of which command it is the device knows, and we do not.
            passed.clients.defer(sense, caller.nexus);
        }
        match told.filter(|told| told.key == Key::UnitAttention) {
            Some(told) => {
                passed.is_stale.store(true, Ordering::Release);
                self.note_attention(passed, caller, told.additional)
            }
            None => {
                // Not every device, nor every driver, tells of a reset.
                passed.was_reset.store(false, Ordering::Release);
                false
            }
        }
    }

    /// Tells the other clients of a unit attention of the device, unless it is of a reset of ours; whether it is.
    fn note_attention(
        self: &Arc<Self>,
        passed: &PassThroughDevice,
        caller: Caller,
        additional: Additional,
    ) -> bool {
        if [RESET_CODE, MEDIUM_CODE].contains(&additional.code) {
            self.all_must_look(passed);
        }
        if additional.code == RESET_CODE {
            if passed.was_reset.swap(false, Ordering::AcqRel) {
                return true;
            }
            self.forget_lock(passed, caller);
        }
        self.attend(|attentions| attentions.establish(additional, caller.nexus));
        false
    }

    /// No client knows what is in the drive, nor where the head of that is.
    pub(super) fn all_must_look(&self, passed: &PassThroughDevice) {
        passed.clients.each(|nexus| self.state.unaware.add(nexus));
    }

    /// SPC-4, 6.14: nothing prevents the removal of the medium after a reset, though clients may still want that.
    fn forget_lock(self: &Arc<Self>, passed: &PassThroughDevice, caller: Caller) {
        passed.is_locked.store(false, Ordering::Release);
        // Who tells the device of it does so again by himself, and not for ever.
        if caller.nexus.is_some() {
            self.follow_prevention();
        }
    }

    /// What a client is told when the device has not ended its command.
    fn device_failed(
        self: &Arc<Self>,
        passed: &PassThroughDevice,
        caller: Caller,
        why: DeviceFailure,
    ) -> Fault {
        if let Some((Permit { suppressed }, _)) = self.state.log_limiter.permit() {
            let (target, lun) = (&self.state.target, self.state.lun);
            tracing::warn!(target, lun, suppressed, "pass-through: {why}");
        }
        let may_be_reset = matches!(why, DeviceFailure::TimedOut | DeviceFailure::Lost);
        if may_be_reset {
            self.all_must_look(passed);
            passed.is_stale.store(true, Ordering::Release);
        }
        if may_be_reset && !passed.device.tells_of_losses() {
            // The system may have reset the device meanwhile, and heard alone that it did.
            self.forget_lock(passed, caller);
            let reset = Additional::POWER_ON_OR_RESET;
            self.attend(|attentions| attentions.establish(reset, caller.nexus));
        }
        let sense = |key, additional| Fault::Check(Sense::new(key, additional));
        match why {
            DeviceFailure::Gone => sense(Key::NotReady, Additional::NO_RESPONSE_TO_SELECTION),
            DeviceFailure::Replaced => {
                sense(Key::NotReady, Additional::MANUAL_INTERVENTION_REQUIRED)
            }
            DeviceFailure::TimedOut => sense(Key::AbortedCommand, Additional::COMMAND_TIMEOUT),
            DeviceFailure::Busy | DeviceFailure::NotBegun => Fault::Status(Status::Busy),
            // What it did to the device is not known: the client has to look.
            DeviceFailure::Lost => sense(Key::AbortedCommand, Additional::COMMUNICATION_FAILURE),
            DeviceFailure::Refused => {
                sense(Key::IllegalRequest, Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS)
            }
            DeviceFailure::Broken => sense(Key::HardwareError, Additional::INTERNAL_TARGET_FAILURE),
        }
    }
}

/// With which others a command may have its turn: with those of its client that read or write as it does.
fn concurrency(passed: &PassThroughDevice, caller: Caller, request: &DeviceRequest) -> Concurrency {
    let bytes = match &request.data {
        DeviceData::None => 0,
        DeviceData::In(room) => *room,
        DeviceData::Out(data) => data.len() as u32,
    };
    let order = passed.device.order();
    caller.nexus.map_or(Concurrency::Alone, |Nexus(client)| {
        Concurrency::of(order, passed.class, request.block[0], (client, bytes))
    })
}

//! PREVENT ALLOW MEDIUM REMOVAL: of many clients one initiator port, which the device knows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proto::scsi::Status;
use proto::scsi::cdb::Block;
use proto::scsi::pass_through::Pace;

use super::super::super::answer::Abort;
use super::super::super::fault::{Fault, INTERNAL};
use super::super::super::{Nexus, Response};
use super::super::Core;
use super::sending::Caller;
use super::{PassThroughDevice, good};
use crate::scsi_device::{DeviceData, DeviceRequest};

impl Core {
    /// PREVENT ALLOW MEDIUM REMOVAL: the device keeps its medium in as long as any client wants that.
    pub(super) async fn prevent_on_device(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        nexus: Nexus,
        block: Block,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        let prevents = block[4] & 0x03 != 0;
        self.prevent(nexus, prevents);
        let (core, device) = (Arc::clone(self), Arc::clone(passed));
        // The device may be busy for hours. What it is told then is noted also if nobody waits for it any more.
        let telling = tokio::spawn(async move { core.tell_of_prevention(&device).await });
        match abort.unless(telling).await?.map_err(|_| INTERNAL)?? {
            Some(refused) => {
                // It has not come true, and the client may try again.
                if prevents {
                    self.prevent(nexus, false);
                }
                Ok(refused)
            }
            None => Ok(good(Vec::new())),
        }
    }

    /// Has the device prevent the removal of its medium or not, as its clients want it; an answer if it refuses.
    async fn tell_of_prevention(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
    ) -> Result<Option<Response>, Fault> {
        let _locking = passed.locking.lock().await;
        let wanted = !self.state.preventing.all().is_empty();
        if passed.is_locked.load(Ordering::Acquire) == wanted {
            return Ok(None);
        }
        let mut block = [0; 16];
        [block[0], block[4]] = [0x1E, wanted.into()];
        let timeout = Pace::Query.timeout(passed.class);
        let request = DeviceRequest { block, data: DeviceData::None, timeout };
        let queued = (Caller::OURS, passed.device.turns().enter());
        let answer = self.send(passed, queued, request, &Abort::never()).await?;
        if answer.status != Status::Good {
            return Ok(Some(answer));
        }
        passed.is_locked.store(wanted, Ordering::Release);
        Ok(None)
    }

    /// Tells the device, where a client that is gone was the last that kept the medium in.
    pub(in super::super) fn follow_prevention(self: &Arc<Self>) {
        let Some(passed) = self.state.passed.clone() else { return };
        let wanted = !self.state.preventing.all().is_empty();
        if passed.is_locked.load(Ordering::Acquire) == wanted {
            return;
        }
        let core = Arc::clone(self);
        tokio::spawn(async move {
            // A unit attention comes in place of the first.
            for _ in 0..2 {
                if let Ok(None) = core.tell_of_prevention(&passed).await {
                    return;
                }
            }
            tracing::warn!(
                "pass-through: the device does not keep its medium in, or let it go, as its clients want it"
            );
        });
    }
}

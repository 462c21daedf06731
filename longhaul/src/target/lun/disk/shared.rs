//! A disk of which other machines have one of the same volume: only one of them uses the medium at a time.

use proto::scsi::Sense;
use proto::scsi::reservation::ImageError;
use proto::scsi::sense::{Additional, Key};

use super::super::Waiting;
use super::super::fault::Fault;
use super::{Core, Disk};

impl Disk {
    /// Puts in force what another machine has made of the reservations. What is returned ends when no task runs any more
    /// that it ends.
    pub fn adopt_reservations(&self, image: &[u8]) -> Result<Waiting<()>, ImageError> {
        let effects = self.core.state.reserved.adopt_shared(image)?;
        Ok(Box::pin(self.core.settle(effects)))
    }

    /// Returns when no command uses the medium, after the permit for it was withdrawn.
    pub async fn quiesce(&self) {
        self.core.state.progress.wake();
        self.core.state.lock.recheck();
        drop(self.core.state.lock.exclusive().await);
    }
}

impl Core {
    /// Refuses to use the medium, or to answer from it, where another machine may be doing that.
    pub(super) fn refuse_without_permit(&self) -> Result<(), Fault> {
        match &self.state.permit {
            Some(permit) if !permit.is_valid() => {
                Err(Sense::new(Key::NotReady, Additional::PORT_IN_STANDBY).into())
            }
            _ => Ok(()),
        }
    }
}

//! The target of a session, as its initiator sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::scsi::Sequence;

use super::joining::Entry;
use crate::target::lun::{Initiator, TargetDevice};

/// The units of the target know the nexus of the session while this lives.
pub(super) struct AttachedTarget {
    /// `None` in a discovery session, and once the nexus is lost.
    device: Option<Arc<TargetDevice>>,
    entry: Arc<Entry>,
}

impl AttachedTarget {
    pub(super) fn new(device: Option<Arc<TargetDevice>>, entry: &Arc<Entry>) -> Self {
        if let Some(device) = &device {
            let initiator: Arc<dyn Initiator> = Arc::clone(entry) as _;
            device.attach(entry.nexus, &initiator);
        }
        Self { device, entry: Arc::clone(entry) }
    }

    pub(super) const fn device(&self) -> Option<&Arc<TargetDevice>> {
        self.device.as_ref()
    }

    /// Whether it has units that are not among these.
    pub(super) fn has_others_than(&self, units: &BTreeSet<u16>) -> bool {
        self.device.iter().flat_map(|device| device.luns()).any(|unit| !units.contains(&unit))
    }

    /// The units on which commands are carried out one after the other.
    pub(super) fn sequential(&self) -> BTreeMap<u16, Sequence> {
        self.device.as_ref().map_or_else(BTreeMap::new, |device| device.sequential())
    }

    /// Another view of the target takes the place of the one before. Commands under way go on where they began, which is
    /// the same disk.
    pub(super) fn replace(&mut self, device: Arc<TargetDevice>) {
        let Some(old) = self.device.take() else { return };
        let initiator: Arc<dyn Initiator> = Arc::clone(&self.entry) as _;
        device.succeed(&old, self.entry.nexus, &initiator);
        self.device = Some(device);
    }

    /// The nexus is lost (SAM-5, 6.3.4), and with it what RESERVE has reserved.
    pub(super) fn detach(&mut self) {
        if let Some(device) = self.device.take() {
            device.detach(self.entry.nexus);
        }
    }
}

/// However a session ends, the units forget its nexus before another one can take its place.
impl Drop for AttachedTarget {
    fn drop(&mut self) {
        self.detach();
    }
}

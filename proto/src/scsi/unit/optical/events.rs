//! What GET EVENT STATUS NOTIFICATION tells each I_T nexus of the disc (MMC-6, 6.6): events that it has not been told
//! yet. They are not unit attentions, which it is told too.

use std::collections::BTreeMap;

use super::super::super::readiness::Readiness;
use super::super::truncate;

/// An event of the media class (MMC-6, table 296). A later one takes the place of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MediaEvent {
    /// Somebody at the drive wants the disc, and may not take it.
    EjectRequest = 1,
    /// There is another disc.
    NewMedia = 2,
    /// The disc was taken out.
    MediaRemoval = 3,
}

/// The events of one drive, for each nexus `N`: of each class at most one.
#[derive(Debug)]
pub struct MediaEvents<N>(BTreeMap<N, Pending>);

#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    media: Option<MediaEvent>,
    /// The features have changed, since the disc has.
    operational: bool,
}

impl<N> Default for MediaEvents<N> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// The length of an answer with an event.
const WHOLE: u32 = 8;

const OPERATIONAL: u8 = 1;
const MEDIA: u8 = 4;
const SUPPORTED: u8 = 1 << OPERATIONAL | 1 << MEDIA;

impl<N: Copy + Ord> MediaEvents<N> {
    /// A nexus comes into being: nothing has happened for it yet.
    pub fn attach(&mut self, nexus: N) {
        self.0.insert(nexus, Pending::default());
    }

    /// A nexus is gone.
    pub fn detach(&mut self, nexus: N) {
        self.0.remove(&nexus);
    }

    /// Every nexus will be told of `event`.
    pub fn establish(&mut self, event: MediaEvent) {
        for pending in self.0.values_mut() {
            pending.media = Some(event);
            pending.operational |= event != MediaEvent::EjectRequest;
        }
    }

    /// The answer to `nexus`, of the first class that it asks for and there is. An event is told once, if all of it fits
    /// the allocation length.
    pub fn report(&mut self, nexus: N, classes: u8, allocation: u32, state: Readiness) -> Vec<u8> {
        let asked = classes & SUPPORTED;
        if asked == 0 {
            const NO_EVENT: u8 = 0x80;
            return truncate(vec![0, 2, NO_EVENT, SUPPORTED], allocation);
        }
        let mut none = Pending::default();
        let is_told = allocation >= WHOLE;
        let pending = self.0.get_mut(&nexus).filter(|_| is_told).unwrap_or(&mut none);
        let class = asked.trailing_zeros() as u8;
        let event = if class == OPERATIONAL {
            // Operational Change: not prevented persistently; the feature list has changed.
            const CHANGED: u8 = 2;
            const FEATURE_CHANGE: u8 = 1;
            match std::mem::take(&mut pending.operational) {
                true => [CHANGED, 0, 0, FEATURE_CHANGE],
                false => [0; 4],
            }
        } else {
            [pending.media.take().map_or(0, |event| event as u8), media_status(state), 0, 0]
        };
        let mut bytes = vec![0, 6, class, SUPPORTED];
        bytes.extend(event);
        truncate(bytes, allocation)
    }
}

/// Media Present and Door Or Tray Open.
const fn media_status(state: Readiness) -> u8 {
    match state {
        Readiness::TrayOpen => 0x01,
        state if state.lacks_medium() => 0x00,
        _ => 0x02,
    }
}

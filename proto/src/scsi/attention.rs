//! Unit attentions: what each I_T nexus has not been told yet (SAM-5, 5.14).

use std::collections::{BTreeMap, VecDeque};

use super::Sense;
use super::sense::{Additional, Key};

/// The unit attention conditions of one logical unit, in order, for each nexus `N`. A condition is
/// queued once per nexus, so that a queue cannot grow beyond the number of conditions there are.
#[derive(Debug)]
pub struct Attentions<N> {
    pending: BTreeMap<N, VecDeque<Additional>>,
    /// At most one for a nexus: the first says what is lost.
    deferred: BTreeMap<N, Sense>,
}

impl<N> Default for Attentions<N> {
    fn default() -> Self {
        Self { pending: BTreeMap::new(), deferred: BTreeMap::new() }
    }
}

/// What a command has to do with a pending unit attention (SPC-4, 6.6.1, 6.33 and 6.39; SAM-5, 5.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionHandling {
    /// It is not run: it reports the condition, which is cleared by that.
    Reports,
    /// It is run, and the condition stays.
    Passes,
    /// It is run and returns the condition as its data: REQUEST SENSE.
    Returns,
}

impl<N: Copy + Ord> Attentions<N> {
    /// A nexus comes into being: it will be told of the power on, by the code that leaves open which
    /// reset it was (SAM-5, 5.14), as the one that common initiators expect.
    pub fn attach(&mut self, nexus: N) {
        self.pending.insert(nexus, VecDeque::from([Additional::POWER_ON_OR_RESET]));
    }

    /// A nexus is gone.
    pub fn detach(&mut self, nexus: N) {
        self.pending.remove(&nexus);
        self.deferred.remove(&nexus);
    }

    /// Every nexus but `cause` will be told of `condition`.
    pub fn establish(&mut self, condition: Additional, cause: Option<N>) {
        for (_, queue) in self.pending.iter_mut().filter(|(nexus, _)| Some(**nexus) != cause) {
            enqueue(queue, condition);
        }
    }

    /// `nexus` will be told of `condition`, if it is there.
    pub fn tell(&mut self, nexus: N, condition: Additional) {
        if let Some(queue) = self.pending.get_mut(&nexus) {
            enqueue(queue, condition);
        }
    }

    /// `nexus` will be told, if it is there, that a command failed for which it has GOOD already (SPC-4,
    /// 4.5).
    pub fn defer(&mut self, nexus: N, sense: Sense) {
        if self.pending.contains_key(&nexus) {
            self.deferred.entry(nexus).or_insert(Sense { deferred: true, ..sense });
        }
    }

    /// `nexus` need not be told of `condition` any more.
    pub fn withdraw(&mut self, nexus: N, condition: Additional) {
        if let Some(queue) = self.pending.get_mut(&nexus) {
            queue.retain(|pending| *pending != condition);
        }
    }

    /// The next condition for `nexus`, which is cleared by being taken.
    pub fn take(&mut self, nexus: N) -> Option<Sense> {
        match self.pending.get_mut(&nexus)?.pop_front() {
            Some(condition) => Some(Sense::new(Key::UnitAttention, condition)),
            // SAM-5, 5.14: unit attentions come before deferred errors.
            None => self.deferred.remove(&nexus),
        }
    }

    /// Whether any nexus has something to be told.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.deferred.is_empty() || self.pending.values().any(|queue| !queue.is_empty())
    }
}

fn enqueue(queue: &mut VecDeque<Additional>, condition: Additional) {
    // SAM-5, 5.14.2: a reset takes precedence over all but a power on, and the conditions before it are
    // part of it.
    if is_reset(condition) && queue.front() != Some(&Additional::POWER_ON_OR_RESET) {
        queue.clear();
    }
    let told_anyway = queue.front().is_some_and(|first| is_reset(*first) && is_reset(condition));
    if !told_anyway && !queue.contains(&condition) {
        queue.push_back(condition);
    }
}

const fn is_reset(condition: Additional) -> bool {
    condition.code == Additional::POWER_ON_OR_RESET.code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(attentions: &mut Attentions<u8>, nexus: u8) -> Vec<Additional> {
        std::iter::from_fn(|| attentions.take(nexus)).map(|sense| sense.additional).collect()
    }

    #[test]
    fn each_nexus_is_told_once_in_order() {
        let mut attentions = Attentions::default();
        attentions.attach(1);
        attentions.attach(2);
        attentions.establish(Additional::MODE_PARAMETERS_CHANGED, Some(1));
        attentions.establish(Additional::CAPACITY_CHANGED, None);
        attentions.establish(Additional::CAPACITY_CHANGED, None);
        assert_eq!(
            taken(&mut attentions, 1),
            [Additional::POWER_ON_OR_RESET, Additional::CAPACITY_CHANGED]
        );
        let both = [Additional::MODE_PARAMETERS_CHANGED, Additional::CAPACITY_CHANGED];
        assert_eq!(
            taken(&mut attentions, 2),
            [&[Additional::POWER_ON_OR_RESET], &both[..]].concat()
        );
        assert!(!attentions.any());
        assert_eq!(taken(&mut attentions, 3), []);
    }

    #[test]
    fn a_reset_stands_for_what_was_before_it() {
        let mut attentions = Attentions::default();
        attentions.attach(1);
        assert_eq!(taken(&mut attentions, 1), [Additional::POWER_ON_OR_RESET]);
        attentions.establish(Additional::COMMANDS_CLEARED, None);
        attentions.establish(Additional::BUS_DEVICE_RESET, None);
        attentions.establish(Additional::BUS_DEVICE_RESET, None);
        attentions.establish(Additional::MODE_PARAMETERS_CHANGED, None);
        let expected = [Additional::BUS_DEVICE_RESET, Additional::MODE_PARAMETERS_CHANGED];
        assert_eq!(taken(&mut attentions, 1), expected);
        attentions.attach(1);
        attentions.establish(Additional::BUS_DEVICE_RESET, None);
        assert_eq!(taken(&mut attentions, 1), [Additional::POWER_ON_OR_RESET]);
    }

    #[test]
    fn a_deferred_error_comes_once_and_last() {
        let mut attentions = Attentions::default();
        attentions.attach(1);
        let lost = Sense::new(Key::MediumError, Additional::WRITE_ERROR);
        attentions.defer(1, lost);
        attentions.defer(1, Sense::new(Key::HardwareError, Additional::INTERNAL_TARGET_FAILURE));
        attentions.defer(2, lost);
        assert!(attentions.take(1).is_some_and(|sense| !sense.deferred));
        assert_eq!(attentions.take(1), Some(Sense { deferred: true, ..lost }));
        assert!(!attentions.any());
    }

    #[test]
    fn the_one_who_left_is_not_told() {
        let mut attentions = Attentions::default();
        attentions.attach(1);
        attentions.detach(1);
        assert!(!attentions.any());
    }
}

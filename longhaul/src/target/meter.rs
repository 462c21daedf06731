//! What a session has done, and how long it took: written by its own task, read by anyone.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proto::scsi::Sense;
use proto::scsi::cdb::Kind;
use proto::scsi::sense::{Additional, Key};
use serde::{Deserialize, Serialize};

/// Four to each power of two of microseconds, up to 16 s: a percentile is off by a fifth at most.
pub const BUCKETS: usize = 92;

/// Counts that only grow, but for those in flight. Nobody else writes them, so that they are never fought
/// over; they are not taken together, so that a reader may see a command without its bytes.
#[derive(Default)]
pub struct Meter {
    reads: Tally,
    writes: Tally,
    others: Tally,
    failed: AtomicU64,
    refused: AtomicU64,
    aborted: AtomicU64,
    in_flight: AtomicU64,
}

#[derive(Default)]
struct Tally {
    commands: AtomicU64,
    bytes: AtomicU64,
    micros: AtomicU64,
    latency: Histogram,
}

struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Meter {
    /// A command has begun.
    pub fn began(&self) {
        add(&self.in_flight, 1);
    }

    /// A command has ended, whatever its status, after it moved so many bytes.
    pub fn ended(&self, kind: Kind, bytes: u64, took: Duration) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let tally = match kind {
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
            Kind::Other => &self.others,
        };
        add(&tally.commands, 1);
        add(&tally.bytes, bytes);
        add(&tally.micros, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        if let Some(count) = tally.latency.0.get(bucket(took)) {
            add(count, 1);
        }
    }

    /// A command ended with a status other than GOOD.
    pub fn ended_badly(&self, kind: Kind, sense: &[u8]) {
        match Sense::parse(sense) {
            // A file mark, or a block that is shorter than asked for (SSC-4, 7.4): it was carried out.
            Some(sense) if sense.is_success() => {}
            Some(sense) if is_refusal(kind, &sense) => add(&self.refused, 1),
            _ => add(&self.failed, 1),
        }
    }

    /// A command ended before it was done.
    pub fn aborted(&self) {
        add(&self.aborted, 1);
    }

    /// What was done until now.
    pub fn activity(&self) -> Activity {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let work = |tally: &Tally| Work {
            commands: count(&tally.commands),
            bytes: count(&tally.bytes),
            total_us: count(&tally.micros),
            latency: tally.latency.0.iter().map(count).collect(),
            ..Work::default()
        };
        Activity {
            reads: work(&self.reads),
            writes: work(&self.writes),
            others: work(&self.others),
            failed: count(&self.failed),
            refused: count(&self.refused),
            aborted: count(&self.aborted),
            in_flight: count(&self.in_flight),
        }
    }
}

/// The additional sense code of drives without a medium.
const NO_MEDIUM: u8 = Additional::MEDIUM_NOT_PRESENT.code;

/// Whether nothing has failed: an initiator was told what has happened before its command (SAM-5, 5.14), which it
/// then sends again, or it asked whether the disk has a command or a page, as all do that look at a new disk, or whether a
/// drive has a medium, as systems do again and again. A tape that is read to its end tells of that so too.
fn is_refusal(kind: Kind, sense: &Sense) -> bool {
    let asked = [Additional::INVALID_COMMAND_OPERATION_CODE, Additional::INVALID_FIELD_IN_CDB];
    match sense.key {
        Key::UnitAttention => true,
        Key::NotReady => kind == Kind::Other && sense.additional.code == NO_MEDIUM,
        Key::BlankCheck => sense.additional == Additional::END_OF_DATA,
        Key::IllegalRequest => kind == Kind::Other && asked.contains(&sense.additional),
        _ => false,
    }
}

/// The bucket a time falls into.
fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let index = match micros {
        0..4 => micros,
        _ => {
            let power = micros.ilog2();
            let quarter = (micros >> (power - 2)) & 3;
            u64::from(power - 1) * 4 + quarter
        }
    };
    (index as usize).min(BUCKETS - 1)
}

/// The microseconds where a bucket ends.
#[must_use]
pub const fn bound(bucket: usize) -> u64 {
    match bucket {
        0..4 => bucket as u64 + 1,
        _ => (5 + bucket as u64 % 4) << (bucket / 4 - 1),
    }
}

/// What was done, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Reads.
    pub reads: Work,
    /// Writes.
    pub writes: Work,
    /// All else.
    pub others: Work,
    /// Commands that ended with a status other than GOOD, but for those that were refused or carried out all the same.
    pub failed: u64,
    /// Commands that asked for what the unit has not, or whether it has a medium, and those that were told a unit attention.
    #[serde(default)]
    pub refused: u64,
    /// Commands that ended before they were done.
    pub aborted: u64,
    /// Commands in the hands of units.
    pub in_flight: u64,
}

/// Commands of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// How many.
    pub commands: u64,
    /// Their data.
    pub bytes: u64,
    /// The microseconds that all of them took together.
    #[serde(default)]
    pub total_us: u64,
    /// How many took how long; [`bound`] says what a place means.
    pub latency: Vec<u64>,
    /// The microseconds that half of them did not exceed; where that has been worked out.
    #[serde(default)]
    pub p50_us: Option<u64>,
    /// The same for 99 of 100.
    #[serde(default)]
    pub p99_us: Option<u64>,
}

impl Work {
    /// The same, with the percentiles worked out.
    #[must_use]
    fn summed_up(self) -> Self {
        Self { p50_us: self.percentile(0.5), p99_us: self.percentile(0.99), ..self }
    }

    /// The microseconds that `share` of the commands did not exceed.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let wanted = (self.commands as f64 * share).ceil() as u64;
        let mut seen = 0;
        let place = self.latency.iter().position(|count| {
            seen += count;
            seen >= wanted.max(1)
        });
        place.map(bound)
    }
}

impl Work {
    fn since(&self, before: &Self) -> Self {
        let then = before.latency.iter().copied().chain(std::iter::repeat(0));
        Self {
            commands: self.commands.saturating_sub(before.commands),
            bytes: self.bytes.saturating_sub(before.bytes),
            total_us: self.total_us.saturating_sub(before.total_us),
            latency: self
                .latency
                .iter()
                .zip(then)
                .map(|(now, then)| now.saturating_sub(then))
                .collect(),
            ..Self::default()
        }
    }
}

impl Activity {
    /// The same, with the percentiles worked out.
    #[must_use]
    pub fn summed_up(self) -> Self {
        let Self { reads, writes, others, .. } = self;
        let [reads, writes, others] = [reads, writes, others].map(Work::summed_up);
        Self { reads, writes, others, ..self }
    }

    /// What was done since `before`; what is in flight is so now.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads.since(&before.reads),
            writes: self.writes.since(&before.writes),
            others: self.others.since(&before.others),
            failed: self.failed.saturating_sub(before.failed),
            refused: self.refused.saturating_sub(before.refused),
            aborted: self.aborted.saturating_sub(before.aborted),
            in_flight: self.in_flight,
        }
    }
}

impl AddAssign<&Self> for Work {
    fn add_assign(&mut self, other: &Self) {
        self.commands += other.commands;
        self.bytes += other.bytes;
        self.total_us += other.total_us;
        self.latency.resize(BUCKETS, 0);
        self.latency.iter_mut().zip(&other.latency).for_each(|(one, two)| *one += two);
    }
}

impl AddAssign<&Self> for Activity {
    fn add_assign(&mut self, other: &Self) {
        self.reads += &other.reads;
        self.writes += &other.writes;
        self.others += &other.others;
        self.failed += other.failed;
        self.refused += other.refused;
        self.aborted += other.aborted;
        self.in_flight += other.in_flight;
    }
}

#[cfg(test)]
mod tests {
    use proto::scsi::sense::Format;

    use super::*;

    #[test]
    fn every_time_falls_into_the_bucket_whose_bounds_hold_it() {
        let mut last = 0;
        for micros in (0..5000).chain((0..24).map(|power| (1 << power) - 1)).chain([u64::MAX]) {
            let place = bucket(Duration::from_micros(micros));
            assert!(micros < bound(place) || place == BUCKETS - 1, "{micros}");
            assert!(place == 0 || micros >= bound(place - 1), "{micros}");
        }
        for place in 0..BUCKETS {
            assert!(bound(place) > last);
            last = bound(place);
        }
        assert!(last >= 1 << 23);
    }

    #[test]
    fn probe_that_is_refused_has_not_failed() {
        let meter = Meter::default();
        let illegal = |additional| Sense::new(Key::IllegalRequest, additional);
        let attention = Sense::new(Key::UnitAttention, Additional::POWER_ON_OR_RESET);
        for (kind, sense) in [
            (Kind::Other, illegal(Additional::INVALID_FIELD_IN_CDB)),
            (Kind::Other, illegal(Additional::INVALID_COMMAND_OPERATION_CODE)),
            (Kind::Read, attention),
            (Kind::Other, Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT_TRAY_OPEN)),
            (Kind::Read, Sense::new(Key::BlankCheck, Additional::END_OF_DATA)),
        ] {
            meter.ended_badly(kind, &sense.emit(Format::Fixed));
        }
        assert_eq!((meter.activity().refused, meter.activity().failed), (5, 0));
        let mark = Sense::new(Key::NoSense, Additional::FILEMARK_DETECTED);
        meter.ended_badly(Kind::Read, &mark.emit(Format::Fixed));
        assert_eq!((meter.activity().refused, meter.activity().failed), (5, 0), "it has read");
        let error = Sense::new(Key::MediumError, Additional::UNRECOVERED_READ_ERROR);
        for (kind, sense) in [
            (Kind::Write, illegal(Additional::INVALID_FIELD_IN_CDB)),
            (Kind::Read, illegal(Additional::LBA_OUT_OF_RANGE)),
            (Kind::Other, error),
            (Kind::Other, Sense::new(Key::NotReady, Additional::NO_RESPONSE_TO_SELECTION)),
            (Kind::Read, Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT)),
        ] {
            meter.ended_badly(kind, &sense.emit(Format::Descriptor));
        }
        // A status without sense, such as a reservation conflict.
        meter.ended_badly(Kind::Other, &[]);
        assert_eq!((meter.activity().refused, meter.activity().failed), (5, 6));
    }

    #[test]
    fn sum_of_times_is_exact() {
        let meter = Meter::default();
        for micros in 1..=100 {
            meter.began();
            meter.ended(Kind::Read, 0, Duration::from_micros(micros));
        }
        let once = meter.activity();
        assert_eq!(once.reads.total_us, 5050);
        let mut twice = once.clone();
        twice += &once;
        assert_eq!((twice.reads.total_us, twice.since(&once).reads.total_us), (10_100, 5050));
    }

    #[test]
    fn a_percentile_is_what_so_many_did_not_exceed() {
        let meter = Meter::default();
        for micros in 1..=100 {
            meter.began();
            meter.ended(Kind::Read, 512, Duration::from_micros(micros));
        }
        let reads = meter.activity().reads;
        assert_eq!((reads.commands, reads.bytes), (100, 51_200));
        let near = |share, exact: u64| {
            let told = reads.percentile(share).unwrap();
            assert!(told >= exact && told <= exact * 5 / 4 + 1, "{share}: {told}");
        };
        near(0.5, 50);
        near(0.99, 99);
        near(1.0, 100);
        assert_eq!(meter.activity().writes.percentile(0.5), None);
        assert_eq!(meter.activity().in_flight, 0);
    }
}

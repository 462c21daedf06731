//! What can be fixed by hand, and what is chosen where it is not.

use std::time::Duration;

use super::model::{Bottleneck, Stages};
use super::rate_meter::{PROBE_REQUESTS, RateMeter};
use crate::{Shape, TRANSFER_MAX};

/// The smallest segment chosen: below it the headers of a request begin to matter even on a link so
/// slow that a larger one would delay everything behind it.
const SEGMENT_MIN: u64 = 16 << 10;

/// The largest segment chosen: beyond it nothing gets cheaper, and the ciphers want pieces to share.
const SEGMENT_MAX: u64 = 1 << 20;

/// The segment before anything was measured.
const SEGMENT_FIRST: u64 = 64 << 10;

/// A segment should take at least this long on the link, so that the cost per request is small, ...
const SEGMENT_TIME: Duration = Duration::from_millis(1);

/// ... if it is not larger than this anyway: beyond it, putting writes together costs more than it
/// saves, ...
const SEGMENT_QUICK: u64 = 128 << 10;

/// ... unless this part of what is in flight is more: so much delay is not felt, and other ends queue
/// only so many requests.
const SEGMENTS_IN_FLIGHT: u64 = 16;

/// A target that takes so much of a write without asking for it gets no more in one: the rest would take a second round
/// trip. From others larger ones are worth it, as a target takes only so many commands at a time.
const UNSOLICITED_ENOUGH: u64 = 512 << 10;

/// At least so many segments are in flight, so that stages overlap where there is no latency.
const SEGMENTS_MIN: u64 = 4;

/// A window of writes holds at least so many segments: those that wait for their turn can be merged. What is read
/// ahead has no such floor, as on a slow line it would be seconds of what nobody may want.
const SEGMENTS_IN_WINDOW: u64 = 16;

/// The most requests in flight: small random writes are bounded by this before they are by bytes. A
/// thousand 4 KiB writes per round trip of 128 ms are 32 MB/s, and more than most targets queue.
const REQUESTS_MAX: usize = 1024;

/// What is accepted or read ahead takes at most this much memory unless told otherwise, in bytes
/// each: four times what a gigabit link of 64 ms one way needs in flight.
const MEMORY: u64 = 64 << 20;

/// The numbers of a pipeline; what is `None` is measured and follows the connection. All in bytes
/// but `segments`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How much may be accepted and not yet written.
    pub window: Option<u64>,
    /// How many segments of a transfer are in flight at a time.
    pub segments: Option<u32>,
    /// The size that writes are merged to, cut to, and read ahead in.
    pub segment: Option<u32>,
    /// How far to read ahead; 0 never does.
    pub read_ahead: Option<u64>,
    /// The longest write that takes one round trip. A target asks for the data of longer ones, which takes another.
    pub unsolicited: u64,
    /// Whether what is known to be zero is read without asking for it; never where `read_ahead` is 0.
    pub holes: bool,
    /// The most that `window` and `read_ahead`, each, are chosen to be.
    pub memory: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            window: None,
            segments: None,
            segment: None,
            read_ahead: None,
            unsolicited: u64::MAX,
            holes: true,
            memory: MEMORY,
        }
    }
}

/// What was chosen for one direction, from what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The least time a request took.
    pub latency: Option<Duration>,
    /// The highest rate seen lately, in bytes per second.
    pub rate: Option<f64>,
    /// How much may be held: accepted for writes, read ahead for reads.
    pub window: u64,
    /// The most that `window` is ever chosen to be; as much is read ahead of whoever reads so much at a time.
    pub most: u64,
    /// How much of it may be in flight.
    pub in_flight: u64,
    /// The size of a merged request.
    pub segment: u64,
    /// How many requests may be in flight.
    pub requests: usize,
    /// What keeps the transfer from being faster.
    pub limit: Limit,
}

/// Why a transfer is not faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Nothing was measured yet, or the rate still grows with what is in flight.
    Unknown,
    /// Nobody asks for more.
    Demand,
    /// What is in flight is bounded, by hand or by memory, below what the connection takes.
    RoundTrips,
    /// The connection, or what lies beneath, is full.
    Connection,
}

/// The direction a choice is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layer) enum Direction {
    Write,
    Read,
}

impl Settings {
    /// Whether holes are known: others who write to the same store would not be noticed.
    pub(super) fn knows_holes(&self) -> bool {
        self.holes && self.read_ahead != Some(0)
    }

    /// What follows from the measurements of one direction, on a volume of this shape.
    pub(super) fn choose(&self, direction: Direction, meter: &RateMeter, shape: &Shape) -> Chosen {
        let segment = self.segment(direction, meter, shape);
        let window_fixed = match direction {
            Direction::Write => self.window,
            Direction::Read => self.read_ahead,
        };
        let most = window_fixed.unwrap_or(self.memory);
        let in_flight = match self.segments {
            Some(segments) => u64::from(segments.max(1)) * segment,
            // A request in transfer is not yet one that waits: one segment more than the product.
            None => (meter.wanted().unwrap_or(0) + segment).max(SEGMENTS_MIN * segment),
        };
        // Beside what flies lies what was read and is not yet fetched, or may be asked for again, a
        // segment or two for each stream; and what was accepted and waits to be merged.
        let beside = match direction {
            Direction::Read => 2 * segment,
            Direction::Write => segment,
        };
        let least = SEGMENTS_IN_WINDOW * segment;
        let window = match (window_fixed, direction) {
            (Some(fixed), Direction::Read) => fixed,
            (Some(fixed), Direction::Write) => fixed.max(segment),
            (None, Direction::Write) => (2 * in_flight).max(least).min(most).max(segment),
            (None, Direction::Read) => (in_flight / 2 * 3 + beside).min(most).max(segment),
        };
        let in_flight = in_flight.min((window - beside.min(window / 4)).max(segment));
        Chosen {
            latency: meter.latency(),
            rate: meter.rate(),
            window,
            most,
            in_flight,
            segment,
            requests: match self.segments {
                Some(segments) => segments.max(1) as usize,
                None if meter.is_probing() => PROBE_REQUESTS,
                None => REQUESTS_MAX,
            },
            limit: limit(meter, segment, in_flight),
        }
    }

    /// A power of two, a multiple of every block, unless it was fixed by hand.
    fn segment(&self, direction: Direction, meter: &RateMeter, shape: &Shape) -> u64 {
        let block = u64::from(shape.block_size);
        let least = SEGMENT_MIN.max(u64::from(shape.physical_block_size)).max(block);
        let segment = match self.segment {
            Some(fixed) => u64::from(fixed).next_multiple_of(block).max(block),
            None => self.useful_segment(meter).min(self.segment_max(direction)).max(least),
        };
        let most = self.window.unwrap_or(u64::MAX).min(u64::from(TRANSFER_MAX));
        segment.min((most - most % block).max(block))
    }

    /// The largest that is chosen.
    fn segment_max(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Write
                if self.segments.is_none() && self.unsolicited >= UNSOLICITED_ENOUGH =>
            {
                SEGMENT_MAX.min(1 << self.unsolicited.ilog2())
            }
            _ => SEGMENT_MAX,
        }
    }

    fn useful_segment(&self, meter: &RateMeter) -> u64 {
        let (Some(rate), Some(wanted)) = (meter.rate(), meter.wanted()) else {
            return SEGMENT_FIRST;
        };
        match self.segments {
            // So many segments are to fill the link, however large they must be for it.
            Some(segments) => (wanted / u64::from(segments.max(1))).max(1).next_power_of_two(),
            None => {
                let quick = ((rate * SEGMENT_TIME.as_secs_f64()) as u64).min(SEGMENT_QUICK);
                1 << quick.max(wanted / SEGMENTS_IN_FLIGHT).max(1).ilog2()
            }
        }
    }
}

fn limit(meter: &RateMeter, segment: u64, in_flight: u64) -> Limit {
    let (Some(rate), Some(latency)) = (meter.rate(), meter.latency()) else {
        return Limit::Unknown;
    };
    if meter.is_limited() {
        return Limit::Demand;
    }
    if meter.is_growing() {
        return Limit::Unknown;
    }
    // The latency measured is a whole cycle but for the transfer of what is larger than its sample.
    let stages =
        Stages { round_trip: latency, round_trips: 1, link: rate, encrypt: None, decrypt: None };
    match stages.bottleneck(segment, in_flight as f64 / segment as f64) {
        Bottleneck::RoundTrips => Limit::RoundTrips,
        _ => Limit::Connection,
    }
}

use super::*;

const MS: Duration = Duration::from_millis(1);
const SEGMENT: u64 = 64 << 10;

/// A link of one rate and delay, kept full with what the meter asks for; gives the last estimates.
struct Load {
    meter: RateMeter,
    now: Duration,
    /// When each request returns, and its stamp.
    issued: std::collections::VecDeque<(Duration, Stamp)>,
    free: Duration,
}

impl Load {
    fn new() -> Self {
        let issued = std::collections::VecDeque::new();
        Self { meter: RateMeter::default(), now: Duration::ZERO, issued, free: Duration::ZERO }
    }

    /// Keeps the link busy for `time`; with `demand`, with no more requests than that.
    fn run(&mut self, round_trip: Duration, rate: f64, time: Duration, demand: usize) {
        let end = self.now + time;
        while self.now < end {
            let wanted = self.meter.wanted().unwrap_or(0) / SEGMENT + 1;
            let wanted = if self.meter.is_probing() { PROBE_REQUESTS } else { wanted as usize };
            while self.issued.len() < wanted.min(demand) {
                let limited = self.issued.len() + 1 == demand;
                let stamp = self.meter.issued(limited, self.now);
                self.free =
                    self.free.max(self.now) + Duration::from_secs_f64(SEGMENT as f64 / rate);
                self.issued.push_back((self.free + round_trip, stamp));
            }
            let (returns, stamp) = self.issued.pop_front().unwrap();
            self.now = self.now.max(returns);
            self.meter.returned(stamp, SEGMENT, true, self.now);
        }
    }

    fn assert_close(&self, round_trip: Duration, rate: f64) {
        let (measured_rate, latency) = (self.meter.rate().unwrap(), self.meter.latency().unwrap());
        assert!((measured_rate / rate - 1.0).abs() < 0.05, "{measured_rate} for {rate}");
        let alone = round_trip.as_secs_f64() + SEGMENT as f64 / rate;
        let ratio = latency.as_secs_f64() / alone;
        assert!((0.99..1.2).contains(&ratio), "{latency:?} for {alone}");
    }
}

#[test]
fn finds_rate_and_latency_of_any_link() {
    for (round_trip, rate) in [(1, 125e6), (16, 125e6), (128, 125e6), (128, 1e6), (0, 2e9)] {
        let mut load = Load::new();
        load.run(round_trip * MS, rate, 30 * round_trip * MS + 500 * MS, usize::MAX);
        load.assert_close(round_trip * MS, rate);
    }
}

#[test]
fn follows_rate_and_latency_up_and_down() {
    let mut load = Load::new();
    for (round_trip, rate) in [(64, 50e6), (64, 5e6), (64, 50e6), (200, 50e6), (10, 50e6)] {
        load.run(round_trip * MS, rate, 40_000 * MS, usize::MAX);
        load.assert_close(round_trip * MS, rate);
    }
}

/// Measuring the latency leaves the link idle for two round trips.
#[test]
fn latency_is_measured_anew_as_often_as_the_link_can_spare() {
    for (round_trip, share) in [(16, 0.97), (128, 0.97), (600, 0.97)] {
        let mut load = Load::new();
        load.run(round_trip * MS, 50e6, 30_000 * MS, usize::MAX);
        let (before, began) = (load.meter.delivered, load.now);
        load.run(round_trip * MS, 50e6, 120_000 * MS, usize::MAX);
        let most = 50e6 * (load.now - began).as_secs_f64();
        let used = (load.meter.delivered - before) as f64 / most;
        assert!(used > share, "{round_trip} ms: {used}");
    }
}

#[test]
fn idle_time_does_not_lower_the_rate() {
    let mut load = Load::new();
    load.run(50 * MS, 50e6, 5000 * MS, usize::MAX);
    load.run(50 * MS, 50e6, 60_000 * MS, 2);
    load.assert_close(50 * MS, 50e6);
}

#[test]
fn a_failed_request_measures_nothing() {
    let mut meter = RateMeter::default();
    let stamp = meter.issued(false, MS);
    meter.returned(stamp, SEGMENT, false, 2 * MS);
    assert_eq!((meter.rate(), meter.latency()), (None, None));
}

//! What a TCP connection carries over a link that loses packets.

use std::time::Duration;

/// How many connections it takes to carry `rate` bytes per second where one in `1 / loss` segments is lost, by turns.
pub(super) fn connections(rate: f64, loss: f64, round_trip: Duration, segment: u32) -> usize {
    let one = carried(loss, round_trip, segment.into());
    // A rate that is not a number, and one that is none, asks for no more than one.
    (rate / one).ceil().max(1.0) as usize
}

/// What one connection that halves its window at each loss carries, in bytes per second, where one in `1 / loss`
/// segments is lost: `segment / round_trip * sqrt(3 / 2 / loss)` (Mathis, Semke, Mahdavi and Ott, 1997). Without losses
/// nothing bounds it.
pub(super) fn carried(loss: f64, round_trip: Duration, segment: f64) -> f64 {
    if loss <= 0.0 || round_trip.is_zero() {
        return f64::INFINITY;
    }
    segment / round_trip.as_secs_f64() * (1.5 / loss).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_make_up_for_losses() {
        let milliseconds = Duration::from_millis;
        // One in a thousand at 16 ms leaves a connection 3.5 MB/s.
        assert_eq!(connections(3e6, 1e-3, milliseconds(16), 1448), 1);
        assert_eq!(connections(10e6, 1e-3, milliseconds(16), 1448), 3);
        // A tenth of the losses: sqrt(10) times as much.
        assert_eq!(connections(10e6, 1e-4, milliseconds(16), 1448), 1);
        assert_eq!(connections(10e6, 1e-3, milliseconds(64), 1448), 12);
        assert_eq!(connections(1e12, 0.0, milliseconds(64), 1448), 1);
        assert_eq!(connections(f64::NAN, 1e-3, milliseconds(64), 1448), 1);
    }
}

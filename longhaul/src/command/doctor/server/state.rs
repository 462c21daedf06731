//! How a server is that lets this client in: its clock, the room for the volume, and the packets that are lost on the way.

use std::time::Duration;

use proto::scsi::log::FreeSpace;
use tokio::time::timeout;

use super::super::super::attached::{PathStatus, attachments};
use super::{Finding, PATIENCE};
use crate::chain::{self, Login, ServerState};
use crate::size::Size;
use crate::uri::{Host, Location, Uri};

/// Clocks that are kept by the network are nearer to one another.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// With less than this a file system has no room for anything.
const FULL: u64 = 16 << 20;

/// How many segments it takes to tell how many are lost.
const SEGMENTS_MIN: u64 = 1000;

/// One lost of so many is more than a good line loses; from there on most kinds of congestion control are slower.
const LOSS: u64 = 1000;

/// Asks the unit. That it cannot be asked is a finding.
pub(super) async fn look(unit: &Uri, login: Login) -> Vec<Finding> {
    match timeout(PATIENCE, chain::server_state(unit, login)).await {
        Ok(Ok(ServerState { ahead, space })) => {
            let clock = ahead.map(|(millis, error)| clock(millis, error));
            clock.into_iter().chain(space.map(of_space)).collect()
        }
        Ok(Err(why)) => vec![Finding::failure(&why)],
        Err(_) => vec![Finding::broken(
            format!("{unit} does not answer"),
            "the server lists it, and may wait for its disk",
            "look at the log of the server",
        )],
    }
}

fn clock(ahead: i64, error: Duration) -> Finding {
    let apart = Duration::from_millis(ahead.unsigned_abs());
    if apart <= CLOCKS_APART + error {
        return Finding::good("the clocks of the server and of this machine agree");
    }
    let is = if ahead < 0 { "behind" } else { "ahead of" };
    let apart = rounded(apart.as_secs());
    Finding::note(
        format!("the clock of the server is {apart} {is} that of this machine"),
        "one of them is wrong: logs cannot be compared, and an invitation lasts longer or shorter than it says if the server's is set meanwhile",
        "`timedatectl` on both machines; NTP keeps clocks right",
    )
}

/// A time in its largest unit.
fn rounded(seconds: u64) -> String {
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    let (unit, name) = unit.unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / unit)
}

fn of_space(FreeSpace { available, unallocated }: FreeSpace) -> Finding {
    let has = format!("the file system of the volume has {} left at the server", Size(available));
    let todo = "make room there, or move the volume; after its disk was full a volume has to be opened again (docs/disaster.md)";
    match unallocated {
        0 => Finding::good("the file of the volume has all its room at the server"),
        _ if available < FULL => Finding::broken(has, "writes to new places fail", todo),
        _ if available < unallocated => {
            let why = format!(
                "the volume may still take {}: writes fail once that is full",
                Size(unallocated)
            );
            Finding::note(has, why, todo)
        }
        _ => Finding::good(format!("{has}, and the volume may still take {}", Size(unallocated))),
    }
}

/// What the attachments of this machine to `host` have lost.
pub(super) async fn loss(host: &Host) -> Vec<Finding> {
    let is_there = |uri: &str| {
        let uri = uri.parse::<Uri>();
        uri.is_ok_and(|uri| matches!(uri.location(), Location::Unit(unit) if unit.host == *host))
    };
    let all = attachments().await.into_iter().map(|(_, status)| status);
    let there = all.filter(|status| is_there(&status.attachment));
    there.filter_map(|status| lost(&status.short(), &status.path?)).collect()
}

fn lost(name: &str, path: &PathStatus) -> Option<Finding> {
    let PathStatus { segments, sent_again, .. } = path;
    if *segments < SEGMENTS_MIN {
        return None;
    }
    let told =
        format!("{name}: {sent_again} of {segments} packets to the server had to be sent again");
    Some(match sent_again.saturating_mul(LOSS) < *segments {
        true => Finding::good(told),
        false => Finding::note(
            told,
            "packets are lost on the way, or come late",
            "look at the line: a queue that is full, a wireless link, an MTU that is too large; BBR withstands loss (above)",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn clocks_are_told_when_they_are_further_apart_than_the_answer_took() {
        let exact = Duration::ZERO;
        for near in [0, 60_000, -60_000] {
            assert_eq!(clock(near, exact).state, State::Good, "{near}");
        }
        assert_eq!(clock(65_000, Duration::from_secs(5)).state, State::Good);
        for (apart, said) in [(7_300_000, "2 hours ahead of"), (-90_000, "90 seconds behind")] {
            let found = clock(apart, exact);
            assert_eq!(found.state, State::Note);
            assert!(found.what.contains(said), "{}", found.what);
        }
    }

    #[test]
    fn disk_of_the_server_is_told_of_when_it_is_full_or_can_become_full() {
        let found = |available, unallocated| of_space(FreeSpace { available, unallocated }).state;
        assert_eq!(found(0, 0), State::Good, "all of it is written to");
        assert_eq!(found(0, 1), State::Broken);
        assert_eq!(found(FULL, FULL + 1), State::Note);
        assert_eq!(found(FULL, FULL), State::Good);
    }

    #[test]
    fn loss_is_told_of_a_path_that_has_sent_enough() {
        let path =
            |segments, sent_again| PathStatus { segments, sent_again, ..PathStatus::default() };
        assert_eq!(lost("a", &path(SEGMENTS_MIN - 1, 500)), None);
        assert_eq!(lost("a", &path(10_000, 9)).unwrap().state, State::Good);
        assert_eq!(lost("a", &path(10_000, 10)).unwrap().state, State::Note);
    }
}

//! The kernel's own emulator, netem, in the place of ours.
//!
//! ```text
//! near 10.77.0.1  lab0, netem ── veth ── netem, lab0  10.77.0.2 far
//! ```
//!
//! Each end treats what leaves it, by two netems, one inside the other. The outer one queues, delays and has the rate;
//! what comes out of it the inner one loses. So a lost packet takes its time on the wire, as with ours, and is counted
//! apart from those that a full queue drops.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use testing::link::Conditions;
use testing::link::packets::Counts;

use super::namespaces::{DEVICE, ENDS, ip, tool};
use super::{Error, Options};

/// The hardware addresses. They are known from the start: a lost ARP packet would cost a second.
const ADDRESSES: [&str; 2] = ["02:00:0a:4d:00:01", "02:00:0a:4d:00:02"];
/// What is longest on the wire, from its IP header on, and the header before it, which no rate counts.
const PACKET: u128 = 1500;
const ETHERNET: u64 = 14;
/// The rate where none is asked for and packets are late: without any they would overtake each other.
const NO_LIMIT: u64 = 125_000_000_000;

const OUTER: &str = "1:";
const INNER: &str = "2:";

/// Joins both ends.
pub(super) fn join(ends: &[String; 2], options: &Options) -> Result<(), Error> {
    // netem takes a train of TCP segments for one packet, so there are none.
    let half = |end: usize| {
        let (name, address) = (&ends[end], ADDRESSES[end]);
        format!("name {DEVICE} netns {name} address {address} gso_max_segs 1")
    };
    ip(&words(&format!("link add {} type veth peer {}", half(0), half(1))))?;
    let conditions = options.conditions();
    let seeded = knows_seed();
    let chance = conditions.losses_per_million > 0 || !conditions.jitter.is_zero();
    if chance && !seeded {
        eprintln!("lab: this tc gives netem no seed: other packets are lost or late each time");
    }
    for (end, seed) in [options.seed, !options.seed].into_iter().enumerate() {
        let (name, other) = (&ends[end], 1 - end);
        let (address, hardware) = (ENDS[other].1, ADDRESSES[other]);
        let neighbour =
            format!("neighbour add {address} lladdr {hardware} dev {DEVICE} nud permanent");
        ip(&[&["-n", name][..], &words(&neighbour)].concat())?;
        let seed = seeded.then_some(seed);
        add(name, &format!("root handle {OUTER}"), &outer(&conditions, seed))?;
        add(name, &format!("parent {OUTER}1 handle {INNER}"), &inner(&conditions, seed))?;
    }
    Ok(())
}

/// What has gone out and back so far.
pub(super) fn seen(ends: &[String; 2]) -> Result<[Counts; 2], Error> {
    let [near, far] = ends;
    Ok([leaving(near)?, leaving(far)?])
}

/// Whether netem can lose the same packets again, which it learned in Linux 6.6.
fn knows_seed() -> bool {
    let help = tool("tc", &words("qdisc add dev lo root netem help"));
    matches!(help, Err(Error::Tool { why, .. }) if why.contains("seed"))
}

fn add(end: &str, place: &str, treatment: &str) -> Result<(), Error> {
    let netem = format!("-n {end} qdisc add dev {DEVICE} {place} netem {treatment}");
    tool("tc", &words(&netem)).map(drop).map_err(|failed| match failed {
        Error::Tool { why, .. } if why.contains("kind is unknown") => Error::NoNetem,
        other => other,
    })
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Queue, delay and rate, in the words of tc.
fn outer(conditions: &Conditions, seed: Option<u64>) -> String {
    // What it calls jitter goes both ways.
    let half = conditions.jitter / 2;
    let mut netem = format!("limit {} delay {}", limit(conditions), time(conditions.delay + half));
    if !half.is_zero() {
        netem += &format!(" {}", time(half));
    }
    if conditions.rate.is_some() || !half.is_zero() {
        netem += &format!(" rate {}bit -{ETHERNET}", 8 * conditions.rate.unwrap_or(NO_LIMIT));
    }
    netem + &seed_of(seed)
}

/// Losses; what it does not lose it passes on at once.
fn inner(conditions: &Conditions, seed: Option<u64>) -> String {
    let percent = f64::from(conditions.losses_per_million) / 1e4;
    format!("limit {} loss random {percent:.4}%{}", u32::MAX, seed_of(seed))
}

fn seed_of(seed: Option<u64>) -> String {
    seed.map_or_else(String::new, |seed| format!(" seed {seed}"))
}

fn time(time: Duration) -> String {
    format!("{:.3}us", time.as_secs_f64() * 1e6)
}

/// How many packets it may hold, each as long as they get: those that wait, and those on their way, which it counts
/// as well.
fn limit(conditions: &Conditions) -> u32 {
    let Some(rate) = conditions.rate else { return u32::MAX };
    let travels = (conditions.delay + conditions.jitter).as_nanos();
    let flying = travels * u128::from(rate) / 1_000_000_000;
    let packets = (conditions.queue as u128 + flying).div_ceil(PACKET);
    u32::try_from(packets).unwrap_or(u32::MAX)
}

/// A line of `tc -s -j qdisc show`.
#[derive(Debug, Deserialize)]
struct Qdisc {
    handle: String,
    /// What came out of it.
    packets: u64,
    bytes: u64,
    /// What did not, whatever became of it.
    drops: u64,
    /// What is still in it.
    qlen: u64,
    backlog: u64,
}

/// A line of `ip -s -j link show`.
#[derive(Debug, Deserialize)]
struct Device {
    stats64: Statistics,
}

#[derive(Debug, Deserialize)]
struct Statistics {
    tx: Sent,
}

#[derive(Debug, Deserialize)]
struct Sent {
    /// What the other end had no room for.
    dropped: u64,
}

/// What has left an end.
fn leaving(end: &str) -> Result<Counts, Error> {
    let qdiscs: Vec<Qdisc> = told("tc", &format!("-n {end} -s -j qdisc show dev {DEVICE}"))?;
    let devices: Vec<Device> = told("ip", &format!("-n {end} -s -j link show dev {DEVICE}"))?;
    Ok(counts(&qdiscs, &devices))
}

fn told<T: DeserializeOwned>(program: &'static str, line: &str) -> Result<T, Error> {
    let printed = tool(program, &words(line))?;
    serde_json::from_str(&printed).map_err(|why| {
        let why = format!("{why} in what it printed: {printed}");
        Error::Tool { program, arguments: line.to_owned(), why }
    })
}

/// What became of the packets. The bytes of those that were lost nobody has counted.
fn counts(qdiscs: &[Qdisc], devices: &[Device]) -> Counts {
    let find = |handle| qdiscs.iter().find(|qdisc| qdisc.handle == handle);
    let Some(outer) = find(OUTER) else { return Counts::default() };
    // It was asked after the outer one, and may have lost more since.
    let lost = find(INNER).map_or(0, |inner| inner.drops).min(outer.drops);
    let missed: u64 = devices.iter().map(|device| device.stats64.tx.dropped).sum();
    let taken = outer.packets + outer.qlen;
    Counts {
        sent: taken + lost,
        bytes: (outer.bytes + outer.backlog).saturating_sub(taken * ETHERNET),
        lost: lost + missed,
        dropped: outer.drops - lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkMaker;

    fn far() -> Options {
        let rate = Some(1_250_000);
        Options { by: LinkMaker::Netem, ..Options::far(Duration::from_millis(20), rate) }
    }

    #[test]
    fn a_link_is_told_in_the_words_of_tc() {
        // A queue of 1 MiB, and 25,000 bytes on their way: 715.7 packets.
        let conditions = far().conditions();
        assert_eq!(outer(&conditions, None), "limit 716 delay 20000.000us rate 10000000bit -14");
        let conditions = Options { losses_per_million: 1, ..far() }.conditions();
        assert_eq!(inner(&conditions, None), "limit 4294967295 loss random 0.0001%");
        assert_eq!(inner(&conditions, Some(7)), "limit 4294967295 loss random 0.0001% seed 7");
        let few = Options { queue: Some(4500), delay: Duration::ZERO, ..far() };
        assert!(outer(&few.conditions(), None).starts_with("limit 3 delay 0.000us "));
    }

    #[test]
    fn jitter_only_adds_to_the_delay_and_a_rate_keeps_the_order() {
        let jitter = Duration::from_micros(3);
        let conditions = Options { jitter, rate: None, ..far() }.conditions();
        let told = outer(&conditions, Some(1));
        let expected =
            "limit 4294967295 delay 20001.500us 1.500us rate 1000000000000bit -14 seed 1";
        assert_eq!(told, expected);
        let plain = Options { rate: None, ..far() }.conditions();
        assert_eq!(outer(&plain, None), "limit 4294967295 delay 20000.000us");
    }

    #[test]
    fn losses_and_drops_are_counted_apart_and_bytes_from_the_ip_header_on() {
        let qdiscs: Vec<Qdisc> = serde_json::from_str(
            r#"[
                {"kind":"netem","handle":"1:","root":true,"refcnt":3,"options":{"limit":716},
                 "bytes":15140,"packets":10,"drops":7,"overlimits":0,"requeues":0,"backlog":128,"qlen":2},
                {"kind":"netem","handle":"2:","parent":"1:1","options":{},
                 "bytes":15140,"packets":10,"drops":3,"overlimits":0,"requeues":0,"backlog":0,"qlen":0}
            ]"#,
        )
        .unwrap();
        let device = |dropped: u64| {
            let text =
                format!(r#"[{{"mtu":1500,"stats64":{{"tx":{{"bytes":1,"dropped":{dropped}}}}}}}]"#);
            serde_json::from_str::<Vec<Device>>(&text).unwrap()
        };
        let told = counts(&qdiscs, &device(0));
        assert_eq!(told, Counts { sent: 15, bytes: 15_100, lost: 3, dropped: 4 });
        assert_eq!(counts(&qdiscs, &device(1)).lost, 4);
    }
}

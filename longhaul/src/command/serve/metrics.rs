//! Metrics for Prometheus, in its text format, over HTTP.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::front::iscsi::Node;
use crate::target::meter::{Activity, Work, bound};
use crate::target::status::Status;

/// Clients at a time; more wait to be accepted.
const CLIENTS_MAX: usize = 4;

/// The longest request that is looked at.
const REQUEST_MAX: usize = 8 << 10;

/// How long a client may take for all of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens, and answers for as long as it is polled.
pub(super) async fn serve(listener: TcpListener, node: Weak<Node>) {
    let free = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(node) = node.upgrade() else { return };
                tokio::spawn(async move {
                    if let Ok(Err(why)) = timeout(PATIENCE, answer(stream, &node)).await {
                        tracing::debug!(%peer, %why, "metrics not delivered");
                    }
                    drop(permit);
                });
            }
            Err(why) => {
                tracing::warn!(%why, "cannot accept a client of the metrics");
                // Out of descriptors or memory: those in use have to come back first.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// One request, one answer, and the end of the connection (RFC 9112, 9.6).
async fn answer(mut stream: TcpStream, node: &Node) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > REQUEST_MAX || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", text(&node.status())),
        false => ("404 Not Found", "there is only GET /metrics\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// All of it, in the text format of Prometheus, version 0.0.4. Names of targets need no escapes (RFC 7143, 4.2.7.2).
fn text(status: &Status) -> String {
    let mut text = String::new();
    let version = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    family(&mut text, "build_info", "gauge", "The version that runs.", &[(version, 1)]);
    let mut sessions: BTreeMap<_, _> =
        status.targets.keys().map(|target| (target.as_str(), 0)).collect();
    for session in &status.sessions {
        *sessions.entry(session.target.as_deref().unwrap_or(DISCOVERY)).or_default() += 1;
    }
    let sessions: Vec<_> = sessions
        .iter()
        .map(|(target, count)| (format!("{{target=\"{target}\"}}"), *count))
        .collect();
    family(&mut text, "sessions", "gauge", "Sessions that are logged in.", &sessions);
    for (name, kind, help, value) in OF_TARGETS {
        let sample = |(target, activity): (&String, &Activity)| {
            (format!("{{target=\"{target}\"}}"), value(activity))
        };
        let samples: Vec<_> = status.targets.iter().map(sample).collect();
        family(&mut text, name, kind, help, &samples);
    }
    for (name, help, value) in OF_KINDS {
        let sample = |(labels, work): (String, &Work)| (format!("{{{labels}}}"), value(work));
        let samples: Vec<_> = works(status).map(sample).collect();
        family(&mut text, name, "counter", help, &samples);
    }
    histograms(&mut text, status);
    text
}

/// What stands for a target where there is none.
const DISCOVERY: &str = "discovery";

/// A value of each target: its name, type and help, and where it comes from.
type OfTarget = (&'static str, &'static str, &'static str, fn(&Activity) -> u64);

const OF_TARGETS: [OfTarget; 4] = [
    ("in_flight", "gauge", "Commands in the hands of units.", |activity| activity.in_flight),
    ("failed_total", "counter", "Commands that failed.", |activity| activity.failed),
    (
        "refused_total",
        "counter",
        "Commands that asked for what the disk has not, or were told a unit attention.",
        |activity| activity.refused,
    ),
    ("aborted_total", "counter", "Commands that were aborted.", |activity| activity.aborted),
];

/// A count of each target and kind of command.
type OfKind = (&'static str, &'static str, fn(&Work) -> u64);

const OF_KINDS: [OfKind; 2] = [
    ("commands_total", "Commands that have ended.", |work| work.commands),
    ("bytes_total", "Bytes of data of commands that have ended.", |work| work.bytes),
];

fn family(text: &mut String, name: &str, kind: &str, help: &str, samples: &[(String, u64)]) {
    let _ = writeln!(text, "# HELP longhaul_{name} {help}\n# TYPE longhaul_{name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "longhaul_{name}{labels} {value}");
    }
}

/// The work of each target and kind, and its labels.
fn works(status: &Status) -> impl Iterator<Item = (String, &Work)> {
    status.targets.iter().flat_map(|(target, activity)| {
        let Activity { reads, writes, others, .. } = activity;
        [("read", reads), ("write", writes), ("other", others)]
            .map(|(kind, work)| (format!("target=\"{target}\",kind=\"{kind}\""), work))
    })
}

/// Cumulative, in seconds, as the format wants it.
fn histograms(text: &mut String, status: &Status) {
    let name = "longhaul_latency_seconds";
    let _ = writeln!(text, "# HELP {name} How long commands took.\n# TYPE {name} histogram");
    for (labels, work) in works(status) {
        let mut seen = 0;
        let sum = work.total_us as f64 / 1e6;
        for (place, count) in work.latency.iter().enumerate() {
            seen += count;
            let seconds = bound(place) as f64 / 1e6;
            // A bound for each power of two is enough to draw.
            if place % 4 == 3 {
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{seconds}\"}} {seen}");
            }
        }
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {seen}");
        let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {seen}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::target::meter::BUCKETS;

    fn work(commands: u64) -> Work {
        let mut latency = vec![0; BUCKETS];
        latency[7] = commands / 2;
        latency[BUCKETS - 1] = commands - commands / 2;
        let total_us = commands * 7;
        Work { commands, bytes: commands * 512, total_us, latency, ..Work::default() }
    }

    fn status() -> Status {
        let activity = Activity {
            reads: work(10),
            writes: work(7),
            in_flight: 3,
            failed: 2,
            aborted: 1,
            ..Activity::default()
        };
        let targets = ["iqn.2000-01.example:a", "iqn.2000-01.example:b"];
        let targets = targets.map(|target| (target.to_owned(), activity.clone()));
        Status { targets: targets.into(), ..Status::default() }
    }

    /// A sample as a reader of the format sees it: its name, labels and value.
    struct Sample<'t> {
        name: &'t str,
        labels: BTreeMap<&'t str, &'t str>,
        value: f64,
    }

    fn sample(line: &str) -> Sample<'_> {
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        let label = |label: &'_ str| -> Option<(usize, usize)> {
            let (name, value) = label.split_once("=\"")?;
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.chars().all(plain) && value.ends_with('"'), "{line}");
            Some((name.len(), value.len()))
        };
        let labels = labels.split(',').map(|text| {
            let (name, _) = label(text).unwrap_or_else(|| panic!("{line}"));
            (&text[..name], &text[name + 2..text.len() - 1])
        });
        Sample { name, labels: labels.collect(), value: value.parse().unwrap() }
    }

    /// Every family has help and a type before its samples, and no sample stands twice.
    fn parse(text: &str) -> BTreeMap<&str, (&str, Vec<Sample<'_>>)> {
        let mut families: BTreeMap<&str, (&str, Vec<Sample<'_>>)> = BTreeMap::new();
        let (mut helped, mut current, mut seen) = ("", "", BTreeSet::new());
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                (helped, _) = help.split_once(' ').unwrap();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, helped);
                assert!(families.insert(name, (kind, Vec::new())).is_none(), "{name} twice");
                current = name;
            } else {
                let sample = sample(line);
                let series = ["_bucket", "_sum", "_count"].iter();
                let base =
                    series.fold(sample.name, |name, end| name.strip_suffix(end).unwrap_or(name));
                assert_eq!(base, current, "{line}");
                assert!(seen.insert(line.rsplit_once(' ').unwrap().0), "{line} twice");
                families.get_mut(current).unwrap().1.push(sample);
            }
        }
        families
    }

    #[test]
    fn what_is_told_can_be_read_and_is_what_was_done() {
        let text = text(&status());
        let families = parse(&text);
        let value = |name: &str, kind: &str| -> f64 {
            let (_, samples) = &families[name];
            let of_a = samples.iter().find(|sample| {
                sample.labels["target"].ends_with(":a")
                    && sample.labels.get("kind").is_none_or(|found| *found == kind)
            });
            of_a.unwrap().value
        };
        assert_eq!(value("longhaul_commands_total", "read"), 10.0);
        assert_eq!(value("longhaul_bytes_total", "write"), 3584.0);
        assert_eq!(value("longhaul_commands_total", "other"), 0.0);
        assert_eq!(value("longhaul_in_flight", ""), 3.0);
        assert_eq!(value("longhaul_failed_total", ""), 2.0);
        assert_eq!(value("longhaul_aborted_total", ""), 1.0);
        assert_eq!(value("longhaul_sessions", ""), 0.0);
        for (name, (kind, samples)) in &families {
            assert!(!samples.is_empty(), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
        }
    }

    #[test]
    fn histograms_are_cumulative() {
        let text = text(&status());
        let (kind, samples) = &parse(&text)["longhaul_latency_seconds"];
        assert_eq!(*kind, "histogram");
        let of = |name: &str, kind: &str| -> Vec<&Sample<'_>> {
            let wanted = |sample: &&Sample<'_>| {
                sample.name.ends_with(name)
                    && sample.labels["kind"] == kind
                    && sample.labels["target"].ends_with(":a")
            };
            samples.iter().filter(wanted).collect()
        };
        for (kind, commands) in [("read", 10.0), ("write", 7.0), ("other", 0.0)] {
            let buckets: Vec<(f64, f64)> = of("_bucket", kind)
                .iter()
                .map(|bucket| (bucket.labels["le"].parse().unwrap(), bucket.value))
                .collect();
            assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
            assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, commands));
            assert_eq!(of("_count", kind)[0].value, commands);
            // What they took, and not what the bounds of their buckets would make of it.
            assert!((of("_sum", kind)[0].value - commands * 7e-6).abs() < 1e-9);
        }
    }
}

//! Metrics for Prometheus, in the text format of OpenMetrics, over HTTP.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::iter::repeat;
use std::sync::{Arc, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::super::open_metrics::{self, family};
use crate::cluster::{Cluster, Observer, ROLES, name_of};
use crate::front::hyperscsi;
use crate::front::iscsi::Node;
use crate::target::meter::{Activity, BUCKETS, Work, bound};
use crate::target::shares::ShareStatus;
use crate::target::status::{GroupStatus, LinkLosses, PathStatus, Status};

/// Clients at a time; more wait to be accepted.
const CLIENTS_MAX: usize = 4;

/// The longest request that is looked at.
const REQUEST_MAX: usize = 8 << 10;

/// The format (OpenMetrics 1.0, Overall Structure).
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long a client may take for all of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers on `listener`, if there is one, in a task of its own.
pub(super) fn begin(
    listener: Option<TcpListener>,
    (node, beside): (&Arc<Node>, Option<&super::hyperscsi::Servers>),
    cluster: Option<&Cluster>,
) {
    let cluster = cluster.map(Cluster::observer);
    let beside = beside.and_then(super::hyperscsi::Servers::node);
    if let Some(listener) = listener {
        let nodes = (Arc::downgrade(node), beside.as_ref().map(Arc::downgrade));
        tokio::spawn(serve(listener, nodes, cluster));
    }
}

/// Listens, and answers for as long as it is polled.
async fn serve(
    listener: TcpListener,
    (node, beside): (Weak<Node>, Option<Weak<hyperscsi::Node>>),
    cluster: Option<Observer>,
) {
    let free = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(node) = node.upgrade() else { return };
                let mut status = node.status();
                if let Some(beside) = beside.as_ref().and_then(Weak::upgrade) {
                    status.add_beside(beside.status());
                }
                status.cluster = cluster.as_ref().map(Observer::status);
                tokio::spawn(async move {
                    if let Ok(Err(why)) = timeout(PATIENCE, answer(stream, status)).await {
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
async fn answer(mut stream: TcpStream, status: Status) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > REQUEST_MAX || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (code, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", text(status).map_err(io::Error::other)?),
        false => ("404 Not Found", "there is only GET /metrics\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// All of it, in the text format.
fn text(status: Status) -> Result<String, fmt::Error> {
    open_metrics::text(Snapshot(status))
}

/// What is told, at one moment.
#[derive(Debug)]
struct Snapshot(Status);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(status) = self;
        let encoder = &mut encoder;
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
        let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
        family(encoder, gauge, "build_info", "The version that runs.", version)?;
        let sessions = sessions(status).into_iter();
        let sessions = sessions.map(|(target, count)| ([("target", target)], count));
        family(encoder, gauge, "sessions", "Sessions that are logged in.", sessions)?;
        for (kind, name, help, value) in OF_TARGETS {
            let targets = status.targets.iter();
            let samples =
                targets.map(|(target, work)| ([("target", target.as_str())], value(work)));
            family(encoder, kind, name, help, samples)?;
        }
        for (name, help, value) in OF_KINDS {
            let samples = works(status).map(|(labels, work)| (labels, value(work)));
            family(encoder, counter, name, help, samples)?;
        }
        latencies(encoder, status)?;
        links(encoder, status)?;
        shares(encoder, status)?;
        gateway(encoder, status)?;
        paths(encoder, status)
    }
}

/// A value of something that tells `S` of itself: its type, name and help, and where it comes from.
type Value<S> = (MetricType, &'static str, &'static str, fn(&S) -> u64);

const OF_GROUP: [Value<GroupStatus>; 4] = [
    (MetricType::Gauge, "cluster_epoch", "Holders of the lease so far.", |it| it.epoch),
    (
        MetricType::Gauge,
        "cluster_permitted_milliseconds",
        "For how long the gateway may answer from the media yet.",
        |it| it.permitted_ms,
    ),
    (MetricType::Counter, "cluster_takeovers", "How often it became active.", |it| it.takeovers),
    (
        MetricType::Counter,
        "cluster_record_failures",
        "How often the record could not be read or written.",
        |it| it.record_failures,
    ),
];

/// How a gateway of a cluster is, for each group of volumes.
fn gateway(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    let Some(cluster) = &status.cluster else { return Ok(()) };
    let roles = cluster.groups().iter().flat_map(|group| {
        ROLES.map(name_of).map(|role| {
            ([("role", role), ("group", group.group.as_str())], u64::from(role == group.role))
        })
    });
    family(encoder, MetricType::Gauge, "cluster_role", "What the gateway is: 1 for that.", roles)?;
    for (kind, name, help, value) in OF_GROUP {
        let samples = cluster.groups().iter().map(|group| {
            ([("gateway", cluster.gateway.as_str()), ("group", &group.group)], value(group))
        });
        family(encoder, kind, name, help, samples)?;
    }
    Ok(())
}

/// What was lost at this end of each link.
fn links(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    if status.links.is_empty() {
        return Ok(());
    }
    let samples = status.links.iter().flat_map(|(link, LinkLosses { refused, overrun, cut })| {
        [("refused", refused), ("overrun", overrun), ("cut", cut)]
            .map(|(why, count)| ([("link", link.as_str()), ("why", why)], *count))
    });
    let help = "Packets that were lost at this end of a HyperSCSI link.";
    family(encoder, MetricType::Counter, "link_losses", help, samples)
}

const OF_SHARES: [Value<ShareStatus>; 4] = [
    (MetricType::Gauge, "client_weight", "The weight of a client.", |it| it.weight.into()),
    (
        MetricType::Gauge,
        "client_waiting",
        "Commands that wait for the turn or the rate of their client.",
        |it| it.waiting,
    ),
    (MetricType::Counter, "client_waits", "Commands that have waited for it.", |it| it.waited),
    (MetricType::Counter, "client_waited_microseconds", "How long they waited, together.", |it| {
        it.waited_us
    }),
];

/// What clients are given that have a weight or a rate.
fn shares(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    if status.shares.is_empty() {
        return Ok(());
    }
    for (kind, name, help, value) in OF_SHARES {
        let shares = status.shares.iter();
        let samples = shares.map(|(client, it)| ([("client", client.as_str())], value(it)));
        family(encoder, kind, name, help, samples)?;
    }
    Ok(())
}

const OF_PATHS: [Value<PathStatus>; 4] = [
    (MetricType::Counter, "path_packets", "Packets sent to a client.", |path| path.sent),
    (MetricType::Counter, "path_losses", "Those of them that were lost.", |path| path.lost),
    (MetricType::Gauge, "path_window_bytes", "Bytes that may be in flight.", |path| path.window),
    (MetricType::Gauge, "path_rtt_microseconds", "The round trip.", |path| path.rtt_us),
];

fn paths(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    // The sessions of one connection have the same ways.
    let paths: BTreeMap<_, _> = status
        .sessions
        .iter()
        .filter_map(|one| Some((one.client.as_deref()?, one.address.as_str(), &one.paths)))
        .flat_map(|(client, address, paths)| {
            paths.iter().map(move |path| ((client, address, path.path.to_string()), path))
        })
        .collect();
    if paths.is_empty() {
        return Ok(());
    }
    for (kind, name, help, value) in OF_PATHS {
        let samples = paths.iter().map(|((client, address, number), path)| {
            ([("client", *client), ("address", *address), ("path", number.as_str())], value(path))
        });
        family(encoder, kind, name, help, samples)?;
    }
    Ok(())
}

/// How many there are with each target.
fn sessions(status: &Status) -> BTreeMap<&str, u64> {
    let mut sessions: BTreeMap<_, _> =
        status.targets.keys().map(|target| (target.as_str(), 0)).collect();
    for session in &status.sessions {
        *sessions.entry(session.target.as_deref().unwrap_or(DISCOVERY)).or_default() += 1;
    }
    sessions
}

/// What stands for a target where there is none.
const DISCOVERY: &str = "discovery";

const OF_TARGETS: [Value<Activity>; 4] = [
    (MetricType::Gauge, "in_flight", "Commands in the hands of units.", |work| work.in_flight),
    (MetricType::Counter, "failed", "Commands that failed.", |work| work.failed),
    (
        MetricType::Counter,
        "refused",
        "Commands that asked for what the unit has not, or whether it has a medium, or were told a unit attention.",
        |work| work.refused,
    ),
    (MetricType::Counter, "aborted", "Commands that were aborted.", |work| work.aborted),
];

/// A count of each target and kind of command.
type OfKind = (&'static str, &'static str, fn(&Work) -> u64);

const OF_KINDS: [OfKind; 2] = [
    ("commands", "Commands that have ended.", |work| work.commands),
    ("bytes", "Bytes of data of commands that have ended.", |work| work.bytes),
];

/// The work of each target and kind, and its labels.
fn works(status: &Status) -> impl Iterator<Item = ([(&str, &str); 2], &Work)> {
    status.targets.iter().flat_map(|(target, activity)| {
        let Activity { reads, writes, others, .. } = activity;
        [("read", reads), ("write", writes), ("other", others)]
            .map(|(kind, work)| ([("target", target.as_str()), ("kind", kind)], work))
    })
}

fn latencies(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    let (name, help) = ("latency_seconds", "How long commands took.");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, work) in works(status) {
        let buckets = buckets(work);
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = work.total_us as f64 / 1e6;
        let mut sample = family.encode_family(&labels)?;
        sample.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

/// How many commands took how many seconds at most, and longer than the bucket before. A bound for each power of two is
/// enough to draw; the last one holds whatever took longer.
fn buckets(work: &Work) -> Vec<(f64, u64)> {
    let bounds = (0..BUCKETS).skip(3).step_by(4).map(|place| match place {
        LAST => f64::INFINITY,
        _ => bound(place) as f64 / 1e6,
    });
    let counts = work.latency.chunks(4).map(|counts| counts.iter().sum());
    bounds.zip(counts.chain(repeat(0))).collect()
}

/// The place of all that took too long for any other.
const LAST: usize = BUCKETS - 1;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::target::status::ClusterStatus;
    use crate::target::status::SessionStatus;

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
        let losses = LinkLosses { refused: 4, overrun: 5, cut: 6 };
        let share = ShareStatus { weight: 9, waited: 20, ..Default::default() };
        Status {
            targets: targets.into(),
            sessions: vec![session()],
            shares: BTreeMap::from([("laptop".to_owned(), share)]),
            links: BTreeMap::from([("0.0.0.0:5674".to_owned(), losses)]),
            cluster: Some(gateway()),
            ..Status::default()
        }
    }

    fn gateway() -> ClusterStatus {
        let active = GroupStatus {
            group: "web".to_owned(),
            role: "active".to_owned(),
            seconds: 3,
            holder: Some("a".to_owned()),
            epoch: 7,
            weight: 100,
            permitted_ms: 3000,
            takeovers: 2,
            record_failures: 1,
        };
        let (group, role) = ("db".to_owned(), "standby".to_owned());
        let standby = GroupStatus { group, role, holder: None, epoch: 9, ..active.clone() };
        ClusterStatus::new("a".to_owned(), vec![active, standby])
    }

    fn session() -> SessionStatus {
        let path =
            PathStatus { rtt_us: 70, window: 9000, sent: 800, lost: 9, ..Default::default() };
        SessionStatus {
            number: 1,
            initiator: "i".to_owned(),
            client: Some("key".to_owned()),
            address: "192.0.2.1:1".to_owned(),
            connections: 1,
            target: Some("iqn.2000-01.example:a".to_owned()),
            target_port: 1,
            seconds: 1,
            activity: Activity::default(),
            paths: vec![path],
            compression: None,
            checksum: None,
            protection: None,
            cipher: None,
        }
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
        let text = text.strip_suffix("# EOF\n").expect("it is whole");
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
                let series = ["_bucket", "_sum", "_count", "_total"].iter();
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
    fn metrics_parse_and_count_the_commands_executed() {
        let text = text(status()).unwrap();
        let families = parse(&text);
        let value = |name: &str, kind: &str| -> f64 {
            let (_, samples) = &families[name.trim_end_matches("_total")];
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
        assert_eq!(value("longhaul_sessions", ""), 1.0);
        let first = |name: &str| families[name].1[0].value;
        assert_eq!(first("longhaul_link_losses"), 4.0);
        assert_eq!((first("longhaul_path_packets"), first("longhaul_path_losses")), (800.0, 9.0));
        assert_eq!(first("longhaul_path_window_bytes"), 9000.0);
        assert_eq!(first("longhaul_path_rtt_microseconds"), 70.0);
        assert_eq!((first("longhaul_client_weight"), first("longhaul_client_waits")), (9.0, 20.0));
        assert_eq!(first("longhaul_cluster_epoch"), 7.0);
        assert_eq!(first("longhaul_cluster_takeovers"), 2.0);
        assert_eq!(first("longhaul_cluster_permitted_milliseconds"), 3000.0);
        let (_, roles) = &families["longhaul_cluster_role"];
        let is = roles.iter().filter(|role| role.value == 1.0);
        let is: Vec<_> = is.map(|role| (role.labels["group"], role.labels["role"])).collect();
        assert_eq!(is, [("web", "active"), ("db", "standby")]);
        let (_, epochs) = &families["longhaul_cluster_epoch"];
        assert_eq!((epochs[1].labels["group"], epochs[1].value), ("db", 9.0));
        for (name, (kind, samples)) in &families {
            assert!(!samples.is_empty(), "{name}");
            let total = samples.iter().all(|sample| sample.name == format!("{name}_total"));
            assert_eq!(total, *kind == "counter", "{name}");
        }
    }

    #[test]
    fn histograms_are_cumulative() {
        let text = text(status()).unwrap();
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
            // One half of them took longer than any time that has a bucket.
            let (bound, within) = buckets[buckets.len() - 2];
            assert_eq!((bound < 16.8, within), (true, (commands / 2.0).floor()), "{kind}");
            // What they took, and not what the bounds of their buckets would make of it.
            assert!((of("_sum", kind)[0].value - commands * 7e-6).abs() < 1e-9);
        }
    }
}

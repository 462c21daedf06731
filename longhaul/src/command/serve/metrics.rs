//! Metrics for Prometheus, in its text format, over HTTP.

use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::front::iscsi::meter::{Activity, Work, bound};
use crate::front::iscsi::{Node, Status};

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

fn text(status: &Status) -> String {
    let mut text = String::new();
    let mut sample = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let count = status.sessions.len() as u64;
    sample("longhaul_sessions", "gauge", "Sessions.", &[(String::new(), count)]);
    let each = |value: fn(&Activity) -> u64| -> Vec<_> {
        let label = |target: &String| format!("{{target=\"{target}\"}}");
        status.targets.iter().map(|(target, activity)| (label(target), value(activity))).collect()
    };
    sample("longhaul_in_flight", "gauge", "Commands under way.", &each(|it| it.in_flight));
    sample("longhaul_failed_total", "counter", "Commands that failed.", &each(|it| it.failed));
    sample(
        "longhaul_aborted_total",
        "counter",
        "Commands that were aborted.",
        &each(|it| it.aborted),
    );
    let of_kind = |value: fn(&Work) -> u64| -> Vec<_> {
        let kinds = status.targets.iter().flat_map(|(target, activity)| {
            [("read", &activity.reads), ("write", &activity.writes), ("other", &activity.others)]
                .map(|(kind, work)| {
                    (format!("{{target=\"{target}\",kind=\"{kind}\"}}"), value(work))
                })
        });
        kinds.collect()
    };
    sample("longhaul_commands_total", "counter", "Commands.", &of_kind(|work| work.commands));
    sample("longhaul_bytes_total", "counter", "Bytes of data.", &of_kind(|work| work.bytes));
    histograms(&mut text, status);
    text
}

/// Cumulative, in seconds, as the format wants it.
fn histograms(text: &mut String, status: &Status) {
    let name = "longhaul_latency_seconds";
    let _ = writeln!(text, "# HELP {name} How long commands took.\n# TYPE {name} histogram");
    for (target, activity) in &status.targets {
        for (kind, work) in [("read", &activity.reads), ("write", &activity.writes)] {
            let labels = format!("target=\"{target}\",kind=\"{kind}\"");
            let mut seen = 0;
            let mut sum = 0.0;
            for (place, count) in work.latency.iter().enumerate() {
                seen += count;
                let seconds = bound(place) as f64 / 1e6;
                sum += seconds * *count as f64;
                // A bound for each power of two is enough to draw.
                if place % 4 == 3 {
                    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{seconds}\"}} {seen}");
                }
            }
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {seen}");
            let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {seen}");
        }
    }
}

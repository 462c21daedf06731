//! `longhaul status`: what running servers and attachments do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::attach::status::AttachStatus;
use crate::control;
use crate::failure::{OrFail, Outcome};
use crate::front::iscsi::meter::{Activity, Work};
use crate::front::iscsi::{SessionStatus, Status};
use crate::printable::OneLine;
use crate::progress::rate;
use crate::size::Size;

/// Show the sessions and volumes of running servers, and the attachments of this machine
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The control socket to ask; all in /run/longhaul, for users in $XDG_RUNTIME_DIR/longhaul, if left out
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print one JSON object at once, with sizes in bytes and counts since the server began
    #[arg(long)]
    json: bool,
    /// Look again and again, and show what was done in between
    #[arg(long)]
    watch: bool,
    /// How many seconds lie between two looks, of which rates are told
    #[arg(long, value_name = "SECONDS", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
}

const EXAMPLES: &str = "\
Examples:
  longhaul status
  longhaul status --watch --interval 5
  longhaul status --json --control /run/longhaul/control.sock

Counts are since the server began, or with --watch since the look before. Rates are those between two looks,
so that even one answer takes a second. Latencies are what half of the commands, and 99 of 100, did not exceed.";

/// Prints it once, or until interrupted.
pub async fn run(args: Args) -> Outcome {
    let interval = Duration::from_secs(args.interval);
    if args.json {
        loop {
            for (_, answer) in ask(&args).await? {
                super::say(&answer)?;
            }
            if !args.watch {
                return Ok(());
            }
            sleep(interval).await;
        }
    }
    let mut before = look(&args).await?;
    loop {
        sleep(interval).await;
        let now = look(&args).await?;
        for (path, now) in &now {
            super::say(&now.text(before.get(path), args.watch))?;
        }
        if !args.watch {
            return Ok(());
        }
        before = now;
    }
}

/// What a server says of itself, and when.
struct Look {
    status: Status,
    at: Instant,
}

/// What answered.
enum Seen {
    Server(Look),
    Attachment(AttachStatus),
}

impl Seen {
    fn text(&self, before: Option<&Self>, only_since: bool) -> String {
        match (self, before) {
            (Self::Server(now), Some(Self::Server(before))) => describe(before, now, only_since),
            (Self::Server(now), _) => describe(now, now, only_since),
            (Self::Attachment(now), _) => now.text(),
        }
    }
}

async fn look(args: &Args) -> Outcome<BTreeMap<PathBuf, Seen>> {
    let mut seen = BTreeMap::new();
    for (path, answer) in ask(args).await? {
        let one = match serde_json::from_str(&answer) {
            Ok(attachment) => Seen::Attachment(attachment),
            Err(_) => {
                let status = serde_json::from_str(&answer);
                let status = status.or_fail(|| "cannot read the answer".to_owned())?;
                Seen::Server(Look { status, at: Instant::now() })
            }
        };
        seen.insert(path, one);
    }
    Ok(seen)
}

/// Asks everyone who is to be asked.
async fn ask(args: &Args) -> Outcome<Vec<(PathBuf, String)>> {
    let paths = match &args.control {
        Some(path) => vec![path.clone()],
        None => control::found(),
    };
    if paths.is_empty() {
        // It says why there is nobody.
        let answer = control::ask(control::DEFAULT.as_ref(), "status").await?;
        return Ok(vec![(control::DEFAULT.into(), answer)]);
    }
    let mut answers = Vec::new();
    for path in paths {
        let answer = control::ask(&path, "status").await?;
        answers.push((path, answer));
    }
    Ok(answers)
}

/// What was done until `now`, in all or since `before`, and how fast it was in between.
fn describe(before: &Look, now: &Look, only_since: bool) -> String {
    let took = now.at - before.at;
    let mut text = String::new();
    for (target, all) in &now.status.targets {
        let then = before.status.targets.get(target).cloned().unwrap_or_default();
        let recent = all.since(&then);
        let told = if only_since { &recent } else { all };
        let Activity { in_flight, failed, aborted, .. } = told;
        let _ = writeln!(text, "{target}");
        for (lun, size) in now.status.units.get(target).into_iter().flatten() {
            let _ = writeln!(text, "  unit {lun}, {} bytes", Size(*size));
            let losses = now.status.losses.get(target);
            if let Some(why) = losses.and_then(|units| units.get(lun)) {
                let _ =
                    writeln!(text, "    flushes fail until it is opened again: {}", OneLine(why));
            }
        }
        let _ = writeln!(text, "  in flight {in_flight}, failed {failed}, aborted {aborted}");
        for (name, told, recent) in [
            ("reads", &told.reads, &recent.reads),
            ("writes", &told.writes, &recent.writes),
            ("others", &told.others, &recent.others),
        ] {
            let _ = writeln!(text, "  {name:<7} {}{}", work(told), speed(recent, took));
        }
    }
    let sessions = &now.status.sessions;
    let _ = write!(text, "{} sessions", sessions.len());
    for session in sessions {
        let SessionStatus { initiator, address, connections, target, seconds, activity, .. } =
            session;
        let portal_group = session.portal_group;
        let target = target.as_deref().unwrap_or("discovery");
        let commands =
            activity.reads.commands + activity.writes.commands + activity.others.commands;
        let bytes = Size(activity.reads.bytes + activity.writes.bytes + activity.others.bytes);
        let _ = write!(text, "\n  {initiator} from {address} at {target} for {seconds} s");
        if let Some(client) = &session.client {
            let _ = write!(text, " as {client}");
        }
        if portal_group > 1 {
            let _ = write!(text, " in group {portal_group}");
        }
        if *connections > 1 {
            let _ = write!(text, " by {connections} connections");
        }
        let _ = write!(text, ": ");
        let _ =
            write!(text, "{commands} commands, {bytes} bytes, in flight {}", activity.in_flight);
    }
    text
}

fn work(work: &Work) -> String {
    let Work { commands, bytes, .. } = work;
    let mut text = format!("{commands} commands, {} bytes", Size(*bytes));
    if let (Some(half), Some(most)) = (work.percentile(0.5), work.percentile(0.99)) {
        let _ = write!(text, ", 50 % within {half} us, 99 % within {most} us");
    }
    text
}

fn speed(recent: &Work, took: Duration) -> String {
    if recent.commands == 0 {
        return String::new();
    }
    let commands = recent.commands as f64 / took.as_secs_f64();
    format!("; {commands:.1} commands/s, {}", rate(recent.bytes, took))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(commands: u64, bytes: u64) -> Status {
        let reads = Work { commands, bytes, ..Work::default() };
        let activity = Activity { reads, in_flight: 3, failed: commands, ..Activity::default() };
        Status { targets: [("t".to_owned(), activity)].into(), ..Status::default() }
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let start = Instant::now();
        let before = Look { status: reads(100, 1 << 20), at: start };
        let now = Look { status: reads(130, 4 << 20), at: start + Duration::from_secs(2) };
        let told = |only_since| describe(&before, &now, only_since);
        assert_eq!(
            told(false).lines().take(3).collect::<Vec<_>>(),
            [
                "t",
                "  in flight 3, failed 130, aborted 0",
                "  reads   130 commands, 4M bytes; 15.0 commands/s, 1.50 MiB/s"
            ]
        );
        assert!(told(true).contains("in flight 3, failed 30, aborted 0"));
        assert!(told(true).contains("reads   30 commands, 3M bytes; 15.0 commands/s, 1.50 MiB/s"));
        assert!(told(true).contains("writes  0 commands, 0 bytes\n"));
    }
}

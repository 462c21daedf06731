//! `longhaul status`: what a running server does.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::control;
use crate::failure::{OrFail, Outcome};
use crate::front::iscsi::meter::{Activity, Work};
use crate::front::iscsi::{SessionStatus, Status};
use crate::size::Size;

/// Show the sessions and volumes of a running server
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The control socket of the server
    #[arg(long, value_name = "PATH", default_value = control::DEFAULT)]
    control: PathBuf,
    /// Print one JSON object, with sizes in bytes and counts since the server began
    #[arg(long)]
    json: bool,
    /// Ask again and again, and show what was done in between
    #[arg(long)]
    watch: bool,
    /// How many seconds to wait in between
    #[arg(long, value_name = "SECONDS", default_value = "1", requires = "watch")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
}

const EXAMPLES: &str = "\
Examples:
  longhaul status
  longhaul status --watch --interval 5
  longhaul status --json --control /run/longhaul/control.sock

Counts are since the server began, or with --watch since the last look. Latencies are what half of the
commands, and 99 of 100, did not exceed.";

/// Prints it once, or until interrupted.
pub async fn run(args: Args) -> Outcome {
    let mut before = Status::default();
    loop {
        let answer = control::ask(&args.control, "status").await?;
        if args.json {
            super::say(&answer)?;
        } else {
            let status: Status =
                serde_json::from_str(&answer).or_fail(|| "cannot read the answer".to_owned())?;
            super::say(&describe(&status, &before))?;
            before = status;
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(args.interval)).await;
    }
}

fn describe(status: &Status, before: &Status) -> String {
    let mut text = String::new();
    for (target, now) in &status.targets {
        let then = before.targets.get(target).cloned().unwrap_or_default();
        let since = now.since(&then);
        let Activity { in_flight, failed, aborted, .. } = since;
        let _ = writeln!(text, "{target}");
        let _ = writeln!(text, "  in flight {in_flight}, failed {failed}, aborted {aborted}");
        for (name, work) in
            [("reads", &since.reads), ("writes", &since.writes), ("others", &since.others)]
        {
            let _ = writeln!(text, "  {name:<7} {}", describe_work(work));
        }
    }
    let _ = write!(text, "{} sessions", status.sessions.len());
    for SessionStatus { initiator, address, target, seconds, activity, .. } in &status.sessions {
        let target = target.as_deref().unwrap_or("discovery");
        let commands =
            activity.reads.commands + activity.writes.commands + activity.others.commands;
        let bytes = Size(activity.reads.bytes + activity.writes.bytes + activity.others.bytes);
        let _ = write!(text, "\n  {initiator} from {address} at {target} for {seconds} s: ");
        let _ =
            write!(text, "{commands} commands, {bytes} bytes, in flight {}", activity.in_flight);
    }
    text
}

fn describe_work(work: &Work) -> String {
    let Work { commands, bytes, .. } = work;
    let mut text = format!("{commands} commands, {} bytes", Size(*bytes));
    if let (Some(half), Some(most)) = (work.percentile(0.5), work.percentile(0.99)) {
        let _ = write!(text, ", 50 % within {half} us, 99 % within {most} us");
    }
    text
}

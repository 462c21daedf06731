//! `longhaul status`: what running servers and attachments do.

mod metrics;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::sleep;

use super::attached::AttachStatus;
use super::next_process::{is_served_by, stopped_process};
use super::server_socket::ServerSocket;
use super::{clients, umount};
use crate::block_devices::{devices_over, mounts_of};
use crate::control::{self, AskError};
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::printable::{Counted, Json, OneLine, Shown as _};
use crate::progress::rate;
use crate::scsi_device::Connection;
use crate::size::Size;
use crate::target::meter::{Activity, Work};
use crate::target::shares::ShareStatus;
use crate::target::status::{
    ClusterStatus, DeviceStatus, GroupStatus, LinkLosses, PathStatus, SessionStatus, Status,
};

/// Show the sessions and volumes of running servers, and the attachments of this machine
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The control socket to ask; all in /run/longhaul, for users in $XDG_RUNTIME_DIR/longhaul, if left out
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print a JSON object for each server and attachment at once, each on a line, with sizes in bytes and counts since it began
    #[arg(long)]
    json: bool,
    /// Print the attachments at once in the text format of OpenMetrics, for Prometheus' collector of text files; a server
    /// offers its own with `metrics`
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    metrics: bool,
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

Counts are since the server began, or with --watch since the sample before. Rates need two samples, so `status` takes \
one second. Latencies are the median and the 99th percentile.";

/// How long an answer is waited for. One client that says nothing may keep a server for half of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What becomes of those who have reserved a volume, where nothing is kept of that.
const RESERVATIONS_END: &str = "reservations end with this server, and so does what keeps other writers away: `state` in its file, or --state, keeps them";

/// Prints it once, or until interrupted.
pub async fn run(args: Args) -> Outcome {
    if args.metrics {
        return tell_metrics(look(&args, &[]).await);
    }
    let interval = Duration::from_secs(args.interval);
    let (mut before, mut silent) = (BTreeMap::new(), Vec::new());
    if !args.json {
        Answers { seen: before, silent, .. } = look(&args, &[]).await;
        sleep(interval).await;
    }
    loop {
        let Answers { seen, left, failures, .. } = look(&args, &std::mem::take(&mut silent)).await;
        for (path, now) in &seen {
            match args.json {
                true => super::say_text(&Json(&now.answer))?,
                false => super::say(&now.text(before.get(path), args.watch))?,
            }
        }
        tell_of_left(&left);
        let told = tell(failures);
        if !args.watch || seen.is_empty() {
            return told;
        }
        if let Err(why) = told {
            print_error(&format_args!("longhaul: {why}"));
        }
        before = seen;
        sleep(interval).await;
    }
}

/// Prints how the one server is that is meant.
pub(super) async fn of_server(json: bool, server: &ServerSocket) -> Outcome {
    let sample = async || {
        let answer = server.ask("status", PATIENCE).await?;
        Answer::read(answer, Path::new("the server"))
    };
    let before = sample().await?;
    if json {
        return super::say_text(&Json(&before.answer));
    }
    sleep(Duration::from_secs(1)).await;
    super::say(&sample().await?.text(Some(&before), false))
}

/// What there was to be seen at one time.
#[derive(Default)]
struct Answers {
    seen: BTreeMap<PathBuf, Answer>,
    /// Sockets on which nobody listens any more.
    left: Vec<PathBuf>,
    /// Sockets on which somebody listens who says nothing.
    silent: Vec<PathBuf>,
    failures: Vec<Failure>,
}

impl Answers {
    fn attachments(&self) -> impl Iterator<Item = &AttachStatus> {
        self.seen.values().filter_map(|answer| match &answer.source {
            Source::Attachment(sample) => Some(&sample.status),
            Source::Server(_) => None,
        })
    }
}

/// Asks everyone who is to be asked, all at once: none keeps the answer of another. Those that were `silent` a moment ago
/// are not waited for again.
async fn look(args: &Args, silent: &[PathBuf]) -> Answers {
    let mut paths = match &args.control {
        Some(path) => vec![path.clone()],
        None => control::found(),
    };
    paths.retain(|path| !silent.contains(path));
    let asked = paths.iter().map(|path| control::ask(path, "status", PATIENCE));
    let answered = join_all(asked).await;
    let mut answers = Answers::default();
    let again = silent.iter().map(|path| (path.clone(), Err(AskError::Silent)));
    for (path, answer) in paths.into_iter().zip(answered).chain(again) {
        match answer {
            Ok(answer) => match Answer::read(answer, &path) {
                Ok(seen) => drop(answers.seen.insert(path, seen)),
                Err(why) => answers.failures.push(why),
            },
            Err(AskError::Left(_)) if args.control.is_none() => answers.left.push(path),
            // NBD sockets may be beside them.
            Err(AskError::Foreign) if args.control.is_none() => {}
            Err(why) => {
                if matches!(why, AskError::Silent) {
                    answers.silent.push(path.clone());
                }
                answers.failures.push(why.into_failure(&path));
            }
        }
    }
    if args.control.is_none() {
        let mut files = umount::waiting_for_a_process(answers.attachments());
        // One that is stopped serves all the same, and nobody is about to take it over.
        files.retain(|file| !is_served_by(file, &answers.silent, false));
        answers.failures.extend(files.iter().map(|file| unserved(file)));
    }
    if answers.seen.is_empty() && answers.failures.is_empty() {
        // It says why there is nobody.
        let path = Path::new(control::DEFAULT);
        let answer = control::ask(path, "status", PATIENCE).await;
        let answer = answer.map_err(|why| why.into_failure(path));
        match answer.and_then(|answer| Answer::read(answer, path)) {
            Ok(seen) => drop(answers.seen.insert(path.to_owned(), seen)),
            Err(why) => answers.failures.push(why),
        }
    }
    answers
}

/// Prints what attachments have answered, and fails if some did not: what is written over an older file must be whole.
fn tell_metrics(answers: Answers) -> Outcome {
    let text = metrics::text(answers.attachments().cloned().collect())
        .or_fail(|| "cannot tell metrics".to_owned())?;
    // The line ends once.
    super::say_text(&text.trim_end())?;
    tell(answers.failures)
}

/// Says all that failed, the last by its answer.
fn tell(mut failures: Vec<Failure>) -> Outcome {
    let last = failures.pop();
    for why in failures {
        print_error(&format_args!("longhaul: {why}"));
    }
    last.map_or(Ok(()), Err)
}

/// A mount whose process has ended, and for which another one is being started.
fn unserved(file: &Path) -> Failure {
    let mounts = devices_over(file).into_iter().flat_map(|device| mounts_of(&device));
    let place = mounts.map(|mount| mount.place).next().unwrap_or_else(|| file.to_owned());
    let failure = Failure::new(format!("{} is served by nobody at the moment", place.shown()));
    match stopped_process(file) {
        Some(pid) => failure.hint(format!(
            "process {pid}, by which it is to go on, is stopped: `kill -CONT {pid}` lets it go on"
        )),
        None => failure.hint(
            "another process is about to take it over; its log in the state directory says more",
        ),
    }
}

/// Removes the sockets of processes that were killed, and says so on one line.
fn tell_of_left(paths: &[PathBuf]) {
    let [first, others @ ..] = paths else { return };
    let are_removed = paths.iter().filter(|path| control::remove_if_left(path)).count();
    let (are, it) = if others.is_empty() { ("was", "it is") } else { ("were", "they are") };
    let others = match others.len() {
        0 => String::new(),
        more => format!(" and {more} more beside it"),
    };
    let removed =
        if are_removed == paths.len() { format!("; {it} removed") } else { String::new() };
    print_error(&format_args!(
        "longhaul: {}{others} {are} left by a process that was killed{removed}",
        first.shown()
    ));
}

/// What somebody says of itself, and when.
struct StatusSample<S = Status> {
    status: S,
    at: Instant,
}

/// An answer.
struct Answer {
    /// As it came, which is JSON.
    answer: String,
    source: Source,
}

/// Who answered.
enum Source {
    Server(Box<StatusSample>),
    Attachment(Box<StatusSample<AttachStatus>>),
}

impl Answer {
    fn read(answer: String, path: &Path) -> Outcome<Self> {
        let source = match serde_json::from_str(&answer) {
            Ok(status) => Source::Attachment(Box::new(StatusSample { status, at: Instant::now() })),
            Err(_) => {
                let status = serde_json::from_str(&answer);
                let cannot = || format!("cannot read the answer of {}", path.shown());
                Source::Server(Box::new(StatusSample {
                    status: status.or_fail(cannot)?,
                    at: Instant::now(),
                }))
            }
        };
        Ok(Self { answer, source })
    }

    fn text(&self, before: Option<&Self>, only_since: bool) -> String {
        match (&self.source, before.map(|before| &before.source)) {
            (Source::Server(now), Some(Source::Server(before))) => {
                describe(before, now, only_since)
            }
            (Source::Server(now), _) => describe(now, now, only_since),
            (Source::Attachment(now), Some(Source::Attachment(before))) => {
                describe_attachment(before, now, only_since)
            }
            (Source::Attachment(now), _) => describe_attachment(now, now, only_since),
        }
    }
}

/// What was done until `now`, in all or since `before`, and how fast it was in between.
fn describe(before: &StatusSample, now: &StatusSample, only_since: bool) -> String {
    let took = now.at - before.at;
    let mut text = String::new();
    for (target, all) in &now.status.targets {
        let then = before.status.targets.get(target).cloned().unwrap_or_default();
        let recent = all.since(&then);
        let told = if only_since { &recent } else { all };
        let Activity { in_flight, failed, aborted, .. } = told;
        let _ = writeln!(text, "{target}");
        for (lun, size) in now.status.units.get(target).into_iter().flatten() {
            let device = now.status.devices.get(target).and_then(|units| units.get(lun));
            let _ = writeln!(text, "  unit {lun}, {}", unit(device, *size));
            let Status { outages, losses, moved, full, .. } = &now.status;
            let lost = "flushes fail until it is opened again: ";
            for (told, what) in [(outages, ""), (losses, lost), (moved, ""), (full, "")] {
                if let Some(why) = told.get(target).and_then(|units| units.get(lun)) {
                    let _ = writeln!(text, "    {what}{}", OneLine(why));
                }
            }
        }
        let _ = writeln!(text, "  in flight {in_flight}, failed {failed}, aborted {aborted}");
        text += &works(told, &recent, took);
    }
    if now.status.keeps_reservations == Some(false) {
        let _ = writeln!(text, "{RESERVATIONS_END}");
    }
    for (line, group) in now.status.cluster.iter().flat_map(ClusterStatus::lines) {
        let GroupStatus { seconds, weight, takeovers, record_failures, .. } = group;
        let _ = writeln!(
            text,
            "gateway {}; so for {seconds} s, weight {weight}, active {takeovers} times, record failed {record_failures} times",
            OneLine(&line)
        );
    }
    for (link, LinkLosses { refused, overrun, cut }) in &now.status.links {
        let _ = writeln!(text, "{link}: packets refused {refused}, overrun {overrun}, cut {cut}");
    }
    text += &shares(&now.status);
    let sessions = &now.status.sessions;
    let _ = write!(text, "{}", Counted(sessions.len(), "session"));
    for session in sessions {
        let SessionStatus { initiator, address, connections, target, seconds, activity, .. } =
            session;
        let portal_group = session.target_port;
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
        if let (Some(protection), Some(cipher)) = (&session.protection, &session.cipher) {
            let _ = write!(text, " with {} by {}", OneLine(protection), OneLine(cipher));
        }
        if let Some(compression) = &session.compression {
            let _ = write!(text, " compressed by {}", OneLine(compression));
        }
        if let Some(checksum) = &session.checksum {
            let _ = write!(text, " checked by {}", OneLine(checksum));
        }
        let _ = write!(text, ": ");
        let _ =
            write!(text, "{commands} commands, {bytes} bytes, in flight {}", activity.in_flight);
        for one in &session.paths {
            let PathStatus { path, state, address, rtt_us, window, sent, lost, .. } = one;
            let PathStatus { packet, marked, forged, epoch, .. } = one;
            let _ = write!(
                text,
                "\n    path {path} to {} {}: round trip {rtt_us} us, window {} bytes, packets of {packet} bytes, {lost} of {sent} lost, {marked} marked, {forged} forged, keys {epoch}",
                OneLine(address),
                OneLine(state),
                Size(*window)
            );
        }
    }
    text
}

/// What a unit is. Of a device that is passed through the size is not known here.
fn unit(device: Option<&DeviceStatus>, size: u64) -> String {
    let size = Size(size);
    match device {
        None => format!("{size} bytes"),
        Some(DeviceStatus { kind, source: None, .. }) if size.0 == 0 => OneLine(kind).to_string(),
        Some(DeviceStatus { kind, source: None, .. }) => format!("{}, {size} bytes", OneLine(kind)),
        Some(DeviceStatus { kind, source: Some(source), connection }) => {
            // What is wrong with it has a line of its own.
            let is_well = connection.as_deref() == Some(&*Connection::Connected.to_string());
            let connected = if is_well { ", connected" } else { "" };
            format!("{} {}{connected}", OneLine(kind), OneLine(source))
        }
    }
}

/// A line for each client that is given anything.
fn shares(status: &Status) -> String {
    let line = |(name, share): (&String, &ShareStatus)| {
        let ShareStatus { weight, rate, iops, waiting, waited, waited_us } = share;
        let given = clients::share(Some(*weight), *rate, *iops);
        let mean = waited_us / (*waited).max(1);
        let name = OneLine(name);
        format!("client {name}: {given}; {waiting} wait, {waited} waited {mean} us on average\n")
    };
    status.shares.iter().map(line).collect()
}

/// The same of an attachment.
fn describe_attachment(
    before: &StatusSample<AttachStatus>,
    now: &StatusSample<AttachStatus>,
    only_since: bool,
) -> String {
    // The process may be another one than before, which has counted from its beginning.
    let is_same = before.status.pid == now.status.pid;
    let then = if is_same { before.status.activity.clone() } else { Activity::default() };
    let recent = now.status.activity.since(&then);
    let told = if only_since { &recent } else { &now.status.activity };
    let Activity { in_flight, failed, .. } = told;
    let text = now.status.text();
    let works = works(told, &recent, now.at - before.at);
    format!("{text}\n  in flight {in_flight}, failed {failed}\n{}", works.trim_end())
}

/// A line for each kind of command.
fn works(told: &Activity, recent: &Activity, took: Duration) -> String {
    let kinds = [
        ("reads", &told.reads, &recent.reads),
        ("writes", &told.writes, &recent.writes),
        ("others", &told.others, &recent.others),
    ];
    let lines = kinds
        .map(|(name, told, recent)| format!("  {name:<7} {}{}\n", work(told), speed(recent, took)));
    lines.concat()
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
    fn unit_that_cannot_be_reached_says_so() {
        let mut status = reads(1, 512);
        status.units = [("t".to_owned(), [(0, 1 << 20)].into())].into();
        let outage = "reconnecting for 9 s, 3 attempts: cannot connect".to_owned();
        status.outages = [("t".to_owned(), [(0, outage.clone())].into())].into();
        let look = StatusSample { status, at: Instant::now() };
        let told = describe(&look, &look, false);
        assert!(told.contains(&format!("  unit 0, 1M bytes\n    {outage}\n")), "{told}");
    }

    #[test]
    fn unit_that_is_no_disk_says_what_it_is_and_only_a_size_that_is_known() {
        let device = |source: Option<&str>, connection: Option<&str>| DeviceStatus {
            kind: "tape drive".to_owned(),
            source: source.map(str::to_owned),
            connection: connection.map(str::to_owned),
        };
        let remote = Some("scsi:iscsi://far/iqn.x:t/0");
        for (found, size, text) in [
            (None, 1 << 20, "1M bytes"),
            (Some(device(None, None)), 1 << 20, "tape drive, 1M bytes"),
            (Some(device(None, None)), 0, "tape drive"),
            (Some(device(Some("scsi:/dev/nst0"), None)), 0, "tape drive scsi:/dev/nst0"),
            (
                Some(device(remote, Some("connected"))),
                0,
                "tape drive scsi:iscsi://far/iqn.x:t/0, connected",
            ),
            (
                Some(device(remote, Some("reconnecting for 3 s"))),
                0,
                "tape drive scsi:iscsi://far/iqn.x:t/0",
            ),
        ] {
            assert_eq!(unit(found.as_ref(), size), text);
        }
    }

    #[test]
    fn server_that_keeps_no_reservations_says_so() {
        for (keeps, says) in [(None, false), (Some(true), false), (Some(false), true)] {
            let status = Status { keeps_reservations: keeps, ..reads(1, 512) };
            let look = StatusSample { status, at: Instant::now() };
            assert_eq!(describe(&look, &look, false).contains("reservations end with"), says);
        }
    }

    #[test]
    fn clients_with_shares_are_told_with_what_they_waited() {
        let share = ShareStatus {
            weight: 9,
            rate: Some(100 << 20),
            iops: None,
            waiting: 3,
            waited: 20,
            waited_us: 4000,
        };
        let status = Status { shares: [("a".to_owned(), share)].into(), ..reads(1, 512) };
        let look = StatusSample { status, at: Instant::now() };
        let told = describe(&look, &look, false);
        let line = "client a: weight=9 rate=100M; 3 wait, 20 waited 200 us on average\n";
        assert!(told.contains(line), "{told}");
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let start = Instant::now();
        let before = StatusSample { status: reads(100, 1 << 20), at: start };
        let now = StatusSample { status: reads(130, 4 << 20), at: start + Duration::from_secs(2) };
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

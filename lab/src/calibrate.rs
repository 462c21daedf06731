//! What the emulated link is worth: its round trip, and what plain TCP moves on it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::link::{FAR, Link, LinkMaker, Options};
use crate::running::{self, Job};
use crate::{Failure, units};

/// What a full packet of 1500 bytes carries for TCP with time stamps.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

/// Where the receiver listens at the far end.
const PORT: u16 = 9000;

/// Measures links of one rate and several delays.
#[derive(Debug, clap::Args)]
pub(crate) struct Calibrate {
    /// The delays, one way
    #[arg(long, value_delimiter = ',', value_parser = units::duration,
        default_value = "0ms,1ms,2ms,4ms,8ms,64ms")]
    delays: Vec<Duration>,
    /// Bits a second
    #[arg(long, default_value = "1G", value_parser = units::rate)]
    rate: u64,
    /// How much one fresh TCP stream moves
    #[arg(long, default_value = "1G", value_parser = units::size)]
    bytes: u64,
    /// The share of packets that are lost
    #[arg(long = "loss", default_value = "0%", value_parser = units::per_million)]
    losses_per_million: u32,
    /// Who emulates the link
    #[arg(long, value_enum, default_value_t)]
    by: LinkMaker,
}

/// Prints one line for each delay.
pub(crate) fn run(wanted: &Calibrate) -> Result<(), Failure> {
    running::catch_signals()?;
    println!("delay_ms\trtt_ms\ttcp_mb_s\tshare\tlost\tdropped\temulator_cores");
    for delay in &wanted.delays {
        let mut options = Options::far(*delay, Some(wanted.rate));
        options.losses_per_million = wanted.losses_per_million;
        options.by = wanted.by;
        let link = Link::create(&options)?;
        let round_trip = round_trip(&link)?;
        let taken = tcp(&link, wanted.bytes)?.as_secs_f64();
        let traffic = link.finish()?;
        let rate = wanted.bytes as f64 / taken;
        let cores = traffic.cpu.map(|cpu| cpu.as_secs_f64() / taken);
        println!(
            "{:.1}\t{:.3}\t{:.2}\t{:.3}\t{}\t{}\t{}",
            delay.as_secs_f64() * 1e3,
            round_trip.as_secs_f64() * 1e3,
            rate / 1e6,
            rate / (wanted.rate as f64 * PAYLOAD_SHARE),
            traffic.out.lost + traffic.back.lost,
            traffic.out.dropped + traffic.back.dropped,
            cores.map_or_else(|| "-".to_owned(), |cores| format!("{cores:.2}")),
        );
    }
    Ok(())
}

/// The shortest of a few pings: what the path takes, not what the scheduler adds.
fn round_trip(link: &Link) -> Result<Duration, Failure> {
    let printed = running::output(link.command("ping").args(["-q", "-c", "5", "-i", "0.2", FAR]))?;
    // rtt min/avg/max/mdev = 16.280/16.353/16.503/0.079 ms
    let least = printed.rsplit(" = ").next().and_then(|times| times.split('/').next());
    let milliseconds: f64 = least.ok_or("ping printed no times")?.parse()?;
    Ok(Duration::try_from_secs_f64(milliseconds / 1e3)?)
}

/// How long one fresh TCP stream takes from the near end to the far one.
pub(crate) fn tcp(link: &Link, bytes: u64) -> Result<Duration, Failure> {
    let program = std::env::current_exe()?;
    let program = program.to_str().ok_or("the path of this program is no text")?;
    stream(link.command(program), link.far_command(program), FAR, bytes, &[])
}

/// How long one fresh TCP stream takes from a program at the near end to one at the far end, which has
/// this address.
pub(crate) fn stream(
    mut near: Command,
    mut far: Command,
    address: &str,
    bytes: u64,
    options: &[&str],
) -> Result<Duration, Failure> {
    let address = format!("{address}:{PORT}");
    far.args(["receive", &address]).args(options);
    let mut receiver = Job::start(far.stdout(Stdio::piped()))?;
    let stdout = receiver.stdout().ok_or("no standard output")?;
    BufReader::new(stdout).read_line(&mut String::new())?;
    let sent = running::output(near.args(["send", &address, &bytes.to_string()]).args(options))?;
    receiver.succeed()?;
    Ok(Duration::try_from_secs_f64(sent.trim().parse()?)?)
}

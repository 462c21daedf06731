//! `longhaul cd`: the disc in the optical drive of a server.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Subcommand;
use proto::scsi::command::Command;
use proto::scsi::command::optical::{Toc, Track};
use proto::scsi::{Capacity, DeviceType};
use serde::Serialize;
use tokio::task::block_in_place;
use volume::layer::pipeline::Settings;
use volume::{Span, Volume};

use super::options::{LoginArgs, OutageArgs};
use super::output::{is_stream, not_written, output};
use super::units::type_name;
use super::{closing, named, say, say_done, say_json, stop_on_signals, unless_stopped};
use crate::chain::{self, Chain, OpenOptions, UnitOptions, open_unit};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::progress::Progress;
use crate::size::Size;
use crate::store::scsi::RawUnit;
use crate::uri::Uri;

/// Look at the disc in the optical drive of a server, and read it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  longhaul cd toc iscsi://server/iqn.2026-11.dev.longhaul:movies
  longhaul cd read iscsi://server/iqn.2026-11.dev.longhaul:movies movie.iso";

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the tracks of the disc
    Toc {
        #[command(flatten)]
        drive: DriveArgs,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Read the disc, from its first block to its last
    Read {
        #[command(flatten)]
        drive: DriveArgs,
        /// The file to write; standard output if it is `-`
        #[arg(default_value = "-")]
        to: PathBuf,
    },
}

/// A drive.
#[derive(Debug, clap::Args)]
struct DriveArgs {
    /// The drive: its URI
    #[arg(value_parser = named::volume)]
    uri: Uri,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
}

/// How much is read at once.
const PIECE: u64 = 1 << 20;

/// Does it.
pub async fn run(args: Args) -> Outcome {
    match args.action {
        Action::Toc { drive, json } => toc(&drive, json).await,
        Action::Read { drive, to } => read(&drive, &to).await,
    }
}

/// The tracks of a disc.
#[derive(Debug, Serialize)]
struct TocInfo {
    uri: String,
    tracks: Vec<TrackInfo>,
    /// How many blocks it has.
    blocks: u32,
}

#[derive(Debug, Serialize)]
struct TrackInfo {
    number: u8,
    #[serde(rename = "type")]
    kind: &'static str,
    first_block: u32,
    blocks: u32,
}

impl TocInfo {
    fn new(uri: &Uri, tracks: &[Track], end: u32) -> Self {
        let ends = tracks.iter().skip(1).map(|next| next.lba).chain([end]);
        let tracks = tracks.iter().zip(ends).map(|(track, end)| TrackInfo {
            number: track.number,
            kind: if track.is_data { "data" } else { "audio" },
            first_block: track.lba,
            blocks: end.saturating_sub(track.lba),
        });
        Self { uri: uri.to_string(), tracks: tracks.collect(), blocks: end }
    }
}

impl fmt::Display for TocInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.uri)?;
        for TrackInfo { number, kind, first_block, blocks } in &self.tracks {
            writeln!(f, "  track {number:2}     {kind}, {blocks} blocks from {first_block} on")?;
        }
        write!(f, "  end          block {}", self.blocks)
    }
}

async fn toc(drive: &DriveArgs, json: bool) -> Outcome {
    let unit = open_unit(&drive.uri, &drive.options().await?).await?;
    let found = read_toc(&drive.uri, &*unit).await;
    unit.close().await;
    let (tracks, end) = found?;
    let info = TocInfo::new(&drive.uri, &tracks, end);
    match json {
        true => say_json(&info),
        false => say(&info.to_string()),
    }
}

/// The tracks of a disc, and the block behind the last of them.
async fn read_toc(uri: &Uri, unit: &dyn RawUnit) -> Outcome<(Vec<Track>, u32)> {
    refuse_other(uri, unit.standard().device_type())?;
    let what = || format!("cannot read the table of contents of the disc in {uri}");
    let answer = unit.ask(Command::read_toc(), Bytes::new()).await.or_fail(what)?;
    let Toc { tracks, end } = Toc::parse(&answer).or_fail(what)?;
    if let Some(end) = end {
        return Ok((tracks, end));
    }
    // tgt cuts the address of the lead-out off.
    let answer = unit.ask(Command::read_capacity_10(), Bytes::new()).await.or_fail(what)?;
    let blocks = Capacity::parse_10(&answer).or_fail(what)?.map(|capacity| capacity.blocks);
    Ok((tracks, blocks.and_then(|blocks| u32::try_from(blocks).ok()).unwrap_or(u32::MAX)))
}

fn refuse_other(uri: &Uri, found: u8) -> Outcome {
    match found == DeviceType::Optical.code() {
        true => Ok(()),
        false => {
            Err(Failure::new(format!("{uri} is no optical drive: it is {}", type_name(found))))
        }
    }
}

impl DriveArgs {
    async fn options(&self) -> Outcome<UnitOptions> {
        Ok(UnitOptions {
            login: self.login.login().await?,
            reconnect_limit: self.outage.reconnect_limit().unwrap_or_default(),
            ..UnitOptions::default()
        })
    }
}

async fn read(drive: &DriveArgs, to: &Path) -> Outcome {
    let stop = stop_on_signals()?;
    let mut out = output(to)?;
    let options = drive.options().await?;
    let options = OpenOptions {
        read_only: true,
        existing_only: true,
        login: options.login,
        reconnect_limit: options.reconnect_limit,
        pipeline: Some(Settings::default()),
        stop: stop.clone(),
        ..OpenOptions::default()
    };
    let chain = chain::open(&drive.uri, options).await?;
    let size = chain.volume().shape().size;
    let copied = closing(chain, async |chain: &Chain| {
        if let Some(target) = chain.probe().await? {
            refuse_other(&drive.uri, target.device_type)?;
        }
        unless_stopped(&stop, copy(&drive.uri, &*chain.volume(), &mut *out)).await
    });
    copied.await?;
    match is_stream(to) {
        true => Ok(()),
        false => say_done(&format!("{}: {}", to.shown(), Size(size))),
    }
}

async fn copy(uri: &Uri, disc: &dyn Volume, out: &mut (dyn Write + Send)) -> Outcome {
    let (size, block) = (disc.shape().size, u64::from(disc.shape().block_size));
    let progress = Progress::new("reading", size, false);
    let mut at = 0;
    while at < size {
        let len = PIECE.min(size - at);
        let data = match disc.read(Span { at, len }).await {
            Ok(data) => data,
            Err(why) => {
                let lba = first_unreadable(disc, Span { at, len }).await / block;
                return Err(Failure::new(format!("cannot read block {lba} of the disc in {uri}"))
                    .because(why)
                    .hint(format!("the first {at} bytes were read")));
            }
        };
        block_in_place(|| out.write_all(&data)).map_err(not_written)?;
        at += len;
        progress.advance(len);
    }
    block_in_place(|| out.flush()).map_err(not_written)
}

/// Where the first block of a piece begins that cannot be read: what failed may have been any of it.
async fn first_unreadable(disc: &dyn Volume, piece: Span) -> u64 {
    let block = u64::from(disc.shape().block_size);
    let mut at = piece.at;
    while at < piece.at + piece.len && disc.read(Span { at, len: block }).await.is_ok() {
        at += block;
    }
    at
}

//! `longhaul cd`: the disc in the optical drive of a server.

mod burn;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Subcommand;
use proto::scsi::command::Command;
use proto::scsi::command::optical::{DiscInfo, OpenTrack, Toc, Track, current_profile};
use proto::scsi::unit::optical::{BLOCK_SIZE, DiscStatus};
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

/// Look at the disc in the optical drive of a server, read it, and burn one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  longhaul cd toc iscsi://server/iqn.2026-11.dev.longhaul:movies
  longhaul cd read iscsi://server/iqn.2026-11.dev.longhaul:movies movie.iso
  longhaul cd burn iscsi://server/iqn.2026-11.dev.longhaul:blank backup.iso --verify";

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
    /// Burn an image onto the disc: a blank CD-R, DVD+R or BD-R, or one that can be written over
    Burn(burn::BurnArgs),
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
        Action::Burn(args) => burn::run(args).await,
    }
}

/// The tracks of a disc.
#[derive(Debug, Serialize)]
struct TocInfo {
    uri: String,
    /// What it is, if the drive tells it.
    disc: Option<&'static str>,
    tracks: Vec<TrackInfo>,
    /// How many blocks it has.
    blocks: u32,
    /// How many can be added.
    free: u32,
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
    fn new(uri: &Uri, (tracks, end): (&[Track], u32), writable: &Writable) -> Self {
        let ends = tracks.iter().skip(1).map(|next| next.lba).chain([end]);
        let tracks = tracks.iter().zip(ends).map(|(track, end)| TrackInfo {
            number: track.number,
            kind: if track.is_data { "data" } else { "audio" },
            first_block: track.lba,
            blocks: end.saturating_sub(track.lba),
        });
        let Writable { disc, free, .. } = *writable;
        Self { uri: uri.to_string(), disc, tracks: tracks.collect(), blocks: end, free }
    }
}

impl fmt::Display for TocInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.uri)?;
        if let Some(disc) = self.disc {
            writeln!(f, "  disc         {disc}")?;
        }
        for TrackInfo { number, kind, first_block, blocks } in &self.tracks {
            writeln!(f, "  track {number:2}     {kind}, {blocks} blocks from {first_block} on")?;
        }
        write!(f, "  end          block {}", self.blocks)?;
        match self.free {
            0 => Ok(()),
            free => {
                let room = Size(u64::from(free) * u64::from(BLOCK_SIZE));
                write!(f, "\n  room         {room} bytes more")
            }
        }
    }
}

async fn toc(drive: &DriveArgs, json: bool) -> Outcome {
    let unit = open_unit(&drive.uri, &drive.options().await?).await?;
    let found = look(&drive.uri, &*unit).await;
    unit.close().await;
    let ((tracks, end), writable) = found?;
    let info = TocInfo::new(&drive.uri, (&tracks, end), &writable);
    match json {
        true => say_json(&info),
        false => say(&info.to_string()),
    }
}

/// What is known of a disc beside its tracks: its type, and what may be added.
#[derive(Debug, Default)]
struct Writable {
    disc: Option<&'static str>,
    has_tracks: bool,
    free: u32,
}

async fn look(uri: &Uri, unit: &dyn RawUnit) -> Outcome<((Vec<Track>, u32), Writable)> {
    refuse_other(uri, unit.standard().device_type())?;
    let writable = look_for_room(unit)
        .await
        .unwrap_or_else(|| Writable { has_tracks: true, ..Writable::default() });
    // A disc of which no session is closed has no table of contents.
    let toc = match writable.has_tracks {
        true => read_toc(uri, unit).await?,
        false => (Vec::new(), 0),
    };
    Ok((toc, writable))
}

/// What may be added to a disc, if the drive can tell it.
async fn look_for_room(unit: &dyn RawUnit) -> Option<Writable> {
    let ask = async |command| unit.ask(command, Bytes::new()).await.ok();
    let profile = current_profile(&ask(Command::get_profile()).await?).ok()?;
    let disc = burn::disc_name(profile);
    let info = DiscInfo::parse(&ask(Command::read_disc_information()).await?).ok()?;
    if info.status == DiscStatus::Complete {
        return Some(Writable { disc, has_tracks: true, free: 0 });
    }
    let track = ask(Command::read_track_information(info.last_track)).await?;
    let track = OpenTrack::parse(&track).ok()?;
    let has_tracks = info.closed_sessions > 0;
    Some(Writable { disc, has_tracks, free: track.free })
}

/// The tracks of a disc, and the block behind the last of them.
async fn read_toc(uri: &Uri, unit: &dyn RawUnit) -> Outcome<(Vec<Track>, u32)> {
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

//! `longhaul cd toc`: what is on the disc in the drive of a server.

use std::fmt;

use bytes::Bytes;
use proto::scsi::Capacity;
use proto::scsi::command::Command;
use proto::scsi::command::optical::{DiscInfo, Toc, TrackInfo, current_profile};
use proto::scsi::unit::optical::BLOCK_SIZE;
use serde::Serialize;

use super::recorder::{Kind, disc_name, is_blank, no_medium};
use super::{DriveArgs, refuse_other};
use crate::chain::open_unit;
use crate::command::media::RecordedState;
use crate::command::{say, say_json};
use crate::failure::{OrFail as _, Outcome};
use crate::size::Size;
use crate::store::scsi::RawUnit;
use crate::uri::Uri;

/// What is on a disc.
#[derive(Debug, Serialize)]
pub(in crate::command) struct Contents {
    uri: String,
    #[serde(flatten)]
    pub(in crate::command) disc: Disc,
    pub(super) tracks: Vec<TrackContents>,
    /// The block behind the last that is recorded.
    #[serde(rename = "blocks")]
    end: u32,
    /// How many can be added.
    free: u32,
}

/// A disc.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in crate::command) struct Disc {
    /// What it is, if the drive tells it.
    disc: Option<&'static str>,
    state: RecordedState,
}

impl Disc {
    /// Whether nothing is on it.
    pub(in crate::command) fn is_blank(&self) -> bool {
        self.state == RecordedState::Blank
    }
}

impl fmt::Display for Disc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.disc.unwrap_or("disc"), self.state.in_words())
    }
}

#[derive(Debug, Serialize)]
pub(super) struct TrackContents {
    pub(super) number: u8,
    /// The session it is in, if the drive tells it.
    pub(super) session: Option<u8>,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(rename = "first_block")]
    pub(super) first: u32,
    /// How many are recorded.
    pub(super) blocks: u32,
    /// It is written, and not closed.
    pub(super) open: bool,
}

impl TrackContents {
    pub(super) fn is_data(&self) -> bool {
        self.kind == DATA
    }
}

const DATA: &str = "data";

const fn kind_of(is_data: bool) -> &'static str {
    if is_data { DATA } else { "audio" }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.uri)?;
        writeln!(f, "  disc         {}", self.disc)?;
        for track in &self.tracks {
            writeln!(f, "  {track}")?;
        }
        write!(f, "  end          block {}", self.end)?;
        match self.free {
            0 => Ok(()),
            free => {
                let room = Size(u64::from(free) * u64::from(BLOCK_SIZE));
                write!(f, "\n  room         for {room} more")
            }
        }
    }
}

impl fmt::Display for TrackContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, kind, first, blocks, .. } = self;
        write!(f, "track {number:2}     {kind}")?;
        if let Some(session) = self.session {
            write!(f, ", session {session}")?;
        }
        write!(f, ", {blocks} blocks from {first} on")?;
        if self.open { f.write_str(", open") } else { Ok(()) }
    }
}

pub(super) async fn toc(drive: &DriveArgs, json: bool) -> Outcome {
    let unit = open_unit(&drive.uri, &drive.options().await?).await?;
    let found = Contents::of(&drive.uri, &*unit).await;
    unit.close().await;
    let contents = found?;
    match json {
        true => say_json(&contents),
        false => say(&contents.to_string()),
    }
}

impl Contents {
    /// Asks a drive.
    pub(in crate::command) async fn of(uri: &Uri, unit: &dyn RawUnit) -> Outcome<Self> {
        refuse_other(uri, unit.standard().device_type())?;
        let what = || format!("cannot tell what is on the disc in {uri}");
        match unit.ask(Command::test_unit_ready(), Bytes::new()).await {
            Err(why) if why.is_without_medium() => Err(no_medium().within(&what())),
            Err(why) => Err(why).or_fail(what),
            Ok(_) => Self::of_ready(uri, unit).await,
        }
    }

    /// The same of a drive that has said that it is ready.
    pub(in crate::command) async fn of_ready(uri: &Uri, unit: &dyn RawUnit) -> Outcome<Self> {
        let what = || format!("cannot tell what is on the disc in {uri}");
        match asked_tracks(uri, unit).await? {
            Some(contents) => Ok(contents),
            None => of_toc(uri, unit).await.map_err(|why| why.within(&what())),
        }
    }
}

/// What a drive tells of each track; `None` from one that knows no such commands, as one of tgt.
async fn asked_tracks(uri: &Uri, unit: &dyn RawUnit) -> Outcome<Option<Contents>> {
    let ask = async |command| unit.ask(command, Bytes::new()).await.ok();
    let Some(profile) = ask(Command::get_profile()).await else { return Ok(None) };
    let Ok(profile) = current_profile(&profile) else { return Ok(None) };
    let Some(info) = ask(Command::read_disc_information()).await else { return Ok(None) };
    let Ok(info) = DiscInfo::parse(&info) else { return Ok(None) };
    let (mut tracks, mut free) = (Vec::new(), 0);
    for number in 1..=info.last_track {
        let Some(track) = ask(Command::read_track_information(number)).await else {
            return Ok(None);
        };
        let Ok(track) = TrackInfo::parse(&track) else { return Ok(None) };
        if track.next.is_some() {
            free = track.free;
        }
        if track.recorded() > 0 {
            tracks.push(contents_of(&track));
        }
    }
    let is_rewritable = Kind::of(profile) == Ok(Kind::Overwritable);
    let state = match is_rewritable {
        true if is_blank(unit).await? => RecordedState::Blank,
        true => RecordedState::Rewritable,
        false => RecordedState::of(info.status, tracks.iter().any(|track| track.open)),
    };
    let end = tracks.iter().map(|track| track.first.saturating_add(track.blocks)).max();
    let (uri, end) = (uri.to_string(), end.unwrap_or(0));
    let disc = Disc { disc: disc_name(profile), state };
    Ok(Some(Contents { uri, disc, tracks, end, free }))
}

fn contents_of(track: &TrackInfo) -> TrackContents {
    TrackContents {
        number: track.number,
        session: Some(track.session),
        kind: kind_of(track.is_data),
        first: track.first,
        blocks: track.recorded(),
        open: track.next.is_some(),
    }
}

/// What the table of contents tells. It does not tell what lies between tracks.
async fn of_toc(uri: &Uri, unit: &dyn RawUnit) -> Outcome<Contents> {
    let what = || "its table of contents cannot be read".to_owned();
    let answer = unit.ask(Command::read_toc(), Bytes::new()).await.or_fail(what)?;
    let Toc { tracks, end } = Toc::parse(&answer).or_fail(what)?;
    let end = match end {
        Some(end) => end,
        // tgt cuts the address of the lead-out off.
        None => {
            let answer = unit.ask(Command::read_capacity_10(), Bytes::new()).await;
            let capacity = Capacity::parse_10(&answer.or_fail(what)?).or_fail(what)?;
            let blocks = capacity.and_then(|capacity| u32::try_from(capacity.blocks).ok());
            blocks.unwrap_or(u32::MAX)
        }
    };
    let ends = tracks.iter().skip(1).map(|next| next.lba).chain([end]);
    let tracks = tracks.iter().zip(ends).map(|(track, end)| TrackContents {
        number: track.number,
        session: None,
        kind: kind_of(track.is_data),
        first: track.lba,
        blocks: end.saturating_sub(track.lba),
        open: false,
    });
    let (uri, tracks) = (uri.to_string(), tracks.collect());
    let disc = Disc { disc: None, state: RecordedState::Complete };
    Ok(Contents { uri, disc, tracks, end, free: 0 })
}

//! `longhaul media`: the discs and tapes in the drives of a running server, and the cartridges of its media changers.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Subcommand;
use proto::scsi::elements::{Barcode, Element};
use proto::scsi::unit::optical::DiscStatus;
use serde::{Deserialize, Serialize};

use super::invite::PATIENCE;
use super::server_socket::ServerSocket;
use super::{say, say_done, say_json};
use crate::config::BlankDisc;
use crate::failure::{OrFail as _, Outcome};
use crate::printable::{OneLine, Shown as _};
use crate::size::Size;

/// List the discs and tapes in the drives of a running server, put one in, and take it out; and the cartridges of its media
/// changers
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    pub(super) server: ServerSocket,
}

const EXAMPLES: &str = "\
Examples:
  longhaul media load movies /srv/debian.iso
  longhaul media load movies /srv/backup.iso --blank bd-r
  longhaul media eject movies
  longhaul media load backup /srv/tapes/B.tape
  longhaul media load backup /srv/tapes/C.tape --size 100G
  longhaul media list
  longhaul media move library A00001 drive:0
  longhaul media move library drive:0 slot:1
  longhaul media import library A00009 --size 8G
  longhaul media import library W00001 --size 8G --worm
  longhaul media export library mail:1

A drive is a volume cdrom:ISO or tape:PATH of `serve`, or cdrom: or tape: with nothing in it. A restart of the server puts in what its configuration
names. A media changer is a volume changer:DIR; after a restart its cartridges are where they were.";

#[derive(Debug, Subcommand)]
enum Action {
    /// Show each drive and what is in it, and each element of a media changer
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put a disc or a tape into a drive, in the place of the one that is in it
    Load {
        /// The drive
        drive: String,
        /// The image of the disc, or the file of the tape
        iso: PathBuf,
        /// Make the disc, a blank one, if there is no such file: cd-r, dvd+rw or bd-r
        #[arg(long, value_name = "DISC")]
        blank: Option<BlankDisc>,
        /// Make an empty tape of this size if there is no such file
        #[arg(long, value_name = "SIZE", conflicts_with = "blank")]
        size: Option<Size>,
        /// Make the tape, a new or blank one, one that is written once, for good: nothing on it is written over
        #[arg(long, conflicts_with = "blank")]
        worm: bool,
        #[command(flatten)]
        force: Force,
    },
    /// Take the disc or the tape out of a drive
    Eject {
        /// The drive
        drive: String,
        #[command(flatten)]
        force: Force,
    },
    /// Move a cartridge of a media changer to another element
    Move {
        /// The media changer
        changer: String,
        /// The barcode of the cartridge, or the element that it is in: slot:1, drive:0 or mail:1
        from: CartridgeSelector,
        /// The element that it goes to
        to: Element,
        #[command(flatten)]
        force: Force,
    },
    /// Put a cartridge into a media changer by an import element
    Import {
        /// The media changer
        changer: String,
        /// Its barcode: a file of this name is in the directory of the media changer
        barcode: Barcode,
        /// Make an empty tape of this size if it has no file
        #[arg(long, value_name = "SIZE")]
        size: Option<Size>,
        /// Make it, if it is new or blank, a tape that is written once, for good: nothing on it is written over
        #[arg(long)]
        worm: bool,
        #[command(flatten)]
        force: Force,
    },
    /// Take a cartridge out of a media changer by an export element; its file stays in the directory
    Export {
        /// The media changer
        changer: String,
        /// The element: mail:1; or the barcode of the cartridge in it
        from: CartridgeSelector,
        #[command(flatten)]
        force: Force,
    },
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Force {
    /// Also if an initiator has locked the drive, as it does while the disc is mounted or the tape used: it meets errors there then
    #[arg(long)]
    force: bool,
}

/// What is asked of a server.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    List,
    Load {
        drive: String,
        disc: PathBuf,
        #[serde(flatten)]
        made: NewMedium,
        force: bool,
    },
    Eject {
        drive: String,
        force: bool,
    },
    Changer {
        changer: String,
        action: ChangerAction,
        force: bool,
    },
}

/// How a medium is made that has no file.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct NewMedium {
    /// A disc of this type.
    pub(super) blank: Option<BlankDisc>,
    /// A tape of so many bytes.
    #[serde(default)]
    pub(super) size: Option<u64>,
    /// A tape that is written once; also of a blank one that has a file.
    #[serde(default)]
    pub(super) worm: bool,
}

/// What a media changer is to do.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChangerAction {
    Move {
        #[serde(with = "as_text")]
        from: CartridgeSelector,
        #[serde(with = "as_text")]
        to: Element,
    },
    Import {
        #[serde(with = "as_text")]
        barcode: Barcode,
        size: Option<u64>,
        #[serde(default)]
        worm: bool,
    },
    Export {
        #[serde(with = "as_text")]
        from: CartridgeSelector,
    },
}

/// Which cartridge is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CartridgeSelector {
    /// The one that is there.
    Element(Element),
    /// The one with this barcode.
    Cartridge(Barcode),
}

impl FromStr for CartridgeSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.contains(':') {
            true => text.parse().map(Self::Element).map_err(|why| format!("{why}")),
            false => text.parse().map(Self::Cartridge).map_err(|why| format!("{why}")),
        }
    }
}

impl fmt::Display for CartridgeSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Element(element) => element.fmt(f),
            Self::Cartridge(barcode) => barcode.fmt(f),
        }
    }
}

/// What is written as people write it.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(it: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(it)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What there is.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Listed {
    pub(super) drives: Vec<Drive>,
    pub(super) changers: Vec<Changer>,
    /// Drives and media changers that are passed through.
    #[serde(default)]
    pub(super) passed: Vec<PassedDevice>,
}

/// A drive or a media changer that is passed through: its media are its own.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct PassedDevice {
    pub(super) name: String,
    /// Its type, for people.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Its URI.
    pub(super) source: String,
}

/// A media changer.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Changer {
    pub(super) name: String,
    pub(super) elements: Vec<ElementContent>,
}

/// An element of it.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ElementContent {
    pub(super) element: String,
    /// The barcode of what is in it.
    pub(super) cartridge: Option<String>,
}

/// A drive.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Drive {
    pub(super) name: String,
    /// The image that is in it.
    pub(super) disc: Option<PathBuf>,
    pub(super) bytes: u64,
    /// It is used, and has not been ejected by an initiator.
    pub(super) ready: bool,
    /// An initiator has locked the tray.
    pub(super) locked: bool,
    /// It is a tape that is written once.
    #[serde(default)]
    pub(super) write_once: bool,
    /// What it is, if it is a disc that can be written.
    #[serde(default)]
    pub(super) recordable: Option<Recordable>,
    /// It is a tape that has room, and its file system has none.
    #[serde(default)]
    pub(super) store_full: bool,
    /// Why its file is not where it was, if it was moved or removed.
    #[serde(default)]
    pub(super) misplaced: Option<String>,
}

/// A disc that can be written.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Recordable {
    /// Its type.
    pub(super) disc: String,
    /// What has been recorded on it; not known while it is written.
    pub(super) state: Option<RecordedState>,
}

/// How much has been recorded on a disc.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordedState {
    /// Nothing.
    Blank,
    /// Something, and more can be added.
    Appendable,
    /// Something, of which the last track is not closed.
    Open,
    /// Anything: it can be written over.
    Rewritable,
    /// All: it stays as it is.
    Complete,
}

impl RecordedState {
    /// That of a disc that is written in order, or was pressed.
    pub(super) const fn of(status: DiscStatus, has_open_track: bool) -> Self {
        match status {
            DiscStatus::Blank => Self::Blank,
            DiscStatus::Appendable if has_open_track => Self::Open,
            DiscStatus::Appendable => Self::Appendable,
            DiscStatus::Complete => Self::Complete,
        }
    }

    pub(super) const fn in_words(self) -> &'static str {
        match self {
            Self::Blank => "blank",
            Self::Appendable => "more can be added",
            Self::Open => "not closed",
            Self::Rewritable => "can be written over",
            Self::Complete => "complete",
        }
    }
}

/// Asks the server; returns when it is done.
pub async fn run(args: Args) -> Outcome {
    let Args { action, server } = args;
    match action {
        Action::List { json } => list(json, &server).await,
        Action::Load { drive, iso, blank, size, worm, force: Force { force } } => {
            let made = NewMedium { blank, size: size.map(|Size(size)| size), worm };
            // The server may have another working directory.
            let disc = std::path::absolute(&iso);
            let disc = disc.or_fail(|| format!("cannot tell where {} is", iso.shown()))?;
            say_done(&ask(&server, &Request::Load { drive, disc, made, force }).await?)
        }
        Action::Eject { drive, force: Force { force } } => {
            say_done(&ask(&server, &Request::Eject { drive, force }).await?)
        }
        Action::Move { changer, from, to, force } => {
            operate(&server, changer, ChangerAction::Move { from, to }, force).await
        }
        Action::Import { changer, barcode, size, worm, force } => {
            let size = size.map(|Size(size)| size);
            operate(&server, changer, ChangerAction::Import { barcode, size, worm }, force).await
        }
        Action::Export { changer, from, force } => {
            operate(&server, changer, ChangerAction::Export { from }, force).await
        }
    }
}

async fn operate(
    server: &ServerSocket,
    changer: String,
    action: ChangerAction,
    Force { force }: Force,
) -> Outcome {
    say_done(&ask(server, &Request::Changer { changer, action, force }).await?)
}

async fn ask(server: &ServerSocket, request: &Request) -> Outcome<String> {
    let request = serde_json::to_string(request);
    let request = request.or_fail(|| "cannot tell the server what is wanted".to_owned())?;
    server.ask(&format!("media {request}"), PATIENCE).await
}

async fn list(json: bool, server: &ServerSocket) -> Outcome {
    let answer = ask(server, &Request::List).await?;
    let listed: Listed = serde_json::from_str(&answer)
        .or_fail(|| "cannot read the answer: is the server of another release?".to_owned())?;
    if json {
        return say_json(&listed);
    }
    let drives = listed.drives.iter().map(Drive::line);
    let elements = listed.changers.iter().flat_map(Changer::lines);
    let passed = listed.passed.iter().map(PassedDevice::line);
    let lines: Vec<_> = drives.chain(elements).chain(passed).collect();
    if lines.is_empty() {
        return say(NONE);
    }
    lines.iter().try_for_each(|line| say(line))
}

/// What is listed where there is nothing to list.
const NONE: &str = "no drives and no media changers: a volume cdrom:[ISO], tape:[PATH] or changer:DIR of `serve` is one";

impl PassedDevice {
    fn line(&self) -> String {
        let Self { name, kind, source } = self;
        let (name, kind, source) = (OneLine(name), OneLine(kind), OneLine(source));
        format!("{name}: {kind} {source}, passed through: its media are not managed here")
    }
}

impl Changer {
    fn lines(&self) -> impl Iterator<Item = String> {
        let name = OneLine(&self.name);
        self.elements.iter().map(move |ElementContent { element, cartridge }| {
            let cartridge = cartridge.as_deref().unwrap_or("empty");
            format!("{name} {element}: {}", OneLine(cartridge))
        })
    }
}

impl Recordable {
    fn in_words(&self) -> String {
        let state = self.state.map_or("being written", RecordedState::in_words);
        format!(", {}, {state}", OneLine(&self.disc))
    }
}

impl Drive {
    fn line(&self) -> String {
        let name = OneLine(&self.name);
        let locked = if self.locked { ", locked" } else { "" };
        match &self.disc {
            None => format!("{name}: empty{locked}"),
            Some(disc) => {
                let once = if self.write_once { ", write once" } else { "" };
                let ejected = if self.ready { "" } else { ", ejected by an initiator" };
                let kind = self.recordable.as_ref().map(Recordable::in_words).unwrap_or_default();
                let (disc, size) = (disc.shown(), Size(self.bytes));
                let full = if self.store_full { ", its file system is full" } else { "" };
                let misplaced = self.misplaced.as_ref();
                let misplaced = misplaced.map(|why| format!("\n  {}", OneLine(why)));
                let misplaced = misplaced.unwrap_or_default();
                format!("{name}: {disc}, {size}{kind}{once}{ejected}{locked}{full}{misplaced}")
            }
        }
    }
}

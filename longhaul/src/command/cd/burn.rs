//! `longhaul cd burn`: an image onto the disc in the drive of a server.
//!
//! Each write names its block, and a drive takes it only where the disc is written next. So many can be under way: what
//! follows one that was lost is refused, and misplaced is none. After a lost connection the drive says where the disc is
//! written next, and it goes on from there.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use proto::scsi::cdb::CloseFunction;
use proto::scsi::command::Command;
use proto::scsi::command::optical::{DiscInfo, OpenTrack, WriteParameters, current_profile};
use proto::scsi::unit::optical::{BLOCK_SIZE, DiscStatus};
use proto::scsi::{Blocks, Capacity, Sense, Status};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::{DriveArgs, refuse_other};
use crate::chain::{UnitOptions, open_unit};
use crate::command::lost_unit::{WAIT_MAX, connect_again};
use crate::command::{say_done, stop_on_signals, unless_stopped};
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::printable::Shown as _;
use crate::progress::Progress;
use crate::reconnect_limit::ReconnectLimit;
use crate::regular_file::open_regular;
use crate::size::Size;
use crate::store::iscsi::{UnitError, Writers};
use crate::store::scsi::{Executed, Lost, Pending, RawUnit};
use crate::uri::Uri;

#[derive(Debug, clap::Args)]
pub(super) struct BurnArgs {
    #[command(flatten)]
    pub(super) drive: DriveArgs,
    /// The image to burn
    pub(super) from: PathBuf,
    /// Let another session follow; without this nothing can be added to a CD-R or BD-R
    #[arg(long)]
    pub(super) multi: bool,
    /// Add a session to a disc that has some
    #[arg(long)]
    pub(super) append: bool,
    /// Write over what a disc that can be written over holds
    #[arg(long)]
    pub(super) force: bool,
    /// Read the disc afterwards, and compare it with the image
    #[arg(long)]
    pub(super) verify: bool,
}

/// How much a write carries: a cluster of a Blu-ray disc, and four ECC blocks of a DVD.
const PIECE_BLOCKS: u32 = 32;

/// How many writes are under way: as much as a long link holds at the speed of a disc.
const DEPTH: usize = 128;

/// How much is written between two times that it is made stable.
const STABLE_EVERY: u32 = (64 << 20) / BLOCK_SIZE;

/// How often it is tried from one block on.
const TRIES: u32 = 3;

/// How long the drive may be busy with something else before it is tried again.
const BUSY_WAIT: Duration = Duration::from_millis(500);

pub(super) async fn run(args: BurnArgs) -> Outcome {
    let stop = stop_on_signals()?;
    let image = Image::open(&args.from)?;
    let options =
        UnitOptions { writers: Writers::One, stop: stop.clone(), ..args.drive.options().await? };
    let uri = args.drive.uri.clone();
    let unit = unless_stopped(&stop, open_unit(&uri, &options)).await?;
    let mut drive = Burner { unit, uri: uri.clone(), limit: options.reconnect_limit };
    let burnt = unless_stopped(&stop, drive.burn(&image, &args)).await;
    let _ = drive.unit.ask(Command::prevent_removal(false), Bytes::new()).await;
    drive.unit.close().await;
    let told = burnt.map_err(|why| why.within(&format!("cannot burn the disc in {uri}")))?;
    say_done(&told)
}

/// What is burnt.
struct Image {
    file: File,
    size: u64,
    blocks: u32,
}

impl Image {
    fn open(path: &std::path::Path) -> Outcome<Self> {
        let what = || format!("cannot burn {}", path.shown());
        let file = open_regular(path).or_fail(what)?;
        let size = file.metadata().or_fail(what)?.len();
        if size == 0 {
            return Err(Failure::new(what()).because("it is empty"));
        }
        let blocks = u32::try_from(size.div_ceil(BLOCK_SIZE.into()));
        let blocks = blocks.map_err(|_| Failure::new(what()).because("no disc is as large"))?;
        Ok(Self { file, size, blocks })
    }

    /// So many blocks from block `at` on. The last one is filled up with zeroes.
    fn read(&self, at: u32, count: u32) -> Outcome<Bytes> {
        let (from, whole) = (u64::from(at) * u64::from(BLOCK_SIZE), count * BLOCK_SIZE);
        let mut bytes = BytesMut::zeroed(whole as usize);
        let there = self.size.saturating_sub(from).min(whole.into()) as usize;
        block_in_place(|| self.file.read_exact_at(&mut bytes[..there], from))
            .or_fail(|| "cannot read the image".to_owned())?;
        Ok(bytes.freeze())
    }
}

/// How a disc is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In order, track by track, on a CD.
    Cd,
    /// The same on any other disc.
    Sequential,
    /// Anywhere.
    Overwritable,
}

impl Kind {
    /// That of the disc of a profile (MMC-6, table 92), or what that is.
    const fn of(profile: u16) -> Result<Self, &'static str> {
        match profile {
            0x0009 | 0x000A => Ok(Self::Cd),
            0x0011 | 0x0014 | 0x001B | 0x002B | 0x0041 => Ok(Self::Sequential),
            0x0012 | 0x0013 | 0x001A | 0x0043 => Ok(Self::Overwritable),
            0x0000 => Err("there is no disc in the drive"),
            0x0008 | 0x0010 | 0x0040 => Err("it was pressed, not recorded"),
            _ => Err("it is of a type that this program cannot write"),
        }
    }
}

/// What a disc of this profile is called (MMC-6, table 92).
pub(super) const fn disc_name(profile: u16) -> Option<&'static str> {
    Some(match profile {
        0x0008 => "CD-ROM",
        0x0009 => "CD-R",
        0x000A => "CD-RW",
        0x0010 => "DVD-ROM",
        0x0011 => "DVD-R",
        0x0012 => "DVD-RAM",
        0x0013 | 0x0014 => "DVD-RW",
        0x001A => "DVD+RW",
        0x001B | 0x002B => "DVD+R",
        0x0040 => "BD-ROM",
        0x0041 | 0x0042 => "BD-R",
        0x0043 => "BD-RE",
        _ => return None,
    })
}

/// Where on the disc the image goes.
#[derive(Clone, Copy, Debug)]
struct Place {
    kind: Kind,
    first: u32,
    track: u8,
}

/// Why writes have come to a halt.
enum Halt {
    Lost(Lost),
    Refused(Failure),
}

/// The optical drive of a server.
struct Burner {
    unit: Box<dyn RawUnit>,
    uri: Uri,
    limit: ReconnectLimit,
}

impl Burner {
    async fn burn(&mut self, image: &Image, args: &BurnArgs) -> Outcome<String> {
        refuse_other(&self.uri, self.unit.standard().device_type())?;
        self.ask(Command::test_unit_ready()).await?;
        if let Err(not) = self.unit.reserve().await {
            return Err(Failure::new("it cannot be reserved")
                .because(not.why)
                .hint("end the other use of the drive first"));
        }
        // Who has no button cannot press it: a drive that knows no such command is no worse for it.
        let _ = self.unit.ask(Command::prevent_removal(true), Bytes::new()).await;
        let place = self.place(image, args).await?;
        self.write(image, place).await?;
        self.close(place, args.multi).await?;
        if args.verify {
            self.verify(image, place).await?;
        }
        let how = if args.verify { "burnt and compared" } else { "burnt" };
        Ok(format!("{}: {how}: {} bytes from block {} on", self.uri, image.size, place.first))
    }

    async fn ask(&self, command: Command) -> Outcome<Bytes> {
        self.unit.ask(command, Bytes::new()).await.or_fail(|| "the drive refuses it".to_owned())
    }

    /// Where the image goes, if it may.
    async fn place(&self, image: &Image, args: &BurnArgs) -> Outcome<Place> {
        let garbled = || "the drive gives an answer that cannot be read".to_owned();
        let profile = self.ask(Command::get_profile()).await?;
        let kind = Kind::of(current_profile(&profile).or_fail(garbled)?);
        let kind = kind.map_err(|why| Failure::new("the disc cannot be written").because(why))?;
        if kind == Kind::Overwritable {
            return self.place_over(image, args.force).await;
        }
        let info = self.ask(Command::read_disc_information()).await?;
        let info = DiscInfo::parse(&info).or_fail(garbled)?;
        match info.status {
            DiscStatus::Complete => {
                return Err(
                    Failure::new("the disc is complete").because("nothing can be added to it")
                );
            }
            DiscStatus::Appendable if !args.append => {
                return Err(Failure::new("the disc holds something already")
                    .hint("--append adds a session"));
            }
            DiscStatus::Blank | DiscStatus::Appendable => {}
        }
        if kind == Kind::Cd {
            let parameters = self.ask(Command::write_parameters()).await?;
            let parameters = WriteParameters::parse(&parameters).or_fail(garbled)?;
            let (select, list) = parameters.select(args.multi).or_fail(garbled)?;
            let set = self.unit.ask(select, list.into()).await;
            set.or_fail(|| "the drive does not write in the way that data need".to_owned())?;
        }
        let track = self.open_track(kind, info.last_track).await?;
        let next = track.next.filter(|next| *next == track.first).ok_or_else(|| {
            Failure::new("a track of the disc is open")
                .because("what was to be burnt before was not ended")
                .hint("the program that began it can go on; or close the track, and use --append")
        })?;
        if image.blocks > track.free {
            return Err(too_large(image, track.free.into()));
        }
        Ok(Place { kind, first: next, track: track.number })
    }

    /// The same on a disc on which anything is written over.
    async fn place_over(&self, image: &Image, force: bool) -> Outcome<Place> {
        let capacity = self.ask(Command::read_capacity_10()).await?;
        let capacity = Capacity::parse_10(&capacity)
            .or_fail(|| "the size of the disc cannot be read".to_owned())?;
        let blocks = capacity.map_or_else(|| u32::MAX.into(), |capacity| capacity.blocks);
        if u64::from(image.blocks) > blocks {
            return Err(too_large(image, blocks));
        }
        if !force && !self.is_blank().await? {
            return Err(
                Failure::new("the disc holds something already").hint("--force writes over it")
            );
        }
        Ok(Place { kind: Kind::Overwritable, first: 0, track: 1 })
    }

    /// Whether nothing is at the front of the disc, where a file system would be.
    async fn is_blank(&self) -> Outcome<bool> {
        let front = Blocks { lba: 0, count: PIECE_BLOCKS };
        let read = Command::read_10(front, BLOCK_SIZE);
        match self.unit.ask(read.unwrap_or_else(Command::test_unit_ready), Bytes::new()).await {
            Ok(bytes) => Ok(bytes.iter().all(|byte| *byte == 0)),
            // Nothing was ever recorded there.
            Err(UnitError::Sense(_)) => Ok(true),
            Err(why) => Err(Failure::new("cannot look at the disc").because(why)),
        }
    }

    /// The track that is written next.
    async fn open_track(&self, kind: Kind, last: u8) -> Outcome<OpenTrack> {
        /// The invisible track of a CD (MMC-6, 4.2.3.4).
        const INVISIBLE: u8 = 0xFF;
        let number = if kind == Kind::Cd { INVISIBLE } else { last };
        let answer = self.ask(Command::read_track_information(number)).await?;
        OpenTrack::parse(&answer).or_fail(|| "the track cannot be read".to_owned())
    }

    /// Writes the image, over lost connections.
    async fn write(&mut self, image: &Image, place: Place) -> Outcome {
        let progress = Progress::new("burning", image.size, false);
        let mut writing = Writing { at: 0, stable: 0, shown: 0 };
        let (mut furthest, mut tries) = (0, 0);
        loop {
            let halt = match self.write_on(image, place, &mut writing, &progress).await {
                Ok(()) => return Ok(()),
                Err(halt) => halt,
            };
            let why = match halt {
                Halt::Lost(lost) => {
                    tracing::warn!(why = %lost, "the connection is lost: connecting again");
                    sleep(lost.wait.min(WAIT_MAX)).await;
                    self.connect_again().await?;
                    Failure::new("the connection was lost again and again").because(lost)
                }
                Halt::Refused(why) => {
                    sleep(BUSY_WAIT).await;
                    why
                }
            };
            writing.at = self.next(image, place, &writing).await?;
            self.check_same(image, place, writing.at).await?;
            tries = if writing.at > furthest { 0 } else { tries + 1 };
            furthest = furthest.max(writing.at);
            if tries == TRIES {
                let written = u64::from(writing.at) * u64::from(BLOCK_SIZE);
                return Err(why.hint(format!(
                    "{} of {} were written",
                    Size(written),
                    Size(image.size)
                )));
            }
        }
    }

    /// Writes from where it is to the end of the image, with many writes under way.
    async fn write_on(
        &self,
        image: &Image,
        place: Place,
        writing: &mut Writing,
        progress: &Progress,
    ) -> Result<(), Halt> {
        let depth = if self.unit.keeps_order() { DEPTH } else { 1 };
        let mut pending: FuturesOrdered<Pending<'static, (u32, Result<Executed, Lost>)>> =
            FuturesOrdered::new();
        let mut sent = writing.at;
        loop {
            let stop_at = writing.stable.saturating_add(STABLE_EVERY).min(image.blocks);
            while pending.len() < depth && sent < stop_at {
                let count = PIECE_BLOCKS.min(image.blocks - sent);
                let data = image.read(sent, count).map_err(Halt::Refused)?;
                let blocks = Blocks { lba: u64::from(place.first + sent), count };
                let write = Command::write_10(blocks, BLOCK_SIZE, false);
                let write = write.unwrap_or_else(|| Command::write(blocks, BLOCK_SIZE, false));
                let answer = self.unit.send(write, data).await.map_err(Halt::Lost)?;
                sent += count;
                pending.push_back(Box::pin(async move { (sent, answer.await) }));
            }
            match pending.next().await {
                Some((end, answer)) => match check(answer) {
                    Ok(()) => {
                        writing.at = end;
                        writing.show(progress, image);
                    }
                    Err(halt) => {
                        // What was behind it must have been refused before anything is tried again.
                        while pending.next().await.is_some() {}
                        return Err(halt);
                    }
                },
                None => {
                    self.synchronize().await?;
                    writing.stable = writing.at;
                    if writing.at == image.blocks {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn synchronize(&self) -> Result<(), Halt> {
        match self.unit.ask(Command::synchronize_cache(), Bytes::new()).await {
            Ok(_) => Ok(()),
            Err(UnitError::Lost(lost)) => Err(Halt::Lost(lost)),
            Err(why) => {
                let failure = Failure::new("what was written cannot be made stable").because(why);
                Err(Halt::Refused(failure))
            }
        }
    }

    /// Which block of the image is written next: a drive knows that of a disc that is written in order. Of another one what
    /// was not made stable is written again.
    async fn next(&self, image: &Image, place: Place, writing: &Writing) -> Outcome<u32> {
        if place.kind == Kind::Overwritable {
            return Ok(writing.stable);
        }
        let track = self.open_track(place.kind, place.track).await?;
        let at = track.next.and_then(|next| next.checked_sub(place.first));
        match at {
            Some(at) if track.first == place.first && at <= image.blocks => Ok(at),
            _ => Err(Failure::new("the disc is not as it was left")
                .because("another program has written to it, or it was exchanged")),
        }
    }

    /// Refuses to go on where the disc does not hold what was written to it last: another one may have been put in. Of one
    /// that is written over from its front on again, that is the front, or nothing.
    async fn check_same(&self, image: &Image, place: Place, at: u32) -> Outcome {
        let (from, count) = match at {
            0 if place.kind != Kind::Overwritable => return Ok(()),
            0 => (0, PIECE_BLOCKS.min(image.blocks)),
            at => (at - PIECE_BLOCKS.min(at), PIECE_BLOCKS.min(at)),
        };
        let blocks = Blocks { lba: u64::from(place.first + from), count };
        let read = Command::read_10(blocks, BLOCK_SIZE);
        let read = read.unwrap_or_else(|| Command::read(blocks, BLOCK_SIZE));
        let found = self.ask(read).await?;
        let is_blank = at == 0 && found.iter().all(|byte| *byte == 0);
        match is_blank || found == image.read(from, count)? {
            true => Ok(()),
            false => Err(Failure::new("the disc does not hold what was written to it last")
                .because("another one may be in the drive")
                .hint("nothing more was written: put the right one in, and look at both")),
        }
    }

    async fn connect_again(&mut self) -> Outcome {
        connect_again(&mut *self.unit, self.limit).await?;
        print_error(&"longhaul: connected again; going on where the disc is");
        let _ = self.unit.ask(Command::prevent_removal(true), Bytes::new()).await;
        Ok(())
    }

    /// Closes the track and the session.
    async fn close(&mut self, place: Place, multi: bool) -> Outcome {
        let functions: &[_] = match (place.kind, multi) {
            (Kind::Overwritable, _) => return Ok(()),
            // Of a CD the write parameters say whether it is the last session.
            (Kind::Cd, _) | (Kind::Sequential, true) => {
                &[CloseFunction::Track, CloseFunction::Session]
            }
            (Kind::Sequential, false) => &[CloseFunction::Track, CloseFunction::Finalize],
        };
        for function in functions {
            let closed = self.ask(Command::close(*function, place.track)).await;
            closed.map_err(|why| why.within("all was written, but the disc cannot be closed"))?;
        }
        Ok(())
    }

    /// Reads the disc, and compares it with the image.
    async fn verify(&self, image: &Image, place: Place) -> Outcome {
        let progress = Progress::new("comparing", image.size, false);
        let mut at = 0;
        while at < image.blocks {
            let count = PIECE_BLOCKS.min(image.blocks - at);
            let blocks = Blocks { lba: u64::from(place.first + at), count };
            let read = Command::read_10(blocks, BLOCK_SIZE);
            let read = read.unwrap_or_else(|| Command::read(blocks, BLOCK_SIZE));
            let found = self.unit.ask(read, Bytes::new()).await;
            let found = found.or_fail(|| format!("block {} cannot be read back", blocks.lba))?;
            if found != image.read(at, count)? {
                return Err(Failure::new(format!(
                    "the disc differs from the image in the {count} blocks from {} on",
                    blocks.lba
                )));
            }
            at += count;
            progress.advance(u64::from(count) * u64::from(BLOCK_SIZE));
        }
        Ok(())
    }
}

/// How far the image is written, in its blocks.
struct Writing {
    /// Up to here it was answered.
    at: u32,
    /// Up to here it is stable.
    stable: u32,
    /// Up to here it was shown.
    shown: u32,
}

impl Writing {
    fn show(&mut self, progress: &Progress, image: &Image) {
        if self.at > self.shown {
            let bytes = |blocks| (u64::from(blocks) * u64::from(BLOCK_SIZE)).min(image.size);
            progress.advance(bytes(self.at) - bytes(self.shown));
            self.shown = self.at;
        }
    }
}

fn check(answer: Result<Executed, Lost>) -> Result<(), Halt> {
    match answer {
        Err(lost) => Err(Halt::Lost(lost)),
        Ok(Err(why)) => Err(Halt::Refused(Failure::new("a write has no status").because(why))),
        Ok(Ok(done)) if done.status == Status::Good => Ok(()),
        Ok(Ok(done)) => {
            let sense = Sense::parse(&done.sense);
            let why = sense.map_or_else(|| format!("{:?}", done.status), |sense| sense.to_string());
            Err(Halt::Refused(Failure::new("the drive refuses a write").because(why)))
        }
    }
}

fn too_large(image: &Image, free: u64) -> Failure {
    let free = Size(free * u64::from(BLOCK_SIZE));
    Failure::new("the image is too large")
        .because(format!("it has {} bytes, and the disc has room for {free}", Size(image.size)))
}

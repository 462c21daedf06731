//! `longhaul cd burn`: an image onto the disc in the drive of a server.
//!
//! Each write names its block, and a drive takes it only where the disc is written next. So many can be under way: what
//! follows one that was lost is refused, and misplaced is none. After a lost connection the drive says where the disc is
//! written next, and it goes on from there. It does so only where the disc holds what was written to it last: another one
//! may be in the drive.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream::StreamExt as _;
use proto::scsi::command::Command;
use proto::scsi::unit::optical::{BLOCK_SIZE, DiscStatus};
use proto::scsi::{Blocks, Capacity};
use tokio::time::sleep;
use volume::FutureSet;

use super::DriveArgs;
use super::image::Image;
use super::recorder::{Halt, Kind, PIECE_BLOCKS, Recorder, check, is_blank, read};
use crate::command::lost_unit::{WAIT_MAX, answer};
use crate::command::{say_done, stop_on_signals};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::progress::Progress;
use crate::size::Size;
use crate::store::scsi::{Answer, Executed, Lost, Pending, RawUnit};

#[derive(Debug, clap::Args)]
pub(super) struct BurnArgs {
    #[command(flatten)]
    drive: DriveArgs,
    /// The image to burn
    from: PathBuf,
    /// Let another session follow; without this nothing can be added to a CD-R or BD-R
    #[arg(long)]
    multi: bool,
    /// Add a session to a disc that has some
    #[arg(long)]
    append: bool,
    /// Go on where an earlier `cd burn` of the same image to a CD-R or BD-R ended early
    #[arg(long = "continue", conflicts_with_all = ["append", "force"])]
    go_on: bool,
    /// Write over what a disc that can be written over holds
    #[arg(long)]
    force: bool,
    /// Read the disc afterwards, and compare it with the image
    #[arg(long)]
    verify: bool,
}

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
    let (image, reached) = (&image, &Cell::new(Reached::Nothing));
    let burnt = Recorder::with(
        &args.drive,
        &stop,
        "burn",
        async |recorder| Burner { recorder, image, reached }.burn(&args).await,
        async |recorder| Burner { recorder, image, reached }.look().await,
    );
    let told = burnt.await.map_err(|why| match reached.get().in_words(image) {
        Some(known) => why.hint_first(&known),
        None => why,
    })?;
    say_done(&format!("{}: {told}", args.drive.uri))
}

/// Where on the disc the image goes.
#[derive(Clone, Copy, Debug)]
struct Place {
    kind: Kind,
    first: u32,
    track: u8,
    /// How many sessions were closed before.
    closed_sessions: u8,
    /// So many blocks of it are there already.
    begun: u32,
    /// What tells the disc from others, if the drive knows.
    id: Option<u32>,
}

/// How far it has come.
#[derive(Clone, Copy, Debug)]
enum Reached {
    Nothing,
    /// The drive has acknowledged so many blocks, and made some of them stable.
    Writing {
        place: Place,
        blocks: u32,
        stable: u32,
    },
    /// So many are on the disc, as the drive tells of a track.
    Recorded {
        blocks: u32,
    },
    /// All is on the disc, stable.
    Written(Kind),
    /// It is closed.
    Closed,
}

impl Reached {
    /// What the disc holds of an image that was not burnt to its end.
    fn in_words(self, image: &Image) -> Option<String> {
        const NOT_CLOSED: &str = "it is not closed: `cd burn --continue` goes on with the same image, `cd close` closes what is there";
        let of = |blocks| format!("{} of {} bytes", image.bytes(blocks), image.size);
        Some(match self {
            Self::Nothing => return None,
            Self::Writing { place: Place { kind: Kind::Overwritable, .. }, blocks, .. }
                if blocks == image.blocks =>
            {
                "the drive has acknowledged all of the image, and not that it is stable; `cd burn --force` begins anew".to_owned()
            }
            Self::Writing { place: Place { kind: Kind::Overwritable, .. }, blocks, .. } => format!(
                "the drive has acknowledged {}, and a little more may be written over what the disc held; `cd burn --force` begins anew",
                of(blocks)
            ),
            Self::Writing { blocks, .. } => format!(
                "the drive has acknowledged {}, and was not asked what is on the disc (`cd toc` shows it); {NOT_CLOSED}",
                of(blocks)
            ),
            Self::Recorded { blocks } => {
                format!("{} are on the disc, as the drive says, and {NOT_CLOSED}", of(blocks))
            }
            Self::Written(Kind::Overwritable) | Self::Closed => "all of the image was written".to_owned(),
            Self::Written(Kind::Cd | Kind::Sequential) => {
                "all of the image was written, and the disc is not closed: `cd burn --continue` or `cd close` closes it".to_owned()
            }
        })
    }
}

/// An image on its way to a disc.
struct Burner<'a> {
    recorder: &'a mut Recorder,
    image: &'a Image,
    reached: &'a Cell<Reached>,
}

impl Burner<'_> {
    async fn burn(&mut self, args: &BurnArgs) -> Outcome<String> {
        let place = self.place(args).await?;
        self.write(place, args.multi).await?;
        self.close(place, args.multi).await?;
        if args.verify {
            self.compare(place, "comparing", self.image.blocks).await?;
        }
        let how = if args.verify { "burnt and compared" } else { "burnt" };
        Ok(format!("{how}: {} bytes from block {} on", self.image.size, place.first))
    }

    /// Where the image goes, if it may.
    async fn place(&mut self, args: &BurnArgs) -> Outcome<Place> {
        let kind = self.recorder.kind().await?;
        if kind == Kind::Overwritable {
            refuse_sessions(args)?;
            return self.place_over(args.force).await;
        }
        let info = self.recorder.disc_info().await?;
        let id = info.id;
        if info.status == DiscStatus::Complete {
            let why = "nothing can be added to it";
            return Err(Failure::new("the disc is complete").because(why));
        }
        self.recorder.set_parameters(kind, args.multi).await?;
        let track = self.recorder.open_track(kind, info.last_track).await?;
        let next = track.next.ok_or_else(|| {
            Failure::new("nothing more can be written to the disc")
                .hint("`cd toc` shows what is on it; `cd close` closes what is open")
        })?;
        let begun = next.checked_sub(track.first).ok_or_else(|| {
            Failure::new("a session of the disc is to be written at once")
                .because("another program has begun it")
                .hint("let that program end it")
        })?;
        let (first, track, free) = (track.first, track.number, track.free);
        let closed_sessions = info.closed_sessions;
        let place = Place { kind, first, track, closed_sessions, begun, id };
        let has_something = info.status == DiscStatus::Appendable;
        match (begun, args.go_on) {
            (0, false) if has_something && !args.append => Err(Failure::new(
                "the disc holds something already",
            )
            .hint("--append adds a session")),
            (0, true) => Err(Failure::new("there is nothing to go on with")
                .because("no track of the disc is open")
                .hint(match has_something {
                    true => "--append adds a session",
                    false => "the disc is blank: leave --continue out, or put in the one that was begun",
                })),
            (0, _) if first.checked_add(self.image.blocks).is_none() => {
                Err(Failure::new("the drive gives an answer that cannot be"))
            }
            (0, _) if self.image.blocks > free => Err(too_large(self.image, free.into())),
            (0, _) => Ok(place),
            (_, false) => Err(Failure::new("a track of the disc is open")
                .because("what was to be burnt before was not ended")
                .hint("--continue goes on with the same image; `cd close --multi` closes what is there, and then --append adds a session")),
            (_, true) => self.check_begun(place, free).await.map(|()| place),
        }
    }

    /// Whether what the disc holds is the beginning of the image, and the rest has room.
    async fn check_begun(&mut self, place: Place, free: u32) -> Outcome {
        let other = |why: &str| {
            Failure::new("the disc was begun with another image")
                .because(why.to_owned())
                .hint("`cd close --multi` closes what is there, and then --append adds a session")
        };
        let Some(rest) = self.image.blocks.checked_sub(place.begun) else {
            return Err(other("what is on it is longer than this one"));
        };
        if rest > free {
            return Err(too_large(self.image, u64::from(place.begun) + u64::from(free)));
        }
        let compared = self.compare(place, "comparing what is there", place.begun).await;
        compared.map_err(|why| other(&why.to_string()))
    }

    /// The same on a disc on which anything is written over.
    async fn place_over(&self, force: bool) -> Outcome<Place> {
        let capacity = self.recorder.ask(Command::read_capacity_10()).await?;
        let capacity = Capacity::parse_10(&capacity)
            .or_fail(|| "the size of the disc cannot be read".to_owned())?;
        let blocks = capacity.map_or_else(|| u32::MAX.into(), |capacity| capacity.blocks);
        if u64::from(self.image.blocks) > blocks {
            return Err(too_large(self.image, blocks));
        }
        if !force && !is_blank(&*self.recorder.unit).await? {
            return Err(
                Failure::new("the disc holds something already").hint("--force writes over it")
            );
        }
        // One that does not tell it may be any.
        let id = self.recorder.disc_info().await.ok().and_then(|info| info.id);
        let kind = Kind::Overwritable;
        Ok(Place { kind, first: 0, track: 1, closed_sessions: 0, begun: 0, id })
    }

    /// Writes the image, over lost connections.
    async fn write(&mut self, place: Place, multi: bool) -> Outcome {
        let progress = Progress::new("burning", self.image.size, false);
        let begun = place.begun;
        let mut writing = Writing { at: begun, stable: begun, shown: 0, is_sure: true };
        let (mut furthest, mut tries) = (begun, 0);
        loop {
            let halt = match self.write_on(place, &mut writing, &progress).await {
                Ok(()) => break,
                Err(halt) => halt,
            };
            tries = if writing.at > furthest { 1 } else { tries + 1 };
            furthest = furthest.max(writing.at);
            writing.is_sure = false;
            self.overcome(halt, tries, (place.kind, multi)).await?;
        }
        self.reached.set(Reached::Written(place.kind));
        Ok(())
    }

    /// Makes ready for another try, unless it would be of no use.
    async fn overcome(&mut self, halt: Halt, tries: u32, how: (Kind, bool)) -> Outcome {
        match halt {
            halt if tries > TRIES => Err(halt.into()),
            Halt::Failed(why) => Err(why),
            Halt::Refused(why) => {
                tracing::info!(why = why.on_one_line(), "trying again");
                sleep(BUSY_WAIT).await;
                Ok(())
            }
            Halt::Lost(lost) => {
                tracing::warn!(why = %lost, "the connection is lost: connecting again");
                sleep(lost.wait.min(WAIT_MAX)).await;
                self.connect_again(how).await
            }
            Halt::Aborted => {
                tracing::warn!("the drive was reset: connecting again");
                self.connect_again(how).await
            }
        }
    }

    async fn connect_again(&mut self, (kind, multi): (Kind, bool)) -> Outcome {
        self.recorder.connect_again().await?;
        match self.recorder.set_parameters(kind, multi).await {
            // The next try meets it.
            Ok(()) | Err(Halt::Lost(_) | Halt::Aborted) => Ok(()),
            Err(halt) => Err(halt.into()),
        }
    }

    /// Writes from where it is to the end of the image, with many writes under way.
    async fn write_on(
        &mut self,
        place: Place,
        writing: &mut Writing,
        progress: &Progress,
    ) -> Result<(), Halt> {
        if !writing.is_sure {
            self.find_again(place, writing).await?;
        }
        let (unit, image) = (&*self.recorder.unit, self.image);
        let depth = if unit.takes_writes_ahead() { DEPTH } else { 1 };
        let mut under_way = UnderWay::from(writing.at);
        let mut sent = writing.at;
        loop {
            let Writing { at: blocks, stable, .. } = *writing;
            self.reached.set(Reached::Writing { place, blocks, stable });
            let stop_at = writing.stable.saturating_add(STABLE_EVERY).min(image.blocks);
            while under_way.answers.len() < depth && sent < stop_at {
                let count = PIECE_BLOCKS.min(image.blocks - sent);
                let data = image.read(sent, count).map_err(Halt::Failed)?;
                let write = write(place.first + sent, count);
                let answer = unit.send(write, data).await.map_err(Halt::Lost)?;
                under_way.push(sent..sent + count, answer);
                sent += count;
            }
            if under_way.answers.is_empty() {
                self.recorder.change(Command::synchronize_cache()).await?;
                writing.stable = writing.at;
                if writing.at == image.blocks {
                    return Ok(());
                }
            } else {
                writing.at = under_way.next(unit).await?;
                writing.show(progress, image);
            }
        }
    }

    /// Finds out what is on the disc of an image that was not written to its end, where a drive knows that.
    async fn look(&self) {
        let Reached::Writing { place, blocks, stable } = self.reached.get() else { return };
        if place.kind == Kind::Overwritable {
            return;
        }
        let mut writing = Writing { at: blocks, stable, shown: blocks, is_sure: false };
        if self.find_again(place, &mut writing).await.is_ok() {
            self.reached.set(Reached::Recorded { blocks: writing.at });
        }
    }

    /// Finds out where to go on, on the disc that it was.
    async fn find_again(&self, place: Place, writing: &mut Writing) -> Result<(), Halt> {
        self.recorder.check_exchange().await?;
        writing.at = self.next(place, writing).await?;
        self.check_same(place, writing.at).await?;
        writing.is_sure = true;
        Ok(())
    }

    /// Which block of the image is written next: a drive knows that of a disc that is written in order. Of another one what
    /// was not made stable is written again.
    async fn next(&self, place: Place, writing: &Writing) -> Result<u32, Halt> {
        if place.kind == Kind::Overwritable {
            return Ok(writing.stable);
        }
        let track = self.recorder.track(place.track).await?;
        let possible = writing.stable..=self.image.blocks;
        match Some(track.recorded())
            .filter(|at| track.first == place.first && possible.contains(at))
        {
            Some(at) => Ok(at),
            None => Err(Halt::Failed(
                Failure::new("the disc is not as it was left")
                    .because("another program has written to it, or it was exchanged"),
            )),
        }
    }

    /// Refuses to go on where another disc may be in the drive: it must be the one that is known, or hold what was written
    /// to it last; where anything may be written over, all of that.
    async fn check_same(&self, place: Place, at: u32) -> Result<(), Halt> {
        let id = match place.id {
            Some(_) => self.recorder.disc_info().await?.id,
            None => None,
        };
        let (from, end) = match place.kind {
            _ if id != place.id => return Err(exchanged("it is told from that by its number")),
            Kind::Overwritable if id.is_none() => (0, at.max(PIECE_BLOCKS.min(self.image.blocks))),
            _ => (at - PIECE_BLOCKS.min(at), at),
        };
        for first in (from..end).step_by(PIECE_BLOCKS as usize) {
            let count = PIECE_BLOCKS.min(end - first);
            let found = self.recorder.ask(read(place.first + first, count)).await?;
            // Nothing was made stable yet.
            let is_blank = at == 0 && found.iter().all(|byte| *byte == 0);
            if !is_blank && found != self.image.read(first, count).map_err(Halt::Failed)? {
                return Err(exchanged("it does not hold what was written last"));
            }
        }
        Ok(())
    }

    /// Closes the track and the session, over lost connections.
    async fn close(&mut self, place: Place, multi: bool) -> Outcome {
        let kind = place.kind;
        if kind == Kind::Overwritable {
            self.reached.set(Reached::Closed);
            return Ok(());
        }
        let mut tries = 0;
        while let Err(halt) = self.close_once(place, multi, tries).await {
            tries += 1;
            self.overcome(halt, tries, (kind, multi)).await?;
        }
        self.reached.set(Reached::Closed);
        Ok(())
    }

    async fn close_once(&self, place: Place, multi: bool, tries: u32) -> Result<(), Halt> {
        if tries > 0 {
            self.recorder.check_exchange().await?;
            self.check_same(place, self.image.blocks).await?;
            let info = self.recorder.disc_info().await?;
            if info.status == DiscStatus::Complete || info.closed_sessions > place.closed_sessions {
                return Ok(());
            }
        }
        self.recorder.close(place.kind, Some(place.track), multi).await
    }

    /// Reads what the disc holds of the first blocks of the image, and compares, over lost connections.
    async fn compare(&mut self, place: Place, what: &'static str, blocks: u32) -> Outcome {
        let progress = Progress::new(what, self.image.bytes(blocks), false);
        let (mut at, mut tries) = (0, 0);
        while at < blocks {
            let count = PIECE_BLOCKS.min(blocks - at);
            let first = place.first + at;
            let found = match self.recorder.ask(read(first, count)).await {
                Ok(found) => found,
                Err(halt) => {
                    tries += 1;
                    let over = self.overcome(halt, tries, (place.kind, true)).await;
                    over.map_err(|why| why.within(&format!("block {first} cannot be read back")))?;
                    continue;
                }
            };
            if found != self.image.read(at, count)? {
                return Err(Failure::new(format!(
                    "the disc differs from the image in the {count} blocks from {first} on"
                )));
            }
            at += count;
            tries = 0;
            progress.advance(self.image.bytes(at) - self.image.bytes(at - count));
        }
        Ok(())
    }
}

/// The blocks of the image that a write had, and how it has ended.
type EndedWrite = (Range<u32>, Result<Executed, Lost>);

/// Writes on their way.
struct UnderWay {
    answers: FutureSet<Pending<'static, EndedWrite>>,
    /// The blocks of the image of those that ended before one that was sent earlier.
    ahead: BTreeMap<u32, u32>,
    /// Up to here all have ended.
    at: u32,
}

impl UnderWay {
    fn from(at: u32) -> Self {
        Self { answers: FutureSet::new(), ahead: BTreeMap::new(), at }
    }

    fn push(&mut self, blocks: Range<u32>, answer: Answer) {
        self.answers.push(Box::pin(async move { (blocks, answer.await) }));
    }

    /// Waits until one of them has ended; up to where the image is written then.
    async fn next(&mut self, unit: &dyn RawUnit) -> Result<u32, Halt> {
        if let Some((blocks, ended)) = answer(unit, self.answers.next()).await? {
            if let Err(halt) = check(ended) {
                return Err(self.drained(unit, halt).await);
            }
            self.ahead.insert(blocks.start, blocks.end);
        }
        while let Some(end) = self.ahead.remove(&self.at) {
            self.at = end;
        }
        Ok(self.at)
    }

    /// What was behind one that failed must have been refused before anything is tried again, and may say more.
    async fn drained(&mut self, unit: &dyn RawUnit, mut halt: Halt) -> Halt {
        while matches!(halt, Halt::Refused(_)) {
            match answer(unit, self.answers.next()).await {
                Ok(None) => break,
                Ok(Some((_, ended))) => match check(ended) {
                    Ok(()) | Err(Halt::Refused(_)) => {}
                    Err(more) => halt = more,
                },
                Err(none) => return none.into(),
            }
        }
        halt
    }
}

fn exchanged(why: &str) -> Halt {
    Halt::Failed(
        Failure::new("the disc in the drive is not the one that was begun")
            .because(why.to_owned())
            .hint("nothing more was written: put the right one in, and look at both"),
    )
}

/// A disc that is written over has one session.
fn refuse_sessions(args: &BurnArgs) -> Outcome {
    let given = [("--append", args.append), ("--multi", args.multi), ("--continue", args.go_on)];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::usage(format!("{option} is for a CD-R or BD-R"))
            .because("the disc in the drive is one that is written over, and has no sessions")
            .hint(format!("leave {option} out; --force writes over what the disc holds"))),
    }
}

fn write(first: u32, count: u32) -> Command {
    let blocks = Blocks { lba: first.into(), count };
    let write = Command::write_10(blocks, BLOCK_SIZE, false);
    write.unwrap_or_else(|| Command::write(blocks, BLOCK_SIZE, false))
}

/// How far the image is written, in its blocks.
struct Writing {
    /// Up to here it was answered.
    at: u32,
    /// Up to here it is stable.
    stable: u32,
    /// Up to here it was shown.
    shown: u32,
    /// It is known where the disc is written next.
    is_sure: bool,
}

impl Writing {
    fn show(&mut self, progress: &Progress, image: &Image) {
        if self.at > self.shown {
            progress.advance(image.bytes(self.at) - image.bytes(self.shown));
            self.shown = self.at;
        }
    }
}

fn too_large(image: &Image, free: u64) -> Failure {
    let free = Size(free * u64::from(BLOCK_SIZE));
    Failure::new("the image is too large")
        .because(format!("it has {} bytes, and the disc has room for {free}", Size(image.size)))
}

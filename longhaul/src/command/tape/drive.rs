//! The tape drive of a server: found, reserved, set and moved, one command at a time.

use std::time::Duration;

use bytes::Bytes;
use proto::scsi::command::Command;
use proto::scsi::command::tape::{BLOCK_MAX, BlockLimits, Position, Space, TapeMode};
use proto::scsi::sense::{Additional, Key};
use proto::scsi::tape_stream::{Fixed, Settings};
use proto::scsi::{DeviceType, Status};
use tokio::time::{Instant, sleep};

use crate::chain::{UnitOptions, open_unit};
use crate::command::unit_type::type_name;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::size::Size;
use crate::store::iscsi::UnitError;
use crate::store::scsi::RawUnit;
use crate::uri::Uri;

/// How long a tape may take to be loaded.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How often a drive that becomes ready is asked.
const ASKED_EVERY: Duration = Duration::from_millis(500);

/// How much is under way, in bytes and commands: more than a long link holds. What a target does not take yet waits here.
const AHEAD_BYTES: usize = 16 << 20;
const AHEAD_COMMANDS: usize = 1024;

/// How often what was written is made stable, if nothing else was asked for. A drive that moves its tape stops for that.
const STABLE_EVERY: usize = 64 << 20;

/// How many bytes a command has of blocks that are counted.
const COUNTED_BYTES: u32 = 256 << 10;

/// Where the head is to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// At the beginning of this file, counted from 0.
    File(u32),
    /// Behind all that is recorded.
    End,
    /// Where it is.
    Here,
}

/// A tape drive with a tape in it.
pub(super) struct Drive {
    pub(super) unit: Box<dyn RawUnit>,
    uri: Uri,
    mode: TapeMode,
    pub(super) settings: Settings,
    /// Its blocks were given another length, which is to be undone.
    is_set: bool,
}

impl Drive {
    /// Opens a drive, and waits for its tape.
    pub(super) async fn open(uri: &Uri, options: &UnitOptions) -> Outcome<Self> {
        let unit = open_unit(uri, options).await?;
        let found = unit.standard().device_type();
        if found != DeviceType::Tape.code() {
            unit.close().await;
            let why = format!("{uri} is no tape drive: it is {}", type_name(found));
            return Err(Failure::new(why));
        }
        let settings = Settings {
            fixed: None,
            ahead_bytes: AHEAD_BYTES,
            ahead_commands: if unit.takes_writes_ahead() { AHEAD_COMMANDS } else { 1 },
            stable_every: STABLE_EVERY,
            can_locate: true,
            has_long_position: true,
        };
        let (uri, mode) = (uri.clone(), TapeMode::default());
        Ok(Self { unit, uri, mode, settings, is_set: false })
    }

    /// Reserves it. One who only reads may have no right to do that.
    pub(super) async fn reserve(&self, reads: bool) -> Outcome {
        match self.unit.reserve().await {
            Ok(()) => Ok(()),
            Err(not) if reads && not.is_refused => {
                tracing::debug!(why = %not.why, "the drive is read without a reservation");
                Ok(())
            }
            Err(not) => Err(Failure::new(format!("cannot reserve {}", self.uri)).because(not.why).hint(
                "end the other use of the drive first; --take-over ends it at once, and --shared uses the drive beside it",
            )),
        }
    }

    /// Waits until its tape can be used, learns how it is set, and keeps the tape in it.
    pub(super) async fn prepare(&mut self, fixed: Option<u32>) -> Outcome {
        self.wait_for_tape().await?;
        self.mode = self.mode().await?;
        // Who may only read may not keep it in.
        let _ = self.unit.ask(Command::prevent_removal(true), Bytes::new()).await;
        self.learn_position().await?;
        if let Some(block) = fixed {
            let count = (COUNTED_BYTES / block).max(1);
            self.settings.fixed = Some(Fixed { block, count, mode: self.mode });
            self.is_set = self.mode.block_length != block;
            self.select(block).await?;
        }
        Ok(())
    }

    async fn wait_for_tape(&self) -> Outcome {
        let last = Instant::now() + READY_WITHIN;
        loop {
            match self.unit.ask(Command::test_unit_ready(), Bytes::new()).await {
                Ok(_) => return Ok(()),
                Err(UnitError::Sense(sense))
                    if sense.key == Key::NotReady
                        && sense.additional == Additional::BECOMING_READY
                        && Instant::now() < last => {}
                Err(why) => return Err(self.failed("cannot use the tape in", &why)),
            }
            sleep(ASKED_EVERY).await;
        }
    }

    pub(super) async fn mode(&self) -> Outcome<TapeMode> {
        let answer = self.unit.ask(Command::tape_mode(), Bytes::new()).await;
        let answer = answer.map_err(|why| self.failed("cannot ask the settings of", &why))?;
        TapeMode::parse(&answer).or_fail(|| format!("the settings of {} cannot be read", self.uri))
    }

    /// Refuses a tape that takes no writes, before anything is read to be written.
    pub(super) fn check_writable(&self) -> Outcome {
        match self.mode.is_write_protected() {
            true => Err(Failure::new(format!("cannot write to {}", self.uri)).because(
                "the tape is write-protected, or the server lets this client only read it",
            )),
            false => Ok(()),
        }
    }

    /// Refuses a length of blocks that the drive does not have.
    pub(super) async fn check_block(&self, block: Size) -> Outcome<u32> {
        let limits = self.limits().await;
        let limit = limits.map_or(BLOCK_MAX, |limits| limits.most);
        let most = if limit == 0 { BLOCK_MAX } else { limit.min(BLOCK_MAX) };
        let least = limits.map_or(1, |limits| limits.least).max(1);
        match u32::try_from(block.0) {
            Ok(block) if (least..=most).contains(&block) => Ok(block),
            _ => Err(Failure::usage(format!(
                "a block of {} has {least} to {most} bytes, not {}",
                self.uri, block.0
            ))),
        }
    }

    pub(super) async fn limits(&self) -> Option<BlockLimits> {
        let answer = self.unit.ask(Command::read_block_limits(), Bytes::new()).await.ok()?;
        BlockLimits::parse(&answer).ok()
    }

    async fn select(&self, block: u32) -> Outcome {
        let (select, list) = Command::select_block_length(&self.mode, block);
        let selected = self.unit.ask(select, list.into()).await;
        selected
            .map(drop)
            .map_err(|why| self.failed("cannot set the length of the blocks of", &why))
    }

    /// Finds out what the drive knows of its head.
    async fn learn_position(&mut self) -> Outcome {
        let position = match self.position().await {
            Err(why) if why.is_refused => {
                self.settings.has_long_position = false;
                self.position().await
            }
            found => found,
        };
        let Position { object, .. } = position.map_err(|why| why.failure)?;
        match self.unit.ask(Command::locate(object), Bytes::new()).await {
            Ok(_) => Ok(()),
            Err(UnitError::Sense(sense)) if sense.is_unknown_command() => {
                tracing::debug!("the drive knows no LOCATE: one command is under way at a time");
                self.settings.can_locate = false;
                Ok(())
            }
            Err(why) => Err(self.failed("cannot move the head of", &why)),
        }
    }

    /// Where the head is.
    pub(super) async fn position(&self) -> Result<Position, NoPosition> {
        let is_long = self.settings.has_long_position;
        let asked = if is_long { Command::read_position() } else { Command::read_position_short() };
        let answer = self.unit.ask(asked, Bytes::new()).await.map_err(|why| NoPosition {
            is_refused: matches!(&why, UnitError::Sense(sense) if sense.is_unknown_command()),
            failure: self.failed("cannot ask for the position of", &why),
        })?;
        let parsed =
            if is_long { Position::parse_long(&answer) } else { Position::parse_short(&answer) };
        parsed.ok().flatten().ok_or_else(|| NoPosition {
            is_refused: false,
            failure: Failure::new(format!("{} does not know where its head is", self.uri)),
        })
    }

    /// Puts the head there; where that is.
    pub(super) async fn go_to(&self, start: Start) -> Outcome<Position> {
        let what = "cannot move the head of";
        if matches!(start, Start::File(_)) {
            let rewound = self.unit.ask(Command::rewind(), Bytes::new()).await;
            rewound.map_err(|why| self.failed(what, &why))?;
        }
        let space = match start {
            Start::File(marks @ 1..) => Some(Space::Filemarks(marks)),
            Start::End => Some(Space::ToEndOfData),
            Start::File(0) | Start::Here => None,
        };
        if let Some(space) = space {
            match self.unit.ask(Command::space(space), Bytes::new()).await {
                Ok(_) => {}
                Err(UnitError::Sense(sense)) if sense.key == Key::BlankCheck => {
                    let there = self.position().await.ok().and_then(|end| end.file);
                    let marks = there
                        .map_or_else(String::new, |marks| format!(": it has {marks} file marks"));
                    return Err(Failure::new(format!("the tape in {} has no such file", self.uri))
                        .because(format!("what is recorded ends before it{marks}")));
                }
                Err(why) => return Err(self.failed(what, &why)),
            }
        }
        self.position().await.map_err(|why| why.failure)
    }

    /// Where the head is behind all that is recorded: ends the last file, if no file mark does, as after a write that was
    /// interrupted. What is written next would belong to it.
    pub(super) async fn end_last_file(&self, end: Position) -> Outcome<Position> {
        let what = "cannot end the last file of";
        if end.object == 0 {
            return Ok(end);
        }
        let back = self.unit.ask(Command::space(Space::FilemarkBack), Bytes::new()).await;
        back.map_err(|why| self.failed(what, &why))?;
        let mark = self.position().await.map_err(|why| why.failure)?.object;
        let end = self.go_to(Start::End).await?;
        // Where there is no mark the head is at the beginning, as where the first object is one.
        let is_ended = match mark {
            0 => end.object == 1 && end.file == Some(1),
            mark => mark == end.object - 1,
        };
        if is_ended {
            return Ok(end);
        }
        let marked = self.unit.ask(Command::write_filemarks(1), Bytes::new()).await;
        marked.map_err(|why| self.failed(what, &why))?;
        self.position().await.map_err(|why| why.failure)
    }

    /// Rewinds it, if that is wanted.
    pub(super) async fn rewind(&self) -> Outcome {
        let rewound = self.unit.ask(Command::rewind(), Bytes::new()).await;
        rewound.map(drop).map_err(|why| self.failed("cannot rewind", &why))
    }

    /// Sets it as it was, lets the tape go, and ejects it if that is wanted.
    pub(super) async fn put_back(&mut self, eject: bool) -> Outcome {
        if self.is_set {
            self.is_set = false;
            self.select(self.mode.block_length).await?;
        }
        let _ = self.unit.ask(Command::prevent_removal(false), Bytes::new()).await;
        if eject {
            let ejected = self.unit.ask(Command::unload(), Bytes::new()).await;
            ejected.map_err(|why| self.failed("cannot eject the tape of", &why))?;
        }
        Ok(())
    }

    /// It is open on another session, which knows nothing of the one before.
    pub(super) async fn opened_again(&self) {
        let _ = self.unit.ask(Command::prevent_removal(true), Bytes::new()).await;
    }

    fn failed(&self, what: &str, why: &UnitError) -> Failure {
        let failure = Failure::new(format!("{what} {}", self.uri));
        match why {
            UnitError::Sense(sense) if sense.additional.code == 0x3A => {
                failure.because("there is no tape in the drive")
            }
            UnitError::Status(Status::ReservationConflict) => {
                failure.because("another initiator has reserved the drive")
            }
            why => failure.because(why.clone()),
        }
    }
}

/// The drive does not say where its head is.
pub(super) struct NoPosition {
    /// It does not know the question.
    is_refused: bool,
    pub(super) failure: Failure,
}

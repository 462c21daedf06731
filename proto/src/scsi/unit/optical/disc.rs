//! A disc: what it is, the tracks and sessions that have been recorded, and what may be written next.

use super::super::super::sense::{Additional, Key};
use super::super::super::{Blocks, Sense};
use super::BLOCK_SIZE;
use crate::reader::{Reader, Truncated};

/// What a disc is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscType {
    /// CD-ROM.
    Cd,
    /// DVD-ROM.
    Dvd,
    /// CD-R: written once, track by track (MMC-6, 4.4).
    CdR,
    /// DVD+RW, formatted: any block is written any number of times.
    DvdPlusRw,
    /// BD-R in sequential disc mode: written once.
    BdR,
}

impl DiscType {
    /// Those that can be written.
    pub const RECORDABLE: [Self; 3] = [Self::CdR, Self::DvdPlusRw, Self::BdR];

    /// How many blocks a blank one has.
    #[must_use]
    pub const fn blocks(self) -> u32 {
        match self {
            Self::Cd | Self::Dvd => 0,
            // 80 minutes, less the two seconds before the first block.
            Self::CdR => 359_849,
            Self::DvdPlusRw => 2_295_104,
            Self::BdR => 12_219_392,
        }
    }

    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cd => "CD-ROM",
            Self::Dvd => "DVD-ROM",
            Self::CdR => "CD-R",
            Self::DvdPlusRw => "DVD+RW",
            Self::BdR => "BD-R",
        }
    }

    /// It is written once, and in order.
    #[must_use]
    pub const fn is_sequential(self) -> bool {
        matches!(self, Self::CdR | Self::BdR)
    }

    /// Its addresses can be said in minutes, seconds and frames.
    #[must_use]
    pub const fn is_cd(self) -> bool {
        matches!(self, Self::Cd | Self::CdR)
    }

    const fn code(self) -> u8 {
        match self {
            Self::Cd | Self::Dvd => 0,
            Self::CdR => 1,
            Self::DvdPlusRw => 2,
            Self::BdR => 3,
        }
    }

    /// How many blocks lie between two tracks: of a CD the two run-out blocks and the pre-gap of two seconds.
    const fn track_gap(self) -> u32 {
        if self.is_cd() { 152 } else { 0 }
    }

    /// How many lie between two sessions: lead-out and lead-in of a CD, of which the first lead-out is longer.
    const fn session_gap(self, closed: u16) -> u32 {
        match (self.is_cd(), closed) {
            (true, 1) => 11_400,
            (true, _) => 6_900,
            (false, _) => 0,
        }
    }

    /// In units of how many blocks tracks begin: a cluster of a BD-R.
    const fn unit(self) -> u32 {
        if matches!(self, Self::BdR) { 32 } else { 1 }
    }
}

/// How many blocks a CD-ROM has at most: 900 MB, which are a little less than the 100 minutes that its addresses have.
const CD_BLOCKS_MAX: u32 = 900_000_000 / BLOCK_SIZE;

/// A track on which something is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// The session it is in, from 1 on.
    pub session: u16,
    /// Its first block.
    pub first: u32,
    /// The block behind its last.
    pub end: u32,
    /// Nothing more is written to it.
    pub is_closed: bool,
}

impl Track {
    /// The only track of a disc.
    const fn whole(blocks: u32) -> Self {
        Self { session: 1, first: 0, end: blocks, is_closed: true }
    }
}

/// How much of a disc has been recorded (MMC-6, table 367: Disc Status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscStatus {
    /// Nothing.
    Blank,
    /// Something, and there is more to come.
    Appendable,
    /// All: nothing can be added.
    Complete,
}

/// The most tracks of a disc, and so the most sessions.
const TRACKS_MAX: usize = 99;

/// A disc, and what has been recorded on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disc {
    disc: DiscType,
    blocks: u32,
    tracks: Vec<Track>,
    /// How many sessions are closed.
    closed_sessions: u16,
    /// The track that is open, or the next one, has so many blocks; as many as are written to it if zero.
    reserved: u32,
    /// The session is written at once: it is closed when the last block that was reserved is written.
    is_at_once: bool,
    is_complete: bool,
    /// What tells it from others; zero if nothing does.
    id: u32,
}

impl Disc {
    /// The most blocks of a disc: its addresses have 32 bits, and that of the lead-out is one of them.
    pub const BLOCKS_MAX: u64 = u32::MAX as u64;

    /// A CD-ROM or a DVD-ROM, by its size: one session with one track of data.
    #[must_use]
    pub fn pressed(blocks: u32) -> Self {
        let disc = if blocks <= CD_BLOCKS_MAX { DiscType::Cd } else { DiscType::Dvd };
        Self {
            tracks: vec![Track::whole(blocks)],
            closed_sessions: 1,
            is_complete: true,
            ..Self::empty(disc, blocks)
        }
    }

    /// A blank disc of so many blocks. What can be written over has one track, on which anything may be.
    #[must_use]
    pub fn blank(disc: DiscType, blocks: u32) -> Self {
        match disc.is_sequential() {
            true => Self::empty(disc, blocks),
            false => Self { disc, ..Self::pressed(blocks) },
        }
    }

    const fn empty(disc: DiscType, blocks: u32) -> Self {
        Self {
            disc,
            blocks,
            tracks: Vec::new(),
            closed_sessions: 0,
            reserved: 0,
            is_at_once: false,
            is_complete: false,
            id: 0,
        }
    }

    /// The same disc, which is told from others by `id`.
    #[must_use]
    pub fn with_id(self, id: u32) -> Self {
        Self { id, ..self }
    }

    /// What tells it from others, if anything does.
    #[must_use]
    pub const fn id(&self) -> Option<u32> {
        if self.id == 0 { None } else { Some(self.id) }
    }

    /// What it is.
    #[must_use]
    pub const fn disc_type(&self) -> DiscType {
        self.disc
    }

    /// How many blocks the disc has.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The tracks, in order. The last one may be open.
    #[must_use]
    pub fn tracks(&self) -> &[Track] {
        &self.tracks
    }

    /// How many sessions are closed.
    #[must_use]
    pub const fn closed_sessions(&self) -> u16 {
        self.closed_sessions
    }

    /// How much of it has been recorded. What can be written over is always complete.
    #[must_use]
    pub const fn status(&self) -> DiscStatus {
        match self.is_complete {
            true => DiscStatus::Complete,
            false if self.tracks.is_empty() => DiscStatus::Blank,
            false => DiscStatus::Appendable,
        }
    }

    /// The track that is being written.
    #[must_use]
    pub fn open_track(&self) -> Option<&Track> {
        self.tracks.last().filter(|track| !track.is_closed)
    }

    /// Where the next block of a disc is written that is written in order, if one may be.
    #[must_use]
    pub fn next_writable(&self) -> Option<u32> {
        if self.is_complete {
            return None;
        }
        let Some(last) = self.tracks.last() else { return Some(0) };
        let next = if !last.is_closed {
            last.end
        } else if last.session == self.closed_sessions {
            last.end.saturating_add(self.disc.session_gap(self.closed_sessions))
        } else {
            last.end.saturating_add(self.disc.track_gap())
        };
        let next = if last.is_closed {
            next.checked_next_multiple_of(self.disc.unit()).unwrap_or(u32::MAX)
        } else {
            next
        };
        let has_room = !last.is_closed || self.tracks.len() < TRACKS_MAX;
        (next < self.limit(next) && has_room).then_some(next)
    }

    /// Up to where the track may be written that is open, or that begins at `next`.
    fn limit(&self, next: u32) -> u32 {
        let first = self.open_track().map_or(next, |track| track.first);
        match self.reserved {
            0 => self.blocks,
            reserved => first.saturating_add(reserved).min(self.blocks),
        }
    }

    /// How many blocks the track can take that is open, or that is next.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.next_writable().map_or(0, |next| self.limit(next) - next)
    }

    /// The block behind the last that was recorded.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.tracks.last().map_or(0, |track| track.end)
    }

    /// Whether these blocks may be read: between tracks nothing is recorded.
    pub fn check_read(&self, blocks: Blocks) -> Result<(), Sense> {
        let Blocks { lba, count } = blocks;
        let end = lba.saturating_add(count.into());
        if lba >= u64::from(self.end()) || end > u64::from(self.end()) {
            let first = lba.max(self.end().into());
            return Err(Sense::illegal(Additional::LBA_OUT_OF_RANGE).with_information(first));
        }
        let mut at = lba;
        for track in &self.tracks {
            if (u64::from(track.first)..u64::from(track.end)).contains(&at) {
                at = track.end.into();
            }
            if at >= end {
                return Ok(());
            }
        }
        Err(Sense::new(Key::BlankCheck, Additional::ILLEGAL_MODE_FOR_TRACK).with_information(at))
    }

    /// Whether these blocks may be written now.
    pub fn check_write(&self, blocks: Blocks) -> Result<(), Sense> {
        let Blocks { lba, count } = blocks;
        let next = self.next_writable();
        let limit = next.map_or(self.blocks, |next| self.limit(next));
        let is_within = lba.saturating_add(count.into()) <= limit.into();
        match (self.disc, next) {
            (DiscType::DvdPlusRw, _) if is_within => Ok(()),
            (DiscType::DvdPlusRw, _) => Err(Sense::illegal(Additional::LBA_OUT_OF_RANGE)),
            _ if self.is_complete => Err(Sense::new(Key::DataProtect, Additional::WRITE_PROTECTED)),
            (_, Some(next)) if is_within && u64::from(next) == lba => Ok(()),
            (_, Some(_)) if is_within => Err(Sense::illegal(Additional::INVALID_ADDRESS_FOR_WRITE)),
            _ => Err(Sense::illegal(Additional::END_OF_USER_AREA)),
        }
    }

    /// These blocks were written, which [`check_write`](Self::check_write) allowed.
    pub fn written(&mut self, Blocks { lba, count }: Blocks) {
        if count == 0 || self.is_complete {
            return;
        }
        let first = u32::try_from(lba).unwrap_or(u32::MAX);
        let end = first.saturating_add(count).min(self.blocks);
        match self.tracks.last_mut().filter(|track| !track.is_closed) {
            Some(track) => track.end = end,
            None => {
                let session = self.closed_sessions + 1;
                self.tracks.push(Track { session, first, end, is_closed: false });
            }
        }
    }

    /// Whether the next track can be reserved: of a BD-R, as long as none is open or reserved.
    pub fn check_reserve(&self, blocks: u32) -> Result<(), Sense> {
        let is_next = self.open_track().is_none() && self.reserved == 0;
        if self.disc != DiscType::BdR || !is_next {
            return Err(Sense::illegal(Additional::ILLEGAL_MODE_FOR_TRACK));
        }
        match blocks {
            0 => Err(Sense::invalid_cdb(5, None)),
            blocks if blocks > self.free() => Err(Sense::illegal(Additional::END_OF_USER_AREA)),
            _ => Ok(()),
        }
    }

    /// Reserves the next track, which [`check_reserve`](Self::check_reserve) allowed.
    pub const fn reserve(&mut self, blocks: u32) {
        self.reserved = blocks;
    }

    /// Whether a session can be written at once that ends before this block: the first one of a CD-R.
    pub fn check_at_once(&self, lead_out: u32) -> Result<(), Sense> {
        if self.disc != DiscType::CdR || self.status() != DiscStatus::Blank {
            return Err(Sense::illegal(Additional::ILLEGAL_MODE_FOR_TRACK));
        }
        match lead_out <= self.blocks {
            true => Ok(()),
            false => Err(Sense::illegal(Additional::END_OF_USER_AREA)),
        }
    }

    /// The session is written at once, which [`check_at_once`](Self::check_at_once) allowed.
    pub const fn begin_at_once(&mut self, lead_out: u32) {
        (self.reserved, self.is_at_once) = (lead_out, true);
    }

    /// A session is to be written at once, and nothing of it is written.
    #[must_use]
    pub const fn is_at_once_and_blank(&self) -> bool {
        self.is_at_once && self.tracks.is_empty()
    }

    /// Nothing that was described by a cue sheet will be written.
    pub const fn forget_at_once(&mut self) {
        if self.is_at_once_and_blank() {
            (self.reserved, self.is_at_once) = (0, false);
        }
    }

    /// All of a session that is written at once is written: it has to be closed.
    #[must_use]
    pub fn is_at_its_end(&self) -> bool {
        self.is_at_once && self.open_track().is_some_and(|track| track.end == self.limit(0))
    }

    /// What is reserved for the track that is open, and not written: it has to be zeroes before that is closed.
    #[must_use]
    pub fn unwritten(&self) -> Option<Blocks> {
        let track = self.open_track().filter(|_| self.reserved > 0)?;
        let count = self.limit(0).checked_sub(track.end).filter(|count| *count > 0)?;
        Some(Blocks { lba: track.end.into(), count })
    }

    /// Closes the track that is open, with all that was reserved for it.
    pub fn close_track(&mut self) {
        let limit = self.limit(0);
        if let Some(track) = self.tracks.last_mut().filter(|track| !track.is_closed) {
            track.is_closed = true;
            if self.reserved > 0 {
                track.end = limit.max(track.end);
            }
            (self.reserved, self.is_at_once) = (0, false);
        }
    }

    /// Closes the session, if anything is in it; with `finalize` nothing can be added afterwards.
    pub fn close_session(&mut self, finalize: bool) {
        self.close_track();
        if let Some(last) = self.tracks.last() {
            self.closed_sessions = self.closed_sessions.max(last.session);
            self.is_complete |= finalize;
        }
    }

    /// In bytes, to be kept with the disc.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let flags = u8::from(self.is_complete) | u8::from(self.is_at_once) << 1;
        let mut bytes = vec![self.disc.code(), flags];
        bytes.extend(self.closed_sessions.to_be_bytes());
        bytes.extend(self.blocks.to_be_bytes());
        bytes.extend(self.reserved.to_be_bytes());
        bytes.extend((self.tracks.len() as u16).to_be_bytes());
        for track in &self.tracks {
            bytes.extend(track.session.to_be_bytes());
            bytes.extend(track.first.to_be_bytes());
            bytes.extend(track.end.to_be_bytes());
            bytes.push(track.is_closed.into());
        }
        bytes.extend(self.id.to_be_bytes());
        bytes
    }

    /// Reads what [`emit`](Self::emit) gave; `None` if it is nothing that could have been recorded.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let disc = Self::read(&mut Reader::new(bytes)).ok()??;
        disc.is_sound().then_some(disc)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, Truncated> {
        let [code, flags] = reader.array()?;
        let (closed_sessions, blocks) = (reader.u16()?, reader.u32()?);
        let (reserved, count) = (reader.u32()?, reader.u16()?);
        let Some(disc) = DiscType::RECORDABLE.into_iter().find(|disc| disc.code() == code) else {
            return Ok(None);
        };
        let mut tracks = Vec::new();
        for _ in 0..usize::from(count).min(TRACKS_MAX) {
            let (session, first, end) = (reader.u16()?, reader.u32()?, reader.u32()?);
            let [closed] = reader.array()?;
            tracks.push(Track { session, first, end, is_closed: closed != 0 });
        }
        // The first discs had none.
        let id = reader.u32().unwrap_or(0);
        Ok(Some(Self {
            id,
            disc,
            blocks,
            tracks,
            closed_sessions,
            reserved,
            is_at_once: flags & 2 != 0,
            is_complete: flags & 1 != 0,
        }))
    }

    /// Whether the tracks lie one behind the other on the disc, and only the last one is open.
    fn is_sound(&self) -> bool {
        let mut before = (0, 1);
        let last = self.tracks.len().saturating_sub(1);
        let in_order = self.tracks.iter().enumerate().all(|(n, track)| {
            let (end, session) = std::mem::replace(&mut before, (track.end, track.session));
            let follows = track.first >= end && track.first < track.end && track.session >= session;
            follows && track.end <= self.blocks && (track.is_closed || n == last)
        });
        let sessions = self.tracks.last().map_or(0, |track| track.session);
        let are_counted = [self.closed_sessions, self.closed_sessions.saturating_add(1)];
        // Each has a track.
        let are_possible = usize::from(self.closed_sessions) <= self.tracks.len();
        self.blocks > 0 && in_order && are_counted.contains(&sessions) && are_possible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(disc: &mut Disc, lba: u64, count: u32) -> Result<(), Additional> {
        let blocks = Blocks { lba, count };
        disc.check_write(blocks).map_err(|sense| sense.additional)?;
        disc.written(blocks);
        assert_eq!(Disc::parse(&disc.emit()), Some(disc.clone()));
        Ok(())
    }

    fn can_read(disc: &Disc, lba: u64, count: u32) -> bool {
        disc.check_read(Blocks { lba, count }).is_ok()
    }

    #[test]
    fn cd_r_is_written_in_order_and_in_sessions() {
        let mut disc = Disc::blank(DiscType::CdR, 20_000);
        assert_eq!((disc.status(), disc.next_writable()), (DiscStatus::Blank, Some(0)));
        assert_eq!(write(&mut disc, 1, 1), Err(Additional::INVALID_ADDRESS_FOR_WRITE));
        assert_eq!(write(&mut disc, 0, 16), Ok(()));
        assert_eq!(write(&mut disc, 0, 16), Err(Additional::INVALID_ADDRESS_FOR_WRITE));
        assert_eq!(write(&mut disc, 16, 284), Ok(()));
        assert!(can_read(&disc, 0, 300) && !can_read(&disc, 299, 2));
        disc.close_track();
        assert_eq!(write(&mut disc, 452, 10), Ok(()), "behind run-out and pre-gap");
        disc.close_session(false);
        assert_eq!((disc.status(), disc.end()), (DiscStatus::Appendable, 462));
        assert!(can_read(&disc, 452, 10) && !can_read(&disc, 299, 200), "not what lies between");
        assert_eq!(disc.next_writable(), Some(462 + 11_400));
        assert_eq!(write(&mut disc, 11_862, 1), Ok(()));
        assert_eq!(disc.tracks().iter().map(|track| track.session).collect::<Vec<_>>(), [1, 1, 2]);
        disc.close_session(true);
        assert_eq!((disc.status(), disc.next_writable()), (DiscStatus::Complete, None));
        assert_eq!(write(&mut disc, 11_863, 1), Err(Additional::WRITE_PROTECTED));
    }

    #[test]
    fn disc_that_is_full_takes_no_more() {
        let mut disc = Disc::blank(DiscType::BdR, 64);
        assert_eq!(write(&mut disc, 0, 65), Err(Additional::END_OF_USER_AREA));
        assert_eq!(write(&mut disc, 0, 33), Ok(()));
        disc.close_track();
        assert_eq!(disc.next_writable(), None, "the next cluster begins behind the end");
        assert_eq!(write(&mut disc, 33, 1), Err(Additional::END_OF_USER_AREA));
        assert_eq!(disc.status(), DiscStatus::Appendable);
    }

    #[test]
    fn track_that_was_reserved_is_as_long_as_that() {
        let mut disc = Disc::blank(DiscType::BdR, 640);
        assert!(disc.check_reserve(641).is_err() && disc.check_reserve(0).is_err());
        disc.check_reserve(96).unwrap();
        disc.reserve(96);
        assert_eq!((disc.free(), disc.check_reserve(10).is_err()), (96, true));
        assert_eq!(write(&mut disc, 0, 97), Err(Additional::END_OF_USER_AREA));
        assert_eq!(write(&mut disc, 0, 50), Ok(()));
        assert_eq!((disc.free(), disc.next_writable()), (46, Some(50)));
        assert_eq!(disc.unwritten(), Some(Blocks { lba: 50, count: 46 }));
        disc.close_track();
        assert!(can_read(&disc, 0, 96) && !can_read(&disc, 0, 97) && disc.unwritten().is_none());
        assert_eq!((disc.next_writable(), disc.free()), (Some(96), 544));
        disc.reserve(32);
        assert_eq!(write(&mut disc, 96, 32), Ok(()));
        assert_eq!(disc.next_writable(), None, "it is full, and has to be closed");
        disc.close_session(false);
        assert_eq!(disc.next_writable(), Some(128));
        let of_cd = Disc::blank(DiscType::CdR, 640).check_reserve(10);
        assert_eq!(of_cd, Err(Sense::illegal(Additional::ILLEGAL_MODE_FOR_TRACK)));
    }

    #[test]
    fn session_that_is_written_at_once_ends_where_it_was_said() {
        let mut disc = Disc::blank(DiscType::CdR, 640);
        assert!(disc.check_at_once(641).is_err());
        disc.check_at_once(96).unwrap();
        disc.begin_at_once(96);
        assert_eq!(write(&mut disc, 0, 97), Err(Additional::END_OF_USER_AREA));
        assert_eq!(write(&mut disc, 0, 50), Ok(()));
        assert!(!disc.is_at_its_end());
        assert_eq!(write(&mut disc, 50, 46), Ok(()));
        assert!(disc.is_at_its_end());
        disc.close_session(true);
        assert_eq!((disc.status(), disc.end()), (DiscStatus::Complete, 96));
        assert!(disc.check_at_once(10).is_err() && !disc.is_at_its_end());
        // As long as nothing is written of it, it can be another one.
        let mut disc = Disc::blank(DiscType::CdR, 640);
        disc.begin_at_once(96);
        disc.forget_at_once();
        assert_eq!(disc, Disc::blank(DiscType::CdR, 640));
    }

    #[test]
    fn session_without_a_track_is_not_closed() {
        let mut disc = Disc::blank(DiscType::BdR, 64);
        disc.close_session(true);
        assert_eq!((disc.status(), disc.closed_sessions()), (DiscStatus::Blank, 0));
        write(&mut disc, 0, 1).unwrap();
        disc.close_session(false);
        disc.close_session(false);
        assert_eq!(disc.closed_sessions(), 1);
        assert_eq!(disc.next_writable(), Some(32));
    }

    #[test]
    fn dvd_plus_rw_is_written_anywhere() {
        let mut disc = Disc::blank(DiscType::DvdPlusRw, 64);
        assert!(can_read(&disc, 0, 64) && !can_read(&disc, 0, 65));
        assert_eq!(write(&mut disc, 60, 4), Ok(()));
        assert_eq!(write(&mut disc, 0, 4), Ok(()));
        assert_eq!(write(&mut disc, 61, 4), Err(Additional::LBA_OUT_OF_RANGE));
        disc.close_session(true);
        assert_eq!(write(&mut disc, 0, 4), Ok(()));
    }

    #[test]
    fn there_are_99_tracks_at_most() {
        let mut disc = Disc::blank(DiscType::CdR, 359_849);
        while let Some(next) = disc.next_writable() {
            write(&mut disc, next.into(), 1).unwrap();
            disc.close_track();
        }
        assert_eq!(disc.tracks().len(), 99);
    }

    #[test]
    fn disc_that_was_never_recorded_is_not_parsed() {
        let mut disc = Disc::blank(DiscType::CdR, 1000);
        write(&mut disc, 0, 10).unwrap();
        disc.close_session(false);
        let good = disc.emit();
        for cut in 0..good.len() - 4 {
            assert_eq!(Disc::parse(&good[..cut]), None, "{cut}");
        }
        let named = disc.clone().with_id(7);
        assert_eq!(Disc::parse(&named.emit()).and_then(|disc| disc.id()), Some(7));
        assert_eq!(Disc::parse(&named.emit()[..good.len() - 4]), Some(disc.clone()));
        // Another disc type, a track that ends behind the disc, sessions that are not there.
        for (at, byte) in [(0, 9), (20, 0xFF), (3, 7), (2, 0xFF), (7, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            if at == 7 {
                bad[6] = 0;
            }
            assert_eq!(Disc::parse(&bad), None, "{at}");
        }
    }
}

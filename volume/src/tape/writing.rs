//! Writing, which ends the tape behind what is written, and making it stable.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::format::{BLOCK_MAX, HEADER, Header, Kind, LABELS, Label, UNIT, crc32c, skip_target};
use super::{MARKS_RESERVE, Place, Tape, TapeError, TapeResult};
use crate::{Durability, Space, Span};

/// How much is written before the label is written anew, if nobody asks for it before: what is behind the end that it names
/// is read when the tape is opened, and may be lost in a crash.
pub(super) const UNSTABLE_MAX: u64 = if cfg!(test) { 1 << 18 } else { 1 << 30 };

/// The records on the way that the last one has to the first, the last one behind the others.
#[derive(Clone, Debug, Default)]
pub(super) struct SkipLinks(Vec<(u64, u64)>);

impl SkipLinks {
    /// Where the record is that the next one, `number`, has a way to.
    fn skip_of(&self, number: u64) -> u64 {
        let target = skip_target(number);
        self.0.iter().rev().find(|(known, _)| *known == target).map_or(0, |(_, at)| *at)
    }

    /// Record `number` was written at byte `at`.
    fn push(&mut self, number: u64, at: u64) {
        let target = skip_target(number);
        self.0.retain(|(known, _)| *known <= target && number > 0);
        self.0.push((number, at));
    }
}

impl Tape {
    /// Writes a block at the head. What was recorded behind it is gone.
    ///
    /// # Errors
    ///
    /// [`TapeError::Full`] if there is no room for it, and [`TapeError::WriteOnce`] if it would take the place of what may not
    /// be written over: then nothing is changed.
    pub async fn write(&mut self, data: &[Bytes]) -> TapeResult<()> {
        let len = u32::try_from(data.iter().map(Bytes::len).sum::<usize>());
        let len = len.ok().filter(|len| *len <= BLOCK_MAX).ok_or(TapeError::Long)?;
        self.spares_what_is_written()?;
        if self.at.at + Header::size(len) > self.capacity() - MARKS_RESERVE {
            return Err(TapeError::Full);
        }
        self.append(Kind::Block, len, data).await
    }

    /// Writes a file mark at the head, likewise.
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn write_mark(&mut self) -> TapeResult<()> {
        self.spares_what_is_written()?;
        if self.at.at + Header::size(0) > self.capacity() {
            return Err(TapeError::Full);
        }
        self.append(Kind::Mark, 0, &[]).await
    }

    /// Makes stable what was written, and where it ends.
    pub async fn sync(&mut self) -> TapeResult<()> {
        self.still_whole()?;
        // Of a tape that takes no writes nothing is, but what a crash has left behind the end that the label names.
        if self.unstable == 0 || self.is_read_only() {
            return Ok(());
        }
        let stable = async {
            self.volume.flush().await?;
            let label = Label { end: self.end, ..self.label };
            self.put_label(label).await
        };
        match stable.await {
            Ok(label) => {
                (self.label, self.unstable) = (label, 0);
                Ok(())
            }
            Err(why) => {
                self.has_failed = !is_refused(&why);
                Err(why)
            }
        }
    }

    /// Ends the recorded data at the head, and gives back the space behind. With `all`, that is also the space of what was
    /// recorded there earlier, if the volume gives it back as zeroes: then nothing of it can be read any more.
    ///
    /// # Errors
    ///
    /// [`TapeError::WriteOnce`] of a tape that can be written once, wherever its head is.
    pub async fn erase(&mut self, all: bool) -> TapeResult<()> {
        if self.is_write_once() {
            return Err(TapeError::WriteOnce);
        }
        self.sync().await?;
        self.is_writing = false;
        self.begin().await?;
        let rest = self.capacity() - self.end.at;
        if all && rest > 0 && self.volume.shape().fast_zeroes {
            let rest = Span::new(self.end.at, rest);
            self.volume.write_zeroes(rest, Durability::Durable, Space::Release).await?;
        }
        Ok(())
    }

    /// Refuses to write over what is on a tape that can be written once. File marks at its end may be written over but for the
    /// first of them, which ends a file (SSC-4, 8.3.7: WORM MODE FILEMARKS RESTRICTIONS is 02h).
    const fn spares_what_is_written(&self) -> TapeResult<()> {
        let (Place { object, marks, previous, last_mark, .. }, end) = (self.at, &self.end);
        let is_end = object == end.object;
        let only_marks_follow = end.object - object == end.marks - marks;
        let is_behind_mark = object > 0 && previous == last_mark;
        match !self.is_write_once() || is_end || only_marks_follow && is_behind_mark {
            true => Ok(()),
            false => Err(TapeError::WriteOnce),
        }
    }

    const fn still_whole(&self) -> TapeResult<()> {
        if self.has_failed { Err(TapeError::Failed) } else { Ok(()) }
    }

    /// Begins a run of writing at the head, unless it goes on: what is behind is over before anything is written there, so
    /// that a crash leaves no mixture of both.
    async fn begin(&mut self) -> TapeResult<()> {
        if self.is_writing && self.at == self.end {
            return Ok(());
        }
        self.sync().await?;
        let (links, mark_links) = self.links_to_head().await?;
        let label = Label { epoch: self.label.epoch + 1, end: self.at, ..self.label };
        let was = self.end.at;
        match self.put_label(label).await {
            Ok(label) => self.label = label,
            Err(why) => {
                // One copy may have been written: which one counts is found out when the tape is opened.
                self.has_failed = !is_refused(&why);
                return Err(why);
            }
        }
        (self.end, self.is_writing, self.longest) = (self.at, true, 0);
        (self.links, self.mark_links) = (links, mark_links);
        self.release(was).await;
        Ok(())
    }

    /// Gives back the space of what was recorded behind the end, up to byte `to`. It is only a hint.
    async fn release(&self, to: u64) {
        let from = self.end.at;
        if to > from && self.volume.shape().discard.is_some() {
            let _ = self.volume.discard(Span::new(from, to - from)).await;
        }
    }

    /// Writes the label, the first copy before the second one. Both are stable then: if one is lost, the other one names the
    /// same end, and what is damaged before it is not taken for a torn tail.
    pub(super) async fn put_label(&self, label: Label) -> TapeResult<Label> {
        let label = Label { sequence: self.label.sequence + 1, ..label };
        let bytes = label.encode();
        let [first, second] = LABELS;
        self.volume.write(first, bytes.clone(), Durability::Durable).await?;
        let again = self.volume.write(second, bytes, Durability::Durable).await;
        again.map_err(|why| match why.kind {
            // It is too late to refuse it: which copy counts is found out when the tape is opened.
            crate::Kind::Busy => crate::Error { kind: crate::Kind::Gone, ..why },
            _ => why,
        })?;
        Ok(label)
    }

    /// The links to earlier records and file marks from those before the head.
    async fn links_to_head(&self) -> TapeResult<(SkipLinks, SkipLinks)> {
        let (mut links, mut mark_links) = (Vec::new(), Vec::new());
        let mut next = self.at.object.checked_sub(1).map(|number| (number, self.at.previous));
        while let Some((number, at)) = next {
            links.push((number, at));
            let is_it = |found: &Header| found.place.object == number;
            let skip = match self.header(at, is_it).await {
                Ok((header, _)) => header.skip,
                // It is found without this one.
                Err(TapeError::Damaged { .. }) => self.find(skip_target(number)).await?.at,
                Err(why) => return Err(why),
            };
            next = (number > 0).then(|| (skip_target(number), skip));
        }
        let mut next = self.at.marks.checked_sub(1).map(|number| (number, self.at.last_mark));
        while let Some((number, at)) = next {
            mark_links.push((number, at));
            let is_it = |found: &Header| found.kind == Kind::Mark && found.place.marks == number;
            let skip = match self.header(at, is_it).await {
                Ok((header, _)) => header.mark_skip,
                Err(TapeError::Damaged { .. }) if number > 0 => {
                    self.find_mark(skip_target(number)).await?.0.place.at
                }
                Err(TapeError::Damaged { .. }) => 0,
                Err(why) => return Err(why),
            };
            next = (number > 0).then(|| (skip_target(number), skip));
        }
        links.reverse();
        mark_links.reverse();
        Ok((SkipLinks(links), SkipLinks(mark_links)))
    }

    async fn append(&mut self, kind: Kind, len: u32, data: &[Bytes]) -> TapeResult<()> {
        self.still_whole()?;
        self.begin().await?;
        let place = self.at;
        let mut record = BytesMut::with_capacity(Header::size(len) as usize);
        record.resize(HEADER, 0);
        data.iter().for_each(|piece| record.put_slice(piece));
        let header = self.next_header(kind, len, crc32c(&record[HEADER..]));
        record.resize(Header::size(len) as usize, 0);
        let (first, sum) = header.encode();
        record[..HEADER].copy_from_slice(&first);
        // One that fails is not there: the next one takes its place.
        self.volume.write(place.at, record.freeze(), Durability::Volatile).await?;
        self.unstable += Header::size(len);
        self.links.push(place.object, place.at);
        if kind == Kind::Mark {
            self.mark_links.push(place.marks, place.at);
        }
        self.at = header.after(sum);
        (self.end, self.longest) = (self.at, self.longest.max(len));
        if self.unstable >= UNSTABLE_MAX { self.sync().await } else { Ok(()) }
    }

    fn next_header(&self, kind: Kind, len: u32, data_sum: u32) -> Header {
        let place = self.at;
        let mark_skip = match kind {
            Kind::Mark => self.mark_links.skip_of(place.marks),
            Kind::Block => 0,
        };
        Header {
            kind,
            len,
            data_sum,
            tape: self.label.tape,
            epoch: self.label.epoch,
            place,
            skip: self.links.skip_of(place.object),
            mark_skip,
        }
    }
}

/// Whether the volume could not take a change now, and can when it is asked again.
fn is_refused(why: &TapeError) -> bool {
    matches!(why, TapeError::Volume(error) if error.kind == crate::Kind::Busy)
}

const _: () = assert!(MARKS_RESERVE.is_multiple_of(UNIT));

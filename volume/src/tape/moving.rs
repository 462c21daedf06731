//! Moving the head without reading data: along the links that each record has to earlier ones.

use super::format::{BLOCK_MAX, FIRST, Header, Kind, Place, UNIT, skip_target};
use super::{Tape, TapeError, TapeResult};

/// Where the head came to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Where it was sent.
    There,
    /// At a file mark: behind it if it moved forwards, before it if backwards. So many objects are left.
    Mark(u64),
    /// At the end of the recorded data, likewise.
    EndOfData(u64),
    /// At the beginning of the tape, likewise.
    Beginning(u64),
}

impl Tape {
    /// Goes to the beginning.
    pub const fn rewind(&mut self) {
        self.at = Place::BEGINNING;
    }

    /// Goes to a place that was asked for before, and has not been written over since; gives the one it was at.
    pub const fn exchange_place(&mut self, place: Place) -> Place {
        std::mem::replace(&mut self.at, place)
    }

    /// Goes to the end of the recorded data.
    pub const fn go_to_end(&mut self) {
        self.at = self.end;
    }

    /// Goes before record `object`.
    pub async fn locate(&mut self, object: u64) -> TapeResult<Moved> {
        if object > self.end.object {
            self.at = self.end;
            return Ok(Moved::EndOfData(object - self.end.object));
        }
        self.at = self.find(object).await?;
        Ok(Moved::There)
    }

    /// Goes to the beginning of file `file`, which is behind as many file marks.
    pub async fn locate_file(&mut self, file: u64) -> TapeResult<Moved> {
        let Some(before) = file.checked_sub(1) else {
            self.rewind();
            return Ok(Moved::There);
        };
        if file > self.end.marks {
            self.at = self.end;
            return Ok(Moved::EndOfData(file - self.end.marks));
        }
        let (mark, sum) = self.find_mark(before).await?;
        self.at = mark.after(sum);
        Ok(Moved::There)
    }

    /// Goes over `count` blocks, at most to the next file mark.
    pub async fn space_blocks(&mut self, count: u64) -> TapeResult<Moved> {
        let to = self.at.object.saturating_add(count);
        if self.at.marks < self.end.marks {
            let (mark, sum) = self.find_mark(self.at.marks).await?;
            if mark.place.object < to {
                self.at = mark.after(sum);
                return Ok(Moved::Mark(to - mark.place.object));
            }
        }
        self.locate(to).await
    }

    /// The same backwards.
    pub async fn space_blocks_back(&mut self, count: u64) -> TapeResult<Moved> {
        let last = match self.at.marks.checked_sub(1) {
            Some(last) => Some(self.find_mark(last).await?.0.place),
            None => None,
        };
        let behind_last = last.map_or(0, |mark| mark.object + 1);
        let over = self.at.object.checked_sub(behind_last);
        let over = over.ok_or_else(|| TapeError::damaged(self.at.last_mark))?;
        if count <= over {
            return self.locate(self.at.object - count).await;
        }
        let left = count - over;
        match last {
            Some(mark) => {
                self.at = mark;
                Ok(Moved::Mark(left))
            }
            None => {
                self.rewind();
                Ok(Moved::Beginning(left))
            }
        }
    }

    /// Goes behind the `count`th file mark from here.
    pub async fn space_marks(&mut self, count: u64) -> TapeResult<Moved> {
        let there = self.end.marks - self.at.marks;
        let Some(last) = count.checked_sub(1) else { return Ok(Moved::There) };
        if count > there {
            self.at = self.end;
            return Ok(Moved::EndOfData(count - there));
        }
        let (mark, sum) = self.find_mark(self.at.marks + last).await?;
        self.at = mark.after(sum);
        Ok(Moved::There)
    }

    /// Goes before the `count`th file mark backwards from here.
    pub async fn space_marks_back(&mut self, count: u64) -> TapeResult<Moved> {
        if count == 0 {
            return Ok(Moved::There);
        }
        match self.at.marks.checked_sub(count) {
            Some(mark) => {
                self.at = self.find_mark(mark).await?.0.place;
                Ok(Moved::There)
            }
            None => {
                let left = count - self.at.marks;
                self.rewind();
                Ok(Moved::Beginning(left))
            }
        }
    }

    /// The place before record `object`, which is there, or the end.
    pub(super) async fn find(&self, object: u64) -> TapeResult<Place> {
        if object == self.at.object {
            return Ok(self.at);
        }
        if object == self.end.object {
            return Ok(self.end);
        }
        if object == 0 {
            return Ok(Place::BEGINNING);
        }
        // Where the head is nearer, it is gone back from there.
        let from = if object < self.at.object { &self.at } else { &self.end };
        let (mut number, mut at) = (from.object - 1, from.previous);
        loop {
            let header = match self.header(at, |found| found.place.object == number).await {
                Ok((header, _)) => header,
                Err(why) => {
                    let (before, sum) = self.before(why, at, |it| it.object == number).await?;
                    if number == object {
                        return Ok(before.after(sum));
                    }
                    (number, at) = (number - 1, before.place.at);
                    continue;
                }
            };
            if number == object {
                return Ok(header.place);
            }
            let skip = skip_target(number);
            (number, at) = match skip >= object {
                true => (skip, header.skip),
                false => (number - 1, header.place.previous),
            };
        }
    }

    /// The header of file mark `mark`, which is there, and its checksum.
    pub(super) async fn find_mark(&self, mark: u64) -> TapeResult<(Header, u32)> {
        let from = if mark < self.at.marks { &self.at } else { &self.end };
        let (mut number, mut at) = (from.marks - 1, from.last_mark);
        loop {
            let is_mark = |found: &Header| found.kind == Kind::Mark && found.place.marks == number;
            let (header, sum) = match self.header(at, is_mark).await {
                Ok(found) => found,
                Err(why) if number == mark => return Err(why),
                Err(why) => {
                    let (before, sum) = self.before(why, at, |it| it.marks == number).await?;
                    (number, at) = (number - 1, before.after(sum).last_mark);
                    continue;
                }
            };
            if number == mark {
                return Ok((header, sum));
            }
            let skip = skip_target(number);
            (number, at) = match skip >= mark {
                true => (skip, header.mark_skip),
                false => (number - 1, header.place.last_mark),
            };
        }
    }
    /// The header of the record before the one at byte `at`, which is damaged as `why` says and whose place `is_expected`,
    /// and its checksum. What leads over the damaged one to those before it is lost: the one that ends there is looked for.
    async fn before(
        &self,
        why: TapeError,
        at: u64,
        is_expected: impl Fn(&Place) -> bool,
    ) -> TapeResult<(Header, u32)> {
        const PIECE: u64 = 64 << 10;
        if !matches!(why, TapeError::Damaged { .. }) || at >= self.end.at {
            return Err(why);
        }
        let first = at.saturating_sub(Header::size(BLOCK_MAX)).max(FIRST);
        let is_it = |(header, sum): &(Header, u32)| {
            let after = header.after(*sum);
            self.is_own(header, header.place.at)
                && self.holds(&after)
                && after.at == at
                && is_expected(&after)
        };
        let mut to = at;
        while to > first {
            let from = to.saturating_sub(PIECE).max(first);
            let units = self.read_of(from, to - from).await.unwrap_or_default();
            let mut starts = (from..to).step_by(UNIT as usize).zip(units.chunks(UNIT as usize));
            let found = starts.find_map(|(start, unit)| {
                Header::decode(unit).filter(|(header, _)| header.place.at == start).filter(is_it)
            });
            if let Some(found) = found {
                return Ok(found);
            }
            to = from;
        }
        Err(why)
    }
}

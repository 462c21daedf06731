//! Reading, one record after the other.

use bytes::Bytes;

use super::format::{self, Header, Kind};
use super::{Tape, TapeError, TapeResult};
use crate::Span;

/// What the head came upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A block; the head is behind it.
    Block(Bytes),
    /// A file mark; the head is behind it.
    Mark,
    /// Nothing was recorded from here on; the head has not moved.
    EndOfData,
}

impl Tape {
    /// Reads the next record, which the caller thinks has `likely` bytes of data. Of one that is damaged the head is
    /// behind it afterwards, if the record behind it can be found.
    pub async fn read(&mut self, likely: u32) -> TapeResult<Read> {
        if self.at.object >= self.end.object {
            return Ok(Read::EndOfData);
        }
        match self.next_record(likely).await {
            Ok((header, sum, data)) => {
                self.at = header.after(sum);
                Ok(match header.kind {
                    Kind::Block => Read::Block(data),
                    Kind::Mark => Read::Mark,
                })
            }
            Err(why @ TapeError::Damaged { .. }) => {
                if let Ok(behind) = self.find(self.at.object + 1).await {
                    self.at = behind;
                }
                Err(why)
            }
            Err(why) => Err(why),
        }
    }

    async fn next_record(&self, likely: u32) -> TapeResult<(Header, u32, Bytes)> {
        let place = &self.at;
        let most = self.end.at.min(self.capacity()).saturating_sub(place.at);
        let len = Header::size(likely.min(format::BLOCK_MAX)).min(most);
        let read = self.volume.read(Span::new(place.at, len)).await?;
        // That it is chained to the record before shows that neither is from another time.
        let is_next = |header: &Header| header.place == *place && self.is_own(header, place.at);
        let found = Header::decode(&read).filter(|(header, _)| is_next(header));
        let (header, sum) = found.ok_or(TapeError::Damaged { at: place.at })?;
        let data = self.data(&header, read).await?;
        Ok((header, sum, data))
    }
}

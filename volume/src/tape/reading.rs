//! Reading, one record after the other.

use bytes::Bytes;

use super::format::{self, Header, Kind, Place, UNIT};
use super::{Tape, TapeError, TapeResult};

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
        match self.record(&self.at, self.end.at, likely).await {
            Ok((header, sum, data)) if self.holds(&header.after(sum)) => {
                self.at = header.after(sum);
                Ok(match header.kind {
                    Kind::Block => Read::Block(data),
                    Kind::Mark => Read::Mark,
                })
            }
            Ok((header, ..)) => Err(TapeError::damaged(header.place.at)),
            Err(why @ TapeError::Damaged { .. }) => {
                if let Ok(behind) = self.find(self.at.object + 1).await {
                    self.at = behind;
                }
                Err(why)
            }
            Err(why) => Err(why),
        }
    }

    /// The record at `place`, which ends before byte `limit`, and its header's checksum.
    pub(super) async fn record(
        &self,
        place: &Place,
        limit: u64,
        likely: u32,
    ) -> TapeResult<(Header, u32, Bytes)> {
        let at = place.at;
        let most = limit.min(self.capacity()).saturating_sub(at);
        if most < UNIT {
            return Err(TapeError::damaged(at));
        }
        let len = Header::size(likely.min(format::BLOCK_MAX)).min(most);
        let read = match self.read_of(at, len).await {
            // What cannot be read may be of the records behind a shorter one.
            Err(TapeError::Damaged { .. }) if len > UNIT => self.read_of(at, UNIT).await?,
            read => read?,
        };
        // That it is chained to the record before shows that neither is from another time.
        let is_next = |header: &Header| header.place == *place && self.is_own(header, at);
        let found = Header::decode(&read).filter(|(header, _)| is_next(header));
        let (header, sum) = found.ok_or_else(|| TapeError::damaged(at))?;
        let data = self.data(&header, read).await?;
        Ok((header, sum, data))
    }
}

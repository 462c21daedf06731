//! FC_ACK_REPLY (spec, 8).

use core::ops::RangeInclusive;
use core::time::Duration;

use crate::hyperscsi::ecn::EcnCounts;
use crate::reader::Reader;

/// The most ranges in one acknowledgement.
pub(in crate::hyperscsi) const RANGES_MAX: usize = 64;

/// The body of FC_ACK_REPLY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hyperscsi) struct AckFrame {
    /// What was received, highest first, without touching neighbours.
    pub(in crate::hyperscsi) ranges: Vec<RangeInclusive<u64>>,
    pub(in crate::hyperscsi) delay: Duration,
    pub(in crate::hyperscsi) max_bytes: u64,
    pub(in crate::hyperscsi) max_slots: u16,
    /// If both ends have agreed on it.
    pub(in crate::hyperscsi) ecn: Option<EcnCounts>,
}

impl AckFrame {
    /// Its bytes. Ranges behind the 64th, and behind a gap or a length over 16 bits, are left out.
    pub(in crate::hyperscsi) fn emit(&self) -> Vec<u8> {
        let mut pairs = Vec::new();
        let mut below = None;
        let mut largest = 0;
        for range in self.ranges.iter().take(RANGES_MAX) {
            let len =
                (range.end() - range.start()).saturating_add(1).min(u64::from(u16::MAX)) as u16;
            match below {
                None => {
                    largest = *range.end();
                    pairs.extend_from_slice(&len.to_be_bytes());
                }
                Some(below) => {
                    let Ok(gap) = u16::try_from(below - range.end() - 1) else { break };
                    pairs.extend_from_slice(&gap.to_be_bytes());
                    pairs.extend_from_slice(&len.to_be_bytes());
                }
            }
            below = Some(*range.start());
            if range.end() - range.start() >= u64::from(u16::MAX) {
                break;
            }
        }
        let delay = u32::try_from(self.delay.as_micros()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(26 + pairs.len());
        bytes.extend_from_slice(&largest.to_be_bytes());
        bytes.extend_from_slice(&delay.to_be_bytes());
        bytes.extend_from_slice(&self.max_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.max_slots.to_be_bytes());
        bytes.extend_from_slice(&((pairs.len().saturating_sub(2) / 4) as u16).to_be_bytes());
        bytes.extend_from_slice(&pairs);
        if let Some(EcnCounts { ect0, ect1, ce }) = self.ecn {
            for count in [ect0, ect1, ce] {
                bytes.extend_from_slice(&count.to_be_bytes());
            }
        }
        bytes
    }

    /// The body with these bytes, if it is one; `has_ecn` says whether both ends have agreed on counts of ECN.
    pub(in crate::hyperscsi) fn parse(bytes: &[u8], has_ecn: bool) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let mut end = reader.u64().ok()?;
        let delay = Duration::from_micros(u64::from(reader.u32().ok()?));
        let max_bytes = reader.u64().ok()?;
        let max_slots = reader.u16().ok()?;
        let more = usize::from(reader.u16().ok()?);
        if more >= RANGES_MAX {
            return None;
        }
        let mut start = end.checked_sub(u64::from(reader.u16().ok()?.checked_sub(1)?))?;
        let mut ranges = vec![start..=end];
        for _ in 0..more {
            let gap = u64::from(reader.u16().ok()?.checked_sub(1)?);
            end = start.checked_sub(gap + 2)?;
            start = end.checked_sub(u64::from(reader.u16().ok()?.checked_sub(1)?))?;
            ranges.push(start..=end);
        }
        let mut ecn = None;
        if has_ecn {
            let (ect0, ect1) = (reader.u64().ok()?, reader.u64().ok()?);
            ecn = Some(EcnCounts { ect0, ect1, ce: reader.u64().ok()? });
        }
        reader.rest().is_empty().then_some(Self { ranges, delay, max_bytes, max_slots, ecn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_parsed_after_emitting_is_the_same() {
        for ecn in [None, Some(EcnCounts { ect0: 1 << 33, ect1: 2, ce: 3 })] {
            let frame = AckFrame {
                ranges: vec![90..=100, 50..=60, 3..=3, 0..=1],
                delay: Duration::from_micros(77),
                max_bytes: 1 << 40,
                max_slots: 64,
                ecn,
            };
            assert_eq!(AckFrame::parse(&frame.emit(), ecn.is_none()), None);
            assert_eq!(AckFrame::parse(&frame.emit(), ecn.is_some()), Some(frame));
        }
    }

    #[test]
    fn acknowledgement_below_zero_is_refused() {
        let (ranges, delay) = (vec![0..=5], Duration::ZERO);
        let frame = AckFrame { ranges, delay, max_bytes: 0, max_slots: 0, ecn: None };
        let mut bytes = frame.emit();
        *bytes.last_mut().unwrap() = 7;
        assert_eq!(AckFrame::parse(&bytes, false), None);
    }
}

//! Findings as text.

use std::fmt;
use std::time::Duration;

use super::{Direction, Findings, LimitedBy};
use crate::progress::rate;
use crate::size::Size;

/// What stands for the link's rate, which is not known.
const TAKEN: &str = ", which the models take for the link's";

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  round trip     {:.3} ms", self.round_trip_us as f64 / 1e3)?;
        writeln!(f, "  smallest read  {:.3} ms", self.smallest_read_us as f64 / 1e3)?;
        if let Some(cipher) = self.cipher {
            let each = per_second(cipher.rate);
            writeln!(f, "  cipher         {each} on each of {} processors", cipher.processors)?;
        }
        if let Some(most) = self.unsolicited {
            writeln!(f, "  target         takes {} of a write with its command", Size(most))?;
        }
        direction(f, "reads", "read ahead", &self.reads)?;
        self.writes.as_ref().map_or(Ok(()), |writes| direction(f, "writes", "accepted", writes))
    }
}

fn direction(f: &mut fmt::Formatter<'_>, name: &str, held: &str, found: &Direction) -> fmt::Result {
    writeln!(f)?;
    writeln!(f, "{name:<8}      one after the other         through the pipeline")?;
    let (model, measured) = ("model", "measured");
    writeln!(f, "   block  {model:>12}  {measured:>13}  {model:>12}  {measured:>13}")?;
    for row in &found.rows {
        write!(f, "{:>8}", Size(row.block).to_string())?;
        for pair in [row.alone, row.pipelined] {
            let (model, measured) = (per_second(pair.predicted), per_second(pair.measured));
            write!(f, "  {model:>12}  {measured:>13}")?;
        }
        writeln!(f)?;
    }
    let Direction { best, link, segment, in_flight, window, .. } = *found;
    let [segment, in_flight, window] = [segment, in_flight, window].map(about);
    writeln!(f, "  chosen: requests of {segment}, {in_flight} in flight, {window} {held}")?;
    if let Some(processors) = found.ciphering {
        let them = if processors == 1 { "processor keeps" } else { "processors keep" };
        writeln!(f, "  cipher: {processors} {them} up with it")?;
    }
    writeln!(f, "  best rate: {}{}", per_second(best), if link.is_none() { TAKEN } else { "" })?;
    if let Some(link) = link {
        let bits = link * 8.0 / 1e6;
        writeln!(f, "  link: {}, {bits:.1} Mbit/s of data; it was full", per_second(link))?;
    }
    writeln!(f, "  limited by {}", found.limited_by)
}

fn per_second(bytes: f64) -> String {
    rate(bytes as u64, Duration::from_secs(1))
}

fn about(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

impl fmt::Display for LimitedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Link => "the link",
            Self::LinkOrStore => "the link, or the store behind it",
            Self::Window => "the target's TCP window",
            Self::Cipher => "the cipher",
            Self::RoundTrips => "round trips: no more may be in flight (--window, --in-flight)",
            Self::Target => "the target, which asks for the data of such writes",
            Self::Demand => "the program, which asks for no more",
            Self::Unknown => "nothing that was found in this time: the rate still grew",
        })
    }
}

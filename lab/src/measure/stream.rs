//! What needs no volume: one TCP stream, in clear or enciphered at its ends, and a file by scp.

use std::io::Write as _;
use std::process::Command;
use std::time::Instant;

use super::{Costs, Wanted, from_peer};
use crate::results::Mode;
use crate::{Failure, calibrate, running};

/// One fresh stream to the far end of whatever tunnel there is, in blocks, and tells. LAB_CIPHER names what
/// the programs encipher each block with.
pub(super) fn measure(wanted: Wanted, costs: &Costs) -> Result<(), Failure> {
    let server = std::env::var("LAB_SERVER").or_else(|_| from_peer("LAB_FAR_ADDRESS"))?;
    let cipher = std::env::var("LAB_CIPHER").unwrap_or_else(|_| "none".to_owned());
    let mut far = Command::new("ip");
    far.args(["netns", "exec", &from_peer("LAB_FAR")?]).arg(std::env::current_exe()?);
    let near = Command::new(std::env::current_exe()?);
    let running = costs.begin()?;
    let options = ["--block", &wanted.block.to_string(), "--cipher", &cipher];
    let taken = calibrate::stream(near, far, &server, wanted.bytes, &options)?;
    running.tell(Mode::Stream, wanted, wanted.bytes, taken.as_secs_f64())
}

/// A file of noise by scp, as the words of LAB_SCP say it, and tells.
pub(super) fn scp(wanted: Wanted, costs: &Costs) -> Result<(), Failure> {
    let (words, to) = (from_peer("LAB_SCP")?, from_peer("LAB_SCP_TO")?);
    let mut noise = std::fs::File::open("/dev/urandom")?;
    let mut file = tempfile::NamedTempFile::new()?;
    std::io::copy(&mut std::io::Read::take(&mut noise, wanted.bytes), &mut file)?;
    file.flush()?;
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().ok_or("LAB_SCP names no program")?);
    let running = costs.begin()?;
    let start = Instant::now();
    running::output(command.args(words).arg(file.path()).arg(to))?;
    running.tell(Mode::Copy, wanted, wanted.bytes, start.elapsed().as_secs_f64())
}

//! A file system on the volume, by Linux itself: a virtual machine has the volume as its disk, since the
//! kernel here may have no means of its own to have one.

use std::process::Command;
use std::time::Instant;

use super::{Costs, Running, Wanted, from_peer};
use crate::results::Mode;
use crate::{Failure, running};

/// Runs the guest, and tells each thing that it does.
pub(super) fn measure(wanted: Wanted, costs: &Costs) -> Result<(), Failure> {
    let image = from_peer("LAB_IMAGE")?;
    let mut command = Command::new("scripts/guest");
    command.args(["lab/guest/filesystem", &wanted.bytes.to_string()]);
    command.env("GUEST_OPTIONS", disk(&image)?);
    let mut begun = None;
    let mut outcome = Ok(());
    let mut told = 0;
    let ended = running::lines(&mut command, |line| match guest_line(line) {
        Some(GuestLine::Begin) if outcome.is_ok() => match costs.begin() {
            Ok(running) => begun = Some((running, Instant::now())),
            Err(why) => outcome = Err(why),
        },
        Some(GuestLine::Done(mode)) => {
            if let Some((running, start)) = begun.take() {
                told += 1;
                outcome = done(&running, mode, wanted, start);
            }
        }
        _ => eprintln!("lab: guest: {}", line.trim_end()),
    });
    outcome?;
    ended?;
    if told == 0 { Err("the guest did nothing".into()) } else { Ok(()) }
}

fn done(running: &Running<'_>, mode: Mode, wanted: Wanted, start: Instant) -> Result<(), Failure> {
    let seconds = start.elapsed().as_secs_f64();
    let bytes = if mode == Mode::Copy { wanted.bytes } else { 0 };
    running.tell(mode, wanted, bytes, seconds)
}

/// QEMU's options for the volume as a disk, from the words by which its tools name it.
fn disk(image: &str) -> Result<String, Failure> {
    let file = image.strip_prefix("-f raw ").ok_or("the volume is not named by one word")?;
    Ok(format!("-drive file={file},format=raw,if=virtio,cache=none,discard=unmap"))
}

/// What the guest says in a line of its console.
enum GuestLine {
    Begin,
    Done(Mode),
}

fn guest_line(line: &str) -> Option<GuestLine> {
    let (verb, mode) = line.trim().strip_prefix("lab: ")?.split_once(' ')?;
    match (verb, Mode::parse(mode)?) {
        ("begin", _) => Some(GuestLine::Begin),
        ("done", mode) => Some(GuestLine::Done(mode)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_lines_are_found_among_console_output() {
        assert!(matches!(guest_line("lab: begin mkfs\r"), Some(GuestLine::Begin)));
        assert!(matches!(
            guest_line("lab: done mkfs-lazy\r"),
            Some(GuestLine::Done(Mode::MkfsLazy))
        ));
        for other in ["lab: done everything", "done mkfs", "mke2fs 1.47.0"] {
            assert!(guest_line(other).is_none(), "{other}");
        }
    }

    #[test]
    fn the_volume_becomes_a_disk() {
        let options = disk("-f raw nbd+unix:///?socket=/tmp/s").unwrap();
        assert!(
            options.starts_with("-drive file=nbd+unix:///?socket=/tmp/s,format=raw"),
            "{options}"
        );
        assert!(disk("--image-opts driver=nbd").is_err());
    }
}

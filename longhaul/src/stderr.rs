//! Standard error, for what must not wait: a pipe that nobody reads any more, or a terminal that was stopped, must not stop
//! what goes on. A line for which there is no room is left out, and counted.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use crate::printable::Json;

/// How long who still reads may take to make room. It is waited for once: after that nobody is, until there is room.
const PATIENCE: Duration = Duration::from_millis(100);

/// A pipe that can be written to has room for so much (PIPE_BUF).
const PIECE: usize = 4096;

/// What has become of the last lines, whoever wrote them.
static LINES: Mutex<Lines> = Mutex::new(Lines { left_out: 0, is_cut: false });

/// Lines are JSON objects, since the log is made of them.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on lines are JSON objects, or not.
pub(crate) fn use_json(is_json: bool) {
    IS_JSON.store(is_json, Ordering::Relaxed);
}

/// Whether lines are JSON objects.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// A line as the log has them that is made of JSON objects.
pub(crate) fn json_line(level: &str, message: &str) -> String {
    let mut timestamp = String::new();
    // A clock that cannot be read is no reason to be silent.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let fields = serde_json::json!({ "message": message });
    let line = serde_json::json!({
        "timestamp": timestamp, "level": level, "fields": fields, "target": "longhaul",
    });
    Json(line).to_string()
}

/// How it is said that lines were left out.
fn left_out(lines: u64) -> String {
    let message = format!("{lines} log lines were left out: standard error was not read");
    match is_json() {
        true => json_line("WARN", &message) + "\n",
        false => format!("longhaul: {message}\n"),
    }
}

#[derive(Debug)]
struct Lines {
    /// How many lines have been left out since one was written.
    left_out: u64,
    /// The end of the last one is missing.
    is_cut: bool,
}

/// Standard error. Each write is of whole lines.
#[derive(Debug)]
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut state = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        state.write(&io::stderr(), lines, left_out)?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Writes `lines`, and before them how many were left out, as `told` says it.
    fn write(
        &mut self,
        to: &(impl AsFd + ?Sized),
        lines: &[u8],
        told: impl Fn(u64) -> String,
    ) -> io::Result<()> {
        let patience = if self.left_out == 0 { PATIENCE } else { Duration::ZERO };
        let mut text = Vec::new();
        if self.left_out > 0 {
            text.extend_from_slice(told(self.left_out).as_bytes());
        }
        text.extend_from_slice(lines);
        if self.is_cut {
            text.insert(0, b'\n');
        }
        let mut rest = &text[..];
        while !rest.is_empty() {
            if !has_room(to.as_fd(), patience)? {
                self.left_out += 1;
                self.is_cut |= rest.len() < text.len();
                return Ok(());
            }
            let written = rustix::io::write(to, &rest[..rest.len().min(PIECE)]);
            match written {
                Ok(written) => rest = &rest[written..],
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(why) => return Err(why.into()),
            }
        }
        *self = Self { left_out: 0, is_cut: false };
        Ok(())
    }
}

/// Whether something can be written without waiting, now or soon.
fn has_room(to: BorrowedFd<'_>, patience: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
    let mut polled = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(why) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn told(lines: u64) -> String {
        format!("{lines} lines were left out\n")
    }

    #[test]
    fn unread_lines_are_left_out_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut lines = Lines { left_out: 0, is_cut: false };
        let line = [&[b'x'; 999][..], b"\n"].concat();
        let mut written = 0;
        while lines.left_out == 0 {
            lines.write(&writer, &line, told).unwrap();
            written += 1;
        }
        written -= 1;
        for _ in 0..9 {
            lines.write(&writer, &line, told).unwrap();
        }
        assert_eq!(lines.left_out, 10);
        let mut read = vec![0; written * line.len()];
        reader.read_exact(&mut read).unwrap();
        assert!(read.chunks(line.len()).all(|read| read == line), "what was written is whole");
        lines.write(&writer, b"on\n", told).unwrap();
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "10 lines were left out\non\n");
    }

    #[test]
    fn line_that_was_cut_off_ends_where_the_next_begins() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut lines = Lines { left_out: 0, is_cut: false };
        let long = [&[b'x'; 1 << 20][..], b"\n"].concat();
        lines.write(&writer, &long, told).unwrap();
        assert!(lines.is_cut && lines.left_out == 1);
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        while lines.left_out > 0 {
            lines.write(&writer, b"on\n", told).unwrap();
            std::thread::yield_now();
        }
        drop(writer);
        let text = read.join().unwrap();
        let (cut, rest) = text.split_once('\n').unwrap();
        assert!(cut.bytes().all(|byte| byte == b'x') && cut.len() < 1 << 20);
        assert!(rest.ends_with(" lines were left out\non\n"), "{rest}");
    }

    #[test]
    fn reader_that_has_gone_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut lines = Lines { left_out: 0, is_cut: false };
        lines.write(&writer, b"on\n", told).unwrap_err();
    }
}

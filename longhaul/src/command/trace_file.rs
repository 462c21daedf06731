//! The file of a trace.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use crate::failure::{OrFail as _, Outcome, print_error};
use crate::printable::Shown as _;
use crate::trace::Trace;

/// A trace, and the new file that it is written to at the end.
pub(super) struct TraceFile {
    path: PathBuf,
    file: File,
    pub(super) trace: Arc<Trace>,
}

impl TraceFile {
    /// Makes the file, and begins.
    pub(super) fn create(path: PathBuf) -> Outcome<Self> {
        let file = File::create_new(&path);
        let file = file.or_fail(|| format!("cannot write the trace {}", path.shown()))?;
        Ok(Self { path, file, trace: Trace::begin() })
    }

    /// Whether it is to be a picture.
    pub(super) fn is_picture(&self) -> bool {
        self.path.extension().is_some_and(|end| end == "svg")
    }

    /// Writes it: a picture of these parts, or what Perfetto opens.
    pub(super) fn write(self, title: &str, parts: &[(&str, u64)]) -> Outcome {
        let (is_picture, path) = (self.is_picture(), self.path);
        let mut file = BufWriter::new(self.file);
        let written = match is_picture {
            true => file.write_all(self.trace.picture(title, parts).as_bytes()),
            false => self.trace.write_chrome(&mut file),
        };
        written
            .and_then(|()| file.flush())
            .or_fail(|| format!("cannot write the trace {}", path.shown()))?;
        let (count, dropped) = self.trace.count();
        let first = if dropped > 0 {
            format!("the first {count}, {dropped} more came")
        } else {
            count.to_string()
        };
        print_error(&format_args!("longhaul: the trace {} has {first} requests", path.shown()));
        Ok(())
    }
}

//! The command line.

use std::process::ExitCode;

/// Runs the program and says how it ended.
pub fn main() -> ExitCode {
    ExitCode::from(2)
}

//! Whether the process was started with a standard output.
//!
//! Rust's runtime opens /dev/null in the place of a standard descriptor that is closed, before `main` begins. What is written
//! there goes nowhere, and seems to be written. So it is looked at before that.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    // SAFETY: F_GETFD takes any number, and fails with EBADF where there is no descriptor.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// The C library calls what stands in this section before `main`.
// SAFETY: The section holds pointers to functions of this type (gABI, "Initialization and Termination Functions"), and this
// one needs nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether standard output was closed when the process was started: what is printed reaches nobody.
#[must_use]
pub fn was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

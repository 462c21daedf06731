//! The program: everything it does is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use host::allocator::Recycler;

#[global_allocator]
static ALLOCATOR: Recycler = Recycler::new();

fn main() -> ExitCode {
    longhaul::cli::main()
}

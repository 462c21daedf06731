//! A journal as a local disk may give it back: see the invariants.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| volume::layer::journal::invariants::any_file(input));

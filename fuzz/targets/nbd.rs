//! An NBD connection: see the invariants.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| proto::nbd::invariants::machine(input));

//! An NBD connection: see the law.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| longhaul::front::nbd::law::machine(input));

//! A LUKS2 header as a store may have written it: see the invariants.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| longhaul::luks::invariants::any_header(input));

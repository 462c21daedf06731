//! A session of the target under any script: see the invariants.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| proto::iscsi::target::invariants::any_script(input));

//! The initiator's machine against a hostile target.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| proto::iscsi::initiator::invariants::holds(input));

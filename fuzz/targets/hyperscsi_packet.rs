//! Packets of HyperSCSI: see `proto::hyperscsi::invariants`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| proto::hyperscsi::invariants::packet(input));

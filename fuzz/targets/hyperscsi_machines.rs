//! Both ends of a HyperSCSI connection and what is done to their packets: see `proto::hyperscsi::invariants`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| proto::hyperscsi::invariants::machines(
    longhaul::ciphers::AES_FIRST,
    script
));

//! Sealed PDUs and what is done to them on the way: see `proto::iscsi::sealed::invariants`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| proto::iscsi::sealed::invariants::holds(
    longhaul::ciphers::new_aes_256_gcm,
    script
));

//! Headers of encrypted files, and files whose blocks are changed: see `proto::tape_encryption::invariants`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::tape_encryption::invariants;

fuzz_target!(|input: &[u8]| {
    invariants::any_header(input);
    invariants::holds(longhaul::ciphers::new_aes_256_gcm, input);
});

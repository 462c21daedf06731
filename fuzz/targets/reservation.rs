//! Reservations under any commands, and any bytes in place of those that were kept: see the invariants.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::scsi::reservation::invariants;

fuzz_target!(|input: &[u8]| {
    let Some((&kind, bytes)) = input.split_first() else { return };
    if kind % 2 == 0 { invariants::any_script(bytes) } else { invariants::any_image(bytes) }
});

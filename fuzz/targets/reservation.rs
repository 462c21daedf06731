//! Reservations under any commands, and any bytes in place of those that were kept: see the laws.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::scsi::reservation::law;

fuzz_target!(|input: &[u8]| {
    let Some((&kind, bytes)) = input.split_first() else { return };
    if kind % 2 == 0 { law::any_script(bytes) } else { law::any_image(bytes) }
});

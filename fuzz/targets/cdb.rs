//! Command blocks, parameter lists and answers of any bytes: see `proto::scsi::invariants`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::scsi::invariants;

fuzz_target!(|input: &[u8]| {
    let Some((&[kind, bits], bytes)) = input.split_first_chunk() else { return };
    match kind % 4 {
        0 => {
            let mut block = [0; 16];
            let len = bytes.len().min(block.len());
            block[..len].copy_from_slice(&bytes[..len]);
            invariants::any_block(&block, bits);
        }
        1 => invariants::any_parameters(bytes),
        2 => invariants::any_work(bytes),
        _ => invariants::any_answer(bytes),
    }
});

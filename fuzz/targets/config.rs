//! Configuration files of any text: read or refused, and what is wrong with one is found in a line that it has.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use longhaul::config::{Config, distinct};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = str::from_utf8(input) else { return };
    let (config, wrong) = Config::parse(text, Path::new("/nowhere/longhaul.toml"));
    // What is missing at the end is missing in the line that would follow.
    let lines = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
    for mistake in &wrong {
        assert!((1..=lines).contains(&mistake.line), "{mistake:?} in {lines} lines");
        assert!(!mistake.why.is_empty());
    }
    if wrong.is_empty() {
        distinct(&config.volumes).expect("a file that is right names each volume once");
    }
});

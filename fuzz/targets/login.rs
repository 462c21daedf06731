//! Both sides of a login against hostile text, and the text itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::iscsi::invitation::Invitation;
use proto::iscsi::{initiator, text};

fuzz_target!(|input: &[u8]| {
    initiator::invariants::login_holds(input);
    if let Some(read) =
        std::str::from_utf8(input).ok().and_then(|line| line.parse::<Invitation>().ok())
    {
        read.to_text().expect("what was read can be written");
    }
    let Ok(pairs) = text::parse(input) else { return };
    let mut again = Vec::new();
    pairs.iter().for_each(|pair| text::push(&mut again, pair.key, pair.value));
    assert_eq!(text::parse(&again).expect("what we emit is well formed"), pairs);
    for pair in &pairs {
        let _ = (text::number(pair.value), text::range(pair.value));
        assert!(text::binary(pair.value).is_none_or(|bytes| bytes.len() <= text::BINARY_MAX));
    }
});

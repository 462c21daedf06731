//! Frames of a stream: decoding ends in a frame, a typed error or a wish for more, whatever the
//! bytes; where the stream was cut makes no difference; and what was decoded emits to what decodes to
//! the same.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use proto::iscsi::pdu::{Decoder, Frame, Outbox};

fn decoder(flags: u8) -> Decoder {
    let mut decoder = Decoder::new();
    decoder.set_digests(flags & 1 != 0, flags & 2 != 0);
    decoder
}

/// All frames up to the first error.
fn frames(decoder: &mut Decoder, buffer: &mut BytesMut) -> Vec<Frame> {
    std::iter::from_fn(|| decoder.decode(buffer).ok().flatten()).collect()
}

fuzz_target!(|input: &[u8]| {
    let Some((&flags, stream)) = input.split_first() else { return };
    let mut whole = BytesMut::from(stream);
    let at_once = frames(&mut decoder(flags), &mut whole);

    let mut piecemeal = decoder(flags);
    let (mut buffer, mut cut) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(1 + usize::from(flags >> 2)) {
        buffer.extend_from_slice(piece);
        cut.extend(frames(&mut piecemeal, &mut buffer));
        assert!(piecemeal.wanted() <= 48 + 1020 + 4 + (1 << 24) + 4);
    }
    assert_eq!(at_once, cut);

    for frame in at_once {
        let Frame::Pdu(pdu) = frame else { continue };
        let mut outbox = Outbox::new();
        outbox.push_pdu(pdu.clone());
        let mut slices = [std::io::IoSlice::new(&[]); 8];
        let count = outbox.slices(&mut slices);
        let mut emitted: BytesMut =
            slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        let again = Decoder::new().decode(&mut emitted).expect("what we emit is well formed");
        assert_eq!(again, Some(Frame::Pdu(pdu)));
        assert!(emitted.is_empty());
    }
});

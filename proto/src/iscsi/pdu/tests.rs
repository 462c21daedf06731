use bytes::BytesMut;
use proptest::prelude::*;
use std::io::IoSlice;

use super::*;
use crate::iscsi::header::{DataIn, NopOut, ScsiCommand};
use crate::iscsi::sealed::invariants::both_ends;
use crate::iscsi::sealed::soft::new_aes_256_gcm;
use crate::iscsi::sealed::{Limits, OpenError, Protection};

/// Takes what can be sent now.
fn ready(outbox: &mut Outbox) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let mut slices = [IoSlice::new(&[]); 3];
        let filled = outbox.slices(&mut slices);
        let chunk: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
        if chunk.is_empty() {
            return bytes;
        }
        outbox.advance(chunk.len());
        bytes.extend(chunk);
    }
}

/// Takes all there is to send.
fn sent(outbox: &mut Outbox) -> Vec<u8> {
    let bytes = ready(outbox);
    assert!(outbox.is_empty());
    bytes
}

fn received(decoder: &mut Decoder, bytes: &[u8], step: usize) -> Result<Vec<Frame>, FrameError> {
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for chunk in bytes.chunks(step) {
        buffer.extend_from_slice(chunk);
        while let Some(frame) = decoder.decode(&mut buffer)? {
            frames.push(frame);
        }
        assert!(decoder.wanted() > 0);
    }
    assert!(buffer.is_empty());
    Ok(frames)
}

fn pdus() -> Vec<Pdu> {
    let data = |len: usize| Bytes::from((0..len).map(|i| i as u8).collect::<Vec<_>>());
    let command = ScsiCommand { itt: 1, read: true, ..ScsiCommand::default() };
    vec![
        Pdu::bare(NopOut { itt: 5, ttt: u32::MAX, ..NopOut::default() }),
        Pdu { header: command.into(), ahs: data(8), data: data(3) },
        Pdu::with_data(DataIn { itt: 1, is_final: true, ..DataIn::default() }, data(4097)),
        Pdu::with_data(DataIn { itt: 2, ..DataIn::default() }, data(512)),
    ]
}

fn both(header_digest: bool, data_digest: bool) -> (Outbox, Decoder) {
    let (mut outbox, mut decoder) = (Outbox::new(), Decoder::new());
    outbox.set_digests(header_digest, data_digest);
    decoder.set_digests(header_digest, data_digest);
    (outbox, decoder)
}

/// Two ends whose keys change all the time.
fn sealed(protection: Protection) -> (Outbox, Decoder) {
    let limits = Limits { pdus: 3, ..Limits::SPEC };
    let (sealer, opener) = both_ends(protection, limits, new_aes_256_gcm);
    let (mut outbox, mut decoder) = (Outbox::new(), Decoder::new());
    outbox.set_sealer(sealer);
    decoder.set_opener(opener);
    (outbox, decoder)
}

const PROTECTIONS: [Protection; 2] = [Protection::Integrity, Protection::Encrypt];

/// A queue of large PDUs with small ones between them.
fn queue(outbox: &mut Outbox, large: usize) {
    for itt in 0..large as u32 {
        outbox.push_data(DataIn { itt, ..DataIn::default() }, vec![itt as u8; 20_000].into());
        outbox.push_data(NopOut { itt, ..NopOut::default() }, vec![itt as u8; 300].into());
    }
}

/// Whoever seals them, and in whichever order, the same bytes go out in the same order.
#[test]
fn bodies_sealed_elsewhere_in_any_order_go_out_in_theirs() {
    for protection in PROTECTIONS {
        let (mut alone, _) = sealed(protection);
        queue(&mut alone, 12);
        let expected = sent(&mut alone);
        for order in 0..6 {
            let (mut outbox, mut decoder) = sealed(protection);
            queue(&mut outbox, 12);
            let mut jobs: Vec<_> = std::iter::from_fn(|| outbox.job(40_000)).collect();
            assert_eq!(jobs.len(), 5, "two bodies each, and two for the caller");
            jobs.rotate_left(order % 5);
            if order == 5 {
                jobs.reverse();
            }
            assert_eq!(outbox.len(), expected.len());
            let mut bytes = Vec::new();
            for job in jobs {
                bytes.extend(ready(&mut outbox));
                outbox.put_back(job.run());
            }
            bytes.extend(sent(&mut outbox));
            assert!(bytes == expected, "{protection:?}, order {order}");
            decoder.set_data_max(20_000);
            assert_eq!(received(&mut decoder, &bytes, 10_000).unwrap().len(), 24);
        }
    }
}

/// Nothing overtakes a body that is away.
#[test]
fn output_waits_for_what_is_sealed_elsewhere() {
    let (mut outbox, _) = sealed(Protection::Encrypt);
    queue(&mut outbox, 4);
    let job = outbox.job(20_000).unwrap();
    let before = ready(&mut outbox).len();
    assert!((20_000..2 * 20_000).contains(&before), "the first body, and not the second: {before}");
    assert!(!outbox.is_empty() && ready(&mut outbox).is_empty());
    outbox.put_back(job.run());
    assert!(ready(&mut outbox).len() > 3 * 20_000);
    assert!(outbox.is_empty());
}

#[test]
fn only_what_is_worth_it_is_sealed_elsewhere() {
    let (mut outbox, _) = sealed(Protection::Encrypt);
    queue(&mut outbox, 3);
    assert!(outbox.job(40_000).is_none(), "less than two shares");
    assert!(outbox.job(30_000).is_some());
    assert!(outbox.job(30_000).is_none(), "the rest is the caller's");
    let (mut plain, _) = both(false, false);
    queue(&mut plain, 3);
    assert!(plain.job(1).is_none());
}

/// Takes at most `most` bytes of what can be sent now, and gives all that could be.
fn take(outbox: &mut Outbox, most: usize, wire: &mut Vec<u8>) -> usize {
    let mut slices = [IoSlice::new(&[]); 3];
    let filled = outbox.slices(&mut slices);
    let there = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>();
    let taken = there.len().min(most);
    wire.extend_from_slice(&there[..taken]);
    outbox.advance(taken);
    there.len()
}

/// Whatever the system takes of it at a time, and whether it was sealed at once elsewhere.
#[test]
fn a_large_body_is_sealed_piece_by_piece() {
    const LEN: usize = 70_000;
    let queued = || {
        let (mut outbox, decoder) = sealed(Protection::Encrypt);
        for itt in 0..2 {
            let body = vec![itt as u8; LEN];
            outbox.push_data(DataIn { itt, ..DataIn::default() }, body.into());
        }
        (outbox, decoder)
    };
    let (mut outbox, mut decoder) = queued();
    let job = outbox.job(LEN).unwrap();
    let mut expected = ready(&mut outbox);
    outbox.put_back(job.run());
    expected.extend(sent(&mut outbox));
    for most in [9000, 60_000, usize::MAX] {
        let (mut outbox, _) = queued();
        let mut wire = Vec::new();
        while !outbox.is_empty() {
            let len = outbox.len();
            let there = take(&mut outbox, most, &mut wire);
            assert!((1..64 << 10).contains(&there), "{there} bytes ahead");
            assert_eq!(outbox.len(), len - there.min(most));
        }
        assert!(wire == expected, "{most} at a time");
    }
    decoder.set_data_max(LEN);
    let frames = received(&mut decoder, &expected, 10_000).unwrap();
    let data = |frame: &Frame| match frame {
        Frame::Pdu(pdu) => pdu.data.clone(),
        other => panic!("{other:?}"),
    };
    assert!(frames.iter().map(data).eq([Bytes::from(vec![0; LEN]), vec![1; LEN].into()]));
}

/// What was deciphered before the tag came is not given to anybody.
#[test]
fn a_large_body_that_was_changed_does_not_open() {
    const LEN: usize = 40_000;
    for at in [0, 20_000, LEN - 1, LEN, LEN + 15] {
        let (mut outbox, mut decoder) = sealed(Protection::Encrypt);
        outbox.push_data(DataIn::default(), vec![3; LEN].into());
        let mut wire = sent(&mut outbox);
        wire[64 + at] ^= 1;
        decoder.set_data_max(LEN);
        let error = received(&mut decoder, &wire, 17_000);
        assert_eq!(error, Err(FrameError::Seal(OpenError::Body(0))), "byte {at}");
        let again = received(&mut decoder, &wire, 17_000);
        assert_eq!(again, Err(FrameError::Seal(OpenError::Broken)));
    }
}

/// A connection that ends may have bodies away; what comes of them is not mistaken for anything else.
#[test]
fn forgotten_body_is_not_put_back() {
    let (mut outbox, mut decoder) = sealed(Protection::Encrypt);
    queue(&mut outbox, 4);
    let job = outbox.job(20_000).unwrap();
    outbox.clear();
    assert!(outbox.is_empty());
    queue(&mut outbox, 4);
    let len = outbox.len();
    outbox.put_back(job.run());
    assert_eq!(outbox.len(), len);
    let bytes = sent(&mut outbox);
    assert_eq!(bytes.len(), len);
    // Numbers have been used up that were never sent, so that the peer refuses what comes next.
    assert_eq!(received(&mut decoder, &bytes, 10_000), Err(FrameError::Seal(OpenError::First)));
}

/// Data in one piece and in several, with and without additional headers, large and small.
#[test]
fn sealed_data_may_come_in_pieces() {
    for protection in PROTECTIONS {
        let (mut outbox, mut decoder) = sealed(protection);
        let whole: Bytes = (0..9000).map(|i| i as u8).collect::<Vec<_>>().into();
        let mut pieces = Pieces::from(vec![whole.slice(..700), whole.slice(700..)]);
        let header = DataIn { itt: 3, ..DataIn::default() };
        outbox.push_from(header, &mut pieces, 600);
        outbox.push_from(header, &mut pieces, 4000);
        outbox.push_from(header, &mut pieces, 9000);
        let frames = received(&mut decoder, &sent(&mut outbox), 1000).unwrap();
        let data: Vec<_> = frames
            .iter()
            .map(|frame| match frame {
                Frame::Pdu(pdu) => pdu.data.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(data.iter().map(Bytes::len).collect::<Vec<_>>(), [600, 4000, 4400]);
        assert_eq!(data.concat(), whole);
    }
}

/// A header that does not open says nothing of lengths, and nothing after it is looked at.
#[test]
fn a_broken_seal_ends_the_stream() {
    let (mut outbox, mut decoder) = sealed(Protection::Encrypt);
    pdus().into_iter().for_each(|pdu| outbox.push_pdu(pdu));
    let mut wire = BytesMut::from(&sent(&mut outbox)[..]);
    wire[3] ^= 1;
    let first = decoder.decode(&mut wire);
    assert_eq!(first, Err(FrameError::Seal(OpenError::First)));
    assert_eq!(decoder.decode(&mut wire), Err(FrameError::Seal(OpenError::Broken)));
}

/// What was agreed at login holds for sealed PDUs as well.
#[test]
fn sealed_lengths_are_limited() {
    let (mut outbox, mut decoder) = sealed(Protection::Encrypt);
    decoder.set_data_max(4096);
    pdus().into_iter().for_each(|pdu| outbox.push_pdu(pdu));
    let error = received(&mut decoder, &sent(&mut outbox), 100_000);
    assert_eq!(error, Err(FrameError::DataTooLong { len: 4097, max: 4096 }));
}

proptest! {
    #[test]
    fn sealed_pdus_are_received(protection in prop::sample::select(&PROTECTIONS), step in 1usize..9000) {
        let (mut outbox, mut decoder) = sealed(protection);
        pdus().into_iter().for_each(|pdu| outbox.push_pdu(pdu));
        let frames = received(&mut decoder, &sent(&mut outbox), step).unwrap();
        let expected: Vec<_> = pdus().into_iter().map(Frame::Pdu).collect();
        prop_assert_eq!(frames, expected);
    }

    #[test]
    fn sent_pdus_are_received(header: bool, data: bool, step in 1usize..9000) {
        let (mut outbox, mut decoder) = both(header, data);
        pdus().into_iter().for_each(|pdu| outbox.push_pdu(pdu));
        let frames = received(&mut decoder, &sent(&mut outbox), step).unwrap();
        let expected: Vec<_> = pdus().into_iter().map(Frame::Pdu).collect();
        prop_assert_eq!(frames, expected);
    }

    #[test]
    fn data_in_pieces_are_sent_as_one(cuts in proptest::collection::vec(0usize..3000, 0..6)) {
        let mut pieces = Pieces::new();
        for &len in &cuts {
            pieces.push(Bytes::from(vec![len as u8; len]));
        }
        let whole = pieces.clone().into_vec().concat();
        let (mut outbox, mut decoder) = both(true, true);
        decoder.set_data_max(1 << 20);
        outbox.push_from(DataIn::default(), &mut pieces, whole.len());
        prop_assert!(pieces.is_empty());
        let frames = received(&mut decoder, &sent(&mut outbox), 1 << 20).unwrap();
        prop_assert_eq!(frames, [Frame::Pdu(Pdu::with_data(DataIn::default(), whole.into()))]);
    }

    #[test]
    fn a_flipped_bit_is_found(byte in 0usize..112, bit in 0u8..8) {
        let (mut outbox, mut decoder) = both(true, true);
        outbox.push_data(DataIn::default(), Bytes::from_static(&[7; 53]));
        let mut bytes = sent(&mut outbox);
        prop_assert_eq!(bytes.len(), 48 + 4 + 56 + 4);
        bytes[byte] ^= 1 << bit;
        let mut buffer = BytesMut::from(&bytes[..]);
        let flawed = match decoder.decode(&mut buffer) {
            Ok(frame) => byte >= 52 && matches!(frame, Some(Frame::Flawed { flaw: Flaw::DataDigest, .. })),
            // A flipped length shows as a wrong digest, or as a limit before the digest is there.
            Err(FrameError::HeaderDigest) => byte < 52,
            Err(_) => byte == 5 || byte == 6,
        };
        // A flipped AHS length makes the header reach beyond what came: it waits, for at most 1,020 bytes.
        prop_assert!(flawed || (byte == 4 && decoder.wanted() <= AHS_MAX + 4));
    }
}

#[test]
fn data_beyond_the_declared_length_end_the_connection() {
    let (mut outbox, mut decoder) = both(false, false);
    decoder.set_data_max(512);
    outbox.push_data(DataIn::default(), Bytes::from(vec![0; 513]));
    let error = received(&mut decoder, &sent(&mut outbox), 48).unwrap_err();
    assert_eq!(error, FrameError::DataTooLong { len: 513, max: 512 });
}

#[test]
fn an_unknown_opcode_leaves_the_stream_intact() {
    let (mut outbox, mut decoder) = both(false, false);
    outbox.push_data(NopOut::default(), Bytes::from_static(b"ping"));
    outbox.push(NopOut::default());
    let mut bytes = sent(&mut outbox);
    bytes[0] = 0x1d;
    let frames = received(&mut decoder, &bytes, 7).unwrap();
    assert!(matches!(frames[0], Frame::Flawed { flaw: Flaw::Opcode(0x1d), .. }));
    assert_eq!(frames[1], Frame::Pdu(Pdu::bare(NopOut::default())));
}

#[test]
fn wanted_says_what_completes_the_frame() {
    let (mut outbox, mut decoder) = both(true, true);
    outbox.push_data(DataIn::default(), Bytes::from(vec![9; 5000]));
    let bytes = sent(&mut outbox);
    let mut buffer = BytesMut::from(&bytes[..60]);
    assert_eq!(decoder.decode(&mut buffer), Ok(None));
    assert_eq!(decoder.wanted(), bytes.len() - 60);
}

#[test]
fn output_buffer_does_not_grow_while_output_never_runs_dry() {
    let mut outbox = Outbox::new();
    outbox.push(NopOut::default());
    for _ in 0..100_000 {
        outbox.push(NopOut::default());
        outbox.advance(BHS_LEN);
    }
    assert_eq!(outbox.len(), BHS_LEN);
    assert_eq!(sent(&mut outbox).len(), BHS_LEN);
}

//! Requests as the kernel lays them out, and the sizes of its structures.

use super::*;

/// A request with this body.
fn request(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(40 + body.len() as u32).to_ne_bytes());
    bytes.extend_from_slice(&opcode.to_ne_bytes());
    bytes.extend_from_slice(&unique.to_ne_bytes());
    bytes.extend_from_slice(&ROOT.to_ne_bytes());
    bytes.extend_from_slice(&[9; 16]);
    bytes.extend_from_slice(body);
    bytes
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Two fields of 32 bits.
fn pair(low: u32, high: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&low.to_ne_bytes());
    bytes[4..].copy_from_slice(&high.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn operation(bytes: &[u8]) -> Operation<'_> {
    Request::parse(bytes).unwrap().operation
}

#[test]
fn requests_are_read_as_the_kernel_writes_them() {
    let mut write = words(&[7, 4096, pair(3, 1), 99, pair(0o10002, 0)]);
    write.extend_from_slice(b"abc");
    let write = request(opcode::WRITE, 4, &write);
    assert_eq!(operation(&write), Operation::Write { offset: 4096, data: b"abc", flags: 0o10002 });
    let read = request(opcode::READ, 6, &words(&[7, 512, pair(1024, 0), 0, pair(0o40000, 0)]));
    assert_eq!(operation(&read), Operation::Read { offset: 512, size: 1024 });
    let allocate = request(opcode::FALLOCATE, 8, &words(&[7, 1, 2, pair(3, 0)]));
    assert_eq!(operation(&allocate), Operation::Allocate { offset: 1, length: 2, mode: 3 });
    let resized =
        request(opcode::SETATTR, 2, &words(&[pair(8, 0), 7, 4096, 0, 0, 0, 0, 0, 0, 0, 0]));
    let wanted = SetAttributes { size: Some(4096), changes_rights: false };
    assert_eq!(operation(&resized), Operation::SetAttributes(wanted));
    assert_eq!(operation(&request(36, 2, &words(&[1]))), Operation::Unknown { opcode: 36 });
}

#[test]
fn request_that_is_sent_again_has_the_number_that_it_had() {
    let header = |unique| Request::parse(&request(opcode::FSYNC, unique, &[0; 16])).unwrap().header;
    let (first, again) = (header(10), header(10 | 1 << 63));
    assert!(!first.is_resent() && again.is_resent());
    assert_eq!(first.number(), again.number());
    // The kernel looks for it by all of its bits.
    assert_eq!(Reply::failure(&again, 5)[8..], (10_u64 | 1 << 63).to_ne_bytes());
}

#[test]
fn request_that_is_cut_or_lies_about_its_length_is_refused() {
    let whole = request(opcode::READ, 6, &words(&[7, 512, pair(1024, 0), 0, 0]));
    for len in 0..whole.len() {
        Request::parse(&whole[..len]).unwrap_err();
    }
    let short = request(opcode::READ, 6, &words(&[7, 512]));
    assert!(matches!(Request::parse(&short), Err(BadRequest::Truncated(_))));
    let write = request(opcode::WRITE, 4, &words(&[7, 4096, pair(3, 0), 0, 0]));
    assert_eq!(Request::parse(&write), Err(BadRequest::Data { len: 0, size: 3 }));
}

#[test]
fn capability_that_the_kernel_lacks_is_not_asked_of_it() {
    let server = InitReply {
        capabilities: Capabilities::ASYNC_DIO.with(Capabilities::MAX_PAGES),
        background_max: 512,
        write_max: 1 << 20,
    };
    let init = |flags: u32| {
        let body = words(&[pair(7, 31), pair(4096, flags)]);
        let bytes = request(opcode::INIT, 2, &body);
        let Operation::Init(init) = operation(&bytes) else { panic!("it is another") };
        assert!(init.is_known());
        init.reply(&server).bytes().to_vec()
    };
    let flags = |reply: &[u8]| u32::from_ne_bytes(reply[12..16].try_into().unwrap());
    assert_eq!(flags(&init(1 | 1 << 15)), 1 << 15);
    let reply = init(!(1 << 30));
    assert_eq!((flags(&reply), reply.len()), (1 << 15 | 1 << 22, 64));
    assert_eq!(reply[28..30], 256_u16.to_ne_bytes());
    let old = Init { version: (7, 22), readahead_max: 0, capabilities: Capabilities::default() };
    assert!(!old.is_known());
}

#[test]
fn answers_have_the_sizes_of_the_structures() {
    let file = Attributes { size: 1 << 20, block_size: 4096, mode: 0o600, uid: 1, gid: 2 };
    let reply = Reply::attributes(&file, 5);
    assert_eq!(reply.bytes().len(), 104);
    assert_eq!(reply.bytes()[24..32], (1_u64 << 20).to_ne_bytes());
    assert_eq!(reply.bytes()[76..80], 0o100_600_u32.to_ne_bytes());
    let statistics = Statistics { block_size: 4096, blocks: 9 };
    assert_eq!(Reply::statistics(&statistics).bytes().len(), 80);
    assert_eq!(Reply::opened(7, FOPEN_DIRECT_IO).bytes().len(), 16);
    assert_eq!(Reply::written(7).bytes(), words(&[pair(7, 0)]));
    assert_eq!(Notice::Resend.bytes(), words(&[pair(16, 7), 0]));
    let changed = words(&[pair(40, 2), 0, ROOT, u64::MAX, 0]);
    assert_eq!(Notice::AttributesChanged.bytes(), changed);
}

use proptest::prelude::*;

use super::*;

/// Every opcode in the tables.
const OPCODES: [u8; 18] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31,
    0x32, 0x3f,
];

/// The bits a PDU's table defines: those that change what is emitted when they change.
fn defined(opcode: u8) -> [u8; BHS_LEN] {
    let emit = |mut bhs: [u8; BHS_LEN]| {
        bhs[0] = bhs[0] & !OPCODE_MASK | opcode;
        Header::parse(&bhs).unwrap().emit(Lengths::parse(&bhs))
    };
    let (zeros, ones) = (emit([0; BHS_LEN]), emit([0xff; BHS_LEN]));
    std::array::from_fn(|i| zeros[i] ^ ones[i])
}

#[test]
fn the_tables_define_the_bits_of_the_standard() {
    // Bytes 8 to 47 that are reserved in the pictures of RFC 7143, 11.3 to 11.19, and bits of bytes
    // 0 to 3. Each row: opcode, bits of bytes 0..4, reserved byte ranges.
    type Row = (u8, [u8; 4], &'static [(usize, usize)]);
    let rows: [Row; 18] = [
        (0x00, [0x40, 0, 0, 0], &[(32, 48)]),
        (0x01, [0x40, 0xe7, 0, 0], &[]),
        (0x02, [0x40, 0x7f, 0, 0], &[(40, 48)]),
        (0x03, [0, 0xcf, 0xff, 0xff], &[(22, 24), (32, 48)]),
        (0x04, [0x40, 0xc0, 0, 0], &[(32, 48)]),
        (0x05, [0, 0x80, 0, 0], &[(24, 28), (32, 36), (44, 48)]),
        (0x06, [0x40, 0x7f, 0, 0], &[(8, 16), (22, 24), (32, 48)]),
        (0x10, [0, 0x0f, 0, 0], &[(24, 28), (32, 40)]),
        (0x20, [0, 0, 0, 0], &[(36, 48)]),
        (0x21, [0, 0x1e, 0xff, 0xff], &[(8, 16)]),
        (0x22, [0, 0, 0xff, 0], &[(8, 16), (20, 24), (36, 48)]),
        (0x23, [0, 0xcf, 0xff, 0xff], &[(20, 24), (38, 48)]),
        (0x24, [0, 0xc0, 0, 0], &[(36, 48)]),
        (0x25, [0, 0xc7, 0, 0xff], &[]),
        (0x26, [0, 0, 0xff, 0], &[(8, 16), (20, 24), (36, 40), (44, 48)]),
        (0x31, [0, 0, 0, 0], &[]),
        (0x32, [0, 0, 0, 0], &[(16, 24), (44, 48)]),
        (0x3f, [0, 0, 0xff, 0], &[(8, 24), (40, 48)]),
    ];
    for (opcode, first, reserved) in rows {
        let mut expected = [0xff; BHS_LEN];
        expected[..4].copy_from_slice(&first);
        reserved.iter().for_each(|&(from, to)| expected[from..to].fill(0));
        assert_eq!(defined(opcode), expected, "opcode {opcode:#04x}");
    }
}

proptest! {
    #[test]
    fn emit_after_parse_keeps_what_is_defined(
        opcode in proptest::sample::select(&OPCODES),
        tail in proptest::array::uniform32(any::<u8>()),
        head in proptest::array::uniform16(any::<u8>()),
    ) {
        let mut bhs = [0; BHS_LEN];
        bhs[..16].copy_from_slice(&head);
        bhs[16..].copy_from_slice(&tail);
        bhs[0] = bhs[0] & 0xc0 | opcode;
        let header = Header::parse(&bhs).unwrap();
        let emitted = header.emit(Lengths::parse(&bhs));
        let mask = defined(opcode);
        for i in 1..BHS_LEN {
            prop_assert_eq!(emitted[i] & mask[i], bhs[i] & mask[i], "byte {}", i);
        }
        prop_assert_eq!(Header::parse(&emitted), Ok(header));
        prop_assert_eq!(Lengths::parse(&emitted), Lengths::parse(&bhs));
    }
}

#[test]
fn other_opcodes_are_refused() {
    let known = |opcode: &u8| !OPCODES.contains(opcode);
    for opcode in (0..64).filter(known) {
        let mut bhs = [0; BHS_LEN];
        bhs[0] = opcode;
        assert_eq!(Header::parse(&bhs), Err(UnknownOpcode(opcode)));
    }
}

#[test]
fn a_scsi_command_lies_as_in_the_picture() {
    let command = ScsiCommand {
        is_final: true,
        read: true,
        attribute: TaskAttribute::SIMPLE,
        lun: 0x0001_0000_0000_0000,
        itt: 0x1122_3344,
        expected_len: 512,
        cmd_sn: 7,
        exp_stat_sn: 8,
        cdb: [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        ..ScsiCommand::default()
    };
    let mut expected = [0; BHS_LEN];
    expected[..2].copy_from_slice(&[0x01, 0xc1]);
    expected[5..8].copy_from_slice(&[0, 2, 0]);
    expected[9] = 1;
    expected[16..20].copy_from_slice(&[0x11, 0x22, 0x33, 0x44]);
    expected[22] = 2;
    expected[27] = 7;
    expected[31] = 8;
    expected[32] = 0x28;
    expected[40] = 1;
    assert_eq!(command.emit(Lengths { ahs: 0, data: 512 }), expected);
}

//! The packets of one connection: pinned, and decoded by Wireshark, which knows the first 5 bytes from version 1.

use std::fmt::Write as _;
use std::process::Command as Process;

use sha2::{Digest as _, Sha256};

use super::net::*;
use proto::hyperscsi::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// A connection with a write of two fragments and its end; everything random is fixed.
fn connection(ciphers: Ciphers) -> Net {
    let with = |config| Config { ciphers, ..config };
    let (client, server) = (with(config(CLIENT, SITE)), with(config(SERVER, SITE)));
    let mut net = Net::with(42, CALM, client, server);
    net.connect();
    let id = net.submit(write(DEVICE, 1, vec![0x5a; 4 * BLOCK]));
    net.reply(id);
    let id = net.submit(increment());
    net.reply(id);
    net.client.disconnect(net.now);
    net.pass(core::time::Duration::from_millis(1));
    net
}

/// One line per packet: whether it goes to the server, its header, its length, and the hash of all of it.
fn lines(net: &Net) -> String {
    net.wiretap.iter().fold(String::new(), |mut text, (to, bytes)| {
        let to = if *to == endpoint(SERVER_PORT) { "C" } else { "S" };
        let (header, hash) = (hex(&bytes[..24]), hex(&Sha256::digest(bytes)));
        writeln!(text, "{to} {header} {} {hash}", bytes.len()).unwrap();
        text
    })
}

/// A change here is a change of the protocol.
#[test]
fn packets_of_a_connection_are_those_of_the_specification() {
    for (ciphers, expected) in [
        (AES, include_str!("golden.txt")),
        (CHACHA_FIRST, include_str!("golden-chacha20-poly1305.txt")),
    ] {
        let lines = lines(&connection(ciphers));
        assert_eq!(lines, expected, "they are now:\n{lines}");
    }
}

/// A capture of Ethernet frames (pcap, link type 1).
fn capture(net: &Net) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 65535, 1] {
        // Version 2.4 is two halves of a word.
        let word = if word == 0x0002_0004 { 0x0004_0002 } else { word };
        file.extend_from_slice(&word.to_le_bytes());
    }
    for (_, bytes) in &net.wiretap {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x9a];
        frame.extend_from_slice(bytes);
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&frame);
    }
    file
}

#[test]
fn wireshark_reads_the_first_five_bytes() {
    let net = connection(AES);
    let fields = ["cmd", "version", "tagno", "lastfrag", "fragno"];
    let text = decoded(&net, &[], &fields.map(|name| format!("hyperscsi.{name}")));
    let expected = net.wiretap.iter().fold(String::new(), |mut text, (_, bytes)| {
        let first = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        let (slot, last, fragment) = (first >> 11 & 0x1ff, first >> 10 & 1, first & 0x3ff);
        writeln!(text, "{},2,{slot},{last},{fragment}", bytes[4] & 0x7f).unwrap();
        text
    });
    assert_eq!(text, expected);
}

/// These fields of each packet, as tshark tells them.
fn decoded(net: &Net, options: &[&str], fields: &[String]) -> String {
    let number = fields.len();
    let path = std::env::temp_dir();
    let path = path.join(format!("hyperscsi-{}-{number}.pcap", std::process::id()));
    std::fs::write(&path, capture(net)).unwrap();
    let decoded = Process::new("tshark")
        .args(options)
        .args(["-r".as_ref(), path.as_os_str()])
        .args(["-T", "fields", "-E", "separator=,"])
        .args(fields.iter().flat_map(|name| ["-e", name]))
        .output();
    std::fs::remove_file(&path).unwrap();
    let decoded = decoded.expect("tshark is there (scripts/setup installs it)");
    let errors = String::from_utf8_lossy(&decoded.stderr);
    assert!(decoded.status.success(), "{errors}");
    String::from_utf8(decoded.stdout).unwrap()
}

/// Ours tells of a message where it is not encrypted.
#[test]
fn dissector_shows_fragments_of_levels_below_encryption() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/wireshark/hyperscsi2.lua");
    for level in [Level::None, Level::Integrity, Level::Encrypt] {
        let client = Config { least: level, ..config(CLIENT, SITE) };
        let mut net = Net::with(43, CALM, client, config(SERVER, SITE));
        let name = "disk".into();
        net.devices = vec![Device { handle: DEVICE, name, level, read_only: false }];
        net.connect();
        let id = net.submit(write(DEVICE, 1, vec![0x5a; 4 * BLOCK]));
        net.reply(id);
        let fields = ["level", "opcode", "sequence", "offset", "message_length", "tag"];
        let fields = fields.map(|name| format!("hyperscsi2.{name}"));
        let text = decoded(&net, &["-X", &format!("lua_script:{script}")], &fields);
        let expected = net.wiretap.iter().fold(String::new(), |mut text, (_, bytes)| {
            let (sec, opcode) = (bytes[0] >> 6, bytes[4] & 0x7f);
            write!(text, "{sec},0x{opcode:02x},").unwrap();
            let is_shown = sec < 2 && opcode < 2;
            for at in [24, 28, 32].into_iter().filter(|_| is_shown) {
                let value = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
                write!(text, "{value},").unwrap();
            }
            let tag = hex(&bytes[bytes.len() - 16..]);
            writeln!(text, "{}{tag}", if is_shown { "" } else { ",,," }).unwrap();
            text
        });
        assert_eq!(text, expected, "{level:?}");
        assert_eq!(text.contains("\n0,"), level == Level::None);
    }
}

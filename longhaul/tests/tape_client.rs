//! `longhaul tape write`, `read` and `status` of the drive of a server: what was written comes back, once, also when the
//! server is killed or connections are cut meanwhile.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;
#[path = "common/port.rs"]
mod port;
#[path = "common/units.rs"]
mod units;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use common::{LONGHAUL, PATIENCE, Running, run};
use peer::Peer;
use port::Port;
use proto::iscsi::header::{Header, TaskFunction, TaskManagementRequest, TaskResponse};
use units::{TARGET, done, longhaul, refused, serve_at};

fn serve(home: &Path, volume: &str) -> (Running, String) {
    let (server, portal) = serve_at(home, "127.0.0.1:0", &[volume]);
    let name = volume.split('=').next().unwrap();
    (server, format!("iscsi://{portal}/{TARGET}{name}"))
}

/// So many bytes, each place another.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// A client that writes what it is given to the tape.
struct Writer {
    child: Child,
    input: Option<ChildStdin>,
}

impl Writer {
    fn start(home: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(LONGHAUL);
        command.args(["tape", "write"]).args(words).current_dir(home);
        command.env("STATE_DIRECTORY", home.join(".state"));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(File::create(home.join("writer.log")).unwrap());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        Self { child, input }
    }

    fn give(&mut self, data: &[u8]) {
        self.input.as_mut().unwrap().write_all(data).unwrap();
    }

    /// What it says of its failure; it may not take all of this.
    fn fails(mut self, home: &Path, data: &[u8]) -> String {
        let _ = self.input.take().unwrap().write_all(data);
        assert!(!self.child.wait().unwrap().success());
        fs::read_to_string(home.join("writer.log")).unwrap()
    }

    fn end(mut self, home: &Path) {
        self.input = None;
        let status = self.child.wait().unwrap();
        let said = fs::read_to_string(home.join("writer.log")).unwrap();
        assert!(status.success(), "{said}");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn files_are_written_found_and_read_back() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let (server, uri) = serve(home.path(), "backup=tape:a.tape,size=16M");
    let files = [bytes(700_001), bytes(10_240), bytes(333_333)];
    for (file, name) in files.iter().zip(["a", "b", "c"]) {
        fs::write(path(name), file).unwrap();
    }
    let empty = refused(home.path(), &["tape", "read", &uri, "out"]);
    assert!(empty.contains("nothing is recorded there"), "{empty}");
    let said = done(home.path(), &["tape", "write", &uri, "a"]);
    assert!(said.starts_with("file 0 of the tape: 700001 bytes"), "{said}");
    let said = done(home.path(), &["tape", "write", &uri, "b", "--append", "--fixed", "512"]);
    assert!(said.starts_with("file 1 of the tape: 10K bytes"), "{said}");
    done(home.path(), &["tape", "write", &uri, "c", "--append", "--block", "64K"]);
    for (number, file) in files.iter().enumerate() {
        done(home.path(), &["tape", "read", &uri, "out", "--file", &number.to_string()]);
        assert!(fs::read(path("out")).unwrap() == *file, "file {number}");
    }
    done(home.path(), &["tape", "read", &uri, "out", "--file", "1", "--fixed", "512"]);
    assert!(fs::read(path("out")).unwrap() == files[1]);
    // The head is behind the mark of what was read.
    done(home.path(), &["tape", "read", &uri, "out", "--here"]);
    assert!(fs::read(path("out")).unwrap() == files[2]);
    fs::write(path("nothing"), "").unwrap();
    let said = refused(home.path(), &["tape", "write", &uri, "nothing"]);
    assert!(said.contains("there is nothing to write"), "{said}");
    done(home.path(), &["tape", "read", &uri, "out", "--file", "0"]);
    assert!(fs::read(path("out")).unwrap() == files[0], "the tape was not changed");
    // What is there is all that somebody may have.
    let there = refused(home.path(), &["tape", "read", &uri, "a"]);
    assert!(there.contains("it exists already") && fs::read(path("a")).unwrap() == files[0]);
    let beyond = refused(home.path(), &["tape", "read", &uri, "out", "--file", "9"]);
    assert_eq!(beyond.matches(&*uri).count(), 1, "{beyond}");
    let nowhere = refused(home.path(), &["tape", "read", &uri, "no/such/out"]);
    assert!(nowhere.contains("`mkdir -p no/such` makes it"), "{nowhere}");
    let loaded = refused(home.path(), &["tape", "info", "a.tape"]);
    assert!(loaded.contains("`longhaul tape status URI` shows it"), "{loaded}");
    for words in [["tape", "status", "a.tape"], ["tape", "status", "tape:a.tape"]] {
        let path = refused(home.path(), &words);
        assert!(path.contains("`longhaul tape info a.tape`"), "{path}");
        assert!(path.contains("NAME=tape:a.tape` has it in"), "{path}");
    }
    assert!(!path("out").exists(), "nothing was read");
    assert!(beyond.contains("has no such file") && beyond.contains("3 file marks"), "{beyond}");
    let other = refused(home.path(), &["tape", "read", &uri, "out", "--fixed", "600"]);
    assert!(other.contains("another length"), "{other}");
    // Standard input, standard output, and blocks that do not fill their length.
    let script = format!(
        "cat a | {LONGHAUL} tape write {uri} --rewind && {LONGHAUL} tape read {uri} - | cmp - a"
    );
    let (said, status) = run(Command::new("sh").args(["-c", &script]).current_dir(home.path()));
    assert!(status.success(), "{said}");
    let json = done(home.path(), &["tape", "status", &uri, "--json"]);
    assert!(json.contains("\"type\":\"tape drive\"") && json.contains("\"file\":1"), "{json}");
    server.kill();
    let (said, status) = run(Command::new(LONGHAUL)
        .args(["tape", "export", "a.tape", "--dir", "tape"])
        .current_dir(home.path()));
    assert!(status.success(), "{said}");
    assert!(fs::read(path("tape/0000")).unwrap() == files[0] && !path("tape/0001").exists());
}

/// Waits until a tape holds so many bytes. It does not before its first block is known to be there.
fn wait_for(tape: &Path, bytes: u64) {
    use std::os::unix::fs::MetadataExt as _;
    let began = Instant::now();
    while fs::metadata(tape).unwrap().blocks() * 512 < bytes {
        assert!(began.elapsed() < PATIENCE, "nothing is written to {}", tape.display());
        thread::yield_now();
    }
}

/// The same of these bytes, near its beginning.
fn wait_until_holds(tape: &Path, bytes: &[u8]) {
    let (began, mut head) = (Instant::now(), vec![0; 256 << 10]);
    loop {
        File::open(tape).unwrap().read_exact(&mut head).unwrap();
        if head.windows(bytes.len()).any(|window| window == bytes) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "nothing is written to {}", tape.display());
    }
}

#[test]
fn server_that_is_killed_in_mid_stream_costs_nothing() {
    let home = tempfile::tempdir().unwrap();
    let port = Port::reserve();
    let listen = format!("127.0.0.1:{}", port.number);
    let volumes = ["backup=tape:a.tape,size=64M"];
    let (mut server, portal) = serve_at(home.path(), &listen, &volumes);
    let uri = format!("iscsi://{portal}/{TARGET}backup");
    let data = bytes(24 << 20);
    // What was there before does not come back.
    let old: Vec<u8> = data[..20 << 20].iter().map(|byte| !byte).collect();
    fs::write(home.path().join("old"), old).unwrap();
    done(home.path(), &["tape", "write", &uri, "old"]);
    let tape = home.path().join("a.tape");
    let mut writer = Writer::start(home.path(), &[&uri, "--block", "30000", "--sync", "1M"]);
    for (number, piece) in data.chunks(8 << 20).enumerate() {
        let (first, rest) = piece.split_at(5 << 20);
        writer.give(first);
        if number == 0 {
            wait_until_holds(&tape, &data[40_000..40_100]);
        }
        server.kill();
        server = serve_at(home.path(), &listen, &volumes).0;
        writer.give(rest);
    }
    writer.end(home.path());
    // The same of what is read.
    let mut reader = Command::new(LONGHAUL);
    reader.args(["tape", "read", &uri]).env("STATE_DIRECTORY", home.path().join(".state"));
    let mut reader = reader.stdout(Stdio::piped()).spawn().unwrap();
    let (mut out, mut read) = (reader.stdout.take().unwrap(), vec![0; data.len()]);
    for piece in read.chunks_mut(8 << 20) {
        out.read_exact(piece).unwrap();
        server.kill();
        server = serve_at(home.path(), &listen, &volumes).0;
    }
    assert_eq!(out.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert!(reader.wait().unwrap().success());
    assert!(read == data);
    assert!(server.stop().success());
    let said = done(home.path(), &["tape", "info", "a.tape"]);
    assert!(said.contains("839 blocks, 1 file marks"), "{said}");
}

/// Passes connections on to a server, and cuts each after so many bytes of the client; the last is not cut.
fn cutting(server: SocketAddr, cuts: Vec<usize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for limit in cuts.into_iter().chain(std::iter::repeat(usize::MAX)) {
            let Ok((client, _)) = listener.accept() else { return };
            let Ok(target) = TcpStream::connect(server) else { return };
            let back = (target.try_clone().unwrap(), client.try_clone().unwrap());
            let up = thread::spawn(move || pass(client, target, limit));
            let down = thread::spawn(move || pass(back.0, back.1, usize::MAX));
            let _ = (up.join(), down.join());
        }
    });
    address
}

/// Passes bytes on until one side ends, or so many have passed.
fn pass(mut from: TcpStream, mut to: TcpStream, mut left: usize) {
    let mut buffer = vec![0; 16 << 10];
    while left > 0 {
        let room = buffer.len().min(left);
        match from.read(&mut buffer[..room]) {
            Ok(read @ 1..) if to.write_all(&buffer[..read]).is_ok() => left -= read,
            _ => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Yesterday's tape begins like today's. The drive tells nobody that it was put in.
#[test]
fn tape_that_is_put_in_during_an_outage_is_not_written_to() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let port = Port::reserve();
    let listen = format!("127.0.0.1:{}", port.number);
    let volumes = ["backup=tape:a.tape,size=64M"];
    let (server, portal) = serve_at(home.path(), &listen, &volumes);
    let uri = format!("iscsi://{portal}/{TARGET}backup");
    let data = bytes(9 << 20);
    fs::write(path("in"), &data[..3_000_000]).unwrap();
    done(home.path(), &["tape", "write", &uri, "in"]);
    assert!(server.stop().success());
    fs::rename(path("a.tape"), path("yesterday.tape")).unwrap();
    let (server, _) = serve_at(home.path(), &listen, &volumes);
    let mut writer = Writer::start(home.path(), &[&uri]);
    writer.give(&data[..6 << 20]);
    wait_for(&path("a.tape"), 1 << 20);
    server.kill();
    fs::rename(path("a.tape"), path("today.tape")).unwrap();
    fs::copy(path("yesterday.tape"), path("a.tape")).unwrap();
    let (server, _) = serve_at(home.path(), &listen, &volumes);
    let said = writer.fails(home.path(), &data[6 << 20..]);
    assert!(said.contains("another tape may be in the drive"), "{said}");
    assert!(said.contains("none on this one"), "{said}");
    done(home.path(), &["tape", "read", &uri, "out"]);
    assert!(fs::read(path("out")).unwrap() == data[..3_000_000]);
    assert!(server.stop().success());
}

/// The connection is cut while the first block is on its way: nobody knows whether it is there, nor what tape is.
#[test]
fn nothing_is_written_after_an_outage_before_the_tape_is_known() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve_at(home.path(), "127.0.0.1:0", &["backup=tape:a.tape,size=32M"]);
    let direct = format!("iscsi://{portal}/{TARGET}backup");
    let old = bytes(3_000_000);
    fs::write(home.path().join("old"), &old).unwrap();
    done(home.path(), &["tape", "write", &direct, "old"]);
    let relay = cutting(portal, vec![100_000]);
    let uri = format!("iscsi://{relay}/{TARGET}backup");
    let said = refused(home.path(), &["tape", "write", &uri, "old", "--block", "200000"]);
    assert!(said.contains("nothing proves that the same tape is in the drive"), "{said}");
    assert!(said.contains("from block 0 on"), "{said}");
    done(home.path(), &["tape", "read", &direct, "out"]);
    assert!(fs::read(home.path().join("out")).unwrap() == old);
    assert!(server.stop().success());
}

/// SAM-5, 7.7: each ends all that is under way, and the writer is told of a reset.
#[test]
fn resets_by_another_initiator_cost_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve_at(home.path(), "127.0.0.1:0", &["backup=tape:a.tape,size=64M"]);
    let uri = format!("iscsi://{portal}/{TARGET}backup");
    let data = bytes(40 << 20);
    let mut writer = Writer::start(home.path(), &[&uri, "--sync", "1M"]);
    let name = "iqn.2001-04.com.example:other";
    let functions = [TaskFunction::LOGICAL_UNIT_RESET, TaskFunction::TARGET_WARM_RESET];
    for (number, piece) in data.chunks(1 << 20).enumerate() {
        writer.give(piece);
        if number == 4 {
            wait_for(&home.path().join("a.tape"), 1 << 20);
        }
        if number >= 4 && number % 9 < 2 {
            let mut other = Peer::log_in(portal, name, 1, &format!("{TARGET}backup"));
            reset(&mut other, functions[number % 2]);
            other.log_out();
        }
    }
    writer.end(home.path());
    done(home.path(), &["tape", "read", &uri, "out"]);
    assert!(fs::read(home.path().join("out")).unwrap() == data);
    assert!(server.stop().success());
    let said = done(home.path(), &["tape", "info", "a.tape"]);
    assert!(said.contains("4096 blocks, 1 file marks"), "{said}");
}

fn reset(peer: &mut Peer, function: TaskFunction) {
    let cmd_sn = peer.cmd_sn;
    let request = TaskManagementRequest {
        immediate: true,
        function,
        itt: 7,
        referenced_tag: u32::MAX,
        cmd_sn,
        ..TaskManagementRequest::default()
    };
    peer.send(request, Bytes::new());
    match peer.receive().expect("an answer").header {
        Header::TaskManagementResponse(answer) => {
            assert_eq!(answer.response, TaskResponse::COMPLETE);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn outage_that_lasts_too_long_is_told_with_what_is_on_the_tape() {
    let home = tempfile::tempdir().unwrap();
    let (server, uri) = serve(home.path(), "backup=tape:a.tape,size=64M");
    let limit = ["--sync", "1M", "--reconnect-for", "1s"];
    let mut writer = Writer::start(home.path(), &[&[&*uri][..], &limit].concat());
    writer.give(&bytes(8 << 20));
    server.kill();
    writer.input = None;
    assert_eq!(writer.child.wait().unwrap().code(), Some(1));
    let said = fs::read_to_string(home.path().join("writer.log")).unwrap();
    assert!(said.contains("the connection was lost"), "{said}");
    assert!(said.contains(" bytes are on the medium, up to block "), "{said}");
}

#[test]
fn connection_that_is_cut_costs_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve_at(home.path(), "127.0.0.1:0", &["backup=tape:a.tape,size=32M"]);
    let cuts = vec![400_000, 2_500_000, 1_000, 1_700_000, 60_000, 900_000];
    let relay = cutting(portal, cuts.clone());
    let uri = format!("iscsi://{relay}/{TARGET}backup");
    let data = bytes(7_777_777);
    fs::write(home.path().join("in"), &data).unwrap();
    let said = done(home.path(), &["tape", "write", &uri, "in", "--sync", "500K"]);
    assert!(said.contains("going on where the tape is"), "{said}");
    let relay = cutting(portal, vec![6_000, 9_000, 12_000]);
    let uri = format!("iscsi://{relay}/{TARGET}backup");
    done(home.path(), &["tape", "read", &uri, "out"]);
    assert!(fs::read(home.path().join("out")).unwrap() == data);
    assert!(server.stop().success());
    let said = done(home.path(), &["tape", "info", "a.tape"]);
    assert!(said.contains("760 blocks, 1 file marks"), "{said}");
}

/// A pass-phrase that costs little, and files to be written.
fn encrypting(home: &Path) -> [Vec<u8>; 3] {
    fs::write(home.join("pass"), "correct horse battery staple\n").unwrap();
    fs::write(home.join("wrong"), "incorrect horse\n").unwrap();
    fs::write(home.join("key"), bytes(64)).unwrap();
    let files = [bytes(700_001), vec![], bytes(51_100)];
    for (file, name) in files.iter().zip(["a", "b", "c"]) {
        fs::write(home.join(name), file).unwrap();
    }
    files
}

const CHEAP: [&str; 4] = ["--pbkdf-memory", "32K", "--pbkdf-iterations", "4"];
const PASS: [&str; 2] = ["--passphrase-file", "pass"];
const KEY: [&str; 2] = ["--key-file", "key"];

#[test]
fn encrypted_files_come_back_with_their_pass_phrase_alone() {
    let home = tempfile::tempdir().unwrap();
    let (home, path) = (home.path(), |name: &str| home.path().join(name));
    let files = encrypting(home);
    let (server, uri) = serve(home, "backup=tape:a.tape,size=16M");
    let write = |words: &[&str]| {
        done(home, &[&["tape", "write", &uri], words, &CHEAP].concat());
    };
    write(&[&["a"], &PASS[..]].concat());
    write(&[&["b", "--append"], &PASS[..]].concat());
    write(&[&["c", "--append", "--fixed", "512"], &KEY[..]].concat());
    done(home, &["tape", "write", &uri, "c", "--append"]);
    let read = |number: &str, words: &[&str]| {
        let words = [&["tape", "read", &uri, "out", "--file", number], words].concat();
        let (said, done) = longhaul(home, &words);
        (said, done, fs::read(path("out")).unwrap_or_default())
    };
    for (number, how) in [("0", &PASS[..]), ("1", &PASS), ("2", &KEY)] {
        let (said, done, out) = read(number, how);
        assert!(done, "{said}");
        assert!(out == files[number.parse::<usize>().unwrap()], "file {number}");
    }
    let (said, done, out) = read("2", &[&KEY[..], &["--fixed", "512"]].concat());
    assert!(done && out == files[2], "{said}");
    // Another pass-phrase, and a pass-phrase for what is not encrypted.
    let (said, done, out) = read("0", &["--passphrase-file", "wrong"]);
    assert!(!done && out.is_empty() && said.contains("the pass-phrase is wrong"), "{said}");
    for words in [&PASS[..], &["--encrypted"]] {
        let (said, done, out) = read("3", words);
        assert!(!done && out.is_empty() && said.contains("is not encrypted"), "{said}");
    }
    assert!(read("3", &[]).2 == files[2]);
    // What the drive has: blocks of the length that was asked for, and nothing of the text.
    let (said, done, stored) = read("0", &["--raw"]);
    assert!(done && stored.starts_with(b"LHTCRY\r\n"), "{said}");
    assert!(!stored.windows(16).any(|part| part == &files[0][1000..1016]));
    assert_eq!(stored.len(), 10_240 + files[0].len() + 20 * files[0].len().div_ceil(10_220));
    let (_, _, stored) = read("2", &["--raw"]);
    assert_eq!(stored.len(), 512 * (1 + files[2].len().div_ceil(492)));
    for (words, why) in [
        (&["a", "--pbkdf-memory", "64K"][..], "--encrypt asks for one"),
        (&["a", "--no-mark", "--key-file", "key"], "--no-mark is for others"),
        (&["a", "--block", "255", "--key-file", "key"], "256 bytes to 8M"),
        (
            &["a", "--key-file", "key", "--pbkdf-memory", "32K", "--pbkdf-iterations", "1000001"],
            "at most 1000000",
        ),
    ] {
        let said = refused(home, &[&["tape", "write", &uri], words].concat());
        assert!(said.contains(why), "{said}");
    }
    assert!(server.stop().success());
    without_a_drive(home, &files);
}

/// Files are encrypted and decrypted without a drive too.
fn without_a_drive(home: &Path, files: &[Vec<u8>; 3]) {
    let import = [&["tape", "import", "a.tape", "a", "c"], &PASS[..], &CHEAP].concat();
    let said = done(home, &import);
    assert!(said.contains("a is file 4") && said.contains(", encrypted"), "{said}");
    done(home, &["tape", "export", "a.tape", "--dir", "raw", "--raw"]);
    for (number, name) in [(4, "a"), (5, "c")] {
        let script = format!(
            "{LONGHAUL} tape export a.tape --file {number} --passphrase-file pass | cmp - {name}"
        );
        let (said, status) = run(Command::new("sh").args(["-c", &script]).current_dir(home));
        assert!(status.success(), "{said}");
        let raw = fs::read(home.join(format!("raw/000{number}"))).unwrap();
        assert!(raw.starts_with(b"LHTCRY\r\n"));
    }
    // One that is not encrypted is among them.
    let said =
        refused(home, &["tape", "export", "a.tape", "--file", "3", "--passphrase-file", "pass"]);
    assert!(said.contains("cannot read file 3") && said.contains("is not encrypted"), "{said}");
    assert!(fs::read(home.join("raw/0003")).unwrap() == files[2]);
}

#[test]
fn tape_that_somebody_has_changed_is_not_believed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let plain = encrypting(home)[2].clone();
    let make = [&["tape", "import", "a.tape", "c", "c", "--size", "4M"], &PASS[..], &CHEAP];
    done(home, &make.concat());
    done(home, &["tape", "export", "a.tape", "--dir", "raw", "--raw"]);
    let [stored, other] = ["raw/0000", "raw/0001"].map(|file| fs::read(home.join(file)).unwrap());
    let block = |number: usize| number * 10_240..(number + 1) * 10_240;
    assert_eq!(stored.len(), 6 * 10_240, "the last one is full");
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = stored.clone();
        change(&mut bytes);
        bytes
    };
    // What is on the tape, how many blocks are given out, and what is said.
    let cases: [(Vec<u8>, usize, &str); 9] = [
        (changed(&|all| all[25_000] ^= 1), 1, "block 2 of the file is not the one"),
        (changed(&|all| drop(all.drain(block(2)))), 1, "block 2 of the file is not the one"),
        (
            changed(&|all| all.copy_within(block(3), 20_480)),
            1,
            "block 2 of the file is not the one",
        ),
        (changed(&|all| all[block(2)].copy_from_slice(&other[block(2)])), 1, "block 2 of the file"),
        (changed(&|all| all.truncate(3 * 10_240)), 1, "has no last block: it ends with block 2"),
        (changed(&|all| all.truncate(10_240)), 0, "has no last block: it ends with block 0"),
        (changed(&|all| all.extend(&other)), 4, "block 5 of the file is its last one"),
        (changed(&|all| all[23] ^= 1), 0, "or the header of the file was changed"),
        (plain.clone(), 0, "is not encrypted"),
    ];
    for (number, (bytes, given, why)) in cases.into_iter().enumerate() {
        fs::write(home.join("in"), bytes).unwrap();
        let (name, out) = (format!("{number}.tape"), format!("out{number}"));
        done(home, &["tape", "import", &name, "in", "--size", "4M"]);
        let (server, uri) = serve(home, &format!("backup=tape:{name}"));
        let said = refused(home, &[&["tape", "read", &uri, &out], &PASS[..]].concat());
        assert!(said.contains(why), "{number}: {said}");
        assert!(part_of(home, &out) == plain[..given * 10_220], "{number}");
        assert!(server.stop().success());
        let dir = format!("dir{number}");
        let said = refused(home, &[&["tape", "export", &name, "--dir", &dir], &PASS[..]].concat());
        assert!(said.contains(why), "{number}: {said}");
        assert!(fs::read(home.join(dir).join("0000")).unwrap() == plain[..given * 10_220]);
    }
}

#[test]
fn encrypted_file_survives_killed_servers_and_cut_connections() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    encrypting(home);
    let port = Port::reserve();
    let listen = format!("127.0.0.1:{}", port.number);
    let volumes = ["backup=tape:a.tape,size=32M"];
    let (mut server, portal) = serve_at(home, &listen, &volumes);
    let uri = format!("iscsi://{portal}/{TARGET}backup");
    let data = bytes(8_888_888);
    let words = [&[&uri, "--sync", "500K"], &PASS[..], &CHEAP].concat();
    let mut writer = Writer::start(home, &words);
    for piece in data.chunks(4_000_000) {
        let (first, rest) = piece.split_at(piece.len() / 2);
        writer.give(first);
        server.kill();
        server = serve_at(home, &listen, &volumes).0;
        writer.give(rest);
    }
    writer.end(home);
    fs::write(home.join("in"), &data).unwrap();
    let relay = cutting(portal, vec![400_000, 2_500_000, 1_000, 1_700_000, 60_000]);
    let uri = format!("iscsi://{relay}/{TARGET}backup");
    let write = ["tape", "write", &uri, "in", "--append", "--sync", "500K"];
    let said = done(home, &[&write, &PASS[..], &CHEAP].concat());
    assert!(said.contains("going on where the tape is"), "{said}");
    for number in ["0", "1"] {
        let relay = cutting(portal, vec![6_000, 9_000, 12_000]);
        let uri = format!("iscsi://{relay}/{TARGET}backup");
        let read = ["tape", "read", &uri, "out", "--file", number];
        done(home, &[&read, &PASS[..]].concat());
        assert!(fs::read(home.join("out")).unwrap() == data, "file {number}");
    }
    assert!(server.stop().success());
}

/// A write that was interrupted leaves a file without a mark at its end. What is appended is no part of it.
#[test]
fn file_without_an_end_is_ended_before_another_is_appended() {
    for worm in ["", ",worm"] {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let (a, b) = (bytes(300_000), bytes(200_001));
        fs::write(home.join("a"), &a).unwrap();
        fs::write(home.join("b"), &b).unwrap();
        let (server, uri) = serve(home, &format!("t=tape:t.tape,size=8M{worm}"));
        done(home, &["tape", "write", &uri, "a", "--no-mark"]);
        let said = done(home, &["tape", "read", &uri, "out"]);
        assert!(said.contains("no file mark is behind that"), "{said}");
        for number in ["1", "2"] {
            let said = done(home, &["tape", "write", &uri, "b", "--append"]);
            assert!(said.contains(&format!("file {number} of the tape")), "{said}");
            let said = done(home, &["tape", "read", &uri, "out", "--file", number]);
            assert!(!said.contains("file mark"), "{said}");
            assert!(fs::read(home.join("out")).unwrap() == b);
        }
        done(home, &["tape", "read", &uri, "out"]);
        assert!(fs::read(home.join("out")).unwrap() == a);
        assert!(server.stop().success());
    }
}

/// The file mark at the end may have been on its way when a block did not fit.
#[test]
fn tape_that_is_written_once_is_filled() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    fs::write(home.join("in"), bytes((3 << 20) + 500)).unwrap();
    fs::write(home.join("first"), bytes(100_000)).unwrap();
    let (server, uri) = serve(home, "small=tape:s.tape,size=1M,worm");
    done(home, &["tape", "write", &uri, "first"]);
    let said = refused(home, &["tape", "write", &uri, "in", "--append"]);
    assert!(said.contains("the tape is full: it holds the first"), "{said}");
    done(home, &["tape", "read", &uri, "out", "--file", "1"]);
    let read = fs::read(home.join("out")).unwrap();
    assert!(said.contains(&format!("the first {} bytes", read.len())), "{said}");
    assert!(read.len() > 500_000 && read[..] == bytes((3 << 20) + 500)[..read.len()]);
    assert!(server.stop().success());
}

/// What was read of a file that was not read to its end.
fn part_of(home: &Path, name: &str) -> Vec<u8> {
    assert!(!home.join(name).exists(), "it is not whole");
    let mut files = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().path());
    let part = format!("{name}.part-");
    let part = files.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&part));
    part.map_or_else(Vec::new, |part| fs::read(part).unwrap())
}

#[test]
fn encrypted_file_that_does_not_fit_has_no_end() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    encrypting(home);
    fs::write(home.join("in"), bytes(2 << 20)).unwrap();
    let (server, uri) = serve(home, "small=tape:s.tape,size=1M");
    let said = refused(home, &[&["tape", "write", &uri, "in"], &PASS[..], &CHEAP].concat());
    assert!(said.contains("the tape is full") && said.contains("without a last block"), "{said}");
    let said = refused(home, &[&["tape", "read", &uri, "out"], &PASS[..]].concat());
    assert!(said.contains("has no last block"), "{said}");
    let read = part_of(home, "out");
    assert!(read.len() > 500_000 && read[..] == bytes(2 << 20)[..read.len()]);
    assert!(server.stop().success());
}

#[test]
fn trouble_with_a_tape_is_told_in_words() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("in"), bytes(2 << 20)).unwrap();
    fs::write(home.path().join("nothing"), "").unwrap();
    let missing = ["serve", "--listen", "127.0.0.1:0", "--volume", "a=tape:no.tape,read_only"];
    let said = refused(home.path(), &missing);
    assert!(said.contains("what is only read is not made"), "{said}");
    let said = refused(home.path(), &["tape", "import", "nothing", "in", "--size", "4M"]);
    assert!(said.contains("it is empty") && said.contains("remove it: then"), "{said}");
    let volumes = [
        "small=tape:s.tape,size=1M",
        "locked=tape:s.tape,read_only",
        "empty=tape:",
        "disk=memory:1M",
    ];
    let (server, uri) = serve(home.path(), volumes[0]);
    let said = refused(home.path(), &["tape", "write", &uri, "in"]);
    assert!(said.contains("the tape is full: it holds the first"), "{said}");
    assert!(said.contains("the end of the tape is near"), "{said}");
    done(home.path(), &["tape", "read", &uri, "out"]);
    let read = fs::read(home.path().join("out")).unwrap();
    assert!(read.len() > 500_000 && read[..] == bytes(2 << 20)[..read.len()]);
    let said = refused(home.path(), &["tape", "write", &uri, "in", "--block", "9M"]);
    assert!(said.contains("has 1 to 8388608 bytes"), "{said}");
    assert!(server.stop().success());
    let (server, portal) = serve_at(home.path(), "127.0.0.1:0", &volumes[1..]);
    let uri = |name: &str| format!("iscsi://{portal}/{TARGET}{name}");
    let said = refused(home.path(), &["tape", "write", &uri("locked"), "in"]);
    assert!(said.contains("write-protected"), "{said}");
    done(home.path(), &["tape", "read", &uri("locked"), "out"]);
    let said = done(home.path(), &["tape", "status", &uri("locked")]);
    assert!(said.contains("tape drive, with a tape, write-protected"), "{said}");
    for (action, file) in [("read", "out"), ("write", "in")] {
        let said = refused(home.path(), &["tape", action, &uri("empty"), file]);
        assert!(said.contains("there is no tape in the drive"), "{said}");
    }
    let said = refused(home.path(), &["tape", "read", &uri("disk"), "out"]);
    assert!(said.contains("is no tape drive: it is a disk"), "{said}");
    let said = done(home.path(), &["tape", "status", &uri("empty")]);
    assert!(said.contains("tape drive, empty"), "{said}");
    let said = refused(home.path(), &["tape", "status", "file:in"]);
    assert!(said.contains("is no unit of a server"), "{said}");
    assert!(server.stop().success());
}

/// A longer tape does not help: the server's file system has no room for what this one may hold.
#[test]
fn full_file_system_is_told_as_that() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    fs::write(home.join("in"), bytes(6 << 20)).unwrap();
    fs::write(home.join("pass"), "pass phrase\n").unwrap();
    File::create(home.join("a.tape")).unwrap().set_len(32 << 20).unwrap();
    // A file beyond a limit fails as one on a full file system.
    let script = format!(
        "ulimit -f {}; exec {LONGHAUL} serve --listen 127.0.0.1:0 --control control.sock --volume backup=tape:a.tape 2>log",
        (4 << 20) / 512
    );
    let server = Running::start(Command::new("sh").args(["-c", &script]).current_dir(home));
    let uri = server.line().unwrap().strip_prefix("ready ").unwrap().to_owned();
    let media = || done(home, &["media", "list", "--control", "control.sock"]);
    let status = || done(home, &["status", "--control", "control.sock"]);
    assert!(!media().contains("full") && !status().contains("full"));
    for words in [&[][..], &["--append"], &[&PASS[..], &CHEAP, &["--file", "0"]].concat()] {
        let said = refused(home, &[&["tape", "write", &uri, "in"], words].concat());
        assert!(
            said.contains("the file system of the server is full, and the tape is not"),
            "{said}"
        );
        assert!(said.contains("make room there") && !said.contains("longer tape"), "{said}");
        assert!(!said.contains("the end of the tape is near"), "{said}");
        let listed = media();
        assert!(listed.contains("32M, its file system is full"), "{listed}");
        let said = status();
        assert!(said.contains("its file system is full, though the tape is not"), "{said}");
    }
    done(home, &["tape", "read", &uri, "out", "--raw"]);
    let log = fs::read_to_string(home.join("log")).unwrap();
    assert!(log.contains("the store of the tape is full, and the tape is not"), "{log}");
    // There is room for this, so that there is no trouble any more.
    fs::write(home.join("in"), bytes(1 << 20)).unwrap();
    done(home, &["tape", "write", &uri, "in"]);
    assert!(!media().contains("full") && !status().contains("full"));
    assert!(server.stop().success());
}

#[test]
fn tape_that_is_written_once_only_grows() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let files = [bytes(100_001), bytes(50_000), bytes(30_000)];
    for (file, name) in files.iter().zip(["a", "b", "c"]) {
        fs::write(home.join(name), file).unwrap();
    }
    let volume = "backup=tape:w.tape,size=16M,worm";
    let (server, uri) = serve(home, volume);
    done(home, &["tape", "write", &uri, "a"]);
    let said = done(home, &["tape", "status", &uri]);
    assert!(said.contains("tape drive, with a tape, write once"), "{said}");
    let said = done(home, &["tape", "status", &uri, "--json"]);
    assert!(said.contains("\"write_once\":true"), "{said}");
    let said = done(home, &["media", "list", "--control", "control.sock"]);
    assert!(said.contains("w.tape, 16M, write once"), "{said}");
    let said = refused(home, &["tape", "write", &uri, "b"]);
    assert!(said.contains("is written once") && said.contains("--append"), "{said}");
    done(home, &["tape", "write", &uri, "b", "--append"]);
    assert!(server.stop().success());
    // It is found as it was made, by a server that is told so and one that is not.
    for volume in [volume, "backup=tape:w.tape"] {
        let (server, uri) = serve(home, volume);
        let said = refused(home, &["tape", "write", &uri, "c", "--file", "1"]);
        assert!(said.contains("is written once"), "{said}");
        for (number, file) in files[..2].iter().enumerate() {
            done(home, &["tape", "read", &uri, "out", "--file", &number.to_string()]);
            assert!(fs::read(home.join("out")).unwrap() == *file);
        }
        assert!(server.stop().success());
    }
    let said = done(home, &["tape", "info", "w.tape"]);
    assert!(said.contains("writes      once"), "{said}");
    // A label of a version that earlier releases refuse.
    assert_eq!(fs::read(home.join("w.tape")).unwrap()[..9], *b"LHTAPE\r\n\x02");
    done(home, &["tape", "import", "w.tape", "c"]);
    done(home, &["tape", "import", "x.tape", "a", "--size", "4M", "--worm"]);
    let said = done(home, &["tape", "info", "x.tape", "--json"]);
    assert!(said.contains("\"write_once\":true"), "{said}");
    // One that was used already does not become one.
    done(home, &["tape", "import", "o.tape", "a", "--size", "4M"]);
    let said = refused(home, &["tape", "import", "o.tape", "b", "--size", "4M", "--worm"]);
    assert!(said.contains("`worm` is for a new tape"), "{said}");
    let said = refused(home, &["serve", "--volume", "a=memory:1M,worm"]);
    assert!(said.contains("worm is for tapes"), "{said}");
}

#[test]
fn drive_belongs_to_one_client_and_its_tape_stays_in() {
    let home = tempfile::tempdir().unwrap();
    let (server, uri) = serve(home.path(), "backup=tape:a.tape,size=16M");
    fs::write(home.path().join("in"), bytes(30_000)).unwrap();
    let mut writer = Writer::start(home.path(), &[&uri]);
    // More than it keeps before it writes.
    writer.give(&bytes(2 << 20));
    let others = [vec!["tape", "write", &uri, "in"], vec!["tape", "read", &uri, "out"]];
    for words in others {
        let said = refused(home.path(), &words);
        assert!(said.contains("cannot reserve") && said.contains("--take-over"), "{said}");
    }
    let said = refused(home.path(), &["media", "eject", "backup", "--control", "control.sock"]);
    assert!(said.contains("--force"), "{said}");
    done(home.path(), &["tape", "write", &uri, "in", "--take-over", "--rewind"]);
    // The first can write nothing more.
    writer.input = None;
    assert!(!writer.child.wait().unwrap().success());
    let said = fs::read_to_string(home.path().join("writer.log")).unwrap();
    assert!(said.contains("another initiator has reserved the drive"), "{said}");
    done(home.path(), &["tape", "read", &uri, "out", "--eject"]);
    assert!(fs::read(home.path().join("out")).unwrap() == bytes(30_000));
    let said = done(home.path(), &["tape", "status", &uri]);
    assert!(said.contains("empty"), "{said}");
    assert!(server.stop().success());
}

/// The data that a pipe holds before a writer waits, at least: 16 pages, each half full (pipe(7)).
const PIPE_FULL: u64 = 32 << 10;

/// A reader that waits for whoever reads its output, or for somebody to open that, ends for the first signal.
#[test]
fn read_whose_output_nobody_takes_ends_at_the_first_signal() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    fs::write(home.join("in"), bytes(4 << 20)).unwrap();
    fs::write(home.join("one.iso"), bytes(4 << 20)).unwrap();
    let volumes = ["backup=tape:a.tape,size=16M", "movies=cdrom:one.iso"];
    let (server, portal) = serve_at(home, "127.0.0.1:0", &volumes);
    let tape = format!("iscsi://{portal}/{TARGET}backup");
    done(home, &["tape", "write", &tape, "in"]);
    let (said, status) = run(Command::new("mkfifo").args(["pipe", "shut"]).current_dir(home));
    assert!(status.success(), "{said}");
    let reader = |words: &[&str]| {
        let mut command = Command::new(LONGHAUL);
        command.args(words).current_dir(home).stderr(File::create(home.join("log")).unwrap());
        Running::start(&mut command)
    };
    for words in [["tape", "read", &tape], ["cd", "read", &tape.replace("backup", "movies")]] {
        let blocked = reader(&[&words[..], &["pipe"]].concat());
        let pipe = File::open(home.join("pipe")).unwrap();
        let began = Instant::now();
        while rustix::io::ioctl_fionread(&pipe).unwrap() < PIPE_FULL {
            assert!(began.elapsed() < PATIENCE, "{words:?}: nothing is read");
            thread::yield_now();
        }
        assert_eq!(blocked.stop().code(), Some(1), "{words:?}");
        let said = fs::read_to_string(home.join("log")).unwrap();
        assert!(said.contains("ended by a signal before it was done"), "{said}");
        assert!(!said.contains("second signal"), "{said}");
        // The drive is free again, and nobody opens this pipe.
        done(home, &["tape", "read", &tape, "out"]);
        let unopened = reader(&[&words[..], &["shut"]].concat());
        wait_for_handler(unopened.pid());
        assert_eq!(unopened.stop().code(), Some(1), "{words:?}");
        let said = fs::read_to_string(home.join("log")).unwrap();
        assert!(said.contains("cannot write shut: ended by a signal"), "{said}");
    }
    assert!(server.stop().success());
}

/// Waits until a process listens for SIGTERM: proc(5), `SigCgt` in /proc/pid/status.
fn wait_for_handler(pid: u32) {
    let bit = 1 << (rustix::process::Signal::TERM.as_raw() - 1);
    let began = Instant::now();
    loop {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        if u64::from_str_radix(mask.trim(), 16).unwrap() & bit != 0 {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "it does not listen");
        thread::yield_now();
    }
}

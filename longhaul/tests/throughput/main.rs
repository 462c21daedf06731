//! Throughput over a long link: one program that does one thing at a time, through an attached volume, over a link
//! that is slow to answer. Nothing here looks at a clock: what is counted is who was answered before
//! whom, and how often something went there and back.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use volume::check::Random;

#[path = "../common/mod.rs"]
mod common;
mod link;
#[path = "../common/nbd.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod nbd;

use common::{LONGHAUL, PATIENCE, Running, run};
use link::{Conditions, Link};
use nbd::{Nbd, Reply};

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;
const SIZE: usize = 64 << 20;

const SERVE: [&str; 5] =
    ["serve", "--volume", "far=file:far.img,size=64M", "--listen", "127.0.0.1:0"];

/// A server, a link to it, and a directory to work in.
struct Fixture {
    link: Link,
    server: Running,
    uri: String,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new(one_way: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut serve = Command::new(LONGHAUL);
        Self::over(serve.args(SERVE), dir, one_way)
    }

    /// A server whose disk fails where it is written beyond 8 MiB.
    fn failing() -> Self {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("far.img")).unwrap().set_len(SIZE as u64).unwrap();
        // The limit on the size of files goes by where one writes.
        let mut shell = Command::new("sh");
        let script = "ulimit -f 16384; exec \"$@\"";
        Self::over(shell.args(["-c", script, "sh", LONGHAUL]).args(SERVE), dir, Duration::ZERO)
    }

    fn over(serve: &mut Command, dir: tempfile::TempDir, one_way: Duration) -> Self {
        let server = Running::start(serve.current_dir(&dir));
        let ready = server.line().expect("it says when it is ready");
        let (_, rest) = ready.split_once("//").unwrap();
        let (address, path) = rest.split_once('/').unwrap();
        let conditions = Conditions { delay: one_way, rate: None };
        let link = Link::start(address.parse().unwrap(), conditions);
        let uri = format!("iscsi://{}/{path}", link.address());
        Self { link, server, uri, dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn longhaul(&self, args: &[&str]) {
        let (printed, status) = run(Command::new(LONGHAUL).args(args).current_dir(self.path()));
        assert!(status.success(), "longhaul {args:?}\n{printed}");
    }

    fn seal(&self) {
        std::fs::write(self.path().join("pw"), "correct horse battery").unwrap();
        let cheap = ["--pbkdf-memory", "32M", "--pbkdf-iterations", "4"];
        let init = ["key", "init", &self.uri, "--passphrase-file", "pw"];
        self.longhaul(&[&init[..], &cheap].concat());
    }

    fn attach(&self, options: &[&str]) -> (Running, Nbd) {
        let mut attach = Command::new(LONGHAUL);
        attach.args(["attach", &self.uri, "--nbd", "disk.sock"]).args(options);
        let attached = Running::start(attach.current_dir(self.path()));
        attached.line().expect("it says when it is ready");
        (attached, Nbd::connect(&self.path().join("disk.sock")))
    }

    fn attach_sealed(&self, options: &[&str]) -> (Running, Nbd) {
        self.attach(&[&["--passphrase-file", "pw"], options].concat())
    }

    /// What the server has, whatever the client thinks.
    fn far(&self) -> File {
        File::open(self.path().join("far.img")).unwrap()
    }
}

/// Bytes that tell one write from another.
fn pattern(number: usize, len: usize) -> Vec<u8> {
    (number as u64 + 1).to_le_bytes().into_iter().cycle().take(len).collect()
}

#[test]
fn writes_do_not_wait_for_answers_and_flushes_do() {
    let fixture = Fixture::new(Duration::ZERO);
    fixture.seal();
    let (attached, mut disk) = fixture.attach_sealed(&[]);
    let before = fixture.link.carried();
    fixture.link.hold();
    // From here on nothing comes back over the link, yet each of these is answered, ...
    for number in 0..12 {
        disk.write((number * 64 * KIB) as u64, &pattern(number, 64 * KIB)).unwrap();
    }
    // ... and is on its way beside others: four segments, before the first answer.
    assert!(fixture.link.wait_carried(before + 4 * 64 * KIB as u64, PATIENCE));
    let flush = disk.begin_flush();
    let durable = disk.begin_durable_write(SIZE as u64 / 2, &pattern(99, 4 * KIB));
    let read = disk.begin_read(11 * 64 * KIB as u64, 64 * KIB);
    assert_eq!(disk.reply(), Reply { cookie: read, errno: 0 }, "only this needs no answer");
    assert_eq!(disk.data(64 * KIB), pattern(11, 64 * KIB));
    fixture.link.release();
    let mut last = [disk.reply(), disk.reply()];
    last.sort_by_key(|reply| reply.cookie);
    assert_eq!(last, [flush, durable].map(|cookie| Reply { cookie, errno: 0 }));
    drop(disk);
    assert!(attached.stop().success());
    fixture.longhaul(&["copy", &fixture.uri, "out.img", "--passphrase-file", "pw"]);
    let out = std::fs::read(fixture.path().join("out.img")).unwrap();
    for number in 0..12 {
        let at = number * 64 * KIB;
        assert!(out[at..at + 64 * KIB] == pattern(number, 64 * KIB), "write {number}");
    }
    assert!(out[SIZE / 2..SIZE / 2 + 4 * KIB] == pattern(99, 4 * KIB));
    assert!(fixture.server.stop().success());
}

#[test]
fn flushed_or_durable_writes_are_there() {
    let fixture = Fixture::new(Duration::ZERO);
    let (attached, mut disk) = fixture.attach(&[]);
    let mut found = vec![0; 64 * KIB];
    for round in 0..20 {
        let (at, other) = ((round * 128 * KIB) as u64, ((round * 128 + 64) * KIB) as u64);
        disk.write(at, &pattern(round, 64 * KIB)).unwrap();
        disk.flush().unwrap();
        fixture.far().read_exact_at(&mut found, at).unwrap();
        assert!(found == pattern(round, 64 * KIB), "flushed in round {round}");
        disk.write_durably(other, &pattern(round + 500, 64 * KIB)).unwrap();
        fixture.far().read_exact_at(&mut found, other).unwrap();
        assert!(found == pattern(round + 500, 64 * KIB), "written durably in round {round}");
    }
    drop(disk);
    assert!(attached.stop().success());
}

#[test]
fn a_write_that_fails_late_is_told_at_every_flush_and_at_the_end() {
    let fixture = Fixture::failing();
    let (attached, mut disk) = fixture.attach(&[]);
    let (good, bad) = (MIB, 32 * MIB);
    disk.write(good, &pattern(1, 64 * KIB)).unwrap();
    disk.flush().unwrap();
    disk.write(bad, &pattern(2, 64 * KIB)).expect("it fails after it was answered");
    disk.flush().unwrap_err();
    disk.flush().expect_err("the error stays");
    disk.write(good, &pattern(3, 64 * KIB)).expect_err("nothing more is taken");
    disk.read(bad, 64 * KIB).expect_err("nobody is shown what was there before");
    assert!(disk.read(good, 64 * KIB).unwrap() == pattern(1, 64 * KIB));
    drop(disk);
    assert_eq!(attached.stop().code(), Some(1), "whoever ended it must know");
}

/// How often something had to go there and back while `act` ran.
fn round_trips(fixture: &Fixture, act: impl FnOnce()) -> u64 {
    let before = fixture.link.round_trips();
    act();
    fixture.link.round_trips() - before
}

#[test]
fn many_requests_share_a_round_trip() {
    const WRITES: usize = 2000;
    const READS: usize = 400;
    let fixture = Fixture::new(Duration::from_millis(20));
    fixture.seal();
    let (attached, mut disk) = fixture.attach_sealed(&["--no-pipeline"]);
    let alone = round_trips(&fixture, || {
        for number in 0..10 {
            disk.write((number * 4 * KIB) as u64, &pattern(number, 4 * KIB)).unwrap();
        }
    });
    assert!(
        alone >= 10,
        "without a pipeline each write is a round trip, or the link counts wrongly"
    );
    drop(disk);
    assert!(attached.stop().success());

    let (attached, mut disk) = fixture.attach_sealed(&[]);
    let trips = round_trips(&fixture, || {
        for number in 0..WRITES {
            disk.write((number * 4 * KIB) as u64, &pattern(number, 4 * KIB)).unwrap();
        }
        disk.flush().unwrap();
    });
    println!("{WRITES} writes of 4 KiB and a flush: {trips} round trips");
    assert!(trips < WRITES as u64 / 10, "{WRITES} writes took {trips} round trips");
    let trips = round_trips(&fixture, || {
        for number in 0..READS {
            disk.read((number * 64 * KIB) as u64, 64 * KIB).unwrap();
        }
    });
    println!("{READS} reads of 64 KiB: {trips} round trips");
    assert!(trips < READS as u64 / 4, "{READS} reads took {trips} round trips");
    drop(disk);
    assert!(attached.stop().success());
}

#[test]
fn a_reader_sees_what_was_written_and_so_does_the_next() {
    const BLOCKS: u64 = 256;
    const BLOCK: usize = 4 * KIB;
    let seed = 1;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let fixture = Fixture::new(Duration::from_millis(5));
    fixture.seal();
    let mut model = vec![0; BLOCKS as usize * BLOCK];
    let (attached, mut disk) = fixture.attach_sealed(&[]);
    disk.write(0, &model).unwrap();
    for number in 0..400 {
        let first = random.below(BLOCKS);
        let len = (1 + random.below((BLOCKS - first).min(32))) as usize * BLOCK;
        let at = first * BLOCK as u64;
        let here = at as usize..at as usize + len;
        match random.below(10) {
            0..=4 => {
                model[here.clone()].copy_from_slice(&pattern(number, len));
                disk.write(at, &model[here]).unwrap();
            }
            5 => {
                model[here.clone()].copy_from_slice(&pattern(number, len));
                disk.write_durably(at, &model[here]).unwrap();
            }
            6 => {
                model[here].fill(0);
                disk.write_zeroes(at, len).unwrap();
            }
            7 => disk.flush().unwrap(),
            _ => assert!(disk.read(at, len).unwrap() == model[here], "operation {number}"),
        }
    }
    drop(disk);
    assert!(attached.stop().success());
    fixture.longhaul(&["copy", &fixture.uri, "out.img", "--passphrase-file", "pw"]);
    let out = std::fs::read(fixture.path().join("out.img")).unwrap();
    assert!(out[..model.len()] == model, "the server does not have what was acknowledged");
}

#[test]
fn holes_are_read_without_the_link_once_they_are_known() {
    let zeroes = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let fixture = Fixture::new(Duration::ZERO);
    fixture.seal();
    let (attached, mut disk) = fixture.attach_sealed(&["--allow-discards"]);
    let data = (9 * MIB, pattern(1, 64 * KIB));
    disk.write(data.0, &data.1).unwrap();
    disk.flush().unwrap();
    // The first reads of a hole cross the link, and beside them a question what else of it there is: from the first
    // of them on, which is the beginning, so that no other question follows.
    let known = (0..1000).any(|number| {
        let before = fixture.link.carried();
        let page = number * 577 % 2000;
        assert!(zeroes(&disk.read(page * 4096, 4 * KIB).unwrap()));
        fixture.link.carried() == before
    });
    assert!(known, "every read crossed the link");
    fixture.link.hold();
    let before = fixture.link.carried();
    assert!(zeroes(&disk.read(9 * MIB - 64 * KIB as u64, 64 * KIB).unwrap()));
    for at in 10..40 {
        assert!(zeroes(&disk.read(at * MIB, MIB as usize).unwrap()));
    }
    assert_eq!(fixture.link.carried(), before, "nothing was asked for");
    // What is written into it is there, now and later, and around it is still known.
    disk.write(20 * MIB + 4096, &pattern(2, 4 * KIB)).unwrap();
    let expected = [vec![0; 4 * KIB], pattern(2, 4 * KIB), vec![0; 8 * KIB]].concat();
    assert!(disk.read(20 * MIB, 16 * KIB).unwrap() == expected);
    fixture.link.release();
    disk.flush().unwrap();
    assert!(disk.read(20 * MIB, 16 * KIB).unwrap() == expected);
    assert!(disk.read(data.0, data.1.len()).unwrap() == data.1);
    drop(disk);
    assert!(attached.stop().success());
    assert!(fixture.server.stop().success());
}

/// How a run ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The link breaks, and whatever is on it is lost.
    Cut,
    /// The client dies.
    Kill,
}

#[test]
fn after_an_accident_nothing_is_older_than_the_last_flush() {
    for seed in 0..8 {
        for end in [End::Cut, End::Kill] {
            println!("seed {seed}, {end:?}");
            accident(&mut Random::new(seed), end);
        }
    }
}

/// Of each block: the last contents that were durable, and the last that were written.
#[derive(Clone, Copy, Default)]
struct Block {
    durable: u64,
    written: u64,
}

fn accident(random: &mut Random, end: End) {
    const BLOCK: usize = 4 * KIB;
    let fixture = Fixture::new(Duration::from_millis(1));
    let (attached, mut disk) = fixture.attach(&[]);
    let mut blocks = [Block::default(); 64];
    for version in 1..=50 + random.below(400) {
        let index = random.below(blocks.len() as u64) as usize;
        let data: Vec<u8> = version.to_le_bytes().repeat(BLOCK / 8);
        let at = (index * BLOCK) as u64;
        blocks[index].written = version;
        if random.below(20) == 0 {
            disk.write_durably(at, &data).unwrap();
            blocks[index].durable = version;
        } else {
            disk.write(at, &data).unwrap();
        }
        if random.below(40) == 0 {
            disk.flush().unwrap();
            for block in &mut blocks {
                block.durable = block.written;
            }
        }
    }
    match end {
        End::Cut => fixture.link.cut(),
        End::Kill => {}
    }
    // Killed, as it is dropped.
    drop(attached);
    let far = fixture.far();
    assert!(fixture.server.stop().success());
    for (index, block) in blocks.into_iter().enumerate() {
        let mut data = vec![0; BLOCK];
        far.read_exact_at(&mut data, (index * BLOCK) as u64).unwrap();
        let version = u64::from_le_bytes(data[..8].try_into().unwrap());
        assert!(data == version.to_le_bytes().repeat(BLOCK / 8), "block {index} is torn");
        let Block { durable, written } = block;
        assert!((durable..=written).contains(&version), "block {index}: {version} is there");
    }
}

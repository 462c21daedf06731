//! What the server holds while a client with a journal works: at every moment an ordinary disk after a power cut.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::common::{PATIENCE, Running, run};
use super::link::Link;
use super::stage::{Stage, must, write_stable};

/// A record of the file that only grows.
const RECORD: usize = 4096;

/// How many images are looked at, if nothing else is said.
const IMAGES: u64 = 4;

fn images() -> u64 {
    std::env::var("LONGHAUL_CRASHES").map_or(IMAGES, |text| text.parse().expect("a number"))
}

/// Tells the writer to stop when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes, renames and removes files, and appends numbered records to one, each of which is synchronised.
fn work(dir: &Path, is_over: &AtomicBool) {
    let mut log = fs::File::create(dir.join("log")).unwrap();
    for number in 1_u64.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        log.write_all(&number.to_le_bytes().repeat(RECORD / 8)).unwrap();
        log.sync_all().unwrap();
        let (new, old) = (dir.join("new"), dir.join(format!("file-{}", number % 40)));
        fs::write(&new, vec![number as u8; (number as usize * 7919) % 100_000]).unwrap();
        fs::rename(&new, &old).unwrap();
        let _ = fs::remove_file(dir.join(format!("file-{}", (number * 7) % 40)));
    }
}

/// Repairs an image as a mount would, finds nothing else to repair, and counts the records of the log in it.
fn examine(image: &Path) -> u64 {
    let (said, status) = run(Command::new("e2fsck").args(["-p", "-E", "journal_only"]).arg(image));
    assert!(matches!(status.code(), Some(0 | 1)), "{said}");
    must(Command::new("e2fsck").args(["-f", "-n"]).arg(image));
    let out = image.with_extension("log");
    let dump = format!("dump /log {}", out.display());
    run(Command::new("debugfs").args(["-R", &dump]).arg(image));
    let log = fs::read(&out).unwrap_or_default();
    let records = log.chunks_exact(RECORD);
    for (record, expected) in records.zip(1_u64..) {
        let whole = expected.to_le_bytes().repeat(RECORD / 8);
        assert!(record == whole, "record {expected} is not there, and the file is longer");
    }
    (log.len() / RECORD) as u64
}

/// A server of secure sessions, and the URI of its volume by way of a link.
fn serve_securely(stage: &Stage) -> (Running, Link, String) {
    let [server, client] = ["server", "laptop"]
        .map(|name| stage.longhaul(&format!("identity new {name}.identity")).trim().to_owned());
    let options = format!("--state reservations --identity server.identity --client-key {client}");
    let running = stage.serve(&options);
    let link = Link::to(stage.port());
    let uri = stage.uri().replace(&stage.port().to_string(), &link.port.to_string());
    (running, link, format!("{uri}?pin={server} --identity laptop.identity"))
}

fn mount(stage: &Stage, uri: &str) {
    stage.longhaul(&format!("mount {uri} mnt --mkfs ext4 --raw --journal j,size=16M"));
    wait_until_sent(stage);
}

fn wait_until_sent(stage: &Stage) {
    stage.wait_until("all is at the server", || {
        stage.longhaul("status").contains(" 0 changes not sent")
    });
}

#[test]
fn every_image_of_the_server_is_what_a_power_cut_leaves() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    mount(&stage, &stage.uri());
    look_at_images(&stage, &server, || {});
    assert!(server.stop().success());
}

/// There groups are on their way together; and the link breaks in the middle of them.
#[test]
fn every_image_of_a_server_that_keeps_the_order_is_what_a_power_cut_leaves() {
    let stage = Stage::new();
    let (server, link, uri) = serve_securely(&stage);
    mount(&stage, &uri);
    look_at_images(&stage, &server, || {
        link.cut();
    });
    assert!(server.stop().success());
}

#[test]
fn groups_are_sent_to_a_server_that_keeps_the_order_before_it_answers_the_first() {
    const GROUPS: u64 = 40;
    let stage = Stage::new();
    let (server, link, uri) = serve_securely(&stage);
    mount(&stage, &uri);
    server.signal(Signal::STOP);
    let before = link.sent();
    for number in 0..GROUPS {
        write_stable(&stage.mnt().join(number.to_string()), vec![number as u8; 4096]);
    }
    stage.wait_until("all groups were sent", || link.sent() - before > GROUPS * 4096);
    server.signal(Signal::CONT);
    wait_until_sent(&stage);
    stage.longhaul("umount disk");
    examine(&stage.path("disk.img"));
    stage.longhaul("mount disk");
    for number in 0..GROUPS {
        let found = fs::read(stage.mnt().join(number.to_string())).unwrap();
        assert_eq!(found, vec![number as u8; 4096]);
    }
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// How many pages of a file are written in turn, behind the first.
const TURNS: u64 = 7;

/// The pages of which each stable write of number `n` writes the first, and one of the others.
const PAGE: usize = 4096;

fn page(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE / 8)
}

/// Makes an encrypted volume, and gives it as one file of written pages.
fn encrypt(stage: &Stage, uri: &str) {
    let options = "--force --passphrase-file secret --pbkdf-iterations 4 --pbkdf-memory 32K";
    stage.longhaul(&format!("key init {uri} {options}"));
    fs::write(stage.path("file"), "").unwrap();
    attach(stage, uri);
    let file = file_of(stage);
    file.write_all_at(&page(0).repeat(1 + TURNS as usize), 0).unwrap();
    file.sync_all().unwrap();
    wait_until_sent(stage);
}

fn attach(stage: &Stage, uri: &str) {
    let options = "--replace --passphrase-file secret --journal j,size=16M --name disk";
    stage.longhaul(&format!("mount {uri} --fuse file {options}"));
}

fn file_of(stage: &Stage) -> fs::File {
    fs::OpenOptions::new().write(true).open(stage.path("file")).unwrap()
}

/// As a database does it: each write is of the first page too, and stable before the next.
fn commit(file: &fs::File, number: u64) {
    file.write_all_at(&page(number), 0).unwrap();
    file.write_all_at(&page(number), (1 + number % TURNS) * PAGE as u64).unwrap();
    file.sync_all().unwrap();
}

/// The last write that the server has: it has all before that, and of the next any part.
fn committed(stage: &Stage, disturb: impl FnOnce()) -> u64 {
    let [image, plain] = ["image", "plain"].map(|name| stage.path(name));
    fs::copy(stage.path("disk.img"), &image).unwrap();
    disturb();
    let _ = fs::remove_file(&plain);
    stage.longhaul("copy image plain --passphrase-file secret");
    let mut bytes = vec![0; PAGE * (1 + TURNS as usize)];
    fs::File::open(&plain).unwrap().read_exact(&mut bytes).unwrap();
    let numbers: Vec<u64> = bytes
        .chunks(PAGE)
        .map(|found| {
            let number = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!(found == page(number), "a page of two writes");
            number
        })
        .collect();
    let holds = |last: u64| {
        let newest = |turn: u64| (0..=last).rev().find(|n| n % TURNS == turn).unwrap_or(0);
        let is_legal = |(at, number): (u64, &u64)| {
            let before = if at == 0 { last } else { newest(at - 1) };
            let next = at == 0 || (last + 1) % TURNS == at - 1;
            *number == before || (next && *number == last + 1)
        };
        (0..).zip(&numbers).all(is_legal)
    };
    let first = numbers[0];
    let found = [first, first.saturating_sub(1)].into_iter().find(|last| holds(*last));
    found.unwrap_or_else(|| panic!("no write leaves {numbers:?}"))
}

/// All write the same page, so that each tells that those before are there; and links and clients end in the middle of them.
#[test]
fn every_image_has_all_commits_up_to_one_though_each_overlaps_the_one_before() {
    let stage = Stage::new();
    let (server, link, uri) = serve_securely(&stage);
    encrypt(&stage, &uri);
    let (is_over, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut found = vec![0];
    for life in 1..=2 {
        let first = acknowledged.load(Ordering::Relaxed) + 1;
        is_over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let end = End(&is_over);
            scope.spawn(|| {
                let file = file_of(&stage);
                for number in (first..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    commit(&file, number);
                    acknowledged.store(number, Ordering::Relaxed);
                }
            });
            for number in 0..2 * images() {
                let least = first + 20 * number;
                stage.wait_until("it goes on", || acknowledged.load(Ordering::Relaxed) > least);
                server.signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(number * 37 % 100));
                found.push(committed(&stage, || {
                    link.cut();
                    server.signal(Signal::CONT);
                }));
            }
            drop(end);
        });
        if life == 1 {
            // What was acknowledged is in the journal, which has room for it, and some of it at the server.
            wait_until_sent(&stage);
            server.signal(Signal::STOP);
            let file = file_of(&stage);
            let last = acknowledged.load(Ordering::Relaxed);
            for number in last + 1..=last + 50 {
                commit(&file, number);
                acknowledged.store(number, Ordering::Relaxed);
            }
            drop(file);
            stage.crash();
            server.signal(Signal::CONT);
            attach(&stage, &uri);
        }
    }
    assert!(found.is_sorted(), "what was on the server is not there any more: {found:?}");
    stage.longhaul("umount disk");
    assert_eq!(committed(&stage, || {}), acknowledged.load(Ordering::Relaxed));
    println!("{found:?} commits of {}", acknowledged.load(Ordering::Relaxed));
    assert!(server.stop().success());
}

#[test]
fn commits_to_one_page_are_sent_before_the_server_answers_the_first() {
    // Each is four commands, of which the server takes some thirty at a time.
    const COMMITS: u64 = 7;
    let stage = Stage::new();
    let (server, link, uri) = serve_securely(&stage);
    encrypt(&stage, &uri);
    let file = file_of(&stage);
    server.signal(Signal::STOP);
    let before = link.sent();
    (1..=COMMITS).for_each(|number| commit(&file, number));
    stage.wait_until("all commits were sent", || link.sent() - before > COMMITS * 2 * PAGE as u64);
    server.signal(Signal::CONT);
    wait_until_sent(&stage);
    drop(file);
    stage.longhaul("umount disk");
    assert_eq!(committed(&stage, || {}), COMMITS);
    assert!(server.stop().success());
}

/// They overwrite one another: what the first wrote must not be there again, even for a moment.
#[test]
fn commits_that_the_server_has_are_not_sent_again_though_it_was_not_heard() {
    commit_unheard(false);
}

#[test]
fn commits_that_the_server_has_are_not_sent_again_after_a_crash() {
    commit_unheard(true);
}

/// The server does not come through with its answers before the link is cut.
fn commit_unheard(is_crash: bool) {
    const COMMITS: u64 = 7;
    let stage = Stage::new();
    let (server, link, uri) = serve_securely(&stage);
    encrypt(&stage, &uri);
    let file = file_of(&stage);
    link.mute();
    (1..=COMMITS).for_each(|number| commit(&file, number));
    stage.wait_until("the server has them", || committed(&stage, || {}) == COMMITS);
    let before = link.sent();
    if is_crash {
        stage.crash();
    }
    link.cut();
    if is_crash {
        attach(&stage, &uri);
    }
    wait_until_sent(&stage);
    let again = link.sent() - before;
    assert!(again < COMMITS * PAGE as u64, "{again} bytes: more than the last one and a login");
    assert_eq!(committed(&stage, || {}), COMMITS);
    drop(file);
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

fn look_at_images(stage: &Stage, server: &Running, disturb: impl Fn()) {
    // Before the file system was there the server held what came before it, and had every right to.
    let (is_over, dir) = (AtomicBool::new(false), stage.mnt());
    let counts: Vec<u64> = std::thread::scope(|scope| {
        // A test that fails must not wait for the writer for ever.
        let _end = End(&is_over);
        scope.spawn(|| work(&dir, &is_over));
        let image_of = |number: u64| {
            let image = stage.path("image");
            // It is behind by what was written meanwhile, and stopped in the middle of that.
            server.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(number * 37 % 100));
            server.signal(Signal::CONT);
            std::thread::sleep(Duration::from_micros(number * 7_919 % 20_000));
            server.signal(Signal::STOP);
            fs::copy(stage.path("disk.img"), &image).unwrap();
            server.signal(Signal::CONT);
            // A link that is cut for ever, each time before a login has ended, carries nothing.
            if number < images() {
                disturb();
            }
            examine(&image)
        };
        // Under load what the writer has flushed may come to the server only after the first images.
        let (mut counts, since) = (Vec::new(), Instant::now());
        while counts.len() < images() as usize
            || (counts.last() == Some(&0) && since.elapsed() < PATIENCE)
        {
            counts.push(image_of(counts.len() as u64));
        }
        counts
    });
    println!("{counts:?} records");
    assert!(counts.is_sorted(), "what was on the server is not there any more: {counts:?}");
    assert!(counts.last().is_some_and(|last| *last > 0), "nothing came to the server");
    stage.longhaul("umount disk");
    assert!(examine(&stage.path("disk.img")) >= counts[counts.len() - 1]);
}

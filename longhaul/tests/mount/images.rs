//! What the server holds while a client with a journal works: at every moment an ordinary disk after a power cut.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
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

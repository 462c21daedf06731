//! A mirror of two servers, of which one goes away and comes back.

mod common;
#[expect(dead_code, reason = "each test uses its part")]
#[path = "common/nbd.rs"]
mod nbd;
#[path = "common/port.rs"]
mod port;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{LONGHAUL, Running, run};
use nbd::Nbd;
use port::Port;
use rustix::process::Signal;

const MIB: usize = 1 << 20;

/// A directory, and the ports of two servers that come back to them.
struct Fixture {
    home: tempfile::TempDir,
    ports: [Port; 2],
}

impl Fixture {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), ports: [Port::reserve(), Port::reserve()] }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn serve(&self, at: usize) -> Running {
        let name = ["a", "b"][at];
        let mut command = Command::new(LONGHAUL);
        command.args(["serve", "--listen", &format!("127.0.0.1:{}", self.ports[at].number)]);
        command.arg(format!("--volume={name}=file:{name}.img,size=8M"));
        command.env("STATE_DIRECTORY", self.path(&format!("state-{name}")));
        let server = Running::start(command.current_dir(&self.home));
        assert!(server.line().is_some_and(|line| line.starts_with("ready ")));
        server
    }

    fn uri(&self, options: &str) -> String {
        let uri = |at: usize, name: &str| {
            let port = self.ports[at].number;
            format!("iscsi://127.0.0.1:{port}/iqn.2026-11.dev.longhaul:{name}/0")
        };
        format!("mirror:({},{}{options})", uri(0, "a"), uri(1, "b"))
    }

    /// Makes the mirror of both servers.
    fn init(&self) {
        let (said, made) = run(&self.longhaul(&format!("mirror init '{}'", self.uri(""))));
        assert!(made.success(), "{said}");
    }

    fn longhaul(&self, args: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 2>&1\nexec \"$0\" {args}"), LONGHAUL]);
        shell.env("STATE_DIRECTORY", self.path("state")).current_dir(&self.home);
        shell
    }

    fn attach(&self, options: &str) -> Running {
        self.attach_with(options, "")
    }

    fn attach_with(&self, options: &str, more: &str) -> Running {
        let args = format!("attach '{}' --nbd disk.sock --log info {more}", self.uri(options));
        let attached = Running::start(&mut self.longhaul(&args));
        wait_for(&attached, "ready ");
        attached
    }

    /// What is in the mirror on one member.
    fn data(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap().split_off(MIB)
    }
}

fn wait_for(program: &Running, text: &str) {
    let mut said = String::new();
    while let Some(line) = program.line() {
        if line.contains(text) {
            return;
        }
        said = format!("{said}{line}\n");
    }
    panic!("nothing of `{text}` in\n{said}");
}

fn connect(socket: &Path) -> Nbd {
    Nbd::connect(socket)
}

#[test]
fn mirror_of_two_servers_goes_on_without_one_and_gives_it_what_it_lacks() {
    let fixture = Fixture::new();
    let servers = [fixture.serve(0), fixture.serve(1)];
    fixture.init();
    let attached = fixture.attach(",wait=1s");
    wait_for(&attached, "has all of the mirror again");
    let mut disk = connect(&fixture.path("disk.sock"));
    disk.write(0, &[1; 8192]).unwrap();
    disk.flush().unwrap();
    let [first, second] = servers;
    // It is there and does not answer, as behind a link that is out.
    second.signal(Signal::STOP);
    disk.write(4096, &[2; 8192]).unwrap();
    disk.flush().unwrap();
    wait_for(&attached, "the mirror is degraded");
    assert_eq!(disk.read(4096, 4096).unwrap(), [2; 4096]);
    second.kill();
    disk.write_durably(6 * MIB as u64, &[3; 4096]).unwrap();
    let again = fixture.serve(1);
    wait_for(&attached, "has all of the mirror again");
    disk.write(MIB as u64, &[4; 4096]).unwrap();
    disk.flush().unwrap();
    assert!(attached.stop().success());
    assert!(first.stop().success() && again.stop().success());
    let data = fixture.data("a.img");
    assert!(data == fixture.data("b.img"), "the members differ");
    let bytes = [0, 4096, 12287, 6 * MIB, MIB].map(|at| data[at]);
    assert_eq!(bytes, [1, 2, 2, 3, 4]);
}

/// A mirror that was made, and not copied yet: whoever opens it to use it begins with that.
#[test]
fn commands_that_only_look_leave_the_members_as_they_are() {
    let fixture = Fixture::new();
    let names = ["a.img", "b.img"];
    for (name, byte) in names.into_iter().zip([7, 0]) {
        fs::write(fixture.path(name), [vec![0; MIB], vec![byte; MIB]].concat()).unwrap();
    }
    let (said, made) = run(&fixture.longhaul("mirror init 'mirror:(file:a.img,file:b.img)'"));
    assert!(made.success(), "{said}");
    let contents = || names.map(|name| fs::read(fixture.path(name)).unwrap());
    let before = contents();
    for args in ["info 'URI'", "info --chain 'URI'", "info --json 'URI'", "mirror status 'URI'"] {
        let args = args.replace("URI", "mirror:(file:a.img,file:b.img)");
        let (said, shown) = run(&fixture.longhaul(&args));
        assert!(shown.success(), "{args}: {said}");
        assert!(contents() == before, "{args} has changed a member");
    }
    let (said, _) = run(&fixture.longhaul("info 'mirror:(file:a.img,file:b.img)'"));
    let (of_file, _) = run(&fixture.longhaul("info file:a.img"));
    for what in ["write cache", "discard", "fast zeroes", "block size"] {
        let line = |said: &str| said.lines().find(|line| line.contains(what)).map(str::to_owned);
        assert!(line(&said).is_some() && line(&said) == line(&of_file), "{said}{of_file}");
    }
    let copy = "copy 'mirror:(file:a.img,file:b.img)' file:copy.img";
    let (said, copied) = run(&fixture.longhaul(copy));
    assert!(copied.success() && contents() == before, "{said}");
    assert!(fs::read(fixture.path("copy.img")).unwrap() == vec![7; MIB]);
}

/// Blocks of 4096 bytes, each of which holds the number of its last write.
struct Load {
    disk: Nbd,
    blocks: Vec<u32>,
    writes: u32,
}

impl Load {
    fn new(disk: Nbd) -> Self {
        Self { disk, blocks: vec![0; 7 * MIB / 4096], writes: 0 }
    }

    fn block(number: u32) -> Vec<u8> {
        number.to_le_bytes().repeat(1024)
    }

    /// Writes, flushes and reads for a while.
    fn run(&mut self, writes: u32) {
        for _ in 0..writes {
            self.writes += 1;
            let at = self.writes.wrapping_mul(2_654_435_761) as usize % self.blocks.len();
            self.disk.write(at as u64 * 4096, &Self::block(self.writes)).unwrap();
            self.blocks[at] = self.writes;
            if self.writes.is_multiple_of(16) {
                self.disk.flush().unwrap();
            }
            let other = self.writes as usize * 31 % self.blocks.len();
            self.compare(other);
        }
    }

    fn compare(&mut self, at: usize) {
        let found = self.disk.read(at as u64 * 4096, 4096).unwrap();
        assert!(found == Self::block(self.blocks[at]), "block {at} is not what was written");
    }

    fn compare_all(&mut self) {
        (0..self.blocks.len()).for_each(|at| self.compare(at));
    }

    /// Goes on until the program says something.
    fn run_until(&mut self, program: &mut Running, text: &str) {
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || wait_for(program, text));
            while !waits.is_finished() {
                self.run(16);
            }
        });
    }
}

/// Its sessions are given up, so that they do not come back by themselves. At the end the one that was killed has to have all,
/// as the other is.
#[test]
fn killed_server_returns_to_a_mirror_in_use_and_can_take_the_place_of_the_other() {
    let fixture = Fixture::new();
    let [first, second] = [fixture.serve(0), fixture.serve(1)];
    fixture.init();
    let mut attached = fixture.attach_with(",wait=1s", "--reconnect-for 1s");
    let mut load = Load::new(connect(&fixture.path("disk.sock")));
    load.run_until(&mut attached, "has all of the mirror again");
    second.kill();
    load.run_until(&mut attached, "the mirror is degraded");
    load.run_until(&mut attached, "is not taken back");
    let second = fixture.serve(1);
    load.run_until(&mut attached, "is out of the mirror still");
    load.run_until(&mut attached, "has all of the mirror again");
    first.kill();
    load.run_until(&mut attached, "the mirror is degraded");
    load.run(100);
    load.compare_all();
    let first = fixture.serve(0);
    load.run_until(&mut attached, "has all of the mirror again");
    load.disk.flush().unwrap();
    load.compare_all();
    assert!(attached.stop().success());
    assert!(first.stop().success() && second.stop().success());
    assert!(fixture.data("a.img") == fixture.data("b.img"), "the members differ");
}

#[test]
fn server_that_is_started_later_than_a_mirror_is_taken_into_it() {
    let fixture = Fixture::new();
    let [first, second] = [fixture.serve(0), fixture.serve(1)];
    fixture.init();
    assert!(second.stop().success());
    let mut attached = fixture.attach_with(",alone", "--reconnect-for 1s");
    let mut load = Load::new(connect(&fixture.path("disk.sock")));
    load.run(100);
    let second = fixture.serve(1);
    load.run_until(&mut attached, "has all of the mirror again");
    load.compare_all();
    load.disk.flush().unwrap();
    assert!(attached.stop().success());
    assert!(first.stop().success() && second.stop().success());
    assert!(fixture.data("a.img") == fixture.data("b.img"), "the members differ");
}

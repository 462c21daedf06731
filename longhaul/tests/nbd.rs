//! Strangers at the NBD front: libnbd's tools, qemu's and fio, against an attached volume.

use std::path::Path;
use std::process::Command;

mod common;

use common::{LONGHAUL, Running, run};

const MIB: usize = 1 << 20;

/// An attached volume, and a directory to work in.
struct Attached {
    dir: tempfile::TempDir,
    server: Running,
    uri: String,
}

impl Attached {
    fn new(volume: &str, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(LONGHAUL);
        command.args(["attach", volume, "--nbd", "disk.sock"]).args(options).current_dir(&dir);
        let server = Running::start(&mut command);
        let ready = server.line().expect("it says when it is ready");
        let uri = ready.strip_prefix("ready ").unwrap().to_owned();
        Self { dir, server, uri }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs a stranger, who must succeed; what it printed.
    fn ask(&self, program: &str, args: &[&str]) -> String {
        let (printed, code) = self.try_ask(program, args);
        assert_eq!(code, Some(0), "{program} {args:?}\n{printed}");
        printed
    }

    fn try_ask(&self, program: &str, args: &[&str]) -> (String, Option<i32>) {
        let mut command = Command::new(program);
        let (printed, status) = run(command.args(args).current_dir(self.path()));
        (printed, status.code())
    }

    fn stop(self) {
        assert!(self.server.stop().success());
    }
}

/// A file of noise between two holes.
fn image(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 24 * MIB];
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for word in bytes[8 * MIB..13 * MIB].chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_sees_what_the_volume_is() {
    let disk = Attached::new("file:disk.img", &["--size", "24M"]);
    let json = disk.ask("nbdinfo", &["--json", &disk.uri]);
    let info: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 24 * MIB);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    assert_eq!(export["block_size_minimum"], 512);
    for can in ["flush", "fua", "multi_conn", "trim", "zero", "fast_zero", "df", "cache"] {
        assert_eq!(export[format!("can_{can}")], true, "{can}");
    }
    assert_eq!(export["is_read_only"], false);
    let map = disk.ask("nbdinfo", &["--map", "--json", &disk.uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    assert_eq!((&map[0]["length"], &map[0]["type"]), (&(24 * MIB).into(), &3.into()));
    disk.stop();
}

#[test]
fn a_read_only_volume_stays_as_it_is() {
    let disk = Attached::new("memory:1M", &["--read-only"]);
    disk.ask("nbdinfo", &["--is", "read-only", &disk.uri]);
    let (printed, code) = disk.try_ask("nbdinfo", &["--can", "write", &disk.uri]);
    assert_eq!(code, Some(2), "{printed}");
    disk.stop();
}

#[test]
fn nbdcopy_there_and_back_over_several_connections() {
    let disk = Attached::new("file:disk.img", &["--size", "24M"]);
    let bytes = image(&disk.path().join("in.img"));
    disk.ask("nbdcopy", &["--flush", "--connections=4", "in.img", &disk.uri]);
    disk.ask("nbdcopy", &["--connections=4", &disk.uri, "out.img"]);
    assert_eq!(std::fs::read(disk.path().join("out.img")).unwrap(), bytes);
    let map = disk.ask("nbdinfo", &["--map", "--totals", &disk.uri]);
    assert!(map.contains("5242880  20.8%   0 data"), "the holes are holes: {map}");
    let path = disk.path().join("disk.img");
    assert_eq!(std::fs::read(path).unwrap(), bytes, "the store holds what was flushed");
    disk.stop();
}

#[test]
fn qemu_img_converts_and_compares() {
    let disk = Attached::new("memory:24M", &[]);
    let bytes = image(&disk.path().join("in.img"));
    disk.ask("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "in.img", &disk.uri]);
    let compared =
        disk.ask("qemu-img", &["compare", "-f", "raw", "-F", "raw", "in.img", &disk.uri]);
    assert!(compared.contains("Images are identical."), "{compared}");
    disk.ask("qemu-img", &["convert", "-f", "raw", "-O", "raw", &disk.uri, "out.img"]);
    assert_eq!(std::fs::read(disk.path().join("out.img")).unwrap(), bytes);
    let map = disk.ask("qemu-img", &["map", "-f", "raw", "--output=json", &disk.uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let data: u64 = (map.as_array().unwrap().iter())
        .filter(|extent| extent["data"] == true)
        .map(|extent| extent["length"].as_u64().unwrap())
        .sum();
    assert_eq!(data, 5 * MIB as u64, "what was zero is a hole: {map}");
    disk.stop();
}

#[test]
fn qemu_io_uses_every_command() {
    let disk = Attached::new("file:disk.img", &["--size", "24M"]);
    let script = [
        "write -P 7 0 1M",
        "read -P 7 0 1M",
        "write -f -P 8 4k 4k",
        "read -P 8 4k 4k",
        "write -z 64k 64k",
        "read -P 0 64k 64k",
        "write -z -u 128k 64k",
        "read -P 0 128k 64k",
        "write -z -n 192k 64k",
        "read -P 0 192k 64k",
        "discard 256k 256k",
        "read -P 0 256k 256k",
        "read -P 7 512k 512k",
        "aio_write -P 9 2M 20M",
        "aio_read -P 0 22M 2M",
        "aio_flush",
        "read -P 9 2M 20M",
        "write -P 5 512 512",
        "read -P 7 0 512",
        "read -P 5 512 512",
        "read -P 7 1024 3072",
        "flush",
    ];
    let mut args = vec!["-f", "raw", disk.uri.as_str()];
    args.extend(script.iter().flat_map(|command| ["-c", command]));
    let printed = disk.ask("qemu-io", &args);
    assert!(!printed.contains("failed"), "{printed}");
    let (printed, code) =
        disk.try_ask("qemu-io", &["-f", "raw", "-c", "read -P 1 0 512", &disk.uri]);
    assert_eq!(code, Some(1), "a pattern that is not there is noticed: {printed}");
    disk.stop();
}

#[test]
fn fio_verifies_random_writes() {
    let disk = Attached::new("file:disk.img", &["--size", "24M"]);
    let uri = format!("--uri={}", disk.uri);
    let printed = disk.ask(
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-256k",
            "--bs_unaligned=0",
            "--size=24M",
            "--iodepth=32",
            "--verify=crc32c",
            "--do_verify=1",
            "--fsync=64",
            "--randseed=1",
        ],
    );
    assert!(printed.contains("err= 0"), "{printed}");
    disk.stop();
}

#[test]
fn a_stop_ends_an_idle_connection_and_flushes() {
    let disk = Attached::new("memory:1M", &[]);
    let mut client =
        std::os::unix::net::UnixStream::connect(disk.path().join("disk.sock")).unwrap();
    let mut greeting = [0; 18];
    std::io::Read::read_exact(&mut client, &mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    let path = disk.path().join("disk.sock");
    assert!(disk.server.stop().success());
    assert!(!path.exists());
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut client, &mut rest).unwrap();
    assert!(rest.is_empty());
}

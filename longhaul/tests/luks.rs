//! cryptsetup both ways: it opens and changes what we made, and we open what it made. Data are judged
//! by a third implementation of XTS, with the volume key that cryptsetup gives out.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use aes::cipher::KeyInit;
use aes::{Aes128, Aes256};
use bytes::Bytes;
use longhaul::chain::{self, OpenOptions};
use longhaul::luks::{self, CipherArgs, CostArgs, Init, KeySize, Options, Restore};
use longhaul::secret::{Secret, Source};
use longhaul::size::Size;
use longhaul::uri::Uri;
use tokio::sync::{Mutex, MutexGuard};
use volume::{CryptoErase, Durability, Span, Volume};
use xts_mode::Xts128;

const SIZE: u64 = 40 << 20;

/// A folder with a disk and the pass-phrases `one` and `two` as key files.
struct Bench {
    folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// One test at a time: a child holds copies of all open files between fork and exec, and with them the
/// lock on the disk of another test.
static ALONE: Mutex<()> = Mutex::const_new(());

impl Bench {
    async fn new() -> Self {
        let alone = ALONE.lock().await;
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        std::fs::File::create(folder.path().join("disk")).unwrap().set_len(SIZE).unwrap();
        Self { folder, _alone: alone }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The disk, locked for as long as the answer lives.
    async fn store(&self) -> Arc<dyn Volume> {
        let uri = Uri::File(self.path("disk"));
        chain::open(&uri, OpenOptions::default()).await.unwrap().volume()
    }

    async fn seal(&self) {
        let how = Init { label: Some("ours".into()), cost: cheap(), ..Init::default() };
        luks::init(self.store().await, secret("one"), how).await.unwrap();
    }

    async fn open(&self, text: &str) -> Option<Arc<dyn Volume>> {
        luks::open(self.store().await, secret(text), Options::default()).await.ok()
    }

    /// Runs cryptsetup with `arguments`, in which `@name` stands for a file of this folder.
    fn cryptsetup(&self, arguments: &str) -> Output {
        self.cryptsetup_reading(arguments, b"")
    }

    fn cryptsetup_reading(&self, arguments: &str, input: &[u8]) -> Output {
        let arguments = arguments.split_whitespace().map(|word| match word.strip_prefix('@') {
            Some(name) => self.path(name).into_os_string(),
            None => word.into(),
        });
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let mut child = Command::new("cryptsetup")
            .args(arguments)
            .env("PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cryptsetup is installed (Debian: cryptsetup-bin)");
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    fn must(&self, arguments: &str) -> String {
        let output = self.cryptsetup(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cryptsetup {arguments}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn opens_there(&self, name: &str) -> bool {
        self.cryptsetup(&format!("open --test-passphrase --key-file @{name} @disk"))
            .status
            .success()
    }

    /// The payload as a third implementation deciphers it.
    fn deciphered(&self, offset: u64, sector_size: usize, len: usize) -> Vec<u8> {
        let disk = std::fs::read(self.path("disk")).unwrap();
        let mut data = disk[offset as usize..][..len].to_vec();
        let xts = self.third_implementation();
        for (tweak, sector) in tweaks(sector_size).zip(data.chunks_mut(sector_size)) {
            xts.decrypt(sector, tweak);
        }
        data
    }

    /// Enciphers `data` with it, and puts them where the payload starts.
    fn encipher(&self, offset: u64, sector_size: usize, data: &[u8]) {
        let mut disk = std::fs::read(self.path("disk")).unwrap();
        let place = &mut disk[offset as usize..][..data.len()];
        place.copy_from_slice(data);
        let xts = self.third_implementation();
        for (tweak, sector) in tweaks(sector_size).zip(place.chunks_mut(sector_size)) {
            xts.encrypt(sector, tweak);
        }
        std::fs::write(self.path("disk"), disk).unwrap();
    }

    fn third_implementation(&self) -> Third {
        self.must("luksDump -q --dump-volume-key --volume-key-file @key --key-file @one @disk");
        let key = std::fs::read(self.path("key")).unwrap();
        std::fs::remove_file(self.path("key")).unwrap();
        let (data, tweak) = key.split_at(key.len() / 2);
        if key.len() == 64 {
            let half = |half| Aes256::new_from_slice(half).unwrap();
            Third::Aes256(Box::new(Xts128::new(half(data), half(tweak))))
        } else {
            let half = |half| Aes128::new_from_slice(half).unwrap();
            Third::Aes128(Box::new(Xts128::new(half(data), half(tweak))))
        }
    }
}

enum Third {
    Aes128(Box<Xts128<Aes128>>),
    Aes256(Box<Xts128<Aes256>>),
}

impl Third {
    fn encrypt(&self, sector: &mut [u8], tweak: [u8; 16]) {
        match self {
            Self::Aes128(xts) => xts.encrypt_sector(sector, tweak.into()),
            Self::Aes256(xts) => xts.encrypt_sector(sector, tweak.into()),
        }
    }

    fn decrypt(&self, sector: &mut [u8], tweak: [u8; 16]) {
        match self {
            Self::Aes128(xts) => xts.decrypt_sector(sector, tweak.into()),
            Self::Aes256(xts) => xts.decrypt_sector(sector, tweak.into()),
        }
    }
}

/// plain64 in units of 512 bytes, whatever the sector size.
fn tweaks(sector_size: usize) -> impl Iterator<Item = [u8; 16]> {
    (0_u128..).step_by(sector_size / 512).map(u128::to_le_bytes)
}

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

fn cheap() -> CostArgs {
    CostArgs {
        pbkdf_memory: Some(Size(32 << 10)),
        pbkdf_iterations: Some(4),
        ..CostArgs::default()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 5 + at / 4096) as u8).collect()
}

#[tokio::test]
async fn cryptsetup_takes_what_we_made() {
    let bench = Bench::new().await;
    bench.seal().await;
    let dump = bench.must("luksDump @disk");
    for line in ["Version:       \t2", "Label:         \tours", "cipher: aes-xts-plain64"] {
        assert!(dump.contains(line), "{line} is not in {dump}");
    }
    assert!(dump.contains("sector: 4096 [bytes]") && dump.contains("argon2id"), "{dump}");
    assert!(bench.opens_there("one") && !bench.opens_there("two"));
    luks::add(bench.store().await, secret("one"), secret("two"), cheap()).await.unwrap();
    assert!(bench.opens_there("one") && bench.opens_there("two"));
    luks::remove(bench.store().await, Some(secret("one").into()), None, false).await.unwrap();
    assert!(!bench.opens_there("one") && bench.opens_there("two"));
    luks::change(bench.store().await, secret("two"), secret("one"), cheap()).await.unwrap();
    assert!(bench.opens_there("one") && !bench.opens_there("two"));
}

#[tokio::test]
async fn volume_that_was_cut_off_opens_with_a_warning() {
    let bench = Bench::new().await;
    bench.seal().await;
    let copy = |name: &str| {
        let uri = |name: &str| format!("file:{}", bench.path(name).display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        command.args(["copy", &uri("disk"), &uri(name), "--key-file"]).arg(bench.path("one"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let whole = copy("whole");
    assert!(!whole.contains("its end is missing"), "{whole}");
    let disk = std::fs::OpenOptions::new().write(true).open(bench.path("disk")).unwrap();
    disk.set_len(SIZE - (1 << 20)).unwrap();
    let cut = copy("cut");
    assert!(cut.contains("is 39M long, and was 40M: its end is missing"), "{cut}");
}

#[tokio::test]
async fn we_take_what_cryptsetup_changed() {
    let bench = Bench::new().await;
    bench.seal().await;
    let fast = "--pbkdf argon2id --pbkdf-memory 32 --pbkdf-force-iterations 4";
    bench.must(&format!("luksAddKey -q {fast} --key-file @one @disk @two"));
    assert!(bench.open("one").await.is_some() && bench.open("two").await.is_some());
    bench.must("luksRemoveKey -q @disk @one");
    assert!(bench.open("one").await.is_none() && bench.open("two").await.is_some());
    let pbkdf2 = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    bench.must(&format!("luksChangeKey -q {pbkdf2} --key-file @two @disk @one"));
    assert!(bench.open("one").await.is_some() && bench.open("two").await.is_none());
}

/// A slot may hold a key that is not the volume's: what it opens is not this volume.
#[tokio::test]
async fn a_slot_with_another_key_is_passed_over() {
    let bench = Bench::new().await;
    bench.seal().await;
    let fast = "--pbkdf argon2id --pbkdf-memory 32 --pbkdf-force-iterations 4";
    bench.must(&format!("luksAddKey -q {fast} --unbound --key-size 512 --key-slot 1 @disk @two"));
    assert!(bench.open("two").await.is_none(), "it opened with a key that is not its own");
    bench.must(&format!("luksAddKey -q {fast} --key-slot 2 --key-file @one @disk @two"));
    let plain = bench.open("one").await.unwrap();
    plain.write(0, Bytes::from(pattern(4096)), Durability::Durable).await.unwrap();
    drop(plain);
    let plain = bench.open("two").await.unwrap();
    assert!(plain.read(Span::new(0, 4096)).await.unwrap() == pattern(4096));
    drop(plain);
    luks::remove(bench.store().await, Some(secret("one").into()), None, false).await.unwrap();
    let last = luks::remove(bench.store().await, Some(secret("two").into()), None, false)
        .await
        .unwrap_err();
    assert!(last.to_string().contains("last key slot"), "{last}");
}

#[tokio::test]
async fn backups_are_common() {
    let bench = Bench::new().await;
    bench.seal().await;
    luks::backup(bench.store().await, &bench.path("ours")).await.unwrap();
    bench.must("luksHeaderBackup @disk --header-backup-file @theirs");
    luks::change(bench.store().await, secret("one"), secret("two"), cheap()).await.unwrap();
    bench.must("luksHeaderRestore -q @disk --header-backup-file @ours");
    assert!(bench.open("one").await.is_some() && !bench.opens_there("two"));
    luks::change(bench.store().await, secret("one"), secret("two"), cheap()).await.unwrap();
    let how = Restore { secret: Some(secret("one")), force: true, replace: None };
    luks::restore(bench.store().await, &bench.path("theirs"), how).await.unwrap();
    assert!(bench.opens_there("one") && bench.open("two").await.is_none());
}

/// What became of the start of a volume.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// A file system was made there.
    Mkfs,
    /// So many bytes were overwritten with random ones.
    Random(usize),
}

impl Damage {
    fn happen(self, disk: &Path) {
        match self {
            Self::Mkfs => {
                let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
                let mkfs = Command::new("mkfs.ext4")
                    .env("PATH", path)
                    .args(["-q", "-F"])
                    .arg(disk)
                    // No further than the header, or it would take data with it.
                    .arg("16M")
                    .output()
                    .expect("mkfs.ext4 is installed (Debian: e2fsprogs)");
                assert!(mkfs.status.success(), "{}", String::from_utf8_lossy(&mkfs.stderr));
            }
            Self::Random(len) => {
                let mut noise = vec![0; len];
                getrandom::fill(&mut noise).unwrap();
                let file = std::fs::OpenOptions::new().write(true).open(disk).unwrap();
                file.write_all_at(&noise, 0).unwrap();
            }
        }
    }
}

/// The disaster: the header is gone, and there is a backup, made and brought back by either program.
#[tokio::test]
async fn restored_header_opens_whatever_was_written_over_it() {
    let random = [32 << 10, 1 << 20, 16 << 20].map(Damage::Random);
    for damage in [Damage::Mkfs].into_iter().chain(random) {
        for (ours_saves, ours_restores) in [(true, true), (false, true), (true, false)] {
            let what =
                format!("{damage:?}, saved here {ours_saves}, restored here {ours_restores}");
            let bench = Bench::new().await;
            bench.seal().await;
            luks::add(bench.store().await, secret("one"), secret("two"), cheap()).await.unwrap();
            let plain = bench.open("one").await.unwrap();
            let data = pattern(1 << 20);
            plain.write(0, Bytes::from(data.clone()), Durability::Durable).await.unwrap();
            drop(plain);
            if ours_saves {
                luks::backup(bench.store().await, &bench.path("backup")).await.unwrap();
            } else {
                bench.must("luksHeaderBackup @disk --header-backup-file @backup");
            }
            damage.happen(&bench.path("disk"));
            if ours_restores {
                let how = Restore { secret: Some(secret("two")), force: true, replace: None };
                luks::restore(bench.store().await, &bench.path("backup"), how).await.expect(&what);
            } else {
                bench.must("luksHeaderRestore -q @disk --header-backup-file @backup");
            }
            for key in ["one", "two"] {
                assert!(bench.opens_there(key), "cryptsetup, {key}: {what}");
                let plain = bench.open(key).await.unwrap_or_else(|| panic!("{key}: {what}"));
                let read = plain.read(Span::new(0, data.len() as u64)).await.unwrap();
                assert!(read == data, "the data are lost: {what}");
            }
        }
    }
}

#[tokio::test]
async fn cryptsetup_sees_that_discards_are_allowed() {
    let bench = Bench::new().await;
    bench.seal().await;
    assert!(bench.must("luksDump @disk").contains("Flags:       \t(no flags)"));
    let how = Options { allow_discards: true };
    luks::open(bench.store().await, secret("one"), how).await.unwrap();
    let dump = bench.must("luksDump @disk");
    assert!(dump.contains("Flags:       \tallow-discards"), "{dump}");
    assert!(bench.opens_there("one"));
}

#[tokio::test]
async fn third_implementation_reads_our_header() {
    let bench = Bench::new().await;
    bench.seal().await;
    let plain = bench.open("one").await.unwrap();
    let mut expected = pattern(256 << 10);
    plain.write(0, Bytes::from(expected.clone()), Durability::Volatile).await.unwrap();
    // Part of a sector, the end of one and the start of another.
    for (at, len) in [(512, 512), (4096 + 3584, 1024), (20_480 - 512, 9216)] {
        plain.write(at, Bytes::from(vec![0xee; len]), Durability::Volatile).await.unwrap();
        expected[at as usize..][..len].fill(0xee);
    }
    let zeroes = Span::new(100 * 512, 50 * 512);
    plain.write_zeroes(zeroes, Durability::Durable, volume::Space::Release).await.unwrap();
    expected[zeroes.at as usize..zeroes.end() as usize].fill(0);
    plain.flush().await.unwrap();
    drop(plain);
    assert!(bench.deciphered(16 << 20, 4096, expected.len()) == expected);
}

#[tokio::test]
async fn we_open_and_read_what_cryptsetup_made() {
    let fast = "--pbkdf argon2id --pbkdf-memory 32 --pbkdf-force-iterations 4";
    for (arguments, offset, sector_size) in [
        ("--sector-size 4096", 16 << 20, 4096),
        ("--sector-size 512", 16 << 20, 512),
        ("--sector-size 2048 --offset 65536", 32 << 20, 2048),
        ("--sector-size 4096 --key-size 256", 16 << 20, 4096),
        ("--luks2-metadata-size 64k --luks2-keyslots-size 4m --offset 16384", 8 << 20, 4096),
    ] {
        let bench = Bench::new().await;
        let format = "luksFormat -q --type luks2 --cipher aes-xts-plain64";
        bench.must(&format!("{format} {fast} {arguments} @disk @one"));
        bench.must(&format!("luksAddKey -q {fast} --key-file @one @disk @two"));
        let expected = pattern(128 << 10);
        bench.encipher(offset, sector_size, &expected);
        let plain = bench.open("two").await.expect("we open it");
        assert_eq!(plain.shape().size, SIZE - offset, "{arguments}");
        let read = plain.read(Span::new(0, expected.len() as u64)).await.unwrap();
        assert!(read == expected, "{arguments}");
        assert!(plain.read(Span::new(512, 1024)).await.unwrap() == expected[512..1536]);
        plain.write(512, Bytes::from(vec![9; 512]), Durability::Durable).await.unwrap();
        drop(plain);
        assert_eq!(bench.deciphered(offset, sector_size, 4096)[512..1024], [9; 512]);
        // Changing its header, whatever its sizes, leaves one that cryptsetup takes.
        luks::remove(bench.store().await, Some(secret("two").into()), None, false).await.unwrap();
        assert!(bench.opens_there("one") && !bench.opens_there("two"));
    }
}

#[tokio::test]
async fn unsupported_header_is_refused_by_name() {
    let fast = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    for (arguments, why) in [
        ("--type luks1", "LUKS1"),
        ("--type luks2 --cipher aes-cbc-essiv:sha256 --key-size 256", "with aes-cbc-essiv:sha256;"),
        ("--type luks2 --cipher aes-cbc-plain64 --key-size 256", "with aes-cbc-plain64;"),
        ("--type luks2 --cipher aes-ctr-plain64 --key-size 256", "with aes-ctr-plain64;"),
        ("--type luks2 --cipher aes-xts-plain --key-size 512", "with aes-xts-plain;"),
        ("--type luks2 --cipher aes-xts-plain64be --key-size 512", "with aes-xts-plain64be;"),
    ] {
        let bench = Bench::new().await;
        bench.must(&format!("luksFormat -q {fast} {arguments} @disk @one"));
        let refused = luks::open(bench.store().await, secret("one"), Options::default()).await;
        let refused = refused.err().expect("refused").to_string();
        assert!(refused.contains(why), "{arguments}: {refused}");
        if why.starts_with("with") {
            assert!(refused.contains("cryptsetup reencrypt"), "{arguments}: {refused}");
        }
    }
}

#[tokio::test]
async fn volume_with_a_short_key_is_what_cryptsetup_takes_it_for() {
    let bench = Bench::new().await;
    let cipher = CipherArgs { key_size: KeySize::Bits256, ..CipherArgs::default() };
    let how = Init { cipher, cost: cheap(), ..Init::default() };
    luks::init(bench.store().await, secret("one"), how).await.unwrap();
    let dump = bench.must("luksDump @disk");
    assert!(dump.contains("Key:        256 bits"), "{dump}");
    assert!(bench.opens_there("one"));
    let plain = bench.open("one").await.unwrap();
    plain.write(0, Bytes::from(pattern(64 << 10)), Durability::Durable).await.unwrap();
    drop(plain);
    assert!(bench.deciphered(16 << 20, 4096, 64 << 10) == pattern(64 << 10));
}

/// The same bytes are the same secret here and there, however they are given.
#[tokio::test]
async fn pass_phrases_mean_the_same() {
    let bench = Bench::new().await;
    let line = bench.path("line");
    std::fs::write(&line, "pass phrase\nsecond line").unwrap();
    let how = Init { cost: cheap(), ..Init::default() };
    let first_line = Source::File(line.clone()).read("it").unwrap();
    luks::init(bench.store().await, first_line, how).await.unwrap();
    let whole_file = Source::KeyFile(line).read("it").unwrap();
    luks::add(bench.store().await, secret("pass phrase"), whole_file, cheap()).await.unwrap();
    let test = "open --test-passphrase @disk";
    let typed = |text: &[u8], slot: u32| {
        let arguments = format!("{test} --key-slot {slot}");
        bench.cryptsetup_reading(&arguments, text).status.success()
    };
    assert!(typed(b"pass phrase\nsecond line", 0), "standard input ends at the line's end");
    assert!(!typed(b"pass phrase\nsecond line", 1));
    assert!(bench.cryptsetup(&format!("{test} --key-slot 1 --key-file @line")).status.success());
    assert!(!bench.cryptsetup(&format!("{test} --key-slot 0 --key-file @line")).status.success());
}

/// No plain text and no key leaves the program: what is on the disk looks random throughout.
#[tokio::test]
async fn the_disk_holds_no_plain_text() {
    let bench = Bench::new().await;
    bench.seal().await;
    let plain = bench.open("one").await.unwrap();
    let text = b"attack at dawn. ".repeat(4096);
    plain.write(0, Bytes::from(text.clone()), Durability::Durable).await.unwrap();
    drop(plain);
    let disk = std::fs::read(bench.path("disk")).unwrap();
    assert!(!contains(&disk, b"attack at dawn"), "plain text is on the disk");
    let ciphertext = &disk[16 << 20..][..text.len()];
    let mut blocks: Vec<&[u8]> = ciphertext.chunks(16).collect();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), text.len() / 16, "equal plain text gave equal ciphertext");
}

/// What cryptsetup finds once the key has been destroyed: one slot, and a key under which what was written since
/// is deciphered, and what was written before is not.
#[tokio::test]
async fn cryptsetup_finds_the_next_key() {
    const PAYLOAD: u64 = 16 << 20;
    let bench = Bench::new().await;
    bench.seal().await;
    luks::add(bench.store().await, secret("one"), secret("two"), cheap()).await.unwrap();
    let encrypted = luks::recognise(bench.store().await).await.unwrap().unwrap();
    let key = secret("one").into();
    let plain = luks::Erasable::open(encrypted, &key, Options::default()).await.unwrap();
    let (old, new) = (pattern(8192), pattern(4096));
    plain.write(0, Bytes::from(old.clone()), Durability::Durable).await.unwrap();
    plain.crypto_erase().await.unwrap();
    plain.write(0, Bytes::from(new.clone()), Durability::Durable).await.unwrap();
    let noise = plain.read(Span::new(4096, 4096)).await.unwrap();
    drop(plain);
    let found = bench.deciphered(PAYLOAD, 4096, 8192);
    assert!(found[..4096] == new, "what was written since");
    assert!(found[4096..] == noise && noise != old[4096..], "what was written before");
    let opens = |key: &str| {
        let arguments = format!("open --test-passphrase --key-file @{key} @disk");
        bench.cryptsetup(&arguments).status.success()
    };
    assert!(opens("one") && !opens("two"));
    let dump = String::from_utf8(bench.cryptsetup("luksDump @disk").stdout).unwrap();
    assert_eq!(dump.matches(": luks2").count(), 1, "{dump}");
    assert_eq!(dump.matches(": pbkdf2").count(), 1, "{dump}");
}

fn contains(hay: &[u8], needle: &[u8]) -> bool {
    hay.windows(needle.len()).any(|window| window == needle)
}

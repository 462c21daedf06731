//! Recovery sheets: what stands on them opens the volume, here and with cryptsetup, and nobody else reads them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LONGHAUL: &str = env!("CARGO_BIN_EXE_longhaul");

/// The cost of a key slot of a test.
const COST: [&str; 4] = ["--pbkdf-memory", "32M", "--pbkdf-iterations", "4"];

struct Bench(tempfile::TempDir);

impl Bench {
    /// A folder with a pass-phrase.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("pass"), "correct horse battery staple").unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, program: &str, arguments: &str) -> Output {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let mut command = Command::new(program);
        command.args(arguments.split_whitespace()).current_dir(self.0.path()).env("PATH", path);
        command.output().unwrap()
    }

    #[track_caller]
    fn done(&self, arguments: &str) -> String {
        let output = self.run(LONGHAUL, arguments);
        assert!(output.status.success(), "{arguments}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&self, arguments: &str) -> String {
        let output = self.run(LONGHAUL, arguments);
        assert!(!output.status.success(), "{arguments}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn init(&self, more: &str) -> String {
        let cost = COST.join(" ");
        self.done(&format!("key init file:disk --size 40M --passphrase-file pass {cost} {more}"))
    }

    fn sheet(&self, output: &str) -> String {
        let cost = COST.join(" ");
        self.done(&format!("key sheet file:disk --output {output} --passphrase-file pass {cost}"))
    }

    fn slots(&self) -> usize {
        let list: serde_json::Value =
            serde_json::from_str(&self.done("key list file:disk --json")).unwrap();
        list["slots"].as_array().unwrap().len()
    }
}

/// The words on a page of text, in their order.
fn words(page: &str) -> Vec<String> {
    let mut found = vec![String::new(); 24];
    let fields: Vec<&str> = page.split_whitespace().collect();
    for pair in fields.windows(2) {
        let number = pair[0].parse::<usize>().ok().filter(|number| (1..=24).contains(number));
        if let (Some(number), true) =
            (number, pair[1].bytes().all(|byte| byte.is_ascii_lowercase()))
        {
            found[number - 1] = pair[1].to_owned();
        }
    }
    found
}

#[test]
fn words_of_the_sheet_open_the_volume_here_and_with_cryptsetup() {
    let bench = Bench::new();
    bench.init("--label backup");
    assert!(bench.sheet("sheet.txt").starts_with("added key slot 1; its words are on sheet.txt"));
    let page = fs::read_to_string(bench.path("sheet.txt")).unwrap();
    assert_eq!(fs::metadata(bench.path("sheet.txt")).unwrap().mode() & 0o777, 0o600);
    let disk = bench.path("disk");
    assert!(page.contains(&format!("longhaul ls file:{} /", disk.display())), "{page}");
    let words = words(&page);
    fs::write(bench.path("words"), words.join(" ")).unwrap();
    let opens = bench.run("cryptsetup", "open --test-passphrase --key-file words disk");
    assert!(opens.status.success(), "{opens:?}");
    let typed: Vec<String> =
        words.iter().map(|word| word[..word.len().min(4)].to_uppercase()).collect();
    fs::write(bench.path("typed"), typed.join("  ")).unwrap();
    let tried = "key test file:disk --passphrase-file";
    assert_eq!(bench.done(&format!("{tried} typed --recovery")), "opens key slot 1\n");
    assert_eq!(bench.done(&format!("{tried} words")), "opens key slot 1\n");
    let mut wrong = words;
    wrong[6] = "xyzzy".into();
    fs::write(bench.path("wrong"), wrong.join(" ")).unwrap();
    let said = bench.fails(&format!("{tried} wrong --recovery"));
    assert!(said.contains("word 7 is not in the list"), "{said}");
    bench.done("key remove file:disk --slot 1 --passphrase-file pass");
    bench.fails(&format!("{tried} words --recovery"));
}

#[test]
fn init_makes_a_sheet_with_the_volume() {
    let bench = Bench::new();
    assert!(bench.init("--sheet sheet.svg").contains("the recovery sheet opens key slot 1"));
    let page = fs::read_to_string(bench.path("sheet.svg")).unwrap();
    assert!(page.starts_with("<svg") && page.ends_with("</svg>\n"));
    assert_eq!(
        (fs::metadata(bench.path("sheet.svg")).unwrap().mode() & 0o777, bench.slots()),
        (0o600, 2)
    );
}

#[test]
fn sheet_that_cannot_be_made_leaves_no_key_slot() {
    let bench = Bench::new();
    bench.init("");
    fs::write(bench.path("there.txt"), "kept").unwrap();
    let sheet = "key sheet file:disk --passphrase-file pass --output";
    for (output, why) in [
        ("there.txt", "cannot write the recovery sheet"),
        ("none/sheet.txt", "cannot write the recovery sheet"),
        ("sheet.pdf", "neither in .svg nor in .txt"),
        ("-", "no terminal"),
    ] {
        let said = bench.fails(&format!("{sheet} {output}"));
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(fs::read_to_string(bench.path("there.txt")).unwrap(), "kept");
    fs::write(bench.path("other"), "wrong").unwrap();
    bench.fails("key sheet file:disk --passphrase-file other --output new.txt");
    assert!(!bench.path("new.txt").exists());
    assert_eq!(bench.slots(), 1);
    // No file is left that nobody asked for.
    let left = fs::read_dir(bench.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let known = ["disk", "other", "pass", "there.txt"].map(OsStr::new);
    assert!(left.into_iter().all(|name| known.contains(&Path::new(&name).as_os_str())));
}

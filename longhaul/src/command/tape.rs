//! `longhaul tape`: what is on a tape, and files to and from it: without a drive, or in the drive of a server.

mod blocks;
mod drive;
mod encryption;
mod remote;
mod status;
mod stream;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use proto::tape_encryption::RecordError;
use serde::Serialize;
use volume::tape::{BLOCK_MAX, Moved, Read, Tape, TapeError, TapeResult};

use self::blocks::{Blocks, Encrypted, Plain};
use self::encryption::{DecryptArgs, Decryption, EncryptArgs, Encryption, Unusable};
use super::output::not_written;
use super::{closing, say, say_done, say_json, standard_output, stop_on_signals, unless_stopped};
use crate::chain::{self, Chain, OpenOptions};
use crate::durable::make_directories;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::regular_file::open_regular;
use crate::size::Size;
use crate::stop::Stop;
use crate::uri::Uri;

/// Read and write the tape in the drive of a server; look at a tape that no drive has, check it, and copy files to and from it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  tar -c . | longhaul tape write iscsi://server/iqn.2026-11.dev.longhaul:backup
  longhaul tape read iscsi://server/iqn.2026-11.dev.longhaul:backup | tar -x
  longhaul tape write iscsi://server/iqn.2026-11.dev.longhaul:backup etc.tar --append --encrypt
  longhaul tape info /srv/tapes/A.tape
  longhaul tape import /srv/tapes/A.tape --size 100G home.tar etc.tar
  longhaul tape export /srv/tapes/A.tape --file 1 | tar -t

A file on a tape is what lies between two file marks, counted from 0. An archive of tar is imported and exported as it is.";

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a drive of a server, and what tape is in it
    Status(status::Args),
    /// Read a file from the tape in a drive of a server
    Read(remote::ReadArgs),
    /// Write a file to the tape in a drive of a server, from the beginning: what was on it is gone
    Write(remote::WriteArgs),
    /// Show how long it is, and what is on it
    Info {
        /// The tape
        tape: PathBuf,
        /// Print one JSON object, with sizes in bytes
        #[arg(long)]
        json: bool,
    },
    /// Write files behind what is on it, each with a file mark at its end
    Import {
        /// The tape
        tape: PathBuf,
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The length of the blocks; the last one of a file may be shorter
        #[arg(long, default_value = "10K")]
        block: Size,
        /// Make the tape if it is missing, so long
        #[arg(long)]
        size: Option<Size>,
        /// Make it one that is written once, for good: nothing on it is written over
        #[arg(long, requires = "size")]
        worm: bool,
        #[command(flatten)]
        encrypt: EncryptArgs,
    },
    /// Write one of its files to standard output, or all of them to a directory
    Export {
        /// The tape
        tape: PathBuf,
        /// Which file
        #[arg(long, conflicts_with = "dir", required_unless_present = "dir")]
        file: Option<u64>,
        /// The directory, which is made: file 0 is called 0000 there
        #[arg(long)]
        dir: Option<PathBuf>,
        #[command(flatten)]
        decrypt: DecryptArgs,
    },
    /// Read all of it, and fail if anything is not what was written
    Verify {
        /// The tape
        tape: PathBuf,
    },
}

/// Does it.
pub async fn run(args: Args) -> Outcome {
    match args.action {
        Action::Status(args) => status::run(args).await,
        Action::Read(args) => remote::read(args).await,
        Action::Write(args) => remote::write(args).await,
        Action::Info { tape, json } => info(&tape, json).await,
        Action::Import { tape, files, block, size, worm, encrypt } => {
            check_block(block)?;
            let stop = stop_on_signals()?;
            let encryption = unless_stopped(&stop, encrypt.encryption()).await?;
            let new = NewTape { size, write_once: worm };
            import(&tape, &files, (block, new), encryption.as_ref(), &stop).await
        }
        Action::Export { tape, file, dir, decrypt } => {
            export(&tape, file, dir.as_deref(), decrypt, &stop_on_signals()?).await
        }
        Action::Verify { tape } => verify(&tape).await,
    }
}

/// Works on a tape that nobody else uses meanwhile.
async fn on_tape<T>(
    path: &Path,
    options: OpenOptions,
    work: impl AsyncFnOnce(&mut Tape) -> Outcome<T>,
) -> Outcome<T> {
    let options = OpenOptions { by_records: true, ..options };
    let chain = chain::open(&Uri::of_tape(path.to_owned()), options).await?;
    closing(chain, async |chain: &Chain| {
        let new_id =
            getrandom::u64().or_fail(|| "the system gives no random numbers".to_owned())?;
        let tape = Tape::open(Arc::clone(&chain.volume()), new_id).await;
        work(&mut tape.or_fail(|| format!("cannot use {}", path.shown()))?).await
    })
    .await
}

fn to_read() -> OpenOptions {
    OpenOptions { existing_only: true, read_only: true, ..OpenOptions::default() }
}

/// What is printed of a tape.
#[derive(Serialize)]
struct Info {
    /// In hexadecimal digits; absent of a tape that nothing was ever written to.
    id: Option<String>,
    size: u64,
    /// Bytes of it that are used, with what is needed beside the data.
    used: u64,
    /// Bytes up to the early warning.
    left: u64,
    blocks: u64,
    filemarks: u64,
    /// Nothing that is on it is written over.
    write_once: bool,
}

impl std::fmt::Display for Info {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = self.id.as_deref().unwrap_or("none, it is blank");
        writeln!(f, "  id          {id}")?;
        writeln!(f, "  size        {} bytes", Size(self.size))?;
        writeln!(f, "  used        {} bytes, {} left", Size(self.used), Size(self.left))?;
        write!(f, "  holds       {} blocks, {} file marks", self.blocks, self.filemarks)?;
        if self.write_once {
            write!(f, "\n  writes      once: nothing that is on it is written over")?;
        }
        Ok(())
    }
}

async fn info(path: &Path, json: bool) -> Outcome {
    let info = on_tape(path, to_read(), async |tape: &mut Tape| {
        tape.go_to_end();
        let end = tape.end();
        Ok(Info {
            id: Some(tape.id()).filter(|id| *id != 0).map(|id| format!("{id:016x}")),
            size: tape.capacity(),
            used: end.at,
            left: tape.remaining(),
            blocks: end.object - end.marks,
            filemarks: end.marks,
            write_once: tape.is_write_once(),
        })
    })
    .await?;
    if json {
        return say_json(&info);
    }
    say(&format!("{}\n{info}", path.shown()))
}

fn check_block(block: Size) -> Outcome {
    let most = Size(BLOCK_MAX.into());
    match (1..=most.0).contains(&block.0) {
        true => Ok(()),
        false => Err(Failure::usage(format!("a block has 1 to {most} bytes, not {block}"))),
    }
}

/// How a tape is made that is missing.
#[derive(Clone, Copy, Default)]
struct NewTape {
    size: Option<Size>,
    /// Also of one that is there and blank.
    write_once: bool,
}

async fn import(
    path: &Path,
    files: &[PathBuf],
    (block, new): (Size, NewTape),
    encryption: Option<&Encryption>,
    stop: &Stop,
) -> Outcome {
    // No tape is made for files that are not there.
    for file in files {
        open_regular(file).or_fail(|| format!("cannot open {}", file.shown()))?;
    }
    if new.size.is_none() && !path.exists() {
        return Err(Failure::new(format!("cannot open the tape {}", path.shown()))
            .because("it does not exist")
            .hint("`--size SIZE` makes it, with room for so much"));
    }
    refuse_tape_itself(path, files)?;
    let options =
        OpenOptions { size: new.size, write_once: new.write_once, ..OpenOptions::default() };
    let work = async |tape: &mut Tape| {
        tape.go_to_end();
        // What has no file mark, as after an import that was interrupted, is a file of its own.
        if tape_files(tape) > tape.end().marks {
            tape.write_mark().await.or_fail(|| format!("cannot write to {}", path.shown()))?;
        }
        for file in files {
            let number = tape.place().marks;
            let blocks = blocks_of(file, block, encryption).await?;
            let bytes = import_file(tape, file, blocks).await?;
            let how = if encryption.is_some() { ", encrypted" } else { "" };
            say_done(&format!("{} is file {number}: {} bytes{how}", file.shown(), Size(bytes)))?;
        }
        Ok(())
    };
    on_tape(path, options, async |tape: &mut Tape| unless_stopped(stop, work(tape)).await).await
}

/// A tape cannot hold itself.
fn refuse_tape_itself(tape: &Path, files: &[PathBuf]) -> Outcome {
    let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let Some(tape) = identity(tape) else { return Ok(()) };
    match files.iter().find(|file| identity(file) == Some(tape)) {
        None => Ok(()),
        Some(file) => Err(Failure::usage(format!("cannot import {}", file.shown()))
            .because("it is the tape itself")),
    }
}

/// What is written of a file.
async fn blocks_of(
    path: &Path,
    block: Size,
    encryption: Option<&Encryption>,
) -> Outcome<Box<dyn Blocks>> {
    let file = open_regular(path).or_fail(|| format!("cannot open {}", path.shown()))?;
    Ok(match encryption {
        Some(encryption) => {
            let new_file = encryption.new_file().await?.begin(block.0 as u32, false)?;
            Box::new(Encrypted::new(file, new_file))
        }
        None => Box::new(Plain::new(file, block.0 as usize, None)),
    })
}

/// Writes a file and a file mark. Where that fails the tape ends before it.
async fn import_file(tape: &mut Tape, path: &Path, mut blocks: Box<dyn Blocks>) -> Outcome<u64> {
    let what = || format!("cannot write {} to the tape", path.shown());
    let begun = tape.place().object;
    let written = async {
        let mut bytes = 0;
        while let Some(data) = blocks.next().or_fail(|| format!("cannot read {}", path.shown()))? {
            bytes += data.len() as u64;
            tape.write(&[data]).await.or_fail(what)?;
            if tape.is_in_early_warning() {
                return Err(Failure::new(what()).because(TapeError::Full));
            }
        }
        tape.write_mark().await.or_fail(what)?;
        tape.sync().await.or_fail(what)?;
        Ok(bytes)
    }
    .await;
    // What is on a tape that is written once stays, and gets a file mark with the next import.
    if written.is_err() && !tape.is_write_once() {
        tape.locate(begun).await.or_fail(what)?;
        tape.erase(false).await.or_fail(what)?;
    }
    written
}

async fn export(
    path: &Path,
    file: Option<u64>,
    dir: Option<&Path>,
    decrypt: DecryptArgs,
    stop: &Stop,
) -> Outcome {
    let mut decryption = Decryption::new(decrypt, path.shown().to_string());
    let mut work = async |tape: &mut Tape| match (file, dir) {
        (Some(number), _) => {
            let missing = || {
                let there = tape_files(tape);
                Failure::new(format!("{} has no file {number}: it has {there}", path.shown()))
            };
            if number >= tape_files(tape) {
                return Err(missing());
            }
            standard_output().map_err(not_written)?;
            let mut out = io::stdout().lock();
            let exported = export_file(tape, number, &mut decryption, &mut out).await?;
            exported
                .damage
                .map_or(Ok(()), |why| Err(Failure::new(cannot_read(number)).because(why)))
        }
        (None, Some(dir)) => export_all(tape, &mut decryption, dir).await,
        (None, None) => Ok(()),
    };
    on_tape(path, to_read(), async |tape: &mut Tape| unless_stopped(stop, work(tape)).await).await
}

/// How many files it has: what is behind the last file mark is one, if there is anything.
fn tape_files(tape: &Tape) -> u64 {
    let end = tape.end();
    let is_marked = end.object == 0 || end.last_mark != 0 && end.last_mark == end.previous;
    end.marks + u64::from(!is_marked)
}

async fn export_all(tape: &mut Tape, decryption: &mut Decryption, dir: &Path) -> Outcome {
    make_directories(dir, 0o777).or_fail(|| format!("cannot make {}", dir.shown()))?;
    let (files, mut damaged, mut first) = (tape_files(tape), 0, None);
    for number in 0..files {
        let to = dir.join(format!("{number:04}"));
        let made = File::create_new(&to).or_fail(|| format!("cannot make {}", to.shown()));
        let mut out = io::BufWriter::new(made?);
        let Exported { bytes, damage } = export_file(tape, number, decryption, &mut out).await?;
        let out = out.into_inner().map_err(io::IntoInnerError::into_error);
        let synced = out.and_then(|file| file.sync_all());
        synced.or_fail(|| format!("cannot write {}", to.shown()))?;
        let rest = if damage.is_some() { ", the rest of it is damaged" } else { "" };
        say_done(&format!("{}: {} bytes{rest}", to.shown(), Size(bytes)))?;
        damaged += u64::from(damage.is_some());
        first = first.or(damage);
    }
    first.map_or(Ok(()), |first| {
        Err(Failure::new(format!("{damaged} of {files} files are damaged")).because(first))
    })
}

/// How much of a file was written.
struct Exported {
    bytes: u64,
    /// What ended it before its end.
    damage: Option<Damage>,
}

/// A file is not what was written.
#[derive(Debug, thiserror::Error)]
enum Damage {
    #[error(transparent)]
    Tape(TapeError),
    #[error(transparent)]
    Encrypted(RecordError),
}

fn cannot_read(number: u64) -> String {
    format!("cannot read file {number} of the tape")
}

async fn export_file(
    tape: &mut Tape,
    number: u64,
    decryption: &mut Decryption,
    out: &mut impl Write,
) -> Outcome<Exported> {
    let what = || cannot_read(number);
    match tape.locate_file(number).await {
        Ok(Moved::There) => {}
        Ok(_) => return Err(Failure::new(what()).because("it is not there")),
        Err(why) => return damaged(0, why, number),
    }
    let (mut file, mut bytes, mut likely, mut plain) = (decryption.file(), 0, 0, Vec::new());
    let ended = loop {
        let read = tape.read(likely).await;
        let (taken, is_end) = match read {
            Ok(Read::Block(data)) => {
                likely = data.len() as u32;
                (file.take(data, &mut plain).await, false)
            }
            Ok(Read::Mark | Read::EndOfData) => (file.finish(&mut plain), true),
            Err(why) => {
                out.flush().or_fail(|| "cannot write what was read".to_owned())?;
                return damaged(bytes, why, number);
            }
        };
        for data in plain.drain(..) {
            out.write_all(&data).or_fail(|| "cannot write what was read".to_owned())?;
            bytes += data.len() as u64;
        }
        if taken.is_err() || is_end {
            break taken;
        }
    };
    out.flush().or_fail(|| "cannot write what was read".to_owned())?;
    match ended {
        Ok(()) => Ok(Exported { bytes, damage: None }),
        Err(Unusable::Changed(why)) => Ok(Exported { bytes, damage: Some(Damage::Encrypted(why)) }),
        Err(Unusable::Not(failure)) => Err(failure.within(&what())),
    }
}

/// A file that ends where the tape is damaged. Nothing else that happens to a tape is one of its files'.
fn damaged(bytes: u64, why: TapeError, number: u64) -> Outcome<Exported> {
    match why {
        TapeError::Damaged { .. } => Ok(Exported { bytes, damage: Some(Damage::Tape(why)) }),
        why => Err(why).or_fail(|| cannot_read(number)),
    }
}

async fn verify(path: &Path) -> Outcome {
    on_tape(path, to_read(), async |tape: &mut Tape| {
        let Checked { records, damaged, first } =
            read_all(tape).await.or_fail(|| format!("cannot read all of {}", path.shown()))?;
        match first {
            None => say_done(&format!("{}: all {records} records are whole", path.shown())),
            Some(first) => Err(Failure::new(format!("{} is damaged", path.shown()))
                .because(format!("{damaged} of {records} records are not what was written: {first}"))
                .hint("the others can be read: `longhaul tape export`, or a client that goes on behind an error")),
        }
    })
    .await
}

/// How many records there are, how many of them are damaged, and the first of these.
#[derive(Default)]
struct Checked {
    records: u64,
    damaged: u64,
    first: Option<TapeError>,
}

async fn read_all(tape: &mut Tape) -> TapeResult<Checked> {
    let (mut checked, mut likely) = (Checked::default(), 0);
    loop {
        let before = tape.place().object;
        match tape.read(likely).await {
            Ok(Read::EndOfData) => return Ok(checked),
            Ok(Read::Block(data)) => likely = data.len() as u32,
            Ok(Read::Mark) => {}
            // It has gone on behind it, or cannot.
            Err(why @ TapeError::Damaged { .. }) if tape.place().object > before => {
                checked.damaged += 1;
                checked.first.get_or_insert(why);
            }
            Err(why) => return Err(why),
        }
        checked.records += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bytes::Bytes;

    use super::*;

    fn stored() -> DecryptArgs {
        DecryptArgs::default()
    }

    #[tokio::test]
    async fn files_come_back_as_they_were_and_damage_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let contents = [vec![1; 25_000], vec![], vec![3; 10_240]];
        let files: Vec<_> = contents.iter().zip(["a", "b", "c"]).collect();
        for (bytes, name) in &files {
            fs::write(path(name), bytes).unwrap();
        }
        let tape = path("t.tape");
        let block = Size(10_240);
        let new = NewTape { size: Some(Size(1 << 20)), write_once: false };
        assert!(
            import(&tape, &[path("missing")], (block, new), None, &Stop::default()).await.is_err()
                && !tape.exists()
        );
        let names = [path("a"), path("b"), path("c")];
        import(&tape, &names, (block, new), None, &Stop::default())
            .await
            .unwrap_or_else(|why| panic!("{why}"));
        let out = path("out");
        export(&tape, None, Some(&out), stored(), &Stop::default())
            .await
            .unwrap_or_else(|why| panic!("{why}"));
        for (number, bytes) in contents.iter().enumerate() {
            assert_eq!(&fs::read(out.join(format!("{number:04}"))).unwrap(), bytes);
        }
        assert!(!out.join("0003").exists());
        // What an interrupted import has left has no file mark, and does not become a part of the next file.
        let leave = async |tape: &mut Tape| {
            tape.go_to_end();
            tape.write(&[Bytes::from_static(b"cut off")]).await.unwrap();
            Ok(())
        };
        on_tape(&tape, OpenOptions::default(), leave).await.unwrap_or_else(|why| panic!("{why}"));
        import(&tape, &[path("a")], (block, NewTape::default()), None, &Stop::default())
            .await
            .unwrap_or_else(|why| panic!("{why}"));
        let after = path("after");
        export(&tape, None, Some(&after), stored(), &Stop::default())
            .await
            .unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(fs::read(after.join("0003")).unwrap(), b"cut off");
        assert_eq!(fs::read(after.join("0004")).unwrap(), contents[0]);
        assert!(!after.join("0005").exists());
        assert!(export(&tape, Some(5), None, stored(), &Stop::default()).await.is_err());
        // One that does not fit leaves the tape as it was.
        fs::write(path("large"), vec![7; 2 << 20]).unwrap();
        let used = fs::read(&tape).unwrap();
        assert!(
            import(&tape, &[path("large")], (block, NewTape::default()), None, &Stop::default())
                .await
                .is_err()
        );
        verify(&tape).await.unwrap_or_else(|why| panic!("{why}"));
        let mut bytes = fs::read(&tape).unwrap();
        assert_eq!(bytes.len(), used.len());
        bytes[8192 + 5000] ^= 1;
        fs::write(&tape, bytes).unwrap();
        let damaged = verify(&tape).await.unwrap_err().to_string();
        assert!(damaged.contains("is damaged"), "{damaged}");
        // The other files are exported all the same.
        let rest = path("rest");
        let damaged = export(&tape, None, Some(&rest), stored(), &Stop::default())
            .await
            .unwrap_err()
            .to_string();
        assert!(damaged.contains("1 of 5 files"), "{damaged}");
        assert_eq!(fs::read(rest.join("0002")).unwrap(), contents[2]);
        assert_eq!(fs::read(rest.join("0004")).unwrap(), contents[0]);
    }
}

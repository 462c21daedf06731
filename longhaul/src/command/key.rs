//! `longhaul key`: who can open an encrypted volume.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;
use volume::Volume;

use super::named;
use super::options::{LoginArgs, OutageArgs, WriterArgs, blocking};
use super::{
    READ_ONLY, closing, say, say_done, say_json, stop_on_signals, tell_of_memory, unless_stopped,
};
use crate::chain::{self, Chain, OpenOptions};
use crate::failure::{Failure, Outcome, print_error};
use crate::luks::{self, CipherArgs, CostArgs, Init, Key, Restore, Slots};
use crate::printable::OneLine;
use crate::printable::Shown as _;
use crate::recovery_words::RecoveryWords;
use crate::secret::{NewSecretArgs, Secret, SecretArgs, Source};
use crate::size::Size;
use crate::stop::Stop;
use crate::uri::Uri;

mod sheet;

use sheet::{NoteArgs, SheetFile};

/// Encrypt a volume, and look after the keys that open it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  longhaul key init iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --label backup
  longhaul key add URI --new-key-file /root/backup.key
  longhaul key backup URI header.img

Pass-phrases are asked for on the terminal unless an option names a file or a variable. Volumes are
LUKS2: any Linux opens them with cryptsetup.";

/// The heading of the options that name pass-phrases, and say what deriving their keys may cost.
const PASS_PHRASES: &str = "Pass-phrases";

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a new encrypted volume; what was on it is lost
    Init {
        #[command(flatten)]
        on: VolumeArgs,
        /// A name for people, at most 47 bytes
        #[arg(long, value_parser = label)]
        label: Option<String>,
        /// The size of a file that does not exist yet, such as 80G
        #[arg(long)]
        size: Option<Size>,
        /// Encrypt it even if there is something on it
        #[arg(long)]
        force: bool,
        /// Make a recovery sheet too, as `key sheet` does
        #[arg(long, value_name = "FILE")]
        sheet: Option<PathBuf>,
        #[command(flatten)]
        cipher: CipherArgs,
        #[command(flatten, next_help_heading = PASS_PHRASES)]
        secret: SecretArgs,
        #[command(flatten)]
        cost: CostArgs,
    },
    /// Add a pass-phrase or key file
    Add {
        #[command(flatten)]
        on: VolumeArgs,
        #[command(flatten, next_help_heading = PASS_PHRASES)]
        secret: SecretArgs,
        #[command(flatten)]
        new: NewSecretArgs,
        #[command(flatten)]
        cost: CostArgs,
    },
    /// Remove the pass-phrase that is given, or a slot
    Remove {
        #[command(flatten)]
        on: VolumeArgs,
        /// Remove this slot; the pass-phrase given must open another one
        #[arg(long)]
        slot: Option<u32>,
        /// Remove even the last one, after which nobody can open the volume; with --slot, ask for nothing
        #[arg(long)]
        force: bool,
        #[command(flatten, next_help_heading = PASS_PHRASES)]
        secret: SecretArgs,
    },
    /// Replace a pass-phrase by another one
    Change {
        #[command(flatten)]
        on: VolumeArgs,
        #[command(flatten, next_help_heading = PASS_PHRASES)]
        secret: SecretArgs,
        #[command(flatten)]
        new: NewSecretArgs,
        #[command(flatten)]
        cost: CostArgs,
    },
    /// Show what can be known without a pass-phrase; a copy of the header that is damaged is repaired from the other one
    List {
        #[command(flatten)]
        on: VolumeArgs,
        /// Repair nothing
        #[arg(long)]
        read_only: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Try a pass-phrase or key file, and show which slot it opens; nothing is written
    Test {
        #[command(flatten)]
        on: VolumeArgs,
        /// Try the words of a recovery sheet: in any case, and of each its first four letters are enough
        #[arg(long, conflicts_with = "key_file")]
        recovery: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = PASS_PHRASES)]
        secret: SecretArgs,
    },
    /// Make a page to print, with a key slot of its own as words, and what to do in an emergency
    #[command(alias = "recovery")]
    Sheet {
        #[command(flatten)]
        on: VolumeArgs,
        /// The page: a new file that ends in .svg or .txt, which only its owner may read, or - for the terminal
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
        #[command(flatten)]
        notes: NoteArgs,
        #[command(flatten, next_help_heading = PASS_PHRASES)]
        secret: SecretArgs,
        #[command(flatten)]
        cost: CostArgs,
    },
    /// Save the header to a new file: without a header the data are lost
    Backup {
        #[command(flatten)]
        on: VolumeArgs,
        /// The file, which must not exist
        file: PathBuf,
    },
    /// Bring a header back; pass-phrases are then those of the backup
    Restore {
        #[command(flatten)]
        on: VolumeArgs,
        /// The file
        file: PathBuf,
        /// Restore it even where no header can be read, or where key slots are lost by it; not over that of another volume
        #[arg(long)]
        force: bool,
        /// Restore it over another header, that of the volume with this UUID: what is on it cannot be read any more
        #[arg(long, value_name = "UUID")]
        replace: Option<String>,
        #[command(flatten, next_help_heading = PASS_PHRASES)]
        secret: SecretArgs,
    },
}

/// The binary header has 48 bytes for it, the last of which is zero.
fn label(text: &str) -> Result<String, String> {
    if text.len() > 47 || text.contains('\0') {
        return Err("a label has at most 47 bytes and no zero byte".into());
    }
    Ok(text.to_owned())
}

/// The volume, and how to get there.
#[derive(Debug, clap::Args)]
struct VolumeArgs {
    /// The volume: its URI, or the name that `mount` remembers it by
    #[arg(value_parser = named::volume)]
    uri: Uri,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
    #[command(flatten)]
    writers: WriterArgs,
}

/// What a signal leaves behind.
const MAY_HAVE_CHANGED: &str = "its header is as it was, or has changed: `longhaul key list` shows its key slots, and \
    `longhaul key test` whether a pass-phrase opens one";
const MAY_BE_ENCRYPTED: &str = "its start is as it was (a file that was to be made is gone), or written over: `longhaul key list` shows whether it is encrypted; if what \
    was there is not needed, `longhaul key init --force` begins anew";

impl VolumeArgs {
    async fn writable(&self, size: Option<Size>, stop: &Stop) -> Outcome<Chain> {
        let writers = self.writers.writers();
        let options = OpenOptions { size, writers, ..OpenOptions::default() };
        let chain = self.open(options, stop).await?;
        if chain.volume().shape().read_only {
            chain.discard().await;
            let what = format!("cannot write a header to {}", self.uri);
            return Err(Failure::new(what).because("it is read-only").hint(READ_ONLY));
        }
        Ok(chain)
    }

    async fn readable(&self, stop: &Stop) -> Outcome<Chain> {
        self.open(OpenOptions { read_only: true, ..OpenOptions::default() }, stop).await
    }

    async fn open(&self, options: OpenOptions, stop: &Stop) -> Outcome<Chain> {
        let login = self.login.login_to(&[&self.uri]).await?;
        let reconnect_limit = self.outage.reconnect_limit().unwrap_or_default();
        let options = OpenOptions { login, reconnect_limit, stop: stop.clone(), ..options };
        let chain = chain::open(&self.uri, options).await?;
        chain.leave_on(stop.clone());
        Ok(chain)
    }

    /// Changes its header. A signal ends that where it stands: the header has a valid copy at every instant.
    async fn change<T>(&self, work: impl AsyncFnOnce(Arc<dyn Volume>) -> Outcome<T>) -> Outcome<T> {
        let stop = stop_on_signals()?;
        let chain = self.writable(None, &stop).await?;
        closing(chain, async |chain| {
            self.unless_ended(&stop, work(chain.volume()), MAY_HAVE_CHANGED).await
        })
        .await
    }

    /// What comes of `work`, which ends where it stands when the program is told to. It may have been done by then.
    async fn unless_ended<T>(
        &self,
        stop: &Stop,
        work: impl Future<Output = Outcome<T>>,
        hint: &str,
    ) -> Outcome<T> {
        let what = format!("ended by a signal before {} was known to be done with", self.uri);
        let ended = || Err(Failure::new(what).hint(hint));
        stop.unless_called(work).await.unwrap_or_else(ended)
    }

    /// Looks at it.
    async fn look<T>(&self, work: impl AsyncFnOnce(Arc<dyn Volume>) -> Outcome<T>) -> Outcome<T> {
        let stop = stop_on_signals()?;
        let chain = self.readable(&stop).await?;
        closing(chain, async |chain| unless_stopped(&stop, work(chain.volume())).await).await
    }
}

/// Does what was asked.
pub async fn run(args: Args) -> Outcome {
    match args.command {
        Command::Init { on, label, size, force, sheet, cipher, secret, cost } => {
            let sheet = sheet.map(SheetFile::new).transpose()?;
            let key = Key::new(secret.source(), "Pass-phrase");
            init(&on, size, key, Init { label, cipher, cost, force }, sheet).await
        }
        Command::Add { on, secret, new, cost } => {
            let slot = on.change(async |volume| {
                let key = Key::asked(secret.source(), "Pass-phrase");
                let new = Key::another(new.source(), "New pass-phrase");
                luks::add(volume, key, new, cost).await
            });
            say_done(&format!("added key slot {}", slot.await?))
        }
        Command::Remove { on, slot, force, secret } => remove(&on, slot, force, secret).await,
        Command::Change { on, secret, new, cost } => {
            let slot = on.change(async |volume| {
                let key = Key::asked(secret.source(), "Pass-phrase");
                let new = Key::another(new.source(), "New pass-phrase");
                luks::change(volume, key, new, cost).await
            });
            say_done(&format!("changed; the pass-phrase is in key slot {} now", slot.await?))
        }
        Command::List { on, read_only, json } => list(&on, read_only, json).await,
        Command::Test { on, recovery, json, secret } => test(&on, recovery, json, &secret).await,
        Command::Sheet { on, output, notes, secret, cost } => {
            let to = SheetFile::new(output.clone())?;
            let slot = on.change(async |volume| {
                let key = Key::asked(secret.source(), "Pass-phrase");
                sheet::make(&on, volume, (key, cost), &to, notes).await
            });
            say_done(&format!(
                "added key slot {}; its words are on {}",
                slot.await?,
                output.shown()
            ))
        }
        Command::Backup { on, file } => {
            on.look(async |volume| luks::backup(volume, &file).await).await?;
            say_done(&format!("saved the header to {}", file.shown()))
        }
        Command::Restore { on, file, force, replace, secret } => {
            let uuid = on.change(async |volume| {
                let secret = match secret.is_given() {
                    true => Some(ask(secret.source(), "Pass-phrase").await?),
                    false => None,
                };
                luks::restore(volume, &file, Restore { secret, force, replace }).await
            });
            say_done(&format!("restored the header of {}", uuid.await?))
        }
    }
}

async fn init(
    on: &VolumeArgs,
    size: Option<Size>,
    mut key: Key,
    how: Init,
    sheet: Option<SheetFile>,
) -> Outcome {
    let stop = stop_on_signals()?;
    let chain = on.writable(size, &stop).await?;
    let cost = how.cost.clone();
    let work = async {
        if sheet.is_some() {
            // It opens the volume once more for the sheet, and is asked for once.
            key = key.read().await?.into();
        }
        luks::init(chain.volume(), key.clone(), how).await
    };
    let uuid = match on.unless_ended(&stop, work, MAY_BE_ENCRYPTED).await {
        Ok(uuid) => uuid,
        Err(why) => {
            chain.discard().await;
            return Err(why);
        }
    };
    let sheet = match &sheet {
        Some(to) => {
            let made = sheet::make(on, chain.volume(), (key, cost), to, NoteArgs::default());
            on.unless_ended(&stop, made, MAY_HAVE_CHANGED).await.map(Some)
        }
        None => Ok(None),
    };
    chain.close().await?;
    tell_of_memory(&on.uri);
    let done = format!("encrypted {} as {uuid}", on.uri);
    match sheet.map_err(|why| why.within(&format!("{done}, but without a sheet")))? {
        Some(slot) => say_done(&format!("{done}; the recovery sheet opens key slot {slot}")),
        None => {
            sheet::offer(on);
            say_done(&done)
        }
    }
}

async fn ask(source: Source, what: &'static str) -> Outcome<Secret> {
    blocking(move || source.read(what)).await
}

async fn remove(on: &VolumeArgs, slot: Option<u32>, force: bool, secret: SecretArgs) -> Outcome {
    let key = match slot {
        Some(_) if force && !secret.is_given() => None,
        Some(_) => Some(Key::asked(secret.source(), "Pass-phrase of another slot")),
        None => Some(Key::asked(secret.source(), "Pass-phrase to remove")),
    };
    let slot = on.change(async |volume| luks::remove(volume, key, slot, force).await);
    say_done(&format!("removed key slot {}", slot.await?))
}

async fn test(on: &VolumeArgs, recovery: bool, json: bool, secret: &SecretArgs) -> Outcome {
    let key = match recovery {
        true => {
            let typed = ask(secret.source(), "Words of the recovery sheet").await?;
            RecoveryWords::parse(&typed)?.secret().into()
        }
        false => Key::asked(secret.source(), "Pass-phrase"),
    };
    let found = on.look(async |volume| luks::test(volume, key).await).await?;
    if json {
        return say_json(&found);
    }
    let slots: Vec<_> = found.slots.iter().map(u32::to_string).collect();
    say(&format!("opens key slot {}", slots.join(", and the same again key slot ")))
}

async fn list(on: &VolumeArgs, read_only: bool, json: bool) -> Outcome {
    let mut slots = on.look(async |volume| luks::slots(volume).await).await?;
    if let Some(damage) = &slots.damage {
        let repaired = match read_only {
            true => Err(Failure::new("--read-only was given")),
            false => on.change(async |volume| luks::repair(volume).await).await,
        };
        match repaired {
            Ok(()) => slots.damage = None,
            // What is there can be shown all the same: somebody else may be using the volume.
            Err(why) => print_error(&format_args!(
                "longhaul: {damage}, the other one is used; it is not repaired: {why}"
            )),
        }
    }
    if json {
        return say_json(&slots);
    }
    say(describe(&on.uri, &slots).trim_end())
}

fn describe(uri: &Uri, volume: &Slots) -> String {
    let mut text = format!("{uri}\n  uuid    {}\n", volume.uuid);
    if !volume.label.is_empty() {
        text += &format!("  label   {}\n", OneLine(&volume.label));
    }
    text += &format!(
        "  data    {} bytes at {}, {} in sectors of {}\n",
        volume.size, volume.offset, volume.cipher, volume.sector_size
    );
    if let Some(damage) = &volume.damage {
        text += &format!("  DAMAGED {damage}\n");
    }
    for slot in &volume.slots {
        let kdf = slot.kdf.as_deref().unwrap_or("none");
        text += &format!("  slot {:<2} {} bits, {}", slot.slot, slot.key_bits, OneLine(kdf));
        if let (Some(time), Some(memory), Some(threads)) =
            (slot.time, slot.memory_kib, slot.threads)
        {
            text += &format!(", {time} passes over {memory} KiB on {threads} threads");
        }
        if let Some(iterations) = slot.iterations {
            text += &format!(", {iterations} iterations");
        }
        text += if slot.damaged { ", damaged" } else { "" };
        text.push('\n');
    }
    text
}

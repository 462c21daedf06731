//! `longhaul mount`: a volume as a mounted file system.
//!
//! Two processes: one serves the volume as one file, in the background; this one makes a block device of the file, and
//! mounts it. No process may wait for a file system whose requests it has to answer.

mod blank;
mod device;
mod keeper;
mod persist;
mod server;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use self::device::{BlockDevice, make_file_system, mount_device};
use self::keeper::Supervisor;
use self::server::Server;
use super::attach::kept::{KeeperLink, TRY_AGAIN};
use super::attach::{self, Background, FrontAt, Offer, VolumeArgs};
use super::enrol::GivenInvitation;
use super::umount;
use super::{say, say_done, stop_on_signals};
use crate::block_devices::{devices_over, mounted_at};
use crate::durable::make_directories;
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::front::kernel_device;
use crate::printable::{Quoted as _, Shown as _};
use crate::remembered::{self, Remembered};
use crate::state_dir::state_dir;
use crate::stop::Stop;
use crate::systemd;
use crate::uri::Uri;

/// Attach a volume in the background, and mount the file system on it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, the name of one that was mounted before, or an invitation; `-` reads one from standard input
    #[arg(value_name = "URI|NAME|INVITATION")]
    volume: String,
    /// The directory to mount it at; that of the last time, if a name is given
    dir: Option<PathBuf>,
    /// Make a file system on a volume that is blank, and key slots before if it is not encrypted; --raw leaves these out
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["read_only", "fuse"])]
    mkfs: Option<FileSystem>,
    /// Make a block device, and mount nothing
    #[arg(long, conflicts_with_all = ["dir", "mkfs", "fuse"])]
    device: bool,
    /// Offer the volume as this one file, and mount nothing; for a user this takes fusermount3
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    fuse: Option<PathBuf>,
    /// Replace the mount of --fuse that a process which was killed has left: no program goes on relying on what that had
    /// acknowledged
    #[arg(long, requires = "fuse")]
    replace: bool,
    /// How the block device is made
    #[arg(long, value_name = "WAY", default_value = "fuse", conflicts_with = "fuse")]
    via: Via,
    /// Stay in the foreground until it is unmounted, or a signal unmounts it
    #[arg(long)]
    foreground: bool,
    /// Mount it at each boot: writes a unit of systemd. A pass-phrase has to come from a file then
    #[arg(long, conflicts_with_all = ["device", "fuse", "foreground"])]
    persist: bool,
    /// The name to remember it by; one made of the URI, if not given
    #[arg(long, value_parser = remembered::name)]
    name: Option<String>,
    /// More options of mount(8), separated by commas; `nosuid,nodev,noatime` are the first
    #[arg(long, short = 'o', value_name = "LIST")]
    options: Option<String>,
    /// The name was given in the place of the URI.
    #[arg(skip)]
    is_by_name: bool,
    #[command(flatten)]
    open: VolumeArgs,
    /// Serve it at this file: the process in the background
    #[arg(long, hide = true, value_name = "FILE")]
    serve_at: Option<PathBuf>,
    /// The process that keeps the mount listens here: the process that it has serve
    #[arg(long, hide = true, value_name = "SOCKET")]
    kept_by: Option<PathBuf>,
}

/// What makes the block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Via {
    /// FUSE and a loop device, which every kernel has
    Fuse,
    /// The kernel's NBD client: its module `nbd`, Linux 5.14 or newer
    Nbd,
    /// The kernel's ublk: its module `ublk_drv`, on Linux 6.12 only
    Ublk,
}

/// A file system that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FileSystem {
    Ext4,
    Xfs,
    Btrfs,
}

impl FileSystem {
    /// What it is called, the program that makes it, and the package that has that.
    const fn maker(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Ext4 => ("ext4", "mkfs.ext4", "e2fsprogs"),
            Self::Xfs => ("xfs", "mkfs.xfs", "xfsprogs"),
            Self::Btrfs => ("btrfs", "mkfs.btrfs", "btrfs-progs"),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  longhaul mount iscsi://server/iqn.2026-11.dev.longhaul:backup/0 /mnt/backup --mkfs ext4
  longhaul umount /mnt/backup
  longhaul mount backup
  longhaul mount longhaul:... /mnt/backup --mkfs ext4
  longhaul mount - /mnt/backup <invitation

It takes root, /dev/fuse and a loop device, but for --fuse. `longhaul umount` ends it, and says whether all that was written
is on the volume.";

impl Args {
    /// Whether this is the process that answers the kernel's requests.
    pub(crate) const fn serves(&self) -> bool {
        self.serve_at.is_some()
    }

    /// The command line with what is remembered of the volume, if it is called by a name.
    pub(crate) fn expanded(&self, arguments: &[OsString]) -> Outcome<Option<Vec<OsString>>> {
        if self.volume.contains(':') {
            return Ok(None);
        }
        let known = remembered::find(&self.volume)?;
        let place = (self.dir.is_none() && !self.device && self.fuse.is_none())
            .then_some(known.dir.clone());
        Ok(Some(known.expand(arguments, &self.volume, place.flatten().as_deref())))
    }

    /// The same of a command line that was expanded.
    pub(crate) fn by_name(self) -> Self {
        Self { is_by_name: true, ..self }
    }

    /// Uses an invitation that stood in the place of the volume; the command line without it.
    pub(crate) async fn enrol(
        &self,
        given: &GivenInvitation,
        arguments: &[OsString],
    ) -> Outcome<Vec<OsString>> {
        // What cannot be mounted here must not use it up.
        self.place()?;
        self.refuse_without_rights()?;
        let dir = self.dir.as_deref().map(std::path::absolute).transpose();
        let dir = dir.or_fail(|| "cannot tell the working directory".to_owned())?;
        given.enrol(arguments, &self.open.login, dir).await
    }

    fn uri(&self) -> Outcome<Uri> {
        let parsed = self.volume.parse::<Uri>();
        parsed.map_err(|why| Failure::usage(format!("cannot mount {}", self.volume)).because(why))
    }

    fn refuse_without_rights(&self) -> Outcome {
        if self.fuse.is_some() { Ok(()) } else { device::refuse_without_rights(self.via) }
    }

    /// Where it is mounted, if it is.
    fn place(&self) -> Outcome<Option<PathBuf>> {
        if self.device || self.fuse.is_some() {
            return Ok(None);
        }
        let Some(dir) = &self.dir else {
            return Err(Failure::usage("no directory to mount it at")
                .hint("name one; --device makes a block device alone, --fuse FILE one file"));
        };
        check_directory(dir).map(Some)
    }
}

/// The directory, by its name without links, if something can be mounted there.
fn check_directory(dir: &Path) -> Outcome<PathBuf> {
    let what = || format!("cannot mount at {}", dir.shown());
    let found = std::fs::canonicalize(dir).map_err(|why| {
        let failure = Failure::new(what()).because(why);
        failure.hint(format!("`mkdir {}` makes it", dir.quoted()))
    })?;
    if !found.is_dir() {
        return Err(Failure::new(what()).because("it is not a directory"));
    }
    match mounted_at(&found) {
        Some(mount) if found != Path::new("/") => Err(Failure::new(what())
            .because(format!("{} is mounted there already", mount.source.shown()))
            .hint(format!("`longhaul umount {}` ends what Longhaul has mounted", found.quoted()))),
        _ => Ok(found),
    }
}

/// Mounts it, or serves it for the process that does.
pub async fn run(args: Args, arguments: Vec<OsString>) -> Outcome {
    let uri = args.uri()?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => remembered::name_for(&uri)?,
    };
    match args.serve_at.clone() {
        Some(file) => serve(args, uri, name, file, arguments).await,
        None => attach_and_mount(args, uri, name, arguments).await,
    }
}

/// The process in the background.
async fn serve(
    args: Args,
    uri: Uri,
    name: String,
    file: PathBuf,
    arguments: Vec<OsString>,
) -> Outcome {
    let stop = stop_on_signals()?;
    let background = background(&args, &name)?;
    let kept = match &args.kept_by {
        Some(socket) => Some(KeeperLink::connect(socket.clone()).await?),
        // What is on this machine is looked for among its loop devices when it is opened, and nobody would answer for this one.
        None if background.is_device && uri.is_remote() => {
            let socket = keeper::socket_of(&file, &name);
            let socket = socket.ok_or_else(|| Failure::new("there is no directory for it"))?;
            return keep(&args, arguments, socket, &file, &background, stop).await;
        }
        None => None,
    };
    let is_resumed = kept.as_ref().is_some_and(KeeperLink::is_resumed);
    let served = serve_kept(args, uri, file, background, kept, stop).await;
    if let Err(why) = &served
        && is_resumed
        && why.is_fleeting()
    {
        print_error(&format_args!("longhaul: {why}"));
        std::process::exit(TRY_AGAIN.into());
    }
    served
}

/// The process that keeps the mount. What it leaves has no server any more: programs get errors from it.
async fn keep(
    args: &Args,
    arguments: Vec<OsString>,
    socket: PathBuf,
    file: &Path,
    background: &Background,
    stop: Stop,
) -> Outcome {
    let supervisor = Supervisor::new(arguments, socket, file.to_owned(), args.via)?;
    let kept = supervisor.run(background, stop).await;
    for device in &devices_over(file) {
        if let Err(why) = kernel_device::abandon(device) {
            print_error(&format_args!("longhaul: cannot end {}: {why}", device.shown()));
        }
    }
    kept
}

/// Where the process in the background tells what it meets.
fn log_of(name: &str) -> Option<PathBuf> {
    Some(state_dir()?.join(format!("{name}.log")))
}

/// The same failure with the place where its cause may stand: the kernel says of a server's reasons nothing but that there was an
/// error.
fn with_log(why: Failure, name: &str) -> Failure {
    match log_of(name) {
        Some(log) => {
            why.hint_if_none(&format!("the log of this mount may say why: {}", log.quoted()))
        }
        None => why,
    }
}

/// How the process in the background goes on without a terminal.
fn background(args: &Args, name: &str) -> Outcome<Background> {
    let log = log_of(name).ok_or_else(|| {
        Failure::new("there is no directory for the log of what runs in the background")
            .hint("set HOME, or LONGHAUL_STATE_DIR")
    })?;
    let background = Background { is_device: args.fuse.is_none(), log, name: name.to_owned() };
    // Before anything is reserved that would have to be given back.
    background.open_log()?;
    Ok(background)
}

/// Serves it, for the first time or in the place of another process.
async fn serve_kept(
    args: Args,
    uri: Uri,
    file: PathBuf,
    background: Background,
    kept: Option<KeeperLink>,
    stop: Stop,
) -> Outcome {
    args.open.check(&uri)?;
    // One that is taken over has what it had, whatever room there is by now.
    let has_none = kept.as_ref().is_some_and(KeeperLink::goes_without_journal);
    if let Some(dir) = state_dir().filter(|_| !has_none) {
        args.open.default_journal(&uri, dir.join(format!("{}.journal", background.name)));
    }
    let is_resumed = kept.as_ref().is_some_and(KeeperLink::is_resumed);
    let contents = match args.mkfs.filter(|_| !is_resumed) {
        Some(_) => match blank::prepare(&uri, &args.open, &stop).await {
            Ok(contents) => contents,
            Err(why) => {
                args.open.journal.discard_made().await;
                return Err(why);
            }
        },
        None => None,
    };
    let front = match args.via {
        Via::Fuse => FrontAt::Fuse(file),
        Via::Nbd => FrontAt::Kernel(file),
        Via::Ublk => FrontAt::Ublk(file),
    };
    let replace = background.is_device || args.replace;
    let background = Some(background);
    let offer = Offer { uri, front, replace, contents, background, kept };
    attach::offer(offer, args.open, stop).await
}

/// The process that a user waits for.
async fn attach_and_mount(args: Args, uri: Uri, name: String, arguments: Vec<OsString>) -> Outcome {
    let place = args.place()?;
    args.open.check(&uri)?;
    args.refuse_without_rights()?;
    // One in memory is another volume each time.
    if !uri.vanishes() {
        umount::refuse_if_attached(&uri).await?;
    }
    let stop = stop_on_signals()?;
    let file = match &args.fuse {
        Some(file) => {
            std::path::absolute(file).or_fail(|| format!("cannot use {}", file.shown()))?
        }
        None => own_file(&name)?,
    };
    let dir = args.dir.as_deref().map(Path::as_os_str);
    let given: Vec<_> = [Some(OsStr::new(&args.volume)), dir].into_iter().flatten().collect();
    let remembered = Remembered::new(&uri, place.as_deref(), &arguments, &given)?;
    let named = args.name.is_none().then_some(&*name);
    let server = Server::start(arguments, &file, named).await?;
    let mounted = match &args.fuse {
        Some(_) => Ok(format!("{uri} is the file {}", file.shown())),
        None => {
            let (args, file, place) = (&args, &file, place.as_deref());
            make(args, &uri, file, place).await
        }
    };
    let told = match mounted {
        Ok(told) => told,
        Err(why) => {
            server.end().await;
            return Err(with_log(why, &name));
        }
    };
    if !uri.vanishes() && args.fuse.is_none() {
        // It is mounted all the same.
        if let Err(why) = remember(remembered, &args, &name) {
            print_error(&format_args!("longhaul: {why}"));
        }
    }
    if let (true, Some(place)) = (args.persist, &place) {
        let unit = persist::write(&name, place)?;
        say(&format!("{} mounts it at boot", unit.shown()))?;
    }
    let how = place.as_deref().map_or_else(|| name.clone(), Path::quoted);
    let told = format!("{told}; `longhaul umount {how}` ends it");
    if !args.foreground {
        return say_done(&told);
    }
    say(&told)?;
    systemd::ready(&told);
    server.wait(stop).await
}

/// Remembers it. A volume that is called by its name is mounted read-only once, unless that is what was remembered.
fn remember(volume: Remembered, args: &Args, name: &str) -> Outcome {
    let known = remembered::all()?.remove(name);
    match known.filter(|known| args.is_by_name && !known.is_read_only()) {
        Some(known) => volume.writable(&known).keep(name),
        None => volume.keep(name),
    }
}

/// The file in the directory for what runs, by which the block device is known.
fn own_file(name: &str) -> Outcome<PathBuf> {
    let dir = umount::own_dir()
        .ok_or_else(|| Failure::new("there is no directory for what runs: set XDG_RUNTIME_DIR"))?;
    make_directories(&dir, 0o700).or_fail(|| format!("cannot make {}", dir.shown()))?;
    let file = dir.join(name);
    // Of a volume with the same name, or of a process that was killed, whose mount is still used.
    if let Some(device) = devices_over(&file).first() {
        return Err(Failure::new(format!("cannot attach a volume as `{name}`"))
            .because(format!(
                "the block device {} is made of one that is called so",
                device.shown()
            ))
            .hint(format!(
                "`longhaul umount {name}` ends that; --name gives this one another name"
            )));
    }
    Ok(file)
}

/// Makes the device, the file system and the mount, as far as they are wanted: what was done.
async fn make(args: &Args, uri: &Uri, file: &Path, place: Option<&Path>) -> Outcome<String> {
    let read_only = args.open.read_only;
    let device = BlockDevice::make(file, args.via, read_only, place.is_some()).await?;
    if let Some(kind) = args.mkfs {
        make_file_system(kind, &device).await?;
    }
    let node = device.node().shown().to_string();
    match place {
        Some(place) => {
            mount_device(&device, place, args.mkfs, args.options.as_deref()).await?;
            device.go_with_its_mount()?;
            let how = if read_only { "mounted read-only" } else { "mounted" };
            Ok(format!("{uri} is {how} at {} ({node})", place.shown()))
        }
        None => Ok(format!("{uri} is the block device {node}")),
    }
}

//! How an attached volume is offered: on an NBD socket, as a file, or as a block device of the kernel's NBD client or ublk.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use volume::Volume;

use super::kept::{KeptMount, TakenOver};
use crate::control;
use crate::failure::{Failure, Outcome};
use crate::front::fuse::{self, Takeover};
use crate::front::{Clients, HandOverError, Record, nbd, ublk};
use crate::printable::Shown as _;
use crate::replay_log::Pending;
use crate::stop::Stop;

/// Where programs find the volume.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct FrontArgs {
    /// Serve NBD on a new Unix socket at this path, which only its owner may open
    #[arg(long, value_name = "SOCKET")]
    nbd: Option<PathBuf>,
    /// Mount the volume as one file over this one, which is made if it is not there; for a user this takes fusermount3
    #[arg(long, value_name = "FILE")]
    fuse: Option<PathBuf>,
}

/// The same, one of both.
#[derive(Clone, Debug)]
pub(in crate::command) enum FrontAt {
    /// An NBD socket at this path.
    Nbd(PathBuf),
    /// A file at this path.
    Fuse(PathBuf),
    /// A block device of the kernel's NBD client, known by this path.
    Kernel(PathBuf),
    /// A block device of the kernel's ublk, known by this path.
    Ublk(PathBuf),
}

impl FrontArgs {
    /// The one that was asked for.
    pub(super) fn place(self) -> FrontAt {
        match (self.nbd, self.fuse) {
            (Some(path), _) => FrontAt::Nbd(path),
            // The command line takes exactly one.
            (None, path) => FrontAt::Fuse(path.unwrap_or_default()),
        }
    }
}

impl FrontAt {
    /// Refuses a path that no socket can have.
    pub(super) fn check(&self) -> Outcome {
        let Self::Nbd(path) = self else { return Ok(()) };
        match control::too_long(path) {
            Some(why) => Err(Failure::usage("cannot listen on the socket").because(why)),
            None => Ok(()),
        }
    }
}

/// A front that takes requests.
pub(super) enum Front {
    Nbd(nbd::Server),
    Fuse(fuse::Server),
    Kernel(nbd::KernelServer),
    Ublk(ublk::Server),
}

impl Front {
    /// Opens the one that was asked for.
    pub(super) async fn open(
        at: &FrontAt,
        replace: bool,
        volume: Arc<dyn Volume>,
        logs: &[Pending],
    ) -> Outcome<Self> {
        match at {
            FrontAt::Nbd(path) => {
                let bound = nbd::Server::bind(path, replace);
                bound.map(Self::Nbd).map_err(|why| cannot_listen(path, why, logs))
            }
            FrontAt::Fuse(path) => {
                let mounted = async {
                    let device = fuse::open_device()?;
                    let record = Record::default();
                    fuse::Server::mount(path, replace, volume, device, record).await
                };
                mounted.await.map(Self::Fuse).map_err(|why| cannot_mount(path, why, logs))
            }
            FrontAt::Kernel(path) => {
                let made = nbd::KernelServer::connect(path, volume, Record::default()).await;
                made.map(Self::Kernel).map_err(cannot_make_device)
            }
            FrontAt::Ublk(path) => {
                let made = ublk::Server::connect(path, volume, Record::default()).await;
                made.map(Self::Ublk).map_err(cannot_make_ublk_device)
            }
        }
    }

    /// Opens the file of a mount that another process may go on with, or has begun.
    pub(super) async fn open_kept(
        at: &FrontAt,
        replace: bool,
        volume: Arc<dyn Volume>,
        kept: KeptMount,
        logs: &[Pending],
    ) -> Outcome<Self> {
        let path = match at {
            FrontAt::Fuse(path) => path,
            FrontAt::Kernel(path) => {
                let made = match kept.resumed {
                    None => nbd::KernelServer::connect(path, volume, kept.record).await,
                    Some(_) => nbd::KernelServer::resume(path, volume, kept.record).await,
                };
                return made.map(Self::Kernel).map_err(cannot_make_device);
            }
            FrontAt::Ublk(path) => {
                let made = match kept.resumed {
                    None => ublk::Server::connect(path, volume, kept.record).await,
                    Some(_) => ublk::Server::resume(path, volume, kept.record).await,
                };
                return made.map(Self::Ublk).map_err(cannot_make_ublk_device);
            }
            FrontAt::Nbd(_) => return Err(Failure::new("only a block device can be kept")),
        };
        let KeptMount { device, record, resumed } = kept;
        let device =
            device.ok_or_else(|| Failure::new("the connection of the mount is missing"))?;
        let mounted = match resumed {
            None => fuse::Server::mount(path, replace, volume, device, record).await,
            Some(TakenOver { made, was_killed }) => {
                let takeover = Takeover { device, record, made, was_killed };
                fuse::Server::resume(path, volume, takeover).await
            }
        };
        mounted.map(Self::Fuse).map_err(|why| cannot_mount(path, why, logs))
    }

    /// Whether the file that it is mounted over was made for it.
    pub(super) fn has_made_file(&self) -> bool {
        matches!(self, Self::Fuse(server) if server.has_made_file())
    }

    /// Takes no more requests, and has everything flushed, so that another process can go on.
    pub(super) async fn hand_over(&self) -> Result<(), HandOverError> {
        match self {
            // Refused before.
            Self::Nbd(_) => Ok(()),
            Self::Fuse(server) => server.hand_over().await,
            Self::Kernel(server) => server.hand_over().await,
            Self::Ublk(server) => server.hand_over().await,
        }
    }

    /// Takes requests again, after it was to be handed over.
    pub(super) async fn serve_on(&self) -> Result<(), HandOverError> {
        match self {
            Self::Nbd(_) => Ok(()),
            Self::Fuse(server) => server.serve_on().await,
            Self::Kernel(server) => Ok(server.serve_on().await?),
            Self::Ublk(server) => {
                server.serve_on();
                Ok(())
            }
        }
    }

    /// Where it is found.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Nbd(server) => server.uri(),
            Self::Fuse(server) => server.path().shown().to_string(),
            Self::Kernel(server) => server.path().shown().to_string(),
            Self::Ublk(server) => server.path().shown().to_string(),
        }
    }

    /// The file that it is, or by which its device is known.
    pub(super) fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Nbd(_) => None,
            Self::Fuse(server) => Some(server.path().to_owned()),
            Self::Kernel(server) => Some(server.path().to_owned()),
            Self::Ublk(server) => Some(server.path().to_owned()),
        }
    }

    /// The first change that failed for a program that may not have looked at it.
    pub(super) fn failure(&self) -> Option<String> {
        match self {
            Self::Nbd(_) => None,
            Self::Fuse(server) => server.failure(),
            Self::Kernel(server) => server.failure(),
            Self::Ublk(server) => server.failure(),
        }
    }

    pub(super) fn clients(&self) -> Clients {
        match self {
            Self::Nbd(server) => server.clients(),
            Self::Fuse(server) => server.clients(),
            Self::Kernel(server) => server.clients(),
            Self::Ublk(server) => server.clients(),
        }
    }

    /// Serves until `stop` is called; what was asked for is then done and flushed.
    pub(super) async fn run(&self, volume: Arc<dyn Volume>, description: &str, stop: Stop) {
        match self {
            Self::Nbd(server) => server.run(volume, description, stop).await,
            Self::Fuse(server) => {
                // It has one of its own.
                drop(volume);
                server.run(stop).await;
            }
            Self::Kernel(server) => {
                drop(volume);
                server.run(stop).await;
            }
            Self::Ublk(server) => {
                drop(volume);
                server.run(stop).await;
            }
        }
    }

    /// Ends before anybody was told of it: it holds the volume no longer.
    pub(super) async fn abandon(self) {
        match &self {
            Self::Nbd(_) => {}
            Self::Fuse(server) => server.close().await,
            Self::Kernel(server) => server.close().await,
            Self::Ublk(server) => server.close().await,
        }
        self.end(false).await;
    }

    /// Takes away what is left of it. If something was `lost` that stays, so that nobody takes what comes next for what
    /// was there before.
    pub(super) async fn end(self, lost: bool) {
        match self {
            Self::Nbd(server) if lost => server.leave(),
            Self::Nbd(_) => {}
            Self::Fuse(server) => {
                if lost {
                    server.leave();
                }
                server.end().await;
            }
            // Programs that still use it get errors, and its number is not given to another one before they are gone.
            Self::Kernel(server) => server.end().await,
            Self::Ublk(server) => server.end().await,
        }
    }
}

pub(in crate::command) fn cannot_make_device(why: nbd::KernelError) -> Failure {
    use nbd::KernelError as Why;
    let hint = match &why {
        Why::NoModule | Why::Old => Some(
            "without `--via nbd` FUSE and a loop device make it; of Debian's kernels those of linux-image-amd64 have the module, and \
             those for clouds do not",
        ),
        Why::NotFromHere => Some(
            "give the container the network of the machine; without `--via nbd` FUSE and a loop device make it",
        ),
        Why::System(why) if why.kind() == ErrorKind::PermissionDenied => Some(
            "it takes CAP_SYS_ADMIN on the machine itself, which containers lack unless they are privileged",
        ),
        Why::NoDevice(_) | Why::System(_) | Why::Volume(_) => None,
    };
    let failure =
        Failure::new("cannot make a block device of the kernel's NBD client").because(why);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

pub(in crate::command) fn cannot_make_ublk_device(why: ublk::Error) -> Failure {
    use ublk::Error as Why;
    let hint = match &why {
        Why::NotTried(_) | Why::Lacking => {
            Some("without `--via ublk` FUSE and a loop device make it; `--via nbd` is another way")
        }
        Why::NoModule => Some(
            "without `--via ublk` FUSE and a loop device make it; of Debian's kernels those of linux-image-amd64 have the module, from \
             Debian 13 on, and those for clouds do not",
        ),
        Why::System(why) if why.kind() == ErrorKind::PermissionDenied => Some(
            "it takes CAP_SYS_ADMIN, and the device /dev/ublk-control, which containers lack unless they are privileged",
        ),
        Why::NoDevice(_) | Why::StillServed | Why::System(_) | Why::Volume(_) => None,
    };
    let failure = Failure::new("cannot make a block device of the kernel's ublk").because(why);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn cannot_listen(path: &Path, why: nbd::BindError, logs: &[Pending]) -> Failure {
    let hint = match &why {
        nbd::BindError::Left => Some(left(logs)),
        nbd::BindError::TooLong(_) => Some(
            "name a shorter one, such as one in /run, or one relative to the working directory"
                .to_owned(),
        ),
        _ => None,
    };
    let failure = Failure::new(format!("cannot listen on the socket {}", path.shown()));
    let failure = failure.because(why);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn cannot_mount(path: &Path, why: fuse::MountError, logs: &[Pending]) -> Failure {
    use fuse::MountError as Why;
    let hint = match &why {
        Why::Left => Some(left(logs)),
        Why::NotEmpty => Some("name a file that does not exist yet, or an empty one".to_owned()),
        Why::NoDevice(_) => Some(
            "load the kernel's module (`modprobe fuse`); a container needs the device /dev/fuse and the right to mount; \
             --nbd needs neither"
                .to_owned(),
        ),
        Why::NoHelper => Some("install the package fuse3, or run this as root".to_owned()),
        Why::InUse | Why::NoResend(_) | Why::System(_) => None,
    };
    let failure = Failure::new(format!("cannot mount over the file {}", path.shown()));
    let failure = failure.because(why);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// What to do about what a process has left that was killed.
fn left(logs: &[Pending]) -> String {
    let gone = "what it had acknowledged and not sent is gone, unless a journal or a replay log has it; programs that connect again would not be told. End \
                them, look after what they had written, then say --replace";
    let lacking = logs.iter().filter(|log| log.superseded.is_none());
    let logs = lacking.map(|log| {
        let replay = log.command();
        format!("\n  `{replay}` should come first: what it holds is not on the volume")
    });
    logs.fold(gone.to_owned(), |hint, log| hint + &log)
}

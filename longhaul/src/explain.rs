//! What the user can do about a store that cannot be opened.

use std::io::ErrorKind;

use host::rbd::{Access, RbdError};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::initiator::LoginError;
use proto::iscsi::sealed::Protection;
use rustix::io::Errno;

use crate::failure::Failure;
use crate::store::file::OpenError;
use crate::store::hyperscsi;
use crate::store::iscsi::{ConnectError, ReservationError, SessionError};
use crate::store::rbd::RbdOpenError;
use crate::store::scsi;

/// Adds what the user can do about it.
pub(crate) fn explain(what: String, why: OpenError) -> Failure {
    let hint = match &why {
        OpenError::PartialBlock { block_size, .. } => &*format!(
            "if it was cut off its end is lost; `truncate -s %{block_size} FILE` fills a file up with zeroes"
        ),
        OpenError::PartialSize { size, block_size } => &*format!(
            "the next size that can be is {}",
            size.next_multiple_of((*block_size).into())
        ),
        OpenError::NotDirect => "leave `direct` out, or put the file on another file system",
        OpenError::DirectBlocks(_) => {
            "give it blocks of the device: block_size=4096; or leave `direct` out"
        }
        OpenError::NoMedium => "is a medium in the drive, or a file behind the loop device?",
        OpenError::UsedHere => "one volume is used once: name it once",
        OpenError::InUse | OpenError::LockedBy(_) => {
            "one volume is served once: end the other user of it first"
        }
        OpenError::UsedBySystem(_) => {
            "two that write to the same blocks destroy each other's data: end the other use first (`umount`, `losetup --detach`, `swapoff`)"
        }
        OpenError::Missing => {
            "look at the path; `serve`, `attach` and `key init` make the file of a volume when they are given its size"
        }
        OpenError::Unmakeable(_) => "name a place on a file system that can be written",
        OpenError::NoDevice => {
            "is it connected, and the name right? `lsblk` lists devices; no file is made in /dev, where it would be in memory"
        }
        OpenError::OtherSize { .. } => "leave the size out to take it as it is",
        OpenError::TooLarge(_) => "make it smaller, or on a file system with larger files",
        OpenError::Empty => "`truncate -s 1G FILE` gives a file a size",
        OpenError::NoSize => "give it a size such as 1G",
        OpenError::NotA { found: "a block device", .. } => "name it device:PATH",
        OpenError::NotA { found: "a file", .. } => "name it file:PATH",
        OpenError::NotA { .. } => "a volume is a file or a block device: name one",
        OpenError::System(why) if why.kind() == ErrorKind::NotFound => {
            "look at the path: its directory, or the device, is not there"
        }
        OpenError::System(why) if why.kind() == ErrorKind::PermissionDenied => {
            "let this user read and write it, and its directory if it is to be made; where it is only read, have it opened read-only (`attach --read-only`, \
             `read_only` of a volume of `serve`)"
        }
        OpenError::WriteProtected => {
            "nothing was written; to read it: `attach --read-only`, `read_only` of a volume of `serve`; `blockdev --setrw` may lift it"
        }
        OpenError::System(why) if why.kind() == ErrorKind::ReadOnlyFilesystem => {
            "nothing was written; to read it: `attach --read-only`, `read_only` of a volume of `serve`"
        }
        _ => return Failure::new(what).because(why),
    };
    let hint = hint.to_owned();
    Failure::new(what).because(why).hint(hint)
}

/// The same of what was to be opened read-only, as which nothing is made.
pub(crate) fn explain_read_only(what: String, why: OpenError) -> Failure {
    match why {
        OpenError::Missing => {
            Failure::new(what).because(why).hint("look at the path: what is only read is not made")
        }
        why => explain(what, why),
    }
}

/// Adds what the user can do about an image.
pub(crate) fn explain_image(what: String, why: RbdOpenError) -> Failure {
    let hint = match &why {
        RbdOpenError::Rbd(RbdError::Locked(_)) => {
            "end it there first; `--take-over` of `attach`, `mount`, `copy`, `tune` and `key` takes its right to write away at once, and what it \
             has not written is lost there; one that was killed has it for half a minute more; to read, `attach --read-only`"
        }
        RbdOpenError::Rbd(RbdError::Step { why: cause, .. }) => match Errno::from_io_error(cause) {
            Some(Errno::NOENT) => "`rbd ls POOL` lists images, `ceph osd pool ls` pools",
            Some(Errno::PERM | Errno::ACCESS) => {
                "`ceph auth get client.USER` shows what a user may do: profile rbd, or rbd-read-only to read, of monitors and OSDs; ?id=USER and \
                 ?keyring=FILE behind the image name another"
            }
            _ => return explain_cluster(what, why),
        },
        _ => return explain_cluster(what, why),
    };
    let hint = hint.to_owned();
    Failure::new(what).because(why).hint(hint)
}

/// What both images and the pool of a cluster of gateways fail by.
fn explain_cluster(what: String, why: RbdOpenError) -> Failure {
    let RbdOpenError::Rbd(cause) = &why else { return Failure::new(what).because(why) };
    let hint = match cause {
        RbdError::Library(_) => {
            "the package librbd1 (of Debian) has it; the program needs it for Ceph only"
        }
        RbdError::Configuration(_) => {
            "it is looked for as Ceph's own tools do ($CEPH_CONF, /etc/ceph/ceph.conf), or where ?conf=FILE behind the image says"
        }
        RbdError::Step { why: cause, .. }
            if Errno::from_io_error(cause) == Some(Errno::TIMEDOUT) =>
        {
            "does `ceph -s` answer, for the same configuration and user?"
        }
        _ => return Failure::new(what).because(why),
    };
    let hint = hint.to_owned();
    Failure::new(what).because(why).hint(hint)
}

/// Why the pool with the record of a cluster of gateways cannot be used.
pub(crate) fn explain_ceph(what: String, access: &Access, why: RbdError) -> Failure {
    let RbdError::Step { why: cause, .. } = &why else { return explain_cluster(what, why.into()) };
    let hint = match Errno::from_io_error(cause) {
        Some(Errno::NOENT) => "`ceph osd pool ls` lists pools".to_owned(),
        Some(Errno::PERM | Errno::ACCESS) => format!(
            "a gateway reads and writes in the pool, and has the other one blocklisted: `ceph auth caps {} mon 'profile rbd' osd \
             'profile rbd pool=POOL'`, with the pools of the images too",
            access.user()
        ),
        _ => return explain_cluster(what, why.into()),
    };
    Failure::new(what).because(why).hint(hint)
}

/// What to do about another writer.
const HELD: &str = "end it there first; if it is gone, or is to lose the volume, `--take-over` of `attach`, `mount`, `copy`, `tune` and `key` ends its \
    writing at once, and what it has not flushed goes to a file there; --shared is for cluster file systems, where all sides say so; to read, `attach --read-only`";

/// What to do about a volume whose last writer has left a replay log.
const UNWRITTEN: &str = "write it first: it holds what was acknowledged to programs. `attach`, `mount`, `copy`, `tune` and `key` go on \
    without it if --take-over is said; nothing shows then that the log is the newest there is, and it takes --force";

/// What to do where that log is not there.
const LOG_MISSING: &str = "it holds what was acknowledged to programs: mount its disk or bring it back, and write it first; `longhaul replay` \
    takes a replay log from any place, and `longhaul journal drain` a journal. `attach`, `mount`, `copy`, `tune` and `key` go on without it if --take-over is said, as where it was written from \
    another machine";

/// What to do about a journal that was not sent.
const JOURNAL_UNSENT: &str = "it holds what was acknowledged to programs as stable: send it first by `longhaul journal drain FILE`, with --force if \
    nobody else has written since and the server has only forgotten its reservations. `attach`, `mount`, `copy`, `tune` and `key` go on without it if --take-over is said";

/// What to do about a replay log of which nobody knows whether it would replace something newer.
pub(crate) const NOT_RESUMED: &str = "`longhaul replay --dry-run FILE` shows which places would be replaced; if nobody has written there since, add --force";

/// The same, where another writer has the volume.
pub(crate) const NOT_RESUMED_BUT_HELD: &str = "its writer may have replaced what the log holds: look there, and end it, before `longhaul replay --force` \
    is thought of; `longhaul replay --dry-run FILE` shows which places would be replaced";

/// What to do about a unit that holds no blocks.
const ANOTHER_UNIT: &str = "the number at the end of the URI is that of the unit, and 0 if it is left out: try others, /0, /1 and so on";

/// What to do about a client that is paused.
const PAUSED: &str = "on the server: `longhaul clients` shows who is paused, and `longhaul config set clients.NAME.paused=false` ends that";

/// What to do about a unit whose server does not reach what is behind it, or finds another unit there.
const PASSED_ON: &str = "on a Longhaul server that passes it on `longhaul status` says what is wrong with the unit behind it";

/// Whether a HyperSCSI server has told that this client is paused.
fn is_paused(why: &(dyn std::error::Error + 'static)) -> bool {
    why.downcast_ref::<hyperscsi::SessionError>().is_some_and(hyperscsi::SessionError::is_pause)
}

/// The same, of a volume behind whatever transport.
pub(crate) fn explain_open<E: std::error::Error + Send + Sync + 'static>(
    what: String,
    why: scsi::OpenError<E>,
) -> Failure {
    let hint = match &why {
        scsi::OpenError::Reservation(why) => reservation_hint(why),
        scsi::OpenError::Device(why) if why.is_of_another_unit() => Some(ANOTHER_UNIT),
        scsi::OpenError::Session(why) if is_paused(why) => Some(PAUSED),
        scsi::OpenError::Device(scsi::DeviceError::Unit(why)) | scsi::OpenError::Unit(why)
            if why.is_away() =>
        {
            Some(PASSED_ON)
        }
        _ => None,
    };
    let is_fleeting = why.is_fleeting();
    hinted(Failure::new(what).because(why), hint).fleeting_if(is_fleeting)
}

fn hinted(failure: Failure, hint: Option<&'static str>) -> Failure {
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn reservation_hint(why: &ReservationError) -> Option<&'static str> {
    match why {
        ReservationError::Held(holders) => {
            Some(match (holders.has_unwritten_log(), holders.has_missing_log()) {
                (_, true) => LOG_MISSING,
                (true, false) => UNWRITTEN,
                (false, false) => HELD,
            })
        }
        ReservationError::NotResumed { is_held: true, .. } => Some(NOT_RESUMED_BUT_HELD),
        ReservationError::NotResumed { .. } => Some(NOT_RESUMED),
        ReservationError::LogMissing(_) => Some(LOG_MISSING),
        ReservationError::JournalUnsent(_) => Some(JOURNAL_UNSENT),
        _ => None,
    }
}

/// The same, of a target that cannot be reached.
pub(crate) fn explain_connect(what: String, why: ConnectError) -> Failure {
    let is_fleeting = why.is_fleeting();
    explain_at_length(what, why).fleeting_if(is_fleeting)
}

fn explain_at_length(what: String, why: ConnectError) -> Failure {
    use LoginStatus as Status;
    if let ConnectError::Reservation(refused) = &why {
        let hint = reservation_hint(refused);
        return hinted(Failure::new(what).because(why), hint);
    }
    let hint = match why.login() {
        Some(LoginError::NoCredentials) => {
            "give them with --chap-user and --chap-secret-file; or, for a secure session, --pin KEY, if the server knows the key of this \
             machine: an invitation (on the server: `longhaul invite NAME --volume VOLUME`) does both"
        }
        Some(LoginError::KeyRefused(_)) => {
            "on the server: a client's `key` in its file, or --client-key, unless it was revoked; here: --identity or --pin. If the server's \
             own key has changed, ask whoever runs it before another pin is taken: it may be another machine that answers"
        }
        Some(LoginError::InvitationRefused) => {
            "ask for another one: on the server, `longhaul invite NAME --volume VOLUME`. If you have not used this one yourself, \
             somebody else has: `longhaul clients` there shows it, `longhaul revoke NAME` ends it"
        }
        Some(LoginError::TooLittle(Protection::Integrity)) => {
            "ask for `--protection encrypt`; or the server lets this client not use this volume"
        }
        Some(LoginError::TooLittle(Protection::Encrypt)) => {
            "on the server: the volume must be among the client's `volumes`"
        }
        Some(LoginError::Unavailable) => PAUSED,
        Some(LoginError::NoSeal) => {
            "the server needs an identity: `longhaul serve --identity FILE`"
        }
        Some(LoginError::Refused(Status::AUTHENTICATION_FAILURE)) => {
            "name or secret is not what the target has, it knows only weak algorithms (--chap-weak), it asks for none, or it wants a secure session (--pin KEY)"
        }
        Some(LoginError::UnprovenMove(_)) => {
            "if the volume is there now, name that address yourself: the pinned key will prove it"
        }
        Some(LoginError::Refused(Status::INITIATOR_ERROR)) => {
            "is the target's name whole, as in iqn.2026-11.dev.longhaul:backup? `longhaul discover HOST` lists those that are there"
        }
        Some(LoginError::Refused(Status::NOT_FOUND)) => {
            "`longhaul discover HOST` lists what is there"
        }
        None => match &why {
            ConnectError::Device(scsi::DeviceError::Unit(why)) | ConnectError::Unit(why)
                if why.is_without_medium() =>
            {
                return Failure::new(what)
                    .because("there is no medium in the drive")
                    .hint("on a Longhaul server `longhaul media load` puts one in");
            }
            ConnectError::Device(scsi::DeviceError::Unit(why)) | ConnectError::Unit(why)
                if why.is_away() =>
            {
                PASSED_ON
            }
            ConnectError::Device(why) if why.is_of_another_unit() => ANOTHER_UNIT,
            ConnectError::Session(SessionError::Connect(_, why))
                if why.kind() == ErrorKind::ConnectionRefused =>
            {
                "nothing listens there: is the server running, and the port right?"
            }
            ConnectError::Session(why) if why.is_login_timeout() => {
                "is it an iSCSI target that listens there? It may also be stopped, or too busy"
            }
            ConnectError::Session(SessionError::Connect(..) | SessionError::Timeout(..)) => {
                "are the name and the port right, and does no firewall stand between?"
            }
            _ => return Failure::new(what).because(why),
        },
        _ => return Failure::new(what).because(why),
    };
    Failure::new(what).because(why).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn volume_that_is_not_reached_may_be_tried_again_by_any_transport() {
        let (server, within) = (|| "server".to_owned(), Duration::from_secs(1));
        let slow = ConnectError::Slow(server(), within);
        assert!(explain_connect(String::new(), slow).is_fleeting());
        let slow = scsi::OpenError::<hyperscsi::SessionError>::Slow(server(), within);
        assert!(explain_open(String::new(), slow).is_fleeting());
        let other = scsi::OpenError::<hyperscsi::SessionError>::Changed("serial number");
        assert!(!explain_open(String::new(), other).is_fleeting());
    }
}

//! Units of servers as they are, for commands that are no use of a volume: tape drives, optical drives and changers.

use std::path::PathBuf;
use std::time::Duration;

use super::credentials;
use crate::chain::Login;
use crate::explain::{explain_connect, explain_open};
use crate::failure::{Failure, Outcome};
use crate::printable::Shown as _;
use crate::reconnect_limit::ReconnectLimit;
use crate::state_dir::state_dir;
use crate::stop::Stop;
use crate::store::iscsi::Writers;
use crate::store::scsi::{Options as ScsiOptions, RawUnit};
use crate::store::{hyperscsi, iscsi};
use crate::uri::{HyperScsiUri, IscsiUri, Location, Uri};

/// How a unit is opened.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// How to log in.
    pub login: Login,
    /// How long a lost connection is waited for.
    pub reconnect_limit: ReconnectLimit,
    /// Who else may use it.
    pub writers: Writers,
    /// For how long a command may not move, though the connection lives, before the session is given up.
    pub stall: Duration,
    /// Where attachments are noted, if the user has no state directory.
    pub state: Option<PathBuf>,
    /// When it is called, what is being opened is let go.
    pub stop: Stop,
}

impl Default for UnitOptions {
    fn default() -> Self {
        Self {
            login: Login::default(),
            reconnect_limit: ReconnectLimit::default(),
            writers: Writers::Unasked,
            stall: STALL,
            state: None,
            stop: Stop::default(),
        }
    }
}

/// For as long a command of somebody who waits may not move: a drive rewinds a long tape, or finds a place on it, in some minutes, and changes media before.
const STALL: Duration = Duration::from_secs(3600);

/// Opens the unit that `uri` names. It is not reserved yet.
pub async fn open_unit(uri: &Uri, options: &UnitOptions) -> Outcome<Box<dyn RawUnit>> {
    match uri.location() {
        Location::Unit(unit) => behind_iscsi(uri, unit, options).await,
        Location::Served(volume) => behind_hyperscsi(uri, volume, options).await,
        _ => Err(Failure::usage(format!("{uri} is no unit of a server")).hint(how_to_name(uri))),
    }
}

fn how_to_name(uri: &Uri) -> String {
    const NAME: &str = "name it iscsi://HOST[:PORT]/IQN/LUN or hyperscsi://HOST[:PORT]/VOLUME";
    match uri.location() {
        Location::Tape(Some(path)) => format!(
            "{NAME}: `longhaul serve --volume NAME={uri}` has it in a drive; `longhaul tape info {}` looks at a tape without one",
            path.shown()
        ),
        Location::Drive(Some(path)) | Location::File(path) => {
            let path = path.shown();
            format!(
                "{NAME}: `longhaul serve --volume NAME=cdrom:{path}` has it in a drive as a disc, `NAME=tape:{path}` as a tape"
            )
        }
        _ => NAME.to_owned(),
    }
}

async fn behind_iscsi(
    uri: &Uri,
    IscsiUri { host, target, lun, pin }: &IscsiUri,
    options: &UnitOptions,
) -> Outcome<Box<dyn RawUnit>> {
    let what = || format!("cannot open {uri}");
    let target = iscsi::IscsiTarget { portal: host.clone(), name: target.clone(), lun: *lun };
    let with = options.login.connect_options(*pin);
    let mut with = with.map_err(|why| why.within(&what()))?;
    with.reconnect_for = options.reconnect_limit.0;
    with.timeouts.login = options.reconnect_limit.login_within();
    with.timeouts.stall = options.stall;
    with.writers = options.writers;
    with.state = state_dir().or_else(|| options.state.clone());
    with.stop = options.stop.clone();
    let opened = iscsi::open_unit(&target, &with).await;
    Ok(Box::new(opened.map_err(|why| explain_connect(what(), why))?))
}

async fn behind_hyperscsi(
    uri: &Uri,
    HyperScsiUri { server, volume, pin, paths, options: asked }: &HyperScsiUri,
    options: &UnitOptions,
) -> Outcome<Box<dyn RawUnit>> {
    let what = || format!("cannot open {uri}");
    let who = credentials(&options.login.seal, *pin).map_err(|why| why.within(&what()))?;
    let with = ScsiOptions {
        writers: options.writers,
        state: state_dir().or_else(|| options.state.clone()),
        reconnect_for: options.reconnect_limit.0,
        login_within: options.reconnect_limit.login_within(),
        stop: options.stop.clone(),
        stall: options.stall,
        ..ScsiOptions::default()
    };
    let (server, name, paths) = (server.clone(), volume.clone(), paths.clone());
    let volume = hyperscsi::Volume { server, name, paths, options: *asked };
    let opened = hyperscsi::open_unit(&volume, &who, with).await;
    Ok(Box::new(opened.map_err(|why| explain_open(what(), why))?))
}

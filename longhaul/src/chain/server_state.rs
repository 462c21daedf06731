//! How the server of a unit is: its clock, and what the file system of the volume has free.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use proto::scsi::command::Command;
use proto::scsi::log::{FreeSpace, parse_free_space, parse_timestamp};

use super::Login;
use super::store::unit::{UnitOptions, open_unit};
use crate::failure::Outcome;
use crate::store::scsi::RawUnit;
use crate::uri::Uri;

/// What it tells; nothing of what it does not know.
pub(crate) struct ServerState {
    /// By how many milliseconds its clock is before this machine's, and how far that may be wrong.
    pub(crate) ahead: Option<(i64, Duration)>,
    /// If the volume is a file.
    pub(crate) space: Option<FreeSpace>,
}

/// Asks a unit, which is neither opened as a volume nor reserved.
pub(crate) async fn server_state(uri: &Uri, login: Login) -> Outcome<ServerState> {
    let options = UnitOptions { login, ..UnitOptions::default() };
    let unit = open_unit(uri, &options).await?;
    let ahead = clock(&*unit).await;
    let space = unit.ask(Command::log_sense_free_space(), Bytes::new()).await;
    let space = space.ok().and_then(|page| parse_free_space(&page).ok());
    unit.close().await;
    Ok(ServerState { ahead, space })
}

async fn clock(unit: &dyn RawUnit) -> Option<(i64, Duration)> {
    let (before, began) = (SystemTime::now(), Instant::now());
    let answer = unit.ask(Command::report_timestamp(), Bytes::new()).await.ok()?;
    let half = began.elapsed() / 2;
    let here = (before + half).duration_since(UNIX_EPOCH).ok()?.as_millis() as i64;
    let there = parse_timestamp(&answer).ok()??.cast_signed();
    Some((there - here, half))
}

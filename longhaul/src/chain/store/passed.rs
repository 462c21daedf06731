//! Devices that are passed through: no blocks, but what takes their commands.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use volume::store::memory::Memory;

use super::Store;
use super::unit::{UnitOptions, open_unit};
use crate::chain::OpenOptions;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::scsi_device::ScsiDevice;
use crate::store::abilities::Opened;
use crate::store::iscsi::Writers;
use crate::store::passed_unit;
use crate::store::scsi_generic::{self, ScsiGenericError};
use crate::uri::{ScsiPlace, Uri};

/// The bytes of a block of a volume that has none.
const UNIT: u32 = 512;

/// Opens the device that `scsi` names, for `serve` alone: to everybody else it is no volume.
pub(super) async fn open(uri: &Uri, scsi: &ScsiPlace, options: &OpenOptions) -> Outcome<Store> {
    if !options.passes_through {
        return Err(Failure::usage(format!("cannot use {uri}"))
            .because("a device that is passed through has no blocks of ours")
            .hint(
                "`longhaul serve --volume NAME=scsi:/dev/sg0` offers it; device:PATH is a disk",
            ));
    }
    let mut opened = Opened::plain(Arc::new(Memory::new(0, UNIT)));
    match scsi {
        ScsiPlace::Device(path) => opened.abilities.device = Some(of_machine(uri, path).await?),
        ScsiPlace::Unit(unit) => {
            pass_on(&mut opened, uri, &Uri::from(unit.clone()), options).await?;
        }
        ScsiPlace::Served(volume) => {
            pass_on(&mut opened, uri, &Uri::from(volume.clone()), options).await?;
        }
    }
    Ok(Store::new("scsi", opened))
}

/// For as long a command may not move. Each has its own time before, which is at most a day.
const STALL: Duration = Duration::from_secs(25 * 3600);

/// Opens the unit of a server, `there`.
async fn pass_on(opened: &mut Opened, uri: &Uri, there: &Uri, options: &OpenOptions) -> Outcome {
    let with = UnitOptions {
        login: options.login.clone(),
        reconnect_limit: options.reconnect_limit,
        // The next process ends what this one has under way, should it be killed.
        writers: Writers::Shared,
        stall: STALL,
        state: options.state.clone(),
        stop: options.stop.clone(),
    };
    let unit = open_unit(there, &with).await?;
    let passed = passed_unit::open(unit, there.to_string()).await;
    let passed = Arc::new(passed.or_fail(|| format!("cannot open {uri}"))?);
    opened.abilities.close = Some(passed.clone());
    opened.abilities.device = Some(passed);
    Ok(())
}

async fn of_machine(uri: &Uri, path: &Path) -> Outcome<Arc<dyn ScsiDevice>> {
    match scsi_generic::open(path).await {
        Ok(device) => Ok(Arc::new(device)),
        Err(why) => Err(explain(format!("cannot open {uri}"), why)),
    }
}

fn explain(what: String, why: ScsiGenericError) -> Failure {
    let hint = match &why {
        ScsiGenericError::InUse => "unmount it, or end the other program first",
        ScsiGenericError::Open(_) => {
            "name a device node such as /dev/sg0, /dev/nst0 or /dev/sr0, as root: `lsscsi -g` lists them"
        }
        _ => return Failure::new(what).because(why),
    };
    Failure::new(what).because(why).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::super::store;
    use super::*;

    #[tokio::test]
    async fn device_is_for_the_server_alone_and_a_scsi_device() {
        let uri: Uri = "scsi:/dev/null".parse().unwrap();
        let refused = async |passes_through| {
            let options = OpenOptions { passes_through, ..OpenOptions::default() };
            store(&uri, &options).await.err().map(|why| why.to_string()).unwrap_or_default()
        };
        assert!(refused(false).await.contains("has no blocks of ours"));
        assert!(refused(true).await.contains("no SCSI device"));
    }
}

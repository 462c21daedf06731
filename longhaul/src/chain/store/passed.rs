//! Devices that are passed through: no blocks, but what takes their commands.

use std::path::Path;
use std::sync::Arc;

use volume::store::memory::Memory;

use super::Store;
use crate::chain::OpenOptions;
use crate::failure::{Failure, Outcome};
use crate::scsi_device::ScsiDevice;
use crate::store::abilities::Opened;
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
    let device = match scsi {
        ScsiPlace::Device(path) => of_machine(uri, path).await?,
    };
    let mut opened = Opened::plain(Arc::new(Memory::new(0, UNIT)));
    opened.abilities.device = Some(device);
    Ok(Store::new("scsi", opened))
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

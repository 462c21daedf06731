//! Ties the connection to an encrypted volume to its LUKS UUID: after a loss another volume may answer under its name.

use std::sync::Arc;

use tokio::time::timeout;
use volume::Volume;

use super::SEEN_WITHIN;
use crate::failure::{Failure, Outcome};
use crate::luks::{self, LuksIdentity};
use crate::store::abilities::OneWriter;
use crate::store::scsi;
use crate::uri::Uri;

/// From now on no connection to a volume with another LUKS UUID is used. If it has none that holds from when one is
/// written to it.
pub(super) async fn tie(uri: &Uri, store: &dyn OneWriter, identity: LuksIdentity) -> Outcome {
    let LuksIdentity { uuid, copies, others, is_blank, read, area: _, checkpoint: _ } = identity;
    let what = || format!("cannot open {uri}");
    let named = uuid.clone().unwrap_or_default();
    let is_there = store.identify(scsi::Identity { uuid, copies, others, is_blank, read });
    match is_there.await.map_err(|why| Failure::of_volume(what(), why))? {
        true => Ok(()),
        false => Err(Failure::new(what())
            .because(format!(
                "the volume with the LUKS UUID {named} was replaced while it was opened"
            ))
            .hint("look at which volume is there now, and try again")),
    }
}

/// The same where nobody has asked for its contents. A header that cannot be read ties nothing: those who need it are
/// told why.
pub(super) async fn tie_unseen(
    uri: &Uri,
    volume: &Arc<dyn Volume>,
    store: &dyn OneWriter,
) -> Outcome {
    match timeout(SEEN_WITHIN, luks::identity(volume)).await {
        Ok(Ok(identity)) => tie(uri, store, identity).await,
        Ok(Err(why)) => {
            tracing::debug!(%uri, %why, "cannot tell whether the volume is encrypted");
            Ok(())
        }
        Err(_) => Err(Failure::new(format!("cannot open {uri}"))
            .because(format!("its start is not read within {SEEN_WITHIN:?}"))
            .fleeting()),
    }
}

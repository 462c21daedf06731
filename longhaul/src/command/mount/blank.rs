//! A volume that a file system is to be made on: it must hold nothing, and is encrypted.

use std::path::Path;
use std::sync::Arc;

use volume::{Span, Volume};

use super::super::attach::VolumeArgs;
use super::super::{closing, unless_stopped};
use crate::chain::{Contents, Unlock};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::luks::{self, Init, Key};
use crate::printable::Quoted as _;
use crate::stop::Stop;
use crate::uri::Uri;

/// How much of both ends of an encrypted volume's data is looked at: where file systems keep what they are known by.
const LOOKED_AT: u64 = 2 << 20;

/// How much is read at a time.
const PIECE: u64 = 1 << 20;

/// Makes key slots on a volume that has none and is blank; what opens it then. A volume on which there is anything is
/// refused, with its name.
pub(super) async fn prepare(
    uri: &Uri,
    args: &VolumeArgs,
    stop: &Stop,
) -> Outcome<Option<Contents>> {
    if uri.vanishes() {
        return Ok(None);
    }
    let chain = args.open(uri, Some(Contents::Unseen), stop).await?;
    closing(chain, async |chain| {
        unless_stopped(stop, prepare_store(chain.volume(), uri, args)).await
    })
    .await
    .map_err(|why| why.hint_if_none("without --mkfs what is there is mounted; nothing was written"))
}

async fn prepare_store(
    volume: Arc<dyn Volume>,
    uri: &Uri,
    args: &VolumeArgs,
) -> Outcome<Option<Contents>> {
    if args.encryption.is_raw() {
        refuse_unless_blank(volume).await?;
        return Ok(None);
    }
    if luks::recognise(Arc::clone(&volume)).await?.is_some() {
        refuse_data(&volume, uri).await?;
        // Opened as always, with what opens it.
        return Ok(None);
    }
    refuse_unless_blank(Arc::clone(&volume)).await?;
    let secret =
        Key::new(args.encryption.source(), format!("New pass-phrase of {uri}")).read().await?;
    let how = Init::default();
    luks::init(volume, secret.clone(), how).await?;
    let with = args.encryption.discards();
    Ok(Some(Contents::Plain(Unlock { key: secret.into(), with, erasable: false, demanded: true })))
}

/// Who wants a file system is not helped by what `key init` would overwrite.
async fn refuse_unless_blank(volume: Arc<dyn Volume>) -> Outcome {
    let blank = luks::refuse_unless_blank(volume).await;
    blank.map_err(|why| {
        why.hint_if_any(
            "without --mkfs what is there is mounted; nothing was written. If nothing on it is needed, make a new volume",
        )
    })
}

/// What was never written to an encrypted volume reads as zeroes beneath the encryption.
async fn refuse_data(volume: &Arc<dyn Volume>, uri: &Uri) -> Outcome {
    let look = || format!("cannot look at what is on {uri}");
    let slots = luks::slots(Arc::clone(volume)).await?;
    let data = Span::new(slots.offset, slots.size);
    let ends = [data.at, data.end().saturating_sub(LOOKED_AT).max(data.at)];
    for start in ends {
        let mut at = start;
        let end = (start + LOOKED_AT).min(data.end());
        while at < end {
            let span = Span::new(at, PIECE.min(end - at));
            let bytes = volume.read(span).await.or_fail(look)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Err(Failure::new(format!(
                    "{uri} is encrypted and not empty: no file system is made on it"
                ))
                .hint(format!(
                    "without --mkfs what is there is mounted; nothing was written. If nothing on it is needed, as after a --mkfs that failed, \
                     `longhaul mount --device {}` prints a block device, and `mkfs.ext4 DEVICE` makes one on that; then unmount it, and mount it without --mkfs",
                    Path::new(&uri.to_string()).quoted()
                )));
            }
            at = span.end();
        }
    }
    Ok(())
}

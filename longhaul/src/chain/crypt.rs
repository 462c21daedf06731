//! The layer that decrypts.

use std::sync::{Arc, OnceLock};

use tokio::time::timeout;
use volume::{CryptoErase, Gate, Volume};

use super::layer::{Layer, OpenContext, Opening};
use super::writer::{self, HeaderToken};
use super::{Contents, SEEN_WITHIN, Unlock, identity};
use crate::failure::{Failure, Outcome};
use crate::luks;
use crate::signatures;
use crate::store::abilities::{Abilities, Opened, Token};
use crate::store::iscsi::Writers;

/// What a chain calls it.
pub(super) const CRYPT: &str = "crypt";

/// The plain text of an encrypted volume: it is there if that is wanted, and the volume is encrypted.
pub(super) struct Crypt;

impl Layer for Crypt {
    fn name(&self) -> &'static str {
        CRYPT
    }

    fn open<'a>(&'a self, beneath: &'a Opened, with: &'a mut OpenContext<'_>) -> Opening<'a> {
        Box::pin(async move {
            let store = beneath.abilities.writer.as_deref();
            let claim = writer::claim(store);
            let is_alone = matches!(&claim, Some((writers, _)) if *writers != Writers::Shared);
            let opened = contents(beneath, with, claim).await?;
            let token = opened.as_ref().and_then(|opened| opened.token.as_ref());
            if is_alone {
                writer::warn(with.uri, token.is_some());
            }
            if let Some(token) = token {
                token.rely_on();
            }
            Ok(opened.map(|Decrypted { plain, erase, token }| {
                let mut opened = beneath.layer(plain);
                opened.abilities.erase = erase;
                opened.abilities.token = token.map(|token| token as Arc<dyn Token>);
                opened
            }))
        })
    }
}

/// The plain text of a volume.
struct Decrypted {
    plain: Arc<dyn Volume>,
    /// What destroys its key.
    erase: Option<Arc<dyn CryptoErase>>,
    /// What names its writer.
    token: Option<Arc<HeaderToken>>,
}

/// What is wanted of the volume `beneath`; `None` if that is what its store holds.
async fn contents(
    beneath: &Opened,
    with: &mut OpenContext<'_>,
    claim: Option<(Writers, luks::Claim)>,
) -> Outcome<Option<Decrypted>> {
    let wanted = std::mem::take(&mut with.options.contents);
    let (uri, volume, store) = (with.uri, &beneath.volume, beneath.abilities.writer.as_deref());
    if matches!(wanted, Contents::Unseen) && claim.is_none() {
        if let Some(store) = store {
            identity::tie_unseen(uri, volume, store).await?;
        }
        return Ok(None);
    }
    let found = timeout(SEEN_WITHIN, luks::recognise(Arc::clone(volume))).await;
    let late = || {
        let why = format!("its header is not read within {SEEN_WITHIN:?}");
        Err(Failure::new(why).fleeting())
    };
    let found = found.unwrap_or_else(|_| late());
    let found =
        found.map_err(|why| why.within(&format!("cannot tell whether {uri} is encrypted")))?;
    if let (Some(encrypted), Some((_, claim))) = (&found, &claim) {
        encrypted.check(claim).map_err(|why| why.within(&format!("cannot open {uri}")))?;
    }
    // Before a pass-phrase is asked for, which takes as long as it takes.
    if let Some(store) = store {
        let none = || luks::LuksIdentity::none(volume.shape().size, false);
        let luks = found.as_ref().map_or_else(none, luks::Encrypted::identity);
        let header = luks.area;
        identity::tie(uri, store, luks).await?;
        if let (Some(header), Contents::Plain(_)) = (header, &wanted) {
            store.keep_out_of_log(header);
        }
    }
    match (found, wanted) {
        (Some(encrypted), Contents::Raw { overwrite: false }) if !volume.shape().read_only => {
            let what = format!("{uri} is encrypted: it is {}", encrypted.summary().name());
            Err(Failure::usage(what)
                .because("what is written to it as it is stored destroys it")
                .hint("leave --raw out to use its contents; --force writes over it all the same"))
        }
        (Some(encrypted), Contents::Plain(unlock)) => {
            let alone = claim.filter(|(writers, _)| *writers != Writers::Shared);
            let claim = alone.map(|(_, claim)| claim);
            let opened = decrypt(encrypted, unlock, claim, (beneath, with.token)).await;
            opened.map(Some).map_err(|why| why.within_unless_named(&uri.to_string()))
        }
        (None, Contents::Plain(_) | Contents::Raw { overwrite: false })
            if !volume.shape().read_only && signatures::has(&**volume, signatures::MIRROR).await =>
        {
            Err(Failure::usage(format!("{uri} is a member of a mirror"))
                .because("what is written to it alone, the others have not, and the mirror does not notice")
                .hint("name all of them: mirror:(URI,URI); --raw and --force write to it all the same"))
        }
        (None, Contents::Plain(Unlock { demanded: true, .. })) => {
            Err(Failure::new(format!("{uri} is not encrypted: it has no LUKS header"))
                .because("a pass-phrase or --encrypted says that it is")
                .hint(
                    "if it was encrypted before, its header is lost: `longhaul key restore` brings one back from a backup; \
                     `longhaul key init` encrypts an empty volume",
                ))
        }
        _ => Ok(None),
    }
}

/// The plain text of an encrypted volume, and what destroys its key if that is wanted.
async fn decrypt(
    mut encrypted: luks::Encrypted,
    unlock: Unlock,
    claim: Option<luks::Claim>,
    (beneath, claimed): (&Opened, &OnceLock<Arc<dyn Token>>),
) -> Outcome<Decrypted> {
    let Unlock { key, with, erasable, demanded: _ } = unlock;
    let Abilities { writer, close, .. } = &beneath.abilities;
    let token = claim.and_then(|claim| encrypted.claim(claim)).zip(writer.clone());
    let token = token.map(|(token, writer)| HeaderToken { token, writer, close: close.clone() });
    let token = token.map(Arc::new);
    if let Some(token) = token.clone() {
        let _ = claimed.set(token);
    }
    if !erasable {
        return Ok(Decrypted { plain: encrypted.open(&key, with).await?, erase: None, token });
    }
    let opened = Arc::new(luks::Erasable::open(encrypted, &key, with).await?);
    let plain = Arc::new(Gate::new("erasable", Arc::clone(&opened)));
    Ok(Decrypted { plain, erase: Some(opened), token })
}

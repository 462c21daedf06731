//! Opening a chain, and letting go of one that is not opened after all.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::timeout;

use super::store::{Store, store};
use super::{Chain, Contents, GRACE, OpenOptions, Unlock, assemble, end};
use crate::failure::{Failure, OrFail, Outcome};
use crate::luks;
use crate::secret::Secret;
use crate::store::abilities::{Abilities, Token};
use crate::store::iscsi::Writers;
use crate::uri::Uri;

/// How long a token that is in a header may take to leave it again.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(5);

/// How long whoever told it to end waits for that, also if the system does not answer.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

/// Opens the volume that `uri` names. Once `options.stop` is called it fails soon, and has let go of what it had.
pub async fn open(uri: &Uri, options: OpenOptions) -> Outcome<Chain> {
    let (stop, named) = (options.stop.clone(), uri.clone());
    // On a task of its own: a system call that hangs must not keep whoever wants to end.
    let opening = tokio::spawn(async move { begin(&named, options).await });
    match stop.unless_late(ENDED_WITHIN, opening).await {
        Some(opened) => opened.or_fail(|| format!("cannot open {uri}"))?,
        None => Err(ended(uri)),
    }
}

async fn begin(uri: &Uri, mut options: OpenOptions) -> Outcome<Chain> {
    if let (Writers::TakeOver, Contents::Plain(unlock)) = (options.writers, &options.contents)
        && let Some(secret) = secret_before(uri, unlock, &options).await?
    {
        options.contents = Contents::Plain(Unlock { key: secret.into(), ..unlock.clone() });
    }
    let store = store(uri, &options).await?;
    open_over(uri, store, options).await
}

/// What opens a volume that is about to be taken over, found out before: the writer that is there must not be ended by a
/// pass-phrase that is wrong. Where the volume cannot be read before it is taken over that stays open.
async fn secret_before(
    uri: &Uri,
    unlock: &Unlock,
    options: &OpenOptions,
) -> Outcome<Option<Secret>> {
    let looking = OpenOptions {
        read_only: true,
        login: options.login.clone(),
        contents: Contents::Unseen,
        writers: Writers::Unasked,
        reconnect_limit: options.reconnect_limit,
        stop: options.stop.clone(),
        ..OpenOptions::default()
    };
    let Ok(store) = store(uri, &looking).await else { return Ok(None) };
    let Ok(chain) = open_over(uri, store, looking).await else { return Ok(None) };
    let secret = luks::secret(chain.volume(), &unlock.key, unlock.with);
    let secret = options.stop.unless_called(secret).await.unwrap_or_else(|| Err(ended(uri)));
    if let Err(why) = chain.close().await {
        tracing::warn!(%why, "what was only looked at is not closed");
    }
    let named = |why: Failure| why.within_unless_named(&uri.to_string());
    secret.map_err(|why| named(why).hint_first("nothing was taken over"))
}

/// Opens the chain over its store, which is let go of if that fails.
pub(super) async fn open_over(uri: &Uri, store: Store, options: OpenOptions) -> Outcome<Chain> {
    let (stop, limit, token) = (options.stop.clone(), options.reconnect_limit, OnceLock::new());
    // A log that is being written needs no warning.
    let warns = options.writers != Writers::Unasked && options.replays.is_none();
    let watches = options.writers != Writers::Unasked && !options.read_only;
    let written = options.replays.as_ref().map(|log| log.file.clone());
    let logs = options.replay_log.clone();
    // What is accepted is in the journal, however long an outage lasts.
    let outlasts = options.journal.as_ref().is_some_and(|journal| journal.outlasts_outages);
    let continues = options.writers.continues();
    let abilities = store.opened.abilities.clone();
    let mut workers = Vec::new();
    let opened = stop.unless_called(assemble(uri, store, options, &token, &mut workers)).await;
    match opened {
        Some(Ok(chain)) => {
            // It is whole: from now on it is worth waiting for.
            if let Some(close) = &abilities.close {
                close.set_outage_limit(limit.0.filter(|_| !outlasts));
            }
            if warns || watches {
                let logs = chain.pending_logs(logs).await;
                if warns {
                    chain.warn_of_logs(&logs);
                }
                if watches {
                    chain.watch_logs(logs, written.as_deref());
                }
            }
            Ok(chain)
        }
        opened => {
            if let Some(close) = &abilities.close {
                close.leave(GRACE);
            }
            // A journal says then that it holds nothing, and is guarded no more.
            end(workers).await;
            // Where the opening has failed by itself it has given the token back.
            let token = token.get().filter(|_| opened.is_none());
            let_go(&abilities, token.map(Arc::as_ref), continues).await;
            opened.unwrap_or_else(|| Err(ended(uri)))
        }
    }
}

/// Gives back what was reserved, which a store that is merely dropped does not do. Where it `continues` for a writer that is
/// gone the reservation stays: by it the next one who tries knows that nobody has written since.
pub(super) async fn let_go(store: &Abilities, token: Option<&dyn Token>, continues: bool) {
    if let Some(token) = token
        && timeout(GIVEN_BACK_WITHIN, token.give_back()).await.is_err()
    {
        tracing::warn!(
            "the target does not answer: the token of this attachment stays in the header"
        );
    }
    if let Some(writer) = store.writer.as_ref().filter(|_| continues) {
        writer.keep_reserved();
    }
    if let Some(close) = &store.close {
        close.let_go().await;
    }
}

fn ended(uri: &Uri) -> Failure {
    Failure::new(format!("cannot open {uri}")).because("it was ended before it was open")
}

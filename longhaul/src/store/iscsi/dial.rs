//! A name that has several addresses: whichever answers.
//!
//! Each address is tried in the order the system's resolver gives them, and has some time to itself before the next
//! is tried beside it (RFC 8305, 5): one that is dead and says nothing costs that time, not its own patience.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::StreamExt as _;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};
use volume::FutureSet;

use super::error::SessionError;
use crate::net::tcp_tuning::send_at_once;
use crate::uri::Host;

/// The time an address has to itself. RFC 8305 has 250 ms, and 2 s at most; a round trip of half a second is not
/// unusual here, and a connection that comes too late is one that the target has to close again.
const ALONE: Duration = Duration::from_secs(1);

/// Connects to a portal by an address that is not among `but`. Each may take as long as `patience`, and so may the
/// lookup of the name.
pub(super) async fn dial(
    portal: &Host,
    but: &[SocketAddr],
    patience: Duration,
) -> Result<TcpStream, SessionError> {
    let late = |_| SessionError::Timeout(portal.clone(), patience);
    let failed = |error| SessionError::Connect(portal.clone(), error);
    let lookup = lookup_host((portal.name.as_str(), portal.port));
    let addresses = timeout(patience, lookup).await.map_err(late)?.map_err(failed)?;
    let addresses = addresses.filter(|address| !but.contains(address));
    let one = |address: SocketAddr| async move {
        let socket = timeout(patience, TcpStream::connect(address)).await.map_err(late)?;
        socket.and_then(|socket| send_at_once(&socket).map(|()| socket)).map_err(failed)
    };
    match first(addresses, one, || sleep(ALONE)).await {
        Ok(socket) => Ok(socket),
        Err(Some(error)) => Err(error),
        Err(None) => Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has no address"))),
    }
}

/// The first that succeeds; the last failure if none does. The next is tried when one has failed, or when `alone`
/// is over.
async fn first<T, E, F, A>(
    mut addresses: impl Iterator<Item = SocketAddr>,
    one: impl Fn(SocketAddr) -> F,
    alone: impl Fn() -> A,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
    A: Future<Output = ()>,
{
    let mut trying = FutureSet::new();
    let mut failure = None;
    loop {
        let ended = match addresses.next() {
            Some(address) => {
                trying.push(one(address));
                tokio::select! {
                    biased;
                    ended = trying.next() => Some(ended),
                    () = alone() => None,
                }
            }
            None => Some(trying.next().await),
        };
        match ended {
            Some(Some(Ok(reached))) => return Ok(reached),
            Some(Some(Err(error))) => failure = Some(error),
            Some(None) => return Err(failure),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;

    use super::*;

    /// What an address does, by its port; all others answer.
    const REFUSES: u16 = 1;
    const SILENT: u16 = 2;

    /// Who answers, at once. `None` if somebody is waited for.
    fn tried(ports: &[u16], patient: bool) -> Option<Result<u16, Option<&'static str>>> {
        let addresses = ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port)));
        let one = |address: SocketAddr| async move {
            match address.port() {
                REFUSES => Err("refused"),
                SILENT => pending().await,
                answers => Ok(answers),
            }
        };
        let alone = || async move { if patient { pending().await } else { ready(()).await } };
        first(addresses, one, alone).now_or_never()
    }

    #[test]
    fn every_address_has_its_turn() {
        for (ports, reached) in [
            (&[7, 8][..], Some(Ok(7))),
            (&[REFUSES, REFUSES, 7], Some(Ok(7))),
            (&[REFUSES, REFUSES], Some(Err(Some("refused")))),
            (&[], Some(Err(None))),
            (&[SILENT, 7], None),
            (&[REFUSES, SILENT, 7], None),
        ] {
            assert_eq!(tried(ports, true), reached, "{ports:?}");
        }
    }

    #[test]
    fn one_that_says_nothing_is_not_alone_for_long() {
        for (ports, reached) in [
            (&[SILENT, 7, 8][..], Some(Ok(7))),
            (&[SILENT, SILENT, REFUSES, 7], Some(Ok(7))),
            (&[SILENT, REFUSES], None),
        ] {
            assert_eq!(tried(ports, false), reached, "{ports:?}");
        }
    }
}

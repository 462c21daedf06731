//! The reservations of one unit, as all gateways know them.

use std::io;

use proto::cluster::{Outcome, Update};
use tokio::sync::{mpsc, oneshot};

use super::driver::Request;
use crate::target::lun::{SharedReservations, Waiting};

/// See the module.
#[derive(Debug)]
pub(super) struct UnitReservations {
    unit: String,
    requests: mpsc::Sender<Request>,
}

impl UnitReservations {
    pub(super) const fn new(unit: String, requests: mpsc::Sender<Request>) -> Self {
        Self { unit, requests }
    }
}

fn gone<T>(_: T) -> io::Error {
    io::Error::other("the cluster is not looked after any more")
}

impl SharedReservations for UnitReservations {
    fn refresh(&self) -> Waiting<io::Result<()>> {
        let requests = self.requests.clone();
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            requests.send(Request::Refresh(tell)).await.map_err(gone)?;
            told.await.map_err(gone)?
        })
    }

    fn settled(&self) -> Waiting<io::Result<()>> {
        let requests = self.requests.clone();
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            requests.send(Request::Settled(tell)).await.map_err(gone)?;
            told.await.map_err(gone)?
        })
    }

    fn replace(&self, base: Option<Vec<u8>>, image: Vec<u8>) -> Waiting<io::Result<bool>> {
        let (requests, unit) = (self.requests.clone(), self.unit.clone());
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            let update = Update { unit, base, image };
            requests.send(Request::Update(update, tell)).await.map_err(gone)?;
            match told.await.map_err(gone)? {
                Outcome::Done => Ok(true),
                Outcome::Conflict => Ok(false),
                Outcome::Unknown => Err(io::Error::other("whether they were changed is not known")),
            }
        })
    }
}

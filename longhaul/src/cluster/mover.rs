//! Moves a group of volumes to another gateway, or to this one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::cluster::{GatewayName, GroupName, Role};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::driver::{Request, tell};
use super::seen_within;
use super::store::RecordStore;
use crate::failure::{Failure, OrFail as _, Outcome};

/// How long the files of a cluster may take to say who is there.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// How often another gateway is looked for in a lease.
const LOOKS: u32 = 40;

/// See the module.
#[derive(Clone, Debug)]
pub struct Mover {
    pub(super) gateway: GatewayName,
    pub(super) lease: Duration,
    /// How the group is called where there are others.
    pub(super) name: Option<GroupName>,
    pub(super) store: Arc<dyn RecordStore>,
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) roles: watch::Receiver<Role>,
}

impl Mover {
    fn role(&self) -> Role {
        *self.roles.borrow()
    }

    /// What a move would be: another gateway is to be active, or this one, whichever is not. An active one gives up nothing where
    /// no other is there to take it.
    pub async fn prepare(&self) -> Outcome<String> {
        if self.role() == Role::Active && !self.is_another_there().await? {
            let why = "no other gateway looks at the record of the cluster";
            let what = format!("cannot move {} to another gateway", self.volumes());
            return Err(Failure::new(what).because(why).hint(
                "nothing was changed; start the other gateway, and see that it has the same `directory` or `state`: `longhaul check` and its log tell",
            ));
        }
        let (gateway, volumes) = (&self.gateway, self.volumes());
        Ok(match self.role() {
            Role::Active | Role::TakingOver | Role::Leaving => {
                format!("{gateway} gives {volumes} to another gateway")
            }
            Role::Standby | Role::Lost => format!("{gateway} has asked for {volumes}"),
        })
    }

    /// Begins it.
    pub async fn begin(&self) {
        tell(&self.requests, Request::Move).await;
    }

    /// Its volumes, in a sentence.
    fn volumes(&self) -> String {
        let of = self.name.as_ref().map(|name| format!(" of the group {name}"));
        format!("the volumes{}", of.unwrap_or_default())
    }

    /// Whether another gateway looks at the record now. It does so several times in a lease, and rarely where what has the record
    /// is slow: only one that is not there is waited for that long.
    async fn is_another_there(&self) -> Outcome<bool> {
        let look = || async {
            let store = Arc::clone(&self.store);
            let seen = timeout(TOLD_WITHIN, spawn_blocking(move || store.others_seen())).await;
            let what = || "cannot look for another gateway".to_owned();
            seen.or_fail(what)?.or_fail(what)?.or_fail(what)
        };
        let (before, began) = (look().await?, Instant::now());
        while began.elapsed() < seen_within(self.lease) {
            sleep(self.lease / LOOKS).await;
            if look().await? != before {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

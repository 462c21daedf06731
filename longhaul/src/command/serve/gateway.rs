//! A gateway of a cluster: it opens the volumes when it takes over, and closes them when it is active no more.

use std::collections::BTreeMap;
use std::mem::replace;
use std::time::Duration;

use futures_util::future::join_all;
use proto::cluster::Role;
use proto::scsi::inquiry::Identity;
use proto::scsi::ports::AccessState;
use tokio::time::timeout;

use super::live::{Live, OpenVolume};
use super::{Remembered, discard, open_one, policy, served_before};
use crate::chain::{self, Chain, OpenOptions};
use crate::cluster::{Cluster, Duties};
use crate::config::{Config, Served};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::front::iscsi::Offering;
use crate::served_volumes::{OnExchange, VolumeIdentity};
use crate::target::sessions::EndReason;

/// How long sessions may take to see that the gateway is active, before it does what else it has to.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// Volumes that another gateway has, or none.
pub(super) async fn open_standby(volumes: &[Served]) -> Outcome<Vec<Chain>> {
    let mut chains = Vec::new();
    for volume in volumes {
        let options = OpenOptions {
            standby: true,
            size: volume.size,
            read_only: volume.read_only,
            block_size: volume.appearance.block_size.map(|size| size.0),
            ..OpenOptions::default()
        };
        let opened = chain::open(&volume.uri, options).await;
        chains.push(opened.map_err(|why| why.within(&format!("volume {}", volume.name)))?);
    }
    Ok(chains)
}

/// A volume that is known by the name of its unit alone, which is the same at every gateway.
pub(super) fn named(volume: &Served) -> Remembered {
    let identity = Identity::new(volume.target.as_str(), volume.lun).serial;
    let serial = volume.configured_serial().unwrap_or(&identity).to_owned();
    Remembered { by: VolumeIdentity { identity, serial }, kept: None }
}

impl Live {
    /// Takes part in a cluster from now on.
    pub(super) fn takes_part(&mut self, mut cluster: Option<Cluster>) {
        if let Some(cluster) = &mut cluster {
            let volumes = self.volumes().iter().filter_map(|volume| {
                let OpenVolume { disk, .. } = self.open_volumes.get(&volume.name)?;
                Some((volume.target.as_str(), volume.lun, disk))
            });
            cluster.start(volumes);
        }
        self.cluster = cluster;
    }

    pub(super) fn duties(&self) -> Option<Duties> {
        self.cluster.as_ref().map(Cluster::duties)
    }

    /// How volumes are accessed by each group now.
    pub(super) fn access(&self, config: &Config) -> BTreeMap<u16, AccessState> {
        match &self.cluster {
            Some(cluster) => config.ports_in_cluster(cluster.role() == Role::Active),
            None => config.ports(),
        }
    }

    /// Does what the role asks for.
    pub(super) async fn fulfil(&mut self, role: Role) {
        match role {
            Role::TakingOver => self.take_over().await,
            Role::Leaving | Role::Lost => self.stand_by().await,
            Role::Standby | Role::Active => {}
        }
    }

    /// Opens the volumes. As long as another process has one, this is tried again.
    async fn take_over(&mut self) {
        match self.open_all().await {
            Ok(chains) => drop(self.exchange_chains(chains)),
            Err(why) => {
                tracing::warn!("cannot take over yet: {}", why.on_one_line());
                return self.pause().await;
            }
        }
        if let Some(cluster) = &self.cluster {
            cluster.opened().await;
        }
        // Where the lease is over by now, the next duty is to close them.
        if timeout(SEEN_WITHIN, self.offer()).await.is_err() {
            tracing::warn!("a session takes long to see that this gateway is active");
        }
    }

    async fn pause(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.try_again().await;
        }
    }

    async fn open_all(&self) -> Outcome<Vec<Chain>> {
        let state = self.config().state.as_deref();
        let served = served_before(state).await?;
        let mut chains = Vec::new();
        for volume in self.volumes() {
            let opened = open_one(volume, (state, &served), OnExchange::Warn, &self.stop).await;
            match opened {
                Ok(chain) => chains.push(chain),
                Err(why) => {
                    discard(chains, self.volumes(), state).await;
                    return Err(why.within(&format!("volume {}", volume.name)));
                }
            }
        }
        Ok(chains)
    }

    /// Puts these chains beneath the disks, and gives those that were there.
    fn exchange_chains(&mut self, chains: Vec<Chain>) -> Vec<Chain> {
        let names: Vec<_> = self.volumes().iter().map(|volume| volume.name.clone()).collect();
        let mut before = Vec::new();
        for (name, chain) in names.iter().zip(chains) {
            let Some(open_volume) = self.open_volumes.get_mut(name) else { continue };
            open_volume.disk = open_volume.disk.grown(chain.volume());
            before.push(replace(&mut open_volume.chain, chain));
        }
        before
    }

    /// Has sessions see the volumes as they are now; what is returned ends when they do.
    fn offer(&self) -> impl Future<Output = ()> + use<> {
        let config = self.config();
        let names = config.volumes.iter().map(|volume| volume.target.clone()).collect();
        let offering = Offering {
            devices: self.targets(config),
            policy: policy(config, self.clients.clone(), names),
            limits: super::limits::limits(&config.limits),
            access: self.access(config),
        };
        self.node.replace(offering).1
    }

    /// Closes the volumes. Every session ends: what lies in its connection was meant for a gateway that was active, and must
    /// not be taken for something new when this one is active again.
    async fn stand_by(&mut self) {
        let chains = match open_standby(self.volumes()).await {
            Ok(chains) => chains,
            Err(why) => {
                tracing::error!("cannot give up the volumes yet: {}", why.on_one_line());
                return self.pause().await;
            }
        };
        let active = self.exchange_chains(chains);
        drop(self.offer());
        self.node.end_sessions(EndReason::TakenOver).await;
        join_all(self.open_volumes.values().map(|volume| volume.disk.quiesce())).await;
        for closed in join_all(active.into_iter().map(Chain::close)).await {
            if let Err(why) = closed {
                tracing::error!("a volume was not closed as it should be: {}", why.on_one_line());
            }
        }
        if let Some(cluster) = &self.cluster {
            cluster.closed().await;
        }
    }

    /// The answer to a request about the cluster.
    pub(super) async fn answer_cluster(&self, request: &str) -> Outcome<String> {
        let Some(cluster) = &self.cluster else {
            let what = "the server is no gateway of a cluster";
            return Err(
                Failure::new(what).hint("a table [cluster] in its configuration makes it one")
            );
        };
        match request {
            "show" => {
                let status = cluster.status().await?;
                serde_json::to_string(&status)
                    .or_fail(|| "cannot tell how the cluster is".to_owned())
            }
            "move" => cluster.move_on().await,
            _ => Err(Failure::new("cannot read the request: is the server of another release?")),
        }
    }
}

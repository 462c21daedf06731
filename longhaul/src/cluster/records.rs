//! Where the records of a cluster are.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use host::rbd::{Client, PoolSpec};
use proto::cluster::{GatewayName, GroupName, Record};

use super::directory::Directory;
use super::membership::Records;
use super::rados::Rados;
use super::store::{Blocklist, RecordName, RecordStore};
use crate::config::{ClusterOptions, RecordPlace};
use crate::explain::explain_ceph;
use crate::failure::{OrFail as _, Outcome};

/// See the module.
pub(super) enum Places {
    Directory {
        path: PathBuf,
        gateway: GatewayName,
    },
    /// By one connection for the records of all groups.
    Rados {
        pool: PoolSpec,
        client: Arc<Client>,
        gateway: GatewayName,
    },
}

/// Where the record of a group is, and the storage that can shut out a gateway, if it is that.
pub(super) struct GroupPlace {
    pub(super) store: Arc<dyn RecordStore>,
    pub(super) blocklist: Option<Arc<dyn Blocklist>>,
}

/// What cannot be done where a record cannot be used.
pub(super) fn cannot_use(place: &RecordPlace) -> String {
    format!("cannot use the {} of the cluster, {place}", place.option())
}

impl Places {
    /// Of these options; nothing is read or written yet.
    pub(super) fn open(options: &ClusterOptions) -> Outcome<Self> {
        let gateway = options.gateway.clone();
        match &options.place {
            RecordPlace::Directory(path) => Ok(Self::Directory { path: path.clone(), gateway }),
            RecordPlace::Rados(pool) => {
                let explained = |why| explain_ceph(cannot_use(&options.place), &pool.access, why);
                let client = Rados::connect(pool).map_err(explained)?;
                Ok(Self::Rados { pool: pool.clone(), client, gateway })
            }
        }
    }

    /// Fails if this gateway may not write there, or not shut out another one: that must not come to light when it has to.
    pub(super) fn try_rights(&self, group: &GroupName, weight: u16) -> Outcome {
        let Self::Rados { pool, client, gateway } = self else { return Ok(()) };
        let rados = Rados::open(client, pool, gateway, RecordName::Group(group));
        let tried = rados.and_then(|rados| {
            rados.first_look()?;
            rados.try_rights(weight)
        });
        let place = RecordPlace::Rados(pool.clone());
        tried.map_err(|why| explain_ceph(cannot_use(&place), &pool.access, why))
    }

    /// That of a group, for a gateway that takes part.
    pub(super) fn of_group(&self, group: &GroupName) -> Outcome<GroupPlace> {
        match self {
            Self::Directory { path, gateway } => {
                let place = RecordPlace::Directory(path.clone());
                let directory = Directory::open(path, gateway, RecordName::Group(group));
                let store = Arc::new(directory.or_fail(|| cannot_use(&place))?);
                Ok(GroupPlace { store, blocklist: None })
            }
            Self::Rados { pool, client, gateway } => {
                let place = RecordPlace::Rados(pool.clone());
                let explained = |why| explain_ceph(cannot_use(&place), &pool.access, why);
                let rados = Rados::open(client, pool, gateway, RecordName::Group(group));
                let rados = rados.map_err(explained)?;
                rados.first_look().map_err(explained)?;
                let rados = Arc::new(rados);
                Ok(GroupPlace { store: rados.clone(), blocklist: Some(rados) })
            }
        }
    }

    /// What has a record, to be read only; `None` if there never was one.
    fn look_at(&self, record: RecordName<'_>) -> io::Result<Option<Arc<dyn RecordStore>>> {
        Ok(match self {
            Self::Directory { path, .. } => {
                Directory::look(path, record)?.map(|directory| Arc::new(directory) as _)
            }
            Self::Rados { pool, client, gateway } => {
                let rados = Rados::open(client, pool, gateway, record);
                Some(Arc::new(rados.map_err(io::Error::other)?))
            }
        })
    }
}

impl Records for Places {
    fn membership(&self) -> io::Result<Option<Record>> {
        let store = self.look_at(RecordName::Membership)?;
        store.map_or(Ok(None), |store| store.read())
    }

    fn replace_membership(&self, record: &Record) -> io::Result<bool> {
        match self {
            Self::Directory { path, gateway } => {
                Directory::open(path, gateway, RecordName::Membership)?.replace(record)
            }
            Self::Rados { pool, client, gateway } => {
                let rados = Rados::open(client, pool, gateway, RecordName::Membership);
                rados.map_err(io::Error::other)?.replace(record)
            }
        }
    }

    fn look(&self, group: &GroupName) -> io::Result<Option<Arc<dyn RecordStore>>> {
        self.look_at(RecordName::Group(group))
    }
}

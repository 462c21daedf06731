//! A target node: its targets, the ports they are reached by, and how sessions follow when that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::future::join_all;
use proto::scsi::ports::{AccessState, PORT, Port, Ports};
use proto::scsi::rights::Rights;

use super::lun::{Administration, Administrator, TargetDevice};
use super::sessions::{EndReason, Identity, SessionEntry, SessionMessage, Sessions};

/// Which clients may use which units: what a transport protocol decides at login.
pub trait Authorization: Clone {
    /// What it knows of a session, beside its identity.
    type Session: Send + Sync + 'static;

    /// How a session may use the units of its target; `None` if it may not use any.
    fn rights(&self, session: &SessionEntry<Self::Session>) -> Option<Rights>;

    /// Whether a session may administer the server.
    fn administers(&self, session: &SessionEntry<Self::Session>) -> bool;

    /// Whether a session that began under `before` could have begun now as it did. Its rights are compared apart.
    fn keeps(&self, before: &Self, session: &SessionEntry<Self::Session>) -> bool;
}

/// How units are accessed by ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAccess {
    /// Those of targets of which nothing else is said.
    pub all: BTreeMap<u16, AccessState>,
    /// Those of a target, by its name: SPC-4, 6.37, the state of a port group may differ between units.
    pub of: BTreeMap<String, BTreeMap<u16, AccessState>>,
}

impl From<BTreeMap<u16, AccessState>> for PortAccess {
    fn from(all: BTreeMap<u16, AccessState>) -> Self {
        Self { all, of: BTreeMap::new() }
    }
}

/// The ports, of which those that `access` names are accessed so from now on.
fn turned(ports: &[Port], access: &BTreeMap<u16, AccessState>) -> Arc<[Port]> {
    let port = |port: &Port| match access.get(&port.id) {
        Some(access) if *access != port.access => Port { access: *access, changed: true, ..*port },
        _ => *port,
    };
    ports.iter().map(port).collect()
}

/// What is served, to whom.
#[derive(Clone)]
pub struct Serving<A> {
    /// Which clients may use which units.
    pub authorization: A,
    /// What carries out what administrators ask for; `None` if nothing does.
    administrator: Option<Arc<dyn Administrator>>,
    devices: BTreeMap<String, Arc<TargetDevice>>,
    /// The ports of every target.
    ports: Arc<[Port]>,
    /// The same ports of targets that are accessed apart from the others.
    ports_of: BTreeMap<String, Arc<[Port]>>,
    /// The devices by each of them.
    views: BTreeMap<u16, BTreeMap<String, Arc<TargetDevice>>>,
}

/// A target as a session sees it, and how that may use it.
struct View {
    device: Arc<TargetDevice>,
    rights: Rights,
    administration: Option<Arc<Administration>>,
}

impl View {
    fn masked(self) -> Arc<TargetDevice> {
        let device = match self.rights {
            Rights::All => self.device,
            rights => Arc::new(self.device.masked(|lun| rights.with(lun))),
        };
        match self.administration {
            None => device,
            Some(administration) => Arc::new(device.for_administrator(&administration)),
        }
    }
}

impl<A: Authorization> Serving<A> {
    fn new(
        authorization: A,
        devices: BTreeMap<String, Arc<TargetDevice>>,
        ports: Arc<[Port]>,
    ) -> Self {
        let (administrator, ports_of, views) = (None, BTreeMap::new(), BTreeMap::new());
        let mut serving = Self { authorization, administrator, devices, ports, ports_of, views };
        serving.set_views();
        serving
    }

    /// Sets the access state of the ports that `access` names.
    fn set_access(&mut self, access: &PortAccess) {
        let of = access.of.iter();
        let of = of.map(|(name, access)| (name.clone(), turned(self.ports_of(name), access)));
        (self.ports_of, self.ports) = (of.collect(), turned(&self.ports, &access.all));
    }

    fn ports_of(&self, name: &str) -> &Arc<[Port]> {
        self.ports_of.get(name).unwrap_or(&self.ports)
    }

    fn set_views(&mut self) {
        let mut views: BTreeMap<u16, BTreeMap<String, Arc<TargetDevice>>> = BTreeMap::new();
        for (name, device) in &self.devices {
            for ports in Ports::views(self.ports_of(name)) {
                let view = Arc::new(device.by(&ports));
                views.entry(ports.own().id).or_default().insert(name.clone(), view);
            }
        }
        self.views = views;
    }

    /// Whether a session that began under `before` can go on: it could have begun now as it did, and each unit that it
    /// saw then and that is there now is the same disk, with the same rights. Units may be added and removed.
    pub fn keeps(&self, before: &Self, session: &SessionEntry<A::Session>) -> bool {
        if !self.authorization.keeps(&before.authorization, session)
            || self.authorization.administers(session) != before.authorization.administers(session)
        {
            return false;
        }
        if session.identity.target.is_none() {
            return true;
        }
        let (Some(new), Some(old)) = (self.view(session), before.view(session)) else {
            return false;
        };
        let same = |lun: u16| match (new.rights.with(lun), old.rights.with(lun)) {
            (now, Some(then)) => now == Some(then) && new.device.shares(&old.device, lun),
            (_, None) => true,
        };
        new.device.luns().filter(|lun| old.device.luns().any(|other| other == *lun)).all(same)
    }

    /// Whether a session that began under `before` may do less now: it could not begin as it did, or has less rights to a
    /// unit that is there as ever.
    fn takes_rights_of(&self, before: &Self, session: &SessionEntry<A::Session>) -> bool {
        let has_administered =
            before.authorization.administers(session) && !self.authorization.administers(session);
        if !self.authorization.keeps(&before.authorization, session) || has_administered {
            return true;
        }
        let (Some(device), Some(old)) = (self.whole(session), before.view(session)) else {
            return false;
        };
        let rights = self.authorization.rights(session);
        let access = |lun: u16| rights.as_ref().and_then(|rights| rights.with(lun));
        let stays = |lun: &u16| device.shares(&old.device, *lun);
        old.device.luns().filter(stays).any(|lun| access(lun) < old.rights.with(lun))
    }

    /// The target as a session sees it now, if it saw another under `before`.
    fn changed_since(
        &self,
        before: &Self,
        session: &SessionEntry<A::Session>,
    ) -> Option<Arc<TargetDevice>> {
        let (new, old) = (self.view(session)?, before.view(session)?);
        let same = new.device.is_like(&old.device) && new.rights == old.rights;
        (!same).then(|| new.masked())
    }

    /// The target of a session as that sees it; `None` in a session for discovery, and where it may use nothing.
    pub fn device(&self, session: &SessionEntry<A::Session>) -> Option<Arc<TargetDevice>> {
        self.view(session).map(View::masked)
    }

    fn view(&self, session: &SessionEntry<A::Session>) -> Option<View> {
        let device = Arc::clone(self.whole(session)?);
        let rights = self.authorization.rights(session)?;
        let administrator = self.administrator.as_ref();
        let administrator = administrator.filter(|_| self.authorization.administers(session));
        let administration = administrator.map(|by| session.administration(by));
        Some(View { device, rights, administration })
    }

    /// The target of a session, with all units.
    fn whole(&self, session: &SessionEntry<A::Session>) -> Option<&Arc<TargetDevice>> {
        let Identity { target, target_port, .. } = &session.identity;
        self.views.get(target_port)?.get(&**target.as_ref()?)
    }

    /// The targets, by name.
    pub fn devices(&self) -> &BTreeMap<String, Arc<TargetDevice>> {
        &self.devices
    }
}

/// A target node, and the sessions that use it.
pub struct Node<A: Authorization> {
    /// Read by logins, never by a command: a session keeps the view it was given.
    serving: RwLock<Arc<Serving<A>>>,
    /// The sessions that use it.
    pub sessions: Sessions<A::Session>,
}

impl<A: Authorization> Node<A> {
    /// A node that serves `devices` by one port.
    pub fn new(devices: impl IntoIterator<Item = Arc<TargetDevice>>, authorization: A) -> Self {
        let ports = Arc::new([Port::new(PORT, AccessState::Optimized)]);
        let serving = Serving::new(authorization, by_name(devices), ports);
        Self { serving: RwLock::new(Arc::new(serving)), sessions: Sessions::default() }
    }

    /// The same by another transport: sessions of both are peers.
    #[must_use]
    pub fn beside<T>(self, other: &Sessions<T>) -> Self {
        Self { sessions: Sessions::beside(other), ..self }
    }

    /// Before anybody uses it.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = Port>) {
        self.change(|serving| {
            serving.ports = ports.into_iter().collect();
            serving.set_views();
        });
    }

    /// Before anybody uses it.
    pub fn set_administrator(&mut self, administrator: Arc<dyn Administrator>) {
        self.change(|serving| serving.administrator = Some(administrator));
    }

    /// Before anybody uses it.
    pub fn change_authorization(&mut self, change: impl FnOnce(&mut A)) {
        self.change(|serving| change(&mut serving.authorization));
    }

    fn change(&mut self, change: impl FnOnce(&mut Serving<A>)) {
        let serving = self.serving.get_mut().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(serving));
    }

    /// Serves other devices, to others. Sessions that could have begun so are not disturbed, but for being told which
    /// units of their target were added, removed or have grown; those that may do less are ended, as nobody need do
    /// what it is asked for; the others are asked to log out. Returns how many have to log in anew, and a future that
    /// ends when all of that is done: no command of those that left runs then.
    pub fn replace(
        &self,
        devices: Vec<Arc<TargetDevice>>,
        access: &PortAccess,
        authorization: A,
    ) -> (usize, impl Future<Output = ()> + use<A>) {
        let old = self.serving();
        let mut new = Serving::clone(&old);
        new.authorization = authorization;
        new.devices = by_name(devices);
        new.set_access(access);
        new.set_views();
        let new = Arc::new(new);
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&new);
        let (mut leaving, mut changing) = (Vec::new(), Vec::new());
        for session in self.sessions.all() {
            if !new.keeps(&old, &session) {
                session.send(match new.takes_rights_of(&old, &session) {
                    true => SessionMessage::End(EndReason::Revoked),
                    false => SessionMessage::LogOut,
                });
                leaving.push(session);
            } else if let Some(device) = new.changed_since(&old, &session) {
                changing.push(session.change(device));
            }
        }
        let count = leaving.len();
        let done = async move {
            join_all(changing).await;
            join_all(leaving.iter().map(|session| session.gone())).await;
        };
        (count, done)
    }

    /// Ends every session with one of these targets; returns when none of their tasks runs any more.
    pub fn end_sessions(
        &self,
        targets: &BTreeSet<&str>,
        why: EndReason,
    ) -> impl Future<Output = ()> + use<A> {
        let is_with = |target: &Arc<str>| targets.contains(&**target);
        let mut all = self.sessions.all();
        all.retain(|session| session.identity.target.as_ref().is_some_and(is_with));
        all.iter().for_each(|session| session.send(SessionMessage::End(why)));
        async move {
            join_all(all.iter().map(|session| session.gone())).await;
        }
    }

    /// What is served now.
    pub fn serving(&self) -> Arc<Serving<A>> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether its targets have this port.
    pub fn has_port(&self, id: u16) -> bool {
        self.serving().ports.iter().any(|port| port.id == id)
    }
}

fn by_name(
    devices: impl IntoIterator<Item = Arc<TargetDevice>>,
) -> BTreeMap<String, Arc<TargetDevice>> {
    devices.into_iter().map(|device| (device.name().to_owned(), device)).collect()
}

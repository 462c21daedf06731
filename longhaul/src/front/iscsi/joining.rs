//! What iSCSI adds to a session of a target node: its names, and the connections that join it.

use std::net::SocketAddr;
use std::sync::Arc;

use proto::client::ClientId;
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::target::{Admission, Established, Refusal};
use proto::iscsi::name::{IscsiName, Isid};
use proto::iscsi::sealed::Protection;
use proto::iscsi::transport_id::initiator_port;
use tokio::sync::{mpsc, oneshot};

use super::pdu_stream::PduStream;
use crate::target::sessions::{
    self, ClientQuota, ConnectionPlace, Identity, SessionEntry, Sessions,
};

/// A session, as the node knows it.
pub(super) type Entry = SessionEntry<SessionInfo>;

/// The place of a connection in a session, until that has taken it.
pub(super) type Place = ConnectionPlace<SessionInfo>;

/// What was agreed on a session at login, beside its identity.
#[derive(Clone, Debug)]
pub(in crate::front) struct SessionInfo {
    pub(super) initiator: IscsiName,
    pub(super) isid: Isid,
    /// `None` in a discovery session.
    pub(super) target: Option<IscsiName>,
    /// How it is secured.
    pub(super) protection: Option<Protection>,
    /// Where its first connection comes from.
    pub(super) peer: SocketAddr,
    joins: mpsc::UnboundedSender<Join>,
}

/// The connections that are to join a session. Those that it does not take are refused.
pub(super) struct Joins(pub(super) mpsc::UnboundedReceiver<Join>);

/// A connection that has logged in but for its place in a session.
pub(super) struct Join {
    pub(super) stream: PduStream,
    pub(super) admission: Admission,
    pub(super) place: Place,
    pub(super) back: Back,
}

/// Gives a connection back that was not taken by its session. Dropped when the connection has ended.
pub(super) type Back = oneshot::Sender<Box<(PduStream, Refusal)>>;

impl Join {
    pub(super) fn refuse(self, status: LoginStatus) {
        // The task that logged it in waits for it; if not, the connection ends here.
        let _ = self.back.send(Box::new((self.stream, self.admission.refuse(status))));
    }
}

impl SessionInfo {
    /// Of a login by a connection from `peer`.
    pub(super) fn new(established: &Established, peer: SocketAddr) -> (Self, Joins) {
        let (joins, receiver) = mpsc::unbounded_channel();
        let Established { initiator, isid, target, parameters, .. } = established.clone();
        let protection = parameters.seal;
        (Self { initiator, isid, target, protection, peer, joins }, Joins(receiver))
    }

    /// The I_T nexus of such a session by this portal group, and the client that it belongs to (RFC 7143, 4.4.2).
    pub(super) fn identity(&self, client: ClientId, portal_group: u16) -> Identity {
        Identity {
            initiator: initiator_port(&self.initiator, self.isid),
            name: self.initiator.as_str().into(),
            client,
            target: self.target.as_ref().map(|target| Arc::from(target.as_str())),
            target_port: portal_group,
        }
    }

    pub(super) fn join(&self, join: Join) {
        if let Err(undelivered) = self.joins.send(join) {
            undelivered.0.refuse(LoginStatus::SESSION_DOES_NOT_EXIST);
        }
    }
}

impl Drop for Joins {
    fn drop(&mut self) {
        sessions::drain(&mut self.0, |join| join.refuse(LoginStatus::SESSION_DOES_NOT_EXIST));
    }
}

/// The place in the session that a connection may join: that of the same client and initiator port (RFC 7143, 6.3.1), with the
/// same target and by the same portal group (RFC 7143, 4.4.1), secured as its first connection was. Of a session of another
/// client it is not told that there is one: names, ISIDs and TSIHs are in clear and prove nothing.
pub(super) fn session_to_join(
    sessions: &Sessions<SessionInfo>,
    tsih: u16,
    (identity, info): (&Identity, &SessionInfo),
    quota: ClientQuota,
) -> Result<Place, LoginStatus> {
    let is_own =
        |there: &Identity| there.client == identity.client && there.initiator == identity.initiator;
    let entry = sessions.find(tsih).filter(|entry| is_own(&entry.identity));
    let entry = entry.ok_or(LoginStatus::SESSION_DOES_NOT_EXIST)?;
    let there = &entry.identity;
    if there.target != identity.target || there.target_port != identity.target_port {
        return Err(LoginStatus::CANNOT_INCLUDE);
    }
    if entry.transport.protection != info.protection {
        return Err(LoginStatus::AUTHORIZATION_FAILURE);
    }
    sessions.reserve_connection(entry, quota).ok_or(LoginStatus::TOO_MANY_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use proto::identity::PublicKey;

    use super::*;

    const QUOTA: ClientQuota = ClientQuota { sessions: 9, connections: 4 };

    fn name(name: &str) -> IscsiName {
        IscsiName::new(name).unwrap()
    }

    #[derive(Clone)]
    struct Login {
        info: SessionInfo,
        client: ClientId,
        portal_group: u16,
    }

    impl Login {
        fn identity(&self) -> Identity {
            self.info.identity(self.client.clone(), self.portal_group)
        }
    }

    fn login() -> Login {
        let info = SessionInfo {
            initiator: name("iqn.2000-01.example:i"),
            isid: Isid([1; 6]),
            target: Some(name("iqn.2000-01.example:t")),
            protection: Some(Protection::Encrypt),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            joins: mpsc::unbounded_channel().0,
        };
        Login { info, client: ClientId::Key(PublicKey::from_bytes([1; 32])), portal_group: 1 }
    }

    /// Each row: how a connection differs from the first of the session, and what it is told.
    #[test]
    fn session_is_joined_by_its_own_initiator_only() {
        let (sessions, first) = (Sessions::default(), login());
        let handle = sessions.add(&first.identity(), QUOTA, || first.info.clone()).ok().unwrap();
        let tsih = handle.entry.number;
        let told = |tsih, change: &dyn Fn(&mut Login)| {
            let mut login = first.clone();
            change(&mut login);
            session_to_join(&sessions, tsih, (&login.identity(), &login.info), QUOTA).err()
        };
        let none = Some(LoginStatus::SESSION_DOES_NOT_EXIST);
        assert_eq!(told(tsih, &|_| {}), None);
        assert_eq!(told(tsih ^ 1, &|_| {}), none);
        assert_eq!(told(tsih, &|it| it.info.initiator = name("iqn.2000-01.example:x")), none);
        assert_eq!(told(tsih, &|it| it.info.isid = Isid([2; 6])), none);
        let key = || ClientId::Key(PublicKey::from_bytes([2; 32]));
        let target = name("iqn.2000-01.example:u");
        for client in [ClientId::Unauthenticated, key()] {
            assert_eq!(told(tsih, &|it| it.client = client.clone()), none);
            let elsewhere = |it: &mut Login| {
                (it.client, it.info.target) = (client.clone(), Some(target.clone()));
            };
            assert_eq!(told(tsih, &elsewhere), none);
        }
        let other = Some(LoginStatus::CANNOT_INCLUDE);
        assert_eq!(told(tsih, &|it| it.info.target = Some(target.clone())), other);
        assert_eq!(told(tsih, &|it| it.portal_group = 2), other);
        let unproven = Some(LoginStatus::AUTHORIZATION_FAILURE);
        assert_eq!(told(tsih, &|it| it.info.protection = Some(Protection::Integrity)), unproven);
        assert_eq!(told(tsih, &|it| it.info.protection = None), unproven);
        handle.entry.set_connections(3);
        assert_eq!(told(tsih, &|_| {}), None);
        handle.entry.set_connections(4);
        assert_eq!(told(tsih, &|_| {}), Some(LoginStatus::TOO_MANY_CONNECTIONS));
        // The session has not taken one of several that come at once.
        handle.entry.set_connections(3);
        let at_once =
            session_to_join(&sessions, tsih, (&first.identity(), &first.info), QUOTA).ok().unwrap();
        assert_eq!(told(tsih, &|_| {}), Some(LoginStatus::TOO_MANY_CONNECTIONS));
        drop(at_once);
        assert_eq!(told(tsih, &|_| {}), None);
    }
}

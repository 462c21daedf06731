//! Clients that come with an invitation (docs/spec/sealed-iscsi.md, 7).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use proto::identity::PublicKey;
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::invitations::Invited;
use proto::iscsi::login::target::Established;
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::InvitationId;

/// A client that has shown the secret of an invitation.
#[derive(Clone, Debug)]
pub struct NewClient {
    /// The invitation.
    pub invitation: InvitationId,
    /// The key that it has proven.
    pub key: PublicKey,
    /// The name under which it came.
    pub initiator: IscsiName,
}

impl NewClient {
    /// The one that has logged in, if it came with an invitation.
    pub(super) fn of(established: &Established) -> Option<Self> {
        let initiator = established.initiator.clone();
        Some(Self { invitation: established.invitation?, key: established.key?, initiator })
    }
}

/// What a client is told that was not listed.
pub type Enrolled = Pin<Box<dyn Future<Output = Result<(), LoginStatus>> + Send>>;

/// Lists clients that were invited.
pub trait Enrolment: Send + Sync {
    /// The invitations that are good now.
    fn live(&self) -> Vec<Arc<Invited>>;

    /// Claims the invitation and lists the client durably: what is served from then on lets it in. Of two clients with one
    /// invitation one is listed. What was begun is done also if nobody waits for it any more.
    fn enrol(&self, client: NewClient) -> Enrolled;
}

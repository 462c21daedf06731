//! Which failed attempts to connect again end the volume.
//!
//! What is acknowledged and not flushed is lost if the volume ends for a reason that somebody on the path has made up.
//! Everything before the end of a login may be forged, so no refusal, redirection or violation that a login ends with is
//! final (docs/spec/recovery.md, "What is final").

/// Why an attempt to connect again failed, by what proves the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There was no session, or it was lost again. Nothing proves who said so.
    NoSession,
    /// The target or its unit said in a session that the volume cannot be used as before: it is another one, or
    /// cannot be reset.
    Unusable {
        /// It was a secure session, so that the pinned target said so.
        secure: bool,
    },
    /// The unit is reserved for another initiator. What is kept here must never be written over what that one
    /// writes, so this is final whoever said so.
    Reserved,
    /// This machine cannot make sessions, or knows of the session that was lost that nothing ends it.
    Local,
}

impl Failure {
    /// Whether the volume ends. Otherwise another attempt is made, for as long as the settings allow.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::NoSession | Self::Unusable { secure: false } => false,
            Self::Unusable { secure: true } | Self::Reserved | Self::Local => true,
        }
    }
}

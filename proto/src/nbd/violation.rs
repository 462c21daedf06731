//! How a client can break the protocol.

use crate::reader::Truncated;

/// The client broke the protocol in a way no reply can mend: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Violation {
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    #[error("an option without the option magic")]
    OptionMagic,
    #[error("option {option} with {len} bytes of data")]
    OptionTooLong { option: u32, len: u32 },
    #[error("option {0} from a client that did not ask for fixed newstyle")]
    NotFixed(u32),
    #[error("there is no export of the name it asked for")]
    UnknownExport,
    #[error("a request without the request magic")]
    RequestMagic,
    #[error("a write of {0} bytes")]
    WriteTooLong(u32),
    #[error(transparent)]
    Truncated(#[from] Truncated),
}

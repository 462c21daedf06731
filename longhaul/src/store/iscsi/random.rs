//! What nobody else can guess: names of sessions, challenges, and the spread of attempts.

use getrandom::Error;
use proto::iscsi::login::Entropy;

/// What a login needs of it.
pub(super) fn entropy() -> Result<Entropy, Error> {
    let mut outcome = Ok(());
    let entropy = Entropy::fresh(&mut |bytes| {
        if let Err(error) = getrandom::fill(bytes) {
            outcome = Err(error);
        }
    });
    outcome.map(|()| entropy)
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

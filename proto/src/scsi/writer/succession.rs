//! The next process of an attachment, in the place of one that has only just ended.

use super::{
    Answer, Keys, NotHeld, OwnReservation, Unit, lost, preempt_one, read_keys, read_reservation,
    register, resume, settle, take_key,
};
use crate::scsi::reservation::Key;

/// The reservation of the process before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// Its key.
    pub key: Key,
    /// The target keeps it through a loss of power (APTPL).
    pub through_power_loss: bool,
}

/// Continues for `before` as [`resume`] does. Where the unit lost its power since, and with it what it never promised to
/// keep, the volume is reserved anew as long as nobody has registered meanwhile, as [`confirm`](super::confirm) does in a
/// process that goes on.
pub async fn succeed<U: Unit>(
    unit: &U,
    key: Key,
    before: &Predecessor,
    stale: &[Key],
) -> Result<OwnReservation, NotHeld<U::Error>> {
    let Some(Keys { generation, mut keys }) = read_keys(unit).await? else {
        return Err(NotHeld::Unsupported);
    };
    // One that was registered with every target port is there for each.
    keys.sort_unstable();
    keys.dedup();
    let known = |key: &Key| *key == before.key || stale.contains(key);
    // Each registration counts, so that nobody but ours has made one since (SPC-4, 6.15.2): they were cut off before they
    // reserved.
    let are_ours = keys.iter().all(known) && generation as usize == keys.len();
    let is_forgotten = !before.through_power_loss && are_ours;
    match is_forgotten && read_reservation(unit).await?.is_none() {
        true => reserve_anew(unit, key, before.key, Keys { generation, keys }).await,
        false => resume(unit, key, before.key, stale).await,
    }
}

/// Registers `key`, reserves, removes those of ours that were cut off, and takes the key `of`.
async fn reserve_anew<U: Unit>(
    unit: &U,
    key: Key,
    of: Key,
    found: Keys,
) -> Result<OwnReservation, NotHeld<U::Error>> {
    let mut hold = register(unit, key).await?;
    // A writer may have come and gone before that arrived; then ours is not the next registration.
    let is_next = |now: &Keys| now.generation == found.generation.wrapping_add(1);
    if !read_keys(unit).await?.is_some_and(|now| is_next(&now)) {
        return lost(unit, &hold).await;
    }
    // First, since it does not count: should this be cut off, the next can still tell.
    hold = settle(unit, hold).await?;
    for other in found.keys {
        match preempt_one(unit, &mut hold, other).await? {
            Answer::Good(_) | Answer::Conflict => {}
            answer => return Err(NotHeld::LeftRegistered("PREEMPT AND ABORT", answer)),
        }
    }
    take_key(unit, hold, of).await
}

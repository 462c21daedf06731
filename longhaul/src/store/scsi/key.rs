//! Reservation keys that tell when they were made. A target tells whoever is refused the key and the name of who has the
//! volume, and not since when (READ FULL STATUS; SPC-4, 6.15.5).

use std::ops::RangeInclusive;

/// What is in the first byte of a key of ours.
const MARK: u64 = 0xb7;

/// No key tells a time before the first release, in seconds of the Unix epoch.
const FIRST: u64 = 1_790_000_000;

/// Other machines have other clocks.
const CLOCKS_DIFFER: u64 = 86_400;

/// A key that nobody else uses: the mark, the seconds in 32 bits (until 2106), 24 random bits. It is no secret, as everybody
/// who may use the unit can read it.
pub(super) fn new_key(now: u64) -> Result<u64, getrandom::Error> {
    let random = getrandom::u32()? >> 8;
    Ok(MARK << 56 | (now & 0xffff_ffff) << 24 | u64::from(random))
}

/// When a key was made, by the clock of its machine; `None` if it is not one of ours. One of another program is taken for ours
/// once in 256 times if it tells a time that can be.
pub(super) fn made_at(key: u64, now: u64) -> Option<u64> {
    let seconds = key >> 24 & 0xffff_ffff;
    let possible: RangeInclusive<u64> = FIRST..=now.saturating_add(CLOCKS_DIFFER);
    (key >> 56 == MARK && possible.contains(&seconds)).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_000_000;

    #[test]
    fn key_tells_when_it_was_made() {
        let keys = [NOW, NOW, NOW + 7].map(|now| new_key(now).unwrap());
        assert_eq!(keys.map(|key| made_at(key, NOW + 10)), [Some(NOW), Some(NOW), Some(NOW + 7)]);
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn other_keys_tell_nothing() {
        let ours = new_key(NOW).unwrap();
        let of_later = new_key(NOW + 2 * CLOCKS_DIFFER).unwrap();
        let of_before = new_key(FIRST - 1).unwrap();
        for key in [0, 1, u64::MAX, 0xdead_beef, ours ^ 1 << 56, of_later, of_before] {
            assert_eq!(made_at(key, NOW), None, "{key:#x}");
        }
    }
}

//! The key of an encrypted file on a tape, derived from its pass-phrase (`docs/spec/tape-encryption.md`).

use std::time::Instant;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use proto::tape_encryption::{Cost, KEY_LEN, PassphraseKey, SALT_LEN};
use zeroize::Zeroizing;

use crate::failure::{Failure, OrFail as _, Outcome};
use crate::luks::{ArgonBudget, refused_argon};
use crate::progress::Spinner;
use crate::secret::{Secret, keep};
use crate::size::Size;

/// The fewest passes over the memory, as many as cryptsetup makes.
const PASSES_MIN: u32 = 4;

/// The most passes that a header can tell of.
const PASSES_MAX: u32 = 1_000_000;

/// How much memory is filled to see how fast that is, in KiB.
const MEASURED_KIB: u32 = 16 << 10;

/// The least memory that a header can tell of, in KiB.
const MEMORY_MIN_KIB: u32 = 32;

/// The lanes are filled one after the other, so that more of them would give those who guess an advantage.
const LANES: u32 = 1;

/// Derives the key, beside the runtime: that takes seconds.
pub(crate) async fn derive(
    secret: &Secret,
    salt: [u8; SALT_LEN],
    cost: Cost,
) -> Outcome<PassphraseKey> {
    if let Some((why, _)) = refused_argon(cost.memory_kib, cost.passes) {
        return Err(Failure::new("the key of the file is not derived").because(why).hint(
            "if the file was written so, --key-memory and --key-time allow it, on a machine that has as much",
        ));
    }
    let secret = secret.clone();
    let spinner = Spinner::new("deriving the key from the pass-phrase");
    let derived = blocking(move || derive_now(secret.expose(), &salt, cost)).await;
    drop(spinner);
    derived
}

/// What a key costs that this machine derives within `budget`.
pub(crate) async fn measured(budget: ArgonBudget) -> Outcome<Cost> {
    let ArgonBudget { memory_kib, time, passes } = budget;
    if let Some(passes) = passes {
        return match passes <= PASSES_MAX {
            true => Ok(Cost { memory_kib, passes, lanes: LANES }),
            false => Err(Failure::usage(format!("--pbkdf-iterations is at most {PASSES_MAX}"))),
        };
    }
    let probe = Cost { memory_kib: memory_kib.min(MEASURED_KIB), passes: 1, lanes: LANES };
    let taken = blocking(move || {
        let began = Instant::now();
        derive_now(b"a pass-phrase", &[0; SALT_LEN], probe)?;
        Ok(began.elapsed())
    });
    let taken = taken.await?.as_micros().max(1);
    let all_kib = u128::from(probe.memory_kib) * time.as_micros() / taken;
    Ok(within(memory_kib, u64::try_from(all_kib).unwrap_or(u64::MAX)))
}

/// As much memory as can be filled often enough, where `all_kib` are filled in all.
fn within(most_kib: u32, all_kib: u64) -> Cost {
    let fits = all_kib / u64::from(PASSES_MIN);
    let memory_kib = u32::try_from(fits).unwrap_or(u32::MAX).min(most_kib).max(MEMORY_MIN_KIB);
    let passes = all_kib / u64::from(memory_kib);
    let passes = passes.clamp(PASSES_MIN.into(), PASSES_MAX.into()) as u32;
    Cost { memory_kib, passes, lanes: LANES }
}

fn derive_now(passphrase: &[u8], salt: &[u8; SALT_LEN], cost: Cost) -> Outcome<PassphraseKey> {
    let what = || "cannot derive the key from the pass-phrase".to_owned();
    let Cost { memory_kib, passes, lanes } = cost;
    let params = Params::new(memory_kib, passes, lanes, Some(KEY_LEN)).or_fail(what)?;
    let blocks = params.block_count();
    let mut memory = Zeroizing::new(Vec::new());
    memory.try_reserve_exact(blocks).map_err(|_| {
        Failure::new(what())
            .because(format!("there are no {} of memory", Size(blocks as u64 * 1024)))
    })?;
    memory.resize(blocks, Block::new());
    let mut key = Zeroizing::new([0; KEY_LEN]);
    keep(&*key);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into_with_memory(passphrase, salt, &mut *key, &mut *memory)
        .or_fail(what)?;
    Ok(key)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.or_fail(|| "the derivation of a key ended early".to_owned())?
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn bytes(value: &Value) -> Vec<u8> {
        let digits: Vec<u8> = value
            .as_str()
            .unwrap()
            .chars()
            .map(|digit| digit.to_digit(16).unwrap() as u8)
            .collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    #[test]
    fn key_is_the_one_of_the_vectors() {
        let text = include_str!("../../docs/spec/vectors/tape-encryption.json");
        let vectors: Vec<Value> = serde_json::from_str(text).unwrap();
        for vector in &vectors {
            let number = |name: &str| vector[name].as_u64().unwrap() as u32;
            let cost = Cost {
                memory_kib: number("memory"),
                passes: number("passes"),
                lanes: number("lanes"),
            };
            let salt = bytes(&vector["salt"]).try_into().unwrap();
            let key = derive_now(&bytes(&vector["passphrase"]), &salt, cost);
            let key = key.unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(key.to_vec(), bytes(&vector["passphrase_key"]), "{}", vector["name"]);
        }
    }

    #[test]
    fn cost_is_what_fits_the_time() {
        let cost = |memory_kib, passes| Cost { memory_kib, passes, lanes: 1 };
        assert_eq!(within(256 << 10, 2 << 20), cost(256 << 10, 8));
        assert_eq!(within(256 << 10, 512 << 10), cost(128 << 10, 4), "a slow machine");
        assert_eq!(within(32, 0), cost(32, 4));
        assert_eq!(within(32, u64::MAX), cost(32, 1_000_000));
    }

    #[tokio::test]
    async fn cost_beyond_what_is_allowed_is_refused() {
        let secret = Secret::new(b"secret".to_vec());
        let most = Cost { memory_kib: 4 << 20, passes: 1, lanes: 1 };
        let longest = Cost { memory_kib: 1 << 20, passes: 1_000_000, lanes: 1 };
        for (cost, why) in [(most, "it takes 4G of memory"), (longest, "to derive a key")] {
            let refused = derive(&secret, [0; SALT_LEN], cost).await.unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains("--key-memory"), "{refused}");
        }
    }
}

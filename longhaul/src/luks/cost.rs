//! What a pass-phrase costs whoever guesses it, and whoever knows it.

use libcryptsetup_rs::CryptPbkdfType;
use libcryptsetup_rs::consts::flags::CryptPbkdf;
use libcryptsetup_rs::consts::vals::CryptKdf;

use super::header::Kdf;
use crate::failure::{Failure, Outcome};
use crate::size::Size;

/// How long deriving a key takes on the machine that sets the pass-phrase: long enough to make
/// guessing dear, short enough to be waited for. It is cryptsetup's default.
const TIME_MS: u32 = 2000;

/// The most memory used by default: enough to make special hardware dear, little enough that a small
/// machine can open what a large one made.
const MEMORY_MAX: u64 = 256 << 20;

/// The least that Argon2 is given here. Less is for tests only, and has to be said.
const MEMORY_MIN: u64 = 32 << 10;

/// The most threads used, as in cryptsetup.
const THREADS_MAX: u32 = 4;

/// The cost of Argon2id for a new pass-phrase
#[derive(clap::Args, Clone, Debug, Default)]
pub struct CostArgs {
    /// The most memory to use for the key derivation [default: 256M, at most half of this machine's]
    #[arg(long, value_name = "SIZE")]
    pub pbkdf_memory: Option<Size>,
    /// How long the key derivation may take on this machine, in milliseconds [default: 2000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(100..=600_000))]
    pub pbkdf_time: Option<u32>,
    /// Do not measure: use just this many passes over the memory (weak if few)
    #[arg(long, value_name = "N", conflicts_with = "pbkdf_time")]
    #[arg(value_parser = clap::value_parser!(u32).range(4..))]
    pub pbkdf_iterations: Option<u32>,
}

impl CostArgs {
    /// The cost as libcryptsetup takes it, bounded by what this machine has.
    pub(super) fn pbkdf(&self) -> Outcome<CryptPbkdfType> {
        let memory = match self.pbkdf_memory {
            None => MEMORY_MAX.min(machine_memory() / 2),
            Some(Size(memory)) => memory,
        };
        if !(MEMORY_MIN..=machine_memory()).contains(&memory) {
            return Err(Failure::usage(format!(
                "--pbkdf-memory must be from {} to the {} of this machine",
                Size(MEMORY_MIN),
                Size(machine_memory())
            )));
        }
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Ok(CryptPbkdfType {
            type_: CryptKdf::Argon2Id,
            hash: None,
            time_ms: self.pbkdf_time.unwrap_or(TIME_MS),
            iterations: self.pbkdf_iterations.unwrap_or(0),
            // libcryptsetup's own ceiling is 4 GiB.
            max_memory_kb: u32::try_from(memory >> 10).unwrap_or(u32::MAX).min(4 << 20),
            parallel_threads: threads.min(THREADS_MAX),
            flags: match self.pbkdf_iterations {
                Some(_) => CryptPbkdf::NO_BENCHMARK,
                None => CryptPbkdf::empty(),
            },
        })
    }
}

/// What an existing slot costs, for another one that is to cost the same; `None` where its header does not say.
pub(super) fn like(kdf: &Kdf) -> Option<CryptPbkdfType> {
    let (type_, iterations) = match kdf.kind.as_str() {
        "argon2id" => (CryptKdf::Argon2Id, kdf.time?),
        "argon2i" => (CryptKdf::Argon2I, kdf.time?),
        "pbkdf2" => (CryptKdf::Pbkdf2, kdf.iterations?),
        _ => return None,
    };
    Some(CryptPbkdfType {
        type_,
        hash: kdf.hash.clone(),
        time_ms: 0,
        iterations,
        max_memory_kb: kdf.memory.unwrap_or(0),
        parallel_threads: kdf.cpus.unwrap_or(0),
        flags: CryptPbkdf::NO_BENCHMARK,
    })
}

/// The memory of this machine in bytes.
pub(super) fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_bounded_by_the_machine() {
        let pbkdf = CostArgs::default().pbkdf().unwrap();
        let memory = u64::from(pbkdf.max_memory_kb) << 10;
        assert!(memory <= MEMORY_MAX && memory <= machine_memory() / 2);
        assert_eq!((pbkdf.time_ms, pbkdf.iterations), (2000, 0));
        assert!((1..=4).contains(&pbkdf.parallel_threads));
        assert!(!pbkdf.flags.contains(CryptPbkdf::NO_BENCHMARK));
    }

    #[test]
    fn absurd_memory_is_refused() {
        for memory in [1024, u64::MAX] {
            let args = CostArgs { pbkdf_memory: Some(Size(memory)), ..CostArgs::default() };
            assert_eq!(args.pbkdf().err().unwrap().exit_code(), 2);
        }
    }
}

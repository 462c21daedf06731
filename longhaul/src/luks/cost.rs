//! What a pass-phrase costs whoever guesses it, and whoever knows it.

use std::sync::OnceLock;
use std::time::Duration;

use libcryptsetup_rs::CryptPbkdfType;
use libcryptsetup_rs::consts::flags::CryptPbkdf;
use libcryptsetup_rs::consts::vals::CryptKdf;

use super::header::Kdf;
use crate::failure::{Failure, Outcome};
use crate::reconnect_limit::ReconnectLimit;
use crate::size::Size;

/// How long deriving a key takes on the machine that sets the pass-phrase: long enough to make
/// guessing dear, short enough to be waited for. It is cryptsetup's default.
const TIME_MS: u32 = 2000;

/// The most memory used by default: enough to make special hardware dear, little enough that a small
/// machine can open what a large one made.
const MEMORY_MAX: u64 = 256 << 20;

/// The most that opening a slot may take unless more is allowed: as much as cryptsetup ever uses for a new one by
/// default. The store can write whatever cost it likes into a header.
const OPENING_MAX: u64 = 1 << 30;

/// What is allowed instead.
static ALLOWED: OnceLock<u64> = OnceLock::new();

/// Allows opening a slot to take as much; said once, by the command line.
pub fn allow_memory(bytes: u64) {
    let _ = ALLOWED.set(bytes);
}

/// Allows trying the slots of a volume to take as long, `None` for as long as it takes; said once, by the command line.
pub fn allow_time(time: Option<Duration>) {
    let _ = ALLOWED_TIME.set(time);
}

/// The most threads that a slot may ask for. Argon2 begins each of them, however few processors there are; cryptsetup
/// makes no slot with more than 4.
const OPENING_THREADS_MAX: u32 = 64;

/// How long trying the slots of a volume may take, by estimate, unless more is allowed. A slot that took two seconds where
/// it was made takes minutes on the smallest machine. The store can write whatever cost it likes into a header.
const OPENING_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// What is allowed instead.
static ALLOWED_TIME: OnceLock<Option<Duration>> = OnceLock::new();

/// How much memory one thread fills in a second, as Argon2 does; about right for today's processors.
const FILLED_A_SECOND: u64 = 1 << 30;

/// How many iterations of PBKDF2 one thread makes in a second.
const ITERATIONS_A_SECOND: u64 = 1_000_000;

/// What trying a slot takes.
struct Cost {
    memory: u64,
    /// In seconds, by estimate.
    time: u64,
    threads: u32,
    /// What takes that time.
    work: String,
}

impl Cost {
    /// Of a slot with this derivation, and this many iterations of PBKDF2 behind it.
    fn of(kdf: Option<&Kdf>, digest: u64) -> Self {
        let (mut memory, mut time, mut threads, mut work) = (0, 0, 1, String::new());
        let mut iterations = digest;
        if let Some(kdf) = kdf {
            memory = kdf.memory.map_or(0, u64::from) << 10;
            threads = kdf.cpus.unwrap_or(1).max(1);
            iterations += kdf.iterations.map_or(0, u64::from);
            if let Some(passes) = kdf.time {
                Self { time, work, .. } = Self::of_argon(passes, memory, threads);
                work += ", ";
            }
        }
        time = time.saturating_add(iterations / ITERATIONS_A_SECOND);
        work += &format!("{iterations} iterations of PBKDF2");
        Self { memory, time, threads, work }
    }

    /// Of so many passes of Argon2 over so many bytes.
    fn of_argon(passes: u32, memory: u64, threads: u32) -> Self {
        let here = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let at_once = u64::from(threads).min(here);
        let time = u64::from(passes).saturating_mul(memory) / FILLED_A_SECOND / at_once;
        let work = format!("{passes} passes over {} of memory", Size(memory));
        Self { memory, time, threads, work }
    }
}

/// What trying the slots of one volume may take altogether: there can be 32 of them.
pub(super) struct CostLimit {
    /// Seconds that those before take.
    spent: u64,
}

impl CostLimit {
    pub(super) const fn new() -> Self {
        Self { spent: 0 }
    }

    /// Why a slot is not tried, and what can be done, if it is not.
    pub(super) fn refusal(&mut self, kdf: Option<&Kdf>, digest: u64) -> Option<(String, String)> {
        let cost = Cost::of(kdf, digest);
        let refused = too_much_memory(cost.memory)
            .or_else(|| too_many_threads(cost.threads))
            .or_else(|| too_long(&cost, self.spent));
        if refused.is_none() {
            self.spent = self.spent.saturating_add(cost.time);
        }
        refused
    }
}

fn too_long(Cost { time, work, .. }: &Cost, spent: u64) -> Option<(String, String)> {
    let allowed = (*ALLOWED_TIME.get_or_init(|| Some(OPENING_TIME_MAX)))?;
    let all = spent.saturating_add(*time);
    if all <= allowed.as_secs() {
        return None;
    }
    let (takes, allows) =
        (ReconnectLimit(Some(rounded(*time))), ReconnectLimit(Some(rounded(all))));
    let why = format!(
        "it takes some {takes} to derive a key ({work}), and {} are allowed",
        ReconnectLimit(Some(allowed))
    );
    let hint = format!(
        "if the header was made so, --key-time {allows} allows it; if it was changed, `longhaul key restore` brings it back \
         from a backup"
    );
    Some((why, hint))
}

/// In the largest unit of which it is several, rounded up.
const fn rounded(seconds: u64) -> Duration {
    let unit = match seconds {
        0..=120 => 1,
        121..=7200 => 60,
        7201..=172_800 => 3600,
        _ => 86_400,
    };
    Duration::from_secs(seconds.div_ceil(unit).saturating_mul(unit))
}

fn too_many_threads(threads: u32) -> Option<(String, String)> {
    (threads > OPENING_THREADS_MAX).then(|| {
        let why = format!("it takes {threads} threads, and {OPENING_THREADS_MAX} are allowed");
        (why, "`longhaul key restore` brings the header back from a backup".to_owned())
    })
}

fn too_much_memory(memory: u64) -> Option<(String, String)> {
    let (allowed, available) = (*ALLOWED.get_or_init(|| OPENING_MAX), available_memory());
    let takes = format!("it takes {} of memory", Size(memory));
    if memory > allowed {
        let why = format!("{takes}, and {} are allowed", Size(allowed));
        return Some((why, format!("--key-memory {} allows it", Size(memory))));
    }
    (memory > available).then(|| {
        let why = format!("{takes}, and {} are available", Size(available));
        (why, "on a larger machine, `longhaul key add` makes a slot with less memory".to_owned())
    })
}

/// The least that Argon2 is given here. Less is for tests only, and has to be said.
const MEMORY_MIN: u64 = 32 << 10;

/// The most threads used, as in cryptsetup.
const THREADS_MAX: u32 = 4;

/// The cost of Argon2id for a new pass-phrase
#[derive(clap::Args, Clone, Debug, Default)]
pub struct CostArgs {
    /// The most memory to use for the key derivation [default: 256M, at most half of what is available]
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
        let available = available_memory();
        let memory = match self.pbkdf_memory {
            None => MEMORY_MAX.min(available / 2).max(MEMORY_MIN),
            Some(Size(memory)) => memory,
        };
        if !(MEMORY_MIN..=available).contains(&memory) {
            return Err(Failure::usage(format!(
                "--pbkdf-memory must be from {} to the {} that are available",
                Size(MEMORY_MIN),
                Size(available)
            )));
        }
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        self.check_opening(memory, threads.min(THREADS_MAX))?;
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

impl CostArgs {
    /// Refuses what no command would open afterwards without being told.
    fn check_opening(&self, memory: u64, threads: u32) -> Outcome<()> {
        let passes = self.pbkdf_iterations.unwrap_or(0);
        let refusal = too_much_memory(memory)
            .or_else(|| too_long(&Cost::of_argon(passes, memory, threads), 0));
        let Some((why, _)) = refusal else { return Ok(()) };
        let what = "a slot of this cost would not be opened by any command as it is";
        Err(Failure::usage(format!("{what}: {why}"))
            .hint("--key-memory and --key-time allow more, here and whenever it is opened"))
    }
}

/// What deriving a key by Argon2id, with one lane, may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArgonBudget {
    /// The most memory, in KiB.
    pub(crate) memory_kib: u32,
    /// How long it may take here, unless `passes` says how many there are.
    pub(crate) time: Duration,
    pub(crate) passes: Option<u32>,
}

impl CostArgs {
    /// Whether any of them is given.
    pub(crate) const fn is_given(&self) -> bool {
        self.pbkdf_memory.is_some() || self.pbkdf_time.is_some() || self.pbkdf_iterations.is_some()
    }

    /// The same for a key that libcryptsetup has no part in.
    pub(crate) fn budget(&self) -> Outcome<ArgonBudget> {
        let pbkdf = self.pbkdf()?;
        Ok(ArgonBudget {
            memory_kib: pbkdf.max_memory_kb,
            time: Duration::from_millis(pbkdf.time_ms.into()),
            passes: self.pbkdf_iterations,
        })
    }
}

/// Why so many passes of one lane over so much memory are not made, and what can be done, if they are not.
pub(crate) fn refused_argon(memory_kib: u32, passes: u32) -> Option<(String, String)> {
    let memory = u64::from(memory_kib) << 10;
    too_much_memory(memory).or_else(|| too_long(&Cost::of_argon(passes, memory, 1), 0))
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

/// The memory that programs can have now without others being swapped out, in bytes; all of the machine's where the
/// kernel does not tell.
fn available_memory() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").ok();
    told.as_deref().and_then(available_in).unwrap_or_else(machine_memory)
}

/// `MemAvailable` of proc(5), meminfo, which counts in KiB.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// The memory of this machine in bytes.
fn machine_memory() -> u64 {
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
    fn slot_that_nothing_would_open_is_not_made() {
        let cost = |iterations, memory| CostArgs {
            pbkdf_memory: Some(Size(memory)),
            pbkdf_iterations: iterations,
            ..CostArgs::default()
        };
        assert!(cost(Some(4), 32 << 10).pbkdf().is_ok());
        let refused = cost(Some(u32::MAX), 32 << 10).pbkdf().err().unwrap().to_string();
        assert!(
            refused.contains("--key-time") && refused.contains("4294967295 passes over 32K"),
            "{refused}"
        );
        let refused = cost(None, 2 << 30).pbkdf().err().unwrap().to_string();
        assert!(refused.contains("it takes 2G of memory") && refused.contains("--key-memory"));
    }

    #[test]
    fn slot_is_tried_within_what_is_allowed_and_available() {
        assert_eq!(too_much_memory(32 << 10), None);
        let (why, hint) = too_much_memory(4 << 30).unwrap();
        assert!(why.contains("it takes 4G of memory, and 1G are allowed"), "{why}");
        assert_eq!(hint, "--key-memory 4G allows it");
    }

    fn argon(time: u32, memory: u32, cpus: u32) -> Kdf {
        let kdf = format!(r#"{{"type":"argon2id","time":{time},"memory":{memory},"cpus":{cpus}}}"#);
        serde_json::from_str(&kdf).unwrap()
    }

    fn pbkdf2(iterations: u32) -> Kdf {
        serde_json::from_str(&format!(r#"{{"type":"pbkdf2","iterations":{iterations}}}"#)).unwrap()
    }

    /// Whoever keeps the header can write any cost into it.
    #[test]
    fn slot_is_tried_only_if_that_has_an_end() {
        let refused = |kdf: &Kdf, digest| CostLimit::new().refusal(Some(kdf), digest);
        for usual in
            [argon(4, 1 << 20, 4), argon(100, 32, 1), argon(600_000, 32, 4), pbkdf2(8_000_000)]
        {
            assert_eq!(refused(&usual, 200_000), None, "{usual:?}");
        }
        let (why, hint) = refused(&argon(4_000_000_000, 32, 1), 0).unwrap();
        assert!(
            why.contains("some 34h to derive a key (4000000000 passes over 32K of memory"),
            "{why}"
        );
        assert!(
            why.ends_with("and 15m are allowed") && hint.contains("--key-time 34h"),
            "{why} {hint}"
        );
        assert!(refused(&pbkdf2(u32::MAX), 0).is_some());
        assert!(refused(&argon(4, 32, 1), u64::from(u32::MAX)).is_some(), "its digest");
        assert!(refused(&argon(u32::MAX, 1 << 20, 1), u64::MAX >> 1).is_some());
        assert!(refused(&argon(4, 1 << 20, 65), 0).unwrap().0.contains("65 threads"));
    }

    /// A header has up to 32 slots, each of which may be just allowed.
    #[test]
    fn slots_are_tried_only_if_all_of_them_have_an_end() {
        let (mut allowance, slot) = (CostLimit::new(), pbkdf2(600_000_000));
        assert_eq!(allowance.refusal(Some(&slot), 0), None);
        let (why, hint) = allowance.refusal(Some(&slot), 0).unwrap();
        assert!(why.contains("some 10m") && hint.contains("--key-time 20m"), "{why} {hint}");
        assert_eq!(
            allowance.refusal(Some(&argon(4, 32, 1)), 0),
            None,
            "there is time for a cheap one"
        );
    }

    #[test]
    fn available_memory_is_what_the_kernel_says() {
        let told =
            "MemTotal:       4000 kB\nMemFree:   10 kB\nMemAvailable:   2048 kB\nBuffers: 1 kB\n";
        assert_eq!(available_in(told), Some(2 << 20));
        assert_eq!(available_in("MemTotal: 4000 kB\n"), None);
        assert!((1..=machine_memory()).contains(&available_memory()));
    }

    #[test]
    fn absurd_memory_is_refused() {
        for memory in [1024, u64::MAX] {
            let args = CostArgs { pbkdf_memory: Some(Size(memory)), ..CostArgs::default() };
            assert_eq!(args.pbkdf().err().unwrap().exit_code(), 2);
        }
    }
}

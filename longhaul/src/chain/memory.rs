//! Whether a volume fits into the memory of this machine.

use volume::store::memory::Memory;

use crate::size::Size;

/// What a volume in memory comes to when all of it is written.
pub(crate) fn memory_needed(Size(size): Size) -> u64 {
    size.saturating_add(Memory::map_size(size))
}

/// What this machine has of it.
pub(crate) fn memory_of_machine() -> u64 {
    let all = rustix::system::sysinfo();
    // `c_ulong` is narrower on 32-bit machines.
    #[allow(clippy::useless_conversion, reason = "not everywhere")]
    u64::from(all.totalram).saturating_mul(all.mem_unit.into())
}

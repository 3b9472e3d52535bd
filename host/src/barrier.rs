//! The three orderings between CPU and card, each named for its one use.
//!
//! On x86 the first and the last are compiler barriers: stores to write-back memory are seen before a later uncached
//! store, and loads are not reordered with loads. On AArch64 the fences are the outer-shareable ones that a device observes.

/// After WQEs are in host memory, before the doorbell that tells of them.
#[inline(always)]
pub fn before_doorbell() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction touches no memory and no register
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags))
    };
}

/// After a WQE was copied to the push buffer, which may be write-combining memory, before its doorbell.
#[inline(always)]
pub fn after_push() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a store fence touches no memory and no register; every x86-64 has it
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
    before_doorbell();
}

/// After the valid (phase) byte of an entry was seen, before the rest of the entry is read.
#[inline(always)]
pub fn after_valid() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction touches no memory and no register
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags))
    };
}

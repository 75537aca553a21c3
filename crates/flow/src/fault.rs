//! Deliberate faults, which prove that the simulator finds them.

/// Whether `chosen` is the deliberate fault `fault`.
///
/// Always false in a build without the feature `faults`: the compiler leaves out the branch.
#[inline(always)]
pub fn has_fault<F: PartialEq>(chosen: F, fault: F) -> bool {
    cfg!(feature = "faults") && chosen == fault
}

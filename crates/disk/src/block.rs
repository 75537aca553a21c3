//! The unit of disks.

/// The unit in which the layers above lay out data, in bytes. Every offset and length passed to a
/// [`Disk`](crate::Disk) is a multiple of it. It is a multiple of the alignment that direct I/O
/// needs on current devices (512 or 4,096).
pub const BLOCK: usize = 4096;

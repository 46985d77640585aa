//! Units, and the types that may be stored in global memory.

/// A process of the job. Its number never changes and is the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit(pub u32);

impl Unit {
    /// Returns its index in a table of all units of the job.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unit {}", self.0)
    }
}

/// A type that may be stored in global memory: plain data without padding for which every bit
/// pattern is valid.
///
/// Whatever another unit writes is then a value, possibly an unexpected one, but never undefined
/// behaviour. Derive [`Pod`](crate::Pod) and [`Zeroable`](crate::Zeroable) for structures of your
/// own; a program that depends on `samite` alone adds `#[bytemuck(crate = "samite::bytemuck")]`.
pub trait Elem: bytemuck::Pod + Send + Sync {}
impl<T: bytemuck::Pod + Send + Sync> Elem for T {}

//! Who is who: units, and the types that may lie in global memory.

/// A process of the job. Its number never changes and is the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit(pub u32);

impl Unit {
    /// As an index into a table of all units.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unit {}", self.0)
    }
}

/// What may lie in global memory: plain data without padding, of which every bit pattern is a
/// value.
///
/// Whatever another unit writes is then a value, perhaps an unexpected one, and never undefined
/// behaviour. Derive [`bytemuck::Pod`] and [`bytemuck::Zeroable`] for structures of one's own.
pub trait Elem: bytemuck::Pod + Send + Sync {}
impl<T: bytemuck::Pod + Send + Sync> Elem for T {}

//! Global pointers: 128 bits that identify a byte of the job.
//!
//! ```text
//!   bits 127..96   95..80    79..64   63..0
//!        unit      segment   flags    offset in bytes
//! ```
//! The layout of the DART paper (Zhou et al., PGAS 2014, section III). The flags hold the origin of
//! the memory and eight bits of its generation, so that a pointer to freed memory is recognised.
//! Pieces of a unit's own heap have generations of their own; for them, the flags also hold six
//! bits of the generation of the segment.

use crate::Unit;
use std::marker::PhantomData;

/// How the memory behind a pointer was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Origin {
    /// Allocated by one unit, for itself ([`crate::Pgas::allocate`]).
    Local = 0,
    /// Allocated by a team, symmetrically ([`crate::Team::allocate`]).
    Collective = 1,
    /// The user's own memory, registered.
    Registered = 2,
}

const ORIGIN: u16 = 0x3;
const CHUNK_SHIFT: u32 = 2;
const GENERATION_SHIFT: u32 = 8;

/// Identifies an element of type `T` anywhere in the job. It is a value: it can be copied,
/// compared, sent and stored, and gives no access by itself. Comparison is by unit, segment, flags,
/// offset.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::GlobalPtr;
/// let own: GlobalPtr<f64> = pgas.allocate(100)?; // memory of this unit
/// pgas.put(own.add(10), &[1.0, 2.0])?; // as any unit can that has the pointer
/// let bits = own.add(11).to_bits(); // for a message, or in memory that others read
/// let mut value = [0.0];
/// pgas.get(GlobalPtr::from_bits(bits), &mut value)?;
/// assert_eq!(value, [2.0]);
/// pgas.free(own)?;
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct GlobalPtr<T> {
    bits: u128,
    kind: PhantomData<fn() -> T>,
}

const _: () = assert!(size_of::<GlobalPtr<f64>>() == 16);

impl<T> GlobalPtr<T> {
    /// The null pointer.
    pub const NULL: GlobalPtr<T> = GlobalPtr::from_bits(u128::MAX);

    /// Creates a pointer from its 128 bits.
    pub const fn from_bits(bits: u128) -> GlobalPtr<T> {
        GlobalPtr {
            bits,
            kind: PhantomData,
        }
    }

    /// Returns the 128 bits, for sending or for storing in global memory.
    pub const fn to_bits(self) -> u128 {
        self.bits
    }

    /// Returns its bits as two words, as messages carry them.
    pub(crate) fn to_words(self) -> [u64; 2] {
        let bits = self.to_bits();
        [bits as u64, (bits >> 64) as u64]
    }

    pub(crate) fn from_words([low, high]: [u64; 2]) -> GlobalPtr<T> {
        GlobalPtr::from_bits(u128::from(low) | u128::from(high) << 64)
    }

    pub(crate) const fn new(unit: Unit, segment: u16, flags: Flags, offset: u64) -> GlobalPtr<T> {
        GlobalPtr::from_bits(
            (unit.0 as u128) << 96
                | (segment as u128) << 80
                | (flags.0 as u128) << 64
                | offset as u128,
        )
    }

    /// Returns true if it is the null pointer.
    pub const fn is_null(self) -> bool {
        self.bits == u128::MAX
    }

    /// Returns the unit that owns the memory.
    pub const fn unit(self) -> Unit {
        Unit((self.bits >> 96) as u32)
    }

    /// Returns the number of the segment at that unit.
    pub const fn segment(self) -> u16 {
        (self.bits >> 80) as u16
    }

    /// Returns the flags.
    pub const fn flags(self) -> Flags {
        Flags((self.bits >> 64) as u16)
    }

    /// Returns the offset from the start of the segment, in bytes.
    pub const fn offset(self) -> u64 {
        self.bits as u64
    }

    /// Returns a pointer to the element `count` elements further on (or back). The result is not
    /// checked against the segment here, but by every access.
    #[must_use]
    pub const fn add(self, count: i64) -> GlobalPtr<T> {
        let bytes = count.wrapping_mul(size_of::<T>() as i64);
        self.at_offset(self.offset().wrapping_add_signed(bytes))
    }

    /// Returns the number of elements from `earlier` to this one; `None` if they lie in different
    /// segments.
    pub const fn distance_from(self, earlier: GlobalPtr<T>) -> Option<i64> {
        if self.bits >> 64 != earlier.bits >> 64 || size_of::<T>() == 0 {
            return None;
        }
        Some(self.offset().wrapping_sub(earlier.offset()) as i64 / size_of::<T>() as i64)
    }

    /// Returns a pointer to the same place at another unit: the corresponding element of a
    /// symmetric allocation.
    #[must_use]
    pub const fn at_unit(self, unit: Unit) -> GlobalPtr<T> {
        GlobalPtr::new(unit, self.segment(), self.flags(), self.offset())
    }

    /// Returns a pointer into the same segment at another offset in bytes.
    #[must_use]
    pub const fn at_offset(self, offset: u64) -> GlobalPtr<T> {
        GlobalPtr::from_bits(self.bits & !(u64::MAX as u128) | offset as u128)
    }

    /// Returns a pointer to the same byte as another type.
    #[must_use]
    pub const fn cast<U>(self) -> GlobalPtr<U> {
        GlobalPtr::from_bits(self.bits)
    }
}

/// The 16 bits of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flags(pub u16);

impl Flags {
    pub(crate) const fn of(origin: Origin, generation: u32) -> Flags {
        Flags(origin as u16 | ((generation as u16) & 0xff) << GENERATION_SHIFT)
    }

    /// Creates the flags of a piece of a unit's own heap, in a segment of the generation `chunk`.
    pub(crate) const fn of_piece(generation: u8, chunk: u32) -> Flags {
        Flags(Flags::of(Origin::Local, generation as u32).0 | (chunk as u16 & 0x3f) << CHUNK_SHIFT)
    }

    /// Returns true if it may be the segment with this generation, as far as the bits tell.
    pub(crate) const fn is_of(self, segment: u32) -> bool {
        match self.origin() {
            Origin::Local => self.0 >> CHUNK_SHIFT & 0x3f == segment as u16 & 0x3f,
            _ => self.generation() == segment as u8,
        }
    }

    /// Returns how the memory was obtained.
    pub const fn origin(self) -> Origin {
        match self.0 & ORIGIN {
            0 => Origin::Local,
            1 => Origin::Collective,
            _ => Origin::Registered,
        }
    }

    /// Returns the low bits of the generation of the allocation.
    pub const fn generation(self) -> u8 {
        (self.0 >> GENERATION_SHIFT) as u8
    }
}

/// The layout of the current DART headers: `unit:24 flags:8 | segment:16 team:16 | offset:64`,
/// where the unit is a rank of the team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DartPtr {
    /// The rank in the team, 24 bits; the -1 of the null pointer is `0xff_ffff`.
    pub unit: u32,
    /// The low eight flags.
    pub flags: u8,
    /// The segment.
    pub segment: i16,
    /// The team.
    pub team: i16,
    /// The offset in bytes, or an address.
    pub offset: u64,
}

impl DartPtr {
    /// `DART_GPTR_NULL`.
    pub const NULL: DartPtr = DartPtr {
        unit: 0xff_ffff,
        flags: 0,
        segment: 0,
        team: -1,
        offset: 0,
    };

    /// Returns the 16 bytes of the C structure on a little-endian machine.
    pub const fn to_bytes(self) -> [u8; 16] {
        let word = (self.unit & 0xff_ffff) as u128
            | (self.flags as u128) << 24
            | (self.segment as u16 as u128) << 32
            | (self.team as u16 as u128) << 48
            | (self.offset as u128) << 64;
        word.to_le_bytes()
    }

    /// Creates a pointer from these bytes; the inverse of [`DartPtr::to_bytes`].
    pub const fn from_bytes(bytes: [u8; 16]) -> DartPtr {
        let word = u128::from_le_bytes(bytes);
        DartPtr {
            unit: word as u32 & 0xff_ffff,
            flags: (word >> 24) as u8,
            segment: (word >> 32) as i16,
            team: (word >> 48) as i16,
            offset: (word >> 64) as u64,
        }
    }
}

impl<T> GlobalPtr<T> {
    /// Returns the DART form, for a team that the C side knows as `team` and in which the unit has
    /// the rank `rank`. Lossless together with [`GlobalPtr::from_dart`]: the generation (the high
    /// flags) is the segment's and is passed back as `generation`. `None` if rank or segment do not
    /// fit.
    pub fn to_dart(self, team: i16, rank: u32) -> Option<DartPtr> {
        if self.is_null() {
            return Some(DartPtr::NULL);
        }
        // A rank has 24 bits; all ones mean the null pointer.
        let fits = rank < 0xff_ffff;
        Some(DartPtr {
            unit: rank,
            flags: self.flags().0 as u8,
            segment: i16::try_from(self.segment()).ok()?,
            team,
            offset: self.offset(),
        })
        .filter(|_| fits)
    }

    /// Returns the native form of a DART pointer whose rank is the unit `unit`, in a segment of
    /// this generation.
    pub fn from_dart(dart: DartPtr, unit: Unit, generation: u8) -> GlobalPtr<T> {
        if dart == DartPtr::NULL {
            return GlobalPtr::NULL;
        }
        let flags = Flags(dart.flags as u16 | (generation as u16) << GENERATION_SHIFT);
        GlobalPtr::new(unit, dart.segment as u16, flags, dart.offset)
    }
}

impl<T> Clone for GlobalPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for GlobalPtr<T> {}
impl<T> PartialEq for GlobalPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}
impl<T> Eq for GlobalPtr<T> {}
impl<T> PartialOrd for GlobalPtr<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for GlobalPtr<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bits.cmp(&other.bits)
    }
}
impl<T> std::hash::Hash for GlobalPtr<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bits.hash(state);
    }
}

impl<T> std::fmt::Display for GlobalPtr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_null() {
            return f.write_str("null");
        }
        let (segment, offset) = (self.segment(), self.offset());
        write!(f, "{}, segment {segment}, byte {offset}", self.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_come_back(unit: u32, segment: u16, flags: u16, offset: u64) {
            let pointer = GlobalPtr::<u8>::new(Unit(unit), segment, Flags(flags), offset);
            prop_assert_eq!(pointer.unit(), Unit(unit));
            prop_assert_eq!(pointer.segment(), segment);
            prop_assert_eq!(pointer.flags(), Flags(flags));
            prop_assert_eq!(pointer.offset(), offset);
            prop_assert_eq!(GlobalPtr::from_bits(pointer.to_bits()), pointer);
        }

        #[test]
        fn arithmetic_counts_elements(offset in 0u64..1 << 40, count in -1000i64..1000) {
            let pointer = GlobalPtr::<u64>::new(Unit(3), 7, Flags(0x501), offset + 8000);
            let other = pointer.add(count);
            prop_assert_eq!(other.offset() as i64, (offset + 8000) as i64 + 8 * count);
            prop_assert_eq!(other.distance_from(pointer), Some(count));
            prop_assert_eq!(other.cmp(&pointer), count.cmp(&0));
            prop_assert_eq!(other.at_unit(Unit(4)).distance_from(pointer), None);
        }

        #[test]
        fn dart_layout_is_lossless(
            rank in 0u32..0xff_ffff, unit: u32, flags: u16, segment in 0u16..0x8000, team: i16, offset: u64
        ) {
            let native = GlobalPtr::<f32>::new(Unit(unit), segment, Flags(flags), offset);
            let dart = native.to_dart(team, rank).unwrap();
            let back = DartPtr::from_bytes(dart.to_bytes());
            prop_assert_eq!(back, dart);
            prop_assert_eq!(back.unit, rank);
            prop_assert_eq!(GlobalPtr::from_dart(back, Unit(unit), native.flags().generation()), native);
        }
    }

    #[test]
    fn the_c_layout_is_that_of_the_headers() {
        // { int32 unitid:24, flags:8; int16 segid; int16 teamid; uint64 offset } on little endian.
        let dart = DartPtr {
            unit: 0x01_0203,
            flags: 0x04,
            segment: -2,
            team: 5,
            offset: 0x1122,
        };
        let bytes = dart.to_bytes();
        assert_eq!(bytes[..8], [3, 2, 1, 4, 0xfe, 0xff, 5, 0]);
        assert_eq!(bytes[8..10], [0x22, 0x11]);
        let null = GlobalPtr::<u8>::NULL.to_dart(0, 0).unwrap();
        assert_eq!(
            null.to_bytes()[..8],
            [0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0xff]
        );
        assert!(GlobalPtr::<u8>::from_dart(null, Unit(0), 0).is_null());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let far = GlobalPtr::<u8>::new(Unit(0), 0x8000, Flags(0), 0);
        assert_eq!(far.to_dart(0, 1), None);
        assert_eq!(far.at_offset(1).to_dart(0, 0xff_ffff), None);
    }
}

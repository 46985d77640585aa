//! Calls of moved code to the unit that owns what a global pointer points to.

use samite_mobile::{At, Call, Error, Mobile, Registered, Rights};
use samite_pgas::{Elem, GlobalPtr, Segment};

/// A segment of global memory whose parts kernels may use: the members have granted them under one
/// number. Calls go to the owner of a pointer ([`GrantedSegment::call_at`]).
///
/// It borrows the segment, so the segment is not freed, and its phase does not change, before this
/// unit has revoked the grant: that is what dropping it does. Local memory of a unit
/// ([`Pgas::allocate`](samite_pgas::Pgas::allocate)) cannot be granted.
///
/// ```
/// # let fabric = samite::init()?;
/// use samite::GrantedSegment;
/// use samite::mobile::{At, Capsule, Function, Mobile, Rights};
/// use samite::pgas::Pgas;
/// let pgas = Pgas::new(&fabric)?;
/// let mobile = Mobile::new(&fabric)?;
/// mobile.define("double", Function::new(|context, payload| {
///     let (at, _) = At::split(context.me(), payload)?; // grant and offset; WebAssembly: 16 bytes
///     let word = context.load(at.grant, at.offset)?;
///     context.store(at.grant, at.offset, word * 2)
/// }));
/// let double = mobile.register(Capsule::of_function("double", ["run"])?)?;
///
/// let cells = pgas.world().allocate::<u64>(100)?;
/// let granted = GrantedSegment::new(&mobile, 0, &cells, Rights::Write)?; // collective
/// let cell = cells.pointer(0, 7)?; // at any unit
/// pgas.put(cell, &[21])?;
/// granted.call_at(cell, &double, "run", &[])?.wait()?;
/// assert_eq!(cells.get_value(0, 7)?, 42);
/// drop(granted);
/// cells.free()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GrantedSegment<'s, T: Elem> {
    mobile: Mobile,
    grant: usize,
    segment: &'s Segment<T>,
}

impl<'s, T: Elem> GrantedSegment<'s, T> {
    /// Grants this unit's part of a segment under a number, and waits until all members have.
    /// Collective over the team of the segment, with the same number. What had this number before
    /// is revoked.
    ///
    /// # Errors
    /// Those of a barrier of the team; the part is then not granted.
    ///
    /// # Panics
    /// If the number is not below [`GRANTS_MAX`](samite_mobile::GRANTS_MAX).
    pub fn new(
        mobile: &Mobile,
        grant: usize,
        segment: &'s Segment<T>,
        rights: Rights,
    ) -> samite_pgas::Result<GrantedSegment<'s, T>> {
        mobile.grant(grant, segment.bytes(), rights);
        let granted = GrantedSegment {
            mobile: mobile.clone(),
            grant,
            segment,
        };
        segment.team().barrier()?;
        Ok(granted)
    }

    /// Calls code at the owner of an element. The kernel finds the grant and the offset in the
    /// first [`At::BYTES`] of its payload, and then `payload`. Completion: by the handle.
    ///
    /// A pointer has the number of its unit in the job, so this does not depend on the team.
    ///
    /// # Errors
    /// [`Error::NotGranted`] if the pointer is not into this segment; those of
    /// [`Mobile::call_at`]. The call fails with [`Cause::Grant`](samite_mobile::Cause::Grant) if
    /// the owner has revoked the grant.
    pub fn call_at(
        &self,
        pointer: GlobalPtr<T>,
        code: &Registered,
        entry: &str,
        payload: &[u8],
    ) -> samite_mobile::Result<Call> {
        let at = At {
            unit: pointer.unit().0,
            grant: self.grant as u32,
            offset: pointer.offset(),
        };
        match self.contains(pointer) {
            true => self.mobile.call_at(at, code, entry, payload),
            false => Err(Error::NotGranted(pointer.to_string())),
        }
    }

    /// Returns whether an element belongs to the segment.
    fn contains(&self, pointer: GlobalPtr<T>) -> bool {
        let rank = self.segment.team().rank_of(pointer.unit());
        let begin = rank.and_then(|rank| self.segment.pointer(rank, 0).ok());
        let len = rank.and_then(|rank| self.segment.len_of(rank).ok());
        let distance = begin.and_then(|begin| pointer.distance_from(begin));
        let distance = distance.and_then(|distance| u64::try_from(distance).ok());
        matches!((distance, len), (Some(distance), Some(len)) if distance < len)
    }
}

impl<T: Elem> Drop for GrantedSegment<'_, T> {
    /// Revokes the grant of this unit, when no kernel runs any more, unless another segment has its
    /// number now.
    fn drop(&mut self) {
        self.mobile.revoke_segment(self.grant, self.segment.bytes());
    }
}

//! Access to elements and boxes of any member.

use super::phase::Reach;
use super::{Array, ArrayError, Bounds, Pattern};
use crate::{Elem, Error, GlobalPtr, Handle, Phase, Result, wait_all};

/// Elements that are consecutive in the memory of their owner and in the caller's buffer.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The offset in the owner's memory.
    offset: u64,
    /// The index in the caller's buffer.
    at: usize,
    len: usize,
}

impl Piece {
    fn buffer(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.len
    }
}

/// Returns the part of a box that a rank owns, in the order of its memory, in as few pieces as
/// possible.
fn pieces<const D: usize>(pattern: &Pattern<D>, rank: u32, bounds: Bounds<D>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for run in pattern.runs(rank, bounds) {
        let (at, len) = (bounds.linear(run.index) as usize, run.len as usize);
        match pieces.last_mut() {
            Some(last)
                if last.offset + last.len as u64 == run.offset && last.at + last.len == at =>
            {
                last.len += len;
            }
            _ => pieces.push(Piece {
                offset: run.offset,
                at,
                len,
            }),
        }
    }
    pieces
}

/// Groups pieces that are consecutive in the owner's memory; each group is one put or get.
fn stretches(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    pieces.chunk_by(|a, b| a.offset + a.len as u64 == b.offset)
}

impl<T: Elem, const D: usize> Array<T, D> {
    /// Writes one element. One-sided; locally and remotely complete when it returns.
    #[inline]
    pub fn put_value(&self, index: [u64; D], value: T) -> Result<()> {
        self.check_index(index)?;
        let place = self.pattern.locate(index);
        self.segment.put_value(place.rank, place.offset, value)
    }

    /// Writes a box from `from`, which holds its elements in row-major order. One-sided; complete
    /// locally and at all owners when it returns.
    ///
    /// # Errors
    /// [`ArrayError::Outside`], [`Error::WrongLength`]; a lost owner.
    pub fn put(&self, bounds: impl Into<Bounds<D>>, from: &[T]) -> Result<()> {
        let bounds = bounds.into();
        self.check(bounds)?;
        same_length(bounds, from.len())?;
        if let Some(place) = self.pattern.in_one_run(bounds) {
            return self.segment.put(place.rank, place.offset, from);
        }
        let mut handles = Vec::new();
        self.start_put(bounds, from, &mut handles)?;
        wait_all(handles)?;
        Ok(())
    }

    /// Starts to write a box that is inside the array. Adds the puts that are not complete at once
    /// to `handles`.
    pub(super) fn start_put(
        &self,
        bounds: Bounds<D>,
        from: &[T],
        handles: &mut Vec<Handle<u64>>,
    ) -> Result<()> {
        let mut packed = Vec::new();
        for rank in self.pattern.ranks(bounds) {
            let pieces = pieces(&self.pattern, rank, bounds);
            for stretch in stretches(&pieces) {
                let elements = match stretch {
                    [piece] => &from[piece.buffer()],
                    _ => {
                        packed.clear();
                        for piece in stretch {
                            packed.extend_from_slice(&from[piece.buffer()]);
                        }
                        &packed[..]
                    }
                };
                let handle = self.segment.put_nb(rank, stretch[0].offset, elements)?;
                if !handle.is_complete() {
                    handles.push(handle);
                }
            }
        }
        Ok(())
    }
}

impl<T: Elem, const D: usize, P: Reach> Array<T, D, P> {
    /// Reads one element. One-sided.
    #[inline]
    pub fn get_value(&self, index: [u64; D]) -> Result<T> {
        self.check_index(index)?;
        let place = self.pattern.locate(index);
        let mut value = T::zeroed();
        let into = std::slice::from_mut(&mut value);
        P::get(&self.segment, place.rank, place.offset, into)?;
        Ok(value)
    }

    /// Reads a box into `into`, in row-major order. One-sided; complete when it returns.
    ///
    /// # Errors
    /// As for [`Array::put`].
    pub fn get(&self, bounds: impl Into<Bounds<D>>, into: &mut [T]) -> Result<()> {
        let bounds = bounds.into();
        self.check(bounds)?;
        same_length(bounds, into.len())?;
        if let Some(place) = self.pattern.in_one_run(bounds) {
            return P::get(&self.segment, place.rank, place.offset, into);
        }
        // A stretch that is also consecutive in `into` is read into its place; all others go
        // through `packed`, because each is scattered over `into`.
        let (mut straight, mut scattered) = (Vec::new(), Vec::new());
        for rank in self.pattern.ranks(bounds) {
            let pieces = pieces(&self.pattern, rank, bounds);
            for stretch in stretches(&pieces) {
                match stretch {
                    [piece] => straight.push((rank, *piece)),
                    _ => scattered.push((rank, stretch.to_vec())),
                }
            }
        }
        // Sorted by place, so that `into` can be split into disjoint parts, one per get.
        straight.sort_unstable_by_key(|(_, piece)| piece.at);
        let len = |stretch: &[Piece]| stretch.iter().map(|piece| piece.len).sum::<usize>();
        let total = scattered.iter().map(|(_, stretch)| len(stretch)).sum();
        let mut packed = vec![T::zeroed(); total];
        let buffer = &mut *into;
        self.team().fabric().scope(|scope| {
            let mut handles = Vec::new();
            let (mut rest, mut taken) = (buffer, 0);
            for (rank, piece) in &straight {
                let (_, tail) = rest.split_at_mut(piece.at - taken);
                let (part, tail) = tail.split_at_mut(piece.len);
                (rest, taken) = (tail, piece.at + piece.len);
                let got = P::start_get(&self.segment, scope, *rank, piece.offset, part)?;
                handles.extend(got);
            }
            let mut rest = &mut packed[..];
            for (rank, stretch) in &scattered {
                let (part, tail) = rest.split_at_mut(len(stretch));
                rest = tail;
                let got = P::start_get(&self.segment, scope, *rank, stretch[0].offset, part)?;
                handles.extend(got);
            }
            wait_all(handles).map_err(Error::from)
        })?;
        let mut rest = &packed[..];
        for piece in scattered.iter().flat_map(|(_, stretch)| stretch) {
            let (part, tail) = rest.split_at(piece.len);
            into[piece.buffer()].copy_from_slice(part);
            rest = tail;
        }
        Ok(())
    }
}

impl<T: Elem, const D: usize, P: Phase> Array<T, D, P> {
    /// Returns a pointer to an element. Local.
    pub fn pointer(&self, index: [u64; D]) -> Result<GlobalPtr<T>> {
        self.check_index(index)?;
        let place = self.pattern.locate(index);
        self.segment.pointer(place.rank, place.offset)
    }

    /// Checks that a box is inside the array.
    pub(super) fn check(&self, bounds: Bounds<D>) -> Result<()> {
        let extents = self.pattern.extents();
        let inside = |d: usize| bounds.lo[d] <= bounds.hi[d] && bounds.hi[d] <= extents[d];
        match (0..D).all(inside) {
            true => Ok(()),
            false => Err(self.outside(bounds.to_string())),
        }
    }

    #[inline]
    fn check_index(&self, index: [u64; D]) -> Result<()> {
        if self.pattern.contains(index) {
            return Ok(());
        }
        Err(self.outside(format!("the index {index:?}")))
    }

    #[cold]
    fn outside(&self, what: String) -> Error {
        let extents = self.pattern.extents().to_vec();
        ArrayError::Outside { what, extents }.into()
    }
}

fn same_length<const D: usize>(bounds: Bounds<D>, found: usize) -> Result<()> {
    let (expected, found) = (bounds.len(), found as u64);
    if expected == found {
        return Ok(());
    }
    Err(Error::WrongLength {
        what: "the elements of a box",
        expected,
        found,
    })
}

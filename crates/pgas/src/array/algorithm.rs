//! Algorithms over a whole array. All are collective: every member of the team calls them and works
//! on its own elements; results that all members need are gathered.
//!
//! Source: the algorithms of DASH, which are those of the C++ library applied to distributed
//! ranges.

use super::phase::{Own, OwnMut};
use super::{Array, ArrayError, Bounds};
use crate::{Elem, Result, wait_all};
use std::cmp::Ordering;

/// The place that stands for "no element".
const NOWHERE: u64 = u64::MAX;
/// The number of puts of a copy that may be under way at a time.
const FLIGHTS: usize = 256;

impl<T: Elem, const D: usize, P: OwnMut> Array<T, D, P> {
    /// Sets all elements to `value`. Collective.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.change(|_, elements, _| elements.fill(value))
    }

    /// Sets every element to `of(index)`. Collective.
    pub fn fill_with(&mut self, mut of: impl FnMut([u64; D]) -> T) -> Result<()> {
        self.transform(|index, _| of(index))
    }

    /// Replaces every element by `of(index, element)`. Collective.
    pub fn transform(&mut self, mut of: impl FnMut([u64; D], T) -> T) -> Result<()> {
        self.change(|mut index, elements, _| {
            for element in elements {
                *element = of(index, *element);
                step(&mut index);
            }
        })
    }

    /// Replaces every element by `of(element, element of other)`. Collective; no element moves.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// use samite_pgas::array::{Array, Pattern};
    /// let pattern = Pattern::block([100], world.size())?;
    /// let mut x = Array::<f64, 1>::new(world, pattern)?;
    /// let mut y = Array::<f64, 1>::new(world, pattern)?;
    /// x.fill(2.0)?;
    /// y.fill_with(|[at]| at as f64)?;
    /// x.combine(&y, |x, y| x + 0.5 * y)?; // x becomes x + y / 2
    /// assert_eq!(x.get_value([10])?, 7.0);
    /// # x.free()?;
    /// # y.free()?;
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ArrayError::OtherPattern`] if the arrays are not distributed alike.
    pub fn combine<U: Elem>(
        &mut self,
        other: &Array<U, D, P>,
        mut of: impl FnMut(T, U) -> T,
    ) -> Result<()> {
        if self.pattern != other.pattern || self.team() != other.team() {
            return Err(P::refuse(self.team(), ArrayError::OtherPattern.into()));
        }
        let mut theirs = Vec::new();
        let mut read = Ok(());
        self.change(|_, elements, offset| {
            theirs.resize(elements.len(), U::zeroed());
            let got = P::read(&other.segment, offset, &mut theirs);
            if got.is_err() && read.is_ok() {
                read = got;
            }
            for (element, their) in elements.iter_mut().zip(&theirs) {
                *element = of(*element, *their);
            }
        })?;
        read
    }

    /// Changes own elements: calls `by(index of the first, elements, offset of the first)` for each
    /// run.
    fn change(&mut self, mut by: impl FnMut([u64; D], &mut [T], u64)) -> Result<()> {
        let team = self.team().clone();
        P::settled(&team, || {
            self.edit(|run, elements| by(run.index, elements, run.offset))
        })
    }
}

impl<T: Elem, const D: usize, P: Own> Array<T, D, P> {
    /// Calls `see(index, element)` for this unit's elements, in the order of its memory.
    /// Collective.
    pub fn for_each(&self, mut see: impl FnMut([u64; D], T)) -> Result<()> {
        P::settled(self.team(), || {
            self.see(|run, elements| {
                let mut index = run.index;
                for element in elements {
                    see(index, *element);
                    step(&mut index);
                }
            })
        })
    }

    /// Folds all elements into one by `of`, which must be associative and commutative. Returns the
    /// same at every member; `None` if the array has no elements. Collective.
    pub fn reduce(&self, mut of: impl FnMut(T, T) -> T) -> Result<Option<T>> {
        let _turn = self.team().0.long_turn()?;
        let mut own = None;
        self.for_each(|_, element| {
            own = Some(own.map_or(element, |so_far| of(so_far, element)));
        })?;
        let all = self.gather(own, u64::from(own.is_some()))?;
        let there = all.into_iter().filter(|(_, there)| *there > 0);
        Ok(there.map(|(part, _)| part).reduce(of))
    }

    /// Returns the smallest element and its index, the same at every member. Of equal elements, it
    /// is the first in row-major order. Elements that do not compare with themselves (NaN) are
    /// ignored. `None` if no others exist. Collective.
    pub fn min_element(&self) -> Result<Option<(T, [u64; D])>>
    where
        T: PartialOrd,
    {
        self.extreme(Ordering::Less)
    }

    /// Returns the largest element and its index; otherwise like [`Array::min_element`].
    pub fn max_element(&self) -> Result<Option<(T, [u64; D])>>
    where
        T: PartialOrd,
    {
        self.extreme(Ordering::Greater)
    }

    fn extreme(&self, wanted: Ordering) -> Result<Option<(T, [u64; D])>>
    where
        T: PartialOrd,
    {
        let bounds = self.pattern.bounds();
        let better = |new: &(T, u64), old: &(T, u64)| match new.0.partial_cmp(&old.0) {
            Some(Ordering::Equal) => new.1 < old.1,
            order => order == Some(wanted),
        };
        let _turn = self.team().0.long_turn()?;
        let mut own: Option<(T, u64)> = None;
        self.places(|element, place| {
            let new = (element, place);
            let takes = match &own {
                Some(old) => better(&new, old),
                None => element.partial_cmp(&element).is_some(),
            };
            if takes {
                own = Some(new);
            }
        })?;
        let all = self.gather(own.map(|own| own.0), own.map_or(NOWHERE, |own| own.1))?;
        // A member that lies may name any place.
        let there = all.into_iter().filter(|(_, place)| *place < self.len());
        let best = there.reduce(|old, new| if better(&new, &old) { new } else { old });
        Ok(best.map(|(element, place)| (element, bounds.index(place))))
    }

    /// Returns the first index, in row-major order, whose element satisfies `is`; the same at every
    /// member. Collective.
    pub fn find(&self, mut is: impl FnMut(T) -> bool) -> Result<Option<[u64; D]>> {
        let bounds = self.pattern.bounds();
        let _turn = self.team().0.long_turn()?;
        let mut first = NOWHERE;
        self.places(|element, place| {
            if place < first && is(element) {
                first = place;
            }
        })?;
        let all = self.gather(None, first)?;
        let first = all.into_iter().map(|(_, place)| place).min();
        // A member that lies may name any place.
        let found = first.filter(|place| *place < self.len());
        Ok(found.map(|place| bounds.index(place)))
    }

    /// Returns the number of elements that satisfy `is`; the same at every member. Collective.
    pub fn count(&self, mut is: impl FnMut(T) -> bool) -> Result<u64> {
        let _turn = self.team().0.long_turn()?;
        let mut own = 0;
        self.for_each(|_, element| own += u64::from(is(element)))?;
        let all = self.gather(None, own)?;
        let counts = all.into_iter().map(|(_, count)| count);
        Ok(counts.fold(0, u64::saturating_add))
    }

    /// Calls `see` for own elements with their places in row-major order.
    fn places(&self, mut see: impl FnMut(T, u64)) -> Result<()> {
        let bounds = self.pattern.bounds();
        P::settled(self.team(), || {
            self.see(|run, elements| {
                let first = bounds.linear(run.index);
                for (element, place) in elements.iter().zip(first..) {
                    see(*element, place);
                }
            })
        })
    }

    /// Gathers an element and a word of every member.
    fn gather(&self, element: Option<T>, word: u64) -> Result<Vec<(T, u64)>> {
        let (team, ranks) = (self.team(), self.team().size() as usize);
        let mut words = vec![0; ranks];
        team.all_gather(&[word], &mut words)?;
        let mut elements = vec![T::zeroed(); ranks];
        team.all_gather(&[element.unwrap_or(T::zeroed())], &mut elements)?;
        Ok(elements.into_iter().zip(words).collect())
    }
}

impl<T: Elem, const D: usize> Array<T, D> {
    /// Copies the box `from` of `source` to the box `to` of this array; they may be distributed
    /// differently. Collective over the members of both arrays, which must be the same. Every
    /// member puts the elements that it owns.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// use samite_pgas::array::{Array, Pattern};
    /// let mut plate = Array::<f64, 2>::new(world, Pattern::block([8, 8], world.size())?)?;
    /// let mut tile = Array::<f64, 2>::new(world, Pattern::block([2, 3], world.size())?)?;
    /// tile.fill(1.0)?;
    /// plate.copy_from([4..6, 0..3], &tile, [0..2, 0..3])?;
    /// assert_eq!(plate.reduce(|a, b| a + b)?, Some(6.0));
    /// # plate.free()?;
    /// # tile.free()?;
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ArrayError::OtherShape`], [`ArrayError::OtherUnits`], [`ArrayError::Outside`].
    pub fn copy_from(
        &mut self,
        to: impl Into<Bounds<D>>,
        source: &Array<T, D>,
        from: impl Into<Bounds<D>>,
    ) -> Result<()> {
        let (to, from) = (to.into(), from.into());
        if source.team().group() != self.team().group() {
            return Err(ArrayError::OtherUnits.into());
        }
        let _turn = source.team().0.long_turn()?;
        let refuse = |error| source.team().0.refuse_next(error);
        let fits = || match to.extents() == from.extents() {
            true => self.check(to).and_then(|()| source.check(from)),
            false => Err(ArrayError::OtherShape {
                to: to.extents().to_vec(),
                from: from.extents().to_vec(),
            }
            .into()),
        };
        fits().map_err(refuse)?;
        source.team().barrier()?;
        self.put_own(to, source, from).map_err(refuse)?;
        source.team().barrier()
    }

    /// Puts this unit's elements of the box `from` of `source` to the box `to`.
    fn put_own(&self, to: Bounds<D>, source: &Array<T, D>, from: Bounds<D>) -> Result<()> {
        let (mut handles, mut row) = (Vec::new(), Vec::new());
        for run in source.pattern.runs(source.rank(), from) {
            row.resize(run.len as usize, T::zeroed());
            source.segment.read_local(run.offset, &mut row)?;
            let lo = std::array::from_fn(|d| run.index[d] - from.lo[d] + to.lo[d]);
            let mut line = Bounds { lo, hi: lo };
            for d in 0..D {
                line.hi[d] += if d + 1 == D { run.len } else { 1 };
            }
            self.start_put(line, &row, &mut handles)?;
            if handles.len() >= FLIGHTS {
                wait_all(handles.drain(..))?;
            }
        }
        wait_all(handles)?;
        Ok(())
    }
}

/// Advances an index along the last dimension.
#[inline(always)]
fn step<const D: usize>(index: &mut [u64; D]) {
    if let Some(last) = index.last_mut() {
        *last += 1;
    }
}

#[cfg(test)]
mod tests {
    use crate::Pgas;
    use crate::array::{Array, Pattern};
    use samite_testkit::{same, simulate};

    /// Unit 1 finds elements in an array that has none, and counts more than there can be.
    #[test]
    fn places_that_an_array_does_not_have() {
        let name = "array::algorithm::tests::places_that_an_array_does_not_have";
        simulate(name, 2, 0..2, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let nothing = Array::<u64, 2>::new(world, Pattern::block([0, 5], 2)?)?;
            let full = Array::<u64, 1>::new(world, Pattern::block([4], 2)?)?;
            if world.rank() == 0 {
                same!(nothing.min_element()?, None);
                same!(nothing.find(|_| true)?, None);
                same!(full.max_element()?, Some((0, [0])));
                same!(full.count(|_| true)?, u64::MAX);
            } else {
                for _ in 0..2 {
                    nothing.for_each(|_, _| {})?;
                    nothing.gather(Some(7), 3)?;
                }
                full.for_each(|_, _| {})?;
                full.gather(Some(7), 4)?;
                full.for_each(|_, _| {})?;
                full.gather(None, u64::MAX)?;
            }
            full.free()?;
            Ok(nothing.free()?)
        });
    }
}

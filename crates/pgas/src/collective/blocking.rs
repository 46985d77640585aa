//! The blocking collectives.

use super::arguments::{Counts, What};
use super::buffer::{self, Source, Target};
use super::call::Kind;
use super::combining::{Combiner, NONE, Typed};
use super::op::Operator;
use super::shape::{Combine, Shape};
use super::{Ends, Input, Output};
use crate::{Elem, Result, Team};

impl Team {
    /// Waits until all members have called it. What was complete at its target before, or flushed,
    /// is visible to all members after it.
    pub fn barrier(&self) -> Result<()> {
        self.exchange(Kind::Barrier)
    }

    /// A barrier of some kind.
    #[inline]
    pub(crate) fn exchange(&self, kind: Kind) -> Result<()> {
        let _turn = self.0.turn()?;
        let call = self.0.next_call(kind);
        self.0
            .run(&call, Shape::Barrier, &mut Ends::nothing(), NONE)
    }

    /// The elements of `root` to everybody: `buffer` is read there and written everywhere else. The
    /// same length everywhere.
    pub fn broadcast<'a, T: Elem>(
        &self,
        root: u32,
        buffer: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        let buffer = buffer.into();
        let _turn = self.0.turn()?;
        let count = buffer.len();
        let (call, shape) = self.call::<T>(&What::Broadcast(root), count, count);
        let shape = shape.map_err(|error| self.0.refuse(call, error))?;
        let (input, output) = match root == self.rank() {
            true => (buffer.into_input(self), Output::nothing()),
            false => (Input::NOTHING, buffer.output(self)),
        };
        self.0.run(&call, shape, &mut Ends { input, output }, NONE)
    }

    /// Block `r` of `from` at `root` to the member of rank `r`. `into` has the same length
    /// everywhere; `from` has it times the size of the team, and counts at `root` only.
    pub fn scatter<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        self.blocking(from.into(), into.into(), &What::Scatter(root), NONE)
    }

    /// As [`Team::scatter`], with blocks of different lengths: `counts` at `root` are their
    /// elements by rank, and `into` has the length of its own block.
    pub fn scatter_v<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        counts: impl Into<Counts<'a>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        let what = What::ScatterV(root, counts.into());
        self.blocking(from.into(), into.into(), &what, NONE)
    }

    /// The elements of each member to `root`, in blocks by rank. `from` has the same length
    /// everywhere; `into` has it times the size of the team, and counts at `root` only.
    pub fn gather<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        self.blocking(from.into(), into.into(), &What::Gather(root), NONE)
    }

    /// As [`Team::gather`], with blocks of different lengths: `counts` at `root` are their elements
    /// by rank.
    pub fn gather_v<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        counts: impl Into<Counts<'a>>,
    ) -> Result<()> {
        let what = What::GatherV(root, counts.into());
        self.blocking(from.into(), into.into(), &what, NONE)
    }

    /// The elements of each member to everybody, in blocks by rank. `from` has the same length
    /// everywhere, `into` that times the size of the team.
    pub fn all_gather<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        self.blocking(from.into(), into.into(), &What::AllGather, NONE)
    }

    /// As [`Team::all_gather`], with blocks of different lengths: `counts`, the same everywhere,
    /// are their elements by rank. Where they begin is each member's own matter.
    pub fn all_gather_v<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        counts: impl Into<Counts<'a>>,
    ) -> Result<()> {
        let what = What::AllGatherV(counts.into());
        self.blocking(from.into(), into.into(), &what, NONE)
    }

    /// Block `r` of `from` to the member of rank `r`, from each to each; `into` gets blocks by
    /// rank. Both have the same length everywhere, a multiple of the size of the team.
    pub fn all_to_all<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        self.blocking(from.into(), into.into(), &What::AllToAll, NONE)
    }

    /// As [`Team::all_to_all`], with blocks of different lengths: how many elements are for each
    /// rank, and how many come from each.
    pub fn all_to_all_v<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        from_counts: impl Into<Counts<'a>>,
        into: impl Into<Target<'a, T>>,
        into_counts: impl Into<Counts<'a>>,
    ) -> Result<()> {
        let what = What::AllToAllV(from_counts.into(), into_counts.into());
        self.blocking(from.into(), into.into(), &what, NONE)
    }

    /// Combines the elements of all members, index by index; the result goes to `root`. The same
    /// length everywhere; `into` counts at `root` only.
    pub fn reduce<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::Reduce { root }, from.into(), into.into(), operator)
    }

    /// Combines the elements of all members, index by index; the result goes to everybody. The same
    /// length everywhere.
    pub fn all_reduce<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::AllReduce, from.into(), into.into(), operator)
    }

    /// Combines the elements of all members, index by index; block `r` of the result goes to the
    /// member of rank `r`. `into` has the same length everywhere, `from` that times the size of the
    /// team.
    pub fn reduce_scatter<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::ReduceScatter, from.into(), into.into(), operator)
    }

    /// Combines the elements of the members up to this one, index by index. The same length
    /// everywhere.
    pub fn scan<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::Scan, from.into(), into.into(), operator)
    }

    /// Combines the elements of the members before this one, index by index; at rank 0 `into` does
    /// not count, and is left as it is. The same length everywhere else.
    pub fn exscan<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::ExScan, from.into(), into.into(), operator)
    }

    #[inline]
    fn combine<T: Elem, O: Operator<T>>(
        &self,
        combine: Combine,
        from: Source<'_, T>,
        into: Target<'_, T>,
        operator: O,
    ) -> Result<()> {
        let what = What::Combine(combine, operator.code(), operator.commutes());
        let typed = Typed::<T, O>::new(operator);
        self.blocking(from, into, &what, Some(&typed))
    }

    #[inline]
    fn blocking<T: Elem, C: Combiner>(
        &self,
        from: Source<'_, T>,
        into: Target<'_, T>,
        what: &What<'_>,
        combiner: Option<&C>,
    ) -> Result<()> {
        let _turn = self.0.turn()?;
        let (call, shape) = self.call::<T>(what, from.len(), into.len());
        let shape = shape.map_err(|error| self.0.refuse(call, error))?;
        let mut ends = buffer::ends(self, from, into);
        self.0.run(&call, shape, &mut ends, combiner)
    }
}

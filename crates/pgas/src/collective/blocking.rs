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
    /// Waits until all members have called it. Operations that were complete at their target before
    /// it, or flushed, are visible to all members after it.
    pub fn barrier(&self) -> Result<()> {
        self.exchange(Kind::Barrier)
    }

    /// Runs a barrier of the given kind.
    #[inline]
    pub(crate) fn exchange(&self, kind: Kind) -> Result<()> {
        let _turn = self.0.turn()?;
        let call = self.0.next_call(kind);
        self.0
            .run(&call, Shape::Barrier, &mut Ends::nothing(), NONE)
    }

    /// Sends the elements of `root` to all members: `buffer` is read at `root` and written at the
    /// others. It has the same length at all members.
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

    /// Sends block `r` of `from` at `root` to the member of rank `r`. `into` has the same length at
    /// all members. `from` has that length times the size of the team, and is ignored except at
    /// `root`.
    pub fn scatter<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        self.blocking(from.into(), into.into(), &What::Scatter(root), NONE)
    }

    /// As [`Team::scatter`], with blocks of different lengths: `counts` at `root` holds their
    /// elements by rank, and `into` has the length of this member's block.
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

    /// Collects the elements of all members at `root`, in blocks by rank. `from` has the same
    /// length at all members. `into` has that length times the size of the team, and is ignored
    /// except at `root`.
    pub fn gather<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        self.blocking(from.into(), into.into(), &What::Gather(root), NONE)
    }

    /// As [`Team::gather`], with blocks of different lengths: `counts` at `root` holds their
    /// elements by rank.
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

    /// Collects the elements of all members at every member, in blocks by rank. `from` has the same
    /// length at all members, `into` that times the size of the team.
    pub fn all_gather<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        self.blocking(from.into(), into.into(), &What::AllGather, NONE)
    }

    /// As [`Team::all_gather`], with blocks of different lengths: `counts`, equal at all members,
    /// holds their elements by rank. Each member chooses where they begin in its own buffer.
    pub fn all_gather_v<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        counts: impl Into<Counts<'a>>,
    ) -> Result<()> {
        let what = What::AllGatherV(counts.into());
        self.blocking(from.into(), into.into(), &what, NONE)
    }

    /// Sends block `r` of each member's `from` to the member of rank `r`. `into` receives blocks by
    /// rank. Both have the same length at all members, a multiple of the size of the team.
    pub fn all_to_all<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        self.blocking(from.into(), into.into(), &What::AllToAll, NONE)
    }

    /// As [`Team::all_to_all`], with blocks of different lengths: the arguments give the elements
    /// to each rank and from each rank.
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

    /// Combines the elements of all members, index by index, and gives the result to `root`.
    /// Buffers have the same length at all members; `into` is ignored except at `root`.
    pub fn reduce<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::Reduce { root }, from.into(), into.into(), operator)
    }

    /// Combines the elements of all members, index by index, and gives the result to all members.
    /// Buffers have the same length at all members.
    pub fn all_reduce<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::AllReduce, from.into(), into.into(), operator)
    }

    /// Combines the elements of all members, index by index, and gives block `r` of the result to
    /// the member of rank `r`. `into` has the same length at all members, `from` that times the
    /// size of the team.
    pub fn reduce_scatter<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::ReduceScatter, from.into(), into.into(), operator)
    }

    /// Combines the elements of the members up to and including this one, index by index. Buffers
    /// have the same length at all members.
    pub fn scan<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        self.combine(Combine::Scan, from.into(), into.into(), operator)
    }

    /// Combines the elements of the members before this one, index by index. Rank 0 ignores `into`
    /// and leaves it unchanged; otherwise buffers have the same length at all members.
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

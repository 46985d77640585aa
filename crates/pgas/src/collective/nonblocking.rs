//! The non-blocking collectives. Each is the blocking one of the same name, on [`Buffers`] that it
//! keeps until it has ended. Counts that do not follow from a vector are arguments. The returned
//! vector is empty if the target is a part.

use super::Ends;
use super::arguments::{Counts, What};
use super::buffer::{self, Buffers};
use super::call::Kind;
use super::combining::{Combiner, Typed};
use super::op::Operator;
use super::pending::{Flying, Pending};
use super::run::Run;
use super::shape::{Combine, Shape};
use crate::{Elem, Result, Team};
use samite_mem::SharedBytes;

impl Team {
    /// Starts a [`Team::barrier`].
    pub fn ibarrier(&self) -> Result<Pending<()>> {
        let _turn = self.0.turn()?;
        let call = self.0.next_call(Kind::Barrier);
        let run = Run::new(&self.0, call, Ok(Shape::Barrier), Ends::nothing());
        let result = (no_result as fn(&_, _), buffer::nothing(), 0);
        Ok(Pending::start(self, Flying::new(run, None), result))
    }

    /// Starts a [`Team::broadcast`]; returns the vector. Of two parts, `root` sends the first and
    /// the others receive into the second.
    pub fn ibroadcast<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
    ) -> Result<Pending<Vec<T>>> {
        let (buffers, gives) = (buffers.into(), root == self.rank());
        let (from, into) = buffers.lens(|from| from);
        let count = if gives { from } else { into };
        self.fly(&What::Broadcast(root), (count, count), None, || {
            Ok(buffers.whole(self, gives))
        })
    }

    /// Starts a [`Team::scatter`] of blocks of `count` elements; returns this member's block.
    pub fn iscatter<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
        count: u64,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_moving(&What::Scatter(root), buffers, |_| count)
    }

    /// Starts a [`Team::scatter_v`]; returns this member's block, of `count` elements.
    pub fn iscatter_v<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
        counts: impl Into<Counts<'a>>,
        count: u64,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_moving(&What::ScatterV(root, counts.into()), buffers, |_| count)
    }

    /// Starts a [`Team::gather`]; returns all blocks at `root`, nothing elsewhere.
    pub fn igather<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
    ) -> Result<Pending<Vec<T>>> {
        let count = |given| self.at_root(root, self.times_size(given));
        self.fly_moving(&What::Gather(root), buffers, count)
    }

    /// Starts a [`Team::gather_v`]; returns all blocks at `root`, nothing elsewhere. In a vector,
    /// the elements between the blocks are zero.
    pub fn igather_v<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
        counts: impl Into<Counts<'a>>,
    ) -> Result<Pending<Vec<T>>> {
        let counts = counts.into();
        let count = |_| self.at_root(root, counts.end());
        self.fly_moving(&What::GatherV(root, counts), buffers, count)
    }

    /// Starts a [`Team::all_gather`]; returns all blocks.
    pub fn iall_gather<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_moving(&What::AllGather, buffers, |given| self.times_size(given))
    }

    /// Starts a [`Team::all_gather_v`]; returns all blocks, as [`Team::igather_v`].
    pub fn iall_gather_v<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        counts: impl Into<Counts<'a>>,
    ) -> Result<Pending<Vec<T>>> {
        let counts = counts.into();
        self.fly_moving(&What::AllGatherV(counts), buffers, |_| counts.end())
    }

    /// Starts a [`Team::all_to_all`]; returns a block from each member.
    pub fn iall_to_all<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_moving(&What::AllToAll, buffers, |given| given)
    }

    /// Starts a [`Team::all_to_all_v`]; returns a block from each member, as [`Team::igather_v`].
    pub fn iall_to_all_v<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        from_counts: impl Into<Counts<'a>>,
        into_counts: impl Into<Counts<'a>>,
    ) -> Result<Pending<Vec<T>>> {
        let (from, into) = (from_counts.into(), into_counts.into());
        self.fly_moving(&What::AllToAllV(from, into), buffers, |_| into.end())
    }

    /// Starts a [`Team::reduce`]; returns the result at `root`, nothing elsewhere.
    pub fn ireduce<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::Reduce { root }, buffers, operator)
    }

    /// Starts a [`Team::all_reduce`]; returns the result.
    pub fn iall_reduce<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::AllReduce, buffers, operator)
    }

    /// Starts a [`Team::reduce_scatter`]; returns this member's block of the result.
    pub fn ireduce_scatter<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::ReduceScatter, buffers, operator)
    }

    /// Starts a [`Team::scan`]; returns this member's result.
    pub fn iscan<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::Scan, buffers, operator)
    }

    /// Starts a [`Team::exscan`]; returns this member's result, nothing at rank 0.
    pub fn iexscan<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::ExScan, buffers, operator)
    }

    fn at_root(&self, root: u32, count: u64) -> u64 {
        if root == self.rank() { count } else { 0 }
    }

    fn times_size(&self, count: u64) -> u64 {
        count.saturating_mul(u64::from(self.size()))
    }

    fn fly_combining<'a, T: Elem, O: Operator<T> + Send + 'static>(
        &self,
        combine: Combine,
        buffers: impl Into<Buffers<'a, T>>,
        operator: O,
    ) -> Result<Pending<Vec<T>>> {
        let buffers = buffers.into();
        let what = What::Combine(combine, operator.code(), operator.commutes());
        let (from, into) = buffers.lens(|given| match combine {
            _ if !combine.gives_to(self.rank()) => 0,
            Combine::ReduceScatter => given / u64::from(self.size()),
            _ => given,
        });
        let combiner = Box::new(Typed::<T, O>::new(operator));
        let ends = || buffers.ends(self, into);
        self.fly(&what, (from, into), Some(combiner), ends)
    }

    /// `expected` maps the number of elements that this member gives to that of the result.
    fn fly_moving<'a, T: Elem>(
        &self,
        what: &What<'_>,
        buffers: impl Into<Buffers<'a, T>>,
        expected: impl FnOnce(u64) -> u64,
    ) -> Result<Pending<Vec<T>>> {
        let buffers = buffers.into();
        let (from, into) = buffers.lens(expected);
        self.fly(what, (from, into), None, || buffers.ends(self, into))
    }

    fn fly<T: Elem>(
        &self,
        what: &What<'_>,
        (from, into): (u64, u64),
        combiner: Option<Box<dyn Combiner + Send>>,
        ends: impl FnOnce() -> Result<buffer::InFlight>,
    ) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let (call, shape) = self.call::<T>(what, from, into);
        let ready = shape.and_then(|shape| Ok((shape, ends()?)));
        let (shape, (input, output, result)) = ready.map_err(|error| self.0.refuse(call, error))?;
        let run = Run::new(&self.0, call, Ok(shape), Ends { input, output });
        let count = result.len().checked_div(size_of::<T>() as u64);
        let count = count.unwrap_or(into);
        let result = (elements as fn(&SharedBytes, u64) -> Vec<T>, result, count);
        Ok(Pending::start(self, Flying::new(run, combiner), result))
    }
}

/// Returns the result of a collective that only synchronises.
fn no_result(_: &SharedBytes, _: u64) {}

/// Returns the result of all other collectives.
fn elements<T: Elem>(bytes: &SharedBytes, count: u64) -> Vec<T> {
    let mut elements = vec![T::zeroed(); count as usize];
    bytes.read(0, crate::bytes_of_mut(&mut elements));
    elements
}

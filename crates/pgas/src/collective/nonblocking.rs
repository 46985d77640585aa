//! The non-blocking collectives. Each is the blocking one of the same name, on [`Buffers`] that it
//! keeps until it has ended; counts that vectors do not say are arguments. What they give is empty
//! where the target is a part.

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
    /// [`Team::barrier`].
    pub fn ibarrier(&self) -> Result<Pending<()>> {
        let _turn = self.0.turn()?;
        let call = self.0.next_call(Kind::Barrier);
        let run = Run::new(&self.0, call, Ok(Shape::Barrier), Ends::nothing());
        let result = (no_result as fn(&_, _), buffer::nothing(), 0);
        Ok(Pending::start(self, Flying::new(run, None), result))
    }

    /// [`Team::broadcast`]; gives a vector back. Of two parts `root` gives the first, and the
    /// others get the second.
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

    /// [`Team::scatter`] of blocks of `count` elements; gives the own block.
    pub fn iscatter<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
        count: u64,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_moving(&What::Scatter(root), buffers, |_| count)
    }

    /// [`Team::scatter_v`]; `count`: elements of the own block, which it gives.
    pub fn iscatter_v<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
        counts: impl Into<Counts<'a>>,
        count: u64,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_moving(&What::ScatterV(root, counts.into()), buffers, |_| count)
    }

    /// [`Team::gather`]; gives all blocks at `root`, nothing elsewhere.
    pub fn igather<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
    ) -> Result<Pending<Vec<T>>> {
        let count = |given| self.at_root(root, self.times_size(given));
        self.fly_moving(&What::Gather(root), buffers, count)
    }

    /// [`Team::gather_v`]; gives all blocks at `root`, nothing elsewhere. In a vector what lies
    /// between the blocks is zero.
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

    /// [`Team::all_gather`]; gives all blocks.
    pub fn iall_gather<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_moving(&What::AllGather, buffers, |given| self.times_size(given))
    }

    /// [`Team::all_gather_v`]; gives all blocks, as [`Team::igather_v`].
    pub fn iall_gather_v<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        counts: impl Into<Counts<'a>>,
    ) -> Result<Pending<Vec<T>>> {
        let counts = counts.into();
        self.fly_moving(&What::AllGatherV(counts), buffers, |_| counts.end())
    }

    /// [`Team::all_to_all`]; gives the blocks of all.
    pub fn iall_to_all<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_moving(&What::AllToAll, buffers, |given| given)
    }

    /// [`Team::all_to_all_v`]; gives the blocks of all, as [`Team::igather_v`].
    pub fn iall_to_all_v<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        from_counts: impl Into<Counts<'a>>,
        into_counts: impl Into<Counts<'a>>,
    ) -> Result<Pending<Vec<T>>> {
        let (from, into) = (from_counts.into(), into_counts.into());
        self.fly_moving(&What::AllToAllV(from, into), buffers, |_| into.end())
    }

    /// [`Team::reduce`]; gives the result at `root`, nothing elsewhere.
    pub fn ireduce<'a, T: Elem>(
        &self,
        root: u32,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::Reduce { root }, buffers, operator)
    }

    /// [`Team::all_reduce`]; gives the result.
    pub fn iall_reduce<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::AllReduce, buffers, operator)
    }

    /// [`Team::reduce_scatter`]; gives the own block of the result.
    pub fn ireduce_scatter<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::ReduceScatter, buffers, operator)
    }

    /// [`Team::scan`]; gives the own result.
    pub fn iscan<'a, T: Elem>(
        &self,
        buffers: impl Into<Buffers<'a, T>>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        self.fly_combining(Combine::Scan, buffers, operator)
    }

    /// [`Team::exscan`]; gives the own result, nothing at rank 0.
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

    /// `expected`: elements of the result, of so many that this member gives.
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

/// The result of a collective that only synchronises.
fn no_result(_: &SharedBytes, _: u64) {}

/// The result of all others.
fn elements<T: Elem>(bytes: &SharedBytes, count: u64) -> Vec<T> {
    let mut elements = vec![T::zeroed(); count as usize];
    bytes.read(0, crate::bytes_of_mut(&mut elements));
    elements
}

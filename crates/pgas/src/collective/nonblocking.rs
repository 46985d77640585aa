//! The non-blocking collectives: they own what they are given and give what they make. Each is the
//! blocking one of the same name; counts that the buffers do not say are arguments.

use super::blocking::check;
use super::call::{Call, Kind};
use super::combining::Typed;
use super::machine::Machine;
use super::op::Operator;
use super::pending::{self, Flying, Pending};
use super::schedule;
use super::shape::{Blocks, Combine, Moves};
use crate::{Elem, Result, Team};
use samite_mem::SharedBytes;

fn nothing() -> SharedBytes {
    SharedBytes::adopt(Vec::<u8>::new())
}

fn room<T: Elem>(count: u64) -> Result<SharedBytes> {
    Ok(SharedBytes::adopt(crate::zeros::<T>(count)?))
}

impl Team {
    /// Ends when all members have called it.
    pub fn ibarrier(&self) -> Result<Pending<()>> {
        let _turn = self.0.turn()?;
        let call = self.0.next_call(Kind::Barrier);
        let schedule = schedule::moves(&Moves::Barrier, self.rank(), self.size());
        let (input, output) = (nothing(), nothing());
        let machine = Machine::start(&self.0, call, schedule, (input, output));
        let flying = Flying {
            machine,
            combiner: None,
        };
        Ok(Pending::start(
            self,
            call.kind,
            flying,
            (pending::nothing, 0),
        ))
    }

    /// [`Team::broadcast`]; gives the buffer back.
    pub fn ibroadcast<T: Elem>(&self, root: u32, buffer: Vec<T>) -> Result<Pending<Vec<T>>> {
        let count = buffer.len() as u64;
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Broadcast, count).root(root);
        let bytes = self.checked_pending(call, || {
            self.check_root(root)?;
            crate::bytes_for::<T>(count)
        })?;
        let moves = Moves::Broadcast { root, bytes };
        let schedule = schedule::moves(&moves, self.rank(), self.size());
        let memory = (nothing(), SharedBytes::adopt(buffer));
        let flying = Flying {
            machine: Machine::start(&self.0, call, schedule, memory),
            combiner: None,
        };
        let result = (pending::elements::<T> as fn(&_, _) -> _, count);
        Ok(Pending::start(self, call.kind, flying, result))
    }

    /// [`Team::scatter`] of blocks of `count` elements; gives the own block.
    pub fn iscatter<T: Elem>(
        &self,
        root: u32,
        from: Vec<T>,
        count: u64,
    ) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Scatter, count).root(root);
        let total = from.len() as u64;
        self.fly(call, from, count, || {
            self.check_root(root)?;
            self.check_total("the blocks to scatter", root, count, total)?;
            let mine = crate::bytes_for::<T>(count)?;
            let from = Blocks::Equal(mine);
            Ok(Moves::Scatter { root, from, mine })
        })
    }

    /// [`Team::scatter_v`]; `count`: elements of the own block, which it gives.
    pub fn iscatter_v<T: Elem>(
        &self,
        root: u32,
        from: Vec<T>,
        counts: &[u64],
        count: u64,
    ) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::ScatterV, 0).root(root);
        let total = from.len() as u64;
        self.fly(call, from, count, || {
            self.check_root(root)?;
            let mine = crate::bytes_for::<T>(count)?;
            let from = match root == self.rank() {
                true => self.blocks::<T>("scattered", counts, total, count)?,
                false => Blocks::Listed(Vec::new()),
            };
            Ok(Moves::Scatter { root, from, mine })
        })
    }

    /// [`Team::gather`]; gives all blocks at `root`, nothing elsewhere.
    pub fn igather<T: Elem>(&self, root: u32, from: Vec<T>) -> Result<Pending<Vec<T>>> {
        let own = from.len() as u64;
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Gather, own).root(root);
        let count = self.at_root(root, own.saturating_mul(u64::from(self.size())));
        self.fly(call, from, count, || {
            self.check_root(root)?;
            let mine = crate::bytes_for::<T>(own)?;
            let into = Blocks::Equal(mine);
            Ok(Moves::Gather { root, into, mine })
        })
    }

    /// [`Team::gather_v`]; gives all blocks at `root`, nothing elsewhere.
    pub fn igather_v<T: Elem>(
        &self,
        root: u32,
        from: Vec<T>,
        counts: &[u64],
    ) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::GatherV, 0).root(root);
        let (count, own) = (self.at_root(root, sum(counts)), from.len() as u64);
        self.fly(call, from, count, || {
            self.check_root(root)?;
            let mine = crate::bytes_for::<T>(own)?;
            let into = match root == self.rank() {
                true => self.blocks::<T>("gathered", counts, count, own)?,
                false => Blocks::Listed(Vec::new()),
            };
            Ok(Moves::Gather { root, into, mine })
        })
    }

    /// [`Team::all_gather`]; gives all blocks.
    pub fn iall_gather<T: Elem>(&self, from: Vec<T>) -> Result<Pending<Vec<T>>> {
        let own = from.len() as u64;
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::AllGather, own);
        let count = own.saturating_mul(u64::from(self.size()));
        self.fly(call, from, count, || {
            let blocks = Blocks::Equal(crate::bytes_for::<T>(own)?);
            Ok(Moves::AllGather { blocks })
        })
    }

    /// [`Team::all_gather_v`]; gives all blocks.
    pub fn iall_gather_v<T: Elem>(&self, from: Vec<T>, counts: &[u64]) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let call = self.0.next_call(Kind::AllGatherV).counts::<T>(counts);
        let (count, own) = (sum(counts), from.len() as u64);
        self.fly(call, from, count, || {
            let blocks = self.blocks::<T>("gathered", counts, count, own)?;
            Ok(Moves::AllGather { blocks })
        })
    }

    /// [`Team::all_to_all`]; gives the blocks of all.
    pub fn iall_to_all<T: Elem>(&self, from: Vec<T>) -> Result<Pending<Vec<T>>> {
        let count = from.len() as u64;
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::AllToAll, count);
        self.fly(call, from, count, || {
            self.check_divides("the blocks for all", count)?;
            let bytes = crate::bytes_for::<T>(count)? / u64::from(self.size());
            Ok(Moves::AllToAll {
                from: Blocks::Equal(bytes),
                into: Blocks::Equal(bytes),
            })
        })
    }

    /// [`Team::all_to_all_v`]; gives the blocks of all.
    pub fn iall_to_all_v<T: Elem>(
        &self,
        from: Vec<T>,
        from_counts: &[u64],
        into_counts: &[u64],
    ) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::AllToAllV, 0);
        let (count, total) = (sum(into_counts), from.len() as u64);
        let own = self.rank() as usize;
        self.fly(call, from, count, || {
            let of = |counts: &[u64]| counts.get(own).copied().unwrap_or(0);
            let (given, received) = (of(from_counts), of(into_counts));
            Ok(Moves::AllToAll {
                from: self.blocks::<T>("given", from_counts, total, received)?,
                into: self.blocks::<T>("received", into_counts, count, given)?,
            })
        })
    }

    /// [`Team::reduce`]; gives the result at `root`, nothing elsewhere.
    pub fn ireduce<T: Elem>(
        &self,
        root: u32,
        from: Vec<T>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Reduce, from.len() as u64).root(root);
        let count = self.at_root(root, from.len() as u64);
        self.fly_combining(call, (Combine::Reduce { root }, count), from, operator)
    }

    /// [`Team::all_reduce`]; gives the result.
    pub fn iall_reduce<T: Elem>(
        &self,
        from: Vec<T>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        let count = from.len() as u64;
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::AllReduce, count);
        self.fly_combining(call, (Combine::AllReduce, count), from, operator)
    }

    /// [`Team::reduce_scatter`]; gives the own block of the result.
    pub fn ireduce_scatter<T: Elem>(
        &self,
        from: Vec<T>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::ReduceScatter, from.len() as u64);
        let count = from.len() as u64 / u64::from(self.size());
        self.fly_combining(call, (Combine::ReduceScatter, count), from, operator)
    }

    /// [`Team::scan`]; gives the result.
    pub fn iscan<T: Elem>(
        &self,
        from: Vec<T>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        let count = from.len() as u64;
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Scan, count);
        self.fly_combining(call, (Combine::Scan, count), from, operator)
    }

    /// [`Team::exscan`]; gives the result, nothing at rank 0.
    pub fn iexscan<T: Elem>(
        &self,
        from: Vec<T>,
        operator: impl Operator<T> + Send + 'static,
    ) -> Result<Pending<Vec<T>>> {
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::ExScan, from.len() as u64);
        let count = if self.rank() == 0 {
            0
        } else {
            from.len() as u64
        };
        self.fly_combining(call, (Combine::ExScan, count), from, operator)
    }

    /// As `checked`; the others are in a call over messages.
    fn checked_pending<R>(&self, call: Call, check: impl FnOnce() -> Result<R>) -> Result<R> {
        check().map_err(|error| self.0.refuse_pending(call, error))
    }

    fn at_root(&self, root: u32, count: u64) -> u64 {
        if root == self.rank() { count } else { 0 }
    }

    /// Starts what moves bytes, if `moves` finds nothing wrong; `count` elements will be its result.
    fn fly<T: Elem>(
        &self,
        call: Call,
        from: Vec<T>,
        count: u64,
        moves: impl FnOnce() -> Result<Moves>,
    ) -> Result<Pending<Vec<T>>> {
        let (moves, output) = self.checked_pending(call, || Ok((moves()?, room::<T>(count)?)))?;
        let schedule = schedule::moves(&moves, self.rank(), self.size());
        let flying = Flying {
            machine: Machine::start(&self.0, call, schedule, (SharedBytes::adopt(from), output)),
            combiner: None,
        };
        let result = (pending::elements::<T> as fn(&_, _) -> _, count);
        Ok(Pending::start(self, call.kind, flying, result))
    }

    fn fly_combining<T: Elem, O: Operator<T> + Send + 'static>(
        &self,
        call: Call,
        (combine, count): (Combine, u64),
        from: Vec<T>,
        operator: O,
    ) -> Result<Pending<Vec<T>>> {
        let call = call.operator(operator.code());
        let output = self.checked_pending(call, || {
            if let Combine::Reduce { root } = combine {
                self.check_root(root)?;
            }
            if combine == Combine::ReduceScatter {
                let size = u64::from(self.size());
                check("the blocks for all", count * size, from.len() as u64)?;
            }
            room::<T>(count)
        })?;
        let bytes = match combine {
            Combine::ReduceScatter => output.len(),
            _ => size_of_val(&from[..]) as u64,
        };
        let typed = Typed::new(operator);
        let schedule = self.0.schedule_of(combine, bytes, &typed);
        let flying = Flying {
            machine: Machine::start(&self.0, call, schedule, (SharedBytes::adopt(from), output)),
            combiner: Some(Box::new(typed)),
        };
        let result = (pending::elements::<T> as fn(&_, _) -> _, count);
        Ok(Pending::start(self, call.kind, flying, result))
    }
}

/// Elements of all blocks.
fn sum(counts: &[u64]) -> u64 {
    counts
        .iter()
        .fold(0, |sum, count| sum.saturating_add(*count))
}

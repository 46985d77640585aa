//! The blocking collectives.

use super::buffer::{self, Source, Target};
use super::call::{Call, Kind};
use super::op::Operator;
use super::shape::{Blocks, Combine, Moves};
use super::{Input, Output};
use crate::{Elem, Error, Result, Team};

impl Team {
    /// Waits until all members have called it. What was complete at its target before, or flushed, is
    /// visible to all members after it.
    pub fn barrier(&self) -> Result<()> {
        let _turn = self.0.turn()?;
        let call = self.0.next_call(Kind::Barrier);
        let nothing = Output::nothing();
        self.0
            .moves(call, &Moves::Barrier, &Input::NOTHING, nothing)
    }

    /// A barrier that makes nothing for later ones: the last collective of a team may be its first.
    pub(crate) fn meet_last(&self, kind: Kind) -> Result<()> {
        let _turn = self.0.turn()?;
        let (call, nothing) = (self.0.next_call(kind), Output::nothing());
        if let Some(Some(_)) = self.0.board.get() {
            return self
                .0
                .moves(call, &Moves::Barrier, &Input::NOTHING, nothing);
        }
        let messages = &Input::NOTHING;
        self.0.watched(call, || {
            self.0
                .moves_by_messages(call, &Moves::Barrier, messages, nothing)
        })
    }

    /// The elements of `root` to everybody: `buffer` is read there and written everywhere else. The same
    /// length everywhere.
    pub fn broadcast<'a, T: Elem>(
        &self,
        root: u32,
        buffer: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        let buffer = buffer.into();
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Broadcast, buffer.len()).root(root);
        let bytes = self.checked(call, || {
            self.check_root(root)?;
            crate::bytes_for::<T>(buffer.len())
        })?;
        let (input, output) = match root == self.rank() {
            true => (buffer.into_input(self), Output::nothing()),
            false => (Input::NOTHING, buffer.output(self)),
        };
        let moves = Moves::Broadcast { root, bytes };
        self.0.moves(call, &moves, &input, output)
    }

    /// Block `r` of `from` at `root` to the member of rank `r`. `into` has the same length everywhere;
    /// `from` has it times the size of the team, and counts at `root` only.
    pub fn scatter<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Scatter, into.len()).root(root);
        let bytes = self.checked(call, || {
            self.check_root(root)?;
            self.check_total("the blocks to scatter", root, into.len(), from.len())?;
            crate::bytes_for::<T>(into.len())
        })?;
        let moves = Moves::Scatter {
            root,
            from: Blocks::Equal(bytes),
            mine: bytes,
        };
        let (input, output) = buffer::ends(self, from, into);
        self.0.moves(call, &moves, &input, output)
    }

    /// As [`Team::scatter`], with blocks of different lengths, one after the other: `counts` at `root` are
    /// their elements by rank, and `into` has the length of its own block.
    pub fn scatter_v<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        counts: &[u64],
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::ScatterV, 0).root(root);
        let moves = self.checked(call, || {
            self.check_root(root)?;
            let mine = crate::bytes_for::<T>(into.len())?;
            let blocks = match root == self.rank() {
                true => self.blocks::<T>("scattered", counts, from.len(), into.len())?,
                false => Blocks::Listed(Vec::new()),
            };
            Ok(Moves::Scatter {
                root,
                from: blocks,
                mine,
            })
        })?;
        let (input, output) = buffer::ends(self, from, into);
        self.0.moves(call, &moves, &input, output)
    }

    /// The elements of each member to `root`, in blocks by rank. `from` has the same length everywhere;
    /// `into` has it times the size of the team, and counts at `root` only.
    pub fn gather<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Gather, from.len()).root(root);
        let bytes = self.checked(call, || {
            self.check_root(root)?;
            self.check_total("room for what is gathered", root, from.len(), into.len())?;
            crate::bytes_for::<T>(from.len())
        })?;
        let moves = Moves::Gather {
            root,
            into: Blocks::Equal(bytes),
            mine: bytes,
        };
        let (input, output) = buffer::ends(self, from, into);
        self.0.moves(call, &moves, &input, output)
    }

    /// As [`Team::gather`], with blocks of different lengths: `counts` at `root` are their elements by
    /// rank.
    pub fn gather_v<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        counts: &[u64],
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::GatherV, 0).root(root);
        let moves = self.checked(call, || {
            self.check_root(root)?;
            let mine = crate::bytes_for::<T>(from.len())?;
            let blocks = match root == self.rank() {
                true => self.blocks::<T>("gathered", counts, into.len(), from.len())?,
                false => Blocks::Listed(Vec::new()),
            };
            Ok(Moves::Gather {
                root,
                into: blocks,
                mine,
            })
        })?;
        let (input, output) = buffer::ends(self, from, into);
        self.0.moves(call, &moves, &input, output)
    }

    /// The elements of each member to everybody, in blocks by rank. `from` has the same length everywhere,
    /// `into` that times the size of the team.
    pub fn all_gather<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::AllGather, from.len());
        let bytes = self.checked(call, || {
            let what = "room for what is gathered";
            self.check_total(what, self.rank(), from.len(), into.len())?;
            crate::bytes_for::<T>(from.len())
        })?;
        let blocks = Blocks::Equal(bytes);
        let (input, output) = buffer::ends(self, from, into);
        self.0
            .moves(call, &Moves::AllGather { blocks }, &input, output)
    }

    /// As [`Team::all_gather`], with blocks of different lengths: `counts`, the same everywhere, are their
    /// elements by rank.
    pub fn all_gather_v<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        counts: &[u64],
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.0.next_call(Kind::AllGatherV).counts::<T>(counts);
        let blocks = self.checked(call, || {
            self.blocks::<T>("gathered", counts, into.len(), from.len())
        })?;
        let (input, output) = buffer::ends(self, from, into);
        self.0
            .moves(call, &Moves::AllGather { blocks }, &input, output)
    }

    /// Block `r` of `from` to the member of rank `r`, from each to each; `into` gets blocks by rank. Both
    /// have the same length everywhere, a multiple of the size of the team.
    pub fn all_to_all<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::AllToAll, from.len());
        let bytes = self.checked(call, || {
            self.check_divides("the blocks for all", from.len())?;
            check("room for the blocks of all", from.len(), into.len())?;
            crate::bytes_for::<T>(from.len())
        })?;
        let block = Blocks::Equal(bytes / u64::from(self.size()));
        let moves = Moves::AllToAll {
            from: block.clone(),
            into: block,
        };
        let (input, output) = buffer::ends(self, from, into);
        self.0.moves(call, &moves, &input, output)
    }

    /// As [`Team::all_to_all`], with blocks of different lengths: how many elements are for each rank, and
    /// how many come from each.
    pub fn all_to_all_v<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        from_counts: &[u64],
        into: impl Into<Target<'a, T>>,
        into_counts: &[u64],
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::AllToAllV, 0);
        let moves = self.checked(call, || {
            let own = from_counts.get(self.rank() as usize).copied().unwrap_or(0);
            let mine = into_counts.get(self.rank() as usize).copied().unwrap_or(0);
            Ok(Moves::AllToAll {
                from: self.blocks::<T>("given", from_counts, from.len(), mine)?,
                into: self.blocks::<T>("received", into_counts, into.len(), own)?,
            })
        })?;
        let (input, output) = buffer::ends(self, from, into);
        self.0.moves(call, &moves, &input, output)
    }

    /// Combines the elements of all members, index by index; the result goes to `root`. The same length
    /// everywhere; `into` counts at `root` only.
    pub fn reduce<'a, T: Elem>(
        &self,
        root: u32,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Reduce, from.len()).root(root);
        let expected = (root == self.rank()).then_some(from.len());
        self.combine(
            call,
            (Combine::Reduce { root }, expected),
            from,
            into,
            operator,
        )
    }

    /// Combines the elements of all members, index by index; the result goes to everybody. The same length
    /// everywhere.
    pub fn all_reduce<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::AllReduce, from.len());
        let expected = Some(from.len());
        self.combine(call, (Combine::AllReduce, expected), from, into, operator)
    }

    /// Combines the elements of all members, index by index; block `r` of the result goes to the member of
    /// rank `r`. `into` has the same length everywhere, `from` that times the size of the team.
    pub fn reduce_scatter<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::ReduceScatter, from.len());
        let expected = Some(from.len() / u64::from(self.size()));
        self.combine(
            call,
            (Combine::ReduceScatter, expected),
            from,
            into,
            operator,
        )
    }

    /// Combines the elements of the members up to this one, index by index. The same length everywhere.
    pub fn scan<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::Scan, from.len());
        let expected = Some(from.len());
        self.combine(call, (Combine::Scan, expected), from, into, operator)
    }

    /// Combines the elements of the members before this one, index by index; at rank 0 `into` is left as
    /// it is. The same length everywhere.
    pub fn exscan<'a, T: Elem>(
        &self,
        from: impl Into<Source<'a, T>>,
        into: impl Into<Target<'a, T>>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        let (from, into) = (from.into(), into.into());
        let _turn = self.0.turn()?;
        let call = self.call::<T>(Kind::ExScan, from.len());
        let expected = Some(from.len());
        self.combine(call, (Combine::ExScan, expected), from, into, operator)
    }

    /// `expected`: the length of `into`, where it counts.
    fn combine<'a, T: Elem>(
        &self,
        call: Call,
        (combine, expected): (Combine, Option<u64>),
        from: Source<'a, T>,
        into: Target<'a, T>,
        operator: impl Operator<T>,
    ) -> Result<()> {
        let call = call.operator(operator.code());
        let bytes = self.checked(call, || {
            if let Combine::Reduce { root } = combine {
                self.check_root(root)?;
            }
            if combine == Combine::ReduceScatter {
                self.check_divides("the blocks for all", from.len())?;
            }
            if let Some(expected) = expected {
                check("room for the result", expected, into.len())?;
            }
            crate::bytes_for::<T>(from.len())
        })?;
        let bytes = match combine {
            Combine::ReduceScatter => bytes / u64::from(self.size()),
            _ => bytes,
        };
        let (input, output) = buffer::ends(self, from, into);
        self.0
            .combines(call, (combine, bytes), operator, &input, output)
    }

    #[inline]
    pub(super) fn call<T: Elem>(&self, kind: Kind, count: u64) -> Call {
        self.0.next_call(kind).elements::<T>(count)
    }

    /// The outcome of checking the arguments; a failure ends the call at the others.
    #[inline]
    pub(super) fn checked<R>(&self, call: Call, check: impl FnOnce() -> Result<R>) -> Result<R> {
        check().map_err(|error| self.0.refuse(call, error))
    }

    pub(super) fn check_root(&self, root: u32) -> Result<()> {
        self.unit(root).map(|_| ())
    }

    /// At `root`: a buffer of `found` elements for `count` of everybody.
    pub(super) fn check_total(
        &self,
        what: &'static str,
        root: u32,
        count: u64,
        found: u64,
    ) -> Result<()> {
        let expected = count.saturating_mul(u64::from(self.size()));
        match root == self.rank() {
            true => check(what, expected, found),
            false => Ok(()),
        }
    }

    pub(super) fn check_divides(&self, what: &'static str, found: u64) -> Result<()> {
        let rest = found % u64::from(self.size());
        check(what, found - rest, found)
    }

    /// Blocks by `counts`, which together are `total` elements, and this member's own `mine`.
    pub(super) fn blocks<T: Elem>(
        &self,
        what: &'static str,
        counts: &[u64],
        total: u64,
        mine: u64,
    ) -> Result<Blocks> {
        check(
            "counts of the members",
            u64::from(self.size()),
            counts.len() as u64,
        )?;
        let size = size_of::<T>() as u64;
        let sum = counts
            .iter()
            .try_fold(0u64, |sum, count| sum.checked_add(*count));
        let count = sum.unwrap_or(u64::MAX);
        check(what, count, total)?;
        check("the own block", counts[self.rank() as usize], mine)?;
        Blocks::listed(counts, size).ok_or(Error::TooLarge { count, size })
    }
}

#[inline]
pub(super) fn check(what: &'static str, expected: u64, found: u64) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(Error::WrongLength {
            what,
            expected,
            found,
        }),
    }
}

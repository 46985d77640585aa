//! Checks the arguments of collectives and determines what they mean, for both the blocking and the
//! non-blocking forms.

use super::call::{self, Call, Kind};
use super::shape::{Blocks, Combine, Elements, Shape};
use crate::{Elem, Error, Result, Team};

/// The length and the start of each member's block in a buffer, by rank.
///
/// If made from a slice of counts, the blocks are consecutive and fill the buffer.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::Counts;
/// let own = vec![1.0; 3]; // as many as this unit has
/// let mut counts = vec![0; world.size() as usize];
/// world.all_gather(&[own.len() as u64], &mut counts)?;
/// let mut all = vec![0.0; counts.iter().sum::<u64>() as usize];
/// world.all_gather_v(&own, &mut all, &counts)?; // one block after the other
/// // The same, but the block of rank r begins at element 10 r.
/// let starts: Vec<u64> = (0..u64::from(world.size())).map(|rank| 10 * rank).collect();
/// let mut spaced = vec![0.0; 10 * world.size() as usize];
/// world.all_gather_v(&own, &mut spaced, Counts::at(&counts, &starts))?;
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Counts<'a> {
    counts: &'a [u64],
    starts: Option<&'a [u64]>,
}

impl<'a> Counts<'a> {
    /// Returns blocks that begin anywhere in the buffer (displacements, in elements). Elements
    /// between them are left unchanged. Blocks of a target should not overlap: the overlap then
    /// holds either block, or a mixture.
    pub fn at(counts: &'a [u64], starts: &'a [u64]) -> Self {
        let starts = Some(starts);
        Counts { counts, starts }
    }

    /// Returns the number of elements up to the end of the last block.
    pub(super) fn end(&self) -> u64 {
        let mut next = 0u64;
        let starts = self.starts.unwrap_or_default();
        let end = |(rank, count): (usize, &u64)| {
            next = starts.get(rank).unwrap_or(&next).saturating_add(*count);
            next
        };
        self.counts.iter().enumerate().map(end).max().unwrap_or(0)
    }
}

impl<'a, C: AsRef<[u64]> + ?Sized> From<&'a C> for Counts<'a> {
    fn from(counts: &'a C) -> Self {
        let (counts, starts) = (counts.as_ref(), None);
        Counts { counts, starts }
    }
}

/// A collective with its arguments other than buffers.
pub(super) enum What<'a> {
    Broadcast(u32),
    Scatter(u32),
    ScatterV(u32, Counts<'a>),
    Gather(u32),
    GatherV(u32, Counts<'a>),
    AllGather,
    AllGatherV(Counts<'a>),
    AllToAll,
    AllToAllV(Counts<'a>, Counts<'a>),
    /// The operator's code, and whether it commutes.
    Combine(Combine, u8, bool),
}

impl Team {
    /// Returns the descriptor and the shape of the next call, on buffers of these lengths. Invalid
    /// arguments end the call at all members. The caller has the turn of the team.
    #[inline]
    pub(super) fn call<T: Elem>(
        &self,
        what: &What<'_>,
        from: u64,
        into: u64,
    ) -> (Call, Result<Shape>) {
        // The descriptor holds only what all members know. Other lengths are compared when blocks
        // move.
        let (kind, root, count) = match what {
            What::Broadcast(root) => (Kind::Broadcast, *root, from),
            What::Scatter(root) => (Kind::Scatter, *root, into),
            What::ScatterV(root, _) => (Kind::ScatterV, *root, 0),
            What::Gather(root) => (Kind::Gather, *root, from),
            What::GatherV(root, _) => (Kind::GatherV, *root, 0),
            What::AllGather => (Kind::AllGather, 0, from),
            What::AllGatherV(counts) => (Kind::AllGatherV, 0, call::hash(counts.counts)),
            What::AllToAll => (Kind::AllToAll, 0, from),
            What::AllToAllV(..) => (Kind::AllToAllV, 0, 0),
            What::Combine(Combine::Reduce { root }, ..) => (Kind::Reduce, *root, from),
            What::Combine(Combine::AllReduce, ..) => (Kind::AllReduce, 0, from),
            What::Combine(Combine::ReduceScatter, ..) => (Kind::ReduceScatter, 0, from),
            What::Combine(Combine::Scan, ..) => (Kind::Scan, 0, from),
            What::Combine(Combine::ExScan, ..) => (Kind::ExScan, 0, from),
        };
        let operator = match what {
            What::Combine(_, code, _) => *code,
            _ => 0,
        };
        let call = Call {
            operator,
            element: size_of::<T>().min(u16::MAX as usize) as u16,
            root,
            count,
            ..self.0.next_call(kind)
        };
        let root = self.unit(root);
        (call, root.and_then(|_| self.shape::<T>(what, from, into)))
    }

    #[inline]
    fn shape<T: Elem>(&self, what: &What<'_>, from: u64, into: u64) -> Result<Shape> {
        let equal = |bytes: u64| Blocks::Equal(bytes);
        let bytes = crate::bytes_for::<T>;
        let room = "room for what is gathered";
        Ok(match *what {
            What::Combine(combine, _, commute) => {
                return self.combines::<T>(combine, commute, from, into);
            }
            What::Broadcast(root) => Shape::Broadcast {
                root,
                bytes: bytes(from)?,
            },
            What::Scatter(root) => {
                self.check_total("the blocks to scatter", root, into, from)?;
                let mine = bytes(into)?;
                Shape::Scatter {
                    root,
                    from: equal(mine),
                    mine,
                }
            }
            What::ScatterV(root, counts) => Shape::Scatter {
                root,
                from: self.blocks_at::<T>(root, "scattered", counts, from, into)?,
                mine: bytes(into)?,
            },
            What::Gather(root) => {
                self.check_total(room, root, from, into)?;
                let mine = bytes(from)?;
                Shape::Gather {
                    root,
                    into: equal(mine),
                    mine,
                }
            }
            What::GatherV(root, counts) => Shape::Gather {
                root,
                into: self.blocks_at::<T>(root, "gathered", counts, into, from)?,
                mine: bytes(from)?,
            },
            What::AllGatherV(counts) => Shape::AllGather {
                blocks: self.blocks::<T>("gathered", counts, into, from)?,
            },
            What::AllToAll => {
                self.check_divides("the blocks for all", from)?;
                check("room for the blocks of all", from, into)?;
                let block = bytes(from)? / u64::from(self.size());
                Shape::AllToAll {
                    from: equal(block),
                    into: equal(block),
                }
            }
            What::AllToAllV(given, received) => {
                // A member's block to itself must have the same length on both sides.
                let own = |counts: Counts<'_>| {
                    let own = counts.counts.get(self.rank() as usize);
                    own.copied().unwrap_or(0)
                };
                Shape::AllToAll {
                    from: self.blocks::<T>("given", given, from, own(received))?,
                    into: self.blocks::<T>("received", received, into, own(given))?,
                }
            }
            What::AllGather => {
                self.check_total(room, self.rank(), from, into)?;
                Shape::AllGather {
                    blocks: equal(bytes(from)?),
                }
            }
        })
    }

    #[inline]
    fn combines<T: Elem>(
        &self,
        combine: Combine,
        commute: bool,
        from: u64,
        into: u64,
    ) -> Result<Shape> {
        let mut result = from;
        if combine == Combine::ReduceScatter {
            self.check_divides("the blocks for all", from)?;
            result = from / u64::from(self.size());
        }
        if combine.gives_to(self.rank()) {
            check("room for the result", result, into)?;
        }
        let elements = Elements {
            bytes: crate::bytes_for::<T>(result)?,
            size: size_of::<T>() as u64,
            commute,
        };
        Ok(Shape::Combines(combine, elements))
    }

    /// Checks at `root` that a buffer of `found` elements holds `count` of each member.
    fn check_total(&self, what: &'static str, root: u32, count: u64, found: u64) -> Result<()> {
        let expected = count.saturating_mul(u64::from(self.size()));
        match root == self.rank() {
            true => check(what, expected, found),
            false => Ok(()),
        }
    }

    fn check_divides(&self, what: &'static str, found: u64) -> Result<()> {
        let rest = found % u64::from(self.size());
        check(what, found - rest, found)
    }

    /// Returns the blocks that only `root` knows.
    fn blocks_at<T: Elem>(
        &self,
        root: u32,
        what: &'static str,
        counts: Counts<'_>,
        total: u64,
        mine: u64,
    ) -> Result<Blocks> {
        match root == self.rank() {
            true => self.blocks::<T>(what, counts, total, mine),
            false => Ok(Blocks::Listed(Vec::new())),
        }
    }

    /// Returns the blocks for `counts` in a buffer of `total` elements. This member's own block has
    /// `mine` elements.
    fn blocks<T: Elem>(
        &self,
        what: &'static str,
        Counts { counts, starts }: Counts<'_>,
        total: u64,
        mine: u64,
    ) -> Result<Blocks> {
        let members = u64::from(self.size());
        for list in [Some(counts), starts].into_iter().flatten() {
            check("counts of the members", members, list.len() as u64)?;
        }
        let all = Counts { counts, starts }.end();
        if starts.is_none() || all > total {
            check(what, all, total)?;
        }
        let (size, mut next) = (size_of::<T>() as u64, 0);
        let block = |(rank, count): (usize, &u64)| {
            let start = starts.map_or(next, |starts| starts[rank]);
            next = start.saturating_add(*count);
            crate::bytes_for::<T>(next)?;
            Ok((start * size, count * size))
        };
        let blocks: Result<Vec<_>> = counts.iter().enumerate().map(block).collect();
        check("the own block", counts[self.rank() as usize], mine)?;
        blocks.map(Blocks::Listed)
    }
}

#[inline]
fn check(what: &'static str, expected: u64, found: u64) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(Error::WrongLength {
            what,
            expected,
            found,
        }),
    }
}

//! Sorting a distributed array.
//!
//! Every member sorts its block. Weighted medians then determine where the sorted blocks have to be
//! cut so that every member gets exactly as many elements as it has room for. Every member gets its
//! pieces, which are already sorted, and merges them. Each element moves once.
//!
//! The cuts: for the first element of a rank, every member keeps an interval of its block that
//! contains the cut, and proposes its middle element. The median of the proposals, each weighted by
//! the length of its interval, is the pivot. The members count its position among all elements and
//! drop what lies on the wrong side of it: at least a quarter per round. Equal elements are ordered
//! by rank and place. So all elements are distinct, duplicates cost nothing, and the whole sort is
//! stable.
//!
//! Source: Cheng, Edelman, Gilbert, Shah: A Novel Parallel Sorting Algorithm for Contemporary
//! Architectures, 2006 (exact splitters); Kowalewski, Jungblut, Fürlinger: Engineering a
//! Distributed Histogram Sort, CLUSTER 2019 (why the balance should be exact).

use super::{Array, ArrayError, Dist};
use crate::{Elem, Result, Team};
use std::cmp::Ordering;

/// More rounds than any total order needs: each drops a quarter of fewer than 2^64 elements.
const ROUNDS_MAX: u32 = 160;

impl<T: Elem> Array<T, 1> {
    /// Sorts the array in ascending order. The sort is stable, and every member keeps as many
    /// elements as it had. Collective. Memory: two more copies of this unit's elements while it
    /// runs.
    ///
    /// # Errors
    /// [`ArrayError::NotInBlocks`], [`ArrayError::NoOrder`]. After another error, which may have
    /// met some members only, elements may be in the array twice, or not at all.
    pub fn sort(&mut self) -> Result<()>
    where
        T: Ord,
    {
        self.sort_by(T::cmp)
    }

    /// Sorts by `compare`, which must be the same total order at every member (such as
    /// `f64::total_cmp`); otherwise like [`Array::sort`].
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// use samite_pgas::array::{Array, Pattern};
    /// let mut heights = Array::<f64, 1>::new(world, Pattern::block([100], world.size())?)?;
    /// heights.fill_with(|[at]| (at as f64).sin())?;
    /// heights.sort_by(f64::total_cmp)?;
    /// # heights.free()?;
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
    pub fn sort_by(&mut self, compare: impl Fn(&T, &T) -> Ordering) -> Result<()> {
        if !matches!(self.pattern.dists(), [Dist::Block | Dist::Whole]) {
            return Err(ArrayError::NotInBlocks.into());
        }
        let (team, rank) = (self.team().clone(), self.rank());
        let _turn = team.0.long_turn()?;
        team.barrier()?;
        let first = self.local_runs().next().map_or(0, |run| run.offset);
        let mut own = vec![T::zeroed(); self.local_len() as usize];
        let read = self.segment.read_local(first, &mut own);
        read.map_err(|error| team.0.refuse_next(error))?;
        own.sort_by(&compare);
        let written = self.segment.write_local(first, &own);
        written.map_err(|error| team.0.refuse_next(error))?;

        let lens: Vec<u64> = (0..team.size())
            .map(|rank| self.pattern.local_len(rank))
            .collect();
        let cuts = Cutting::new(&team, &own, &lens).run(&compare)?;
        drop(own);
        // One row per rank: where its block is cut, including both ends.
        let width = cuts.len();
        let mut all = vec![0; width * team.size() as usize];
        // No block is read before it is sorted, because gathering waits for all members.
        team.all_gather(&cuts, &mut all)?;
        check_cuts(&all, &lens)?;

        let mut got = vec![T::zeroed(); self.local_len() as usize];
        let mut rest = &mut got[..];
        for (from, cuts) in all.chunks_exact(width).enumerate() {
            let (lo, hi) = (cuts[rank as usize], cuts[rank as usize + 1]);
            let (piece, after) = rest.split_at_mut((hi - lo) as usize);
            let from = from as u32;
            let first = self
                .pattern
                .local_runs(from)
                .next()
                .map_or(0, |run| run.offset);
            if !piece.is_empty() {
                let fetched = self.segment.get(from, first + lo, piece);
                fetched.map_err(|error| team.0.refuse_next(error))?;
            }
            rest = after;
        }
        // A stable sort detects the sorted runs and merges them.
        got.sort_by(&compare);
        team.barrier()?;
        let written = self.segment.write_local(first, &got);
        written.map_err(|error| team.0.refuse_next(error))?;
        team.barrier()
    }
}

/// Checks that the cuts, one row per rank, assign all elements, to each rank as many as it has room
/// for. They do if the comparison is a total order. All members get the same result.
fn check_cuts(all: &[u64], lens: &[u64]) -> Result<()> {
    let rows = || all.chunks_exact(lens.len() + 1);
    let ends = rows()
        .zip(lens)
        .all(|(row, len)| row.first() == Some(&0) && row.last() == Some(len));
    let ascend = rows().all(|row| row.is_sorted());
    let takes = |rank: usize| {
        rows()
            .map(|row| row[rank + 1].saturating_sub(row[rank]))
            .sum::<u64>()
    };
    match ends
        && ascend
        && lens
            .iter()
            .enumerate()
            .all(|(rank, len)| takes(rank) == *len)
    {
        true => Ok(()),
        false => Err(ArrayError::NoOrder.into()),
    }
}

/// The search for the cuts.
struct Cutting<'a, T> {
    team: &'a Team,
    own: &'a [T],
    /// Per rank but the first: how many elements, of all, come before its first one.
    targets: Vec<u64>,
    /// Per target: where in `own` its cut may lie.
    intervals: Vec<(u64, u64)>,
}

/// An element that a member proposes for a target.
struct Proposal<T> {
    element: T,
    rank: usize,
    place: u64,
    weight: u64,
}

impl<'a, T: Elem> Cutting<'a, T> {
    fn new(team: &'a Team, own: &'a [T], lens: &[u64]) -> Self {
        let mut before = 0;
        let sums = lens.iter().map(|len| {
            before += len;
            before
        });
        let targets: Vec<u64> = sums.take(lens.len() - 1).collect();
        Cutting {
            team,
            own,
            intervals: vec![(0, own.len() as u64); targets.len()],
            targets,
        }
    }

    /// Returns the cuts of the own block, with both ends: `cuts[r]..cuts[r + 1]` goes to rank `r`.
    fn run(mut self, compare: &impl Fn(&T, &T) -> Ordering) -> Result<Vec<u64>> {
        // If the members compare differently, the rounds need not get anywhere.
        for _ in 0..ROUNDS_MAX {
            if !self.round(compare)? {
                break;
            }
        }
        let mut cuts = vec![0];
        cuts.extend(self.intervals.iter().map(|interval| interval.0));
        cuts.push(self.own.len() as u64);
        Ok(cuts)
    }

    /// Narrows all intervals. Returns true if any member had an interval to narrow.
    fn round(&mut self, compare: &impl Fn(&T, &T) -> Ordering) -> Result<bool> {
        let proposals = self.propose()?;
        let pivots: Vec<Option<Proposal<T>>> = proposals
            .into_iter()
            .map(|proposals| weighted_median(proposals, compare))
            .collect();
        if pivots.iter().all(Option::is_none) {
            return Ok(false);
        }
        let rank = self.team.rank() as usize;
        // Own elements before each pivot. Equal elements are ordered by rank, so all are distinct.
        let below = |pivot: &Option<Proposal<T>>| match pivot {
            None => 0,
            Some(pivot) if pivot.rank == rank => pivot.place,
            Some(pivot) => self.own.partition_point(|element| {
                let order = compare(element, &pivot.element);
                order.then(rank.cmp(&pivot.rank)) == Ordering::Less
            }) as u64,
        };
        let own: Vec<u64> = pivots.iter().map(below).collect();
        let counts = self.gather(&own)?;
        for (target, pivot) in pivots.iter().enumerate() {
            let Some(pivot) = pivot else { continue };
            let count = own[target];
            let of_all = counts.iter().skip(target).step_by(own.len());
            let position = of_all.copied().fold(0, u64::saturating_add);
            let (lo, hi) = &mut self.intervals[target];
            match position.cmp(&self.targets[target]) {
                Ordering::Equal => (*lo, *hi) = (count, count),
                Ordering::Greater => *hi = count.min(*hi),
                Ordering::Less => *lo = (count + u64::from(pivot.rank == rank)).max(*lo),
            }
        }
        Ok(true)
    }

    /// Returns, per target, the middle elements of the intervals that are not empty.
    fn propose(&self) -> Result<Vec<Vec<Proposal<T>>>> {
        // Without a total order, an interval may end before it begins.
        let middle = |(lo, hi): &(u64, u64)| lo + hi.saturating_sub(*lo) / 2;
        let element = |interval| self.own.get(middle(interval) as usize).copied();
        let elements = self.intervals.iter().map(element);
        let elements: Vec<T> = elements.map(|found| found.unwrap_or(T::zeroed())).collect();
        let elements = self.gather(&elements)?;
        let words = self
            .intervals
            .iter()
            .flat_map(|i| [middle(i), i.1.saturating_sub(i.0)]);
        let words = self.gather(&words.collect::<Vec<u64>>())?;
        let count = self.targets.len();
        let of = |target: usize| {
            let all = elements.iter().zip(words.as_chunks().0).enumerate();
            all.skip(target)
                .step_by(count)
                .map(|(at, (element, [place, weight]))| Proposal {
                    element: *element,
                    rank: at / count,
                    place: *place,
                    weight: *weight,
                })
                .filter(|proposal| proposal.weight > 0)
                .collect()
        };
        Ok((0..count).map(of).collect())
    }

    fn gather<U: Elem>(&self, own: &[U]) -> Result<Vec<U>> {
        let mut all = vec![U::zeroed(); own.len() * self.team.size() as usize];
        self.team.all_gather(own, &mut all)?;
        Ok(all)
    }
}

/// Returns the proposal with at most half of the weight before it and at most half behind it.
fn weighted_median<T>(
    mut proposals: Vec<Proposal<T>>,
    compare: &impl Fn(&T, &T) -> Ordering,
) -> Option<Proposal<T>> {
    // The sort is stable: equal elements stay in the order of their ranks.
    proposals.sort_by(|a, b| compare(&a.element, &b.element));
    let weights = proposals.iter().map(|proposal| proposal.weight);
    let total = weights.fold(0, u64::saturating_add);
    let mut before = 0;
    proposals.into_iter().find(|proposal| {
        before = proposal.weight.saturating_add(before);
        before >= total.div_ceil(2)
    })
}

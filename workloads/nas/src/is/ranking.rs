//! The ranking over several units.
//!
//! A pass, as every unit sees it:
//!
//! ```text
//!   take back the chunks of the last pass
//!   sample own keys, all-reduce            assigns the bins; no unit writes before all took back
//!   partition own keys                     a full chunk: fetch-and-add determines its position in
//!                                          the memory of the unit that counts it; put it there
//!   barrier                                all keys have arrived
//!   count them in place                    ranks among the own keys
//!   scan the numbers of keys               ranks among all keys
//! ```
//!
//! Between the first and the second reading of a key it is written once, into the memory of the
//! unit that ranks it.

use std::ops::Range;

use samite::pgas::{Local, Max, Pgas, Segment, Shared, Sum};

use super::partition::{BINS, BINS_LOG2, CHUNK, Malformed, Partition, Ranks};
use super::problem::Problem;
use super::split::{Sample, Split, sample};
use super::verify::FOLLOWED;
use crate::Error;

/// A unit's part of the ranking, between two passes.
#[derive(Debug)]
pub struct Ranking<'p> {
    pgas: &'p Pgas,
    problem: Problem,
    /// The numbers of the keys with which this unit begins.
    part: Range<u64>,
    keys: Vec<u32>,
    partition: Partition,
    /// Where chunks arrive, from other units and from this one; as large as the passes needed so
    /// far.
    arrived: Segment<u16, Local>,
    /// Number of its chunks in use.
    taken: Segment<u64>,
    /// The ranks of the last pass among the keys that arrived.
    ranks: Ranks,
}

impl<'p> Ranking<'p> {
    /// Generates the keys of this unit. Collective over the job.
    ///
    /// # Errors
    ///
    /// A lost unit.
    pub fn new(pgas: &'p Pgas, problem: Problem) -> Result<Self, Error> {
        let team = pgas.world();
        let part = problem.part(team.rank(), team.size());
        Ok(Ranking {
            pgas,
            problem,
            keys: problem.generate(part.clone()),
            part,
            partition: Partition::new(problem.values_log2()),
            arrived: team.allocate(0)?.into_local()?,
            taken: team.allocate(1)?,
            ranks: Ranks::default(),
        })
    }

    /// Sets the two keys of a pass and ranks all keys. Also returns how many of the followed keys
    /// ranked here have their published rank. Collective.
    ///
    /// # Errors
    ///
    /// The budget of shared memory is too small; [`Error::Capacity`]; a lost unit.
    pub fn pass(mut self, pass: u64) -> Result<(Self, u64), Error> {
        for (number, key) in self.problem.marks(pass) {
            if let Some(own) = self.own(number) {
                self.keys[own] = key;
            }
        }
        self.taken.write_local(0, &[0])?;
        let (split, followed) = self.agree()?;
        let arrived = self.arrived.into_shared()?;
        let arrived = if arrived.len() < split.chunks() * CHUNK as u64 {
            arrived.free()?;
            self.pgas.world().allocate(split.chunks() * CHUNK as u64)?
        } else {
            arrived
        };
        // Send every key to the unit that ranks it.
        let to = Destination {
            split: &split,
            arrived: &arrived,
            taken: &self.taken,
        };
        self.partition
            .add(&self.keys, |bin, chunk| to.put(bin, chunk))?;
        self.partition.finish(|bin, chunk| to.put(bin, chunk))?;
        self.pgas.flush_all()?;
        let arrived = arrived.into_local()?;

        // Rank what has arrived, and check the followed keys among it.
        let team = self.pgas.world();
        let chunks = self.taken.load(team.rank(), 0)? as usize;
        let (bins, bits) = (split.bins(team.rank()), self.problem.values_log2());
        let ranks = Ranks::of(&arrived.as_slice()[..chunks * CHUNK], bins, bits);
        let ranks = ranks.map_err(|Malformed| Error::Malformed)?;
        let mut below = [0];
        team.exscan(&[ranks.keys()], &mut below, Sum)?;
        let right = followed.iter().enumerate().filter(|(at, key)| {
            let rank = ranks.of_key(**key).map(|rank| below[0] + rank);
            rank == Some(self.problem.expected_rank(*at, pass))
        });
        let right = right.count() as u64;
        let next = Ranking {
            arrived,
            ranks,
            ..self
        };
        Ok((next, right))
    }

    /// Returns the position of a key in the memory of this unit, if it begins here.
    fn own(&self, number: u64) -> Option<usize> {
        self.part
            .contains(&number)
            .then(|| (number - self.part.start) as usize)
    }

    /// Agrees with the other units on the split; also returns the followed keys.
    fn agree(&self) -> Result<(Split, [u32; FOLLOWED]), Error> {
        let mut words = [0u64; BINS + FOLLOWED];
        let seen = sample(&self.keys, self.problem.values_log2() - BINS_LOG2);
        words[..BINS].copy_from_slice(&seen);
        for (word, number) in words[BINS..].iter_mut().zip(self.problem.followed()) {
            *word = self.own(number).map_or(0, |own| self.keys[own].into());
        }
        let team = self.pgas.world();
        let mut sums = [0; BINS + FOLLOWED];
        team.all_reduce(&words, &mut sums, Sum)?;
        let (sample, followed) = sums.split_at(BINS);
        let sample: &Sample = sample.try_into().expect("BINS");
        let split = Split::new(sample, self.problem.keys(), team.size());
        Ok((split, std::array::from_fn(|at| followed[at] as u32)))
    }

    /// Sorts the keys that were ranked here by their ranks. Returns true if all keys of all units
    /// are then in order, none is missing and none is new. Collective; the same result at all
    /// units.
    ///
    /// # Errors
    ///
    /// A lost unit.
    pub fn is_sorted(&self) -> Result<bool, Error> {
        let team = self.pgas.world();
        let chunks = self.taken.load(team.rank(), 0)? as usize * CHUNK;
        let chunks = &self.arrived.as_slice()[..chunks];
        let sorted = self.ranks.sort(chunks, self.problem.values_log2());
        // One more than the last key, so that 0 means no key.
        let end = sorted.last().map_or(0, |last| u64::from(*last) + 1);
        let mut end_below = [0];
        team.exscan(&[end], &mut end_below, Max)?;
        let follows = sorted
            .first()
            .is_none_or(|first| end_below[0] <= u64::from(*first) + 1);
        let mut words = [0; 3];
        words[0] = u64::from(!sorted.is_sorted() || !follows);
        for (word, (before, now)) in words[1..]
            .iter_mut()
            .zip(sums(&self.keys).zip(sums(&sorted)))
        {
            *word = before.wrapping_sub(now);
        }
        let mut wrong = [1; 3];
        team.all_reduce(&words, &mut wrong, Sum)?;
        Ok(wrong == [0; 3])
    }
}

/// Returns sums that distinguish sets of keys.
fn sums(keys: &[u32]) -> impl Iterator<Item = u64> {
    [0x9e37_79b9_7f4a_7c15u64, 0xc2b2_ae3d_27d4_eb4f]
        .into_iter()
        .map(|factor| {
            let mixed = keys.iter().map(|key| {
                let product = (u64::from(*key) + 1).wrapping_mul(factor);
                product ^ product >> 29
            });
            mixed.fold(0, u64::wrapping_add)
        })
}

/// The destination of the chunks of a pass.
struct Destination<'a> {
    split: &'a Split,
    arrived: &'a Segment<u16, Shared>,
    taken: &'a Segment<u64>,
}

impl Destination<'_> {
    fn put(&self, bin: usize, chunk: &[u16]) -> Result<(), Error> {
        let rank = self.split.owner(bin);
        let place = self.taken.fetch_add(rank, 0, 1)?;
        let chunks = self.arrived.len() / CHUNK as u64;
        if place >= chunks {
            return Err(Error::Capacity { rank, chunks });
        }
        Ok(self
            .arrived
            .put_implicit(rank, place * CHUNK as u64, chunk)?)
    }
}

#[cfg(test)]
mod tests {
    use samite::{Fabric, Identity, PeerId};
    use samite_testkit::{Failed, Who, full_name, matches_or_fail, say, units};

    use super::*;
    use crate::Class;
    use crate::is::Sequential;
    use crate::is::split::STRIDE;

    fn alone() -> Fabric {
        Fabric::alone(Identity::by_hand("is"), Default::default()).unwrap()
    }

    #[test]
    fn a_pass_ranks_as_the_sequential_one() {
        let (fabric, problem) = (alone(), Problem::new(Class::S));
        let pgas = Pgas::new(&fabric).unwrap();
        let mut sequential = Sequential::new(problem);
        let mut ranking = Ranking::new(&pgas, problem).unwrap();
        for pass in [1, 1, 2, 3] {
            sequential.rank(pass);
            let (next, right) = ranking.pass(pass).unwrap();
            ranking = next;
            assert_eq!(right, FOLLOWED as u64);
            assert_eq!(ranking.keys, sequential.keys());
            for value in 0..problem.values() {
                assert_eq!(ranking.ranks.of_key(value), Some(sequential.smaller(value)));
            }
            assert!(ranking.is_sorted().unwrap());
        }
    }

    #[test]
    fn a_wrong_key_is_noticed() {
        let (fabric, problem) = (alone(), Problem::new(Class::S));
        let pgas = Pgas::new(&fabric).unwrap();
        let mut ranking = Ranking::new(&pgas, problem).unwrap();
        // The middle one of the followed keys: all ranks above its new value change.
        ranking.keys[problem.followed()[2] as usize] = 0;
        let (mut ranking, right) = ranking.pass(1).unwrap();
        assert!(right < FOLLOWED as u64);
        assert!(ranking.is_sorted().unwrap());
        // A key that changes in transit.
        ranking.keys[1000] ^= 1;
        assert!(!ranking.is_sorted().unwrap());
    }

    #[test]
    fn keys_that_hide_from_the_sample_are_an_error() {
        let name = full_name(
            module_path!(),
            "keys_that_hide_from_the_sample_are_an_error",
        );
        let body = |fabric: &Fabric, _: &[PeerId]| {
            let pgas = Pgas::new(fabric)?;
            let problem = Problem::new(Class::A);
            let mut ranking = Ranking::new(&pgas, problem).map_err(Failed::new)?;
            let last = problem.values() - 1;
            for (at, key) in ranking.keys.iter_mut().enumerate() {
                // One half of the sample represents all the others.
                *key = if at % (2 * STRIDE) == 0 { 0 } else { last };
            }
            // The memory of the other unit may be gone by the time that this one accesses it.
            let refused = ranking.pass(1).map(drop);
            if let Err(Error::Capacity { rank: 1, .. }) = refused {
                say("no room");
                return Ok(());
            }
            matches_or_fail!(refused, Err(Error::Pgas(_)));
            Ok(())
        };
        units(2).orchestrate(&name, body, |cluster| {
            cluster.all_end();
            let mut lines = (0..2).flat_map(|rank| cluster.lines(Who::Unit(rank)));
            assert!(lines.any(|line| line == "@say no room"));
        });
    }
}

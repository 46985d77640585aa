//! Memory of a team: the same number of elements at every member, reached by rank and index.

mod atomics;
mod onesided;
mod signal;
mod strided;

use crate::pointer::{Flags, Origin};
use crate::{Elem, Error, GlobalPtr, Result, Team, Unit};
use samite_fabric::{Remote, SegmentKey};
use std::marker::PhantomData;

pub use onesided::Fetch;
pub use signal::{Signal, SignalOp, Wanted};
pub use strided::Strided;

/// The phase in which everybody may put, get and use atomics, and nobody has a reference to the memory.
#[derive(Debug)]
pub enum Shared {}

/// A collective allocation: `len` elements of `T` at each member of a team.
#[derive(Debug)]
pub struct Segment<'f, T, P = Shared> {
    team: Team<'f>,
    own: samite_fabric::Segment<'f>,
    /// By rank.
    remotes: Vec<Remote<'f>>,
    /// Elements, by rank.
    counts: Vec<u64>,
    origin: Origin,
    kind: PhantomData<(fn() -> T, P)>,
}

impl<'f> Team<'f> {
    /// Allocates `count` zeroed elements at every member. Collective, with the same `count`; every member
    /// can then compute a pointer to every element. Each part begins at a multiple of 128 bytes, is touched
    /// first by its owner, lies on huge pages where it is large and the kernel has them, and counts
    /// against the budget.
    ///
    /// # Errors
    /// The budget of a member, at all members. [`Error::Mismatch`] when the counts differ.
    pub fn allocate<T: Elem>(&self, count: u64) -> Result<Segment<'f, T>> {
        let bytes = padded(crate::bytes_for::<T>(count)?);
        let number = self.agree_on_number()?;
        let own = self.fabric().allocate_as(number, bytes);
        let segment = self.assemble_segment(own, count, Origin::Collective)?;
        let differs = segment.counts.iter().position(|theirs| *theirs != count);
        match differs {
            None => Ok(segment),
            Some(rank) => Err(Error::Mismatch {
                unit: self.unit(rank as u32)?,
                what: "elements of an allocation",
                theirs: segment.counts[rank],
                ours: count,
            }),
        }
    }

    /// Makes the members' own memory a segment. Collective; the lengths may differ. The elements are kept
    /// as they are; they come back with [`Segment::read_local`].
    pub fn register<T: Elem>(&self, elements: Vec<T>) -> Result<Segment<'f, T>> {
        let number = self.agree_on_number()?;
        let mut bytes = crate::bytes_of(&elements).to_vec();
        bytes.resize(padded(bytes.len() as u64) as usize, 0);
        let own = self.fabric().register_as(number, bytes);
        self.assemble_segment(own, elements.len() as u64, Origin::Registered)
    }

    /// A number of a segment that is free at all members.
    fn agree_on_number(&self) -> Result<u32> {
        let mine = self.fabric().free_segments();
        let mut all = vec![0; mine.len() * self.size() as usize];
        self.all_gather(&mine[..], &mut all[..])?;
        let both = |word: usize| {
            all.chunks(mine.len())
                .fold(u64::MAX, |acc, of| acc & of[word])
        };
        let free = (0..mine.len()).map(both).enumerate();
        let first = free
            .filter(|(_, bits)| *bits != 0)
            .map(|(word, bits)| (word as u32, bits));
        let (word, bits) = first
            .min_by_key(|(word, _)| *word)
            .ok_or(Error::NoSegment)?;
        Ok(word * 64 + bits.trailing_zeros())
    }

    /// Tells the others of this unit's part, or that it has none, and learns of theirs.
    fn assemble_segment<T: Elem>(
        &self,
        own: samite_fabric::Result<samite_fabric::Segment<'f>>,
        count: u64,
        origin: Origin,
    ) -> Result<Segment<'f, T>> {
        const NONE: [u8; KEY] = [0xff; KEY];
        let mine = own.as_ref().map_or(NONE, |own| {
            let mut told = NONE;
            told[..24].copy_from_slice(&own.key().to_bytes());
            told[24..].copy_from_slice(&count.to_le_bytes());
            told
        });
        let mut told = vec![0; KEY * self.size() as usize];
        self.all_gather(&mine[..], &mut told[..])?;
        let own = own?;
        let (mut remotes, mut counts) = (Vec::new(), Vec::new());
        for (rank, told) in told.as_chunks::<KEY>().0.iter().enumerate() {
            let (Some(key), Some(count)) = (told.first_chunk(), told.last_chunk()) else {
                continue;
            };
            if *told == NONE {
                return Err(Error::NoMemory(self.unit(rank as u32)?));
            }
            remotes.push(self.fabric().attach(SegmentKey::from_bytes(key))?);
            counts.push(u64::from_le_bytes(*count));
        }
        for (remote, unit) in remotes.iter().zip(self.group()) {
            let number = remote.key().segment as u16;
            self.0.job.remember(unit, number, Some(remote.clone()));
        }
        // Nobody goes on, and perhaps frees its part again, before everybody is attached.
        self.barrier()?;
        Ok(Segment {
            team: self.clone(),
            own,
            remotes,
            counts,
            origin,
            kind: PhantomData,
        })
    }
}

impl<'f, T: Elem, P> Segment<'f, T, P> {
    /// Whose memory it is.
    pub fn team(&self) -> &Team<'f> {
        &self.team
    }

    /// Elements of this unit's part.
    pub fn len(&self) -> u64 {
        self.counts[self.team.rank() as usize]
    }

    /// Whether this unit's part has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of the part of a member.
    pub fn len_of(&self, rank: u32) -> Result<u64> {
        self.remote(rank)?;
        Ok(self.counts[rank as usize])
    }

    /// Names an element. Local.
    pub fn pointer(&self, rank: u32, index: u64) -> Result<GlobalPtr<T>> {
        let (key, unit) = (self.remote(rank)?.key(), self.team.unit(rank)?);
        let len = self.counts[rank as usize];
        if index > len {
            return Err(out_of_range(unit, index, 0, len));
        }
        let flags = Flags::of(self.origin, key.generation);
        let offset = index * size_of::<T>() as u64;
        Ok(GlobalPtr::new(unit, key.segment as u16, flags, offset))
    }

    /// Frees it. Collective: when it returns nobody uses it any more. Dropping it frees this unit's part
    /// without asking the others.
    pub fn free(self) -> Result<()> {
        self.team.barrier()
    }

    /// A member's part, for an access to `count` elements from `index` on.
    #[inline(always)]
    fn part_of(&self, rank: u32, index: u64, count: usize) -> Result<&Remote<'f>> {
        let remote = self.remote(rank)?;
        // The fabric checks bytes. That is exact, but for elements whose part is padded.
        if size_of::<T>() < 4 {
            let len = self.counts[rank as usize];
            let end = index.saturating_add(count as u64);
            if end > len {
                return Err(out_of_range(
                    self.team.unit(rank)?,
                    index,
                    count as u64,
                    len,
                ));
            }
        }
        Ok(remote)
    }

    /// Bytes to an element; a sum that no segment is long enough for when it does not fit.
    #[inline(always)]
    fn offset(&self, index: u64) -> u64 {
        index.saturating_mul(size_of::<T>() as u64)
    }

    #[inline(always)]
    fn remote(&self, rank: u32) -> Result<&Remote<'f>> {
        self.remotes.get(rank as usize).ok_or(Error::NoSuchRank {
            rank,
            size: self.remotes.len() as u32,
        })
    }
}

/// Bytes that a member tells of its part: the key and the count.
const KEY: usize = 32;

/// Atomics on small elements exchange the word that they lie in: parts end with a whole one.
fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(4)
}

#[cold]
fn out_of_range(unit: Unit, first: u64, count: u64, len: u64) -> Error {
    Error::OutOfRange {
        unit,
        first,
        end: first.saturating_add(count),
        len,
    }
}

//! Memory of a team: elements at every member, accessed by rank and index.

mod aggregate;
mod atomics;
mod in_phase;
mod onesided;
mod part;
mod phase;
mod signal;
mod strided;
mod unturned;
mod watch;

use crate::job::Own;
use crate::pointer::{Flags, Origin};
use crate::{Elem, Error, GlobalPtr, Result, Team, Unit};
use samite_fabric::{Remote, SegmentKey};
use samite_mem::SharedBytes;
use std::marker::PhantomData;

pub use aggregate::{Location, Updates};
pub use onesided::Fetch;
pub use part::Part;
pub(crate) use phase::Open;
pub use phase::{Local, Phase, ReadOnly, Shared};
pub use signal::{Signal, SignalOp, Wanted};
pub use strided::Strided;
pub use unturned::Unturned;

/// A collective allocation: elements of `T` at each member of a team, in a phase
/// ([`phase`](crate::Shared)).
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::{Local, ReadOnly, Segment, Shared};
/// let cells: Segment<f64, Shared> = world.allocate(100)?; // at each member
/// let right = (world.rank() + 1) % world.size();
/// cells.put(right, 0, &[1.0, 2.0])?;
/// let mut own: Segment<f64, Local> = cells.into_local()?; // all members; a barrier, too
/// own.as_mut_slice()[2] = 3.0;
/// let all: Segment<f64, ReadOnly> = own.into_read_only()?;
/// if let Some(theirs) = all.slice(right)? { // in place, if it is on this node
///     assert_eq!(theirs[..3], [1.0, 2.0, 3.0]);
/// }
/// all.free()?;
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Debug)]
pub struct Segment<T, P: Phase = Shared> {
    parts: Parts,
    state: P::State,
    kind: PhantomData<fn() -> T>,
}

/// The state of a segment that is the same in every phase.
#[derive(Debug)]
pub struct Parts {
    team: Team,
    /// The number of elements, by rank.
    counts: Vec<u64>,
    /// The keys of the parts, by rank.
    keys: Vec<SegmentKey>,
    origin: Origin,
    /// Whether the checking mode checks its accesses.
    checked: bool,
}

impl Team {
    /// Allocates `count` zeroed elements at every member. Collective, with the same `count`; every
    /// member can then compute a pointer to every element. Each part begins at a multiple of 128
    /// bytes, is first touched by its owner, and counts against the budget. It lies on huge pages
    /// if it is large and the kernel has them.
    ///
    /// # Errors
    /// The budget of any member, at all members. [`Error::Mismatch`] if the counts, or the sizes of
    /// an element, differ.
    pub fn allocate<T: Elem>(&self, count: u64) -> Result<Segment<T>> {
        let _turn = self.0.long_turn()?;
        let bytes = crate::bytes_for::<T>(count).map(padded);
        let bytes = bytes.map_err(|error| self.0.refuse_next(error))?;
        let segment = self.until_free(|number| {
            let own = self.fabric().reserve(number);
            let own = own.map(|number| number.allocate(bytes).map(Own::Phased));
            self.assemble_segment(own, count, Origin::Collective)
        })?;
        let counts = &segment.parts.counts;
        let differs = counts.iter().position(|theirs| *theirs != count);
        match differs {
            None => Ok(segment),
            Some(rank) => Err(Error::Mismatch {
                unit: self.0.job.named(self.unit(rank as u32)?),
                what: "elements of an allocation",
                theirs: counts[rank],
                ours: count,
            }),
        }
    }

    /// Makes the members' own memory a segment. Collective; the lengths may differ. The elements
    /// are neither moved nor changed, except that a vector of small elements may have to grow by a
    /// few bytes to whole words. [`Segment::read_local`] copies them back.
    pub fn register<T: Elem>(&self, elements: Vec<T>) -> Result<Segment<T>> {
        let _turn = self.0.long_turn()?;
        let count = elements.len() as u64;
        // Registering consumes the elements, so all members reserve the number first.
        let number = self.until_free(|number| {
            let own = self.fabric().reserve(number);
            let mut all = vec![0; self.size() as usize];
            self.all_gather(&[u8::from(own.is_some())][..], &mut all[..])?;
            Ok(own.filter(|_| all.iter().all(|has_it| *has_it == 1)))
        })?;
        let own = number.register(whole_words(elements));
        let own = Some(own.map(Own::Registered));
        let segment = self.assemble_segment(own, count, Origin::Registered)?;
        segment.ok_or(Error::NoSegment)
    }

    /// Agrees on numbers until all members could `take` the one that they agreed on. Collective.
    fn until_free<R>(&self, mut take: impl FnMut(u32) -> Result<Option<R>>) -> Result<R> {
        let mut attempt = 0;
        loop {
            let number = self.agree_on_number(attempt)?;
            if let Some(taken) = take(number)? {
                return Ok(taken);
            }
            attempt += 1;
        }
    }

    /// Agrees on a segment number that is free at all members. The same exchange frees parts that
    /// all members have dropped. Threads of a unit may agree on one number in several teams: one of
    /// them then finds it in use, and its team tries again.
    fn agree_on_number(&self, attempt: u64) -> Result<u32> {
        let free = self.fabric().free_segments();
        let words = free.len();
        let exchange = |left: &[u64]| {
            let mine = [&free[..], left].concat();
            let mut all = vec![0; mine.len() * self.size() as usize];
            self.all_gather(&mine[..], &mut all[..])?;
            Ok(all)
        };
        let has_left = |all: &[u64], peer, number: u32| {
            let rank = self.peers().iter().position(|member| *member == peer);
            rank.is_some_and(|rank| {
                let left = all[rank * 2 * words + words + number as usize / 64];
                left >> (number % 64) & 1 == 1
            })
        };
        let all = self.0.job.left.exchange(words, exchange, has_left)?;
        let both = |word: usize| {
            all.chunks(2 * words)
                .fold(u64::MAX, |acc, of| acc & of[word])
        };
        let free = (0..words).map(both).enumerate();
        // All teams begin with the lowest number. After that they look in different places.
        let mixed = (self.id().0 + 1)
            .wrapping_mul(attempt)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let start = (mixed >> 32) as usize % words.max(1);
        let (word, bits) = free
            .filter(|(_, bits)| *bits != 0)
            .min_by_key(|(word, _)| (word + words - start) % words)
            .ok_or(Error::NoSegment)?;
        Ok(word as u32 * 64 + bits.trailing_zeros())
    }

    /// Sends this unit's part, or that it has none, to the others and receives theirs. `None`: at
    /// some members the number was no longer free (`own` is `None` there).
    fn assemble_segment<T: Elem>(
        &self,
        own: Option<samite_fabric::Result<Own>>,
        count: u64,
        origin: Origin,
    ) -> Result<Option<Segment<T>>> {
        const NONE: [u8; KEY] = [0xff; KEY];
        const TAKEN: [u8; KEY] = [0xfe; KEY];
        let element = size_of::<T>() as u64;
        let told_of = |own: &samite_fabric::Result<Own>| {
            own.as_ref().map_or(NONE, |own| {
                let mut told = NONE;
                told[..24].copy_from_slice(&own.key().to_bytes());
                told[24..32].copy_from_slice(&count.to_le_bytes());
                told[32..].copy_from_slice(&element.to_le_bytes());
                told
            })
        };
        let mine = own.as_ref().map_or(TAKEN, told_of);
        let mut told = vec![0; KEY * self.size() as usize];
        self.all_gather(&mine[..], &mut told[..])?;
        let all = || (0..).zip(told.as_chunks::<KEY>().0);
        let Some(own) = own.filter(|_| all().all(|(_, told)| *told != TAKEN)) else {
            return Ok(None);
        };
        let own = own?;
        if let Some((rank, _)) = all().find(|(_, told)| **told == NONE) {
            return Err(Error::NoMemory(self.0.job.named(self.unit(rank)?)));
        }
        let word = |told: &[u8; KEY], at: usize| {
            let word = told[at..].first_chunk().copied();
            word.map_or(0, u64::from_le_bytes)
        };
        // If any two differ, each member differs from at least one other.
        if let Some((rank, told)) = all().find(|(_, told)| word(told, 32) != element) {
            return Err(Error::Mismatch {
                unit: self.0.job.named(self.unit(rank)?),
                what: "bytes of an element",
                theirs: word(told, 32),
                ours: element,
            });
        }
        let (mut keys, mut counts) = (Vec::new(), Vec::new());
        for ((_, told), peer) in all().zip(self.peers()) {
            let key = told.first_chunk().map(SegmentKey::from_bytes);
            let count = word(told, 24);
            let bytes = count.checked_mul(element);
            let holds = |key: &SegmentKey| {
                key.peer == *peer && bytes.is_some_and(|bytes| bytes <= key.bytes)
            };
            let Some(key) = key.filter(holds) else {
                let (what, value) = ("the number of elements of a part", count);
                let corrupt = samite_fabric::Error::PeerCorrupt {
                    peer: (*peer).into(),
                    what: samite_mem::Corrupt { what, value },
                };
                let corrupt = self.fabric().named(corrupt);
                return Err(self.0.refuse_next(corrupt.into()));
            };
            keys.push(key);
            counts.push(count);
        }
        let parts = Parts {
            team: self.clone(),
            counts,
            keys,
            origin,
            checked: self.0.job.check.is_some(),
        };
        Segment::share(parts, own).map(Some)
    }
}

impl<T: Elem, P: Phase> Segment<T, P> {
    /// Returns the team that owns the memory.
    pub fn team(&self) -> &Team {
        &self.parts.team
    }

    /// Returns the number of elements of this unit's part.
    pub fn len(&self) -> u64 {
        self.parts.counts[self.team().rank() as usize]
    }

    /// Returns true if this unit's part has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of elements of a member's part.
    pub fn len_of(&self, rank: u32) -> Result<u64> {
        self.parts.len_of(rank)
    }

    /// Returns a pointer to an element. Local.
    pub fn pointer(&self, rank: u32, index: u64) -> Result<GlobalPtr<T>> {
        let (len, unit) = (self.len_of(rank)?, self.team().unit(rank)?);
        let key = self.parts.keys[rank as usize];
        if index > len {
            return Err(out_of_range(self.team(), unit, index, 0, len));
        }
        let flags = Flags::of(self.parts.origin, key.generation);
        let offset = index * size_of::<T>() as u64;
        Ok(GlobalPtr::new(unit, key.segment as u16, flags, offset))
    }

    /// Frees the segment. Collective: when it returns, no member uses it any more. A part that is
    /// only dropped stays for the others until they have dropped theirs or have ended. After an
    /// error, including [`Error::TeamInUse`], the segment is only dropped.
    pub fn free(self) -> Result<()> {
        self.team().barrier()?;
        self.release();
        Ok(())
    }

    /// Frees this unit's part. All members have synchronised since they last used it.
    pub(crate) fn release(self) {
        P::release(&self.state);
    }
}

impl Parts {
    fn len_of(&self, rank: u32) -> Result<u64> {
        let count = self.counts.get(rank as usize);
        count.copied().ok_or(Error::NoSuchRank {
            rank,
            size: self.team.size(),
        })
    }

    /// Forgets the remotes of pointers into the parts, because each counts as a user of the memory.
    fn forget_remotes(&self) {
        for (key, unit) in self.keys.iter().zip(self.team.group()) {
            self.team.0.job.forget(unit, key.segment as u16);
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.forget_remotes();
    }
}

impl<T: Elem> Segment<T, Shared> {
    /// Returns the elements of a member, if they are mapped. Debug builds detect an access to
    /// memory that its owner freed too early; others access what was there.
    #[inline(always)]
    fn window(&self, rank: u32) -> Option<&SharedBytes> {
        let rank = rank as usize;
        if cfg!(debug_assertions) && !self.state.remotes.get(rank)?.is_offered() {
            return None;
        }
        self.state.windows.get(rank)
    }

    #[inline(always)]
    fn remote(&self, rank: u32) -> Result<&Remote> {
        let remote = self.state.remotes.get(rank as usize);
        remote.ok_or_else(|| self.no_such_rank(rank))
    }

    #[cold]
    fn no_such_rank(&self, rank: u32) -> Error {
        Error::NoSuchRank {
            rank,
            size: self.team().size(),
        }
    }

    /// Returns a member's part, for an access to `count` elements from `index` on.
    #[inline(always)]
    fn part_of(&self, rank: u32, index: u64, count: usize) -> Result<&Remote> {
        let remote = self.remote(rank)?;
        // The fabric checks bytes, which is exact except for elements whose part is padded.
        if size_of::<T>() < 4 {
            self.check_range(rank, index, count as u64)?;
        }
        Ok(remote)
    }

    /// Checks that a member's part has these elements.
    #[inline(always)]
    fn check_range(&self, rank: u32, index: u64, count: u64) -> Result<()> {
        let len = self.len_of(rank)?;
        if index.saturating_add(count) > len {
            let unit = self.team().unit(rank)?;
            return Err(out_of_range(self.team(), unit, index, count, len));
        }
        Ok(())
    }

    /// Returns the offset of an element in bytes; saturates beyond the length of any segment.
    #[inline(always)]
    fn offset(&self, index: u64) -> u64 {
        index.saturating_mul(size_of::<T>() as u64)
    }
}

/// The number of bytes that a member sends about its part: the key, the count, the size of an
/// element.
const KEY: usize = 40;

/// Extends the elements so that they end with a whole word.
pub(crate) fn whole_words<T: Elem>(mut elements: Vec<T>) -> Vec<T> {
    let bytes = size_of_val(elements.as_slice()) as u64;
    if let Some(more) = (padded(bytes) - bytes).checked_div(size_of::<T>() as u64) {
        elements.resize(elements.len() + more as usize, T::zeroed());
    }
    elements
}

/// Rounds up to whole words, because atomics on small elements exchange the word that contains
/// them.
fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(4)
}

#[cold]
fn out_of_range(team: &Team, unit: Unit, first: u64, count: u64, len: u64) -> Error {
    Error::OutOfRange {
        unit: team.0.job.named(unit),
        first,
        end: first.saturating_add(count),
        len,
    }
}

//! Segments that their owner sometimes has for itself: a gate stands before them.
//!
//! ```text
//!   open      attached by anybody: put, get, atomics
//!   reading   attached by anybody: get, and `&[T]` where it is mapped
//!   closed    nobody is attached; the owner has `&mut [T]`
//!   lent      one other process, where it is mapped, has `&mut [T]` ([`Fabric::borrow`])
//! ```
//! The gate turns only when nobody is attached: those who use a segment agree on when they detach (drop
//! their [`crate::Remote`]s), and then the owner turns it. If somebody did not, that is
//! [`Error::InUse`], and nothing has changed. Over messages the owner itself answers, so there it is the
//! engine of the owner that lets nobody in.
//!
//! A gated segment that is dropped while others are still attached keeps its memory and its number until
//! they have left: who is inside needs no check of each access. Who dies inside never leaves, and then the
//! memory comes back with the end of this process.

use crate::engine::{Access, Offered};
use crate::fabric::Fabric;
use crate::hold::Hold;
use crate::layout::Kind;
use crate::{Error, Result, SegmentKey};
use bytemuck::Pod;
use samite_mem::copy::aside::copy_aside;
use samite_mem::gate::{Exclusive, GatedBlock, Lent, Mode};
use samite_mem::{SharedBytes, Span};

/// A segment of this process behind a gate, open or reading; withdrawn when dropped, and freed when nobody is
/// inside any more.
#[derive(Debug)]
pub struct Gated<'f> {
    fabric: &'f Fabric,
    key: SegmentKey,
    mode: Mode,
    /// `None` only while the gate turns.
    block: Option<GatedBlock>,
}

/// A gated segment to come, whose memory is allocated part by part; given back when dropped.
#[derive(Debug)]
pub struct Growing<'f> {
    fabric: &'f Fabric,
    bytes: u64,
    memory: samite_mem::Growing,
}

/// A gated segment that this process has for itself.
#[derive(Debug)]
pub struct Owned<'f> {
    exclusive: Exclusive,
    gated: Gated<'f>,
}

/// A lent segment of a peer that this process has for itself; its owner gets it back when it is dropped.
#[derive(Debug)]
pub struct Borrowed {
    lent: Lent,
    _hold: Hold,
}

impl Borrowed {
    /// The memory.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        self.lent.as_slice()
    }

    /// The memory, to be changed.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        self.lent.as_mut_slice()
    }

    /// Puts `from` at byte `offset`, large blocks past the caches ([`copy_aside`]): they are for somebody else.
    ///
    /// # Panics
    /// The memory ends before them.
    pub fn put(&mut self, offset: u64, from: &[u8]) {
        let to = &mut self.as_mut_slice::<u8>()[offset as usize..];
        copy_aside(&mut to[..from.len()], from);
    }
}

/// What is left of a gated segment that was dropped while others were inside.
#[derive(Debug)]
pub(crate) struct Left {
    segment: u32,
    block: GatedBlock,
    mode: Mode,
}

impl Fabric {
    /// Frees the gated segments whose last user has left.
    pub(crate) fn sweep(&self) {
        let left = std::mem::take(&mut self.core.borrow_mut().engine.limbo);
        for left in left {
            self.leave(left);
        }
    }

    fn leave(&self, left: Left) {
        let Left {
            segment,
            block,
            mode,
        } = left;
        match block.close(mode) {
            Ok(free) => {
                self.withdraw(segment);
                drop(free);
            }
            Err((block, _)) => self.core.borrow_mut().engine.limbo.push(Left {
                segment,
                block,
                mode,
            }),
        }
    }

    /// Has a segment that its owner lends ([`Gated::lend`]). `None` where it is not mapped here. Local.
    ///
    /// # Errors
    /// A key of another use of the number; a lost owner; [`Error::WrongPhase`] when it is not lent, or
    /// somebody else has it.
    pub fn borrow(&self, key: SegmentKey) -> Result<Option<Borrowed>> {
        let core = self.core.borrow();
        let own = key.peer == self.me();
        let mapped = own || self.shares_node && core.engine.caps.map;
        if !mapped {
            return Ok(None);
        }
        self.lives(&core.engine, key)?;
        let layout = &self.node.layout;
        let entry = layout.entry(key.peer, key.segment);
        let entry = entry.filter(|entry| {
            let same = (entry.generation, entry.bytes) == (key.generation, key.bytes);
            same && entry.gated
        });
        let (peer, segment) = (key.peer, key.segment);
        let entry = entry.ok_or(Error::NoSuchSegment { peer, segment })?;
        let span = Span {
            offset: entry.place,
            bytes: entry.bytes,
        };
        let gate = layout.gate(peer, segment, key.generation);
        let lent = gate.borrow(layout.arena(), span);
        let lent = lent.map_err(Error::of_memory_of(peer))?;
        let lent = lent.ok_or(Error::WrongPhase { peer, segment })?;
        let hold = self.node.holds.hold(peer);
        Ok(Some(Borrowed { lent, _hold: hold }))
    }

    /// Allocates a zeroed segment behind an open gate. `segment`: a number that is not in use. Local.
    pub fn allocate_gated(&self, segment: u32, bytes: u64) -> Result<Gated<'_>> {
        self.grow_gated(bytes)?.gate(segment)
    }

    /// As [`Fabric::allocate_gated`], part by part.
    pub fn grow_gated(&self, bytes: u64) -> Result<Growing<'_>> {
        self.sweep();
        Ok(Growing {
            fabric: self,
            bytes,
            memory: self.node.heap.grow(bytes)?,
        })
    }

    fn next_gate(&self, segment: u32) -> samite_mem::gate::Gate {
        let layout = &self.node.layout;
        let generation = layout.next_generation(self.me(), segment);
        layout.gate(self.me(), segment, generation)
    }

    /// Offers a block behind a new gate.
    fn offer_gated(&self, segment: u32, block: GatedBlock, bytes: u64) -> Result<Gated<'_>> {
        let place = block.span().offset;
        let generation = self.offer(segment, place, Kind::Gated, Access::Withdrawn(bytes))?;
        let gated = Gated {
            fabric: self,
            key: self.own_key(segment, generation, bytes),
            mode: Mode::Open,
            block: Some(block),
        };
        gated.let_in()?;
        Ok(gated)
    }
}

impl<'f> Growing<'f> {
    /// Allocates the pages of the next part; whether all are there. A part takes some ten milliseconds.
    pub fn step(&mut self) -> Result<bool> {
        Ok(self.memory.step()?)
    }

    /// The segment, behind an open gate, with all of its memory. `segment`: a number that is not in use.
    pub fn gate(self, segment: u32) -> Result<Gated<'f>> {
        let fabric = self.fabric;
        if !fabric.core.borrow().engine.is_free(segment) {
            return Err(crate::segment::no_number());
        }
        let block = GatedBlock::new(self.memory.block()?, fabric.next_gate(segment));
        fabric.offer_gated(segment, block, self.bytes)
    }
}

impl<'f> Gated<'f> {
    /// What names it to others.
    pub fn key(&self) -> SegmentKey {
        self.key
    }

    /// Its bytes, while the gate is open. Who has them is inside.
    pub fn bytes(&self) -> Result<SharedBytes> {
        let (arena, block) = (self.fabric.node.layout.arena(), self.block.as_ref());
        let block = block.ok_or_else(|| self.wrong_phase())?;
        let bytes = block.gate().share(arena, block.span())?;
        bytes.ok_or_else(|| self.wrong_phase())
    }

    fn wrong_phase(&self) -> Error {
        Error::WrongPhase {
            peer: self.key.peer,
            segment: self.key.segment,
        }
    }

    /// Lets the engine answer those who reach it by messages.
    fn let_in(&self) -> Result<()> {
        let (arena, block) = (self.fabric.node.layout.arena(), self.block.as_ref());
        let block = block.ok_or_else(|| self.wrong_phase())?;
        let reading = block.gate().read(arena, block.span())?.map(Access::Reading);
        let access = match reading {
            Some(reading) => reading,
            None => Access::Shared(self.bytes()?),
        };
        self.set_access(access);
        Ok(())
    }

    fn set_access(&self, bytes: Access) {
        let generation = self.key.generation;
        let offered = &mut self.fabric.core.borrow_mut().engine.offered;
        offered.insert(self.key.segment, Offered { generation, bytes });
    }

    /// Takes it out of the directory and out of the hands of the engine: nobody attaches from now on.
    /// Those who are attached still are. The first step of a turn.
    pub fn shut(&self) {
        self.set_access(Access::Withdrawn(self.key.bytes));
        let layout = &self.fabric.node.layout;
        layout.clear_entry(self.key.peer, self.key.segment);
    }

    /// Has it for this process alone. After [`Gated::shut`], and when everybody has detached.
    ///
    /// # Errors
    /// [`Error::InUse`], with the segment shut as before.
    pub fn own(mut self) -> Result<Owned<'f>, Box<(Gated<'f>, Error)>> {
        let Some(block) = self.block.take() else {
            let error = self.wrong_phase();
            return Err(Box::new((self, error)));
        };
        match block.close(self.mode) {
            Ok(exclusive) => Ok(Owned {
                exclusive,
                gated: self,
            }),
            Err((block, users)) => {
                self.block = Some(block);
                let error = self.in_use(users);
                Err(Box::new((self, error)))
            }
        }
    }

    /// From open (or lent) to reading or back, without having it in between. Conditions and errors as
    /// [`Gated::own`].
    pub fn turn(&mut self, reading: bool) -> Result<()> {
        let to = if reading { Mode::Reading } else { Mode::Open };
        if let Some(block) = &self.block {
            block
                .turn(self.mode, to)
                .map_err(|users| self.in_use(users))?;
        }
        self.mode = to;
        self.offer_again()
    }

    /// Lends it to whoever is the first to [`Fabric::borrow`] it. After it was open and nobody is attached.
    /// [`Gated::turn`] takes it back when the borrower has dropped it.
    pub fn lend(&mut self) -> Result<()> {
        // The engine itself is attached for those who come by messages.
        self.set_access(Access::Withdrawn(self.key.bytes));
        if let Some(block) = &self.block {
            block
                .turn(self.mode, Mode::Lent)
                .map_err(|users| self.in_use(users))?;
        }
        self.mode = Mode::Lent;
        Ok(())
    }

    fn in_use(&self, users: u64) -> Error {
        Error::InUse {
            segment: self.key.segment,
            users,
        }
    }

    fn offer_again(&self) -> Result<()> {
        self.let_in()?;
        let layout = &self.fabric.node.layout;
        layout.offer_again(self.key.peer, self.key.segment);
        Ok(())
    }
}

impl Drop for Gated<'_> {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            return self.fabric.withdraw(self.key.segment);
        };
        self.shut();
        self.fabric.leave(Left {
            segment: self.key.segment,
            block,
            mode: self.mode,
        });
    }
}

impl<'f> Owned<'f> {
    /// What names it to others.
    pub fn key(&self) -> SegmentKey {
        self.gated.key
    }

    /// The memory.
    pub fn memory(&self) -> &Exclusive {
        &self.exclusive
    }

    /// The memory, to be changed.
    pub fn memory_mut(&mut self) -> &mut Exclusive {
        &mut self.exclusive
    }

    /// A segment of another generation in the same memory, open, with the bytes as they are: who has a key of
    /// the last one does not get in.
    pub fn renew(self) -> Result<Gated<'f>> {
        let Owned { exclusive, gated } = self;
        let (fabric, key) = (gated.fabric, gated.key);
        // Without its block it only takes itself out of the directory.
        drop(gated);
        let block = exclusive.renew(fabric.next_gate(key.segment));
        fabric.offer_gated(key.segment, block, key.bytes)
    }

    /// Lets others in again, to write or only to read.
    pub fn give(self, reading: bool) -> Result<Gated<'f>> {
        let mode = if reading { Mode::Reading } else { Mode::Open };
        let mut gated = self.gated;
        gated.block = Some(self.exclusive.open(mode));
        gated.mode = mode;
        gated.offer_again()?;
        Ok(gated)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Fabric, Identity};

    #[test]
    fn a_segment_is_lent_to_one() {
        let fabric = Fabric::alone(Identity::by_hand("lent"), Config::default()).unwrap();
        let mut gated = fabric.allocate_gated(5, 4096).unwrap();
        let key = gated.key();
        assert!(fabric.borrow(key).is_err(), "it is not lent yet");
        gated.lend().unwrap();
        let mut borrowed = fabric.borrow(key).unwrap().expect("it is mapped");
        assert!(fabric.borrow(key).is_err(), "one has it");
        assert!(fabric.attach(key).is_err());
        borrowed.as_mut_slice::<u8>()[4095] = 3;
        assert!(gated.turn(true).is_err(), "the borrower still has it");
        drop(borrowed);
        gated.turn(true).unwrap();
        let remote = fabric.attach(key).unwrap();
        assert_eq!(remote.readable().unwrap().as_slice::<u8>()[4095], 3);
        assert!(fabric.borrow(key).is_err(), "it is read");
        gated.shut();
        assert!(gated.own().is_err(), "somebody reads it");
        drop(remote);
    }

    #[test]
    fn memory_is_used_again_under_another_key() {
        let fabric = Fabric::alone(Identity::by_hand("again"), Config::default()).unwrap();
        let gated = fabric.allocate_gated(5, 4096).unwrap();
        let (key, place) = (gated.key(), gated.bytes().unwrap().address());
        gated.bytes().unwrap().write(7, &[1]);
        gated.shut();
        let again = gated.own().unwrap().renew().unwrap();
        assert!(fabric.attach(key).is_err());
        assert_eq!(again.bytes().unwrap().address(), place);
        let mut found = [0];
        fabric
            .attach(again.key())
            .unwrap()
            .get(7, &mut found)
            .unwrap();
        assert_eq!(found, [1]);
    }

    #[test]
    fn memory_stays_while_somebody_is_inside() {
        let fabric = Fabric::alone(Identity::by_hand("inside"), Config::default()).unwrap();
        let is_free = || fabric.free_segments()[0] & 1 << 5 != 0;
        let first = fabric.allocate_gated(5, 4096).unwrap();
        let inside = fabric.attach(first.key()).unwrap();
        drop(first);
        assert!(!is_free(), "the number is used by who is inside");
        assert!(
            inside.put(0, &[7; 64]).is_err(),
            "it is not offered any more"
        );
        let window = inside.mapped().unwrap().clone();
        drop(inside);
        let next = fabric.allocate_gated(6, 4096).unwrap();
        assert!(window.try_write(0, &[7; 4096]));
        let mut found = [1; 4096];
        next.bytes().unwrap().read(0, &mut found);
        assert_eq!(
            found, [0; 4096],
            "memory that somebody may still write was given away"
        );
        assert!(!is_free());
        drop(window);
        assert!(is_free());
    }
}

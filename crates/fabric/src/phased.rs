//! Segments to which their owner sometimes has exclusive access: they are leased in a mode.
//!
//! ```text
//!   open      attached by anybody: put, get, atomics
//!   reading   attached by anybody: get, and `&[T]` where it is mapped
//!   closed    nobody is attached; the owner has `&mut [T]`
//!   exclusive one other process, where it is mapped, has `&mut [T]` ([`Fabric::borrow`])
//! ```
//! The borrower of an exclusive segment may itself let others read it, and take it back
//! ([`Borrowed::publish`]): they attach to it as to one that is reading, without the owner.
//!
//! The mode changes only when nobody is attached: the users of a segment agree on when they detach
//! (drop their [`crate::Remote`]s), and then the owner changes it. If a user did not, the result is
//! [`Error::InUse`], which names it, and nothing has changed. Over messages the owner itself
//! answers, so there the owner's engine keeps others out.
//!
//! A segment that is dropped while a process is still attached keeps its memory and its number
//! until the last one detaches: an access through a lease needs no check. The lease of a dying
//! process ends with it. Nobody tells the owner: it checks whenever it allocates, and before it
//! sleeps in a wait.

use crate::engine::{Access, Deferred, Offered};
use crate::fabric::{Core, Fabric};
use crate::node::segment_id;
use crate::route::{Reach, Route, not_now, wrong_phase};
use crate::segment::{Reserved, Segment};
use crate::{Error, PeerId, Result, SegmentKey};
use bytemuck::Pod;
use samite_mem::SharedBytes;
use samite_mem::copy::aside::copy_aside;
use samite_mem::lease::{self, ClosedBlock, ExclusiveLease, LeasedBlock, Mode};

/// A segment of this process, open, reading or exclusive; withdrawn when dropped, and freed when
/// nobody uses it any more.
#[derive(Debug)]
pub struct Phased {
    fabric: Fabric,
    key: SegmentKey,
    /// `None` only while the owner takes it.
    block: Option<LeasedBlock>,
}

/// A future phased segment, whose memory is allocated part by part; given back when dropped.
#[derive(Debug)]
pub struct Growing {
    fabric: Fabric,
    memory: samite_mem::Growing,
}

/// A phased segment to which this process has exclusive access.
#[derive(Debug)]
pub struct Owned {
    exclusive: ClosedBlock,
    phased: Phased,
}

/// A segment of a peer to which this process has exclusive access; returned to its owner when
/// dropped.
#[derive(Debug)]
pub struct Borrowed {
    lease: ExclusiveLease,
}

/// A segment of a peer that this process has borrowed and lets others read; returned to its owner
/// when dropped, and read on.
#[derive(Debug)]
pub struct Published {
    lease: lease::Published,
}

impl Published {
    /// Takes it back, if nobody is attached; otherwise returns itself. Local.
    pub fn retract(self) -> Result<Borrowed, Published> {
        let retracted = self.lease.retract();
        let retracted = retracted.map(|lease| Borrowed { lease });
        retracted.map_err(|(lease, _)| Published { lease })
    }
}

impl Borrowed {
    /// Lets others attach to it, to read. `None`, and it is given back, if its owner does not
    /// follow the protocol. Local.
    pub fn publish(self) -> Option<Published> {
        let lease = self.lease.publish()?;
        Some(Published { lease })
    }

    /// Returns the memory.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        self.lease.as_slice()
    }

    /// Returns the memory for writing.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        self.lease.as_mut_slice()
    }

    /// Copies `from` to byte `offset`, large blocks past the caches ([`copy_aside`]), since others
    /// will read them.
    ///
    /// # Panics
    /// `from` does not fit into the memory.
    pub fn put(&mut self, offset: u64, from: &[u8]) {
        let to = &mut self.as_mut_slice::<u8>()[offset as usize..];
        copy_aside(&mut to[..from.len()], from);
    }
}

impl Core {
    /// Frees the dropped segments whose last user has left. Other threads wait meanwhile, also for
    /// private memory to be freed: that such a segment is still in use when dropped is rare.
    pub(crate) fn sweep(&mut self) {
        for Deferred { segment, block } in std::mem::take(&mut self.engine.deferred) {
            match block.end() {
                Ok(()) => self.offer(segment, None),
                Err(block) => self.engine.deferred.push(Deferred { segment, block }),
            }
        }
    }
}

impl Fabric {
    /// Borrows a segment that its owner lends ([`Phased::lend`]). `None` if it is not mapped here.
    /// Local.
    ///
    /// # Errors
    /// A key of another generation; a lost owner; [`Error::WrongPhase`] if it is not exclusive, or
    /// another process has borrowed it.
    pub fn borrow(&self, key: SegmentKey) -> Result<Option<Borrowed>> {
        let core = self.0.lock()?;
        let Route { to, caps, .. } = core.engine.route(key.peer);
        let (Reach::Node(owner), true) = (to, caps.map) else {
            return Ok(None);
        };
        core.engine.lives(key)?;
        let borrow = || {
            let (entry, _) = core.engine.entry(owner, key)?;
            let id = segment_id(owner, key.segment);
            let lease = self.0.node.holder.borrow(&entry, key.generation, id);
            let lease = lease.map_err(Error::of_memory_of(key.peer))?;
            let lease = lease.filter(|lease| lease.as_slice::<u8>().len() as u64 == key.bytes);
            lease.ok_or_else(|| not_now(key, &entry))
        };
        match borrow() {
            Ok(lease) => Ok(Some(Borrowed { lease })),
            Err(error) => Err(core.engine.named(error)),
        }
    }

    /// Allocates a zeroed, open segment, whose mode can be changed. `segment`: a number that is not
    /// in use. Local.
    pub fn allocate_phased(&self, segment: u32, bytes: u64) -> Result<Phased> {
        self.grow_phased(bytes)?.publish(Some(segment))
    }

    /// As [`Fabric::allocate_phased`], part by part.
    pub fn grow_phased(&self, bytes: u64) -> Result<Growing> {
        self.0.with(Core::sweep);
        Ok(Growing {
            fabric: self.clone(),
            memory: self.0.node.heap.grow(bytes, self.deadline())?,
        })
    }

    /// Registers a block with the engine, as an offered segment.
    pub(crate) fn offer(&self, segment: u32, block: LeasedBlock) -> Result<Phased> {
        let generation = block.generation();
        let phased = Phased {
            fabric: self.clone(),
            key: self.own_key(segment, generation, block.len()),
            block: Some(block),
        };
        phased.let_in()?;
        Ok(phased)
    }
}

impl Growing {
    /// Allocates the pages of the next part; returns whether it is complete. A part takes some ten
    /// milliseconds.
    pub fn step(&mut self) -> Result<bool> {
        Ok(self.memory.step()?)
    }

    /// Returns the segment, open, with all of its memory. `segment`: a number that is not in use;
    /// `None`: any such number.
    pub fn publish(self, segment: Option<u32>) -> Result<Phased> {
        let number = self.fabric.take_number(segment)?;
        self.publish_as(number)
    }

    pub(crate) fn publish_as(self, number: Reserved) -> Result<Phased> {
        number.offer(|entry| Ok(LeasedBlock::new(self.memory, entry)?))
    }
}

impl Phased {
    /// Returns its key.
    pub fn key(&self) -> SegmentKey {
        self.key
    }

    /// Returns whether it may only be read.
    pub fn is_reading(&self) -> bool {
        let mode = self.block.as_ref().map(LeasedBlock::mode);
        mode == Some(Mode::Reading)
    }

    /// Returns its bytes, while it is open. Holding them is a use of the segment.
    pub fn bytes(&self) -> Result<SharedBytes> {
        let block = self.block.as_ref().ok_or_else(|| self.wrong_phase())?;
        block.share()?.ok_or_else(|| self.wrong_phase())
    }

    /// Converts it, if open, to a segment whose mode does not change.
    pub fn into_segment(self) -> Result<Segment> {
        Segment::of(self)
    }

    fn wrong_phase(&self) -> Error {
        self.fabric.named(wrong_phase(self.key))
    }

    /// Lets the engine answer accesses by messages.
    fn let_in(&self) -> Result<()> {
        let block = self.block.as_ref().ok_or_else(|| self.wrong_phase())?;
        let access = match block.read()? {
            Some(reading) => Access::Reading(reading),
            None => Access::Shared(self.bytes()?),
        };
        self.set_access(access);
        Ok(())
    }

    fn set_access(&self, bytes: Access) {
        let generation = self.key.generation;
        let offered = Offered {
            generation,
            bytes,
            registered: None,
        };
        let segment = self.key.segment;
        self.fabric
            .0
            .with(|core| core.offer(segment, Some(offered)));
    }

    /// Removes it from the directory and from the engine: nobody can attach from now on. Processes
    /// that are attached stay so. The first step of a change of mode.
    pub fn shut(&self) {
        self.set_access(Access::Withdrawn(self.key.bytes));
        if let Some(block) = &self.block {
            block.withdraw();
        }
    }

    /// Gives this process exclusive access. After [`Phased::shut`], and when everybody has
    /// detached.
    ///
    /// # Errors
    /// [`Error::InUse`], with the segment shut as before.
    pub fn own(mut self) -> Result<Owned, Box<(Phased, Error)>> {
        let Some(block) = self.block.take() else {
            let error = self.wrong_phase();
            return Err(Box::new((self, error)));
        };
        match block.close() {
            Ok(exclusive) => Ok(Owned {
                exclusive,
                phased: self,
            }),
            Err((block, users)) => {
                self.block = Some(block);
                let error = self.in_use(users);
                Err(Box::new((self, error)))
            }
        }
    }

    /// Changes from open (or exclusive) to reading or back, without owning it in between.
    /// Conditions and errors as for [`Phased::own`].
    pub fn turn(&mut self, reading: bool) -> Result<()> {
        self.turn_to(if reading { Mode::Reading } else { Mode::Open })?;
        self.offer_again()
    }

    fn turn_to(&mut self, mode: Mode) -> Result<()> {
        match self.block.as_mut().map(|block| block.turn(mode)) {
            Some(Err(users)) => Err(self.in_use(users)),
            _ => Ok(()),
        }
    }

    /// Lends it to the first process that [borrows](Fabric::borrow) it. Requires that it was open
    /// and nobody is attached. [`Phased::turn`] takes it back when the borrower has dropped it.
    ///
    /// # Errors
    /// [`Error::InUse`], with the segment unchanged.
    pub fn lend(&mut self) -> Result<()> {
        // The engine itself is attached, for accesses by messages.
        self.set_access(Access::Withdrawn(self.key.bytes));
        let lent = self.turn_to(Mode::Exclusive);
        if lent.is_err() {
            // As before: accesses by messages work again, too.
            let _ = self.let_in();
        }
        lent
    }

    /// Takes back what its borrower has published ([`Borrowed::publish`]), to be read from now on:
    /// whether the borrower has returned it, lives, or is dead. Returns false if it is not
    /// published.
    pub fn take_published(&mut self) -> Result<bool> {
        let block = self.block.as_mut().ok_or_else(|| wrong_phase(self.key))?;
        let Some(reading) = block.take_published()? else {
            return Ok(false);
        };
        // It may have been shut. The engine reads it until it is shut again, so the borrower cannot
        // take it back.
        block.offer_again();
        self.set_access(Access::Reading(reading));
        Ok(true)
    }

    fn in_use(&self, users: Vec<u32>) -> Error {
        if self.fabric.0.is_of_parent() {
            return Error::Forked;
        }
        let user = |slot| PeerId::new(self.key.peer.node(), slot).into();
        self.fabric.named(Error::InUse {
            segment: self.key.segment,
            users: users.into_iter().map(user).collect(),
        })
    }

    /// Lets others attach again after [`Phased::shut`], in its current mode.
    pub fn offer_again(&self) -> Result<()> {
        self.let_in()?;
        if let Some(block) = &self.block {
            block.offer_again();
        }
        Ok(())
    }
}

impl Drop for Phased {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            return self.fabric.withdraw(self.key.segment);
        };
        self.set_access(Access::Withdrawn(self.key.bytes));
        let segment = self.key.segment;
        // Without the lock, unless it is still in use: freeing much private memory takes long.
        match block.end() {
            Ok(()) => self.fabric.withdraw(segment),
            Err(block) => {
                let deferred = Deferred { segment, block };
                self.fabric
                    .0
                    .with(|core| core.engine.deferred.push(deferred));
            }
        }
    }
}

impl Owned {
    /// Returns its key.
    pub fn key(&self) -> SegmentKey {
        self.phased.key
    }

    /// Returns the memory.
    pub fn memory(&self) -> &ClosedBlock {
        &self.exclusive
    }

    /// Returns the memory for writing.
    pub fn memory_mut(&mut self) -> &mut ClosedBlock {
        &mut self.exclusive
    }

    /// Returns a segment of a new generation in the same memory, open, with its bytes unchanged:
    /// keys of the old generation no longer match.
    pub fn renew(self) -> Result<Phased> {
        let Owned {
            exclusive,
            mut phased,
        } = self;
        // The number stays reserved for this segment: another thread may be looking for one.
        let block = exclusive.renew();
        phased.key.generation = block.generation();
        phased.block = Some(block);
        phased.let_in()?;
        Ok(phased)
    }

    /// Lets others attach again, to write or only to read.
    pub fn give(self, reading: bool) -> Result<Phased> {
        let mode = if reading { Mode::Reading } else { Mode::Open };
        let mut phased = self.phased;
        phased.block = Some(self.exclusive.open(mode));
        phased.offer_again()?;
        Ok(phased)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Fabric, Identity};

    #[test]
    fn a_segment_is_lent_to_one() {
        let fabric = Fabric::alone(Identity::by_hand("lent"), Config::default()).unwrap();
        let mut phased = fabric.allocate_phased(5, 4096).unwrap();
        let key = phased.key();
        assert!(fabric.borrow(key).is_err(), "it is not lent yet");
        let attached = fabric.attach(key).unwrap();
        assert!(phased.lend().is_err(), "somebody is attached");
        drop(attached);
        let by_messages = fabric.attach_unseen(key);
        by_messages.put(8, &[2]).unwrap();
        phased.lend().unwrap();
        assert!(by_messages.put(8, &[3]).is_err(), "it is lent");
        let mut borrowed = fabric.borrow(key).unwrap().expect("it is mapped");
        assert!(fabric.borrow(key).is_err(), "one has it");
        assert!(fabric.attach(key).is_err());
        borrowed.as_mut_slice::<u8>()[4095] = 3;
        assert!(phased.turn(true).is_err(), "the borrower still has it");
        drop(borrowed);
        phased.turn(true).unwrap();
        let remote = fabric.attach(key).unwrap();
        assert_eq!(remote.readable().unwrap().as_slice::<u8>()[4095], 3);
        assert!(fabric.borrow(key).is_err(), "it is read");
        phased.shut();
        assert!(phased.own().is_err(), "somebody reads it");
        drop(remote);
    }

    #[test]
    fn a_borrower_lets_others_read() {
        let fabric = Fabric::alone(Identity::by_hand("read"), Config::default()).unwrap();
        let mut phased = fabric.allocate_phased(5, 4096).unwrap();
        let key = phased.key();
        phased.lend().unwrap();
        let mut borrowed = fabric.borrow(key).unwrap().expect("it is mapped");
        assert!(!phased.take_published().unwrap());
        borrowed.as_mut_slice::<u8>()[0] = 3;
        let published = borrowed.publish().unwrap();
        let remote = fabric.attach(key).unwrap();
        assert_eq!(remote.readable().unwrap().as_slice::<u8>()[0], 3);
        let published = published.retract().expect_err("somebody reads it");
        drop(remote);
        let mut borrowed = published.retract().unwrap();
        assert!(fabric.attach(key).is_err(), "it is written");
        borrowed.as_mut_slice::<u8>()[0] = 4;
        let published = borrowed.publish().unwrap();
        // What was shut is offered again.
        phased.shut();
        assert!(fabric.attach(key).is_err());
        assert!(phased.take_published().unwrap());
        assert!(phased.is_reading());
        drop(fabric.attach(key).unwrap());
        let by_messages = fabric.attach_unseen(key);
        let mut found = [0];
        by_messages.get(0, &mut found).unwrap();
        assert_eq!(found, [4]);
        let published = published.retract().expect_err("it was taken back");
        phased.shut();
        let refused = phased.own().expect_err("its borrower has not returned it");
        drop(published);
        refused.0.own().expect("nobody has it");
    }

    #[test]
    fn memory_is_used_again_under_another_key() {
        let fabric = Fabric::alone(Identity::by_hand("again"), Config::default()).unwrap();
        let phased = fabric.allocate_phased(5, 4096).unwrap();
        let (key, place) = (phased.key(), phased.bytes().unwrap().address());
        phased.bytes().unwrap().write(7, &[1]);
        phased.shut();
        let again = phased.own().unwrap().renew().unwrap();
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

    /// No other thread gets the number while neither of the two segments exists.
    #[test]
    fn a_number_is_kept_while_its_memory_is_used_again() {
        let fabric = Fabric::alone(Identity::by_hand("kept"), Config::default()).unwrap();
        let mut phased = fabric.allocate_phased(0, 4096).unwrap();
        std::thread::scope(|scope| {
            let renews = scope.spawn(|| {
                for _ in 0..2000 {
                    phased.shut();
                    phased = phased.own().unwrap().renew().unwrap();
                }
                phased // Dropped only after the others have stopped asking for a number.
            });
            while !renews.is_finished() {
                let other = fabric.allocate(4096).unwrap();
                assert_ne!(other.key().segment, 0);
            }
            drop(renews.join());
        });
    }

    /// Only the end of the last use frees it, and nothing announces that.
    #[test]
    fn a_wait_frees_what_was_dropped() {
        let fabric = Fabric::alone(Identity::by_hand("freed"), Config::default()).unwrap();
        let used = || fabric.0.node.heap.used();
        let before = used();
        let phased = fabric.allocate_phased(5, 1 << 20).unwrap();
        let inside = fabric.attach(phased.key()).unwrap();
        drop(phased);
        drop(inside);
        assert!(used() > before, "nobody has looked");
        let never = || fabric.recv(crate::Match::any(1), &mut []);
        let ended = fabric.within(std::time::Duration::from_millis(20), never);
        assert!(ended.is_err());
        assert_eq!(used(), before);
    }

    #[test]
    fn memory_stays_while_somebody_is_inside() {
        let fabric = Fabric::alone(Identity::by_hand("inside"), Config::default()).unwrap();
        let is_free = || fabric.free_segments()[0] & 1 << 5 != 0;
        let first = fabric.allocate_phased(5, 4096).unwrap();
        let inside = fabric.attach(first.key()).unwrap();
        drop(first);
        assert!(!is_free(), "the number is used by who is inside");
        assert!(
            inside.put(0, &[7; 64]).is_err(),
            "it is not offered any more"
        );
        let window = inside.mapped().unwrap().clone();
        drop(inside);
        let next = fabric.allocate_phased(6, 4096).unwrap();
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

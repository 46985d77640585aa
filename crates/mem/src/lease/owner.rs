//! Segments from the view of their owner.

use super::holder::elements;
use super::{Entry, Holder, Mode, Readable, Shared};
use crate::{Error, Growing, SharedBytes};
use bytemuck::Pod;

/// An entry of this process's directory, for a new segment.
#[derive(Clone, Debug)]
pub struct OwnEntry {
    /// This process.
    pub holder: Holder,
    /// The words.
    pub entry: Entry<SharedBytes>,
    /// The caller's name for the segment ([`SharedBytes::origin`]).
    pub id: u64,
}

/// Memory of this process that even this process accesses only under leases.
#[derive(Debug)]
pub struct LeasedBlock {
    slot: OwnEntry,
    generation: u32,
    mode: Mode,
    /// Every range of it has a lease, except this one and the holder's (G4).
    bytes: Option<SharedBytes>,
    private: bool,
}

impl LeasedBlock {
    /// Creates a segment from a block of the arena, offered and open.
    pub fn new(growing: Growing, slot: OwnEntry) -> Result<LeasedBlock, Error> {
        let bytes = growing.block()?.into_bytes();
        Ok(LeasedBlock::offer(bytes, slot, false))
    }

    /// Creates a segment from private memory, offered and open. Others access it through the kernel
    /// or by messages.
    pub fn adopt<T: Pod + Send>(elements: Vec<T>, slot: OwnEntry) -> LeasedBlock {
        LeasedBlock::offer(SharedBytes::adopt(elements), slot, true)
    }

    fn offer(bytes: SharedBytes, slot: OwnEntry, private: bool) -> LeasedBlock {
        let place = match private {
            true => bytes.address(),
            false => slot.holder.arena().offset_of(&bytes),
        };
        let generation = slot.entry.offer(place, bytes.len(), private);
        slot.holder.owns(&slot.entry, generation, &bytes);
        LeasedBlock {
            slot,
            generation,
            mode: Mode::Open,
            bytes: Some(bytes),
            private,
        }
    }

    /// Returns the generation of its entry.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes.as_ref().map_or(0, SharedBytes::len)
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its present mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the bytes, to copy in and out; `None` unless the mode is `Open`.
    pub fn share(&self) -> Result<Option<SharedBytes>, Error> {
        let OwnEntry { holder, entry, id } = &self.slot;
        let shared = holder.share(entry, self.generation, *id)?;
        Ok(shared.and_then(|shared| match shared {
            Shared::Mapped(bytes) => Some(bytes),
            Shared::Private { .. } => None,
        }))
    }

    /// Returns the bytes, to read; `None` unless the mode is `Reading`.
    pub fn read(&self) -> Result<Option<Readable>, Error> {
        let OwnEntry { holder, entry, id } = &self.slot;
        holder.read(entry, self.generation, *id)
    }

    /// Takes back what was lent and is published, to be read from now on, whether its borrower has
    /// left or not; `None` if it is not published. While the result lives, the borrower cannot
    /// retract it.
    pub fn take_published(&mut self) -> Result<Option<Readable>, Error> {
        let read = self.read()?;
        if read.is_some() {
            self.mode = Mode::Reading;
        }
        Ok(read)
    }

    /// Refuses new leases; existing ones stay.
    pub fn withdraw(&self) {
        self.slot.entry.withdraw();
    }

    /// Grants leases again.
    pub fn offer_again(&self) {
        self.slot.entry.offer_again();
    }

    /// Returns the numbers of the processes that have a lease.
    pub fn users(&self) -> Vec<u32> {
        self.slot.entry.who()
    }

    /// Changes the mode, or returns the processes that have a lease.
    pub fn turn(&mut self, to: Mode) -> Result<(), Vec<u32>> {
        let OwnEntry { holder, entry, .. } = &self.slot;
        holder.turn(entry, self.generation, to)?;
        self.mode = to;
        Ok(())
    }

    /// Gives the owner exclusive access, or returns the processes that have a lease.
    pub fn close(mut self) -> Result<ClosedBlock, (LeasedBlock, Vec<u32>)> {
        match self.turn(Mode::Closed) {
            Ok(()) => Ok(ClosedBlock(self)),
            Err(users) => Err((self, users)),
        }
    }

    /// Withdraws the segment and gives its memory back. If a lease is out, returns the block so
    /// that the caller can try again.
    pub fn end(mut self) -> Result<(), LeasedBlock> {
        if self.slot.holder.is_of_parent() {
            return Ok(()); // It is not this process's to end.
        }
        self.withdraw();
        match self.turn(Mode::Closed) {
            Ok(()) => Ok(()),
            Err(_) => Err(self),
        }
    }
}

impl Drop for LeasedBlock {
    fn drop(&mut self) {
        let Some(bytes) = self.bytes.take() else {
            return; // It goes on under another generation.
        };
        if self.slot.holder.is_of_parent() {
            return bytes.abandon();
        }
        self.withdraw();
        if self.turn(Mode::Closed).is_err() {
            bytes.abandon(); // G5: somebody may still write it.
        }
        self.slot.holder.disowns(&self.slot.entry, self.generation);
    }
}

/// A block to which its owner has exclusive access.
#[derive(Debug)]
pub struct ClosedBlock(LeasedBlock);

impl ClosedBlock {
    /// Lets others in again, in this mode. This does not offer the block.
    pub fn open(mut self, mode: Mode) -> LeasedBlock {
        // W2: a closed entry has no users.
        let _ = self.0.turn(mode);
        self.0
    }

    /// Offers the block under another generation, open. The bytes do not change.
    pub fn renew(mut self) -> LeasedBlock {
        let slot = self.0.slot.clone();
        slot.entry.withdraw();
        slot.holder.disowns(&slot.entry, self.0.generation);
        match self.0.bytes.take() {
            Some(bytes) => LeasedBlock::offer(bytes, slot, self.0.private),
            None => unreachable!("a block has its bytes until it is dropped"),
        }
    }

    fn bytes(&self) -> &SharedBytes {
        match &self.0.bytes {
            Some(bytes) => bytes,
            None => unreachable!("a block has its bytes until it is dropped"),
        }
    }

    /// Returns the block as elements.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        let (first, count) = elements::<T>(self.bytes());
        // SAFETY: G2, G3, G4 and G6: it is closed, so no other range of these bytes is used; else
        // as `elements` says.
        unsafe { std::slice::from_raw_parts(first, count) }
    }

    /// Returns the block as mutable elements.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        let (first, count) = elements::<T>(self.bytes());
        // SAFETY: G2, G3, G4 and G6, as in `as_slice`, and `&mut self` is the only way to the bytes
        // in this process.
        unsafe { std::slice::from_raw_parts_mut(first, count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::tests::heap;
    use crate::lease::ENTRY_BYTES;
    use crate::{Heap, Span};

    /// A table of entries and words, and two processes that share it.
    struct Node {
        heap: Heap,
        tables: SharedBytes,
        owner: Holder,
        user: Holder,
    }

    fn node() -> Node {
        let heap = heap(8 << 20);
        let tables = heap.block_soon(4096).unwrap().bytes().clone();
        let theirs = crate::Arena::attach(heap.arena().fd().try_clone_to_owned().unwrap());
        let owner = Holder::new(heap.arena().clone(), 0, tables.slice(4000, 8));
        let user = Holder::new(theirs.unwrap(), 1, tables.slice(4008, 8));
        Node {
            heap,
            tables,
            owner,
            user,
        }
    }

    impl Node {
        fn entry(&self) -> Entry<SharedBytes> {
            Entry::new(self.tables.slice(0, ENTRY_BYTES)).unwrap()
        }

        fn block(&self, bytes: u64) -> LeasedBlock {
            let slot = OwnEntry {
                holder: self.owner.clone(),
                entry: self.entry(),
                id: 7,
            };
            LeasedBlock::new(
                self.heap.grow(bytes, std::time::Duration::ZERO).unwrap(),
                slot,
            )
            .unwrap()
        }

        fn share(&self, generation: u32) -> Option<SharedBytes> {
            match self.user.share(&self.entry(), generation, 7).unwrap() {
                Some(Shared::Mapped(bytes)) => Some(bytes),
                _ => None,
            }
        }

        fn out(&self) -> [u64; 2] {
            [4000, 4008].map(|at| self.tables.u64(at).load(crate::sync::Ordering::Relaxed))
        }
    }

    #[test]
    fn nobody_is_inside_while_the_owner_has_it() {
        let node = node();
        let block = node.block(4096);
        let generation = block.generation();
        let read = || node.user.read(&node.entry(), generation, 7).unwrap();
        let open = node.share(generation).expect("it is open");
        open.write(8, &7u64.to_le_bytes());
        let part = open.slice(0, 16);
        drop(open);
        assert!(read().is_none());
        let (block, users) = block.close().unwrap_err();
        assert_eq!(users, [1], "a part of the range keeps its lease");
        drop(part);
        let mut own = block.close().expect("nobody is inside");
        assert!(node.share(generation).is_none());
        assert_eq!(own.as_slice::<u64>()[..2], [0, 7]);
        own.as_mut_slice::<u64>()[511] = 9;
        let mut block = own.open(Mode::Reading);
        let reading = read().expect("it may be read");
        assert_eq!(reading.as_slice::<u64>()[511], 9);
        assert!(node.share(generation).is_none());
        assert_eq!(block.turn(Mode::Open), Err(vec![1]));
        drop(reading);
        assert_eq!(block.turn(Mode::Open), Ok(()));
        assert_eq!(node.out(), [0, 0]);
    }

    #[test]
    fn ranges_of_one_process_share_a_lease() {
        let node = node();
        let mut block = node.block(64);
        let one = node.share(block.generation()).unwrap();
        let two = node.share(block.generation()).unwrap();
        assert_eq!(node.out(), [0, 1]);
        let origin = two.slice(40, 8).origin().expect("it is leased");
        assert_eq!((origin.segment, origin.offset), (7, 40));
        drop(one);
        assert_eq!(block.turn(Mode::Reading), Err(vec![1]));
        std::thread::spawn(move || drop(two)).join().unwrap();
        assert_eq!(block.turn(Mode::Reading), Ok(()));
    }

    #[test]
    fn the_owner_needs_a_lease_too() {
        let node = node();
        let block = node.block(64);
        let own = block.share().unwrap().expect("it is open");
        let (block, users) = block.close().unwrap_err();
        assert_eq!(users, [0]);
        drop(own);
        drop(block.close().unwrap());
        assert_eq!(node.out(), [0, 0]);
    }

    #[test]
    fn one_borrower_at_a_time() {
        let node = node();
        let mut block = node.block(64);
        let generation = block.generation();
        let borrow = || node.user.borrow(&node.entry(), generation, 7).unwrap();
        assert!(borrow().is_none(), "it is open");
        block.turn(Mode::Exclusive).unwrap();
        let mut lent = borrow().expect("it is lent");
        assert!(borrow().is_none(), "one has it");
        assert!(block.share().unwrap().is_none());
        assert!(block.read().unwrap().is_none());
        assert_eq!(block.turn(Mode::Reading), Err(vec![1]));
        lent.as_mut_slice::<u64>()[7] = 9;
        drop(lent);
        assert_eq!(borrow().unwrap().as_slice::<u64>()[7], 9);
        block.turn(Mode::Reading).unwrap();
        assert!(borrow().is_none(), "it is read");
        let read = block.read().unwrap().expect("it may be read");
        assert_eq!(read.as_slice::<u64>()[7], 9);
    }

    #[test]
    fn a_borrower_lets_others_read() {
        let node = node();
        let mut block = node.block(64);
        let generation = block.generation();
        let third = crate::Arena::attach(node.heap.arena().fd().try_clone_to_owned().unwrap());
        let third = Holder::new(third.unwrap(), 2, node.tables.slice(4016, 8));
        let read = || third.read(&node.entry(), generation, 7).unwrap();
        block.turn(Mode::Exclusive).unwrap();
        let lent = node.user.borrow(&node.entry(), generation, 7).unwrap();
        let mut lent = lent.expect("it is lent");
        assert!(read().is_none(), "it is written");
        assert!(block.take_published().unwrap().is_none());
        lent.as_mut_slice::<u64>()[7] = 9;
        let published = lent.publish().expect("the words are valid");
        let reads = read().expect("it is published");
        assert_eq!(reads.as_slice::<u64>()[7], 9);
        let own = node.user.read(&node.entry(), generation, 7).unwrap();
        let own = own.expect("its borrower may read it, too");
        let (published, who) = published.retract().unwrap_err();
        assert_eq!(who, [1]);
        drop(own);
        let (published, who) = published.retract().unwrap_err();
        assert_eq!(who, [2]);
        assert_eq!(block.turn(Mode::Reading), Err(vec![2, 1]));
        drop(reads);
        let mut lent = published.retract().expect("nobody reads it");
        assert!(read().is_none());
        lent.as_mut_slice::<u64>()[7] = 10;
        let published = lent.publish().unwrap();
        // The owner of the segment takes it back while the borrower lives, and then stays alone.
        let taken = block.take_published().unwrap().expect("it is published");
        assert_eq!(taken.as_slice::<u64>()[7], 10);
        let (published, who) = published.retract().unwrap_err();
        assert_eq!(who, [0]);
        drop(published);
        assert!(
            node.user
                .borrow(&node.entry(), generation, 7)
                .unwrap()
                .is_none()
        );
        drop(taken);
        assert_eq!(block.turn(Mode::Exclusive), Ok(()));
        assert_eq!(node.out(), [0, 0]);
    }

    /// The readers of the borrower's process stay when the borrower gives it back.
    #[test]
    fn a_borrower_leaves_before_its_readers() {
        let node = node();
        let mut block = node.block(64);
        let generation = block.generation();
        block.turn(Mode::Exclusive).unwrap();
        let lent = node.user.borrow(&node.entry(), generation, 7).unwrap();
        let published = lent.and_then(|lent| lent.publish()).expect("it is lent");
        let read = node.user.read(&node.entry(), generation, 7).unwrap();
        drop(published);
        assert_eq!(block.users(), [1]);
        assert_eq!(block.turn(Mode::Closed), Err(vec![1]));
        drop(block.take_published().unwrap().expect("it is published"));
        drop(read);
        assert_eq!(block.turn(Mode::Closed), Ok(()));
        assert_eq!(node.out(), [0, 0]);
    }

    /// The borrower is a thread of the owner.
    #[test]
    fn a_process_borrows_from_itself() {
        let node = node();
        let mut block = node.block(64);
        let generation = block.generation();
        for is_taken in [false, true] {
            block.turn(Mode::Exclusive).unwrap();
            let lent = node.owner.borrow(&node.entry(), generation, 7).unwrap();
            let lent = lent.expect("it is lent");
            assert!(block.take_published().unwrap().is_none());
            let published = lent.publish().expect("the words are valid");
            if is_taken {
                let taken = block.take_published().unwrap().expect("it is published");
                let (published, who) = published.retract().unwrap_err();
                assert_eq!(who, [0]);
                drop(published);
                assert_eq!(block.turn(Mode::Open), Err(vec![0]));
                drop(taken);
            } else {
                drop(published.retract().expect("nobody reads it"));
            }
            block.turn(Mode::Open).unwrap();
        }
        assert_eq!(node.out(), [0, 0]);
    }

    #[test]
    fn memory_comes_back_with_the_last_lease() {
        let node = node();
        let block = node.block(4096);
        let generation = block.generation();
        let used = node.heap.used();
        let stale = node.share(generation).unwrap();
        let block = block.end().unwrap_err();
        assert!(node.share(generation).is_none(), "it is withdrawn");
        assert_eq!(node.heap.used(), used);
        drop(stale);
        block.end().unwrap();
        assert!(node.heap.used() < used);
    }

    #[test]
    fn memory_that_is_leased_is_never_used_again_without_its_block() {
        let node = node();
        let block = node.block(4096);
        let stale = node.share(block.generation()).unwrap();
        let used = node.heap.used();
        drop(block);
        let next = node.heap.block_soon(4096).unwrap();
        stale.write(0, &[7; 4096]);
        let mut found = [1; 4096];
        next.bytes().read(0, &mut found);
        assert_eq!(found, [0; 4096]);
        drop(stale);
        assert!(node.heap.used() > used);
    }

    #[test]
    fn a_block_goes_on_under_another_generation() {
        let node = node();
        let block = node.block(64);
        let first = block.generation();
        block.share().unwrap().unwrap().write(0, &[5]);
        let block = block.close().unwrap().renew();
        assert!(node.share(first).is_none());
        let mut found = [0];
        node.share(block.generation()).unwrap().read(0, &mut found);
        assert_eq!(found, [5]);
    }

    #[test]
    fn private_memory_is_leased_like_any_other() {
        let node = node();
        let slot = OwnEntry {
            holder: node.owner.clone(),
            entry: node.entry(),
            id: 7,
        };
        let block = LeasedBlock::adopt(vec![1u64, 2, 3], slot);
        let shared = node.user.share(&node.entry(), block.generation(), 7);
        let Some(Shared::Private {
            address,
            bytes,
            lease,
        }) = shared.unwrap()
        else {
            panic!("it is private memory");
        };
        assert_eq!(bytes, 24);
        let mut found = [0; 8];
        let own = block.share().unwrap().expect("it is open");
        assert_eq!(own.address(), address);
        own.read(8, &mut found);
        assert_eq!(u64::from_ne_bytes(found), 2);
        drop(own);
        let block = block.end().unwrap_err();
        assert_eq!(block.users(), [1]);
        drop(lease);
        block.end().unwrap();
    }

    #[test]
    fn an_entry_that_describes_what_it_may_not_is_refused() {
        let node = node();
        let own = node.block(4096);
        let words = |place: u64, bytes: u64| {
            let entry = Entry::new(node.tables.slice(1024, ENTRY_BYTES)).unwrap();
            let generation = entry.offer(place, bytes, false);
            let refused = node.owner.share(&entry, generation, 8).is_err();
            let by_another = node.user.share(&entry, generation, 8).is_err();
            assert!(entry.who().is_empty(), "nobody is left inside");
            (refused, by_another)
        };
        let place = node.heap.arena().offset_of(&own.share().unwrap().unwrap());
        assert_eq!(words(place, 64), (true, false), "the owner's own block");
        assert_eq!(words(place + 4, 64), (true, true), "not where blocks begin");
        assert_eq!(words(u64::MAX - 127, 256), (true, true), "outside");
        let held = node.share(own.generation()).unwrap();
        assert_eq!(words(place, 64), (true, true), "leased otherwise");
        let theirs = node.user.arena().span(Span {
            offset: place,
            bytes: 8,
        });
        assert!(theirs.is_err(), "no raw range of leased memory");
        drop(held);
        assert_eq!(node.out(), [0, 0]);
    }

    /// An owner writes another place into its entry while it is leased: the user still accesses
    /// only what it has claimed.
    #[test]
    fn an_entry_that_changes_under_a_lease_is_what_it_was() {
        let node = node();
        let own = node.block(4096);
        let first = node.share(own.generation()).unwrap();
        let entry = node.entry();
        let place = &entry.0.u64(0);
        place.fetch_add(4096, crate::sync::Ordering::Relaxed);
        let second = node.share(own.generation()).expect("it is open");
        assert_eq!(second.address(), first.address());
        place.fetch_sub(4096, crate::sync::Ordering::Relaxed);
    }

    /// The word of a process is at 64, its mode in the two highest bits.
    const USERS: u64 = 64;
    const BORROWER: u64 = 24;

    /// Any process can write the words of an entry. However it does, the threads of another process
    /// get no writable range, and no second one, beside a slice that one of them has.
    #[test]
    fn words_that_lie_give_no_second_access() {
        let node = node();
        let entry = node.entry();
        let words = |at| entry.0.u64(at).load(crate::sync::Ordering::Relaxed);
        let lie = |at, word| entry.0.u64(at).store(word, crate::sync::Ordering::Relaxed);
        let say = |mode| lie(USERS, words(USERS) << 2 >> 2 | (mode as u64) << 62);
        let mut block = node.block(64);
        let generation = block.generation();
        let by_owner = || node.owner.share(&entry, generation, 7).unwrap();
        let by_user = || node.user.share(&entry, generation, 7).unwrap();

        block.turn(Mode::Reading).unwrap();
        let reading = node.user.read(&entry, generation, 7).unwrap().unwrap();
        say(Mode::Open);
        assert!(by_user().is_none(), "one of its threads reads");
        drop(reading);
        say(Mode::Reading);

        let reading = block.read().unwrap().unwrap();
        lie(USERS, words(USERS) & !1);
        let (block, users) = block.close().unwrap_err();
        assert_eq!(users, [0], "the owner reads");
        drop(reading);

        let own = block.close().unwrap();
        say(Mode::Open);
        assert!(by_owner().is_none(), "it is closed");
        say(Mode::Closed);

        let mut block = own.open(Mode::Open);
        block.turn(Mode::Exclusive).unwrap();
        let vacant = words(BORROWER);
        let borrow = || node.owner.borrow(&entry, generation, 7).unwrap();
        let lent = borrow().expect("it is lent");
        lie(BORROWER, vacant);
        assert!(borrow().is_none(), "one has it");
        assert_eq!(block.turn(Mode::Open), Err(vec![0]));
        lie(BORROWER, vacant & !(u32::MAX as u64) | 1);
        drop(lent);
        assert_eq!(block.turn(Mode::Open), Ok(()));
        assert_eq!(node.out(), [0, 0]);
    }

    /// A lease that outlives its block keeps its memory; its entry says nothing about it any more.
    #[test]
    fn a_segment_that_was_dropped_is_not_what_its_entry_says() {
        let node = node();
        let (entry, block) = (node.entry(), node.block(4096));
        let generation = block.generation();
        let stale = block.share().unwrap().unwrap();
        drop(block);
        let other = node.heap.block_soon(4096).unwrap();
        let place = node.heap.arena().offset_of(other.bytes());
        entry.0.u64(0).store(place, crate::sync::Ordering::Relaxed);
        entry.offer_again();
        assert!(node.owner.share(&entry, generation, 7).unwrap().is_none());
        drop(stale);
        assert_eq!(node.out(), [0, 0]);
    }

    #[test]
    fn private_memory_that_is_read_by_others_is_refused() {
        let node = node();
        let generation = node.entry().offer(4096, 64, true);
        let opened = node.entry().turn(generation, Mode::Open, Mode::Reading);
        let refused = node.user.read(&node.entry(), generation, 7).unwrap_err();
        assert!(opened.is_ok() && refused.to_string().contains("the address of memory"));
        assert_eq!((node.entry().who(), node.out()), (vec![], [0, 0]));
    }

    #[test]
    fn private_memory_without_an_end_is_refused() {
        let node = node();
        let generation = node.entry().offer(u64::MAX - 7, 64, true);
        assert!(node.user.share(&node.entry(), generation, 7).is_err());
        assert_eq!((node.entry().who(), node.out()), (vec![], [0, 0]));
    }
}

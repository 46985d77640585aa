//! The protocol of an entry: sixteen words of shared memory that describe a segment and its users.
//!
//! ```text
//!   0  place      offset in the arena, or address in the owner's private memory     owner writes
//!   1  bytes      length                                                            owner writes
//!   2  state      | offered (1) | private (1) | generation (31) |                   owner writes
//!   3  borrower   | generation (32) | closed, vacant, or the borrower (32) |    compare-exchange
//!   8..16 users   | mode (2) | generation (6) | one bit per process (56) |      compare-exchange
//! ```
//!
//! A lease is one bit per process, not a count: clearing the bit of a dead process is correct
//! whatever it was doing when it died, and the owner of a segment can report *which* processes use
//! it. A process with many ranges of one segment counts them in its own memory; the first sets the
//! bit, the last clears it.
//!
//! # Invariants
//! W1 A bit is set by a compare-exchange on a word that also contains the mode, so it is set in
//!    that mode only.
//! W2 The owner changes every word to `Closed`, each by a compare-exchange from "no bits", before
//!    it changes any of them to the next mode. Once the last one is closed, no lease is out, and no
//!    word is in another mode.
//! W3 A process that takes a lease checks the state *after* it has set its bit, and leaves if the
//!    generation has changed or is no longer offered. So a bit that stays belongs to the generation
//!    that its process meant. A process that borrows does the same.
//! W4 Place and length are those of the generation while a bit of it is set, because the number is
//!    reused only after the words were closed. Without a lease, they are read between two checks of
//!    the state.
//! W5 In `Exclusive`, no process can set a bit, and the borrower's word names at most one process:
//!    it is set by a compare-exchange from "vacant". The owner changes the words of users only when
//!    that word is "closed".
//! W6 The process that the borrower's word names may change the words of users to `Reading`, and
//!    back when they have no bits, each by a compare-exchange. So while it reads or writes the
//!    bytes as their only user, all of them are `Exclusive`: it has looked when it borrowed. When
//!    it has left or died, the borrower's word is "vacant", and some words may be `Exclusive` and
//!    others `Reading`: nobody writes, and nobody borrows before the owner has closed them.

use crate::PEERS_MAX;
use crate::sync::{AtomicU64, Ordering, fence};

/// Bytes of an entry: one line that its users read, and one that they write.
pub const ENTRY_BYTES: u64 = 128;

/// What users of a segment may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// There are none; the owner has exclusive access.
    Closed = 0,
    /// Copy in and out.
    Open = 1,
    /// Read.
    Reading = 2,
    /// One process at a time reads and writes.
    Exclusive = 3,
}

/// Number of user words.
const USER_WORDS: usize = 8;
/// Number of processes per user word.
const BITS: usize = 56;
const _: () = assert!(USER_WORDS * BITS == PEERS_MAX);

const PLACE: usize = 0;
const BYTES: usize = 1;
/// Index of the word that says whether the segment is offered, and in which generation.
pub(super) const STATE: usize = 2;
const BORROWER: usize = 3;
const USERS: usize = 8;

const HEADER: u64 = !((1 << BITS) - 1);
const GENERATION: u64 = 0x7fff_ffff;
const PRIVATE: u64 = 1 << 31;
const OFFERED: u64 = 1 << 32;

/// The low half of the borrower's word: no process may borrow (also in a fresh entry).
const SHUT: u64 = 0;
/// No process has borrowed it. Between these two: the number of the process plus one.
const VACANT: u64 = u32::MAX as u64;

/// The words of an entry, in any memory.
pub trait Words {
    /// Returns one of the sixteen words.
    fn word(&self, index: usize) -> &AtomicU64;
    /// Returns the number of user words: all, except in a model with few processes.
    fn user_words(&self) -> usize {
        USER_WORDS
    }
}

/// What an entry offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Offset in the arena, or address in the owner's private memory.
    pub place: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Increases with every use of the entry.
    pub generation: u32,
    /// True if `place` is a private address.
    pub private: bool,
}

/// An entry of a directory of segments. Its owner, its users and the agent use the same type.
#[derive(Clone, Debug)]
pub struct Entry<W>(pub W);

fn header(generation: u32, mode: Mode) -> u64 {
    (mode as u64) << 62 | (generation as u64 & 0x3f) << BITS
}

fn borrower(generation: u32, who: u64) -> u64 {
    (generation as u64) << 32 | who
}

/// Returns the values of the borrower's word while it is vacant, and while process `me` has
/// borrowed.
fn borrowers(me: usize, generation: u32) -> [u64; 2] {
    [VACANT, me as u64 + 1].map(|who| borrower(generation, who))
}

/// Returns the processes whose bits are set in a user word.
fn processes(index: usize, users: u64) -> impl Iterator<Item = u32> {
    let bits = (0..BITS).filter(move |bit| users & 1 << bit != 0);
    bits.map(move |bit| (index * BITS + bit) as u32)
}

/// Returns the process that a borrower's word names.
fn borrowed_by(word: u64) -> Option<u32> {
    let who = word & u32::MAX as u64;
    (who != SHUT && who != VACANT).then(|| who as u32 - 1)
}

/// Returns true if a word of [`Entry::state`] offers this generation; for users with a lease that
/// check whether the owner has withdrawn the segment.
#[inline(always)]
pub fn is_offered(state: &AtomicU64, generation: u32) -> bool {
    // ORDERING: Relaxed: a hint for programs that free too early, not a synchronisation.
    let state = state.load(Ordering::Relaxed);
    state & (OFFERED | GENERATION) == OFFERED | generation as u64
}

impl<W: Words> Entry<W> {
    fn users_of(&self, peer: usize) -> (&AtomicU64, u64) {
        let index = (peer / BITS) % self.0.user_words();
        (self.0.word(USERS + index), 1 << (peer % BITS))
    }

    fn all_users(&self) -> impl Iterator<Item = (usize, &AtomicU64)> {
        (0..self.0.user_words()).map(|index| (index, self.0.word(USERS + index)))
    }

    /// Returns the generation that the next use of the entry will have.
    pub fn next_generation(&self) -> u32 {
        let state = self.0.word(STATE).load(Ordering::Relaxed);
        // Any process may have written any value there.
        (state.wrapping_add(1) & GENERATION) as u32
    }

    /// Owner: offers a closed entry for a new use, open, and returns its generation.
    pub fn offer(&self, place: u64, bytes: u64, private: bool) -> u32 {
        let generation = self.next_generation();
        // ORDERING: Release pairs with the Acquire fence in `look`: a process that reads the new
        // place or length finds that the earlier use was withdrawn (W4).
        fence(Ordering::Release);
        self.0.word(PLACE).store(place, Ordering::Relaxed);
        self.0.word(BYTES).store(bytes, Ordering::Relaxed);
        self.set_users(generation, Mode::Open);
        // ORDERING: Release pairs with the Acquire of `borrow`.
        let shut = borrower(generation, SHUT);
        self.0.word(BORROWER).store(shut, Ordering::Release);
        let kind = if private { PRIVATE } else { 0 };
        // ORDERING: Release pairs with the Acquire loads in `offers` and `look`.
        self.0
            .word(STATE)
            .store(generation as u64 | kind | OFFERED, Ordering::Release);
        generation
    }

    /// Owner: refuses new leases; existing ones stay.
    pub fn withdraw(&self) {
        // ORDERING: Release pairs with the Acquire loads in `offers` and `look`.
        self.0.word(STATE).fetch_and(!OFFERED, Ordering::Release);
    }

    /// Owner: offers the same generation again.
    pub fn offer_again(&self) {
        // ORDERING: Release pairs with the Acquire loads in `offers` and `look`.
        self.0.word(STATE).fetch_or(OFFERED, Ordering::Release);
    }

    /// Returns true if this generation is offered.
    pub fn offers(&self, generation: u32) -> bool {
        // ORDERING: Acquire pairs with the Release stores of the owner: place, length and modes are
        // those of this generation or later ones.
        let state = self.0.word(STATE).load(Ordering::Acquire);
        state & OFFERED != 0 && state & GENERATION == generation as u64
    }

    /// Returns what is offered, without a lease (W4); `None` if nothing is, or while it changes.
    pub fn look(&self) -> Option<Seen> {
        // ORDERING: Acquire pairs with the Release store of `offer`.
        let state = self.0.word(STATE).load(Ordering::Acquire);
        let seen = self.seen(state);
        // ORDERING: Acquire pairs with the Release fence of `offer`: the second load comes after
        // both loads.
        fence(Ordering::Acquire);
        let again = self.0.word(STATE).load(Ordering::Relaxed);
        (state & OFFERED != 0 && again == state).then_some(seen)
    }

    fn seen(&self, state: u64) -> Seen {
        Seen {
            place: self.0.word(PLACE).load(Ordering::Relaxed),
            bytes: self.0.word(BYTES).load(Ordering::Relaxed),
            generation: (state & GENERATION) as u32,
            private: state & PRIVATE != 0,
        }
    }

    /// Returns the description of the segment; for users with a lease (W4).
    pub fn leased(&self) -> Seen {
        // ORDERING: Acquire pairs with the Release store of `offer`.
        self.seen(self.0.word(STATE).load(Ordering::Acquire))
    }

    /// User: sets the bit of process `me` in this mode of this generation, if it is offered that
    /// way (W1, W3). Returns `false` also if the bit was already set: it then belongs to another
    /// use of this entry by the same process.
    pub fn take(&self, me: usize, generation: u32, mode: Mode) -> bool {
        if !self.offers(generation) || !self.enter(me, generation, mode) {
            return false;
        }
        // The Acquire of `enter` orders this check after it: if the word was opened for a later
        // generation with the same low bits, that generation's state is visible, too.
        let still = self.offers(generation);
        if !still {
            self.leave(me);
        }
        still
    }

    /// Sets the bit like [`Entry::take`], for the owner itself, which need not check what it
    /// offers.
    pub fn enter(&self, me: usize, generation: u32, mode: Mode) -> bool {
        let (word, bit) = self.users_of(me);
        let wanted = header(generation, mode);
        let enter = |users: u64| {
            let may = users & HEADER == wanted && users & bit == 0;
            may.then_some(users | bit)
        };
        // ORDERING: Acquire pairs with the Release of the owner's `set_users`: what it wrote is
        // visible.
        let entered = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter);
        entered.is_ok()
    }

    /// User: clears the bit of process `me`.
    pub fn leave(&self, me: usize) {
        let (word, bit) = self.users_of(me);
        // ORDERING: Release pairs with the Acquire of `close`: accesses under the lease are over.
        word.fetch_and(!bit, Ordering::Release);
    }

    /// User: borrows the segment if it is offered, can be borrowed and no process has (W3, W5).
    /// What an earlier borrower has published cannot be borrowed.
    pub fn borrow(&self, me: usize, generation: u32) -> bool {
        let [vacant, mine] = borrowers(me, generation);
        // ORDERING: Acquire pairs with the Release of `turn`, and with that of `give_back` by the
        // previous borrower; the check of the state comes after it.
        let word = self.0.word(BORROWER);
        let borrowed = word.compare_exchange(vacant, mine, Ordering::Acquire, Ordering::Relaxed);
        let exclusive = header(generation, Mode::Exclusive);
        // ORDERING: they do not change while the borrower's word names this process.
        let is_shut = |(_, users): (_, &AtomicU64)| users.load(Ordering::Relaxed) == exclusive;
        let may = || self.offers(generation) && self.all_users().all(is_shut);
        if borrowed.is_ok() && !may() {
            self.give_back(me, generation);
            return false;
        }
        borrowed.is_ok()
    }

    /// User: gives back what it borrowed.
    pub fn give_back(&self, me: usize, generation: u32) {
        let [vacant, mine] = borrowers(me, generation);
        // ORDERING: Release pairs with the Acquire of `borrow` and `close`. It fails only if the
        // agent has given it back because it took this process for dead.
        let word = self.0.word(BORROWER);
        let _ = word.compare_exchange(mine, vacant, Ordering::Release, Ordering::Relaxed);
    }

    /// User: lets others read what process `me` has borrowed (W6). Returns `false` if the words are
    /// invalid.
    pub fn publish(&self, me: usize, generation: u32) -> bool {
        let [_, mine] = borrowers(me, generation);
        let (from, to) = (Mode::Exclusive, Mode::Reading);
        // ORDERING: only this process writes it as long as it is its own.
        let is_own = self.0.word(BORROWER).load(Ordering::Relaxed) == mine;
        is_own && self.change_users(generation, from, to).is_ok()
    }

    /// User: undoes [`Entry::publish`] when no process reads; otherwise returns those that do
    /// (empty if the words are invalid), and nothing has changed.
    pub fn retract(&self, me: usize, generation: u32) -> Result<(), Vec<u32>> {
        let [_, mine] = borrowers(me, generation);
        // ORDERING: as above.
        if self.0.word(BORROWER).load(Ordering::Relaxed) != mine {
            return Err(Vec::new());
        }
        self.change_users(generation, Mode::Reading, Mode::Exclusive)
    }

    /// Changes the mode of all words, if none has a bit; otherwise of none.
    fn change_users(&self, generation: u32, from: Mode, to: Mode) -> Result<(), Vec<u32>> {
        let (from, to) = (header(generation, from), header(generation, to));
        for (index, users) in self.all_users() {
            // ORDERING: Release pairs with the Acquire of `enter`: what the borrower wrote is
            // visible to readers. Acquire pairs with the Release of `leave`.
            let changed = users.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
            let Err(found) = changed else { continue };
            for (_, users) in self.all_users().take(index) {
                // ORDERING: Release, as above. A reader may have come since.
                let _ = users.compare_exchange(to, from, Ordering::Release, Ordering::Relaxed);
            }
            return Err(processes(index, found).collect());
        }
        Ok(())
    }

    /// Owner: changes the mode when no process is inside; otherwise returns those that were (empty
    /// if the words are invalid). If the entry is offered meanwhile, it refuses new leases.
    pub fn turn(&self, generation: u32, from: Mode, to: Mode) -> Result<(), Vec<u32>> {
        self.close(generation, from)?;
        if to == Mode::Closed {
            return Ok(());
        }
        self.set_users(generation, to);
        if to == Mode::Exclusive {
            // ORDERING: Release pairs with the Acquire of `borrow`.
            let vacant = borrower(generation, VACANT);
            self.0.word(BORROWER).store(vacant, Ordering::Release);
        }
        Ok(())
    }

    /// Owner: closes the entry, if no process is inside; then none can enter (W2).
    fn close(&self, generation: u32, from: Mode) -> Result<(), Vec<u32>> {
        if from == Mode::Closed {
            return Ok(());
        }
        // Nothing is closed for users that are seen at once: meanwhile, others would be refused.
        let who = self.who();
        if !who.is_empty() {
            return Err(who);
        }
        let word = self.0.word(BORROWER);
        let (vacant, shut) = (borrower(generation, VACANT), borrower(generation, SHUT));
        // What was lent may be read since (W6). A process that tries to borrow it may be named, for
        // a moment.
        let is_lent = from == Mode::Exclusive || word.load(Ordering::Relaxed) != shut;
        if is_lent {
            // ORDERING: Acquire pairs with the Release of `give_back`.
            word.compare_exchange(vacant, shut, Ordering::Acquire, Ordering::Relaxed)
                .map_err(|found| Vec::from_iter(borrowed_by(found)))?;
        }
        let closed = header(generation, Mode::Closed);
        let lent = [Mode::Exclusive, Mode::Reading].map(|mode| header(generation, mode));
        let mut before = Vec::with_capacity(USER_WORDS);
        for (index, users) in self.all_users() {
            let close = |users: u64| {
                let is_open = users == header(generation, from) || is_lent && lent.contains(&users);
                is_open.then_some(closed)
            };
            // ORDERING: Acquire pairs with the Release of `leave`.
            let found = match users.fetch_update(Ordering::Acquire, Ordering::Relaxed, close) {
                Ok(found) => {
                    before.push(found);
                    continue;
                }
                Err(found) => found,
            };
            for ((_, users), before) in self.all_users().zip(before) {
                // ORDERING: Release, as in `set_users`.
                users.store(before, Ordering::Release);
            }
            if is_lent {
                // ORDERING: Release, as in `turn`.
                word.store(vacant, Ordering::Release);
            }
            return Err(processes(index, found).collect());
        }
        Ok(())
    }

    /// Owner: sets the mode of a closed entry. A plain store suffices: only the agent may also
    /// change a closed word, and it only clears bits, of which there are none.
    fn set_users(&self, generation: u32, mode: Mode) {
        for (_, users) in self.all_users() {
            // ORDERING: Release pairs with the Acquire of `enter`: what the owner wrote is visible
            // to users.
            users.store(header(generation, mode), Ordering::Release);
        }
    }

    /// Returns the numbers of the processes that have a lease or have borrowed the segment.
    pub fn who(&self) -> Vec<u32> {
        let mut who = Vec::new();
        for (index, users) in self.all_users() {
            // ORDERING: Acquire pairs with the Release of `leave`.
            who.extend(processes(index, users.load(Ordering::Acquire)));
        }
        // ORDERING: Acquire pairs with the Release of `give_back`.
        who.extend(borrowed_by(self.0.word(BORROWER).load(Ordering::Acquire)));
        who
    }

    /// Agent: clears what a dead process had. A bit is set or not, whatever the process was doing.
    pub fn clear(&self, dead: usize) {
        let (users, bit) = self.users_of(dead);
        if users.load(Ordering::Relaxed) & bit != 0 {
            // ORDERING: Release pairs with the Acquire of `close`.
            users.fetch_and(!bit, Ordering::Release);
        }
        let word = self.0.word(BORROWER);
        let seen = word.load(Ordering::Relaxed);
        if seen & u32::MAX as u64 == dead as u64 + 1 {
            // ORDERING: Release pairs with the Acquire of `close` and `borrow`.
            let _ =
                word.compare_exchange(seen, seen | VACANT, Ordering::Release, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Local([AtomicU64; 16]);

    impl Words for Local {
        fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }
    }

    fn entry() -> Entry<Local> {
        Entry(Local([const { AtomicU64::new(0) }; 16]))
    }

    /// Words that change between two accesses of the owner.
    struct Watched(Local, Watch);
    type Watch = Box<dyn Fn(&Local, usize)>;

    impl Words for Watched {
        fn word(&self, index: usize) -> &AtomicU64 {
            self.1(&self.0, index);
            self.0.word(index)
        }
    }

    #[test]
    fn a_fresh_entry_lets_nobody_in() {
        let entry = entry();
        for mode in [Mode::Closed, Mode::Open, Mode::Reading, Mode::Exclusive] {
            assert!(!entry.take(3, 0, mode));
        }
        assert!(!entry.borrow(3, 0));
        assert_eq!(entry.look(), None);
        assert!(entry.who().is_empty());
    }

    #[test]
    fn every_process_has_a_bit_of_its_own() {
        let entry = entry();
        let generation = entry.offer(4096, 8, false);
        for peer in 0..PEERS_MAX {
            assert!(entry.take(peer, generation, Mode::Open));
            assert!(
                !entry.take(peer, generation, Mode::Open),
                "it is counted in its process"
            );
        }
        assert_eq!(entry.who(), (0..PEERS_MAX as u32).collect::<Vec<_>>());
        for peer in (0..PEERS_MAX).filter(|peer| *peer != 200) {
            entry.leave(peer);
        }
        assert_eq!(
            entry.turn(generation, Mode::Open, Mode::Reading),
            Err(vec![200])
        );
        assert!(entry.take(5, generation, Mode::Open), "nothing has changed");
        entry.clear(200);
        entry.clear(200);
        entry.clear(5);
        assert_eq!(entry.turn(generation, Mode::Open, Mode::Reading), Ok(()));
    }

    #[test]
    fn a_lease_is_of_one_generation_and_one_mode() {
        let entry = entry();
        let first = entry.offer(0, 8, false);
        assert!(!entry.take(1, first, Mode::Reading));
        entry.withdraw();
        assert!(!entry.take(1, first, Mode::Open));
        entry.offer_again();
        assert!(entry.take(1, first, Mode::Open));
        entry.leave(1);
        // As many generations later as the user words can distinguish.
        let mut last = first;
        for _ in 0..64 {
            entry.withdraw();
            entry.turn(last, Mode::Open, Mode::Closed).unwrap();
            last = entry.offer(last as u64, 16, true);
        }
        assert_eq!(header(first, Mode::Open), header(last, Mode::Open));
        assert!(!entry.take(1, first, Mode::Open));
        assert!(entry.who().is_empty());
        let seen = entry.look().expect("it is offered");
        assert_eq!((seen.generation, seen.place), (last, last as u64 - 1));
        assert!(seen.private && seen.bytes == 16);
    }

    #[test]
    fn what_a_dead_borrower_had_can_be_borrowed_again() {
        let entry = entry();
        let generation = entry.offer(0, 8, false);
        assert!(!entry.borrow(4, generation), "it is not lent");
        entry.turn(generation, Mode::Open, Mode::Exclusive).unwrap();
        assert!(entry.borrow(4, generation));
        assert!(!entry.borrow(5, generation), "one has it");
        assert!(!entry.take(5, generation, Mode::Open));
        assert_eq!(
            entry.turn(generation, Mode::Exclusive, Mode::Reading),
            Err(vec![4])
        );
        entry.clear(4);
        assert!(entry.borrow(5, generation));
        entry.give_back(4, generation);
        assert_eq!(entry.who(), [5], "it is not given back by somebody else");
        entry.give_back(5, generation);
        entry.withdraw();
        assert!(!entry.borrow(5, generation), "it is not offered");
        assert_eq!(entry.who(), []);
        entry.offer_again();
        assert_eq!(
            entry.turn(generation, Mode::Exclusive, Mode::Reading),
            Ok(())
        );
        assert!(!entry.borrow(5, generation));
    }

    /// A borrower dies when it has changed some of the words.
    #[test]
    fn what_a_borrower_has_half_published_can_be_taken_back() {
        for (to, changed) in [(Mode::Reading, 3), (Mode::Exclusive, 5), (Mode::Reading, 8)] {
            let entry = entry();
            let generation = entry.offer(0, 8, false);
            entry.turn(generation, Mode::Open, Mode::Exclusive).unwrap();
            assert!(entry.borrow(4, generation));
            if to == Mode::Exclusive {
                assert!(entry.publish(4, generation));
            }
            for (_, users) in entry.all_users().take(changed) {
                users.store(header(generation, to), Ordering::Relaxed);
            }
            let closed = entry.turn(generation, Mode::Exclusive, Mode::Closed);
            assert_eq!(closed, Err(vec![4]));
            entry.clear(4);
            // A reader who comes in time is not forgotten.
            let reads = entry.take(9, generation, Mode::Reading);
            let closed = entry.turn(generation, Mode::Exclusive, Mode::Closed);
            assert_eq!(closed.is_err(), reads);
            if let Err(who) = closed {
                assert_eq!(who, [9]);
                entry.leave(9);
                entry
                    .turn(generation, Mode::Exclusive, Mode::Closed)
                    .unwrap();
            }
            assert!(!entry.borrow(5, generation));
            assert!(!entry.take(5, generation, Mode::Reading));
        }
    }

    /// What was published is lent again just when another process tries to borrow it, which names
    /// itself before it looks.
    #[test]
    fn who_tries_to_borrow_is_not_overlooked() {
        for (tries_at, to) in [
            (2, Mode::Exclusive),
            (2, Mode::Closed),
            (3, Mode::Exclusive),
        ] {
            let accesses = std::cell::Cell::new(0);
            let mut entry = Entry(Watched(entry().0, Box::new(|_, _| ())));
            let generation = entry.offer(0, 8, false);
            entry.turn(generation, Mode::Open, Mode::Exclusive).unwrap();
            assert!(entry.borrow(4, generation) && entry.publish(4, generation));
            entry.give_back(4, generation);
            entry.0.1 = Box::new(move |words: &Local, index: usize| {
                accesses.set(accesses.get() + u32::from(index == BORROWER));
                if index == BORROWER && accesses.get() == tries_at {
                    let [vacant, mine] = borrowers(5, generation);
                    let word = words.word(BORROWER);
                    // ORDERING: one thread.
                    let (before, after) = (Ordering::Acquire, Ordering::Relaxed);
                    word.compare_exchange(vacant, mine, before, after).ok();
                }
            });
            let turned = entry.turn(generation, Mode::Reading, to);
            entry.0.1 = Box::new(|_, _| ());
            match tries_at {
                // It is named in time.
                2 => {
                    assert_eq!(turned, Err(vec![5]));
                    assert!(
                        entry.take(6, generation, Mode::Reading),
                        "nothing has changed"
                    );
                }
                _ => assert_eq!(turned, Ok(())),
            }
        }
    }

    #[test]
    fn who_is_not_the_borrower_publishes_nothing() {
        let entry = entry();
        let generation = entry.offer(0, 8, false);
        entry.turn(generation, Mode::Open, Mode::Exclusive).unwrap();
        assert!(!entry.publish(4, generation));
        assert!(entry.borrow(4, generation));
        assert!(!entry.publish(5, generation));
        assert!(entry.publish(4, generation));
        assert_eq!(entry.retract(5, generation), Err(vec![]));
        // In the last word.
        assert!(entry.take(400, generation, Mode::Reading));
        assert_eq!(entry.retract(4, generation), Err(vec![400]));
        assert!(
            entry.take(3, generation, Mode::Reading),
            "nothing has changed"
        );
        entry.leave(3);
        entry.leave(400);
        assert_eq!(entry.retract(4, generation), Ok(()));
        entry.give_back(4, generation);
        assert_eq!(entry.turn(generation, Mode::Exclusive, Mode::Open), Ok(()));
    }

    /// Process 3 is inside only when the owner accesses its word for the nth time.
    #[test]
    fn a_turn_that_fails_names_a_process_even_if_that_has_left() {
        for inside_at in 1..=3 {
            let accesses = std::cell::Cell::new(0);
            let passes = move |words: &Local, index: usize| {
                if index == USERS {
                    accesses.set(accesses.get() + 1);
                    match accesses.get() == inside_at {
                        true => words.word(USERS).fetch_or(1 << 3, Ordering::Relaxed),
                        false => words.word(USERS).fetch_and(!(1 << 3), Ordering::Relaxed),
                    };
                }
            };
            let mut entry = Entry(Watched(entry().0, Box::new(|_, _| ())));
            let generation = entry.offer(0, 8, false);
            entry.0.1 = Box::new(passes);
            let turned = entry.turn(generation, Mode::Open, Mode::Closed);
            let expected = if inside_at == 3 { Ok(()) } else { Err(vec![3]) };
            assert_eq!(turned, expected);
        }
    }

    #[test]
    fn a_turn_that_fails_closes_no_other_word() {
        let mut entry = Entry(Watched(entry().0, Box::new(|_, _| ())));
        let generation = entry.offer(0, 8, false);
        assert!(entry.take(58, generation, Mode::Open));
        entry.0.1 = Box::new(move |words, _| {
            let first = words.word(USERS).load(Ordering::Relaxed);
            assert_eq!(first, header(generation, Mode::Open));
        });
        let turned = entry.turn(generation, Mode::Open, Mode::Exclusive);
        assert_eq!(turned, Err(vec![58]));
    }
}

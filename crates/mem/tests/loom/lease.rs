//! A segment that its owner, one borrower, or many users have.

use crate::model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use samite_mem::lease::{Entry, Mode, Words};

struct Memory {
    entry: Entry<Local>,
    bytes: UnsafeCell<u64>,
}

/// An entry with words of users for so many processes that none shares its word with the next.
struct Local {
    words: Vec<AtomicU64>,
    users: usize,
}

impl Words for Local {
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }
    fn user_words(&self) -> usize {
        self.users
    }
}

impl Memory {
    /// Open, with so many words of users; and its generation.
    fn offered(users: usize) -> (Arc<Memory>, u32) {
        let words = (0..8 + users).map(|_| AtomicU64::new(0)).collect();
        let entry = Entry(Local { words, users });
        let generation = entry.offer(0, 8, false);
        let bytes = UnsafeCell::new(0);
        (Arc::new(Memory { entry, bytes }), generation)
    }

    /// Uses it in a mode if that can be had; whether it could.
    fn used(&self, me: usize, generation: u32, mode: Mode) -> bool {
        let taken = self.entry.take(me, generation, mode);
        if taken {
            match mode {
                // SAFETY: loom fails the model if anybody else is at the bytes.
                Mode::Open => self.bytes.with_mut(|bytes| unsafe { *bytes += 1 }),
                // SAFETY: as above.
                _ => drop(self.bytes.with(|bytes| unsafe { *bytes })),
            }
            self.entry.leave(me);
        }
        taken
    }

    fn add(&self, by: u64) {
        // SAFETY: as above.
        self.bytes.with_mut(|bytes| unsafe { *bytes += by });
    }
}

/// Process 0 has its bit in the first word, process 56 in the second.
const FIRST: usize = 0;
const SECOND: usize = 56;

/// No process is inside while the owner has it, in whichever word; and what was written on one side
/// of a turn is ordered before what is read on the other.
#[test]
fn the_owner_is_alone() {
    model(2, || {
        let (memory, generation) = Memory::offered(2);
        let user = {
            let memory = memory.clone();
            thread::spawn(move || {
                memory.used(SECOND, generation, Mode::Open);
                memory.used(FIRST, generation, Mode::Reading);
            })
        };
        let turn = |from, to| memory.entry.turn(generation, from, to);
        if turn(Mode::Open, Mode::Closed).is_ok() {
            memory.add(10);
            turn(Mode::Closed, Mode::Reading).expect("nobody gets in");
        }
        user.join().unwrap();
        let turned = turn(Mode::Reading, Mode::Closed).or_else(|_| turn(Mode::Open, Mode::Closed));
        assert_eq!(turned, Ok(()), "everybody left, so it turns");
    });
}

/// A turn that finds a process inside leaves everything as it was, and names the process. Others
/// come and go meanwhile.
#[test]
fn a_turn_that_fails_changes_nothing() {
    model(2, || {
        let (memory, generation) = Memory::offered(2);
        let user = {
            let memory = memory.clone();
            thread::spawn(move || {
                if memory.entry.take(FIRST, generation, Mode::Open) {
                    memory.entry.leave(FIRST);
                }
                memory.entry.take(SECOND, generation, Mode::Open)
            })
        };
        let turned = memory.entry.turn(generation, Mode::Open, Mode::Reading);
        let stays = user.join().unwrap();
        assert_eq!(turned.is_err(), stays);
        if let Err(who) = turned {
            assert!(!who.is_empty());
            assert!(memory.entry.take(FIRST, generation, Mode::Open));
            memory.entry.leave(FIRST);
            memory.entry.leave(SECOND);
            assert_eq!(
                memory.entry.turn(generation, Mode::Open, Mode::Reading),
                Ok(())
            );
        }
    });
}

/// The number of a segment is used again: a process with a lease reads the place of the generation
/// that it meant, and one that looks without a lease sees no mixture of two generations.
#[test]
fn a_number_that_is_used_again() {
    model(2, || {
        let (memory, first) = Memory::offered(1);
        let user = {
            let memory = memory.clone();
            thread::spawn(move || {
                if let Some(seen) = memory.entry.look() {
                    let is_first = seen.generation == first;
                    assert_eq!(
                        (seen.place, seen.bytes),
                        if is_first { (0, 8) } else { (64, 16) }
                    );
                }
                if memory.entry.take(FIRST, first, Mode::Open) {
                    assert_eq!(memory.entry.leased().place, 0);
                    memory.add(1);
                    memory.entry.leave(FIRST);
                }
            })
        };
        memory.entry.withdraw();
        let closed = memory.entry.turn(first, Mode::Open, Mode::Closed).is_ok();
        if closed {
            memory.add(10);
            memory.entry.offer(64, 16, false);
        }
        user.join().unwrap();
        assert!(memory.entry.who().is_empty());
    });
}

/// A lent block has one borrower at a time, its owner has it only after the borrower, and the agent
/// may give it back for a process that is dead.
#[test]
fn one_borrower_at_a_time() {
    model(2, || {
        let (memory, generation) = Memory::offered(1);
        memory
            .entry
            .turn(generation, Mode::Open, Mode::Exclusive)
            .unwrap();
        let borrowers: Vec<_> = (0..2)
            .map(|me| {
                let memory = memory.clone();
                thread::spawn(move || {
                    let borrowed = memory.entry.borrow(me, generation);
                    if borrowed {
                        memory.add(1);
                        match me {
                            0 => memory.entry.give_back(me, generation),
                            _ => memory.entry.clear(me),
                        }
                    }
                    borrowed as u64
                })
            })
            .collect();
        let turn = || {
            memory
                .entry
                .turn(generation, Mode::Exclusive, Mode::Reading)
        };
        let turned = turn().is_ok();
        if turned {
            assert!(
                !memory.entry.borrow(2, generation),
                "it is not lent any more"
            );
        }
        let written: u64 = borrowers.into_iter().map(|one| one.join().unwrap()).sum();
        if !turned {
            turn().expect("everybody left, so it turns");
        }
        assert!(memory.entry.take(2, generation, Mode::Reading));
        // SAFETY: as above.
        assert_eq!(memory.bytes.with(|bytes| unsafe { *bytes }), written);
    });
}

/// A borrower lets others read, and writes again when nobody does; the owner takes it back when the
/// borrower has left.
#[test]
fn a_borrower_and_its_readers() {
    model(2, || {
        let (memory, generation) = Memory::offered(2);
        let entry = |memory: &Memory| memory.entry.turn(generation, Mode::Open, Mode::Exclusive);
        entry(&memory).unwrap();
        assert!(memory.entry.borrow(1, generation));
        memory.add(1);
        let reader = {
            let memory = memory.clone();
            thread::spawn(move || {
                memory.used(FIRST, generation, Mode::Reading);
                memory.used(SECOND, generation, Mode::Reading);
            })
        };
        assert!(memory.entry.publish(1, generation));
        let retracted = memory.entry.retract(1, generation);
        if retracted.is_ok() {
            memory.add(1);
        }
        memory.entry.give_back(1, generation);
        let again = memory.entry.borrow(2, generation);
        assert_eq!(again, retracted.is_ok());
        if again {
            memory.add(1);
            memory.entry.give_back(2, generation);
        }
        let close = || memory.entry.turn(generation, Mode::Exclusive, Mode::Closed);
        let closed = close();
        if closed.is_ok() {
            memory.add(1);
        }
        reader.join().unwrap();
        if closed.is_err() {
            close().expect("everybody left, so it turns");
        }
        assert!(memory.entry.who().is_empty());
    });
}

/// The owner takes back what is published, by a lease of its own: then the borrower writes no more.
#[test]
fn what_is_published_is_taken_back_from_its_borrower() {
    model(2, || {
        let (memory, generation) = Memory::offered(2);
        let lent = memory.entry.turn(generation, Mode::Open, Mode::Exclusive);
        lent.unwrap();
        assert!(memory.entry.borrow(1, generation));
        memory.add(1);
        assert!(memory.entry.publish(1, generation));
        let borrower = {
            let memory = memory.clone();
            thread::spawn(move || {
                let retracted = memory.entry.retract(1, generation).is_ok();
                if retracted {
                    memory.add(1);
                    assert!(memory.entry.publish(1, generation));
                }
                memory.entry.give_back(1, generation);
            })
        };
        let taken = memory.entry.enter(SECOND, generation, Mode::Reading);
        if taken {
            // SAFETY: as above.
            let _ = memory.bytes.with(|bytes| unsafe { *bytes });
        }
        borrower.join().unwrap();
        if taken {
            memory.entry.leave(SECOND);
        }
        let closed = memory.entry.turn(generation, Mode::Exclusive, Mode::Closed);
        assert_eq!(closed, Ok(()));
    });
}

/// What a borrower has published, and the owner has taken back, is lent again while another process
/// tries to borrow it: there is one borrower at a time.
#[test]
fn what_was_published_is_lent_again() {
    model(2, || {
        let (memory, generation) = Memory::offered(1);
        let turn = |from, to| memory.entry.turn(generation, from, to);
        turn(Mode::Open, Mode::Exclusive).unwrap();
        assert!(memory.entry.borrow(1, generation));
        assert!(memory.entry.publish(1, generation));
        memory.entry.give_back(1, generation);
        let borrow = move |memory: &Memory, me| {
            let borrowed = memory.entry.borrow(me, generation);
            if borrowed {
                memory.add(1);
                memory.entry.give_back(me, generation);
            }
            borrowed
        };
        let other = {
            let memory = memory.clone();
            thread::spawn(move || borrow(&memory, 1))
        };
        let lent = turn(Mode::Reading, Mode::Exclusive).is_ok();
        let borrowed = borrow(&memory, 2);
        assert!(lent || !borrowed);
        other.join().unwrap();
        let from = if lent { Mode::Exclusive } else { Mode::Reading };
        assert_eq!(turn(from, Mode::Closed), Ok(()));
        memory.add(1);
    });
}

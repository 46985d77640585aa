//! A block that its owner, one borrower, or many readers have.

use crate::model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use samite_mem::gate::{GateWord, Mode};

struct Block {
    word: AtomicU64,
    bytes: UnsafeCell<u64>,
}

impl Block {
    /// The gate is open.
    fn behind_a_gate() -> Arc<Block> {
        let block = Block {
            word: AtomicU64::new(0),
            bytes: UnsafeCell::new(0),
        };
        GateWord(&block.word, 1).set_up();
        Arc::new(block)
    }
}

/// Nobody is inside while the owner has the block for itself, and what was written on one side of the
/// gate is ordered before what is read on the other.
#[test]
fn a_gate_keeps_the_owner_alone() {
    model(4, || {
        let block = Block::behind_a_gate();
        let users: Vec<_> = (0..2)
            .map(|user| {
                let block = block.clone();
                thread::spawn(move || {
                    let gate = GateWord(&block.word, 1);
                    if user == 0 && gate.enter(Mode::Open) {
                        // SAFETY: loom fails the model if anybody else is at the bytes.
                        block.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
                        gate.leave();
                    }
                    if gate.enter(Mode::Reading) {
                        // SAFETY: as above.
                        block.bytes.with(|bytes| unsafe { *bytes });
                        gate.leave();
                    }
                    // Of an earlier block in this place: it counts nowhere.
                    GateWord(&block.word, 0).leave();
                })
            })
            .collect();
        let gate = GateWord(&block.word, 1);
        if gate.turn(Mode::Open, Mode::Closed).is_ok() {
            // SAFETY: as above.
            block.bytes.with_mut(|bytes| unsafe { *bytes += 10 });
            gate.turn(Mode::Closed, Mode::Reading)
                .expect("nobody gets in");
        }
        for user in users {
            user.join().unwrap();
        }
        let from = match gate.turn(Mode::Reading, Mode::Closed) {
            Ok(()) => true,
            Err(_) => gate.turn(Mode::Open, Mode::Closed).is_ok(),
        };
        assert!(from, "everybody left, so it turns");
    });
}

/// A lent block has one borrower at a time, its owner has it only after the borrower, and readers see what was written.
#[test]
fn a_lent_gate_lets_one_in_at_a_time() {
    model(4, || {
        let block = Block::behind_a_gate();
        let gate = GateWord(&block.word, 1);
        gate.turn(Mode::Open, Mode::Lent).expect("nobody is there");
        let borrowers: Vec<_> = (0..2)
            .map(|_| {
                let block = block.clone();
                thread::spawn(move || {
                    let gate = GateWord(&block.word, 1);
                    let mut borrowed = 0;
                    if gate.enter_alone() {
                        // SAFETY: loom fails the model if anybody else is at the bytes.
                        block.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
                        borrowed = 1;
                        gate.leave();
                    }
                    if gate.enter(Mode::Reading) {
                        // SAFETY: as above.
                        let seen = block.bytes.with(|bytes| unsafe { *bytes });
                        assert!(seen >= borrowed);
                        gate.leave();
                    }
                    borrowed
                })
            })
            .collect();
        // Turns only while no borrower is inside; what was written by then is whole.
        let turned = gate.turn(Mode::Lent, Mode::Reading).is_ok();
        if turned {
            assert!(!gate.enter_alone(), "it is not lent any more");
        }
        let written: u64 = borrowers
            .into_iter()
            .map(|borrower| borrower.join().unwrap())
            .sum();
        if !turned {
            gate.turn(Mode::Lent, Mode::Reading)
                .expect("everybody left, so it turns");
        }
        assert!(gate.enter(Mode::Reading));
        // SAFETY: as above.
        assert_eq!(block.bytes.with(|bytes| unsafe { *bytes }), written);
    });
}

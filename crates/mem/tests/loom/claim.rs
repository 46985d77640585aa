//! A copy that both sides make together.

use crate::model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use samite_mem::copy::cooperative::Claim;

const PIECES: usize = 3;

/// The buffer that both sides of a cooperative copy write.
fn pieces() -> Arc<Vec<UnsafeCell<u32>>> {
    Arc::new((0..PIECES).map(|_| UnsafeCell::new(0)).collect())
}

fn copy(piece: &UnsafeCell<u32>) {
    // SAFETY: loom fails the model if both sides are inside, or not ordered.
    piece.with_mut(|count| unsafe { *count += 1 });
}

/// The sender helps from the back, as far as there are pieces.
fn help(word: &Arc<AtomicU64>, buffer: &Arc<Vec<UnsafeCell<u32>>>) -> thread::JoinHandle<()> {
    let (word, buffer) = (word.clone(), buffer.clone());
    thread::spawn(move || {
        let claim = Claim::new(&word, PIECES as u64);
        while let Some(piece) = claim.take_back() {
            copy(&buffer[piece as usize]);
            claim.done_back();
        }
    })
}

/// Each piece is copied once, by one side; when the receiver is finished all of them are visible.
#[test]
fn each_piece_is_copied_once() {
    model(6, || {
        let (word, buffer) = (Arc::new(AtomicU64::new(0)), pieces());
        let sender = help(&word, &buffer);
        let claim = Claim::new(&word, PIECES as u64);
        while let Some(piece) = claim.take_front() {
            copy(&buffer[piece as usize]);
        }
        while !claim.finished() {
            thread::yield_now();
        }
        for piece in buffer.iter() {
            // SAFETY: as in `copy`.
            piece.with(|count| unsafe { assert_eq!(*count, 1) });
        }
        sender.join().unwrap();
    });
}

/// After a revocation the receiver waits until the sender is quiet; then the buffer is its own.
#[test]
fn a_revoked_buffer_is_left_alone() {
    model(6, || {
        let (word, buffer) = (Arc::new(AtomicU64::new(0)), pieces());
        let sender = help(&word, &buffer);
        let claim = Claim::new(&word, PIECES as u64);
        if let Some(piece) = claim.take_front() {
            copy(&buffer[piece as usize]);
        }
        claim.revoke();
        while !claim.quiet() {
            thread::yield_now();
        }
        assert_eq!(claim.take_front(), None);
        buffer.iter().for_each(copy);
        sender.join().unwrap();
    });
}

/// The sender gives up: a receiver that finished before the revocation has the old bytes, any other
/// finds the message revoked.
#[test]
fn a_withdrawn_message_is_not_delivered() {
    model(6, || {
        let word = Arc::new(AtomicU64::new(0));
        // What the sender's buffer holds: 1 is the message, 2 what its owner writes afterwards.
        let source = Arc::new(AtomicU32::new(1));
        let (theirs, buffer) = (word.clone(), source.clone());
        let sender = thread::spawn(move || {
            Claim::new(&theirs, 1).revoke();
            // As memcpy does it: the order is the word's concern.
            buffer.store(2, Ordering::Relaxed);
        });
        let claim = Claim::new(&word, 1);
        if claim.take_front().is_some() {
            let copied = source.load(Ordering::Relaxed);
            // V1 of the rendezvous: the last look at the word comes after the last byte.
            if claim.intact() {
                assert_eq!(
                    copied, 1,
                    "bytes of a buffer that its owner uses again were delivered"
                );
            }
        } else {
            assert!(claim.revoked());
        }
        sender.join().unwrap();
    });
}

/// A piece that the sender took and could not copy: never finished, and quiet in the end.
#[test]
fn a_spoilt_message_is_never_finished() {
    model(6, || {
        let word = Arc::new(AtomicU64::new(0));
        let theirs = word.clone();
        let sender = thread::spawn(move || {
            let claim = Claim::new(&theirs, PIECES as u64);
            let took = claim.take_back().is_some();
            if took {
                claim.spoil();
                claim.done_back();
            }
            took
        });
        let claim = Claim::new(&word, PIECES as u64);
        let mut taken = 0;
        while claim.take_front().is_some() {
            taken += 1;
        }
        while !claim.finished() && !claim.spoilt() {
            thread::yield_now();
        }
        claim.revoke();
        while !claim.quiet() {
            thread::yield_now();
        }
        let spoilt = sender.join().unwrap();
        assert_eq!((claim.finished(), taken == PIECES), (!spoilt, !spoilt));
    });
}

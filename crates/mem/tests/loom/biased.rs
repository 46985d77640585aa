//! The biased lock: one thread is inside, and every thread that waits gets in.
//!
//! The value is a cell of loom's, which fails the model if two accesses are not ordered. Threads
//! have their tokens from loom's thread-local storage, and sleep on a condition of loom's, which
//! reports a sleeper that nobody wakes.

use crate::model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use samite_mem::{Biased, Guard};

type Lock = Arc<Biased<UnsafeCell<u64>>>;

fn new() -> Lock {
    Arc::new(Biased::new(UnsafeCell::new(0)))
}

/// A lock that is biased to this thread.
fn biased() -> Lock {
    let lock = new();
    drop(lock.lock());
    lock
}

fn add(guard: &mut Guard<'_, UnsafeCell<u64>>) {
    // SAFETY: the guard gives the right, and loom checks it.
    guard.with_mut(|value| unsafe { *value += 1 });
}

fn count(guard: &Guard<'_, UnsafeCell<u64>>) -> u64 {
    // SAFETY: as above.
    guard.with(|value| unsafe { *value })
}

fn in_another(lock: &Lock, body: impl FnOnce(&Lock) + Send + 'static) -> thread::JoinHandle<()> {
    let lock = lock.clone();
    thread::spawn(move || body(&lock))
}

/// The thread with the bias enters and leaves while another one withdraws it.
#[test]
fn a_bias_is_withdrawn_at_any_moment() {
    model(3, || {
        let lock = biased();
        let other = in_another(&lock, |lock| add(&mut lock.lock()));
        add(&mut lock.lock());
        add(&mut lock.lock());
        other.join().unwrap();
        assert_eq!(count(&lock.lock()), 3);
    });
}

/// Two threads want to withdraw the bias of a third at once.
#[test]
fn three_threads() {
    model(2, || {
        let lock = biased();
        let others = [(); 2].map(|()| in_another(&lock, |lock| add(&mut lock.lock())));
        add(&mut lock.lock());
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(count(&lock.lock()), 3);
    });
}

/// The bias goes to and fro: a thread that found its own and marks late does not disturb the next
/// one.
#[test]
fn the_bias_comes_back() {
    model(3, || {
        let lock = biased();
        let other = in_another(&lock, |lock| {
            for _ in 0..3 {
                add(&mut lock.lock());
            }
        });
        add(&mut lock.lock());
        other.join().unwrap();
        for _ in 0..3 {
            add(&mut lock.lock());
        }
        assert_eq!(count(&lock.lock()), 7);
    });
}

/// A look from another thread puts the bias back if the lock is held.
#[test]
fn a_look_disturbs_nobody() {
    model(3, || {
        let lock = biased();
        let other = in_another(&lock, |lock| {
            if let Some(mut guard) = lock.try_lock() {
                add(&mut guard);
            }
            add(&mut lock.lock());
        });
        add(&mut lock.lock());
        add(&mut lock.lock());
        other.join().unwrap();
        assert!(count(&lock.lock()) >= 3);
    });
}

/// A holder that waits for what another thread does under the lock lets it in, by the bias and by
/// the mutex.
#[test]
fn a_holder_lets_others_in() {
    for biased_first in [true, false] {
        model(2, move || {
            let lock = if biased_first { biased() } else { new() };
            let other = in_another(&lock, |lock| add(&mut lock.lock()));
            let mut guard = lock.lock();
            while count(&guard) == 0 {
                // It is wanted at some time, and then the other one has it before this one has it
                // again.
                let wanted = guard.is_wanted();
                guard.let_others();
                assert!(!wanted || count(&guard) == 1);
                thread::yield_now();
            }
            drop(guard);
            other.join().unwrap();
        });
    }
}

/// A holder sleeps without the lock, has it again afterwards, and sees what was done meanwhile.
#[test]
fn a_sleeper_unlocks() {
    model(3, || {
        let lock = biased();
        let done = Arc::new(AtomicU64::new(0));
        let other = {
            let done = done.clone();
            in_another(&lock, move |lock| {
                add(&mut lock.lock());
                done.store(1, Ordering::Release);
            })
        };
        let mut guard = lock.lock();
        guard.unlocked(|| {
            while done.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
        });
        assert_eq!(count(&guard), 1);
        add(&mut guard);
        drop(guard);
        other.join().unwrap();
    });
}

//! The biased lock among real threads. Every interleaving of few steps is in `loom`.

#![cfg(not(loom))]

use samite_mem::Biased;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

/// Two counters that differ if two threads were inside at once.
#[derive(Default)]
struct Twice(u64, u64);

impl Twice {
    fn add(&mut self) {
        assert_eq!(self.0, self.1);
        self.0 += 1;
        std::hint::black_box(&mut *self);
        self.1 += 1;
    }
}

fn words(panicked: Box<dyn std::any::Any + Send>) -> String {
    match panicked.downcast::<String>() {
        Ok(words) => *words,
        Err(other) => other.downcast::<&str>().unwrap().to_string(),
    }
}

/// Runs of different lengths, so that the bias is earned and withdrawn many times.
#[test]
fn many_threads_count() {
    let lock = Biased::new(Twice::default());
    let runs = [1, 700, 3, 5_000, 40, 1_500, 1, 20_000];
    thread::scope(|scope| {
        for start in 0..4 {
            let (lock, runs) = (&lock, runs.iter().cycle().skip(start).take(40));
            scope.spawn(move || {
                for &run in runs {
                    for _ in 0..run {
                        lock.lock().add();
                    }
                    thread::yield_now();
                }
            });
        }
    });
    let turns = 4 * 5 * runs.iter().sum::<u64>();
    assert_eq!(lock.into_inner().0, turns);
}

/// More threads, one after the other, than can have the bias: each one gets in.
#[test]
fn more_threads_than_cells() {
    let mut lock = Biased::new(Twice::default());
    for _ in 0..80 {
        thread::scope(|scope| {
            scope.spawn(|| (0..600).for_each(|_| lock.lock().add()));
        });
    }
    assert_eq!(lock.get_mut().0, 80 * 600);
}

/// A holder that never unlocks but asks others in, against threads that need it: nobody starves.
#[test]
fn a_spinning_holder_starves_nobody() {
    let lock = Biased::new(Twice::default());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut guard = lock.lock();
                while !over.load(Ordering::Relaxed) {
                    guard.let_others();
                    guard.add();
                }
            });
        }
        let waiting = [(); 3].map(|()| {
            scope.spawn(|| {
                for _ in 0..100 {
                    lock.lock().add();
                }
            })
        });
        for waiting in waiting {
            waiting.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A holder that waits for another thread, which needs the lock to answer.
#[test]
fn unlocked_while_it_sleeps() {
    let lock = Biased::new(Twice::default());
    let mut guard = lock.lock();
    for round in 0..50 {
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let lock = &lock;
            scope.spawn(move || {
                lock.lock().add();
                tell.send(()).unwrap();
            });
            guard.unlocked(|| told.recv().unwrap());
        });
        guard.add();
        assert_eq!(guard.0, 2 * (round + 1));
    }
}

#[test]
fn a_panic_unlocks() {
    let lock = Biased::new(Twice::default());
    for _ in 0..2 {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("inside");
        }));
        assert!(panicked.is_err());
    }
    let mut guard = lock.lock();
    let panicked = catch_unwind(AssertUnwindSafe(|| guard.unlocked(|| panic!("asleep"))));
    assert!(panicked.is_err());
    thread::scope(|scope| {
        scope.spawn(|| assert!(lock.try_lock().is_none(), "it is locked again"));
    });
    drop(guard);
    thread::scope(|scope| {
        scope.spawn(|| lock.lock().add());
    });
}

/// By the mutex, by the bias, and by a bias that another thread is withdrawing.
#[test]
fn a_thread_that_holds_it_is_told() {
    let lock = Biased::new(Twice::default());
    let again = || {
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(lock.lock()))).unwrap_err();
        assert!(words(panicked).contains("already holds"));
        assert!(lock.try_lock().is_none());
    };
    let by_mutex = lock.lock();
    again();
    drop(by_mutex);
    let by_bias = lock.lock();
    again();
    thread::scope(|scope| {
        scope.spawn(|| lock.lock().add());
        while !by_bias.is_wanted() {
            thread::yield_now();
        }
        again();
        drop(by_bias);
    });
    lock.lock().add();
}

/// A thread that ended with a guard that it forgot: the lock stays held, also for a thread that
/// starts afterwards, perhaps at the same addresses.
#[test]
fn a_forgotten_guard_holds_it_for_ever() {
    let lock = Biased::new(Twice::default());
    for _ in 0..2 {
        thread::scope(|scope| {
            scope.spawn(|| {
                if let Some(guard) = lock.try_lock() {
                    drop(guard);
                    std::mem::forget(lock.lock());
                }
            });
        });
        thread::scope(|scope| {
            scope.spawn(|| assert!(lock.try_lock().is_none()));
        });
    }
}

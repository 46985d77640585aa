//! The biased lock in a fork. A file of its own: no other test may panic while this one forks,
//! since a fork would have a copy of a lock of the standard library that a panic holds.

#![cfg(not(loom))]

use samite_mem::Biased;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread;

/// Runs `body` in a fork of this process, and says whether it returned true there.
fn in_a_fork(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls what the lock calls, which is made for it, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let good = catch_unwind(AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: no handler of the parent runs.
            unsafe { libc::_exit(if good { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of this process and a word of its own.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

/// What a fork finds: free or its own, it works; another thread's, it is told and does not wait.
#[test]
fn a_fork_does_not_wait_for_threads_that_it_does_not_have() {
    let lock = Biased::new(0u64);
    let use_it = || {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..1_000).for_each(|_| *lock.lock() += 1));
            }
            (0..1_000).for_each(|_| *lock.lock() += 1);
        });
        true
    };
    let is_told = || {
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(lock.lock()))).unwrap_err();
        let words = panicked.downcast_ref::<String>().unwrap();
        words.contains("forked") && lock.try_lock().is_none()
    };
    assert!(in_a_fork(use_it), "never used");
    use_it();
    assert!(in_a_fork(use_it), "used by threads that have ended");
    // Held by this thread, and two others wait in the queue.
    let asked = Arc::new(Biased::new(0u64));
    let guard = asked.lock();
    let waiting = [(); 2].map(|()| {
        let asked = asked.clone();
        thread::spawn(move || *asked.lock() += 1)
    });
    while !guard.is_wanted() {
        thread::yield_now();
    }
    let mut guard = Some(guard);
    assert!(
        in_a_fork(|| {
            guard.as_mut().unwrap().let_others();
            drop(guard.take());
            *asked.lock() += 1;
            thread::scope(|scope| scope.spawn(|| *asked.lock() == 1).join().unwrap())
        }),
        "its own"
    );
    drop(guard);
    waiting
        .into_iter()
        .for_each(|waiting| waiting.join().unwrap());
    // Held by another thread: by the mutex, then by its bias.
    for times in [1, 3_000] {
        let lock = &lock;
        let (inside, out) = (&Barrier::new(2), &Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(move || {
                (1..times).for_each(|_| *lock.lock() += 1);
                let _guard = lock.lock();
                inside.wait();
                out.wait();
            });
            inside.wait();
            let told = in_a_fork(is_told);
            out.wait();
            assert!(told, "another thread's, after {times} turns");
        });
    }
    use_it();
}

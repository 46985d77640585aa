//! Who sleeps is woken.

use crate::model;
use crate::ring::{LINE, read, write};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use samite_mem::{BellWords, Doorbell, NEWS_WORDS};

/// A doorbell whose kernel is a lock and a condition.
struct Bell {
    asleep: AtomicU32,
    news: Vec<AtomicU64>,
    kernel: Mutex<()>,
    woken: Condvar,
}

impl Bell {
    fn new(news: u64) -> Arc<Bell> {
        Arc::new(Bell {
            asleep: AtomicU32::new(0),
            news: (0..NEWS_WORDS)
                .map(|word| AtomicU64::new(if word == 0 { news } else { 0 }))
                .collect(),
            kernel: Mutex::new(()),
            woken: Condvar::new(),
        })
    }

    /// `futex_wait`: sleeps if the word still is 1. Loom reports a sleeper that nobody wakes.
    fn futex_wait(&self) {
        let kernel = self.kernel.lock().unwrap();
        if self.asleep.load(Ordering::SeqCst) == 1 {
            drop(self.woken.wait(kernel).unwrap());
        }
    }
}

#[derive(Clone)]
struct Words(Arc<Bell>);

impl BellWords for Words {
    fn asleep(&self) -> &AtomicU32 {
        &self.0.asleep
    }
    fn news(&self, word: usize) -> &AtomicU64 {
        &self.0.news[word]
    }
    fn wake(&self) {
        let _kernel = self.0.kernel.lock().unwrap();
        self.0.woken.notify_one();
    }
}

/// Published, then rung, while the owner looks, dozes, looks again and sleeps: it never sleeps on.
#[test]
fn no_wake_up_is_lost() {
    model(6, || {
        let bell = Bell::new(1);
        let frames = Arc::new(AtomicU64::new(0));
        let (theirs, sent) = (Doorbell(Words(bell.clone())), frames.clone());
        let sender = thread::spawn(move || {
            for _ in 0..2 {
                sent.fetch_add(1, Ordering::Release);
                theirs.ring(0);
            }
        });
        let mine = Doorbell(Words(bell.clone()));
        while frames.load(Ordering::Acquire) < 2 {
            mine.doze();
            if frames.load(Ordering::Acquire) < 2 {
                bell.futex_wait();
            }
            mine.rise();
        }
        sender.join().unwrap();
    });
}

/// Data and a word that says so, without a frame: whoever waits for the word wakes, and has the data.
#[test]
fn a_signalled_word_is_seen() {
    model(6, || {
        let bell = Bell::new(0);
        let word = Arc::new(AtomicU64::new(0));
        let data = Arc::new(UnsafeCell::new([0; LINE]));
        let theirs = Doorbell(Words(bell.clone()));
        let (signal, put) = (word.clone(), data.clone());
        let sender = thread::spawn(move || {
            write(&put, 0, &[7; LINE]);
            signal.fetch_add(1, Ordering::SeqCst);
            theirs.nudge();
        });
        let mine = Doorbell(Words(bell.clone()));
        while word.load(Ordering::Acquire) == 0 {
            mine.doze();
            if word.load(Ordering::Acquire) == 0 {
                bell.futex_wait();
            }
            mine.rise();
        }
        let mut found = [0; LINE];
        read(&data, 0, &mut found);
        assert_eq!(found, [7; LINE]);
        sender.join().unwrap();
    });
}

/// The owner stops polling a ring while its peer publishes: either it sees the frame at its second
/// look, or the peer sets the bit again and wakes it.
#[test]
fn a_forgotten_ring_is_found_again() {
    model(6, || {
        let bell = Bell::new(1);
        let frame = Arc::new(AtomicU64::new(0));
        let (theirs, sent) = (Doorbell(Words(bell.clone())), frame.clone());
        let sender = thread::spawn(move || {
            sent.store(1, Ordering::Release);
            theirs.ring(0);
        });
        let mine = Doorbell(Words(bell.clone()));
        mine.forget(0);
        if frame.load(Ordering::Acquire) == 1 {
            mine.keep(0);
        } else {
            // From here on it looks at nothing but the bit.
            while mine.news(0) & 1 == 0 {
                mine.doze();
                if mine.news(0) & 1 == 0 {
                    bell.futex_wait();
                }
                mine.rise();
            }
            assert_eq!(frame.load(Ordering::Acquire), 1, "a bit without a frame");
        }
        sender.join().unwrap();
    });
}

/// Two producers and one sleeper: one wake-up is enough for both.
#[test]
fn two_peers_ring_at_once() {
    model(3, || {
        let bell = Bell::new(0);
        let ring = |from: usize| {
            let theirs = Doorbell(Words(bell.clone()));
            thread::spawn(move || theirs.ring(from))
        };
        let senders = [ring(0), ring(1)];
        let mine = Doorbell(Words(bell.clone()));
        while mine.news(0) != 3 {
            mine.doze();
            if mine.news(0) != 3 {
                bell.futex_wait();
            }
            mine.rise();
        }
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
    });
}

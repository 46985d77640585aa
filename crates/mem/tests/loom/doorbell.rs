//! Every sleeper is woken.

use crate::model;
use crate::ring::{LINE, read, write};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use samite_mem::{BellWords, Doorbell, NEWS_WORDS, Sleep};

/// A doorbell whose kernel is a lock and a condition.
struct Bell {
    asleep: AtomicU32,
    news: Vec<AtomicU64>,
    address: AtomicU64,
    kernel: Mutex<Kernel>,
    /// The owner, while it sleeps on the futex, and while it polls.
    on_futex: Condvar,
    polls: Condvar,
}

/// What the descriptors of the owner have: a datagram, an event of an engine.
#[derive(Default)]
struct Kernel {
    datagram: bool,
    event: bool,
}

const ADDRESS: u64 = 4711;

impl Bell {
    fn new(news: u64) -> Arc<Bell> {
        Arc::new(Bell {
            asleep: AtomicU32::new(0),
            news: (0..NEWS_WORDS)
                .map(|word| AtomicU64::new(if word == 0 { news } else { 0 }))
                .collect(),
            address: AtomicU64::new(0),
            kernel: Mutex::new(Kernel::default()),
            on_futex: Condvar::new(),
            polls: Condvar::new(),
        })
    }

    /// `futex_wait`: sleeps if the word still is 1. Loom reports a sleeper that nobody wakes.
    fn futex_wait(&self) {
        let kernel = self.kernel.lock().unwrap();
        if self.asleep.load(Ordering::SeqCst) == 1 {
            drop(self.on_futex.wait(kernel).unwrap());
        }
    }

    /// `poll`, then the datagram is thrown away. The event stays until the engine has been asked.
    fn poll(&self) {
        let mut kernel = self.kernel.lock().unwrap();
        while !kernel.datagram && !kernel.event {
            kernel = self.polls.wait(kernel).unwrap();
        }
        kernel.datagram = false;
    }

    fn engine_has_event(&self) -> bool {
        self.kernel.lock().unwrap().event
    }

    /// What the engine does when something arrives from another node.
    fn engine_event(&self) {
        self.kernel.lock().unwrap().event = true;
        self.polls.notify_one();
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
    fn address(&self) -> &AtomicU64 {
        &self.0.address
    }
    fn wake_futex(&self) {
        let _kernel = self.0.kernel.lock().unwrap();
        self.0.on_futex.notify_one();
    }
    fn wake_socket(&self, address: u64) {
        assert_eq!(address, ADDRESS, "the 2 was seen before the address");
        self.0.kernel.lock().unwrap().datagram = true;
        self.0.polls.notify_one();
    }
}

/// Published, then rung, while the owner looks, announces, looks again and sleeps: it never sleeps
/// on.
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
            mine.announce_sleep(Sleep::Futex);
            if frames.load(Ordering::Acquire) < 2 {
                bell.futex_wait();
            }
            mine.end_sleep();
        }
        sender.join().unwrap();
    });
}

/// Data and a word that says so, without a frame: whoever waits for the word wakes, and has the
/// data.
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
            mine.announce_sleep(Sleep::Futex);
            if word.load(Ordering::Acquire) == 0 {
                bell.futex_wait();
            }
            mine.end_sleep();
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
                mine.announce_sleep(Sleep::Futex);
                if mine.news(0) & 1 == 0 {
                    bell.futex_wait();
                }
                mine.end_sleep();
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
            mine.announce_sleep(Sleep::Futex);
            if mine.news(0) != 3 {
                bell.futex_wait();
            }
            mine.end_sleep();
        }
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
    });
}

/// A frame of a peer on the node and an event of an engine, each at any moment: an owner that
/// polls is woken by both.
#[test]
fn a_poller_hears_peers_and_engines() {
    model(4, || {
        let bell = Bell::new(1);
        let frame = Arc::new(AtomicU64::new(0));
        let (theirs, sent) = (Doorbell(Words(bell.clone())), frame.clone());
        let peer = thread::spawn(move || {
            sent.store(1, Ordering::Release);
            theirs.ring(0);
        });
        let wire = bell.clone();
        let engine = thread::spawn(move || wire.engine_event());
        let mine = Doorbell(Words(bell.clone()));
        let (mut got_frame, mut got_event) = (false, false);
        while !got_frame || !got_event {
            let is_new = |got_frame: bool, got_event: bool| {
                frame.load(Ordering::Acquire) == 1 && !got_frame
                    || !got_event && bell.engine_has_event()
            };
            mine.announce_sleep(Sleep::Descriptors(ADDRESS));
            if !is_new(got_frame, got_event) {
                bell.poll();
            }
            mine.end_sleep();
            got_frame = frame.load(Ordering::Acquire) == 1;
            got_event |= std::mem::take(&mut bell.kernel.lock().unwrap().event);
        }
        peer.join().unwrap();
        engine.join().unwrap();
    });
}

/// An owner that sleeps on the futex, then on descriptors, and the other way round, while a peer
/// publishes twice: a wake-up of the first kind that comes late takes none of the second kind
/// away.
#[test]
fn an_owner_changes_how_it_sleeps() {
    for first in [0, 1] {
        model(4, move || {
            let bell = Bell::new(1);
            let frames = Arc::new(AtomicU64::new(0));
            let (theirs, sent) = (Doorbell(Words(bell.clone())), frames.clone());
            let peer = thread::spawn(move || {
                for _ in 0..2 {
                    sent.fetch_add(1, Ordering::Release);
                    theirs.ring(0);
                }
            });
            let mine = Doorbell(Words(bell.clone()));
            for round in 0..2 {
                while frames.load(Ordering::Acquire) <= round {
                    if round == first {
                        mine.announce_sleep(Sleep::Futex);
                        if frames.load(Ordering::Acquire) <= round {
                            bell.futex_wait();
                        }
                    } else {
                        mine.announce_sleep(Sleep::Descriptors(ADDRESS));
                        if frames.load(Ordering::Acquire) <= round {
                            bell.poll();
                        }
                    }
                    mine.end_sleep();
                }
            }
            peer.join().unwrap();
        });
    }
}

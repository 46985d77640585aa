//! Every interleaving of the ring, the doorbell and the claim word, within a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p samite-mem --release --test loom`
//!
//! Cells hold their bytes in loom's `UnsafeCell`: a read that is not ordered after the write of the
//! same bytes fails the model, not only one that sees wrong bytes.

#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use samite_mem::copy::cooperative::Claim;
use samite_mem::ring::{CELLS, Consumer, Medium, Producer};
use samite_mem::{BellWords, Doorbell, NEWS_WORDS};

/// Runs a model with at most so many preemptions per execution.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

const LINE: usize = 64;
const BULK_LINES: usize = 4;

/// A ring and its bulk area in memory that loom watches.
struct Memory {
    headers: Vec<AtomicU64>,
    cells: Vec<UnsafeCell<[u8; LINE]>>,
    bulk: Vec<UnsafeCell<[u8; LINE]>>,
    head: AtomicU64,
    bulk_head: AtomicU64,
}

impl Memory {
    fn new() -> Arc<Memory> {
        let bytes = || UnsafeCell::new([0; LINE]);
        Arc::new(Memory {
            headers: (0..CELLS).map(|_| AtomicU64::new(0)).collect(),
            cells: (0..CELLS).map(|_| bytes()).collect(),
            bulk: (0..BULK_LINES).map(|_| bytes()).collect(),
            head: AtomicU64::new(0),
            bulk_head: AtomicU64::new(0),
        })
    }

    /// Bodies of these models are whole lines.
    fn bulk_lines(&self, offset: u64, bytes: u64) -> &[UnsafeCell<[u8; LINE]>] {
        let first = offset as usize / LINE % BULK_LINES;
        &self.bulk[first..first + bytes as usize / LINE]
    }
}

fn write(cell: &UnsafeCell<[u8; LINE]>, at: usize, from: &[u8]) {
    // SAFETY: loom fails the model if anybody else is inside or not ordered against this.
    cell.with_mut(|bytes| unsafe { (&mut *bytes)[at..at + from.len()].copy_from_slice(from) });
}

fn read(cell: &UnsafeCell<[u8; LINE]>, at: usize, into: &mut [u8]) {
    // SAFETY: as in `write`.
    cell.with(|bytes| unsafe { into.copy_from_slice(&(&*bytes)[at..at + into.len()]) });
}

#[derive(Clone)]
struct End(Arc<Memory>);

impl Medium for End {
    fn header(&self, cell: u64) -> &AtomicU64 {
        &self.0.headers[cell as usize]
    }
    fn head(&self) -> &AtomicU64 {
        &self.0.head
    }
    fn bulk_head(&self) -> &AtomicU64 {
        &self.0.bulk_head
    }
    fn write(&self, cell: u64, at: usize, from: &[u8]) {
        write(&self.0.cells[cell as usize], at, from);
    }
    fn read(&self, cell: u64, at: usize, into: &mut [u8]) {
        read(&self.0.cells[cell as usize], at, into);
    }
}

fn content(number: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (number as u8).wrapping_mul(31).wrapping_add(at as u8))
        .collect()
}

/// Frames of one and two cells, one and a half laps: all arrive, whole and in order.
#[test]
fn frames_go_round() {
    const FRAMES: [usize; 4] = [8, 60, 104, 48];
    model(5, || {
        let memory = Memory::new();
        let mut producer = Producer::new(End(memory.clone()));
        let sender = thread::spawn(move || {
            for (number, len) in FRAMES.into_iter().enumerate() {
                let inline = content(number as u64, len);
                while producer.push(7, number as u64, &inline, 0).is_err() {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(End(memory));
        for (number, len) in FRAMES.into_iter().enumerate() {
            loop {
                if let Some(frame) = consumer.peek().unwrap() {
                    assert_eq!((frame.kind, frame.arg), (7, number as u64));
                    assert_eq!(frame.inline, content(number as u64, len));
                    break;
                }
                thread::yield_now();
            }
            consumer.advance();
        }
        assert!(consumer.peek().unwrap().is_none());
        sender.join().unwrap();
    });
}

/// Bodies in the bulk area, one lap and more, with a skipped end.
#[test]
fn bodies_go_round() {
    const BODIES: [usize; 4] = [1, 2, 2, 1];
    model(5, || {
        let memory = Memory::new();
        let area = (BULK_LINES * LINE) as u64;
        let mut producer = Producer::new(End(memory.clone()));
        producer.set_bulk_bytes(area);
        let sender = thread::spawn(move || {
            for (number, lines) in BODIES.into_iter().enumerate() {
                let bytes = (lines * LINE) as u64;
                let start = loop {
                    match producer.reserve_bulk(0, bytes, 0) {
                        Ok(start) => break start,
                        Err(_) => thread::yield_now(),
                    }
                };
                for line in producer.medium.0.bulk_lines(start, bytes) {
                    write(line, 0, &content(number as u64, LINE));
                }
                producer.push_bulk(9, number as u64, &[], start, bytes);
            }
        });
        let mut consumer = Consumer::new(End(memory));
        consumer.set_bulk_bytes(area);
        for (number, lines) in BODIES.into_iter().enumerate() {
            loop {
                if let Some((frame, medium)) = consumer.peek_with_medium().unwrap() {
                    let (offset, bytes) = frame.bulk.unwrap();
                    assert_eq!((frame.arg, bytes), (number as u64, (lines * LINE) as u64));
                    for line in medium.0.bulk_lines(offset, bytes) {
                        let mut seen = [0; LINE];
                        read(line, 0, &mut seen);
                        assert_eq!(seen.to_vec(), content(number as u64, LINE));
                    }
                    break;
                }
                thread::yield_now();
            }
            consumer.advance();
        }
        sender.join().unwrap();
    });
}

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

/// The sender gives up: who finished before the revocation has the old bytes, everybody else knows.
#[test]
fn a_withdrawn_message_is_not_delivered() {
    model(6, || {
        let word = Arc::new(AtomicU64::new(0));
        // What the sender's buffer holds: 1 is the message, 2 what its owner writes afterwards.
        let source = Arc::new(AtomicU32::new(1));
        let (theirs, buffer) = (word.clone(), source.clone());
        let sender = thread::spawn(move || {
            Claim::new(&theirs, 1).revoke();
            buffer.store(2, Ordering::Release);
        });
        let claim = Claim::new(&word, 1);
        if claim.take_front().is_some() {
            let copied = source.load(Ordering::Acquire);
            // V1 of the rendezvous: the last look at the word comes after the last byte.
            if claim.finished() && !claim.revoked() {
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

/// Nobody is inside while the owner has the block for itself, and what was written on one side of the
/// gate is ordered before what is read on the other.
#[test]
fn a_gate_keeps_the_owner_alone() {
    use samite_mem::gate::{GateWord, Mode};
    struct Block {
        word: AtomicU64,
        bytes: UnsafeCell<u64>,
    }
    model(4, || {
        let block = Arc::new(Block {
            word: AtomicU64::new(0),
            bytes: UnsafeCell::new(0),
        });
        GateWord(&block.word, 1).set_up();
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

//! Measures the copy engines of this host, so that the choice between them depends on measurements
//! and not on constants.
//!
//! Two threads on two processors act as sender and receiver; their private pages are pinned, copied
//! and shared between caches like those of two processes. Each engine moves the same bytes, in
//! turn, several times. The best result counts, because other activity only adds time. With one
//! processor, both threads run on it, and nothing overlaps.

use crate::copy::cooperative::{self, Claim};
use crate::ring::{Body, Consumer, Producer, RING_BYTES, SharedRing};
use crate::sync::{AtomicU64, Ordering};
use crate::{Arena, Error, Pages, Span};
use rustix::io::Errno;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

/// Rates at one size, in bytes per microsecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Size of the message, in bytes.
    pub bytes: u64,
    /// Through a ring.
    pub ring: f64,
    /// Kernel copy by the receiver.
    pub kernel: f64,
    /// Kernel copy by both.
    pub cooperative: f64,
}

const SIZES: [u64; 8] = [
    4 << 10,
    8 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
];
const REPEATS: usize = 9;
const PIECE: u64 = 32 << 10;
const BULK: u64 = 256 << 10;

/// Measures every engine at several sizes; takes about half a second.
pub fn measure() -> Result<Vec<Measured>, Error> {
    // In a separate thread, so that the affinity of the caller does not change.
    let all = || {
        let cpus = own_cpus();
        pin(&cpus, 0);
        SIZES
            .iter()
            .map(|bytes| measure_size(*bytes, &cpus))
            .collect()
    };
    std::thread::scope(|scope| match spawn(scope, all)?.join() {
        Ok(measured) => measured,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Returns the processors on which [`measure`] runs its two threads.
pub fn cpus() -> Vec<usize> {
    own_cpus().into_iter().take(2).collect()
}

/// Starts a thread, which the limits of the user may not allow.
fn spawn<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    thread: impl FnOnce() -> T + Send + 's,
) -> Result<ScopedJoinHandle<'s, T>, Error> {
    let started = std::thread::Builder::new().spawn_scoped(scope, thread);
    started.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        Error::system("starting a thread")(errno)
    })
}

/// Returns the processors that this thread may run on.
fn own_cpus() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let Ok(allowed) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect()
}

/// Pins the calling thread. Best effort: a container may forbid it, or have only one processor.
fn pin(cpus: &[usize], index: usize) {
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpus[index % cpus.len()]);
    let _ = rustix::thread::sched_setaffinity(None, &one);
}

fn measure_size(bytes: u64, cpus: &[usize]) -> Result<Measured, Error> {
    let (mut from, mut to) = (Pages::new(bytes, false)?, Pages::new(bytes, false)?);
    from.fill(1);
    to.fill(2);
    let ring = through_ring(&from, &mut to, cpus)?;
    let kernel = best(|| by_kernel(from.as_ptr() as u64, &mut to));
    let (piece, to) = (cooperative::piece(bytes), Target(to));
    let copy = |index: u64| {
        let offset = index * piece;
        let len = piece.min(bytes - offset);
        let part = &from[offset as usize..(offset + len) as usize];
        crate::sys::write_own_pages(&to, offset, part)
    };
    let cooperative = cooperatively(bytes.div_ceil(piece), &copy, cpus)?;
    Ok(Measured {
        bytes,
        ring: rate(bytes, ring),
        kernel: rate(bytes, kernel),
        cooperative: rate(bytes, cooperative),
    })
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds.is_finite() && seconds > 0.0 {
        bytes as f64 / seconds / 1e6
    } else {
        0.0
    }
}

fn best(mut one: impl FnMut() -> f64) -> f64 {
    (0..REPEATS).map(|_| one()).fold(f64::INFINITY, f64::min)
}

/// Returns the seconds of a kernel copy, infinite if it is refused.
fn by_kernel(address: u64, to: &mut [u8]) -> f64 {
    let start = Instant::now();
    match crate::copy::kernel::read_exact(std::process::id() as i32, address, to) {
        Ok(()) => start.elapsed().as_secs_f64(),
        Err(_) => f64::INFINITY,
    }
}

/// A loop that waits for the other thread.
#[derive(Default)]
struct Wait(u32);

impl Wait {
    fn look(&mut self) {
        std::hint::spin_loop();
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(4096) {
            std::thread::yield_now(); // There may be only one processor for both.
        }
    }
}

/// Lets both threads start together: the leader reads the clock before the follower goes.
#[derive(Default)]
struct StartLine {
    waiting: AtomicU64,
    gone: AtomicU64,
}

impl StartLine {
    fn follow(&self, round: u64) {
        // ORDERING: Release pairs with the Acquire in `lead`; the loop's Acquire with its Release.
        self.waiting.store(round, Ordering::Release);
        let mut wait = Wait::default();
        while self.gone.load(Ordering::Acquire) < round {
            wait.look();
        }
    }

    fn lead(&self, prepare: impl FnOnce()) -> Instant {
        // ORDERING: Relaxed: only this side writes it; then Acquire and Release pair with `follow`.
        let round = self.gone.load(Ordering::Relaxed) + 1;
        while self.waiting.load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
        prepare();
        let begin = Instant::now();
        self.gone.store(round, Ordering::Release);
        begin
    }
}

/// Pages that only the kernel writes while the two threads measure.
pub(crate) struct Target(Pages);

impl Target {
    /// Returns the address of a piece, which must lie inside.
    pub(crate) fn address(&self, offset: u64, bytes: u64) -> u64 {
        assert!(
            offset + bytes <= self.0.len() as u64,
            "a piece beyond the end"
        );
        self.0.as_ptr() as u64 + offset
    }
}

/// Both threads copy one half each, piece by piece. Returns the seconds, infinite if `copy`, which
/// gets the number of a piece, fails.
fn cooperatively(
    pieces: u64,
    copy: &(impl Fn(u64) -> bool + Sync),
    cpus: &[usize],
) -> Result<f64, Error> {
    let (word, line) = (AtomicU64::new(0), StartLine::default());
    std::thread::scope(|scope| {
        spawn(scope, || {
            pin(cpus, 1);
            for round in 1..=REPEATS as u64 {
                line.follow(round);
                let claim = Claim::new(&word, pieces);
                while let Some(index) = claim.take_back() {
                    if !copy(index) {
                        claim.spoil();
                    }
                    claim.done_back();
                }
            }
        })?;
        Ok(best(|| {
            // ORDERING: Release pairs with the Acquire of the thread that takes the first piece.
            let begin = line.lead(|| word.store(0, Ordering::Release));
            let claim = Claim::new(&word, pieces);
            let mut worked = true;
            while let Some(index) = claim.take_front() {
                worked &= copy(index);
            }
            let mut wait = Wait::default();
            while !claim.finished() && !claim.spoilt() {
                wait.look();
            }
            if worked && !claim.spoilt() {
                begin.elapsed().as_secs_f64()
            } else {
                f64::INFINITY
            }
        }))
    })
}

/// Two pipelined copies through a ring.
fn through_ring(from: &Pages, to: &mut Pages, cpus: &[usize]) -> Result<f64, Error> {
    let arena = Arena::create(4 << 20)?;
    let (ring, bulk) = (
        Span {
            offset: 0,
            bytes: RING_BYTES,
        },
        Span {
            offset: 1 << 20,
            bytes: BULK,
        },
    );
    arena.populate(ring)?;
    arena.populate(bulk)?;
    arena.span(bulk)?.fill(0); // Page faults are not what is measured.
    let mut producer = Producer::new(SharedRing::new(arena.span(ring)?)?);
    producer.medium.publish_bulk(bulk, arena.span(bulk)?);
    producer.set_bulk_bytes(BULK);
    let mut consumer = Consumer::new(SharedRing::new(arena.span(ring)?)?);
    let attached = consumer.medium.attach_bulk(&arena, BULK)?;
    consumer.set_bulk(attached, attached);
    let line = StartLine::default();
    std::thread::scope(|scope| {
        spawn(scope, || {
            pin(cpus, 1);
            for round in 1..=REPEATS as u64 {
                line.follow(round);
                for part in from.chunks(PIECE as usize) {
                    send_piece(&mut producer, part);
                }
            }
        })?;
        Ok(best(|| {
            let begin = line.lead(|| ());
            receive_all(&mut consumer, to);
            begin.elapsed().as_secs_f64()
        }))
    })
}

fn send_piece(producer: &mut Producer<SharedRing>, part: &[u8]) {
    let mut wait = Wait::default();
    loop {
        if let Ok(at) = producer.reserve_bulk(0, part.len() as u64, 0) {
            producer.medium.write_body(at, &Body::Slice(part));
            producer.push_bulk(1, 0, &[], at, part.len() as u64);
            return;
        }
        wait.look();
    }
}

fn receive_all(consumer: &mut Consumer<SharedRing>, to: &mut [u8]) {
    let (mut done, mut wait) = (0, Wait::default());
    while done < to.len() {
        let Ok(Some((frame, medium))) = consumer.peek_with_medium() else {
            wait.look();
            continue;
        };
        let (offset, len) = frame.bulk.unwrap_or_default();
        medium
            .body(offset, len)
            .copy_to(0, &mut to[done..done + len as usize]);
        done += len as usize;
        consumer.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_that_works_here_gets_a_rate() {
        let (from, mut to) = ([7u8; 64], [0; 64]);
        let pid = std::process::id() as i32;
        let works = crate::copy::kernel::read_exact(pid, from.as_ptr() as u64, &mut to).is_ok();
        let all = own_cpus();
        for (bytes, cpus) in [
            (16 << 10, &all[..]),
            (256 << 10, &all),
            (256 << 10, &all[..1]),
        ] {
            let measured = measure_size(bytes, cpus).unwrap();
            assert!(measured.ring > 0.0, "{measured:?}");
            let rates = [measured.kernel, measured.cooperative];
            assert_eq!(rates.map(|rate| rate > 0.0), [works; 2], "{measured:?}");
        }
    }

    /// The second piece is that of the follower, except if the leader is much faster. It fails.
    #[test]
    fn a_copy_that_fails_gets_no_rate() {
        let tried = AtomicU64::new(0);
        let copy = |index| {
            if index == 1 {
                tried.store(1, Ordering::Relaxed);
                return false;
            }
            while tried.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            true
        };
        let seconds = cooperatively(2, &copy, &own_cpus()).unwrap();
        assert_eq!(rate(1, seconds), 0.0);
    }
}

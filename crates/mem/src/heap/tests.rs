//! Blocks and extents of a heap with a source that counts.

use super::*;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

struct Bump {
    next: u64,
    end: u64,
    /// Extents that were not given back.
    out: Arc<AtomicU64>,
}
impl ExtentSource for Bump {
    fn grant(&mut self, bytes: u64, _: Duration) -> Result<Span, Error> {
        if bytes > self.end - self.next {
            return Err(Error::Budget {
                asked: bytes,
                used: self.next,
                budget: self.end,
            });
        }
        self.next += bytes;
        self.out.fetch_add(1, Ordering::Relaxed);
        Ok(Span {
            offset: self.next - bytes,
            bytes,
        })
    }
    fn give_back(&mut self, extents: Vec<Span>) {
        for extent in extents {
            self.out.fetch_sub(1, Ordering::Relaxed);
            if extent.end() == self.next {
                self.next = extent.offset;
            }
        }
    }
}

pub(crate) fn heap(bytes: u64) -> Heap {
    heap_that_counts(bytes).0
}

fn heap_that_counts(bytes: u64) -> (Heap, Arc<AtomicU64>) {
    heap_from(bytes, |bump| Box::new(bump))
}

fn heap_from(bytes: u64, source: impl FnOnce(Bump) -> Source) -> (Heap, Arc<AtomicU64>) {
    let arena = Arena::create(bytes).unwrap();
    let out = Arc::default();
    let bump = Bump {
        next: 0,
        end: arena.len(),
        out: Arc::clone(&out),
    };
    (Heap::new(arena, source(bump), true), out)
}

#[test]
fn blocks_do_not_overlap_and_are_reused() {
    let heap = heap(8 << 20);
    let one = heap.block_soon(1000).unwrap();
    let two = heap.block_soon(1000).unwrap();
    assert!(one.span().end() <= two.span().offset || two.span().end() <= one.span().offset);
    let place = one.span();
    one.bytes().fill(7);
    drop(one);
    let again = heap.block_soon(1000).unwrap();
    assert_eq!(again.span(), place);
    let mut byte = [1];
    again.bytes().read(0, &mut byte);
    assert_eq!(byte, [0], "a reused block is zeroed");
}

#[test]
fn a_block_is_there_as_long_as_any_range_of_it() {
    let heap = heap(8 << 20);
    let block = heap.block_soon(1000).unwrap();
    let (place, part) = (block.span(), block.bytes().slice(500, 8));
    drop(block);
    let other = heap.block_soon(1000).unwrap();
    assert_ne!(other.span(), place);
    part.write(0, &[7; 8]);
    let mut found = [1; 1000];
    other.bytes().read(0, &mut found);
    assert_eq!(found, [0; 1000]);
    std::thread::spawn(move || drop(part)).join().unwrap();
    assert_eq!(heap.block_soon(1000).unwrap().span(), place);
}

#[test]
fn a_block_is_not_reached_by_its_place() {
    let heap = heap(8 << 20);
    let block = heap.block_soon(4096).unwrap();
    let place = block.span();
    assert!(heap.arena().span(place).is_err());
    assert!(heap.arena().bytes(0, heap.arena().len()).is_err());
}

#[test]
fn an_extent_that_is_used_already_is_refused() {
    for extents in [1, GRANTS as u64] {
        let (heap, out) = heap_that_counts(extents * EXTENT);
        let tables: Vec<_> = (0..extents)
            .map(|extent| heap.arena().bytes(extent * EXTENT + 100, 8).unwrap())
            .collect();
        let refused = heap.block_soon(8).unwrap_err();
        assert!(!matches!(refused, Error::Budget { .. }), "{refused}");
        assert_eq!(out.load(Ordering::Relaxed), 0, "they were not given back");
        drop(tables);
        drop(heap.block_soon(8).unwrap());
    }
}

/// A source that answers only once.
struct Once(Option<Span>);

impl ExtentSource for Once {
    fn grant(&mut self, _: u64, _: Duration) -> Result<Span, Error> {
        let none = || Error::NoGrant("not now".into());
        self.0.take().ok_or_else(none)
    }
    fn give_back(&mut self, mut extents: Vec<Span>) {
        self.0 = extents.pop();
    }
}

/// Without an answer, it is not known whether there is another extent.
#[test]
fn no_answer_is_no_answer_also_after_an_extent_that_is_used() {
    let arena = Arena::create(8 << 20).unwrap();
    let table = arena.bytes(100, 8).unwrap();
    let extent = Span {
        offset: 0,
        bytes: EXTENT,
    };
    let heap = Heap::new(arena, Box::new(Once(Some(extent))), true);
    for _ in 0..2 {
        let refused = heap.block_soon(8).unwrap_err();
        assert!(matches!(refused, Error::NoGrant(_)), "{refused}");
    }
    drop(table);
    assert_eq!(heap.block_soon(8).unwrap().span().offset, 0);
}

/// A source that grants only after it was told to, and says when it waits for that.
struct Slow(Bump, Sender<()>, Receiver<()>);

impl ExtentSource for Slow {
    fn grant(&mut self, bytes: u64, deadline: Duration) -> Result<Span, Error> {
        self.1.send(()).unwrap();
        let told = self.2.recv();
        told.map_err(|_| Error::NoGrant("the test is over".into()))?;
        self.0.grant(bytes, deadline)
    }
    fn give_back(&mut self, extents: Vec<Span>) {
        self.0.give_back(extents);
    }
}

#[test]
fn a_thread_that_waits_for_the_source_holds_up_no_other() {
    let (waits, is_waiting) = channel();
    let (go, may_go) = channel();
    let (heap, out) = heap_from(16 << 20, |bump| Box::new(Slow(bump, waits, may_go)));
    go.send(()).unwrap();
    let large = heap.block_soon(2 * EXTENT).unwrap();
    is_waiting.recv().unwrap();
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| heap.block_soon(3 * EXTENT).unwrap());
        is_waiting.recv().unwrap();
        let (done, is_done) = channel();
        let heap = &heap;
        threads.spawn(move || {
            let refused = heap.block_soon(8);
            let late = heap.grow(8, Duration::from_millis(5));
            assert!(matches!(late, Err(Error::NoGrant(_))));
            drop(large);
            heap.tend();
            done.send(refused.err()).unwrap();
        });
        let refused = is_done.recv_timeout(Duration::from_secs(30));
        go.send(()).unwrap();
        drop(go);
        drop(waiting.join().unwrap());
        let refused = refused.expect("it waited for the other thread");
        assert!(matches!(refused, Some(Error::NoGrant(_))), "{refused:?}");
    });
    assert_eq!(out.load(Ordering::Relaxed), 0, "one was not given back");
}

/// Another thread of the parent has the lock at the moment of the fork.
#[test]
fn a_fork_waits_for_no_lock() {
    let heap = heap(8 << 20);
    let block = heap.block_soon(8).unwrap();
    let locked = heap.lock();
    // SAFETY: the child allocates nothing, and waits for no lock of the parent: that is what is
    // tested.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: no pointers; a child that hangs is ended by a signal.
        unsafe { libc::alarm(30) };
        let used = heap.used();
        // SAFETY: the child ends here, without the destructors of the parent.
        unsafe { libc::_exit(used as i32) }
    }
    drop(locked);
    let mut status = -1;
    // SAFETY: the kernel writes one integer, which outlives the call.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    drop(block);
}

#[test]
fn a_process_that_leaves_gives_no_extent_back() {
    let (heap, out) = heap_that_counts(16 << 20);
    let large = || heap.block_soon(2 * EXTENT).unwrap();
    drop((large(), large()));
    assert_eq!(out.load(Ordering::Relaxed), 0);
    let (small, blocks) = (heap.block_soon(8).unwrap(), (large(), large()));
    let place = small.span();
    heap.leave();
    drop((blocks, small));
    assert_eq!(out.load(Ordering::Relaxed), 3);
    assert_ne!(
        heap.block_soon(8).unwrap().span(),
        place,
        "others may read it"
    );
}

/// The source grants the lowest free extent, again and again.
#[test]
fn an_extent_that_is_used_already_does_not_hide_the_next() {
    let (heap, out) = heap_that_counts(8 << 20);
    let _table = heap.arena().bytes(100, 8).unwrap();
    let block = heap.block_soon(8).unwrap();
    assert_eq!(block.span().offset, EXTENT);
    assert_eq!(out.load(Ordering::Relaxed), 1, "one was not given back");
}

#[test]
fn a_block_grows_part_by_part_and_is_given_back_from_any() {
    let heap = heap(8 * PART);
    let mut growing = heap.grow(2 * PART + 1, Duration::ZERO).unwrap();
    assert!(!growing.step().unwrap());
    let resident = heap.arena().resident();
    assert!((PART..2 * PART).contains(&resident), "{resident} bytes");
    assert!(!growing.step().unwrap());
    assert!(growing.step().unwrap());
    assert!(growing.step().unwrap(), "all are there");
    let block = growing.block().unwrap();
    assert!(heap.arena().resident() > 2 * PART);
    block.bytes().write(2 * PART, &[1]);
    drop(block);
    let begun = heap.grow(2 * PART, Duration::ZERO).unwrap();
    assert_eq!(heap.used(), 2 * PART);
    drop(begun);
    assert_eq!(heap.used(), 0);
}

#[test]
fn the_budget_is_a_typed_refusal_and_nothing_is_lost() {
    let heap = heap(8 << 20);
    let kept = heap.block_soon(4 << 20).unwrap();
    kept.bytes().write(5, b"kept");
    assert!(matches!(
        heap.block_soon(16 << 20),
        Err(Error::Budget { .. })
    ));
    assert!(matches!(
        heap.block_soon(u64::MAX),
        Err(Error::Budget { .. })
    ));
    let mut seen = [0; 4];
    kept.bytes().read(5, &mut seen);
    assert_eq!(&seen, b"kept");
    assert_eq!(heap.used(), 4 << 20);
}

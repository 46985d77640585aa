//! Sleep on descriptors with a real kernel, among threads and processes; the protocol is in
//! `loom`.

#![cfg(not(loom))]

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd, read, write};
use samite_mem::{Arena, DOORBELL_BYTES, Doorbell, SharedBytes, Sleep, WakeSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// A sleep as long as this has missed its wake-up, and its test fails.
const LONG: Duration = Duration::from_secs(60);
/// Where the words of these tests are: asleep, frames that the peer has published, rounds that the
/// owner has seen.
const BELL: u64 = 4096;
const FRAMES: u64 = 0;
const SEEN: u64 = 8;

fn bell(arena: &Arena) -> Doorbell<SharedBytes> {
    Doorbell::new(arena.bytes(BELL, DOORBELL_BYTES).unwrap()).unwrap()
}

fn words(arena: &Arena) -> SharedBytes {
    arena.bytes(8192, 64).unwrap()
}

/// An engine whose events arrive in an eventfd.
struct Engine(OwnedFd);

impl Engine {
    fn new() -> Engine {
        Engine(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
    }

    fn arrive(&self) {
        write(&self.0, &1u64.to_ne_bytes()).unwrap();
    }

    /// Events since the last call.
    fn progress(&self) -> u64 {
        let mut count = [0; 8];
        read(&self.0, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }
}

/// The owner, until it has seen so many frames and events. Returns how many of its sleeps were
/// [`LONG`].
fn own(arena: &Arena, engine: &Engine, on_futex: fn(u64) -> bool, frames: u64, events: u64) -> u64 {
    let (bell, words) = (bell(arena), words(arena));
    let socket = WakeSocket::new().unwrap();
    let (mut seen_frames, mut seen_events, mut overslept) = (0, 0, 0);
    while seen_frames < frames || seen_events < events {
        let before = (seen_frames, seen_events);
        let sleep = if on_futex(seen_frames) {
            Sleep::Futex
        } else {
            Sleep::Descriptors(socket.address())
        };
        bell.announce_sleep(sleep);
        if words.u64(FRAMES).load(Ordering::Acquire) != seen_frames {
            bell.end_sleep();
        } else {
            let start = std::time::Instant::now();
            match sleep {
                Sleep::Futex => bell.sleep(LONG),
                Sleep::Descriptors(_) => bell.sleep_on(&socket, &[engine.0.as_fd()], LONG),
            }
            overslept += u64::from(start.elapsed() >= LONG);
        }
        seen_frames = words.u64(FRAMES).load(Ordering::Acquire);
        seen_events += engine.progress();
        if before != (seen_frames, seen_events) {
            words
                .u64(SEEN)
                .store(seen_frames + seen_events, Ordering::Release);
        }
    }
    overslept
}

/// The other side: goes on when the owner has announced that it sleeps.
fn await_sleep(arena: &Arena, seen: u64) {
    let asleep = arena.bytes(BELL, DOORBELL_BYTES).unwrap();
    while words(arena).u64(SEEN).load(Ordering::Acquire) != seen
        || asleep.u32(0).load(Ordering::Acquire) == 0
    {
        thread::yield_now();
    }
}

fn publish(arena: &Arena) {
    words(arena).u64(FRAMES).fetch_add(1, Ordering::Release);
    bell(arena).ring(0);
}

#[test]
fn a_poller_is_woken_by_a_peer_and_by_its_engine() {
    samite_mem::enable_asymmetric_fences();
    let arena = Arena::create(1 << 20).unwrap();
    let engine = Engine::new();
    thread::scope(|scope| {
        let owner = scope.spawn(|| own(&arena, &engine, |_| false, 500, 500));
        for round in 0..500 {
            await_sleep(&arena, 2 * round);
            publish(&arena);
            await_sleep(&arena, 2 * round + 1);
            engine.arrive();
        }
        assert_eq!(owner.join().unwrap(), 0);
    });
}

/// Futex and descriptors in turn, and a peer that waits for nothing.
#[test]
fn an_owner_sleeps_in_both_ways() {
    samite_mem::enable_asymmetric_fences();
    let arena = Arena::create(1 << 20).unwrap();
    let engine = Engine::new();
    thread::scope(|scope| {
        let owner = scope.spawn(|| own(&arena, &engine, |frames| frames % 2 == 0, 3_000, 0));
        for round in 0..3_000 {
            publish(&arena);
            if round % 3 == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(owner.join().unwrap(), 0);
    });
}

const ARENA_FD: &str = "SAMITE_MEM_TEST_ARENA_FD";

/// Another process has the arena and no descriptor of the owner's, and wakes it.
#[test]
fn a_poller_is_woken_by_another_process() {
    samite_mem::enable_asymmetric_fences();
    if let Ok(fd) = std::env::var(ARENA_FD) {
        // SAFETY: the parent left this descriptor open for this process, which uses it here only.
        let fd = unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) };
        let arena = Arena::attach(fd).unwrap();
        for round in 0..200 {
            await_sleep(&arena, round);
            publish(&arena);
        }
        return;
    }
    let arena = Arena::create(1 << 20).unwrap();
    let inherited = rustix::io::dup(arena.fd()).unwrap();
    let flags = fcntl_getfd(&inherited).unwrap();
    fcntl_setfd(&inherited, flags.difference(FdFlags::CLOEXEC)).unwrap();
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "doorbell::a_poller_is_woken_by_another_process"])
        .env(ARENA_FD, inherited.as_raw_fd().to_string())
        .spawn()
        .unwrap();
    let engine = Engine::new();
    thread::scope(|scope| {
        let ended = scope.spawn(|| {
            let status = peer.wait().unwrap();
            let frames = words(&arena).u64(FRAMES).load(Ordering::Acquire);
            if frames < 200 {
                // The owner would wait for the rest.
                words(&arena).u64(FRAMES).store(u64::MAX, Ordering::Release);
                bell(&arena).ring(0);
            }
            (status.success(), frames)
        });
        let overslept = own(&arena, &engine, |_| false, 200, 0);
        assert_eq!(ended.join().unwrap(), (true, 200), "the other process");
        assert_eq!(overslept, 0);
    });
}

/// A queue that is full, an owner that is gone, a value that no owner writes: no producer waits or
/// fails.
#[test]
fn a_wake_up_that_cannot_arrive() {
    let arena = Arena::create(1 << 20).unwrap();
    let bell = bell(&arena);
    let socket = WakeSocket::new().unwrap();
    for _ in 0..1_000 {
        bell.announce_sleep(Sleep::Descriptors(socket.address()));
        bell.wake();
    }
    bell.sleep_on(&socket, &[], LONG);
    // Nothing is left over.
    let start = std::time::Instant::now();
    bell.announce_sleep(Sleep::Descriptors(socket.address()));
    bell.sleep_on(&socket, &[], Duration::from_millis(20));
    assert!(start.elapsed() >= Duration::from_millis(20));
    bell.announce_sleep(Sleep::Descriptors(socket.address()));
    drop(socket);
    bell.wake();
    let asleep = arena.bytes(BELL, DOORBELL_BYTES).unwrap();
    asleep.u32(0).store(77, Ordering::Relaxed);
    bell.wake();
    assert_eq!(asleep.u32(0).load(Ordering::Relaxed), 0);
}

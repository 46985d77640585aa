//! One fabric, many threads: each of them sends, receives, asks, puts and waits.

use samite_fabric::{
    Bell, Config, Error, Expected, Fabric, Growing, Handle, Identity, Layer, Match, Owned, PeerId,
    Phased, Received, Remote, Reserved, Segment, Sent, View, Whom,
};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Failed, MESSAGES_ONLY, Outcome, check, full_name, same, units};
use std::sync::Barrier;
use std::time::Duration;

const THREADS: u64 = 8;
const ECHO: u16 = 1;

#[test]
fn everything_goes_to_any_thread() {
    fn goes<T: Send + Sync>() {}
    goes::<Fabric>();
    goes::<(
        Segment,
        Reserved,
        Remote,
        Phased,
        Growing,
        Owned,
        Layer,
        View,
        Bell,
    )>();
    goes::<(Handle<Sent>, Handle<Received>, Handle<Vec<u8>>, Handle<u64>)>();
}

/// Runs `thread` in so many threads at once; the first failure.
fn in_threads(count: u64, thread: impl Fn(u64) -> Outcome + Sync) -> Outcome {
    let thread = &thread;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| scope.spawn(move || thread(index)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Outcome>| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(Failed::new("a thread panicked")))
        };
        let ended: Vec<_> = threads.into_iter().map(join).collect();
        ended.into_iter().collect()
    })
}

fn seed(from: PeerId, thread: u64, round: u64) -> u64 {
    u64::from(from.0) << 40 | thread << 32 | round
}

/// Each thread of one unit talks to the thread with its number of the other, in sizes that travel
/// in all ways.
fn threads_talk(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let other = members[(members[0] == fabric.me()) as usize];
    fabric.on(ECHO, |_, bytes| Some(bytes.to_vec()));
    let segment = fabric.allocate(THREADS * 4096)?;
    fabric.send(other, 1 << 32, &segment.key().to_bytes())?;
    let mut key = [0; 24];
    fabric.recv(Match::from(other, 1 << 32), &mut key)?;
    let remote = fabric.attach(samite_fabric::SegmentKey::from_bytes(&key))?;
    in_threads(THREADS, |thread| {
        let sizes = [8, 200, 5_000, 300_000];
        for round in 0..60u64 {
            let len = sizes[(round % 4) as usize];
            let out = pattern(seed(fabric.me(), thread, round), len);
            let mut into = vec![0; len];
            let status = if (round + thread) % 2 == 0 {
                let sent = fabric.isend(other, thread, out.clone())?;
                let status = fabric.recv(Match::from(other, thread), &mut into)?;
                sent.wait()?;
                status
            } else {
                fabric
                    .scope(|scope| -> samite_fabric::Result<_> {
                        scope.isend(other, thread, &out)?;
                        scope.irecv(Match::from(other, thread), &mut into)?.wait()
                    })?
                    .0
            };
            same!(status.len, len as u64);
            verify(seed(other, thread, round), &into)?;
            let reply = fabric.request(other, ECHO, &out[..len.min(1000)])?.wait()?;
            check!(
                reply == out[..len.min(1000)],
                "thread {thread} got another's reply"
            );
            remote.put(thread * 4096, &round.to_le_bytes())?;
            fabric.signal(other, thread)?;
            fabric.await_signal(other, thread)?;
            let mut found = [0; 8];
            segment.bytes().read(thread * 4096, &mut found);
            check!(
                u64::from_le_bytes(found) >= round,
                "a signal came before its put"
            );
        }
        Ok(())
    })?;
    Ok(fabric.barrier(members)?)
}

#[test]
fn eight_threads_talk_to_eight() {
    let name = full_name(module_path!(), "eight_threads_talk_to_eight");
    units(2).run(&name, threads_talk);
}

#[test]
fn eight_threads_talk_by_messages() {
    let name = full_name(module_path!(), "eight_threads_talk_by_messages");
    units(2).mask(MESSAGES_ONLY).run(&name, threads_talk);
}

/// One thread waits all the time; others come and go. Neither keeps the other from what it wants.
#[test]
fn a_thread_that_waits_holds_nobody_up() {
    let name = full_name(module_path!(), "a_thread_that_waits_holds_nobody_up");
    units(2).run(&name, |fabric, members| {
        let other = members[(members[0] == fabric.me()) as usize];
        let stop = 99;
        in_threads(2, |thread| {
            if thread == 0 {
                let mut word = [0; 8];
                fabric.recv(Match::from(other, stop), &mut word)?;
                same!(word, [7; 8]);
                return Ok(());
            }
            for round in 0..500u64 {
                fabric.send(other, 1, &round.to_le_bytes())?;
                let mut word = [0; 8];
                fabric.recv(Match::from(other, 1), &mut word)?;
                same!(u64::from_le_bytes(word), round);
            }
            Ok(fabric.send(other, stop, &[7; 8])?)
        })
    });
}

/// Threads take turns: what one of them received before, another one goes on with.
#[test]
fn threads_take_turns() {
    let name = full_name(module_path!(), "threads_take_turns");
    units(2).run(&name, |fabric, members| {
        let other = members[(members[0] == fabric.me()) as usize];
        let turn = Barrier::new(3);
        in_threads(3, |thread| {
            let exchange = |round: u64| -> Outcome {
                fabric.send(other, 5, &round.to_le_bytes())?;
                let mut word = [0; 8];
                fabric.recv(Match::any(5), &mut word)?;
                same!(u64::from_le_bytes(word), round);
                Ok(())
            };
            let mut ended = Ok(());
            for round in 0..300u64 {
                // A thread that has failed still comes: the others wait for it.
                turn.wait();
                if round % 3 == thread && ended.is_ok() {
                    ended = exchange(round);
                }
            }
            ended
        })
    });
}

/// A deadline ends the wait of each thread, whoever drives; the operations of the others go on.
#[test]
fn every_thread_has_its_deadline() {
    let name = full_name(module_path!(), "every_thread_has_its_deadline");
    units(2).run(&name, |fabric, members| {
        let other = members[(members[0] == fabric.me()) as usize];
        let deadline = fabric.deadline();
        fabric.set_deadline(Duration::from_millis(50));
        in_threads(5, |thread| {
            if thread == 4 {
                // It hears of the ends of all waits of the other unit, most of them after those of
                // its own.
                return fabric.within(deadline, || {
                    for from in 0..4 {
                        fabric.recv(Match::from(other, 2000 + from), &mut [])?;
                    }
                    Ok(())
                });
            }
            let ended = fabric.recv(Match::from(other, 1000 + thread), &mut [0; 8]);
            match ended {
                Err(Error::Timeout { .. }) => Ok(fabric.send(other, 2000 + thread, &[])?),
                other => Err(Failed::new(format!("thread {thread}: {other:?}"))),
            }
        })?;
        fabric.set_deadline(deadline);
        fabric.barrier(members)?;
        threads_talk(fabric, members)
    });
}

/// A handle and a clone work after the fabric that they came from was dropped, in another thread.
/// The process leaves the domain with the last of them, not before.
#[test]
fn the_last_clone_leaves() {
    let name = full_name(module_path!(), "the_last_clone_leaves");
    units(1).run(&name, |fabric, _| {
        let domain = fabric.domain().unwrap_or_default();
        let own = Fabric::join(domain, Identity::by_hand("other"), Config::default())?;
        let (from, to) = (own.me(), fabric.me());
        let (handle, clone) = (own.isend(to, 3, vec![1; 200_000])?, own.clone());
        drop(own);
        let (lasts, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || -> Outcome {
            handle.wait()?;
            clone.send(to, 4, &[1])?;
            let _ = ends.recv();
            drop(clone);
            Ok(())
        });
        let (status, bytes) = fabric.recv_vec(Match::from(from, 3))?;
        same!((status.len, bytes.len()), (200_000, 200_000));
        fabric.recv(Match::from(from, 4), &mut [0])?;
        check!(fabric.lost(from).is_none());
        drop(lasts);
        let gone = fabric.wait_until("the end of the clone", &[from], || None::<()>);
        check!(matches!(gone, Err(Error::PeerLost { .. })), "{gone:?}");
        thread.join().expect("no panic")
    });
}

/// What a process waits for, beyond a moment, can be read by others until the wait ends. Of its
/// threads it is the one that drives, whichever that is.
#[test]
fn others_see_what_a_process_waits_for() {
    units(2).run(
        &full_name(module_path!(), "others_see_what_a_process_waits_for"),
        |fabric, members| {
            let (waiter, other) = (members[1], members[0]);
            if fabric.me() == waiter {
                fabric.recv(Match::from(other, 7), &mut [])?;
                // Awake, and waiting for nobody.
                while fabric.probe(Match::from(other, 8)).is_none() {
                    fabric.progress();
                }
                return in_threads(2, |index| {
                    fabric.recv(Match::from(other, 9 + index), &mut [])?;
                    Ok(())
                });
            }
            let tag = || {
                let waits = fabric.waits();
                let wait = waits.iter().find(|wait| wait.peer == waiter)?;
                match (wait.whom, &wait.message) {
                    (Whom::Peer(whom), Some(Expected::Message { tag, .. })) if whom == other => {
                        Some(*tag)
                    }
                    _ => None,
                }
            };
            let until = |is_wanted: &dyn Fn(Option<u64>) -> bool| loop {
                let shown = tag();
                if is_wanted(shown) {
                    return shown;
                }
                std::thread::yield_now();
            };
            until(&|shown| shown == Some(7));
            fabric.send(waiter, 7, &[])?;
            until(&|shown| shown.is_none());
            fabric.send(waiter, 8, &[])?;
            let first = until(&|shown| shown.is_some());
            let (first, second) = match first {
                Some(9) => (9, 10),
                _ => (10, 9),
            };
            fabric.send(waiter, first, &[])?;
            // The other thread drives now.
            until(&|shown| shown == Some(second));
            fabric.send(waiter, second, &[])?;
            Ok(())
        },
    );
}

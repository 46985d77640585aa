//! A fork of a process that joined has a copy of everything, and none of it is its own.

use samite_fabric::rpc::ServiceId;
use samite_fabric::{
    Atomic, Config, Error, Fabric, Handle, Identity, Match, PeerId, Received, Remote, View, Width,
    WordUpdate,
};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Failed, ONE_NODE, Outcome, matches_or_fail, same, units};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};

/// Messages that the parent sends afterwards: more than a ring has cells.
const MESSAGES: u64 = 1500;

/// Whatever the child tries is refused, or does nothing.
fn try_everything(fabric: &Fabric, to: PeerId, members: &[PeerId]) -> Outcome {
    let bytes = vec![0x5a; 100_000];
    for len in [0, 100, 5_000, bytes.len()] {
        matches_or_fail!(fabric.send(to, 1, &bytes[..len]), Err(Error::Forked));
    }
    matches_or_fail!(fabric.signal(to, 1), Err(Error::Forked));
    matches_or_fail!(fabric.await_signal(to, 1), Err(Error::Forked));
    matches_or_fail!(fabric.barrier(members), Err(Error::Forked));
    matches_or_fail!(fabric.tell(to, 1, b"told"), Err(Error::Forked));
    let mut buffer = [0; 64];
    matches_or_fail!(fabric.recv(Match::any(1), &mut buffer), Err(Error::Forked));
    matches_or_fail!(
        fabric.recv(Match::from(to, 1), &mut buffer),
        Err(Error::Forked)
    );
    matches_or_fail!(fabric.recv_vec(Match::any(1)), Err(Error::Forked));
    matches_or_fail!(
        fabric.wait_until("a word", &[], || None::<()>),
        Err(Error::Forked)
    );
    matches_or_fail!(fabric.allocate(1 << 20), Err(Error::Forked));
    matches_or_fail!(fabric.allocate(8 << 20), Err(Error::Forked));
    for _ in 0..10_000 {
        same!(fabric.progress(), 0);
    }
    Ok(())
}

/// The child speaks with nobody and takes nothing; all that the parent had works as before.
#[test]
fn a_fork_does_not_speak_for_its_parent() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (first, second) = (members[0], members[1]);
        if fabric.me() == second {
            let segment = fabric.allocate(1 << 20)?;
            segment.bytes().fill(7);
            let viewed = fabric.isend_shared(first, 1, segment.bytes().clone())?;
            // In the ring, and with this process, when the other one forks.
            fabric.send(first, 2, b"before")?;
            let large = fabric.isend(first, 3, pattern(3, 300_000))?;
            fabric.signal(first, 4)?;
            for message in 0..MESSAGES {
                let (_, bytes) = fabric.recv_vec(Match::from(first, message))?;
                verify(message, &bytes)?;
            }
            viewed.wait()?;
            large.wait()?;
            return Ok(fabric.barrier(members)?);
        }
        let own = fabric.allocate(1 << 20)?;
        let view = fabric.recv_view(Match::from(second, 1))?;
        // All that the other one sends at once has come.
        fabric.await_signal(second, 4)?;
        let posted = fabric.irecv(Match::from(second, 5), vec![0; 64])?;
        let child = fork::fork().map_err(|error| Failed::new(format!("fork: {error:?}")))?;
        let fork::Fork::Parent(child) = child else {
            let tried = try_everything(fabric, second, members);
            drop((view, posted, own));
            // By itself it can join like any other process.
            let domain = fabric.domain().unwrap_or_default();
            let joined = Fabric::join(domain, Identity::by_hand("child"), Config::default());
            let joined = joined.and_then(|own| own.allocate(4 << 20).map(|segment| segment.key()));
            if let Err(error) = &tried {
                eprintln!("the child: {error:?}");
            }
            std::process::exit(if tried.is_ok() && joined.is_ok() {
                0
            } else {
                1
            });
        };
        let ended = wait_for(child)?;
        same!(ended.and_then(|status| status.exit_status()), Some(0));
        let mut bytes = vec![0; 1 << 20];
        view.bytes().read(0, &mut bytes);
        same!(bytes.iter().all(|byte| *byte == 7), true);
        let mut before = [0; 6];
        fabric.recv(Match::from(second, 2), &mut before)?;
        same!(&before, b"before");
        verify(3, &fabric.recv_vec(Match::from(second, 3))?.1)?;
        for message in 0..MESSAGES {
            let len = 10 + message as usize % 3_000;
            fabric.send(second, message, &pattern(message, len))?;
        }
        drop(view);
        drop(posted);
        let again = fabric.allocate(1 << 20)?;
        again.bytes().fill(9);
        own.bytes().fill(8);
        again.bytes().read(0, &mut bytes);
        same!(bytes.iter().all(|byte| *byte == 9), true);
        Ok(fabric.barrier(members)?)
    };
    units(2).run("faults::forks::a_fork_does_not_speak_for_its_parent", body);
}

/// A child that ends without the destructors of the test, and how it ended.
fn fork_and(child: impl FnOnce() -> Outcome) -> Outcome {
    match fork::fork().map_err(|error| Failed::new(format!("fork: {error:?}")))? {
        fork::Fork::Child => {
            let ended = child();
            if let Err(Failed(why)) = &ended {
                eprintln!("the child: {why}");
            }
            std::process::exit(if ended.is_ok() { 0 } else { 1 })
        }
        fork::Fork::Parent(child) => {
            let ended = wait_for(child)?;
            same!(ended.and_then(|status| status.exit_status()), Some(0));
            Ok(())
        }
    }
}

/// A segment that the child has a copy of, mapped or reached by the kernel: each operation is
/// refused.
fn try_remote(remote: &Remote) -> Outcome {
    let mut word = [0; 8];
    matches_or_fail!(remote.put(0, &[9; 8]), Err(Error::Forked));
    matches_or_fail!(remote.put_nb(0, &[9; 8]), Err(Error::Forked));
    matches_or_fail!(remote.get(0, &mut word), Err(Error::Forked));
    matches_or_fail!(remote.get_nb(0, 8), Err(Error::Forked));
    matches_or_fail!(remote.fetch_add(8, 1), Err(Error::Forked));
    let update = WordUpdate {
        offset: 8,
        value: 1,
    };
    let updates = remote.update_batch(Atomic::Add, Width::W64, &[update]);
    matches_or_fail!(updates, Err(Error::Forked));
    if let Some(mapped) = remote.mapped() {
        // Without a test for it on the way: it is memory of the child's own.
        mapped.read(0, &mut word);
        same!(word, [0; 8]);
        mapped.write(0, &[9; 64]);
        mapped.u64(8).fetch_add(1, Ordering::Relaxed);
        mapped.fill(9);
    }
    Ok(())
}

/// All ways by which a process reaches bytes of others, and its own shared ones: a fork reaches
/// nothing by any.
#[test]
fn a_fork_writes_to_nobody() {
    const BYTES: u64 = 1 << 20;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (first, second) = (members[0], members[1]);
        if fabric.me() == second {
            let shared = fabric.allocate_as(0, BYTES)?;
            let registered = fabric.register_as(1, vec![5u8; 4096])?;
            let mut lent = fabric.allocate_phased(2, BYTES)?;
            lent.bytes()?.fill(5);
            lent.lend()?;
            let mut reading = fabric.allocate_phased(3, BYTES)?;
            reading.bytes()?.fill(5);
            reading.shut();
            reading.turn(true)?;
            shared.bytes().fill(5);
            let viewed = fabric.isend_shared(first, 1, shared.bytes().slice(0, 200_000))?;
            fabric.barrier(members)?;
            viewed.wait()?;
            fabric.barrier(members)?;
            let mut found = vec![0; BYTES as usize];
            shared.bytes().read(0, &mut found);
            same!(found.iter().all(|byte| *byte == 5), true);
            let mut found = vec![0; 4096];
            registered.bytes().read(0, &mut found);
            same!(found, vec![5; 4096]);
            return Ok(fabric.barrier(members)?);
        }
        fabric.barrier(members)?;
        let own = fabric.allocate(BYTES)?;
        own.bytes().fill(6);
        let exclusive = fabric.allocate_phased(20, 4096)?;
        exclusive.shut();
        let mut exclusive = exclusive.own().map_err(|failed| Failed::new(failed.1))?;
        exclusive.memory_mut().as_mut_slice::<u8>().fill(6);
        let closing = fabric.allocate_phased(21, 4096)?;
        let keys: Vec<_> = (0..4)
            .map(|segment| fabric.look_up(second, segment))
            .collect::<Result<_, _>>()?;
        let key = |segment: usize| keys[segment].ok_or(Failed::new("no such segment"));
        let (shared, registered) = (fabric.attach(key(0)?)?, fabric.attach(key(1)?)?);
        let mut borrowed = fabric.borrow(key(2)?)?;
        let reading = fabric.attach(key(3)?)?;
        let view = fabric.recv_view(Match::from(second, 1))?;
        let (mut exclusive, closing, borrowed, view) = fork_with(
            (exclusive, closing, borrowed.take(), view),
            |(exclusive, closing, borrowed, view)| {
                try_remote(&shared)?;
                try_remote(&registered)?;
                own.bytes().fill(9);
                matches_or_fail!(fabric.attach(own.key()), Err(Error::Forked));
                matches_or_fail!(fabric.attach(shared.key()), Err(Error::Forked));
                matches_or_fail!(fabric.look_up(second, 0), Err(Error::Forked));
                matches_or_fail!(fabric.borrow(key(2)?), Err(Error::Forked));
                view.bytes().fill(9);
                same!(view.is_withdrawn(), true);
                if let Some(borrowed) = borrowed {
                    borrowed.as_mut_slice::<u8>().fill(9);
                }
                let mut word = [1; 8];
                matches_or_fail!(reading.get(0, &mut word), Err(Error::Forked));
                matches_or_fail!(reading.get_nb(0, 8), Err(Error::Forked));
                let got = fabric.scope(|scope| scope.get(&reading, 0, &mut word).map(drop));
                matches_or_fail!(got, Err(Error::Forked));
                same!(word, [1; 8]);
                if let Some(readable) = reading.readable() {
                    same!(
                        readable.as_slice::<u8>().iter().all(|byte| *byte == 0),
                        true
                    );
                }
                exclusive.memory_mut().as_mut_slice::<u8>().fill(9);
                matches_or_fail!(closing.bytes(), Err(Error::Forked));
                matches_or_fail!(closing.turn(true), Err(Error::Forked));
                Ok(())
            },
        )?;
        same!(shared.fetch_add(BYTES - 8, 0)?, 0x0505_0505_0505_0505);
        let mut found = vec![0; BYTES as usize];
        shared.get(0, &mut found)?;
        same!(found.iter().all(|byte| *byte == 5), true);
        own.bytes().read(0, &mut found);
        same!(found.iter().all(|byte| *byte == 6), true);
        same!(
            exclusive
                .memory_mut()
                .as_slice::<u8>()
                .iter()
                .all(|byte| *byte == 6),
            true
        );
        if let Some(borrowed) = &borrowed {
            same!(
                borrowed.as_slice::<u8>().iter().all(|byte| *byte == 5),
                true
            );
        }
        let mut bytes = vec![0; view.bytes().len() as usize];
        view.bytes().read(0, &mut bytes);
        same!(bytes.iter().all(|byte| *byte == 5), true);
        drop((view, borrowed, closing, reading, exclusive));
        fabric.barrier(members)?;
        Ok(fabric.barrier(members)?)
    };
    let units = units(2).mask(ONE_NODE);
    units.run("faults::forks::a_fork_writes_to_nobody", body);
}

/// Another thread is inside the engine when this one forks: the child is refused, what it drops is
/// nobody's, and a buffer that is lent does not come back there.
#[test]
fn a_fork_without_the_thread_that_had_the_engine() {
    let fabric = Fabric::alone(Identity::by_hand("forks"), Config::default()).unwrap();
    let me = fabric.me();
    let (inside, out) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let handler = (inside.clone(), out.clone());
    fabric.on(1, move |_, _| {
        handler.0.wait();
        handler.1.wait();
        None
    });
    let segment = fabric.allocate(1 << 20).unwrap();
    let viewed = fabric.isend_shared(me, 2, segment.bytes().clone());
    let held = (
        fabric.irecv(Match::any(5), vec![0; 8]).unwrap(),
        fabric.recv_view(Match::any(2)).unwrap(),
        segment,
        fabric.allocate_phased(9, 4096).unwrap(),
    );
    let child = |held: &mut Option<(Handle<Received>, View, _, _)>| -> Outcome {
        try_everything(&fabric, me, &[me, PeerId(1)])?;
        matches_or_fail!(fabric.isend(me, 1, vec![1]), Err(Error::Forked));
        matches_or_fail!(fabric.irecv(Match::any(1), vec![1]), Err(Error::Forked));
        matches_or_fail!(fabric.request(me, 1, b"asked"), Err(Error::Forked));
        matches_or_fail!(fabric.job(), Err(Error::Forked));
        fabric.on(2, |_, _| None);
        fabric.bell(me).nudge();
        same!(fabric.free_segments().iter().all(|bits| *bits == 0), true);
        let service = fabric.serve(ServiceId::COORDINATOR, 1 << 10);
        same!(service.take().is_none(), true);
        if let Some((posted, view, ..)) = held {
            same!(posted.is_over(), true);
            matches_or_fail!(posted.test(), Some(Err(Error::Forked)));
            same!((view.in_place(), view.is_withdrawn()), (true, true));
        }
        drop(held.take());
        Ok(())
    };
    let (mut into, mut is_child) = ([0; 8], false);
    let ended = fabric.scope(|scope| -> Outcome {
        scope.irecv(Match::any(7), &mut into)?;
        fabric.tell(me, 1, b"")?;
        let other = fabric.clone();
        let other = std::thread::spawn(move || other.progress());
        inside.wait();
        let mut held = Some(held);
        let forked = fork_and(|| child(&mut held));
        // The scope ends in this child, too, without its buffer.
        let second = fork::fork();
        if let Ok(fork::Fork::Child) = second {
            is_child = true;
            return Ok(());
        }
        // Before anything fails: this process cannot end its scope without the engine.
        out.wait();
        other.join().map_err(|_| Failed::new("a panic"))?;
        forked?;
        let fork::Fork::Parent(second) =
            second.map_err(|error| Failed::new(format!("{error:?}")))?
        else {
            return Err(Failed::new("the child"));
        };
        let ended = wait_for(second)?;
        same!(ended.and_then(|status| status.exit_status()), Some(0));
        fabric.send(me, 5, &[5; 8])?;
        let (posted, ..) = held.ok_or(Failed::new("the parent has it"))?;
        same!(posted.wait()?.1, Some(vec![5; 8]));
        Ok(fabric.send(me, 7, &[7; 8])?)
    });
    if is_child {
        std::process::exit(i32::from(ended.is_err() || into != [0; 8]));
    }
    ended.unwrap();
    viewed.unwrap().wait().unwrap();
    assert_eq!(into, [7; 8]);
}

fn wait_for(child: i32) -> Outcome<Option<rustix::process::WaitStatus>> {
    let child = rustix::process::Pid::from_raw(child);
    let ended = rustix::process::waitpid(child, rustix::process::WaitOptions::empty());
    let ended = ended.map_err(std::io::Error::from)?;
    Ok(ended.map(|(_, status)| status))
}

/// Lends `held` to a child; the parent has it as before.
fn fork_with<T>(mut held: T, child: impl FnOnce(&mut T) -> Outcome) -> Outcome<T> {
    fork_and(|| child(&mut held))?;
    Ok(held)
}

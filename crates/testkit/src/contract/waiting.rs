//! Deadlines, signals, handles, and the accuracy of `Caps`.

use super::index;
use super::onesided::exchange;
use crate::pattern::{pattern, verify};
use crate::{Outcome, check, matches_or_fail, same};
use samite_fabric::{Error, Fabric, Match, Named, PeerId, Whom, test_all, wait_all};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A signal is never lost and never taken twice; keys are independent.
pub fn signals_are_counted(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const COUNT: u64 = 500;
    let me = index(fabric, members)?;
    for round in 0..COUNT {
        for to in members {
            fabric.signal(*to, round % 3)?;
        }
    }
    for from in members {
        for key in 0..3 {
            for _ in 0..(COUNT + 2 - key) / 3 {
                fabric.await_signal(*from, key)?;
            }
        }
    }
    fabric.barrier(members)?;
    if me == 0 {
        let before = fabric.deadline();
        fabric.set_deadline(Duration::from_millis(20));
        let extra = fabric.await_signal(members[1], 0);
        matches_or_fail!(
            extra,
            Err(Error::Timeout {
                whom: Named {
                    id: Whom::Peer(_),
                    ..
                },
                ..
            })
        );
        fabric.set_deadline(before);
    }
    Ok(fabric.barrier(members)?)
}

/// After a barrier, all earlier work of every member is visible.
pub fn nobody_passes_a_barrier_early(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let segment = fabric.allocate(64)?;
    let keys = exchange(fabric, members, segment.key())?;
    let remote = fabric.attach(keys[0])?;
    for round in 1..=200 {
        remote.fetch_add(0, 1)?;
        fabric.barrier(members)?;
        let mut count = [0; 8];
        remote.get(0, &mut count)?;
        same!(u64::from_le_bytes(count), round * members.len() as u64);
        fabric.barrier(members)?;
    }
    Ok(())
}

/// A wait past its deadline names the peer that it waited for, and leaves nothing behind.
pub fn a_deadline_names_whom(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const SHORT: Duration = Duration::from_millis(30);
    let me = index(fabric, members)?;
    let before = fabric.deadline();
    if me == 0 {
        fabric.set_deadline(SHORT);
        let peer = Whom::Peer(members[1]);
        let mut buffer = [0; 8];
        let late = fabric.recv(Match::from(members[1], 1), &mut buffer);
        matches_or_fail!(late, Err(Error::Timeout { whom, after: SHORT, .. }) if *whom == peer);
        let late = fabric.recv(Match::any(1), &mut buffer);
        matches_or_fail!(
            late,
            Err(Error::Timeout {
                whom: Named { id: Whom::Any, .. },
                ..
            })
        );
        let late = fabric.recv_vec(Match::from(members[1], 1));
        matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == peer);
        // Abandoned with its wait: it does not take a later message.
        let late = fabric.irecv(Match::from(members[1], 1), vec![0; 8])?.wait();
        matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == peer);
        // This message is never received. The send is withdrawn: its buffer is the caller's again.
        let late = fabric.send(members[1], 1, &pattern(1, 300_000));
        matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == peer);
        let late = fabric.await_signal(members[1], 5);
        matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == peer);
        fabric.set_deadline(before);
        fabric.send(members[1], 2, b"later")?;
        fabric.recv(Match::from(members[1], 1), &mut buffer)?;
        same!(&buffer[..5], b"hello");
    }
    if me == 1 {
        let mut buffer = [0; 8];
        same!(fabric.recv(Match::from(members[0], 2), &mut buffer)?.len, 5);
        same!(fabric.probe(Match::any(0).masked(0)), None);
        fabric.send(members[0], 1, b"hello")?;
    }
    Ok(fabric.barrier(members)?)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

/// A handle is a future.
pub fn handles_can_be_awaited(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let (next, last) = (
        members[(me + 1) % members.len()],
        members[(me + members.len() - 1) % members.len()],
    );
    for size in [8, 5000, 200_000] {
        let got: Outcome<Vec<u8>> = block_on(async {
            let receive = fabric.irecv(Match::from(last, 3), vec![0; size])?;
            let send = fabric.isend(next, 3, pattern(size as u64, size))?;
            let (status, bytes) = receive.await?;
            same!(status.len, size as u64);
            check!(send.await?.is_some(), "an owned buffer comes back");
            Ok(bytes.unwrap_or_default())
        });
        verify(size as u64, &got?)?;
    }
    Ok(fabric.barrier(members)?)
}

/// `test`, `test_all`, `wait_all`; dropping a handle does not cancel its operation.
pub fn many_handles_at_once(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let next = members[(me + 1) % members.len()];
    let mut receives = Vec::new();
    for tag in 0..50 {
        receives.push(fabric.irecv(Match::any(tag), vec![0; 8])?);
    }
    for tag in 0..50u64 {
        drop(fabric.isend(next, tag, tag.to_le_bytes().to_vec())?);
    }
    while !test_all(&receives) {}
    for (tag, (status, bytes)) in wait_all(receives)?.into_iter().enumerate() {
        same!(status.tag, tag as u64);
        same!(bytes, Some((tag as u64).to_le_bytes().to_vec()));
    }
    let mut receive = fabric.irecv(Match::any(77), vec![0; 8])?;
    check!(receive.test().is_none(), "nothing was sent yet");
    fabric.barrier(members)?;
    fabric.send(next, 77, b"now")?;
    let ended = loop {
        if let Some(ended) = receive.test() {
            break ended?;
        }
    };
    same!(ended.0.len, 3);
    Ok(fabric.barrier(members)?)
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// If a transport claims to sleep, it uses no processor while it waits.
pub fn who_waits_sleeps(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    if !fabric.caps_to(fabric.me()).sleeps {
        return Ok(());
    }
    fabric.barrier(members)?;
    let before = fabric.deadline();
    fabric.set_deadline(Duration::from_secs(1));
    let start = processor_time();
    let late = fabric.recv(Match::any(1), &mut [0; 8]);
    let used = processor_time() - start;
    matches_or_fail!(late, Err(Error::Timeout { .. }));
    check!(
        used < Duration::from_millis(100),
        "a second of waiting took {used:?} of the processor"
    );
    fabric.set_deadline(before);
    Ok(fabric.barrier(members)?)
}

/// If a transport claims to map, stores of one unit become visible to loads of another while the
/// owner does nothing. If it does not, it never hands out a mapping.
pub fn mapped_means_mapped(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let segment = fabric.allocate(4096)?;
    let keys = exchange(fabric, members, segment.key())?;
    let (next, previous) = (
        members[(me + 1) % members.len()],
        (me + members.len() - 1) % members.len(),
    );
    let remote = fabric.attach(keys[(me + 1) % members.len()])?;
    let maps_next = fabric.caps_to(next).map;
    same!(remote.mapped().is_some(), maps_next);
    if let Some(mapped) = remote.mapped() {
        // ORDERING: Release pairs with the Acquire loads of the members below.
        mapped
            .u64(8)
            .store(me as u64 + 1, std::sync::atomic::Ordering::Release);
        fabric.bell(next).nudge();
    }
    let maps_previous = fabric.caps_to(members[previous]).map;
    if maps_previous {
        // No frame brings it: the storing process makes no progress.
        let seen = || {
            // ORDERING: Acquire pairs with the Release store of the member before this one.
            let acquire = std::sync::atomic::Ordering::Acquire;
            segment.bytes().u64(8).load(acquire)
        };
        let is_there = || (seen() != 0).then_some(());
        fabric.wait_until("a store", &[members[previous]], is_there)?;
        same!(seen(), previous as u64 + 1);
    }
    let sent = match maps_next {
        true => Some(fabric.isend_shared(next, 1, segment.bytes().slice(0, 4096))?),
        false => None,
    };
    if maps_previous {
        let view = fabric.recv_view(Match::any(1))?;
        check!(
            view.in_place(),
            "a message out of a mapped segment was copied"
        );
    }
    sent.map(|sent| sent.wait()).transpose()?;
    Ok(fabric.barrier(members)?)
}

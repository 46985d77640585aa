//! Messages after a put by RMA are seen after it, and operations in flight end.

use super::index;
use super::onesided::exchange;
use crate::pattern::{pattern, verify};
use crate::{Outcome, check, matches_or_fail, same};
use samite_fabric::transport::Rma;
use samite_fabric::{Atomic, Error, Fabric, Match, PeerId, Remote, Width, wait_all};

const PART: usize = 150_000;

/// Waits until the key of a remote segment has arrived, which two answers guarantee: from now on,
/// operations use RMA if there is any.
fn warm_up(remote: &Remote) -> Outcome {
    remote.get(0, &mut [0; 8])?;
    remote.get(0, &mut [0; 8])?;
    Ok(())
}

/// Puts without a wait are visible when a later message, signal, active message or atomic of the
/// same unit is.
pub fn what_is_sent_after_a_put_is_seen_after_it(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const ROUNDS: u64 = 20;
    let me = index(fabric, members)?;
    let segment = fabric.allocate(PART as u64 + 64)?;
    let keys = exchange(fabric, members, segment.key())?;
    let (next, previous) = (
        (me + 1) % members.len(),
        (me + members.len() - 1) % members.len(),
    );
    let (to, from) = (members[next], members[previous]);
    let remote = fabric.attach(keys[next])?;
    warm_up(&remote)?;
    let flag = segment.bytes().slice(PART as u64 & !7, 8);
    let flag_at = PART as u64 & !7;
    let (told, heard) = std::sync::mpsc::channel();
    fabric.on(5, move |_, bytes| {
        let _ = told.send(bytes.to_vec());
        None
    });
    fabric.barrier(members)?;
    for round in 0..ROUNDS {
        let len = [24, 5000, flag_at as usize][round as usize % 3];
        drop(remote.put_nb(0, &pattern(round, len))?);
        match round % 5 {
            0 => fabric.send(to, 7, b"there")?,
            1 => fabric.signal(to, 7)?,
            2 => fabric.tell(to, 5, b"there")?,
            3 => drop(fabric.isend(to, 7, vec![1; 20_000])?),
            _ => drop(remote.atomic_nb(flag_at, Atomic::Swap, Width::W64, round, 0)?),
        }
        if round % 5 == 4 && remote.mapped().is_some() {
            fabric.bell(to).nudge();
        }
        match round % 5 {
            0 | 3 => {
                fabric.recv_vec(Match::from(from, 7))?;
            }
            1 => fabric.await_signal(from, 7)?,
            2 => {
                fabric.wait_until("an active message", &[from], || heard.try_recv().ok())?;
            }
            _ => {
                // ORDERING: Acquire pairs with the atomic of the previous member.
                let seen = || flag.u64(0).load(std::sync::atomic::Ordering::Acquire) == round;
                fabric.wait_until("a flag", &[from], || seen().then_some(()))?;
            }
        }
        let mut bytes = vec![0; len];
        segment.bytes().read(0, &mut bytes);
        verify(round, &bytes)?;
        fabric.barrier(members)?;
    }
    Ok(())
}

/// A barrier follows the puts to its root that its members started before it. It promises nothing
/// about puts elsewhere: a member reports its arrival only to the root.
pub fn a_barrier_follows_the_puts_to_its_root(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const EACH: usize = 3000;
    let me = index(fabric, members)?;
    let segment = fabric.allocate((EACH * members.len()) as u64)?;
    let keys = exchange(fabric, members, segment.key())?;
    let root = fabric.attach(keys[0])?;
    warm_up(&root)?;
    for round in 0..10u64 {
        let seed = round * 100 + me as u64;
        drop(root.put_nb((me * EACH) as u64, &pattern(seed, EACH))?);
        fabric.barrier(members)?;
        if me == 0 {
            for member in 0..members.len() {
                let mut bytes = vec![0; EACH];
                segment.bytes().read((member * EACH) as u64, &mut bytes);
                verify(round * 100 + member as u64, &bytes)?;
            }
        }
        fabric.barrier(members)?;
    }
    Ok(())
}

/// More bytes than may be in flight at a time, in both directions at once, and each byte arrives in
/// the right place. If the transport has RMA, the owner's messages are not used for it.
pub fn large_puts_and_gets_meet(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const BYTES: usize = 5 << 20;
    let me = index(fabric, members)?;
    let segment = fabric.allocate(2 * BYTES as u64)?;
    segment
        .bytes()
        .write(BYTES as u64, &pattern(50 + me as u64, BYTES));
    let keys = exchange(fabric, members, segment.key())?;
    let next = (me + 1) % members.len();
    let remote = fabric.attach(keys[next])?;
    warm_up(&remote)?;
    fabric.barrier(members)?;
    let before = fabric.served();
    let put = remote.put_nb(0, &pattern(me as u64, BYTES))?;
    let got = remote.get_nb(BYTES as u64, BYTES as u64)?;
    let mut into = vec![0; BYTES];
    fabric.scope(|scope| scope.get(&remote, BYTES as u64, &mut into).map(|_| ()))?;
    verify(50 + next as u64, &into)?;
    verify(50 + next as u64, &got.wait()?)?;
    put.wait()?;
    fabric.barrier(members)?;
    let previous = members[(me + members.len() - 1) % members.len()];
    if fabric.caps_to(previous).rma != Rma::None {
        same!(fabric.served(), before);
    }
    let mut bytes = vec![0; BYTES];
    segment.bytes().read(0, &mut bytes);
    verify(((me + members.len() - 1) % members.len()) as u64, &bytes)?;
    Ok(fabric.barrier(members)?)
}

/// Operations that are started while their target leaves end.
pub fn what_is_in_flight_to_a_lost_owner_ends(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let (leaver, rest) = (members[members.len() - 1], &members[..members.len() - 1]);
    let segment = fabric.allocate(1 << 20)?;
    let keys = exchange(fabric, members, segment.key())?;
    let remote = fabric.attach(keys[members.len() - 1])?;
    warm_up(&remote)?;
    fabric.barrier(members)?;
    if fabric.me() == leaver {
        return Ok(());
    }
    let mut gets = Vec::new();
    let mut puts = Vec::new();
    let may_be = |error: &Error| {
        matches!(error, Error::PeerLost { peer, .. } if *peer == leaver)
            || matches!(error, Error::NoSuchSegment { peer, .. } if *peer == leaver)
            // It shuts the segment before it frees it.
            || matches!(error, Error::WrongPhase { peer, .. } if *peer == leaver)
    };
    for round in 0..40u64 {
        match remote.put_nb(round * 4096, &pattern(round, 70_000)) {
            Ok(put) => puts.push(put),
            Err(error) => check!(may_be(&error), "{error}"),
        }
        match remote.get_nb(round * 4096, 70_000) {
            Ok(get) => gets.push(get),
            Err(error) => check!(may_be(&error), "{error}"),
        }
    }
    for put in puts {
        let ended = put.wait().err();
        check!(ended.as_ref().is_none_or(may_be), "{ended:?}");
    }
    for get in gets {
        let ended = get.wait().err();
        check!(ended.as_ref().is_none_or(may_be), "{ended:?}");
    }
    let gone = fabric.wait_until("a loss", &[leaver], || None::<()>);
    matches_or_fail!(gone, Err(Error::PeerLost { .. }));
    if remote.mapped().is_none() {
        matches_or_fail!(remote.put(0, b"too late"), Err(Error::PeerLost { .. }));
    }
    Ok(fabric.barrier(rest)?)
}

/// A segment that its owner shuts and opens again is another range for RMA: a process that attaches
/// again can access it, and meanwhile no process writes to the owner's exclusive memory.
pub fn nobody_writes_what_the_owner_has_for_itself(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const BYTES: u64 = 64 << 10;
    let me = index(fabric, members)?;
    let next = (me + 1) % members.len();
    let mut segment = fabric.allocate_phased(9, BYTES)?;
    for round in 0..6u64 {
        let keys = exchange(fabric, members, segment.key())?;
        let remote = fabric.attach(keys[next])?;
        warm_up(&remote)?;
        wait_all(
            (0..8)
                .map(|at| remote.put_nb(at * 8192, &pattern(round, 8192)))
                .collect::<Result<Vec<_>, _>>()?,
        )?;
        let late = fabric.attach(keys[next])?;
        let is_mapped = late.mapped().is_some();
        if !is_mapped {
            warm_up(&late)?;
        }
        let kept = (!is_mapped).then_some(late);
        drop(remote);
        fabric.barrier(members)?;
        let put_late = |late: &Remote| -> Outcome<_> {
            let puts = (0..40).map(|at| late.put_nb(8192 + at * 16, &[0xee; 16]));
            Ok(puts.collect::<Result<Vec<_>, _>>()?)
        };
        // In flight while the owner shuts the segment: some arrive before that and some after.
        let on_their_way = kept.as_ref().map(put_late).transpose()?;
        segment.shut();
        let mut owned = segment.own().map_err(|refused| refused.1)?;
        verify(round, &owned.memory().as_slice::<u8>()[..8192])?;
        owned.memory_mut().as_mut_slice::<u8>().fill(round as u8);
        for put in on_their_way.into_iter().flatten() {
            let ended = put.wait().err();
            matches_or_fail!(
                ended,
                None | Some(Error::NoSuchSegment { .. } | Error::WrongPhase { .. })
            );
        }
        fabric.barrier(members)?;
        let mut bytes = owned.memory().as_slice::<u8>().iter();
        check!(bytes.all(|byte| *byte == round as u8), "a late put landed");
        let late = kept.as_ref().map(put_late).transpose()?;
        for put in late.into_iter().flatten() {
            let ended = put.wait().err();
            matches_or_fail!(
                ended,
                Some(Error::NoSuchSegment { .. } | Error::WrongPhase { .. })
            );
        }
        fabric.barrier(members)?;
        segment = owned.give(false)?;
        same!(segment.key(), keys[me]);
    }
    Ok(fabric.barrier(members)?)
}

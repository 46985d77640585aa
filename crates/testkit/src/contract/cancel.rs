//! Cancelled operations, and what a scope reports about the operations that it ends.

use super::index;
use super::order::LARGE;
use crate::pattern::{pattern, verify};
use crate::{Outcome, matches_or_fail, same};
use samite_fabric::{Error, Fabric, Match, PeerId, Whom};

/// A cancelled receive takes no message.
pub fn a_receive_is_cancelled_before_it_matches(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    if me == 0 {
        for wants in [Match::from(members[1], 1), Match::any(1)] {
            let mut cancelled = fabric.irecv(wants, vec![0; 64])?;
            cancelled.cancel();
            matches_or_fail!(cancelled.wait(), Err(Error::Cancelled));
        }
        fabric.signal(members[1], 1)?;
        let mut buffer = [0; 64];
        same!(fabric.recv(Match::any(1), &mut buffer)?.len, 5);
        same!(&buffer[..5], b"first");
    }
    if me == 1 {
        fabric.await_signal(members[0], 1)?;
        fabric.send(members[0], 1, b"first")?;
    }
    Ok(fabric.barrier(members)?)
}

/// A cancellation does not change the result of an operation that has ended.
pub fn a_finished_receive_cannot_be_cancelled(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    if me == 0 {
        let mut handle = fabric.irecv(Match::any(1), vec![0; 64])?;
        fabric.signal(members[1], 1)?;
        while !handle.has_ended() {}
        handle.cancel();
        same!(handle.wait()?.0.len, 4);
    }
    if me == 1 {
        fabric.await_signal(members[0], 1)?;
        fabric.send(members[0], 1, b"kept")?;
    }
    Ok(fabric.barrier(members)?)
}

/// A receive that is cancelled in flight ends once, either way, and so does its send, which reports
/// the cancellation if it had not ended before. Later messages are not affected.
pub fn a_receive_is_cancelled_while_it_is_filled(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const SIZE: usize = 4 << 20;
    let me = index(fabric, members)?;
    for round in 0..8u64 {
        if me == 0 {
            let mut handle = fabric.irecv(Match::from(members[1], round), vec![0; SIZE])?;
            fabric.signal(members[1], round)?;
            for _ in 0..round * 3 {
                fabric.progress();
            }
            handle.cancel();
            match handle.wait() {
                Ok((status, bytes)) => {
                    same!(status.len, SIZE as u64);
                    verify(round, &bytes.unwrap_or_default())?;
                }
                Err(error) => {
                    same!(error, Error::Cancelled);
                    // It may have been cancelled before the message arrived: then the message is
                    // still to be received.
                    fabric.signal(members[1], 100 + round)?;
                }
            }
            let mut buffer = vec![0; SIZE];
            loop {
                let status = fabric.recv(Match::from(members[1], 0).masked(0), &mut buffer)?;
                if status.tag == 1000 + round {
                    verify(1000 + round, &buffer[..status.len as usize])?;
                    break;
                }
                same!(status.tag, round);
                verify(round, &buffer)?;
            }
        }
        if me == 1 {
            fabric.await_signal(members[0], round)?;
            let sent = fabric.isend(members[0], round, pattern(round, SIZE))?;
            let next = fabric.isend(members[0], 1000 + round, pattern(1000 + round, LARGE))?;
            if let Err(error) = sent.wait() {
                same!(error, Error::NotReceived(members[0].into()));
            }
            next.wait()?;
        }
        fabric.barrier(members)?;
    }
    Ok(())
}

/// An unmatched send is withdrawn: it never arrives, later ones do.
pub fn a_send_is_cancelled(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    for round in 0..100u64 {
        if me == 1 {
            let mut withdrawn = fabric.isend(members[0], 1, pattern(round, LARGE))?;
            if round % 2 == 0 {
                fabric.progress();
            }
            withdrawn.cancel();
            matches_or_fail!(withdrawn.wait(), Err(Error::Cancelled));
            fabric.send(members[0], 2, &round.to_le_bytes())?;
            fabric.await_signal(members[0], 1)?;
        }
        if me == 0 {
            let mut bytes = [0; 8];
            fabric.recv(Match::from(members[1], 2), &mut bytes)?;
            same!(u64::from_le_bytes(bytes), round);
            same!(fabric.probe(Match::any(1)), None);
            fabric.signal(members[1], 1)?;
        }
    }
    Ok(fabric.barrier(members)?)
}

/// A handle whose operation had already ended when it was created can be cancelled like any other,
/// without affecting handles that are created afterwards.
pub fn what_has_ended_can_be_cancelled(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let (next, last) = (
        members[(me + 1) % members.len()],
        members[(me + members.len() - 1) % members.len()],
    );
    fabric.barrier(members)?;
    fabric.scope(|scope| -> Outcome {
        let mut sent = scope.isend(next, 1, b"small")?;
        sent.cancel();
        sent.cancel();
        Ok(())
    })?;
    let receives: Result<Vec<_>, _> = (2..6)
        .map(|tag| fabric.irecv(Match::from(last, tag), vec![0; 1]))
        .collect();
    for tag in (2..6u8).rev() {
        fabric.send(next, tag.into(), &[tag])?;
    }
    for (tag, receive) in (2..6u8).zip(receives?) {
        let (status, bytes) = receive.wait()?;
        same!((status.tag, bytes), (tag.into(), Some(vec![tag])));
    }
    same!(fabric.recv_vec(Match::from(last, 1))?.1, b"small");
    Ok(fabric.barrier(members)?)
}

/// A scope returns the first error of its operations for which the caller did not wait. Errors of
/// operations that the caller waited for or cancelled are not included.
pub fn a_scope_says_what_went_wrong(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let (next, last) = (
        members[(me + 1) % members.len()],
        members[(me + members.len() - 1) % members.len()],
    );
    let from = |tag| Match::from(last, tag);
    fabric.barrier(members)?;
    for tag in 1..=4 {
        fabric.send(next, tag, &pattern(tag, 100))?;
    }
    let (mut small, mut fits) = ([0; 10], [0; 100]);
    // Dropped, and too small: only the scope can report it.
    let ended = fabric.scope(|scope| {
        scope.irecv(from(1), &mut small)?;
        scope.irecv(from(2), &mut fits)?;
        Ok(())
    });
    let is_short = |error: &Error| {
        matches!(
            error,
            Error::Truncated {
                message: 100,
                buffer: 10,
                ..
            }
        )
    };
    matches_or_fail!(ended, Err(error) if is_short(error));
    verify(2, &fits)?;
    // Waited for: the caller knows the error.
    fabric.scope(|scope| -> Outcome {
        let short = scope.irecv(from(3), &mut small)?.wait();
        matches_or_fail!(short, Err(error) if is_short(error));
        Ok(())
    })?;
    // The body's own error takes precedence, and a cancellation is not an error.
    let ended = fabric.scope(|scope| {
        scope.irecv(from(4), &mut small)?;
        Err::<(), _>(Error::Misaligned(7))
    });
    same!(ended, Err(Error::Misaligned(7)));
    fabric.scope(|scope| -> Outcome {
        scope.irecv(from(9), &mut fits)?.cancel();
        Ok(())
    })?;
    // Nested scopes: each has its own errors.
    let (mut outer, mut inner) = ([0; 10], [0; 10]);
    fabric.barrier(members)?;
    let ended = fabric.scope(|scope| {
        scope.irecv(from(5), &mut outer)?;
        let ended = fabric.scope(|scope| {
            scope.irecv(from(6), &mut inner)?;
            fabric.send(next, 6, &[1; 11])
        });
        fabric.send(next, 5, &[1; 12])?;
        Ok(ended)
    });
    matches_or_fail!(ended, Err(Error::Truncated { message: 12, .. }));
    // An operation that never completes is abandoned at the deadline.
    let deadline = fabric.deadline();
    fabric.set_deadline(std::time::Duration::from_millis(20));
    let ended = fabric.scope(|scope| {
        scope.irecv(from(99), &mut small)?;
        Ok(())
    });
    fabric.set_deadline(deadline);
    matches_or_fail!(ended, Err(Error::Timeout { whom, .. }) if *whom == Whom::Peer(last));
    Ok(fabric.barrier(members)?)
}

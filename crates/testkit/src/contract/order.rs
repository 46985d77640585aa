//! Order, tags, probe, cancel, truncation.

use super::index;
use crate::pattern::{pattern, verify};
use crate::{Failed, Outcome, check, matches_or_fail, same};
use samite_fabric::{Error, Fabric, Match, PeerId, Whom, wait_all};

/// Far beyond what travels at once, on every transport.
const LARGE: usize = 300_000;

/// Everybody sends to everybody, small and large mixed; each pair's messages arrive in order.
pub fn messages_of_a_pair_stay_in_order(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const COUNT: usize = 300;
    let len = |number: usize| {
        if number % 60 == 59 {
            LARGE
        } else {
            8 + number % 400
        }
    };
    let mut sends = Vec::new();
    for number in 0..COUNT {
        for to in members.iter().filter(|to| **to != fabric.me()) {
            let mut bytes = vec![0; len(number)];
            bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
            sends.push(fabric.isend(*to, 7, bytes)?);
        }
    }
    let mut buffer = vec![0; LARGE];
    for number in 0..COUNT {
        for from in members.iter().filter(|from| **from != fabric.me()) {
            let status = fabric.recv(Match::from(*from, 7), &mut buffer)?;
            same!(status.len, len(number) as u64);
            same!(buffer[..8], (number as u64).to_le_bytes());
        }
    }
    wait_all(sends)?;
    Ok(fabric.barrier(members)?)
}

/// One receiver of any source; order is kept per source.
pub fn any_source_takes_from_everybody(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const COUNT: usize = 200;
    let me = index(fabric, members)?;
    if me == 0 {
        let mut next = vec![0u64; members.len()];
        for _ in 0..COUNT * (members.len() - 1) {
            let mut bytes = [0; 8];
            let status = fabric.recv(Match::any(1), &mut bytes)?;
            let from = members.iter().position(|member| *member == status.from);
            check!(
                from.is_some(),
                "a message from {}, who is no member",
                status.from
            );
            let from = from.unwrap_or(0);
            same!(u64::from_le_bytes(bytes), next[from]);
            next[from] += 1;
        }
        same!(next[1..], vec![COUNT as u64; members.len() - 1]);
    } else {
        for number in 0..COUNT as u64 {
            fabric.send(members[0], 1, &number.to_le_bytes())?;
        }
    }
    Ok(fabric.barrier(members)?)
}

/// A receive takes the oldest message whose tag is equal under the mask, and no other.
pub fn tags_and_masks_choose(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let from = Match {
        source: Some(members[1]),
        tag: 0,
        mask: u64::MAX,
    };
    let tags = [1, 2, 0x1_0000_0005, 0x2_0000_0005, 3, u64::MAX];
    if me == 1 {
        for tag in tags {
            fabric.send(members[0], tag, &tag.to_le_bytes())?;
        }
        // A receive that was posted before its message came.
        fabric.signal(members[0], 1)?;
        fabric.await_signal(members[0], 2)?;
        fabric.send(members[0], 0x77, b"no")?;
        fabric.send(members[0], 0x7788, b"yes")?;
    }
    if me == 0 {
        fabric.await_signal(members[1], 1)?;
        let take = |wants: Match| -> Outcome<u64> {
            let mut bytes = [0; 8];
            let status = fabric.recv(wants, &mut bytes)?;
            same!(u64::from_le_bytes(bytes), status.tag);
            Ok(status.tag)
        };
        same!(take(Match { tag: 3, ..from })?, 3);
        same!(
            take(Match {
                tag: 5,
                mask: 0xffff_ffff,
                ..from
            })?,
            0x1_0000_0005
        );
        same!(
            take(Match {
                tag: 0x2_0000_0000,
                mask: !0xffff_ffff,
                ..from
            })?,
            0x2_0000_0005
        );
        same!(take(Match { mask: 0, ..from })?, 1);
        same!(take(Match::any(u64::MAX))?, u64::MAX);
        same!(take(Match::any(0).masked(0))?, 2);
        let handle = fabric.irecv(
            Match {
                tag: 0x7700,
                mask: 0xff00,
                ..from
            },
            vec![0; 8],
        )?;
        fabric.signal(members[1], 2)?;
        let (status, bytes) = handle.wait()?;
        same!((status.tag, status.len), (0x7788, 3));
        check!(bytes.is_some_and(|bytes| bytes.starts_with(b"yes")));
        same!(
            fabric.recv(Match { tag: 0x77, ..from }, &mut [0; 2])?.len,
            2
        );
    }
    Ok(fabric.barrier(members)?)
}

/// A probe says what is there, and leaves it there.
pub fn probe_looks_and_leaves(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    if me == 1 {
        fabric.send(members[0], 4, &pattern(4, 100))?;
        let large = fabric.isend(members[0], 5, pattern(5, LARGE))?;
        fabric.signal(members[0], 1)?;
        large.wait()?;
    }
    if me == 0 {
        same!(fabric.probe(Match::any(99)), None);
        fabric.await_signal(members[1], 1)?;
        for _ in 0..2 {
            let found = fabric.probe(Match::any(5)).map(|s| (s.from, s.tag, s.len));
            same!(found, Some((members[1], 5, LARGE as u64)));
            let found = fabric.probe(Match::from(members[1], 4)).map(|s| s.len);
            same!(found, Some(100));
        }
        same!(fabric.probe(Match::from(members[2], 4)), None);
        let mut buffer = vec![0; LARGE];
        fabric.recv(Match::any(5), &mut buffer)?;
        verify(5, &buffer)?;
        fabric.recv(Match::any(4), &mut buffer)?;
        verify(4, &buffer[..100])?;
        same!(fabric.probe(Match::any(0).masked(0)), None);
    }
    Ok(fabric.barrier(members)?)
}

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

/// What has ended stays as it ended.
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

/// A receive that is cancelled under way ends once, either way, and so does its send, which hears of it if it had not
/// ended before; what follows is not disturbed.
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
                    // It may have been cancelled before the message came: then it is still there.
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
                same!(error, Error::NotReceived(members[0]));
            }
            next.wait()?;
        }
        fabric.barrier(members)?;
    }
    Ok(())
}

/// A send that nobody matched is withdrawn: it never arrives, those behind it do.
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

/// A message that is longer than the buffer is consumed and reported; its send ends well.
pub fn a_message_that_does_not_fit_is_consumed(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let sizes = [10, 200, 5000, LARGE];
    if me == 1 {
        for size in sizes {
            let sent = fabric.isend(members[0], 1, pattern(1, size))?;
            fabric.send(members[0], 2, b"next")?;
            sent.wait()?;
        }
    }
    if me == 0 {
        for (round, size) in sizes.into_iter().enumerate() {
            if round % 2 == 0 {
                // Unexpected when it is received, otherwise mostly not.
                while fabric.probe(Match::any(1)).is_none() {}
            }
            let mut buffer = vec![0; size - 1];
            let (from, message, length) = (members[1], size as u64, size as u64 - 1);
            let expected = Error::Truncated {
                from,
                message,
                buffer: length,
            };
            same!(fabric.recv(Match::any(1), &mut buffer), Err(expected));
            let mut next = [0; 4];
            fabric.recv(Match::any(2), &mut next)?;
            same!(&next, b"next");
        }
        same!(fabric.probe(Match::any(0).masked(0)), None);
    }
    Ok(fabric.barrier(members)?)
}

/// No bytes are a message too.
pub fn empty_messages_arrive(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    if me == 1 {
        let segment = fabric.allocate(64)?;
        fabric.send(members[0], 1, &[])?;
        fabric.isend(members[0], 2, Vec::new())?.wait()?;
        fabric
            .isend_shared(members[0], 3, segment.bytes().slice(0, 0))?
            .wait()?;
        fabric.send(members[0], 4, &[])?;
    }
    if me == 0 {
        same!(fabric.recv(Match::any(1), &mut [])?.len, 0);
        same!(fabric.recv(Match::any(2), &mut [1])?.len, 0);
        same!(fabric.recv_vec(Match::any(3))?.1, Vec::<u8>::new());
        check!(fabric.recv_view(Match::any(4))?.bytes().is_empty());
    }
    Ok(fabric.barrier(members)?)
}

/// A process is its own peer.
pub fn messages_to_oneself_arrive(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = fabric.me();
    for size in [0, 8, 300, 20_000, LARGE] {
        let receive = fabric.irecv(Match::from(me, 1), vec![0; size])?;
        fabric.send(me, 1, &pattern(size as u64, size))?;
        verify(size as u64, &receive.wait()?.1.unwrap_or_default())?;
        let send = fabric.isend(me, 2, pattern(size as u64, size))?;
        verify(size as u64, &fabric.recv_vec(Match::any(2))?.1)?;
        send.wait()?;
    }
    Ok(fabric.barrier(members)?)
}

/// Large messages that nobody expects yet do not stand in the way of small ones.
pub fn large_messages_do_not_block_small_ones(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const COUNT: u64 = 20;
    let me = index(fabric, members)?;
    if me == 1 {
        let large: Result<Vec<_>, _> = (0..COUNT)
            .map(|n| fabric.isend(members[0], n, pattern(n, LARGE)))
            .collect();
        for number in 0..COUNT {
            fabric.send(members[0], 1000 + number, &number.to_le_bytes())?;
        }
        wait_all(large?)?;
    }
    if me == 0 {
        for number in (0..COUNT).rev() {
            let mut bytes = [0; 8];
            fabric.recv(Match::any(1000 + number), &mut bytes)?;
            same!(u64::from_le_bytes(bytes), number);
        }
        for number in (0..COUNT).rev() {
            verify(number, &fabric.recv_vec(Match::any(number))?.1)?;
        }
    }
    Ok(fabric.barrier(members)?)
}

/// Everybody sends as fast as it can to one that works on each message: all get their turn, their requests,
/// too. (What they send is without end, so one that never gets its turn is one that times out.)
pub fn a_slow_receiver_serves_everybody(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const EACH: u64 = 600;
    const ECHO: u16 = 1;
    let (receiver, senders) = (members[0], &members[1..]);
    fabric.on(ECHO, |_, bytes| Some(bytes.to_vec()));
    fabric.barrier(members)?;
    if fabric.me() != receiver {
        let mut number = 0u64;
        while fabric.probe(Match::from(receiver, 2)).is_none() {
            fabric.send(receiver, 1, &number.to_le_bytes())?;
            number += 1;
            if number == EACH / 2 {
                let reply = fabric.request(receiver, ECHO, &number.to_le_bytes())?;
                same!(reply.wait()?, number.to_le_bytes());
            }
        }
        fabric.recv(Match::from(receiver, 2), &mut [])?;
        fabric.send(receiver, 3, &number.to_le_bytes())?;
        return Ok(fabric.barrier(members)?);
    }
    let mut taken = vec![0; members.len()];
    let mut bytes = [0; 8];
    while taken[1..].iter().any(|count| *count < EACH) {
        let status = fabric.recv(Match::any(1), &mut bytes)?;
        let sender = members.iter().position(|member| *member == status.from);
        let count = sender.and_then(|sender| taken.get_mut(sender));
        let count = count.ok_or_else(|| Failed::new("a message from a stranger"))?;
        same!(u64::from_le_bytes(bytes), *count);
        *count += 1;
        super::work();
    }
    for to in senders {
        fabric.send(*to, 2, &[])?;
    }
    for (from, taken) in senders.iter().zip(&mut taken[1..]) {
        fabric.recv(Match::from(*from, 3), &mut bytes)?;
        while *taken < u64::from_le_bytes(bytes) {
            let mut number = [0; 8];
            fabric.recv(Match::from(*from, 1), &mut number)?;
            same!(u64::from_le_bytes(number), *taken);
            *taken += 1;
        }
    }
    Ok(fabric.barrier(members)?)
}

/// A handle of an operation that had ended when it was made can be cancelled like any other, without any harm
/// to those that are made afterwards.
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

/// A scope returns the first error of what was started in it and that nobody has waited for; what was waited
/// for, or cancelled, is not among it.
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
    // Dropped, and too small: nobody but the scope can say so.
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
    // Waited for: whoever did so knows.
    fabric.scope(|scope| -> Outcome {
        let short = scope.irecv(from(3), &mut small)?.wait();
        matches_or_fail!(short, Err(error) if is_short(error));
        Ok(())
    })?;
    // Its own error goes before, and what was cancelled is no error.
    let ended = fabric.scope(|scope| {
        scope.irecv(from(4), &mut small)?;
        Err::<(), _>(Error::Misaligned(7))
    });
    same!(ended, Err(Error::Misaligned(7)));
    fabric.scope(|scope| -> Outcome {
        scope.irecv(from(9), &mut fits)?.cancel();
        Ok(())
    })?;
    // One in another: each has its own.
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
    // What never comes is given up at the deadline.
    let deadline = fabric.deadline();
    fabric.set_deadline(std::time::Duration::from_millis(20));
    let ended = fabric.scope(|scope| {
        scope.irecv(from(99), &mut small)?;
        Ok(())
    });
    fabric.set_deadline(deadline);
    matches_or_fail!(ended, Err(Error::Timeout { whom: Whom::Peer(peer), .. }) if *peer == last);
    Ok(fabric.barrier(members)?)
}

//! Order, tags, probe, truncation.

use super::index;
use crate::pattern::{pattern, verify};
use crate::{Failed, Outcome, check, same};
use samite_fabric::{Error, Fabric, Match, PeerId, wait_all};

/// Far more than one frame, on every transport.
pub(super) const LARGE: usize = 300_000;

/// Every member sends to every member, small and large mixed; each pair's messages arrive in order.
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

/// A receiver takes messages from any source; order is kept per source.
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
        // A receive that was posted before its message arrived.
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

/// A probe describes a message without taking it.
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

/// A message longer than the buffer is consumed and reported; its send succeeds.
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
                // In these rounds, the message is unexpected when it is received; in the others,
                // mostly not.
                while fabric.probe(Match::any(1)).is_none() {}
            }
            let mut buffer = vec![0; size - 1];
            let (from, message, length) = (members[1], size as u64, size as u64 - 1);
            let expected = Error::Truncated {
                from: from.into(),
                tag: 1,
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

/// An empty message is a message, too.
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

/// A process can send to itself.
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

/// Large unexpected messages do not block small ones.
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

/// Every member sends as fast as it can to one that works on each message: all are served, their
/// requests, too. (They send endlessly, so a member that is never served times out.)
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

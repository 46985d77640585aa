//! Every size class between all kinds of buffers, and more messages than rings hold.

use super::index;
use crate::pattern::{pattern, verify};
use crate::{Failed, Outcome, same};
use samite_fabric::{Fabric, Match, PeerId, Segment, wait_all};

/// Where the bytes of a sender are.
#[derive(Clone, Copy, Debug)]
enum From {
    Lent,
    Owned,
    Segment,
    Scope,
}

/// Where a receiver puts them.
#[derive(Clone, Copy, Debug)]
enum Into {
    Lent,
    Owned,
    Segment,
    Any,
    View,
    Scope,
}

const FROM: [From; 4] = [From::Lent, From::Owned, From::Segment, From::Scope];
const INTO: [Into; 6] = [
    Into::Lent,
    Into::Owned,
    Into::Segment,
    Into::Any,
    Into::View,
    Into::Scope,
];

fn send(fabric: &Fabric, to: PeerId, how: From, segment: &Segment, bytes: Vec<u8>) -> Outcome {
    match how {
        From::Lent => fabric.send(to, 1, &bytes)?,
        From::Owned => {
            let back = fabric.isend(to, 1, bytes.clone())?.wait()?;
            same!(back.map(|back| back == bytes), Some(true));
        }
        From::Segment => {
            segment.bytes().write(64, &bytes);
            let part = segment.bytes().slice(64, bytes.len() as u64);
            fabric.isend_shared(to, 1, part)?.wait()?;
        }
        From::Scope => {
            fabric.scope(|scope| scope.isend(to, 1, &bytes)?.wait())?;
        }
    }
    Ok(())
}

fn receive(
    fabric: &Fabric,
    from: PeerId,
    how: Into,
    segment: &Segment,
    len: usize,
) -> Outcome<Vec<u8>> {
    let wants = Match::from(from, 1);
    let exactly = |got: u64, bytes: Vec<u8>| -> Outcome<Vec<u8>> {
        same!(got, len as u64);
        Ok(bytes)
    };
    match how {
        Into::Lent => {
            let mut buffer = vec![0; len];
            let status = fabric.recv(wants, &mut buffer)?;
            exactly(status.len, buffer)
        }
        Into::Owned => {
            // Longer than needed: the bytes after the message do not change.
            let (status, buffer) = fabric.irecv(wants, vec![0xee; len + 9])?.wait()?;
            let mut buffer =
                buffer.ok_or_else(|| Failed::new("an owned buffer did not come back"))?;
            same!(buffer.split_off(len), vec![0xee; 9]);
            exactly(status.len, buffer)
        }
        Into::Segment => {
            let part = segment.bytes().slice(128, len as u64);
            let (status, _) = fabric.irecv_shared(wants, part.clone())?.wait()?;
            let mut buffer = vec![0; len];
            part.read(0, &mut buffer);
            exactly(status.len, buffer)
        }
        Into::Any => {
            let (status, buffer) = fabric.recv_vec(wants)?;
            exactly(status.len, buffer)
        }
        Into::View => {
            let view = fabric.recv_view(wants)?;
            let mut buffer = vec![0; view.bytes().len() as usize];
            view.bytes().read(0, &mut buffer);
            exactly(view.status().len, buffer)
        }
        Into::Scope => {
            let mut buffer = vec![0; len];
            let status = fabric
                .scope(|scope| scope.irecv(wants, &mut buffer)?.wait())?
                .0;
            exactly(status.len, buffer)
        }
    }
}

/// Tests all pairs of kinds with these sizes, from the second member to the first and back.
fn all_kinds(fabric: &Fabric, members: &[PeerId], sizes: &[usize]) -> Outcome {
    let me = index(fabric, members)?;
    if me < 2 {
        let largest = sizes.iter().copied().max().unwrap_or(0) as u64;
        let segment = fabric.allocate(largest + 256)?;
        for (round, size) in sizes.iter().copied().enumerate() {
            for (kind, how) in FROM
                .into_iter()
                .flat_map(|f| INTO.map(|i| (f, i)))
                .enumerate()
            {
                let seed = (round * 100 + kind) as u64;
                let other = members[1 - me];
                let at = |why: Failed| Failed(format!("{size} bytes, {how:?}: {why}"));
                if kind % 2 == me {
                    send(fabric, other, how.0, &segment, pattern(seed, size)).map_err(at)?;
                } else {
                    let bytes = receive(fabric, other, how.1, &segment, size).map_err(at)?;
                    verify(seed, &bytes).map_err(at)?;
                }
            }
        }
    }
    Ok(fabric.barrier(members)?)
}

/// The sizes around the limits of cells, of eager messages and of pieces.
pub fn every_size_between_all_kinds_of_buffers(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let eager = samite_fabric::CostModel::default().eager_max as usize;
    let body = fabric.caps_to(fabric.me()).body_max as usize;
    let sizes = [
        0,
        1,
        7,
        8,
        47,
        48,
        49,
        103,
        104,
        105,
        255,
        256,
        257,
        271,
        272,
        273,
        4095,
        4096,
        4097,
        eager - 1,
        eager,
        eager + 1,
        body - 1,
        body,
        body + 1,
        (64 << 10) - 1,
        64 << 10,
        (64 << 10) + 1,
    ];
    all_kinds(fabric, members, &sizes)
}

/// The sizes at which several pieces are copied, by one side or by both.
pub fn large_sizes_between_all_kinds_of_buffers(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    all_kinds(
        fabric,
        members,
        &[(256 << 10) + 1, (1 << 20) + 3, (8 << 20) + 5],
    )
}

/// More messages than a ring holds, in both directions, before either side receives.
pub fn full_rings_in_both_directions(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let others: Vec<usize> = (0..members.len()).filter(|other| *other != me).collect();
    let seed = |from: usize, number: usize| (from * 10_000 + number) as u64;
    for (count, size) in [(3000, 8), (1000, 100), (200, 10_000)] {
        let mut sends = Vec::new();
        for number in 0..count {
            for to in &others {
                sends.push(fabric.isend(
                    members[*to],
                    number as u64,
                    pattern(seed(me, number), size),
                )?);
            }
        }
        // From the last to the first: every message but one is unexpected.
        let mut buffer = vec![0; size];
        for number in (0..count).rev() {
            for from in &others {
                fabric.recv(Match::from(members[*from], number as u64), &mut buffer)?;
                verify(seed(*from, number), &buffer)?;
            }
        }
        wait_all(sends)?;
        fabric.barrier(members)?;
    }
    Ok(())
}

/// Large messages in both directions at once, receives posted before or after.
pub fn large_messages_in_both_directions(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const SIZE: usize = (1 << 20) + 3;
    const COUNT: u64 = 6;
    let me = index(fabric, members)?;
    let others: Vec<usize> = (0..members.len()).filter(|other| *other != me).collect();
    for receive_first in [true, false] {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let mut post = || -> Outcome {
            for tag in 0..COUNT {
                for from in &others {
                    let handle = fabric.irecv(Match::from(members[*from], tag), vec![0; SIZE])?;
                    receives.push((*from as u64 * 100 + tag, handle));
                }
            }
            Ok(())
        };
        if receive_first {
            post()?;
        }
        for tag in 0..COUNT {
            for to in &others {
                sends.push(fabric.isend(
                    members[*to],
                    tag,
                    pattern(me as u64 * 100 + tag, SIZE),
                )?);
            }
        }
        if !receive_first {
            post()?;
        }
        for (seed, handle) in receives {
            verify(seed, &handle.wait()?.1.unwrap_or_default())?;
        }
        wait_all(sends)?;
        fabric.barrier(members)?;
    }
    Ok(())
}

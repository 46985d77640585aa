//! Loss of a member. Here it leaves; `faults` kills it.

use super::index;
use super::onesided::exchange;
use crate::pattern::pattern;
use crate::{Outcome, matches_or_fail, same};
use samite_fabric::{Error, Fabric, Match, PeerId};

/// Every operation that needs the lost member ends once, with `PeerLost`; operations of others
/// continue.
pub fn who_leaves_ends_what_depends_on_it(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let (leaver, rest) = (members[members.len() - 1], &members[..members.len() - 1]);
    fabric.barrier(members)?;
    if fabric.me() == leaver {
        return rest
            .iter()
            .try_for_each(|member| Ok(fabric.await_signal(*member, 1)?));
    }
    let lost = |error: &Error| matches!(error, Error::PeerLost { peer, incarnation } if *peer == leaver && *incarnation > 0);
    let mut receives = Vec::new();
    for tag in 0..3 {
        receives.push(fabric.irecv(Match::from(leaver, tag), vec![0; 100])?);
    }
    let send = fabric.isend(leaver, 9, pattern(9, 300_000))?;
    let others = fabric.irecv(Match::from(rest[(me + 1) % rest.len()], 5), vec![0; 100])?;
    fabric.signal(leaver, 1)?;
    let error = send.wait().err();
    matches_or_fail!(error, Some(error) if lost(error));
    for receive in receives {
        matches_or_fail!(receive.wait(), Err(error) if lost(error));
    }
    matches_or_fail!(fabric.send(leaver, 1, b"?"), Err(error) if lost(error));
    matches_or_fail!(fabric.recv(Match::from(leaver, 1), &mut [0]), Err(error) if lost(error));
    matches_or_fail!(fabric.signal(leaver, 1), Err(error) if lost(error));
    matches_or_fail!(fabric.await_signal(leaver, 1), Err(error) if lost(error));
    matches_or_fail!(fabric.request(leaver, 1, b"?").map(|_| ()), Err(error) if lost(error));
    same!(fabric.peers().iter().any(|info| info.peer == leaver), false);
    // The first member sees the loss although another one has not come yet.
    if me == 1 {
        fabric.await_signal(rest[0], 2)?;
    }
    for round in 0..2 {
        matches_or_fail!(fabric.barrier(members), Err(error) if lost(error));
        if me == 0 && round == 0 {
            fabric.signal(rest[1], 2)?;
        }
    }
    for to in rest {
        fabric.send(*to, 5, b"we go on")?;
    }
    same!(others.wait()?.0.len, 8);
    Ok(fabric.barrier(rest)?)
}

/// Messages that a member sent before it left still arrive, and then its loss is reported.
pub fn last_words_arrive(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const WORDS: u64 = 50;
    let (leaver, rest) = (members[members.len() - 1], &members[..members.len() - 1]);
    fabric.barrier(members)?;
    if fabric.me() == leaver {
        for word in 0..WORDS {
            for to in rest {
                fabric.send(*to, 1, &word.to_le_bytes())?;
            }
        }
        return Ok(());
    }
    // Receive only after the other member is gone for good.
    while fabric.peers().iter().any(|info| info.peer == leaver) {}
    for word in 0..WORDS {
        let mut bytes = [0; 8];
        fabric.recv(Match::from(leaver, 1), &mut bytes)?;
        same!(u64::from_le_bytes(bytes), word);
    }
    matches_or_fail!(
        fabric.recv(Match::from(leaver, 1), &mut [0; 8]),
        Err(Error::PeerLost { .. })
    );
    Ok(fabric.barrier(rest)?)
}

/// Tests the same as [`last_words_arrive`], for a receiver that takes one message at a time and
/// learns of the loss while it works on one: no message sent before the loss is lost.
pub fn last_words_are_taken_one_by_one(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const WORDS: u64 = 50;
    let (leaver, rest) = (members[members.len() - 1], &members[..members.len() - 1]);
    let life = fabric.peers().into_iter().find(|info| info.peer == leaver);
    let life = life.map_or(0, |info| info.incarnation);
    let word = |number: u64| number << 32 | life as u64;
    fabric.barrier(members)?;
    if fabric.me() == leaver {
        for number in 0..WORDS {
            for to in rest {
                fabric.send(*to, 1, &word(number).to_le_bytes())?;
                fabric.signal(*to, number % 3)?;
            }
        }
        return Ok(());
    }
    let me = index(fabric, members)?;
    for number in 0..WORDS {
        // One member receives from any source, the other names the source.
        let wants = match me % 2 {
            0 => Match::any(1),
            _ => Match::from(leaver, 1),
        };
        let mut bytes = [0; 8];
        fabric.recv(wants, &mut bytes)?;
        same!(u64::from_le_bytes(bytes), word(number));
        super::work();
    }
    for number in 0..WORDS {
        fabric.await_signal(leaver, number % 3)?;
    }
    matches_or_fail!(
        fabric.recv(Match::from(leaver, 1), &mut [0; 8]),
        Err(Error::PeerLost { .. })
    );
    matches_or_fail!(fabric.await_signal(leaver, 0), Err(Error::PeerLost { .. }));
    Ok(fabric.barrier(rest)?)
}

/// One-sided operations on memory of a lost member end with an error; they do not hang.
pub fn a_lost_owner_is_an_error(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let (leaver, rest) = (members[members.len() - 1], &members[..members.len() - 1]);
    let segment = fabric.allocate(4096)?;
    let keys = exchange(fabric, members, segment.key())?;
    let remote = fabric.attach(keys[members.len() - 1])?;
    remote.put(0, b"while it lives")?;
    fabric.barrier(members)?;
    if fabric.me() == leaver {
        return Ok(());
    }
    while fabric.peers().iter().any(|info| info.peer == leaver) {}
    let attached = fabric.attach(keys[members.len() - 1]).map(|_| ());
    matches_or_fail!(attached, Err(Error::PeerLost { .. }));
    if remote.mapped().is_none() {
        matches_or_fail!(remote.put(0, b"too late"), Err(Error::PeerLost { .. }));
        matches_or_fail!(remote.get(0, &mut [0; 8]), Err(Error::PeerLost { .. }));
        matches_or_fail!(remote.fetch_add(0, 1), Err(Error::PeerLost { .. }));
    }
    Ok(fabric.barrier(rest)?)
}

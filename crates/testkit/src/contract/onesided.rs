//! Put, get, atomics, and refusals.

use super::index;
use crate::pattern::{pattern, verify};
use crate::{Failed, Outcome, check, matches_or_fail, same};
use samite_fabric::{Atomic, Error, Fabric, Match, PeerId, Segment, SegmentKey, Width, wait_all};

const ATOMICS: [Atomic; 9] = [
    Atomic::Load,
    Atomic::Add,
    Atomic::And,
    Atomic::Or,
    Atomic::Xor,
    Atomic::Swap,
    Atomic::Min,
    Atomic::Max,
    Atomic::CompareExchange,
];

/// Sends the key of a segment to every member; returns the keys of all by rank. Collective.
pub(super) fn exchange(
    fabric: &Fabric,
    members: &[PeerId],
    key: SegmentKey,
) -> Outcome<Vec<SegmentKey>> {
    const KEYS: u64 = 0x6b65_7973;
    for to in members {
        fabric.send(*to, KEYS, &key.to_bytes())?;
    }
    let mut keys = Vec::new();
    for from in members {
        let mut bytes = [0; 24];
        fabric.recv(Match::from(*from, KEYS), &mut bytes)?;
        keys.push(SegmentKey::from_bytes(&bytes));
    }
    Ok(keys)
}

/// The bytes of a put are in place when it returns, for every size, blocking or not.
pub fn what_is_put_is_got(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const BYTES: usize = 3 << 20;
    let me = index(fabric, members)?;
    let segment = fabric.allocate(BYTES as u64 * members.len() as u64)?;
    let keys = exchange(fabric, members, segment.key())?;
    let base = (me * BYTES) as u64;
    for key in &keys {
        let remote = fabric.attach(*key)?;
        for (round, len) in [0, 1, 8, 63, 4096, 70_000, (1 << 20) + 3]
            .into_iter()
            .enumerate()
        {
            let (seed, offset) = (round as u64, base + round as u64 * 13);
            remote.put(offset, &pattern(seed, len))?;
            let mut back = vec![0; len];
            remote.get(offset, &mut back)?;
            verify(seed, &back)?;
            remote
                .put_nb(offset + 1, &pattern(seed + 50, len))?
                .wait()?;
            verify(seed + 50, &remote.get_nb(offset + 1, len as u64)?.wait()?)?;
        }
    }
    Ok(fabric.barrier(members)?)
}

/// Many concurrent puts by all members to the same owner: each byte is that of the right member.
pub fn everybody_puts_at_once(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const PART: usize = 5000;
    const PARTS: usize = 40;
    let me = index(fabric, members)?;
    let segment = fabric.allocate((PART * PARTS * members.len()) as u64)?;
    let keys = exchange(fabric, members, segment.key())?;
    let mut puts = Vec::new();
    for part in 0..PARTS {
        for (owner, key) in keys.iter().enumerate() {
            let offset = (part * members.len() + me) * PART;
            let seed = (owner * 1000 + part * 10 + me) as u64;
            puts.push(
                fabric
                    .attach(*key)?
                    .put_nb(offset as u64, &pattern(seed, PART))?,
            );
        }
    }
    wait_all(puts)?;
    fabric.barrier(members)?;
    let mut bytes = vec![0; PART];
    for part in 0..PARTS {
        for writer in 0..members.len() {
            segment
                .bytes()
                .read(((part * members.len() + writer) * PART) as u64, &mut bytes);
            verify((me * 1000 + part * 10 + writer) as u64, &bytes)?;
        }
    }
    Ok(fabric.barrier(members)?)
}

fn model(op: Atomic, old: u64, a: u64, b: u64, mask: u64) -> u64 {
    let (old, a, b) = (old & mask, a & mask, b & mask);
    mask & match op {
        Atomic::Load => old,
        Atomic::Add => old.wrapping_add(a),
        Atomic::And => old & a,
        Atomic::Or => old | a,
        Atomic::Xor => old ^ a,
        Atomic::Swap => a,
        Atomic::Min => old.min(a),
        Atomic::Max => old.max(a),
        Atomic::CompareExchange if old == a => b,
        Atomic::CompareExchange => old,
    }
}

/// Every operation, both widths, blocking and not, compared with a model. Neighbouring bytes do not
/// change.
pub fn atomics_do_what_they_say(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let segment = fabric.allocate(64 * members.len() as u64)?;
    let keys = exchange(fabric, members, segment.key())?;
    let remote = fabric.attach(keys[(me + 1) % members.len()])?;
    let base = 64 * me as u64;
    let values = [
        0,
        1,
        u64::MAX,
        0x8000_0000,
        0x8000_0000_0000_0000,
        0x1234_5678_9abc_def0,
    ];
    for (width, mask) in [(Width::W32, 0xffff_ffff), (Width::W64, u64::MAX)] {
        for op in ATOMICS {
            for (round, (old, a)) in values
                .iter()
                .flat_map(|o| values.map(|a| (*o, a)))
                .enumerate()
            {
                let b = values[round % values.len()];
                remote.put(base, &[0x5a; 24])?;
                remote.put(base + 8, &old.to_le_bytes()[..width.bytes() as usize])?;
                let got = if round % 2 == 0 {
                    remote.atomic(base + 8, op, width, a, b)?
                } else {
                    remote.atomic_nb(base + 8, op, width, a, b)?.wait()?
                };
                same!((op, width, got), (op, width, old & mask));
                let mut after = [0; 24];
                remote.get(base, &mut after)?;
                let mut expected = [0x5a; 24];
                let new = model(op, old, a, b, mask).to_le_bytes();
                expected[8..8 + width.bytes() as usize]
                    .copy_from_slice(&new[..width.bytes() as usize]);
                same!((op, after), (op, expected));
            }
        }
    }
    Ok(fabric.barrier(members)?)
}

/// Concurrent additions and compare-exchanges by all members, including the owner.
pub fn concurrent_atomics_lose_nothing(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const COUNT: u64 = 300;
    let segment = fabric.allocate(64)?;
    let keys = exchange(fabric, members, segment.key())?;
    let remote = fabric.attach(keys[0])?;
    let mut pending = Vec::new();
    for _ in 0..COUNT {
        remote.fetch_add(0, 3)?;
        pending.push(remote.atomic_nb(8, Atomic::Add, Width::W32, 5, 0)?);
    }
    wait_all(pending)?;
    for _ in 0..COUNT {
        let mut seen = remote.atomic(16, Atomic::Load, Width::W64, 0, 0)?;
        loop {
            let old = remote.compare_exchange(16, seen, seen + 7)?;
            if old == seen {
                break;
            }
            seen = old;
        }
    }
    fabric.barrier(members)?;
    let n = members.len() as u64;
    same!(
        remote.atomic(0, Atomic::Load, Width::W64, 0, 0)?,
        COUNT * n * 3
    );
    same!(
        remote.atomic(8, Atomic::Load, Width::W32, 0, 0)?,
        COUNT * n * 5
    );
    same!(
        remote.atomic(16, Atomic::Load, Width::W64, 0, 0)?,
        COUNT * n * 7
    );
    Ok(fabric.barrier(members)?)
}

/// Private memory that was registered can be accessed like any other segment.
pub fn registered_private_memory(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const BYTES: usize = 200_000;
    let me = index(fabric, members)?;
    let segment = fabric.register(pattern(me as u64, BYTES))?;
    let keys = exchange(fabric, members, segment.key())?;
    let next = (me + 1) % members.len();
    let remote = fabric.attach(keys[next])?;
    check!(
        remote.mapped().is_none(),
        "private memory of another process cannot be mapped"
    );
    let mut bytes = vec![0; BYTES];
    remote.get(0, &mut bytes)?;
    verify(next as u64, &bytes)?;
    fabric.barrier(members)?;
    remote.put(8, &pattern(90 + me as u64, BYTES - 8))?;
    remote.put(0, &100u64.to_le_bytes())?;
    same!(remote.fetch_add(0, 11)?, 100);
    fabric.barrier(members)?;
    segment.bytes().read(0, &mut bytes);
    let previous = (me + members.len() - 1) % members.len();
    same!(bytes[..8], 111u64.to_le_bytes());
    verify(90 + previous as u64, &bytes[8..])?;
    let all: Result<Vec<_>, _> = keys
        .iter()
        .map(|key| fabric.attach(*key)?.get_nb(0, 8)?.wait())
        .collect();
    same!(all?, vec![111u64.to_le_bytes().to_vec(); members.len()]);
    drop(remote);
    fabric.barrier(members)?;
    // Also if it is read only.
    let mut phased = segment.into_phased();
    phased.shut();
    phased.turn(true)?;
    fabric.barrier(members)?;
    let remote = fabric.attach(keys[next])?;
    remote.get(8, &mut bytes[8..])?;
    verify(90 + me as u64, &bytes[8..])?;
    let put = remote.put(0, &[0; 8]);
    matches_or_fail!(put, Err(Error::WrongPhase { .. }));
    drop(remote);
    Ok(fabric.barrier(members)?)
}

/// The key of a freed segment stays invalid, even after its number is reused.
pub fn a_freed_segment_is_refused(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let me = index(fabric, members)?;
    let next = (me + 1) % members.len();
    let segment = fabric.allocate(4096)?;
    let keys = exchange(fabric, members, segment.key())?;
    let early = fabric.attach(keys[next])?;
    early.put(0, b"before")?;
    fabric.barrier(members)?;
    drop(segment);
    fabric.barrier(members)?;
    let refused = |key: SegmentKey| -> Outcome {
        // Whether it is refused on attach or on use is up to the transport.
        let got = fabric
            .attach(key)
            .and_then(|remote| remote.get(0, &mut [0; 8]));
        matches_or_fail!(got, Err(Error::NoSuchSegment { peer, segment })
            if (peer.id, *segment) == (key.peer, key.segment));
        let put = fabric.attach(key).and_then(|remote| remote.put(0, &[0; 8]));
        matches_or_fail!(put, Err(Error::NoSuchSegment { .. }));
        let add = fabric.attach(key).and_then(|remote| remote.fetch_add(0, 1));
        matches_or_fail!(add, Err(Error::NoSuchSegment { .. }));
        Ok(())
    };
    refused(keys[next])?;
    // Earlier attachments notice, too.
    matches_or_fail!(early.put(0, b"late"), Err(Error::NoSuchSegment { .. }));
    matches_or_fail!(early.get(0, &mut [0; 8]), Err(Error::NoSuchSegment { .. }));
    matches_or_fail!(early.fetch_add(0, 1), Err(Error::NoSuchSegment { .. }));
    let again = fabric.allocate(4096)?;
    // A key of another incarnation of its owner does not name a segment of this one.
    let earlier = SegmentKey {
        incarnation: again.key().incarnation + 1,
        ..again.key()
    };
    matches_or_fail!(
        fabric.attach(earlier).map(|_| ()),
        Err(Error::PeerLost { .. })
    );
    // If it is mapped, the attached process keeps the memory and the number.
    let previous = members[(me + members.len() - 1) % members.len()];
    let is_kept = fabric.caps_to(previous).map;
    same!(again.key().segment == keys[me].segment, !is_kept);
    fabric.barrier(members)?;
    refused(keys[next])?;
    refused(SegmentKey {
        segment: 77,
        ..keys[next]
    })?;
    matches_or_fail!(early.put(0, b"after"), Err(Error::NoSuchSegment { .. }));
    drop(early);
    fabric.barrier(members)?;
    let last = fabric.allocate(4096)?;
    same!(last.key().segment == keys[me].segment, is_kept);
    Ok(fabric.barrier(members)?)
}

/// Offsets out of range and misaligned words are refused before anything is accessed.
pub fn places_outside_and_misaligned_are_refused(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const BYTES: u64 = 1000;
    let me = index(fabric, members)?;
    let segment = fabric.allocate(BYTES)?;
    let keys = exchange(fabric, members, segment.key())?;
    let remote = fabric.attach(keys[(me + 1) % members.len()])?;
    for (offset, len) in [
        (BYTES, 1),
        (BYTES - 3, 4),
        (u64::MAX, 2),
        (0, BYTES as usize + 1),
    ] {
        matches_or_fail!(
            remote.put(offset, &vec![1; len]),
            Err(Error::OutOfRange { bytes: BYTES, .. })
        );
        matches_or_fail!(
            remote.get(offset, &mut vec![1; len]),
            Err(Error::OutOfRange { bytes: BYTES, .. })
        );
        check!(remote.put_nb(offset, &vec![1; len]).is_err());
        check!(remote.get_nb(offset, len as u64).is_err());
    }
    matches_or_fail!(
        remote.fetch_add(BYTES - 4, 1),
        Err(Error::OutOfRange { .. })
    );
    for offset in [1, 4, 7] {
        same!(remote.fetch_add(offset, 1), Err(Error::Misaligned(offset)));
    }
    same!(
        remote.atomic(6, Atomic::Add, Width::W32, 1, 0),
        Err(Error::Misaligned(6))
    );
    remote.put(BYTES, &[])?;
    fabric.barrier(members)?;
    let mut bytes = vec![1; BYTES as usize];
    segment.bytes().read(0, &mut bytes);
    check!(
        bytes.iter().all(|byte| *byte == 0),
        "a refused operation wrote"
    );
    Ok(fabric.barrier(members)?)
}

/// Exceeding the budget is a typed error; existing memory stays, and freed memory can be allocated
/// again.
pub fn the_budget_is_a_refusal(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const PIECE: u64 = 16 << 20;
    let refusal = |result: Result<Segment, Error>| -> Outcome {
        matches_or_fail!(result.map(|s| s.key()), Err(Error::Budget { .. }));
        Ok(())
    };
    refusal(fabric.allocate(1 << 50))?;
    refusal(fabric.allocate(u64::MAX))?;
    fabric.barrier(members)?;
    if index(fabric, members)? == 0 {
        let mut all: Vec<Segment> = Vec::new();
        let error = loop {
            match fabric.allocate(PIECE) {
                Ok(segment) => {
                    segment
                        .bytes()
                        .write(PIECE - 8, &(all.len() as u64).to_le_bytes());
                    all.push(segment);
                }
                Err(error) => break error,
            }
            check!(
                all.len() < 1000,
                "the budget of a test is small, but this was granted"
            );
        };
        matches_or_fail!(error, Error::Budget { used, budget, .. } if used <= budget);
        for (number, segment) in all.iter().enumerate() {
            let mut bytes = [0; 8];
            segment.bytes().read(PIECE - 8, &mut bytes);
            same!(u64::from_le_bytes(bytes), number as u64);
        }
        // Messages still work, and freed memory is available for the next allocation.
        fabric.send(members[1], 1, b"full")?;
        all.pop();
        let again = fabric.allocate(PIECE)?;
        same!(again.key().bytes, PIECE);
    }
    if index(fabric, members)? == 1 {
        same!(fabric.recv(Match::any(1), &mut [0; 8])?.len, 4);
    }
    Ok(fabric.barrier(members)?)
}

/// Reused memory is zeroed, small or large.
pub fn a_fresh_segment_is_zero(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    for bytes in [64, 5000, 4 << 20] {
        for _ in 0..3 {
            let segment = fabric.allocate(bytes)?;
            let mut content = vec![1; bytes as usize];
            segment.bytes().read(0, &mut content);
            let dirty = content.iter().position(|byte| *byte != 0);
            if let Some(at) = dirty {
                return Err(Failed::new(format!(
                    "byte {at} of a fresh segment of {bytes} is not zero"
                )));
            }
            segment.bytes().fill(0xff);
        }
    }
    Ok(fabric.barrier(members)?)
}

/// Elements larger than any frame can be requested together like small ones, and requests after
/// them are answered, too.
pub fn elements_larger_than_a_frame(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    const SIZE: u64 = 300_003;
    const COUNT: u64 = 4;
    let me = index(fabric, members)?;
    let segment = fabric.allocate(SIZE * COUNT)?;
    let element = |owner: usize, number: u64| owner as u64 * COUNT + number;
    for number in 0..COUNT {
        let bytes = pattern(element(me, number), SIZE as usize);
        segment.bytes().write(number * SIZE, &bytes);
    }
    let keys = exchange(fabric, members, segment.key())?;
    fabric.barrier(members)?;
    let owner = (me + 1) % members.len();
    let remote = fabric.attach(keys[owner])?;
    let numbers = [2, 0, 3, 2];
    let batch = remote.get_batch(SIZE, &numbers.map(|number| number * SIZE))?;
    let one = remote.get_nb(SIZE, SIZE)?;
    let few = remote.get_batch(8, &[0, 8])?;
    same!(few.wait()?, pattern(element(owner, 0), 16));
    verify(element(owner, 1), &one.wait()?)?;
    let bytes = batch.wait()?;
    for (number, bytes) in numbers.iter().zip(bytes.chunks(SIZE as usize)) {
        verify(element(owner, *number), bytes)?;
    }
    same!(
        remote
            .atomic(0, Atomic::Load, Width::W64, 0, 0)?
            .to_le_bytes()[..],
        pattern(element(owner, 0), 8)[..]
    );
    Ok(fabric.barrier(members)?)
}

//! A peer writes nonsense into a ring. The one who reads it says so, takes nothing more from that
//! peer, and goes on with the others. It never crashes, whatever the nonsense is.

use rustix::fs::FallocateFlags;
use samite_fabric::{Error, Fabric, Match, PeerId, PeerInfo, agent};
use samite_mem::{Arena, SharedBytes};
use samite_testkit::hostile::{Reach, Scribbler};
use samite_testkit::{Failed, Outcome, Who, matches_or_fail, pause, point, same, units};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

const CELL: u64 = 64;

/// The whole arena of the domain, mapped once more through the descriptor that this process has.
fn arena() -> Outcome<SharedBytes> {
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        if link.to_string_lossy().contains("memfd:samite ") {
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(entry.path())?;
            let arena = Arena::attach(file.into()).map_err(|error| Failed::new(error))?;
            return arena
                .bytes(0, arena.len())
                .map_err(|error| Failed::new(error));
        }
    }
    Err(Failed::new("this process has no arena"))
}

/// The cell in which a message of one cell with this payload lies: where it begins.
fn cell_of(arena: &SharedBytes, payload: &[u8]) -> Outcome<u64> {
    let mut seen = vec![0; payload.len()];
    for cell in (0..arena.len() - CELL).step_by(CELL as usize) {
        arena.read(cell + 16, &mut seen);
        if seen == payload {
            return Ok(cell);
        }
    }
    Err(Failed::new("the message is nowhere in the arena"))
}

/// Header of a frame: position (with the bit that says that it is one), kind, shape, length.
fn header(position: u64, kind: u64, shape: u64, len: u64) -> u64 {
    (position | 1 << 31) << 32 | kind << 24 | shape << 16 | len
}

/// What each of the scribblers writes after its message; the cell it may write to.
fn scribble(arena: &SharedBytes, mine: u64, rank: u32) {
    let position = (arena.u64(mine).load(Ordering::Acquire) >> 32) & 0x7fff_ffff;
    let next = mine + CELL;
    let (kind, shape, len) = match rank {
        1 => (1, 1, 0xffff), // Longer than any frame.
        2 => (1, 0, 8),      // In no cell at all.
        3 => (1, 0x7f, 272), // In more cells than there may be.
        4 => (1, 0x81, 16),  // A body at a place that cannot be.
        5 => (1, 0x81, 3),   // A body without a place.
        6 => (0xee, 1, 8),   // Of no kind.
        7 => (2, 1, 8),      // An offer that is too short.
        8 => (11, 1, 8),     // A put that is too short.
        _ => (14, 1, 40),    // An atomic that does not exist.
    };
    arena.u64(next + 8).store(u64::MAX, Ordering::Relaxed);
    for word in 2..8 {
        arena
            .u64(next + word * 8)
            .store(u64::MAX - 7 * word, Ordering::Relaxed);
    }
    arena
        .u64(next)
        .store(header(position + 1, kind, shape, len), Ordering::Release);
}

/// Ranks of the scribblers; the last unit is honest.
const SCRIBBLERS: std::ops::Range<usize> = 1..10;

#[test]
fn nonsense_in_a_ring_ends_that_connection_only() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let zero = members[0];
        let rank = members
            .iter()
            .position(|member| *member == fabric.me())
            .unwrap_or(0);
        let last = members.len() - 1;
        if rank == 0 {
            for scribbler in SCRIBBLERS {
                let from = members[scribbler];
                same!(fabric.recv(Match::from(from, 1), &mut [0; 48])?.len, 48);
                fabric.signal(from, 1)?;
                let error = fabric.recv(Match::from(from, 2), &mut [0; 8]);
                let at = |why: Failed| Failed(format!("nonsense of unit {scribbler}: {why}"));
                let check = || -> Outcome {
                    matches_or_fail!(error, Err(Error::PeerCorrupt { peer, .. }) if *peer == from);
                    let again = fabric.send(from, 1, b"?");
                    matches_or_fail!(again, Err(Error::PeerCorrupt { peer, .. }) if *peer == from);
                    Ok(())
                };
                check().map_err(at)?;
                // The others go on.
                fabric.send(members[last], 3, b"still there?")?;
                same!(
                    fabric.recv(Match::from(members[last], 3), &mut [0; 8])?.len,
                    3
                );
            }
            let honest = [zero, members[last]];
            return Ok(fabric.barrier(&honest)?);
        }
        if rank == last {
            for _ in SCRIBBLERS {
                same!(fabric.recv(Match::from(zero, 3), &mut [0; 16])?.len, 12);
                fabric.send(zero, 3, b"yes")?;
            }
            return Ok(fabric.barrier(&[zero, fabric.me()])?);
        }
        let payload: Vec<u8> = (0..48).map(|byte| byte ^ (rank as u8 * 3) ^ 0x55).collect();
        let arena = arena()?;
        fabric.send(zero, 1, &payload)?;
        fabric.await_signal(zero, 1)?;
        scribble(&arena, cell_of(&arena, &payload)?, rank as u32);
        // It stays until it is turned away: its death is not what the other one is to see.
        matches_or_fail!(
            fabric.recv(Match::from(zero, 9), &mut [0]),
            Err(Error::PeerLost { .. })
        );
        Ok(())
    };
    units(11).budget(32 << 20).run(
        "faults::nonsense::nonsense_in_a_ring_ends_that_connection_only",
        body,
    );
}

/// What a receiver says of its own progress may be nonsense too: the sender is not hurt by it.
#[test]
fn nonsense_about_progress_hurts_nobody_else() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (zero, scribbler, honest) = (members[0], members[1], members[2]);
        let payload: Vec<u8> = (0..48).map(|byte| byte ^ 0xa7).collect();
        if fabric.me() == zero {
            fabric.send(scribbler, 1, &payload)?;
            fabric.send(scribbler, 1, &[1; 5000])?;
            fabric.await_signal(scribbler, 1)?;
            fabric.set_deadline(std::time::Duration::from_millis(50));
            for round in 0..2000usize {
                // Whether they arrive is not asked.
                let _ = fabric
                    .isend(scribbler, 2, vec![2; 8 + round % 3 * 3000])?
                    .has_ended();
            }
            fabric.set_deadline(std::time::Duration::from_secs(30));
            fabric.send(honest, 3, b"fine")?;
            return Ok(fabric.barrier(&[zero, honest])?);
        }
        if fabric.me() == honest {
            same!(fabric.recv(Match::from(zero, 3), &mut [0; 8])?.len, 4);
            return Ok(fabric.barrier(&[zero, honest])?);
        }
        fabric.recv(Match::from(zero, 1), &mut [0; 48])?;
        fabric.recv(Match::from(zero, 1), &mut [0; 5000])?;
        let arena = arena()?;
        let cell = cell_of(&arena, &payload)?;
        let position = (arena.u64(cell).load(Ordering::Acquire) >> 32) & 0x7fff_ffff;
        // The words of the consumer lie before the cells.
        let ring = cell - 256 - position * CELL;
        fabric.signal(zero, 1)?;
        for nonsense in [u64::MAX, 1 << 63, 1 << 32, 7] {
            arena.u64(ring).store(nonsense, Ordering::Release);
            arena.u64(ring + 8).store(nonsense, Ordering::Release);
            std::thread::yield_now();
        }
        arena.u64(ring).store(u64::MAX, Ordering::Release);
        arena.u64(ring + 8).store(u64::MAX, Ordering::Release);
        while fabric.peers().iter().any(|info| info.peer == zero) {
            std::thread::yield_now();
        }
        Ok(())
    };
    units(3).budget(32 << 20).run(
        "faults::nonsense::nonsense_about_progress_hurts_nobody_else",
        body,
    );
}

/// Who lives is written by the agent, and by nobody else: a process that finds the agent's own
/// descriptor of that memory cannot write there.
fn write_into_the_table_of_peers(fabric: &Fabric) -> Outcome {
    let facts = agent::facts(fabric.domain().unwrap_or_default(), fabric.deadline())?;
    let mut tables = 0;
    for entry in std::fs::read_dir(format!("/proc/{}/fd", facts.agent_pid))?.flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        if !link.to_string_lossy().contains("memfd:samite-published") {
            continue;
        }
        tables += 1;
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(entry.path())?;
        let refused = file.write_at(&[2; 8], 0).map_err(|error| error.kind());
        same!(refused, Err(std::io::ErrorKind::PermissionDenied));
        same!(file.set_len(0).is_err(), true);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        same!(
            rustix::fs::fallocate(&file, punch, 0, 1 << 20).is_err(),
            true
        );
    }
    same!(tables, 1);
    Ok(())
}

/// A member writes into all that members can write to: the others still know who lives.
#[test]
fn nobody_is_declared_dead_by_another() {
    const NAME: &str = "faults::nonsense::nobody_is_declared_dead_by_another";
    const ROUNDS: u32 = 20;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        if fabric.me() == members[0] {
            write_into_the_table_of_peers(fabric)?;
            let mut scribbler = Scribbler::new(9, fabric, 8, Reach::All);
            for _ in 0..ROUNDS {
                pause("scribble");
                scribbler.scribble(500);
                point("scribbled");
            }
            pause("end");
            return Ok(());
        }
        let lives = |fabric: &Fabric| -> Vec<(PeerId, u32, i32)> {
            let life = |info: &PeerInfo| (info.peer, info.incarnation, info.pid);
            fabric.peers().iter().map(life).collect()
        };
        point("there");
        let before = lives(fabric);
        same!(before.len(), members.len());
        let posted: Vec<_> = members
            .iter()
            .map(|member| fabric.irecv(Match::from(*member, 1), vec![0; 100_000]))
            .collect::<Result<_, _>>()?;
        for _ in 0..ROUNDS {
            pause("look");
            for _ in 0..5000 {
                fabric.progress();
            }
            same!(lives(fabric), before);
            point("looked");
        }
        for receive in posted {
            let ended = receive.has_ended().then(|| receive.wait());
            let lost = matches!(ended, Some(Err(Error::PeerLost { .. })));
            same!(lost, false);
        }
        pause("end");
        Ok(())
    };
    units(3).orchestrate(NAME, body, |cluster| {
        let (scribbler, honest) = (Who::Unit(0), [Who::Unit(1), Who::Unit(2)]);
        for one in honest {
            // What lets them go from the barrier before this lies in a ring that is scribbled over.
            cluster.wait_point(one, "there");
        }
        for _ in 0..ROUNDS {
            cluster.wait_point(scribbler, "scribble");
            // Nobody is in a barrier any more, whose frames may be lost.
            for one in honest {
                cluster.wait_point(one, "look");
            }
            cluster.release(scribbler);
            cluster.wait_point(scribbler, "scribbled");
            for one in honest {
                cluster.release(one);
            }
            for one in honest {
                cluster.wait_point(one, "looked");
            }
        }
        for one in [scribbler, honest[0], honest[1]] {
            cluster.wait_point(one, "end");
        }
        for one in [scribbler, honest[0], honest[1]] {
            cluster.release(one);
        }
    });
}

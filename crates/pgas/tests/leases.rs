//! Memory that is used by others is not used for anything else, whatever a safe program does: clones that outlive what
//! they were made of, pointers of units that are no members, processes that die or leave.

#![forbid(unsafe_code)]

use samite_fabric::{Config, Error as Below, Fabric, Identity, PeerId, SegmentKey, agent};
use samite_pgas::{Error, GlobalPtr, Pgas, Segment, Team};
use samite_testkit::{Failed, Outcome, Unit, Who, check, pause, point, same, units};
use std::time::{Duration, Instant};

/// Bytes of the memory that is fought for.
const BYTES: u64 = 32 << 10;

fn alone(name: &str) -> Fabric {
    Fabric::alone(Identity::by_hand(name), Config::default()).expect("a domain")
}

/// Everybody's own memory, as much as was there before and more: what was freed is among it.
fn private<'f>(team: &Team<'f>) -> Vec<Segment<'f, u64, samite_pgas::Local>> {
    let part = |_| {
        let mut part = team.allocate(BYTES / 8)?.into_local()?;
        part.as_mut_slice().fill(7);
        Ok::<_, Error>(part)
    };
    (0..8).map(part).collect::<Result<_, _>>().expect("memory")
}

fn are_unchanged(parts: &[Segment<'_, u64, samite_pgas::Local>]) -> bool {
    let mut words = parts.iter().flat_map(|part| part.as_slice());
    words.all(|word| *word == 7)
}

#[test]
fn a_clone_of_bytes_outlives_its_segment() {
    let fabric = alone("clone");
    let pgas = Pgas::new(&fabric).expect("a job of one");
    let segment = fabric.allocate(BYTES).expect("memory");
    let stale = segment.bytes().clone();
    drop(segment);
    let parts = private(pgas.world());
    stale.fill(0xff);
    assert!(are_unchanged(&parts), "a stranger's clone wrote them");
}

#[test]
fn a_mapped_range_outlives_its_remote() {
    let fabric = alone("mapped");
    let pgas = Pgas::new(&fabric).expect("a job of one");
    let segment = fabric.allocate(BYTES).expect("memory");
    let remote = fabric.attach(segment.key()).expect("it is offered");
    let stale = remote.mapped().expect("it is here").slice(64, BYTES - 64);
    drop((remote, segment));
    let parts = private(pgas.world());
    stale.fill(0xff);
    assert!(are_unchanged(&parts), "a stale range wrote them");
}

/// A key, by message.
fn send_key(fabric: &Fabric, to: PeerId, key: SegmentKey) -> Outcome {
    Ok(fabric.send(to, 1, &key.to_bytes())?)
}

fn receive_key(fabric: &Fabric, from: PeerId) -> Outcome<SegmentKey> {
    let mut bytes = [0; 24];
    fabric.recv(samite_fabric::Match::from(from, 1), &mut bytes)?;
    Ok(SegmentKey::from_bytes(&bytes))
}

/// Tries until it is so; the deadline of the fabric is long.
fn eventually(fabric: &Fabric, what: &str, mut is_so: impl FnMut() -> Outcome<bool>) -> Outcome {
    let begin = Instant::now();
    while !is_so()? {
        fabric.progress();
        std::thread::yield_now();
        check!(begin.elapsed() < fabric.deadline(), "{what}");
    }
    Ok(())
}

/// How many of the dead the agent has not buried.
fn dying(unit: &Unit) -> Outcome<usize> {
    Ok(agent::facts(&unit.domain, Duration::from_secs(10))?.reclaiming)
}

/// The owner dies while another unit reads its memory, by a clone of what it had attached.
#[test]
fn bytes_that_are_read_outlive_their_owner() {
    let body = |unit: &Unit| -> Outcome {
        let fabric = unit.join()?;
        let members = fabric.job()?;
        if unit.rank == 0 {
            let mut gated = fabric.allocate_gated(9, BYTES)?;
            gated.bytes()?.fill(3);
            gated.shut();
            gated.turn(true)?;
            send_key(&fabric, members[1], gated.key())?;
            pause("lent");
            return Ok(());
        }
        let remote = fabric.attach(receive_key(&fabric, members[0])?)?;
        let bytes = remote.readable().cloned();
        let bytes = bytes.ok_or_else(|| Failed::new("it is not mapped"))?;
        drop(remote);
        point("reading");
        eventually(&fabric, "the death is seen", || {
            Ok(fabric.lost(members[0]).is_some() && dying(unit)? == 1)
        })?;
        // The agent looks at the dead whenever it is asked something.
        for _ in 0..3 {
            same!(dying(unit)?, 1);
            check!(
                bytes.as_slice::<u8>().iter().all(|byte| *byte == 3),
                "read bytes changed"
            );
        }
        drop(bytes);
        eventually(&fabric, "the memory comes back", || Ok(dying(unit)? == 0))
    };
    let name = "bytes_that_are_read_outlive_their_owner";
    units(2).conduct_bare(name, body, |cast| {
        cast.wait_point(Who::Unit(0), "lent");
        cast.wait_point(Who::Unit(1), "reading");
        cast.kill(Who::Unit(0));
    });
}

/// A borrower leaves the domain in order and goes on to write what it has borrowed.
#[test]
fn what_is_borrowed_outlives_the_fabric() {
    let body = |unit: &Unit| -> Outcome {
        let fabric = unit.join()?;
        let members = fabric.job()?;
        if unit.rank == 1 {
            let borrowed = fabric.borrow(receive_key(&fabric, members[0])?)?;
            let mut borrowed = borrowed.ok_or_else(|| Failed::new("it is not mapped"))?;
            drop(fabric);
            pause("left");
            borrowed.as_mut_slice::<u64>().fill(5);
            drop(borrowed);
            pause("done");
            return Ok(());
        }
        let mut gated = fabric.allocate_gated(9, BYTES)?;
        let key = gated.key();
        gated.lend()?;
        send_key(&fabric, members[1], key)?;
        eventually(&fabric, "the other one leaves", || {
            Ok(fabric.lost(members[1]).is_some())
        })?;
        for _ in 0..3 {
            dying(unit)?;
            let users = vec![members[1]];
            same!(gated.turn(true), Err(Below::InUse { segment: 9, users }));
        }
        pause("waiting");
        eventually(&fabric, "it is given back", || Ok(gated.turn(true).is_ok()))?;
        let remote = fabric.attach(key)?;
        let read = remote
            .readable()
            .ok_or_else(|| Failed::new("it is not mapped"))?;
        check!(
            read.as_slice::<u64>().iter().all(|word| *word == 5),
            "not what was written"
        );
        eventually(&fabric, "its number comes back", || Ok(dying(unit)? == 0))
    };
    units(2).conduct_bare("what_is_borrowed_outlives_the_fabric", body, |cast| {
        cast.wait_point(Who::Unit(1), "left");
        cast.wait_point(Who::Unit(0), "waiting");
        cast.release(Who::Unit(1));
        cast.wait_point(Who::Unit(1), "done");
        cast.release(Who::Unit(0));
        cast.wait_gone(Who::Unit(0));
        cast.release(Who::Unit(1));
    });
}

/// A process is killed while it has a lease of each kind; the owner has the memory for itself again when all have seen
/// the death, and not before.
#[test]
fn who_dies_with_a_lease_keeps_nothing() {
    const KINDS: [&str; 4] = ["mapped", "read", "borrowed", "private"];
    let body = |unit: &Unit| -> Outcome {
        let fabric = unit.join()?;
        let members = fabric.job()?;
        let rank = unit.rank as usize;
        if let Some(kind) = rank.checked_sub(2).map(|kind| KINDS[kind]) {
            let key = receive_key(&fabric, members[0])?;
            let borrowed = if kind == "borrowed" {
                fabric.borrow(key)?
            } else {
                None
            };
            let remote = if kind == "borrowed" {
                None
            } else {
                Some(fabric.attach(key)?)
            };
            pause("inside");
            drop((borrowed, remote));
            return Ok(());
        }
        if rank == 1 {
            pause("witness"); // It makes no progress, and so has seen nothing.
            fabric.recv(samite_fabric::Match::from(members[0], 2), &mut [])?;
            return Ok(());
        }
        let mut gated = Vec::new();
        for (segment, kind) in (40..).zip(&KINDS[..3]) {
            let mut one = fabric.allocate_gated(segment, BYTES)?;
            match *kind {
                "read" => {
                    one.shut();
                    one.turn(true)?;
                }
                "borrowed" => one.lend()?,
                _ => {}
            }
            gated.push(one);
        }
        gated.push(fabric.register_as(43, vec![1_u64; 4096])?.into_gated());
        for (one, to) in gated.iter().zip(&members[2..]) {
            send_key(&fabric, *to, one.key())?;
        }
        pause("lent");
        for peer in &members[2..] {
            eventually(&fabric, "a death is seen", || {
                Ok(fabric.lost(*peer).is_some())
            })?;
        }
        let mut still = Vec::new();
        for (one, user) in gated.into_iter().zip(&members[2..]) {
            dying(unit)?;
            one.shut();
            match one.own() {
                Ok(_) => return Err(Failed::new("it was had before all had seen the death")),
                Err(refused) => {
                    let (one, error) = *refused;
                    let (segment, users) = (one.key().segment, vec![*user]);
                    same!(error, Below::InUse { segment, users });
                    still.push(one);
                }
            }
        }
        pause("refused");
        for one in still {
            let mut one = Some(one);
            eventually(&fabric, "the leases of the dead end", || {
                one = match one.take().map(|one| one.own()) {
                    Some(Err(refused)) => Some(refused.0),
                    _ => None,
                };
                Ok(one.is_none())
            })?;
        }
        Ok(fabric.send(members[1], 2, &[])?)
    };
    units(6).conduct_bare("who_dies_with_a_lease_keeps_nothing", body, |cast| {
        cast.wait_point(Who::Unit(0), "lent");
        cast.wait_point(Who::Unit(1), "witness");
        for unit in 2..6 {
            cast.wait_point(Who::Unit(unit), "inside");
            cast.kill(Who::Unit(unit));
            cast.wait_gone(Who::Unit(unit));
        }
        cast.release(Who::Unit(0));
        cast.wait_point(Who::Unit(0), "refused");
        cast.release(Who::Unit(1));
        cast.release(Who::Unit(0));
    });
}

/// Puts by a pointer until it names nothing any more.
fn put_until_it_ends(pgas: &Pgas<'_>, pointer: GlobalPtr<u64>) -> Outcome {
    let junk = [u64::MAX; 1024];
    loop {
        match pgas.put(pointer, &junk) {
            Ok(()) => {}
            Err(Error::BadPointer { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The end of memory.
type End = Box<dyn FnOnce(&Pgas<'_>) -> Outcome>;

/// What a unit frees and allocates anew is its own while another one still puts to what was there.
fn puts_that_come_too_late(
    fabric: &Fabric,
    free: impl Fn(&Pgas<'_>) -> Outcome<(GlobalPtr<u64>, End)>,
) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let team = world.split_by(u64::from(world.rank()))?;
    for _ in 0..20 {
        let mut bits = [0_u64; 2];
        let mut end: Option<End> = None;
        if world.rank() == 0 {
            let (pointer, freed) = free(&pgas)?;
            let whole = pointer.to_bits();
            bits = [whole as u64, (whole >> 64) as u64];
            end = Some(freed);
        }
        world.broadcast(0, &mut bits[..])?;
        let pointer = GlobalPtr::from_bits(u128::from(bits[1]) << 64 | u128::from(bits[0]));
        match end {
            None => put_until_it_ends(&pgas, pointer)?,
            Some(end) => {
                // The other one is at it.
                eventually(fabric, "the first put", || {
                    let mut first = [0];
                    pgas.get(pointer, &mut first)?;
                    Ok(first[0] == u64::MAX)
                })?;
                end(&pgas)?;
                let own: Vec<Vec<u64>> = (0..4).map(|_| vec![7; 4096]).collect();
                let parts = private(&team);
                for _ in 0..100 {
                    check!(
                        own.iter().flatten().all(|word| *word == 7),
                        "private memory was written"
                    );
                    check!(are_unchanged(&parts), "memory of a segment was written");
                }
            }
        }
        world.barrier()?;
    }
    Ok(())
}

#[test]
fn puts_to_memory_whose_registration_ends() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        puts_that_come_too_late(fabric, |pgas| {
            let pointer = pgas.register(vec![0_u64; 4096])?;
            Ok((
                pointer,
                Box::new(move |pgas: &Pgas<'_>| {
                    pgas.unregister(pointer, 1)?;
                    Ok(())
                }),
            ))
        })
    };
    units(2).run("puts_to_memory_whose_registration_ends", body);
}

#[test]
fn puts_to_the_last_piece_of_a_chunk() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        puts_that_come_too_late(fabric, |pgas| {
            // More than a chunk: it has one of its own, beside the one that stays.
            pgas.allocate::<u64>(1)?;
            let pointer = pgas.allocate::<u64>(1 << 18)?;
            Ok((
                pointer,
                Box::new(move |pgas: &Pgas<'_>| Ok(pgas.free(pointer)?)),
            ))
        })
    };
    units(2).run("puts_to_the_last_piece_of_a_chunk", body);
}

/// A registration whose memory is in use otherwise goes on.
#[test]
fn a_registration_that_is_in_use_stays() {
    let fabric = alone("in-use");
    let pgas = Pgas::new(&fabric).expect("a job of one");
    let pointer = pgas.register(vec![1_u64, 2, 3]).expect("memory");
    let segment = u32::from(pointer.segment());
    let key = fabric.look_up(fabric.me(), segment).expect("here");
    let remote = fabric.attach(key.expect("offered")).expect("it is open");
    let users = vec![fabric.me()];
    let in_use = Error::Fabric(Below::InUse { segment, users });
    assert_eq!(pgas.unregister(pointer, 3), Err(in_use));
    remote.put(8, &9_u64.to_le_bytes()).expect("it goes on");
    drop(remote);
    assert_eq!(pgas.unregister(pointer, 3), Ok(vec![1, 9, 3]));
}

/// Numbers of segments that are free here.
fn free_numbers(fabric: &Fabric) -> u32 {
    fabric
        .free_segments()
        .iter()
        .map(|word| word.count_ones())
        .sum()
}

/// The pointers of everybody to the first element of the part of the first member.
fn pointers(world: &Team<'_>, segment: Option<&Segment<'_, u64>>) -> Outcome<Vec<GlobalPtr<u64>>> {
    let own = segment.map(|segment| segment.pointer(0, 0)).transpose()?;
    let bits = own.unwrap_or(GlobalPtr::NULL).to_bits();
    let mut all = vec![0; 2 * world.size() as usize];
    world.all_gather(&[bits as u64, (bits >> 64) as u64][..], &mut all[..])?;
    let pointer = |of: &[u64]| GlobalPtr::from_bits(u128::from(of[1]) << 64 | u128::from(of[0]));
    Ok(all.chunks(2).map(pointer).collect())
}

/// A unit that is no member reads by a pointer, and then only waits in collectives: the members change phases, and
/// what they drop comes back.
fn strangers(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let is_stranger = world.rank() == 2;
    let team = world.split_by(u64::from(is_stranger))?;
    let mut free = None;
    for round in 0..30 {
        let segment = if is_stranger {
            None
        } else {
            Some(team.allocate::<u64>(4096)?)
        };
        if let Some(segment) = &segment {
            segment.put_value(team.rank(), 0, round)?;
        }
        let there = pointers(world, segment.as_ref())?[0];
        let read = |expected: Option<u64>| -> Outcome {
            let mut got = [0];
            match (pgas.get(there, &mut got), expected) {
                (Ok(()), Some(expected)) => same!(got[0], expected),
                (Err(Error::BadPointer { .. } | Error::Fabric(Below::WrongPhase { .. })), None) => {
                }
                (other, _) => return Err(Failed::new(format!("{other:?}"))),
            }
            Ok(())
        };
        if is_stranger {
            read(Some(round))?;
        }
        world.barrier()?;
        let local = segment.map(|segment| segment.into_local()).transpose()?;
        world.barrier()?;
        if is_stranger {
            read(None)?;
        }
        world.barrier()?;
        let read_only = local
            .map(Segment::<u64, samite_pgas::Local>::into_read_only)
            .transpose()?;
        world.barrier()?;
        if is_stranger {
            read(Some(round))?;
        }
        world.barrier()?;
        let shared = read_only
            .map(Segment::<u64, samite_pgas::ReadOnly>::into_shared)
            .transpose()?;
        world.barrier()?;
        if is_stranger {
            read(Some(round))?;
        }
        world.barrier()?;
        shared.map(Segment::free).transpose()?;
        world.barrier()?;
        let now = free_numbers(fabric);
        if round >= 5 {
            let before = *free.get_or_insert(now);
            check!(now + 5 >= before, "{before} numbers were free, now {now}");
        }
    }
    Ok(())
}

#[test]
fn strangers_let_go() {
    units(3).run("strangers_let_go", strangers);
}

#[test]
fn strangers_let_go_by_messages() {
    let units = units(3).mask(samite_testkit::MESSAGES_ONLY);
    units.run("strangers_let_go_by_messages", strangers);
}

/// A unit that is no member is attached and does not let go: the change of phase fails at all members, each has its segment
/// as it was, and changes it later.
#[test]
fn a_change_that_fails_gives_the_segment_back() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let rank = world.rank();
        let is_stranger = rank == 2;
        let team = world.split_by(u64::from(is_stranger))?;
        let mut segment = if is_stranger {
            None
        } else {
            Some(team.allocate::<u64>(4096)?)
        };
        if let Some(segment) = &segment {
            segment.put_value(1 - rank, 4095, u64::from(rank) + 70)?;
        }
        let there = pointers(world, segment.as_ref())?[0];
        let patient = fabric.deadline();
        for reading in [false, true] {
            let inside = match is_stranger {
                true => {
                    let key = fabric.look_up(members[0], u32::from(there.segment()))?;
                    Some(fabric.attach(key.ok_or_else(|| Failed::new("it is not offered"))?)?)
                }
                false => None,
            };
            world.barrier()?;
            if let Some(shared) = segment.take() {
                // The first member waits half as long, and a fraction of what the other one does.
                let deadline = if rank == 0 {
                    Duration::from_secs(2)
                } else {
                    patient
                };
                fabric.set_deadline(deadline);
                let (back, error) = match reading {
                    true => shared
                        .turn::<samite_pgas::ReadOnly>()
                        .map(drop)
                        .unwrap_err(),
                    false => match shared.turn::<samite_pgas::Local>() {
                        Ok(_) => return Err(Failed::new("somebody is attached")),
                        Err(unturned) => unturned,
                    },
                }
                .into_parts();
                fabric.set_deadline(patient);
                let number = u32::from(there.segment());
                let users = vec![members[2]];
                let expected = match rank {
                    0 => Error::Fabric(Below::InUse {
                        segment: number,
                        users,
                    }),
                    _ => Error::NoPhase(team.unit(0)?),
                };
                same!(error, expected);
                let back = back.ok_or_else(|| Failed::new("the segment is lost"))?;
                same!(back.get_value(rank, 4095)?, u64::from(1 - rank) + 70);
                same!(back.get_value(1 - rank, 4095)?, u64::from(rank) + 70);
                segment = Some(back);
            }
            world.barrier()?;
            drop(inside);
            world.barrier()?;
            if let Some(shared) = segment.take() {
                let local = shared.into_local()?;
                same!(local.as_slice()[4095], u64::from(1 - rank) + 70);
                segment = Some(local.into_shared()?);
            }
            world.barrier()?;
        }
        Ok(())
    };
    units(3).run("a_change_that_fails_gives_the_segment_back", body);
}

//! Units that reach memory by a pointer: ones that are not members of its team, and ones whose
//! access comes too late.

use super::{alone, are_unchanged, eventually, private};
use samite_fabric::{Error as Below, Fabric, PeerId};
use samite_pgas::{Error, GlobalPtr, Pgas, Segment, Team};
use samite_testkit::{Failed, Outcome, check, same, units};
use std::time::Duration;

/// Puts by a pointer until it names nothing any more.
fn put_until_it_ends(pgas: &Pgas, pointer: GlobalPtr<u64>) -> Outcome {
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
type End = Box<dyn FnOnce(&Pgas) -> Outcome>;

/// What a unit frees and allocates anew is its own while another one still puts to what was there.
fn puts_that_come_too_late(
    fabric: &Fabric,
    free: impl Fn(&Pgas) -> Outcome<(GlobalPtr<u64>, End)>,
) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let team = world.split_by(u64::from(world.rank()))?;
    for _ in 0..20 {
        let mut bits = [0];
        let mut end: Option<End> = None;
        if world.rank() == 0 {
            let (pointer, freed) = free(&pgas)?;
            bits = [pointer.to_bits()];
            end = Some(freed);
        }
        world.broadcast(0, &mut bits)?;
        let pointer = GlobalPtr::from_bits(bits[0]);
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
                Box::new(move |pgas: &Pgas| {
                    pgas.unregister(pointer, 1)?;
                    Ok(())
                }),
            ))
        })
    };
    units(2).run(
        "leases::pointers::puts_to_memory_whose_registration_ends",
        body,
    );
}

#[test]
fn puts_to_the_last_piece_of_a_chunk() {
    let name = "leases::pointers::puts_to_the_last_piece_of_a_chunk";
    units(2).run(name, puts_to_a_chunk);
}

#[test]
fn puts_to_the_last_piece_of_a_chunk_by_messages() {
    let units = units(2).mask(samite_testkit::MESSAGES_ONLY);
    let name = "leases::pointers::puts_to_the_last_piece_of_a_chunk_by_messages";
    units.run(name, puts_to_a_chunk);
}

fn puts_to_a_chunk(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    puts_that_come_too_late(fabric, |pgas| {
        // More than a chunk: it has one of its own, beside the one that stays.
        pgas.allocate::<u64>(1)?;
        let pointer = pgas.allocate::<u64>(1 << 18)?;
        let end = move |pgas: &Pgas| Ok(pgas.free(pointer)?);
        Ok((pointer, Box::new(end)))
    })
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
    let users = vec![fabric.me().into()];
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
fn pointers(world: &Team, segment: Option<&Segment<u64>>) -> Outcome<Vec<GlobalPtr<u64>>> {
    let own = segment.map(|segment| segment.pointer(0, 0)).transpose()?;
    let bits = own.unwrap_or(GlobalPtr::NULL).to_bits();
    let mut all = vec![0; world.size() as usize];
    world.all_gather(&[bits], &mut all[..])?;
    Ok(all.into_iter().map(GlobalPtr::from_bits).collect())
}

/// A unit that is no member reads by a pointer, and then only waits in collectives: the members
/// change phases, and what they drop comes back.
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
    units(3).run("leases::pointers::strangers_let_go", strangers);
}

#[test]
fn strangers_let_go_by_messages() {
    let units = units(3).mask(samite_testkit::MESSAGES_ONLY);
    units.run("leases::pointers::strangers_let_go_by_messages", strangers);
}

/// A unit that is no member is attached and does not let go: the change of phase fails at all
/// members, each has its segment as it was, and changes it later.
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
                let users = vec![members[2].into()];
                let expected = match rank {
                    0 => Error::Fabric(Below::InUse {
                        segment: number,
                        users,
                    }),
                    _ => Error::NoPhase(team.unit(0)?.into()),
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
    units(3).run(
        "leases::pointers::a_change_that_fails_gives_the_segment_back",
        body,
    );
}

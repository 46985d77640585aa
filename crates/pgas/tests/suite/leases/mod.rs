//! Memory that is used by others is not used for anything else, whatever a safe program does:
//! clones that outlive what they were made of, processes that die or leave, pointers of units that
//! are no members (`pointers`).

#![forbid(unsafe_code)]

mod pointers;

use samite_fabric::{Config, Error as Below, Fabric, Identity, PeerId, SegmentKey, agent};
use samite_pgas::{Error, Pgas, Segment, Team};
use samite_testkit::{Failed, Outcome, Unit, Who, check, pause, point, same, units};
use std::time::{Duration, Instant};

/// Bytes of the memory that is fought for.
const BYTES: u64 = 32 << 10;

fn alone(name: &str) -> Fabric {
    Fabric::alone(Identity::by_hand(name), Config::default()).expect("a domain")
}

/// Everybody's own memory, as much as was there before and more: what was freed is among it.
fn private(team: &Team) -> Vec<Segment<u64, samite_pgas::Local>> {
    let part = |_| {
        let mut part = team.allocate(BYTES / 8)?.into_local()?;
        part.as_mut_slice().fill(7);
        Ok::<_, Error>(part)
    };
    (0..8).map(part).collect::<Result<_, _>>().expect("memory")
}

fn are_unchanged(parts: &[Segment<u64, samite_pgas::Local>]) -> bool {
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
            let mut phased = fabric.allocate_phased(9, BYTES)?;
            phased.bytes()?.fill(3);
            phased.shut();
            phased.turn(true)?;
            send_key(&fabric, members[1], phased.key())?;
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
    let name = "leases::bytes_that_are_read_outlive_their_owner";
    units(2).orchestrate_bare(name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "lent");
        cluster.wait_point(Who::Unit(1), "reading");
        cluster.kill(Who::Unit(0));
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
        let mut phased = fabric.allocate_phased(9, BYTES)?;
        let key = phased.key();
        phased.lend()?;
        send_key(&fabric, members[1], key)?;
        eventually(&fabric, "the other one leaves", || {
            Ok(fabric.lost(members[1]).is_some())
        })?;
        for _ in 0..3 {
            dying(unit)?;
            let users = vec![members[1].into()];
            same!(phased.turn(true), Err(Below::InUse { segment: 9, users }));
        }
        pause("waiting");
        eventually(&fabric, "it is given back", || {
            Ok(phased.turn(true).is_ok())
        })?;
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
    units(2).orchestrate_bare(
        "leases::what_is_borrowed_outlives_the_fabric",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(1), "left");
            cluster.wait_point(Who::Unit(0), "waiting");
            cluster.release(Who::Unit(1));
            cluster.wait_point(Who::Unit(1), "done");
            cluster.release(Who::Unit(0));
            cluster.wait_gone(Who::Unit(0));
            cluster.release(Who::Unit(1));
        },
    );
}

/// A process is killed while it has a lease of each kind; the owner has the memory for itself again
/// when all have seen the death, and not before.
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
        let mut phased = Vec::new();
        for (segment, kind) in (40..).zip(&KINDS[..3]) {
            let mut one = fabric.allocate_phased(segment, BYTES)?;
            match *kind {
                "read" => {
                    one.shut();
                    one.turn(true)?;
                }
                "borrowed" => one.lend()?,
                _ => {}
            }
            phased.push(one);
        }
        phased.push(fabric.register_as(43, vec![1_u64; 4096])?.into_phased());
        for (one, to) in phased.iter().zip(&members[2..]) {
            send_key(&fabric, *to, one.key())?;
        }
        pause("lent");
        for peer in &members[2..] {
            eventually(&fabric, "a death is seen", || {
                Ok(fabric.lost(*peer).is_some())
            })?;
        }
        let mut still = Vec::new();
        for (one, user) in phased.into_iter().zip(&members[2..]) {
            dying(unit)?;
            one.shut();
            match one.own() {
                Ok(_) => return Err(Failed::new("it was had before all had seen the death")),
                Err(refused) => {
                    let (one, error) = *refused;
                    let (segment, users) = (one.key().segment, vec![(*user).into()]);
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
    units(6).orchestrate_bare(
        "leases::who_dies_with_a_lease_keeps_nothing",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(0), "lent");
            cluster.wait_point(Who::Unit(1), "witness");
            for unit in 2..6 {
                cluster.wait_point(Who::Unit(unit), "inside");
                cluster.kill(Who::Unit(unit));
                cluster.wait_gone(Who::Unit(unit));
            }
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "refused");
            cluster.release(Who::Unit(1));
            cluster.release(Who::Unit(0));
        },
    );
}

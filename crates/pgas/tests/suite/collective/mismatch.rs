//! Counts that only some members know, and that differ: an error at all members, and no byte
//! outside of the target.

use samite_fabric::testing::{RawFrame, Tamper, tamper};
use samite_fabric::{Fabric, PeerId};
use samite_pgas::{Error, Pgas, Segment, Source, Team};
use samite_testkit::{Outcome, check, everywhere, simulate};

/// Marks around a target.
const MARK: u64 = 0x7777;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Scatter,
    Gather,
    AllToAll,
}

/// What is wrong, and how the buffers lie.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    /// Elements that rank 1 expects of rank 0 (or, of a gather, rank 0 of rank 1).
    expected: u64,
    /// Elements that it is given.
    given: u64,
    /// Whether the source lies in symmetric memory.
    in_place: bool,
    /// Elements between the target and the end of its segment.
    after: u64,
}

/// Rank 0 and rank 1 disagree, all others agree on `case.expected` elements.
fn call(
    world: &Team,
    case: Case,
    (from, into): (&Segment<u64>, &Segment<u64>),
) -> Outcome<Result<(), Error>> {
    let (me, size) = (world.rank() as usize, world.size() as usize);
    let (all, odd) = (vec![case.expected; size], {
        let mut counts = vec![case.expected; size];
        counts[1] = case.given;
        counts
    });
    let (total, odd_total) = (all.iter().sum::<u64>(), odd.iter().sum::<u64>());
    // Elements that this member gives, and gets.
    let (gives, gets) = match (case.kind, me) {
        (Kind::Scatter, 0) => (odd_total, case.expected),
        (Kind::Scatter, _) => (0, case.expected),
        (Kind::Gather, 0) => (case.expected, total),
        (Kind::Gather, 1) => (case.given, 0),
        (Kind::Gather, _) => (case.expected, 0),
        (Kind::AllToAll, 0) => (odd_total, total),
        (Kind::AllToAll, _) => (total, total),
    };
    let given = vec![me as u64; gives as usize];
    from.write_local(0, &given)?;
    let source = match case.in_place {
        true => Source::Part(from.part(..gives)?),
        false => Source::Slice(&given),
    };
    let end = into.len() - case.after;
    let target = into.part(end - gets..end)?;
    Ok(match case.kind {
        Kind::Scatter => world.scatter_v(0, source, if me == 0 { &odd[..] } else { &[] }, target),
        Kind::Gather => world.gather_v(0, source, target, if me == 0 { &all[..] } else { &[] }),
        Kind::AllToAll => {
            world.all_to_all_v(source, if me == 0 { &odd } else { &all }, target, &all)
        }
    })
}

/// The same without waiting, between vectors.
fn pending(world: &Team, case: Case) -> Result<(), Error> {
    let (me, size) = (world.rank() as usize, world.size() as usize);
    let (all, mut odd) = (vec![case.expected; size], vec![case.expected; size]);
    odd[1] = case.given;
    let known = if me == 0 { &odd } else { &all };
    let room = |counts: &[u64]| vec![0_u64; counts.iter().sum::<u64>() as usize];
    let pending = match (case.kind, me) {
        (Kind::Scatter, 0) => world.iscatter_v(0, room(&odd), &odd, case.expected)?,
        (Kind::Scatter, _) => world.iscatter_v(0, Vec::new(), &[], case.expected)?,
        (Kind::Gather, _) => world.igather_v(0, vec![0; odd[me] as usize], &all)?,
        (Kind::AllToAll, _) => world.iall_to_all_v(room(known), known, &all)?,
    };
    pending.wait().map(drop)
}

fn all_cases(fabric: &Fabric) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me().0);
    let longest = if fabric.domain().is_none() {
        700
    } else {
        20_000
    };
    let (from, into) = (
        world.allocate::<u64>(3 * longest + 100)?,
        world.allocate::<u64>(3 * longest + 100)?,
    );
    let marks = vec![MARK; into.len() as usize];
    for kind in [Kind::Scatter, Kind::Gather, Kind::AllToAll] {
        for (expected, given) in [(2, 3), (3, 2), (0, 4), (4, 0), (longest, longest + 40)] {
            for (in_place, after) in [(false, 50), (true, 50), (false, 0), (true, 0)] {
                let case = Case {
                    kind,
                    expected,
                    given,
                    in_place,
                    after,
                };
                into.write_local(0, &marks)?;
                world.barrier()?;
                let answer = call(world, case, (&from, &into))?;
                let refused = |answer: &Result<(), Error>| {
                    matches!(answer, Err(Error::Mismatch { .. } | Error::Refused(_)))
                };
                check!(refused(&answer), "{case:?} at {me}: {answer:?}");
                world.barrier()?;
                let mut found = marks.clone();
                into.read_local(0, &mut found)?;
                let gets = match (kind, me) {
                    (Kind::Scatter, _) => expected,
                    (Kind::Gather, 0) | (Kind::AllToAll, _) => 3 * expected,
                    (Kind::Gather, _) => 0,
                } as usize;
                let end = found.len() - after as usize;
                let outside = found[..end - gets].iter().chain(&found[end..]);
                let hit = outside.filter(|value| **value != MARK).count();
                check!(hit == 0, "{case:?} at {me}: {hit} elements outside");
                if in_place && after > 0 {
                    let answer = pending(world, case);
                    check!(refused(&answer), "{case:?} pending at {me}: {answer:?}");
                }
            }
        }
    }
    Ok(world.barrier()?)
}

everywhere!(counts_that_differ, 3, |fabric, _| all_cases(fabric));

/// What ends a call leaves behind the next frame, which may be the refusal of a message: the
/// sender has the right error all the same.
struct EndsLast(Vec<(PeerId, RawFrame)>);

/// The kind of active messages.
const ACTIVE: u8 = 8;

impl Tamper for EndsLast {
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame)) {
        if frame.kind == ACTIVE {
            return self.0.push((to, frame));
        }
        send(to, frame);
        self.0.drain(..).for_each(|(to, frame)| send(to, frame));
    }
}

#[test]
fn the_end_of_a_call_comes_after_a_refusal() {
    let name = "collective::mismatch::the_end_of_a_call_comes_after_a_refusal";
    simulate(name, 3, 0..4, |fabric, _| {
        tamper(fabric, Box::new(EndsLast(Vec::new())));
        all_cases(fabric)
    });
}

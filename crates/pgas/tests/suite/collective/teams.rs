//! Collectives of several teams at once, and of many teams over time.

use samite_fabric::{Fabric, PeerId};
use samite_pgas::{Group, Pgas, Sum, Unit};
use samite_testkit::{Outcome, check, everywhere, same, units};

// Two teams that overlap, their calls interleaved with those of the world, blocking and not.
everywhere!(interleaved, 4, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me());
    let of = |units: &[u32]| units.iter().copied().map(Unit).collect::<Group>();
    let first = world.create(&if me.0 < 3 { of(&[0, 1, 2]) } else { of(&[3]) })?;
    let last = world.create(&if me.0 > 0 { of(&[1, 2, 3]) } else { of(&[0]) })?;
    let (first, last) = (
        first.ok_or(samite_pgas::Error::NotAMember(me.into()))?,
        last,
    );
    let last = last.ok_or(samite_pgas::Error::NotAMember(me.into()))?;
    let sum = |group: &Group| group.into_iter().map(|unit| u64::from(unit.0)).sum::<u64>();
    for round in 0..30 {
        for count in [1, 3000] {
            let mine = vec![u64::from(me.0) + round; count];
            let early = last.iall_reduce(mine.clone(), Sum)?;
            let (mut a, mut b) = (vec![0; count], vec![0; count]);
            first.all_reduce(&mine, &mut a, Sum)?;
            let late = first.iall_gather(vec![me.0])?;
            last.all_reduce(&mine, &mut b, Sum)?;
            world.barrier()?;
            let expected = |group: &Group| sum(group) + round * u64::from(group.len());
            same!(a, vec![expected(first.group()); count]);
            same!(b, vec![expected(last.group()); count]);
            let units: Vec<u32> = first.group().into_iter().map(|unit| unit.0).collect();
            same!(late.wait()?, units);
            same!(early.wait()?, b);
        }
    }
    first.destroy()?;
    last.destroy()?;
    Ok(world.barrier()?)
});

/// Teams come and go; none leaves memory behind.
fn many_teams(fabric: &Fabric, teams: u64) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let mut used = 0;
    for turn in 0..teams {
        let team = world.duplicate()?;
        if turn % 16 == 0 {
            // This one makes all that a team can have.
            let mut sum = [0];
            team.all_reduce(&[turn], &mut sum, Sum)?;
            same!(sum, [turn * u64::from(team.size())]);
        }
        team.destroy()?;
        if turn == 16 {
            used = fabric.shared_bytes();
        }
    }
    check!(
        fabric.shared_bytes() <= used,
        "{} of {used} bytes",
        fabric.shared_bytes()
    );
    Ok(world.barrier()?)
}

/// As many as the paper's teams had numbers for, three times over.
#[test]
fn a_hundred_thousand() {
    let body = |fabric: &Fabric, _: &[PeerId]| many_teams(fabric, 100_000);
    units(2).run("collective::teams::a_hundred_thousand", body);
}

everywhere!(many_over_time, 3, |fabric, _| many_teams(fabric, 500));

// A member drops its team at once; the memory is used again while others may still be on their way
// out.
everywhere!(dropped_without_a_word, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    for turn in 0..300 {
        let team = world.duplicate()?;
        let mut sum = vec![0; 40];
        team.all_reduce(&vec![turn; 40], &mut sum, Sum)?;
        same!(sum, vec![turn * 3; 40]);
        drop(team);
        let marked = pgas.allocate::<u64>(64)?;
        pgas.put(marked, &[turn; 64])?;
        world.barrier()?;
        let mut found = [0; 64];
        pgas.get(marked, &mut found)?;
        same!(found, [turn; 64]);
        pgas.free(marked)?;
    }
    Ok(world.barrier()?)
});

// Ended and begun anew, as a library inside a program does.
everywhere!(begun_anew, 2, |fabric, _| {
    for turn in 0..100 {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let mut all = [0; 2];
        world.all_gather(&[turn + u64::from(pgas.me().0)], &mut all)?;
        same!(all, [turn, turn + 1]);
        world.barrier()?;
    }
    Ok(())
});

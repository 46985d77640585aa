//! Every collective against a loop, for sizes, types, and forms of its buffers.

use samite_fabric::{Fabric, Mask};
use samite_pgas::{
    Counts, Elem, Error, Located, MaxLoc, MinLoc, Op, Operator, Pgas, Segment, Source, Sum, Target,
    Team,
};
use samite_testkit::{Outcome, check, everywhere, same, units};

/// Elements that say whose they are.
pub(crate) trait Sample: Elem + PartialEq + std::fmt::Debug {
    fn at(rank: u64, index: u64) -> Self;
}

macro_rules! numbers {
    ($($t:ty)+) => { $(impl Sample for $t {
        fn at(rank: u64, index: u64) -> Self {
            (rank * 1009 + index * 7 + index / 256 + 1) as $t
        }
    })+ };
}
numbers!(u8 i16 u32 f32 i64 u64 f64);

impl Sample for [u64; 3] {
    fn at(rank: u64, index: u64) -> Self {
        [2 * rank + 1, index, rank ^ index]
    }
}

impl Sample for () {
    fn at(_: u64, _: u64) -> Self {}
}

/// `x -> a x + b`, one after the other, and who came first: the order matters.
pub(crate) fn compose() -> impl Operator<[u64; 3]> + 'static {
    Op::ordered(|f: [u64; 3], g: [u64; 3]| {
        let (a, b) = (f[0].wrapping_mul(g[0]), f[1].wrapping_mul(g[0]));
        [a, b.wrapping_add(g[1]), f[2]]
    })
}

/// Symmetric memory for the sources and targets of a call.
struct Memory<T> {
    team: Team,
    from: Segment<T>,
    into: Segment<T>,
}

/// Which buffers are parts.
#[derive(Clone, Copy, Debug)]
struct Forms {
    from: bool,
    into: bool,
}

impl<T: Sample> Memory<T> {
    fn new(team: &Team, elements: u64) -> Outcome<Self> {
        Ok(Memory {
            team: team.clone(),
            from: team.allocate(elements + 3)?,
            into: team.allocate(elements + 3)?,
        })
    }

    /// What a call leaves in a target of `len` elements, which it finds filled with a mark.
    fn run(
        &self,
        forms: Forms,
        given: &[T],
        len: u64,
        call: impl FnOnce(Source<'_, T>, Target<'_, T>) -> Result<(), Error>,
    ) -> Outcome<Vec<T>> {
        // Parts begin anywhere, and not at the same place at all members.
        let first = u64::from(self.team.rank()) % 3;
        let mut slice = vec![T::at(99, 99); len as usize];
        let range = first..first + given.len() as u64;
        let from = match forms.from {
            true => {
                self.from.write_local(first, given)?;
                Source::Part(self.from.part(range)?)
            }
            false => Source::Slice(given),
        };
        if forms.into {
            self.into.write_local(first, &slice)?;
            call(from, Target::Part(self.into.part(first..first + len)?))?;
            self.into.read_local(first, &mut slice)?;
        } else {
            call(from, (&mut slice).into())?;
        }
        Ok(slice)
    }
}

fn filled<T: Sample>(rank: u64, count: u64) -> Vec<T> {
    (0..count).map(|index| T::at(rank, index)).collect()
}

/// The elements of ranks combined in their order.
fn folded<T: Sample>(ranks: std::ops::Range<u64>, index: u64, op: &impl Operator<T>) -> T {
    let all = ranks.map(|rank| T::at(rank, index));
    all.reduce(|sum, next| op.apply(sum, next))
        .unwrap_or(T::at(99, 99))
}

fn moving<T: Sample>(memory: &Memory<T>, count: u64, forms: Forms) -> Outcome {
    let world = &memory.team;
    let (me, size) = (u64::from(world.rank()), u64::from(world.size()));
    let mine: Vec<T> = filled(me, count);
    let all: Vec<T> = (0..size).flat_map(|rank| filled(rank, count)).collect();
    for root in 0..size {
        let at = root as u32;
        let nothing = vec![T::at(99, 99); count as usize];
        // The target of a broadcast is the source at its root.
        let mut slice = if me == root { mine.clone() } else { nothing };
        if forms.into {
            memory.into.write_local(2, &slice)?;
            world.broadcast(at, memory.into.part(2..2 + count)?)?;
            memory.into.read_local(2, &mut slice)?;
        } else {
            world.broadcast(at, &mut slice)?;
        }
        same!(slice, filled::<T>(root, count));

        let given: Vec<T> = filled(root, if me == root { size * count } else { 0 });
        let got = memory.run(forms, &given, count, |from, into| {
            world.scatter(at, from, into)
        })?;
        let expected: Vec<T> = (0..count).map(|i| T::at(root, me * count + i)).collect();
        same!(got, expected);

        let len = if me == root { size * count } else { 0 };
        let got = memory.run(forms, &mine, len, |from, into| world.gather(at, from, into))?;
        check!(me != root || got == all, "gather to {root}");
    }
    let got = memory.run(forms, &mine, size * count, |from, into| {
        world.all_gather(from, into)
    })?;
    check!(got == all, "all-gather");
    let given: Vec<T> = filled(me, size * count);
    let got = memory.run(forms, &given, size * count, |from, into| {
        world.all_to_all(from, into)
    })?;
    let from = |rank| (0..count).map(move |i| T::at(rank, me * count + i));
    check!(
        got == (0..size).flat_map(from).collect::<Vec<T>>(),
        "all-to-all"
    );
    Ok(())
}

/// How many elements the block of a rank has; some have none.
fn block(rank: u64, count: u64) -> u64 {
    match rank % 3 {
        1 => 0,
        _ => count + rank * 3,
    }
}

fn moving_v<T: Sample>(memory: &Memory<T>, count: u64, forms: Forms) -> Outcome {
    let world = &memory.team;
    let (me, size) = (u64::from(world.rank()), u64::from(world.size()));
    let counts: Vec<u64> = (0..size).map(|rank| block(rank, count)).collect();
    let (total, own) = (counts.iter().sum::<u64>(), counts[me as usize]);
    let start = |rank: u64| counts[..rank as usize].iter().sum::<u64>();
    let mine: Vec<T> = filled(me, own);
    let all: Vec<T> = (0..size)
        .flat_map(|rank| filled(rank, block(rank, count)))
        .collect();
    for root in 0..size {
        let at = root as u32;
        let here = me == root;
        let known = if here { &counts[..] } else { &[] };
        let given: Vec<T> = filled(root, if here { total } else { 0 });
        let scatter =
            |from: Source<'_, T>, into: Target<'_, T>| world.scatter_v(at, from, known, into);
        let got = memory.run(forms, &given, own, scatter)?;
        let expected: Vec<T> = (0..own).map(|i| T::at(root, start(me) + i)).collect();
        same!(got, expected);
        let gather =
            |from: Source<'_, T>, into: Target<'_, T>| world.gather_v(at, from, into, known);
        let got = memory.run(forms, &mine, if here { total } else { 0 }, gather)?;
        check!(!here || got == all, "gather_v to {root}");
    }
    let gather = |from: Source<'_, T>, into: Target<'_, T>| world.all_gather_v(from, into, &counts);
    let got = memory.run(forms, &mine, total, gather)?;
    check!(got == all, "all_gather_v");
    // From `i` to `j` go `lens(i, j)` elements of `i`.
    let lens = |i: u64, j: u64| block(i + 2 * j, count / 2);
    let given: Vec<u64> = (0..size).map(|to| lens(me, to)).collect();
    let received: Vec<u64> = (0..size).map(|from| lens(from, me)).collect();
    let source: Vec<T> = filled(me, given.iter().sum());
    let exchange = |from: Source<'_, T>, into: Target<'_, T>| {
        world.all_to_all_v(from, &given, into, &received)
    };
    let got = memory.run(forms, &source, received.iter().sum(), exchange)?;
    let first = |from: u64| (0..me).map(|to| lens(from, to)).sum::<u64>();
    let from = |from: u64| (0..lens(from, me)).map(move |i| T::at(from, first(from) + i));
    check!(
        got == (0..size).flat_map(from).collect::<Vec<T>>(),
        "all_to_all_v"
    );
    Ok(())
}

fn combining<T: Sample, O: Operator<T>>(
    memory: &Memory<T>,
    count: u64,
    forms: Forms,
    op: impl Fn() -> O,
) -> Outcome {
    let world = &memory.team;
    let (me, size) = (u64::from(world.rank()), u64::from(world.size()));
    let mine: Vec<T> = filled(me, count);
    let model = |ranks: std::ops::Range<u64>, first: u64| -> Vec<T> {
        let indices = first..first + count;
        indices
            .map(|index| folded(ranks.clone(), index, &op()))
            .collect()
    };
    for root in 0..size {
        let here = me == root;
        let len = if here { count } else { 0 };
        let reduce =
            |from: Source<'_, T>, into: Target<'_, T>| world.reduce(root as u32, from, into, op());
        let got = memory.run(forms, &mine, len, reduce)?;
        check!(
            !here || got == model(0..size, 0),
            "reduce to {root} of {count}"
        );
    }
    let got = memory.run(forms, &mine, count, |from, into| {
        world.all_reduce(from, into, op())
    })?;
    check!(got == model(0..size, 0), "all-reduce of {count}");
    let got = memory.run(forms, &mine, count, |from, into| {
        world.scan(from, into, op())
    })?;
    check!(got == model(0..me + 1, 0), "scan of {count}");
    let got = memory.run(forms, &mine, count, |from, into| {
        world.exscan(from, into, op())
    })?;
    // Rank 0 finds its mark.
    check!(got == model(0..me, 0), "exscan of {count}");
    let given: Vec<T> = filled(me, size * count);
    let scatter = |from: Source<'_, T>, into: Target<'_, T>| world.reduce_scatter(from, into, op());
    let got = memory.run(forms, &given, count, scatter)?;
    check!(
        got == model(0..size, me * count),
        "reduce-scatter of {count}"
    );
    Ok(())
}

const FORMS: [Forms; 4] = [
    Forms {
        from: false,
        into: false,
    },
    Forms {
        from: true,
        into: true,
    },
    Forms {
        from: true,
        into: false,
    },
    Forms {
        from: false,
        into: true,
    },
];

fn type_of_elements<T: Sample, O: Operator<T>>(
    world: &Team,
    counts: &[u64],
    op: impl Fn() -> O,
) -> Outcome {
    let longest = counts.iter().max().copied().unwrap_or(0) + 50;
    let memory = Memory::<T>::new(world, longest * u64::from(world.size()))?;
    let rank = world.rank() as usize;
    for (turn, count) in counts.iter().enumerate() {
        // The last turn is one in which members have different forms.
        for turn in [turn, turn + 1, turn + rank] {
            let forms = FORMS[turn % FORMS.len()];
            moving(&memory, *count, forms)?;
            moving_v(&memory, *count, forms)?;
            combining(&memory, *count, forms, &op)?;
        }
    }
    Ok(())
}

fn all_results(fabric: &Fabric) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    // Units of a simulation are threads that take turns: fewer bytes.
    let simulated = fabric.domain().is_none();
    let many = if simulated { 9_000 } else { 100_000 };
    type_of_elements::<f64, _>(world, &[0, 1, 2, 7, 1000, many], || Sum)?;
    type_of_elements::<[u64; 3], _>(world, &[0, 1, 7, 2000], compose)?;
    if !simulated {
        type_of_elements::<u8, _>(world, &[1, 13, 96, 97, 5000, 300_001], || Sum)?;
        type_of_elements::<i16, _>(world, &[3, 700], || samite_pgas::BitXor)?;
        type_of_elements::<u32, _>(world, &[2, 31, 4097], || samite_pgas::Max)?;
    }
    type_of_elements::<(), _>(world, &[0, 1, 5], || Op::new(|(), ()| ()))?;
    Ok(world.barrier()?)
}

everywhere!(alone, 1, |fabric, _| all_results(fabric));
everywhere!(of_two, 2, |fabric, _| all_results(fabric));
everywhere!(of_three, 3, |fabric, _| all_results(fabric));
everywhere!(of_four, 4, |fabric, _| all_results(fabric));
everywhere!(of_five, 5, |fabric, _| all_results(fabric));

/// Units that map each other's memory while the kernel does not copy: slices go through staging
/// memory.
#[test]
fn without_the_kernel() {
    let mask = Mask {
        kernel_copy: true,
        ..Mask::default()
    };
    let units = units(3).mask(mask);
    units.run("collective::results::without_the_kernel", |fabric, _| {
        all_results(fabric)
    });
}

everywhere!(values_with_their_places, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), u64::from(pgas.me().0));
    for count in [2, 5000] {
        // The extremes wander; of equal ones the lowest rank is told.
        let value = |rank: u64, i: u64| ((rank + i) % 2) as f64;
        let mine: Vec<_> = (0..count).map(|i| Located::new(value(me, i), me)).collect();
        let (mut least, mut greatest) = (mine.clone(), mine.clone());
        world.all_reduce(&mine, &mut least, MinLoc)?;
        world.all_reduce(&mine, &mut greatest, MaxLoc)?;
        for i in 0..count {
            let (low, high) = (least[i as usize], greatest[i as usize]);
            same!((low.value(), low.place()), (0.0, i % 2));
            same!((high.value(), high.place()), (1.0, 1 - i % 2));
        }
    }
    Ok(world.barrier()?)
});

// Source and target may be the same memory, or overlap.
everywhere!(in_place, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), u64::from(pgas.me().0));
    let segment = world.allocate::<u64>(9000)?;
    for count in [5, 6000] {
        let mine: Vec<u64> = (0..count).map(|i| me + i).collect();
        for shift in [0, 2] {
            segment.write_local(0, &mine)?;
            let into = segment.part(shift..shift + count)?;
            world.all_reduce(segment.part(..count)?, into, Sum)?;
            let mut got = vec![0; count as usize];
            segment.read_local(shift, &mut got)?;
            check!(
                got.iter().zip(0..).all(|(sum, i)| *sum == 3 * i + 3),
                "{count} {shift}"
            );
        }
    }
    Ok(world.barrier()?)
});

// Blocks that lie anywhere in a buffer: what is between them stays as it is.
everywhere!(blocks_apart, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), u64::from(pgas.me().0));
    for count in [2, 7000] {
        // Backwards, with gaps; rank `r` has `count + r` elements.
        let counts: Vec<u64> = (0..3).map(|rank| count + rank).collect();
        let starts = [2 * count + 20, count + 10, 1];
        let total = 3 * count + 40;
        let blocks = Counts::at(&counts, &starts);
        let mine: Vec<u64> = filled(me, count + me);
        let laid = |block: &dyn Fn(u64) -> Vec<u64>| {
            let mut all = vec![7; total as usize];
            for rank in 0..3 {
                let at = starts[rank as usize] as usize;
                let block = block(rank);
                all[at..at + block.len()].copy_from_slice(&block);
            }
            all
        };
        let of_all = |rank| filled(rank, count + rank);
        let segment = world.allocate::<u64>(total)?;
        for in_place in [false, true] {
            let mut got = vec![7; total as usize];
            segment.write_local(0, &got)?;
            world.barrier()?;
            let into = match in_place {
                true => Target::Part(segment.part(..)?),
                false => Target::from(&mut got),
            };
            world.all_gather_v(&mine, into, blocks)?;
            if in_place {
                segment.read_local(0, &mut got)?;
            }
            check!(got == laid(&of_all), "all_gather_v of {count}, {in_place}");
        }
        let root = 1;
        let mut got = vec![7; total as usize];
        world.gather_v(root, &mine, &mut got, blocks)?;
        let nothing = |_: u64| Vec::new();
        let expected = if me == 1 {
            laid(&of_all)
        } else {
            laid(&nothing)
        };
        check!(got == expected, "gather_v of {count}");
        let mut back = vec![0; mine.len()];
        let given: &[u64] = if me == 1 { &got } else { &[] };
        world.scatter_v(root, given, blocks, &mut back)?;
        check!(back == mine, "scatter_v of {count}");
        // Each gives everybody the block of its rank.
        let own = vec![count + me; 3];
        let source = laid(&of_all);
        let mut got = vec![7; total as usize + 6];
        let spread: Vec<u64> = (0..3).map(|rank| rank * (count + me + 2)).collect();
        world.all_to_all_v(&source, blocks, &mut got, Counts::at(&own, &spread))?;
        for (rank, at) in spread.iter().enumerate() {
            let block = &got[*at as usize..][..own[0] as usize];
            check!(block == mine, "all_to_all_v of {count}, from {rank}");
            check!(got[*at as usize + block.len()] == 7, "a gap of {count}");
        }
        let far = [0, 10, total];
        let into = &mut got[..total as usize];
        let answer = world.all_gather_v(&mine, into, Counts::at(&counts, &far));
        check!(
            matches!(answer, Err(Error::WrongLength { .. })),
            "{answer:?}"
        );
    }
    Ok(world.barrier()?)
});

// Registered memory, and memory of a smaller team, is not reached in place by everybody.
everywhere!(parts_of_others, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), u64::from(pgas.me().0));
    let registered = world.register(vec![me; 5000])?;
    let few = world.split_by(me / 2)?;
    let small = few.allocate::<u64>(5000)?;
    world.all_reduce(registered.part(..)?, small.part(..)?, Sum)?;
    let mut got = vec![0; 5000];
    small.read_local(0, &mut got)?;
    check!(got.iter().all(|sum| *sum == 3), "{:?}", got[0]);
    world.all_reduce(small.part(..)?, registered.part(..)?, Sum)?;
    registered.read_local(0, &mut got)?;
    check!(got.iter().all(|sum| *sum == 9), "{:?}", got[0]);
    // The phase of memory that only its team has used can change.
    let local = small.into_local()?;
    check!(local.as_slice()[4999] == 3);
    Ok(world.barrier()?)
});

/// More than 2 GiB and 2^31 elements in one call, in place and over messages.
#[test]
#[ignore = "needs 9 GiB of memory"]
fn beyond_two_gigabytes() {
    let body = |fabric: &Fabric, _: &[samite_fabric::PeerId]| -> Outcome {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), pgas.me().0);
        let count = (1u64 << 31) + 4097;
        let segment = world.allocate::<u8>(count)?;
        let ends = [0, 1, (1 << 31) - 1, 1 << 31, count - 1];
        for at in ends.into_iter().filter(|_| me == 0) {
            segment.put_value(0, at, (at % 251) as u8 + 3)?;
        }
        world.broadcast(0, segment.part(..)?)?;
        for at in ends {
            same!(segment.get_value(me, at)?, (at % 251) as u8 + 3);
        }
        segment.free()?;
        let pending = world.ibroadcast(0, vec![me as u8 + 1; count as usize])?;
        let got = pending.wait()?;
        same!(got.len() as u64, count);
        check!(got.iter().all(|byte| *byte == 1), "broadcast");
        Ok(world.barrier()?)
    };
    let timeout = std::time::Duration::from_secs(300);
    let units = units(2).budget(5 << 30).timeout(timeout);
    units.run("collective::results::beyond_two_gigabytes", body);
}

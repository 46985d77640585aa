//! All members of a team in one loop: schedules are data, so a model can run them for any size, root and
//! order of execution, and look for what is missing, left over or touched while it is in flight.

use super::{INPUT, OUTPUT, Schedule, Span, Step, combines, moves};
use crate::collective::shape::{Blocks, Combine, Moves};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

/// Combines bytes in an order that matters.
type Combiner = fn(&[u8], &[u8]) -> Vec<u8>;

struct Member {
    rank: u32,
    schedule: Schedule,
    next: usize,
    memory: Vec<Vec<u8>>,
    sending: Vec<Span>,
    receiving: Vec<(u32, Span)>,
}

#[derive(Default)]
struct Network(HashMap<(u32, u32), VecDeque<Vec<u8>>>);

fn overlap(a: Span, b: Span) -> bool {
    a.memory == b.memory && a.offset < b.offset + b.len && b.offset < a.offset + a.len
}

impl Member {
    fn bytes(&self, span: Span) -> &[u8] {
        &self.memory[span.memory as usize][span.offset as usize..][..span.len as usize]
    }

    /// Nobody else may write what is read here.
    fn reads(&self, span: Span) {
        let clash = self.receiving.iter().find(|(_, into)| overlap(span, *into));
        assert_eq!(clash, None, "rank {} reads {span:?} too early", self.rank);
    }

    fn writes(&self, span: Span) {
        self.reads(span);
        let clash = self.sending.iter().find(|from| overlap(span, **from));
        assert_eq!(clash, None, "rank {} writes {span:?} too early", self.rank);
    }

    fn write(&mut self, span: Span, bytes: &[u8]) {
        assert_eq!(span.len, bytes.len() as u64);
        let memory = &mut self.memory[span.memory as usize];
        memory[span.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Takes a step, unless it has to wait.
    fn step(&mut self, network: &mut Network, combiner: Combiner) -> bool {
        let step = self.schedule.steps.get(self.next).copied();
        let Some(step) = step.or_else(|| self.in_flight().then_some(Step::Fence)) else {
            return false;
        };
        match step {
            Step::Send { to, from } => {
                self.reads(from);
                self.sending.push(from);
                let bytes = self.bytes(from).to_vec();
                network
                    .0
                    .entry((self.rank, to))
                    .or_default()
                    .push_back(bytes);
            }
            Step::Recv { from, into } => {
                self.writes(into);
                self.receiving.push((from, into));
            }
            Step::Copy { from, into } => {
                self.reads(from);
                self.writes(into);
                let bytes = self.bytes(from).to_vec();
                self.write(into, &bytes);
            }
            Step::Combine {
                with,
                into,
                with_first,
            } => {
                self.reads(with);
                self.writes(into);
                let (with, old) = (self.bytes(with), self.bytes(into));
                let combined = match with_first {
                    true => combiner(with, old),
                    false => combiner(old, with),
                };
                self.write(into, &combined);
            }
            Step::Fence => {
                // Messages of a pair come in order, of different ones in any order.
                let mut at = 0;
                while let Some((from, into)) = self.receiving.get(at).copied() {
                    let earlier = self.receiving[..at].iter().any(|(rank, _)| *rank == from);
                    let queue = network.0.entry((from, self.rank)).or_default();
                    match queue.pop_front_if(|_| !earlier) {
                        Some(bytes) => {
                            self.receiving.remove(at);
                            self.write(into, &bytes);
                        }
                        None => at += 1,
                    }
                }
                if !self.receiving.is_empty() {
                    return false;
                }
                self.sending.clear();
            }
        }
        self.next += 1;
        true
    }

    fn in_flight(&self) -> bool {
        !self.receiving.is_empty() || !self.sending.is_empty()
    }
}

/// Runs everybody to the end, in an order that `seed` chooses; the outputs.
fn run(
    schedules: Vec<Schedule>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    combiner: Combiner,
    seed: u64,
) -> Vec<Vec<u8>> {
    let memories = inputs.into_iter().zip(outputs);
    let mut members: Vec<Member> = (0..)
        .zip(schedules)
        .zip(memories)
        .map(|((rank, schedule), (input, output))| {
            let scratch = schedule
                .scratch
                .iter()
                .map(|bytes| vec![0xee; *bytes as usize]);
            Member {
                rank,
                memory: [input, output].into_iter().chain(scratch).collect(),
                schedule,
                next: 0,
                sending: Vec::new(),
                receiving: Vec::new(),
            }
        })
        .collect();
    let mut network = Network::default();
    let mut random = seed | 1;
    loop {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let (size, first) = (members.len(), (random >> 33) as usize);
        let moved = (0..size).any(|by| members[(first + by) % size].step(&mut network, combiner));
        if !moved {
            break;
        }
    }
    for member in &members {
        let left = member.schedule.steps.len().saturating_sub(member.next);
        assert_eq!(
            (left, member.in_flight()),
            (0, false),
            "rank {} hangs",
            member.rank
        );
    }
    let unread = network.0.values().map(VecDeque::len).sum::<usize>();
    assert_eq!(unread, 0, "messages that nobody receives");
    let output = |member: Member| member.memory.into_iter().nth(OUTPUT as usize);
    members.into_iter().filter_map(output).collect()
}

/// Bytes that tell whose they are and where.
fn own(rank: u32, len: u64) -> Vec<u8> {
    let byte = |at: u64| (u64::from(rank) * 131 + at * 7 + at / 251) as u8;
    (0..len).map(byte).collect()
}

fn check_moves(size: u32, seed: u64, of: impl Fn(u32) -> Moves, lens: impl Fn(u32) -> (u64, u64)) {
    let all = || (0..size).map(|rank| (rank, of(rank), lens(rank)));
    let schedules = all().map(|(rank, of, _)| moves(&of, rank, size)).collect();
    let inputs: Vec<Vec<u8>> = all().map(|(rank, _, lens)| own(rank, lens.0)).collect();
    let mut outputs: Vec<Vec<u8>> = all()
        .map(|(.., lens)| vec![0x55; lens.1 as usize])
        .collect();
    let mut expected = outputs.clone();
    for (rank, moves, _) in all() {
        for from in 0..size {
            let take = moves.takes(rank, from);
            let (at, len) = of(from).gives(from, rank);
            assert!(take.len == 0 || len == take.len, "{moves:?}");
            let given = &inputs[from as usize][at as usize..][..take.len as usize];
            expected[rank as usize][take.at as usize..][..given.len()].copy_from_slice(given);
        }
        if let Moves::Broadcast { root, .. } = moves
            && root == rank
        {
            // The root's bytes lie where the others get them.
            outputs[rank as usize] = inputs[rank as usize].clone();
            expected[rank as usize] = inputs[rank as usize].clone();
        }
    }
    let found = run(schedules, inputs, outputs, |_, _| unreachable!(), seed);
    assert!(
        found == expected,
        "wrong bytes: {:?}, {size} members",
        of(0)
    );
}

/// Maps `x -> a x + b`, one after the other: associative, and the order matters.
fn compose(first: &[u8], then: &[u8]) -> Vec<u8> {
    let pairs = first.chunks_exact(2).zip(then.chunks_exact(2));
    let compose = |(f, g): (&[u8], &[u8])| {
        [
            f[0].wrapping_mul(g[0]),
            f[1].wrapping_mul(g[0]).wrapping_add(g[1]),
        ]
    };
    pairs.flat_map(compose).collect()
}

fn add(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a.wrapping_add(*b)).collect()
}

fn check_combine(size: u32, seed: u64, combine: Combine, bytes: u64, commutes: bool) {
    let combiner: Combiner = if commutes { add } else { compose };
    let total = if combine == Combine::ReduceScatter {
        bytes * u64::from(size)
    } else {
        bytes
    };
    let inputs: Vec<Vec<u8>> = (0..size).map(|rank| own(rank, total)).collect();
    let outputs = vec![vec![0x55; bytes as usize]; size as usize];
    let fold = |ranks: std::ops::Range<u32>| {
        let inputs = ranks.map(|rank| inputs[rank as usize].clone());
        inputs.reduce(|sum, next| combiner(&sum, &next))
    };
    let expected: Vec<Option<Vec<u8>>> = (0..size)
        .map(|rank| match combine {
            _ if !combine.gives_to(rank) => None,
            Combine::Scan => fold(0..rank + 1),
            Combine::ExScan => fold(0..rank),
            Combine::ReduceScatter => {
                let all = fold(0..size);
                all.map(|all| all[(u64::from(rank) * bytes) as usize..][..bytes as usize].to_vec())
            }
            _ => fold(0..size),
        })
        .collect();
    let schedule = |rank| combines(combine, (rank, size), (bytes, 2), commutes);
    let schedules = (0..size).map(schedule).collect();
    let found = run(schedules, inputs.clone(), outputs, combiner, seed);
    for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let right = expected.as_ref().is_none_or(|expected| expected == found);
        assert!(
            right,
            "{combine:?} of {bytes} bytes: rank {rank} of {size} is wrong"
        );
    }
}

/// Few bytes and many, with a rest.
fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1u64..40, 200u64..300, 33_000u64..70_000]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn bytes_go_where_they_belong(
        size in 1u32..14, root in 0u32..14, bytes in lengths(), kind in 0..5, seed: u64
    ) {
        let (root, all) = (root % size, bytes * u64::from(size));
        let equal = || Blocks::Equal(bytes);
        match kind {
            0 => check_moves(size, seed, |_| Moves::Broadcast { root, bytes }, |_| (bytes, bytes)),
            1 => {
                let moves = |_| Moves::Scatter { root, from: equal(), mine: bytes };
                check_moves(size, seed, moves, |_| (all, bytes));
            }
            2 => {
                let moves = |_| Moves::Gather { root, into: equal(), mine: bytes };
                check_moves(size, seed, moves, |_| (bytes, all));
            }
            3 => {
                let moves = |_| Moves::AllGather { blocks: equal() };
                check_moves(size, seed, moves, |_| (bytes, all));
            }
            _ => {
                let moves = |_| Moves::AllToAll { from: equal(), into: equal() };
                check_moves(size, seed, moves, |_| (all, all));
            }
        }
    }

    #[test]
    fn blocks_may_differ(
        counts in proptest::collection::vec(prop_oneof![Just(0u64), 0u64..50, 100u64..40_000], 1..9),
        root in 0u32..9, shift in 0u64..5, kind in 0..4, seed: u64
    ) {
        let size = counts.len() as u32;
        let (root, all) = (root % size, counts.iter().sum::<u64>());
        let listed = || Blocks::listed(&counts, 1).unwrap();
        let known = |rank| if rank == root { listed() } else { Blocks::Listed(Vec::new()) };
        let mine = |rank: u32| counts[rank as usize];
        match kind {
            0 => {
                let moves = |rank| Moves::Scatter { root, from: known(rank), mine: mine(rank) };
                check_moves(size, seed, moves, |rank| (all, mine(rank)));
            }
            1 => {
                let moves = |rank| Moves::Gather { root, into: known(rank), mine: mine(rank) };
                check_moves(size, seed, moves, |rank| (mine(rank), all));
            }
            2 => {
                let moves = |_| Moves::AllGather { blocks: listed() };
                check_moves(size, seed, moves, |rank| (mine(rank), all));
            }
            _ => {
                // From `i` to `j` go the bytes of a matrix that both know.
                let len = |i: u32, j: u32| counts[((i + j) % size) as usize] * (shift + u64::from(i)) % 999;
                let moves = |rank| {
                    let given: Vec<u64> = (0..size).map(|to| len(rank, to)).collect();
                    let received: Vec<u64> = (0..size).map(|from| len(from, rank)).collect();
                    let blocks = |counts: &[u64]| Blocks::listed(counts, 1).unwrap();
                    Moves::AllToAll { from: blocks(&given), into: blocks(&received) }
                };
                let lens = |rank| {
                    let given = (0..size).map(|to| len(rank, to)).sum();
                    (given, (0..size).map(|from| len(from, rank)).sum())
                };
                check_moves(size, seed, moves, lens);
            }
        }
    }

    #[test]
    fn ranks_are_combined_in_order(
        size in 1u32..14, root in 0u32..14, count in lengths(), kind in 0..5, commutes: bool, seed: u64
    ) {
        let combine = match kind {
            0 => Combine::Reduce { root: root % size },
            1 => Combine::AllReduce,
            2 => Combine::ReduceScatter,
            3 => Combine::Scan,
            _ => Combine::ExScan,
        };
        check_combine(size, seed, combine, count * 2, commutes);
    }
}

#[test]
fn a_barrier_is_one() {
    for size in 1..20 {
        let barrier = |rank| moves(&Moves::Barrier, rank, size);
        let schedules: Vec<Schedule> = (0..size).map(barrier).collect();
        let nothing = || vec![Vec::new(); size as usize];
        run(
            schedules.clone(),
            nothing(),
            nothing(),
            |_, _| unreachable!(),
            7,
        );
        // Everybody hears, over some way, of everybody.
        let mut heard: Vec<u64> = (0..size).map(|rank| 1 << rank).collect();
        let rounds = schedules[0].steps.len() / 3;
        for round in 0..rounds {
            let before = heard.clone();
            for (rank, schedule) in schedules.iter().enumerate() {
                let Step::Recv { from, into } = schedule.steps[round * 3] else {
                    panic!("a round begins with a receive");
                };
                assert_eq!((into.memory, into.len), (INPUT, 0));
                heard[rank] |= before[from as usize];
            }
        }
        assert!(
            heard.iter().all(|heard| *heard == (1 << size) - 1),
            "{size} members"
        );
    }
}

/// What is sent, received and copied stays inside of its memory, and both sides of a message agree on its
/// length, also where no memory would hold it.
fn check_lengths(schedules: &[Schedule], memories: impl Fn(u32) -> (u64, u64)) {
    let mut sent: HashMap<(u32, u32), VecDeque<u64>> = HashMap::new();
    let inside = |rank: u32, schedule: &Schedule, span: Span| {
        let (input, output) = memories(rank);
        let len = match span.memory {
            INPUT => input,
            OUTPUT => output,
            scratch => schedule.scratch[scratch as usize - 2],
        };
        assert!(span.offset + span.len <= len, "{span:?} of {len} bytes");
    };
    for (rank, schedule) in (0..).zip(schedules) {
        for step in &schedule.steps {
            match *step {
                Step::Send { to, from } => {
                    inside(rank, schedule, from);
                    sent.entry((rank, to)).or_default().push_back(from.len);
                }
                Step::Recv { into, .. } => inside(rank, schedule, into),
                Step::Copy { from, into }
                | Step::Combine {
                    with: from, into, ..
                } => {
                    inside(rank, schedule, from);
                    inside(rank, schedule, into);
                    assert_eq!(from.len, into.len);
                }
                Step::Fence => {}
            }
        }
    }
    for (rank, schedule) in (0..).zip(schedules) {
        for step in &schedule.steps {
            if let Step::Recv { from, into } = step {
                let len = sent.get_mut(&(*from, rank)).and_then(VecDeque::pop_front);
                assert_eq!(len, Some(into.len));
            }
        }
    }
    assert!(sent.values().all(VecDeque::is_empty));
}

#[test]
fn sizes_beyond_what_memory_holds() {
    let bytes = (1u64 << 40) + 24;
    for size in 1..9 {
        let (root, all) = (size / 2, bytes * u64::from(size));
        let equal = || Blocks::Equal(bytes);
        let check = |of: Moves, lens: &dyn Fn(u32) -> (u64, u64)| {
            let schedules = (0..size).map(|rank| moves(&of, rank, size));
            check_lengths(&schedules.collect::<Vec<_>>(), lens);
        };
        check(Moves::Broadcast { root, bytes }, &|_| (0, bytes));
        let mine = bytes;
        check(
            Moves::Scatter {
                root,
                from: equal(),
                mine,
            },
            &|_| (all, bytes),
        );
        check(
            Moves::Gather {
                root,
                into: equal(),
                mine,
            },
            &|_| (bytes, all),
        );
        check(Moves::AllGather { blocks: equal() }, &|_| (bytes, all));
        let (from, into) = (equal(), equal());
        check(Moves::AllToAll { from, into }, &|_| (all, all));
        let combine = [
            Combine::Reduce { root },
            Combine::AllReduce,
            Combine::Scan,
            Combine::ExScan,
            Combine::ReduceScatter,
        ];
        for combine in combine {
            let of = |rank| combines(combine, (rank, size), (bytes, 8), true);
            let given = if combine == Combine::ReduceScatter {
                all
            } else {
                bytes
            };
            check_lengths(&(0..size).map(of).collect::<Vec<_>>(), |_| (given, bytes));
        }
    }
}

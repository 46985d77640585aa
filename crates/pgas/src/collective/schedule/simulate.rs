//! Runs all members of a team in one loop. Schedules are data, so a model can run them for any
//! size, root, placement of the buffers and order of execution, on both links, and detect bytes
//! that are missing, left over or accessed by two members at the same time.

use super::plan::{Announcement, Own, Plan};
use super::{INPUT, Memory, Schedule, Span, Step, Term, messages};
use crate::collective::shape::{Blocks, Combine, Elements, Shape};
use crate::collective::shared::few;
use crate::collective::{Input, Output, combining};
use proptest::prelude::*;
use samite_mem::SharedBytes;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A combination that depends on the order.
type Combiner = fn(&[u8], &[u8]) -> Vec<u8>;

/// Bytes of a member's memory: rank, memory and range.
type Location = (u32, Memory, Range<u64>);

/// One member, and its plan on flags.
struct Member {
    rank: u32,
    schedule: Schedule,
    next: usize,
    plan: Option<Plan>,
    /// Set in a meeting; the value says whether members may access each other's memory after it.
    meeting: Option<bool>,
    touching: bool,
    sending: Vec<Span>,
    receiving: Vec<(u32, Span)>,
}

struct World {
    /// By rank.
    memory: Vec<HashMap<Memory, Vec<u8>>>,
    /// By rank: whether the others can access input and output.
    in_place: Vec<(bool, bool)>,
    messages: HashMap<(u32, u32), VecDeque<Vec<u8>>>,
    /// By rank: the number of meetings that it has come to.
    meetings: Vec<usize>,
    /// By rank, what it has announced to each.
    told: Vec<Vec<Announcement>>,
    /// The accesses since each meeting: location, rank, and whether it wrote.
    touched: Vec<Vec<(Location, u32, bool)>>,
    combiner: Combiner,
}

impl World {
    fn place(&self, by: u32, span: Span) -> Location {
        let in_place = |rank: u32| self.in_place[rank as usize];
        let (whose, memory) = match span.memory {
            Memory::From(rank) if in_place(rank).0 => (rank, Memory::Input),
            Memory::Into(rank) if in_place(rank).1 => (rank, Memory::Output),
            Memory::From(rank) | Memory::Into(rank) => (rank, super::STAGING),
            Memory::Private(rank) => (rank, Memory::Input),
            own => (by, own),
        };
        (whose, memory, span.offset..span.offset + span.len)
    }

    /// Records an access. Fails if two members access the same byte between two meetings, unless
    /// both read.
    fn touch(&mut self, member: &Member, span: Span, writes: bool) -> Location {
        let by = member.rank;
        let (whose, memory, range) = self.place(by, span);
        assert!(
            member.touching || whose == by,
            "{by} touches {span:?} too late"
        );
        let touched = &mut self.touched[self.meetings[by as usize]];
        let clash = touched.iter().find(|((owner, of, other), who, wrote)| {
            let overlap = range.start < other.end && other.start < range.end;
            (*owner, *of) == (whose, memory) && overlap && *who != by && (writes || *wrote)
        });
        assert_eq!(clash, None, "rank {by} touches {span:?} at the same time");
        if member.plan.is_some() {
            touched.push(((whose, memory, range.clone()), by, writes));
        }
        (whose, memory, range)
    }

    fn read(&mut self, member: &Member, span: Span) -> Vec<u8> {
        let receiving = member
            .receiving
            .iter()
            .find(|(_, into)| overlap(span, *into));
        assert_eq!(receiving, None, "{} reads {span:?} too early", member.rank);
        let (whose, memory, range) = self.touch(member, span, false);
        let memory = self.memory[whose as usize].entry(memory).or_default();
        memory[range.start as usize..range.end as usize].to_vec()
    }

    fn write(&mut self, member: &Member, span: Span, bytes: &[u8]) {
        member.may_write(span);
        assert_eq!(span.len, bytes.len() as u64);
        let (whose, memory, range) = self.touch(member, span, true);
        let memory = self.memory[whose as usize].entry(memory).or_default();
        memory[range.start as usize..range.end as usize].copy_from_slice(bytes);
    }
}

fn overlap(a: Span, b: Span) -> bool {
    a.memory == b.memory && a.offset < b.offset + b.len && b.offset < a.offset + a.len
}

impl Member {
    fn new(rank: u32, schedule: Schedule, plan: Option<Plan>) -> Member {
        Member {
            rank,
            schedule,
            next: 0,
            plan,
            meeting: None,
            touching: false,
            sending: Vec::new(),
            receiving: Vec::new(),
        }
    }

    fn may_write(&self, span: Span) {
        let mut in_flight = self
            .receiving
            .iter()
            .map(|(_, into)| into)
            .chain(&self.sending);
        let clash = in_flight.find(|other| overlap(span, **other));
        assert_eq!(clash, None, "rank {} writes {span:?} too early", self.rank);
    }

    fn has_ended(&self) -> bool {
        let in_flight = !self.receiving.is_empty() || !self.sending.is_empty();
        self.next == self.schedule.steps.len() && self.meeting.is_none() && !in_flight
    }

    /// Takes a step, unless the member has to wait.
    fn step(&mut self, world: &mut World) -> bool {
        if let Some(touching) = self.meeting {
            return self.exchange(world, touching);
        }
        let step = self.schedule.steps.get(self.next).copied();
        // A schedule may end with operations in flight: these need a fence.
        let Some(step) = step.or_else(|| (!self.has_ended()).then_some(Step::Fence)) else {
            return self.go_on(world);
        };
        match step {
            Step::Send { to, from } => {
                let bytes = world.read(self, from);
                self.sending.push(from);
                let queue = world.messages.entry((self.rank, to)).or_default();
                queue.push_back(bytes);
            }
            Step::Recv { from, into } => {
                self.may_write(into);
                self.receiving.push((from, into));
            }
            Step::Copy { from, into } => {
                let bytes = world.read(self, from);
                world.write(self, into, &bytes);
            }
            Step::Combine { first, terms } => {
                let mut sum = None;
                for term in &self.schedule.terms[first..first + terms] {
                    match (*term, sum.take()) {
                        (Term::Take(from), None) => sum = Some(world.read(self, from)),
                        (Term::Take(from), Some(before)) => {
                            let with = world.read(self, from);
                            sum = Some((world.combiner)(&before, &with));
                        }
                        (Term::Give(into), result) => {
                            world.write(self, into, result.as_deref().unwrap_or_default());
                            sum = result;
                        }
                    }
                }
            }
            Step::Fence => {
                if !self.fence(world) {
                    return false;
                }
            }
            Step::Meet { touching } => {
                world.meetings[self.rank as usize] += 1;
                self.meeting = Some(touching);
            }
        }
        self.next = (self.next + 1).min(self.schedule.steps.len());
        true
    }

    /// Delivers messages: in order within a pair, in any order between pairs.
    fn fence(&mut self, world: &mut World) -> bool {
        let mut at = 0;
        while let Some((from, into)) = self.receiving.get(at).copied() {
            let earlier = self.receiving[..at].iter().any(|(rank, _)| *rank == from);
            let queue = world.messages.entry((from, self.rank)).or_default();
            match queue.pop_front_if(|_| !earlier) {
                Some(bytes) => {
                    self.receiving.remove(at);
                    let sending = std::mem::take(&mut self.sending);
                    world.write(self, into, &bytes);
                    self.sending = sending;
                }
                None => at += 1,
            }
        }
        let has_all = self.receiving.is_empty();
        self.sending.retain(|_| !has_all);
        has_all
    }

    /// Leaves a meeting if all members have come.
    fn exchange(&mut self, world: &World, touching: bool) -> bool {
        let meetings = world.meetings[self.rank as usize];
        if world.meetings.iter().any(|other| *other < meetings) {
            return false;
        }
        (self.meeting, self.touching) = (None, touching);
        if let Some(plan) = self.plan.as_mut().filter(|_| meetings == 1) {
            let told = world.told.iter().map(|to| to[self.rank as usize]);
            assert_eq!(plan.learn(told.collect()), Ok(()));
        }
        true
    }

    /// Fetches the next steps of a plan.
    fn go_on(&mut self, world: &World) -> bool {
        let has_met = world.meetings[self.rank as usize] > 0;
        let next = self.plan.as_mut().filter(|_| has_met).and_then(Plan::next);
        let is_more = next.is_some();
        if let Some(schedule) = next {
            (self.schedule, self.next) = (schedule, 0);
        }
        is_more
    }
}

/// How the members are linked.
#[derive(Clone, Copy, Debug)]
enum Link {
    Messages,
    /// Flags, with the bytes in the slots of one meeting.
    Slots,
    /// Flags, with a bit for each buffer that is in place, and whether the kernel copies.
    Flags {
        in_place: u64,
        private: bool,
    },
}

fn links() -> impl Strategy<Value = Link> {
    let flags = |(in_place, private)| Link::Flags { in_place, private };
    let some = (
        prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        any::<bool>(),
    );
    prop_oneof![
        Just(Link::Messages),
        Just(Link::Slots),
        some.prop_map(flags)
    ]
}

/// The bytes that the others have given to a member, by rank.
struct Given(Vec<SharedBytes>);

impl few::Slots for Given {
    fn read(&self, from: u32, into: &mut [u8]) {
        self.0[from as usize].read(0, into);
    }

    fn deliver(&self, from: u32, output: &mut Output<'_>, (at, len): (u64, u64)) {
        output.copy_from(at, &self.0[from as usize], 0, len);
    }
}

impl combining::Combiner for Combiner {
    fn append(&self, sum: &mut [u8], with: &[u8]) {
        sum.copy_from_slice(&self(sum, with));
    }
}

/// Runs one meeting of few bytes and returns the outputs.
fn meet(
    shapes: &[Shape],
    inputs: &[Vec<u8>],
    mut outputs: Vec<Vec<u8>>,
    combiner: Combiner,
) -> Vec<Vec<u8>> {
    let size = shapes.len() as u32;
    let longest = shapes[0].known_longest().unwrap_or(0) as usize;
    let input = |rank: u32| Input::Private(inputs[rank as usize].as_slice().into());
    for ((rank, shape), output) in (0..).zip(shapes).zip(&mut outputs) {
        let given = |from: u32| {
            let slot = SharedBytes::adopt(vec![0xee_u8; longest]);
            if from != rank {
                few::give(&shapes[from as usize], from, &input(from))(rank, &slot, 0);
            }
            slot
        };
        let slots = Given((0..size).map(given).collect());
        let ends = (&input(rank), &mut Output::Private(output));
        few::finish(shape, (rank, size), &slots, ends, Some(&combiner));
    }
    outputs
}

/// Runs all members to the end, in an order that `seed` chooses, and returns the outputs.
fn run(
    link: Link,
    shapes: &[Shape],
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    (combiner, seed): (Combiner, u64),
) -> Vec<Vec<u8>> {
    let size = shapes.len() as u32;
    let is_known = shapes[0].known_longest().is_some();
    if matches!(link, Link::Slots) && is_known {
        return meet(shapes, &inputs, outputs, combiner);
    }
    let memories = inputs.into_iter().zip(outputs);
    let memories =
        memories.map(|(input, output)| [(Memory::Input, input), (Memory::Output, output)]);
    let mut world = World {
        memory: memories.map(HashMap::from).collect(),
        in_place: Vec::new(),
        messages: HashMap::new(),
        meetings: vec![0; shapes.len()],
        told: Vec::new(),
        touched: vec![Vec::new(); 10_000],
        combiner,
    };
    let mut members: Vec<Member> = Vec::new();
    for (rank, shape) in (0..).zip(shapes) {
        let memory = &mut world.memory[rank as usize];
        let mut add = |number: u8, bytes: u64| {
            memory.insert(Memory::Scratch(number), vec![0xee; bytes as usize]);
        };
        let Link::Flags { in_place, private } = link else {
            let schedule = messages(shape, rank, size);
            for (number, bytes) in (0..).zip(&schedule.scratch) {
                add(number, *bytes);
            }
            members.push(Member::new(rank, schedule, None));
            world.in_place.push((false, false));
            continue;
        };
        // A broadcast has one buffer at each member.
        let has = |gives| match shape {
            Shape::Broadcast { root, .. } => (*root == rank) == gives,
            _ => true,
        };
        let bits = in_place >> (2 * rank);
        let own = Own {
            rank,
            size,
            input_in_place: bits & 1 != 0 && has(true),
            output_in_place: bits & 2 != 0 && has(false),
        };
        let mut plan = Plan::new(shape.clone(), own, |bytes| private && bytes >= 100);
        add(0, plan.staging().unwrap_or(0));
        let mut schedule = plan.begin();
        schedule.steps.push(Step::Meet { touching: true });
        world.told.push((0..size).map(|to| plan.tell(to)).collect());
        world
            .in_place
            .push((own.input_in_place, own.output_in_place));
        members.push(Member::new(rank, schedule, Some(plan)));
    }
    let mut random = seed | 1;
    loop {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let (size, first) = (members.len(), (random >> 33) as usize);
        let moved = (0..size).any(|by| members[(first + by) % size].step(&mut world));
        if !moved {
            break;
        }
    }
    for member in &members {
        assert!(member.has_ended(), "rank {} hangs", member.rank);
    }
    assert!(world.meetings.windows(2).all(|two| two[0] == two[1]));
    let unread = world.messages.values().map(VecDeque::len).sum::<usize>();
    assert_eq!(unread, 0, "messages that nobody receives");
    let output = |mut memory: HashMap<Memory, Vec<u8>>| memory.remove(&Memory::Output);
    world.memory.into_iter().filter_map(output).collect()
}

/// Returns bytes that identify their owner and position.
fn own(rank: u32, len: u64) -> Vec<u8> {
    let byte = |at: u64| (u64::from(rank) * 131 + at * 7 + at / 251) as u8;
    (0..len).map(byte).collect()
}

fn check_moves(
    (link, seed): (Link, u64),
    size: u32,
    of: impl Fn(u32) -> Shape,
    lens: impl Fn(u32) -> (u64, u64),
) {
    let all = || (0..size).map(|rank| (rank, of(rank), lens(rank)));
    let shapes: Vec<Shape> = all().map(|(_, of, _)| of).collect();
    let inputs: Vec<Vec<u8>> = all().map(|(rank, _, lens)| own(rank, lens.0)).collect();
    let outputs: Vec<Vec<u8>> = all()
        .map(|(.., lens)| vec![0x55; lens.1 as usize])
        .collect();
    let mut expected = outputs.clone();
    // The expected outputs follow from the shapes alone, without a schedule.
    for (rank, moves, _) in all() {
        for from in 0..size {
            let take = moves.takes(rank, from);
            let (at, len) = of(from).gives(from, rank);
            assert!(take.len == 0 || len == take.len, "{moves:?}");
            let given = &inputs[from as usize][at as usize..][..take.len as usize];
            expected[rank as usize][take.at as usize..][..given.len()].copy_from_slice(given);
        }
    }
    let found = run(
        link,
        &shapes,
        inputs,
        outputs,
        (|_, _| unreachable!(), seed),
    );
    assert!(
        found == expected,
        "wrong bytes: {:?}, {size} members",
        of(0)
    );
}

/// Composes maps `x -> a x + b`: associative, but not commutative.
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

fn check_combine((link, seed): (Link, u64), size: u32, combine: Combine, elements: Elements) {
    let (bytes, commutes) = (elements.bytes, elements.commute);
    let combiner: Combiner = if commutes { add } else { compose };
    let total = if combine == Combine::ReduceScatter {
        bytes * u64::from(size)
    } else {
        bytes
    };
    let inputs: Vec<Vec<u8>> = (0..size).map(|rank| own(rank, total)).collect();
    let outputs = vec![vec![0x55; bytes as usize]; size as usize];
    // The expected results are folded strictly in the order of the ranks.
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
    let shapes = vec![Shape::Combines(combine, elements); size as usize];
    let found = run(link, &shapes, inputs.clone(), outputs, (combiner, seed));
    for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let right = expected.as_ref().is_none_or(|expected| expected == found);
        assert!(
            right,
            "{combine:?} of {bytes} bytes: rank {rank} of {size} is wrong"
        );
    }
}

/// Returns blocks of these lengths, with gaps between them.
fn listed(counts: &[u64], gap: u64) -> Blocks {
    let mut next = 0;
    let block = |len: &u64| {
        next += len + gap;
        (next - len - gap, *len)
    };
    Blocks::Listed(counts.iter().map(block).collect())
}

/// Generates small and large lengths, also uneven ones.
fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1u64..40, 200u64..300, 33_000u64..70_000]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn bytes_go_where_they_belong(
        size in 2u32..14, root in 0u32..14, bytes in lengths(), kind in 0..5, link in links(), seed: u64
    ) {
        let (root, all) = (root % size, bytes * u64::from(size));
        let equal = || Blocks::Equal(bytes);
        match kind {
            0 => check_moves((link, seed), size, |_| Shape::Broadcast { root, bytes }, |_| (bytes, bytes)),
            1 => {
                let moves = |_| Shape::Scatter { root, from: equal(), mine: bytes };
                check_moves((link, seed), size, moves, |_| (all, bytes));
            }
            2 => {
                let moves = |_| Shape::Gather { root, into: equal(), mine: bytes };
                check_moves((link, seed), size, moves, |_| (bytes, all));
            }
            3 => {
                let moves = |_| Shape::AllGather { blocks: equal() };
                check_moves((link, seed), size, moves, |_| (bytes, all));
            }
            _ => {
                let moves = |_| Shape::AllToAll { from: equal(), into: equal() };
                check_moves((link, seed), size, moves, |_| (all, all));
            }
        }
    }

    #[test]
    fn blocks_may_differ(
        counts in proptest::collection::vec(prop_oneof![Just(0u64), 0u64..50, 100u64..40_000], 2..9),
        root in 0u32..9, shift in 0u64..5, gap in 0u64..3, kind in 0..4, link in links(), seed: u64
    ) {
        let size = counts.len() as u32;
        let listed = || super::simulate::listed(&counts, gap);
        let (root, all) = (root % size, counts.iter().map(|count| count + gap).sum::<u64>());
        let known = |rank| if rank == root { listed() } else { Blocks::Listed(Vec::new()) };
        let mine = |rank: u32| counts[rank as usize];
        match kind {
            0 => {
                let moves = |rank| Shape::Scatter { root, from: known(rank), mine: mine(rank) };
                check_moves((link, seed), size, moves, |rank| (all, mine(rank)));
            }
            1 => {
                let moves = |rank| Shape::Gather { root, into: known(rank), mine: mine(rank) };
                check_moves((link, seed), size, moves, |rank| (mine(rank), all));
            }
            2 => {
                let moves = |_| Shape::AllGather { blocks: listed() };
                check_moves((link, seed), size, moves, |rank| (mine(rank), all));
            }
            _ => {
                // Both members know the matrix of lengths from `i` to `j`.
                let len = |i: u32, j: u32| counts[((i + j) % size) as usize] * (shift + u64::from(i)) % 999;
                let blocks = |counts: &[u64]| super::simulate::listed(counts, gap);
                let moves = |rank| {
                    let given: Vec<u64> = (0..size).map(|to| len(rank, to)).collect();
                    let received: Vec<u64> = (0..size).map(|from| len(from, rank)).collect();
                    Shape::AllToAll { from: blocks(&given), into: blocks(&received) }
                };
                let lens = |rank| {
                    let given = (0..size).map(|to| len(rank, to) + gap).sum();
                    (given, (0..size).map(|from| len(from, rank) + gap).sum())
                };
                check_moves((link, seed), size, moves, lens);
            }
        }
    }

    #[test]
    fn ranks_are_combined_in_order(
        size in 2u32..14, root in 0u32..14, count in lengths(), kind in 0..5, commute: bool, link in links(),
        seed: u64
    ) {
        let combine = match kind {
            0 => Combine::Reduce { root: root % size },
            1 => Combine::AllReduce,
            2 => Combine::ReduceScatter,
            3 => Combine::Scan,
            _ => Combine::ExScan,
        };
        // On flags, a call has more bytes than a slot holds.
        let count = if matches!(link, Link::Flags { .. }) { count.max(1) } else { count };
        let elements = Elements { bytes: count * 2, size: 2, commute };
        check_combine((link, seed), size, combine, elements);
    }
}

#[test]
fn a_barrier_is_one() {
    for size in 1..20 {
        let shapes = vec![Shape::Barrier; size as usize];
        let nothing = || vec![Vec::new(); size as usize];
        let never: Combiner = |_, _| unreachable!();
        run(Link::Messages, &shapes, nothing(), nothing(), (never, 7));
        let schedule = |rank| messages(&shapes[0], rank, size);
        let schedules: Vec<Schedule> = (0..size).map(schedule).collect();
        // Each member hears of every other, directly or indirectly.
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

/// Checks that sends, receives and copies stay inside their memory, and that both sides of a
/// message agree on its length, also for lengths beyond any real memory.
fn check_lengths(schedules: &[Schedule], memories: impl Fn(u32) -> (u64, u64)) {
    let mut sent: HashMap<(u32, u32), VecDeque<u64>> = HashMap::new();
    let inside = |rank: u32, schedule: &Schedule, span: Span| {
        let (input, output) = memories(rank);
        let len = match span.memory {
            Memory::Input => input,
            Memory::Output => output,
            Memory::Scratch(number) => schedule.scratch[number as usize],
            other => panic!("{other:?} in a schedule of messages"),
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
                Step::Copy { from, into } => {
                    inside(rank, schedule, from);
                    inside(rank, schedule, into);
                    assert_eq!(from.len, into.len);
                }
                Step::Combine { first, terms } => {
                    let terms = schedule.terms[first..first + terms].iter();
                    let spans = terms.map(|(Term::Take(span) | Term::Give(span))| *span);
                    let spans: Vec<Span> = spans.collect();
                    assert!(spans.iter().all(|span| span.len == spans[0].len));
                    spans.iter().for_each(|span| inside(rank, schedule, *span));
                }
                Step::Fence | Step::Meet { .. } => {}
            }
        }
    }
    for (rank, schedule) in (0..).zip(schedules) {
        for step in &schedule.steps {
            if let Step::Recv { from, into } = step {
                // Messages of a pair match in order.
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
        let check = |of: Shape, lens: &dyn Fn(u32) -> (u64, u64)| {
            let schedules = (0..size).map(|rank| messages(&of, rank, size));
            check_lengths(&schedules.collect::<Vec<_>>(), lens);
        };
        check(Shape::Broadcast { root, bytes }, &|_| (bytes, bytes));
        let mine = bytes;
        check(
            Shape::Scatter {
                root,
                from: equal(),
                mine,
            },
            &|_| (all, bytes),
        );
        check(
            Shape::Gather {
                root,
                into: equal(),
                mine,
            },
            &|_| (bytes, all),
        );
        check(Shape::AllGather { blocks: equal() }, &|_| (bytes, all));
        let (from, into) = (equal(), equal());
        check(Shape::AllToAll { from, into }, &|_| (all, all));
        let combine = [
            Combine::Reduce { root },
            Combine::AllReduce,
            Combine::Scan,
            Combine::ExScan,
            Combine::ReduceScatter,
        ];
        for combine in combine {
            let elements = Elements {
                bytes,
                size: 8,
                commute: true,
            };
            let of = |rank| messages(&Shape::Combines(combine, elements), rank, size);
            // Here `bytes` is the length of a block, and a member gives one for each member.
            let given = if combine == Combine::ReduceScatter {
                all
            } else {
                bytes
            };
            check_lengths(&(0..size).map(of).collect::<Vec<_>>(), |_| (given, bytes));
        }
    }
}

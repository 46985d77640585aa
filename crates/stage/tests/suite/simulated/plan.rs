//! What a seed stands for: who takes part, what they write, what goes wrong.

use fastrand::Rng;
use samite_stage::Dtype;
use samite_stage::Region;
use samite_stage::protocol::{
    Block, Expected, Interest, Layout, Limits, Policy, Reader, Retain, Start, Step, StreamConfig,
    Unread, Variable,
};
use samite_stage::space::{Dims, Grid};

/// What is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Victim {
    /// A writer rank; whether it is started again.
    Writer(u32, bool),
    /// A rank of a group; whether it is started again.
    Reader(usize, u32, bool),
    /// A subscriber; whether it is started again.
    Watcher(usize, bool),
    /// Block store number ...; the first is never killed, as it lives with the coordinator.
    BlockStore(usize),
}

/// A reader program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) reader: Reader,
    /// When it starts.
    pub(crate) from: u64,
    /// Longest time that it holds a step.
    pub(crate) slow: u64,
    /// It also asks for steps by number.
    pub(crate) by_number: bool,
}

/// A subscription.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) interest: Interest,
    pub(crate) start: Start,
    pub(crate) most: u32,
    /// When it starts.
    pub(crate) from: u64,
    /// Longest time between two questions.
    pub(crate) slow: u64,
}

/// A whole run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) writers: u32,
    pub(crate) steps: Step,
    pub(crate) block_stores: usize,
    pub(crate) memory: u64,
    /// Most buffers in a block store's memory.
    pub(crate) buffers: u64,
    pub(crate) disk: u64,
    pub(crate) replicas: usize,
    pub(crate) config: StreamConfig,
    pub(crate) programs: Vec<Program>,
    pub(crate) watches: Vec<Subscription>,
    /// Longest way of a message.
    pub(crate) delay: u64,
    pub(crate) timeout: u64,
    pub(crate) kills: Vec<(u64, Victim)>,
    /// How often (of 256) a block store has no memory, or a spill fails.
    pub(crate) mishaps: u8,
    /// How long a block store says nothing, now and then, when it has sealed a buffer.
    pub(crate) silence: u64,
    /// How often (of 256) a writer keeps what it commits.
    pub(crate) keeps: u8,
}

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(mix(seed));
        let writers = rng.u32(1..4);
        let mut plan = Plan {
            seed,
            writers,
            steps: rng.u64(3..16),
            block_stores: rng.usize(1..4),
            memory: 0,
            buffers: u64::MAX,
            disk: 0,
            replicas: rng.usize(1..3),
            config: StreamConfig {
                limits: None,
                memory: None,
                retain: Retain {
                    steps: rng.u64(0..3),
                    bytes: if rng.bool() { 0 } else { rng.u64(0..5000) },
                },
                precious_first: rng.u8(..) < 60,
                unread: if rng.u8(..) < 40 {
                    Unread::Discard
                } else {
                    Unread::Block
                },
                lease: rng.u64(100..3000),
                linger: rng.u64(0..3000),
                expected: Vec::new(),
            },
            programs: Vec::new(),
            watches: Vec::new(),
            delay: rng.u64(1..20),
            timeout: if rng.bool() {
                60_000
            } else {
                rng.u64(30..3000)
            },
            kills: Vec::new(),
            mishaps: if rng.u8(..) < 60 { 20 } else { 0 },
            silence: 0,
            keeps: 0,
        };
        let largest = (0..plan.steps)
            .map(|step| plan.step_bytes(step))
            .max()
            .unwrap_or(0);
        plan.memory = largest * rng.u64(8..60) / 10;
        plan.disk = if rng.bool() {
            largest * rng.u64(0..20)
        } else {
            0
        };
        if rng.u8(..) < 50 {
            plan.config.memory = Some(largest * rng.u64(10..40) / 10 * plan.replicas as u64);
        }
        for group in 0..rng.usize(1..4) {
            let program = plan.program(&mut rng, group, largest);
            plan.programs.push(program);
        }
        plan.add_kills(&mut rng);
        plan.add_watches(&mut rng);
        if rng.u8(..) < 40 {
            // Longer than some leases, so that those end before what was committed is sealed.
            plan.silence = rng.u64(100..6000);
        }
        if rng.u8(..) < 40 {
            // A rank has two buffers at most at one block store, and as many of a step that it
            // keeps. They are what is short then, not bytes.
            plan.buffers = 2 * u64::from(plan.writers) * rng.u64(1..3);
            plan.memory *= 10;
        }
        let mut victims = plan.kills.iter();
        // A stream that is begun anew after its lease waits for readers that have read the old one
        // to its end.
        let anew = victims.any(|(_, victim)| matches!(victim, Victim::Writer(..)));
        if !anew && rng.bool() {
            // Who dies before it has come, or does not find its first step, is waited for as long
            // as writers have timeout.
            let dies = |group: usize| {
                let mut victims = plan.kills.iter();
                victims.any(|(_, victim)| matches!(victim, Victim::Reader(of, ..) if *of == group))
            };
            let programs = plan.programs.iter().enumerate();
            let come = programs.filter(|(group, program)| {
                program.reader.start == Start::Earliest && !dies(*group)
            });
            let expected = come.map(|(_, program)| Expected {
                group: program.reader.group.clone(),
                policy: program.reader.policy,
                limits: program.reader.limits,
            });
            plan.config.expected = expected.collect();
        }
        if rng.bool() {
            plan.keeps = rng.u8(..);
        }
        plan
    }

    fn add_watches(&mut self, rng: &mut Rng) {
        for number in 0..rng.usize(0..4) {
            let (variable, dims) = match rng.u8(0..8) {
                0..=4 => ("u", 2),
                5..=6 => ("n", 1),
                _ => ("nothing", 1),
            };
            let dims = if rng.u8(..) < 10 { 3 } else { dims };
            let lower: Vec<u64> = (0..dims).map(|_| rng.u64(0..7)).collect();
            let count: Vec<u64> = (0..dims).map(|_| rng.u64(1..4)).collect();
            let region = Region::at(&lower, &count).unwrap();
            let subscription = Subscription {
                interest: Interest {
                    variable: variable.into(),
                    region: (rng.u8(0..4) > 0).then_some(region),
                },
                start: match rng.u8(0..3) {
                    0 => Start::Earliest,
                    1 => Start::Latest,
                    _ => Start::Step(rng.u64(0..5)),
                },
                most: rng.u32(1..5),
                from: if rng.bool() { 0 } else { rng.u64(0..1500) },
                slow: if rng.bool() { 0 } else { rng.u64(1..300) },
            };
            self.watches.push(subscription);
            if rng.u8(..) < 100 {
                let victim = Victim::Watcher(number, rng.bool());
                self.kills.push((rng.u64(0..1500), victim));
            }
        }
    }

    fn program(&self, rng: &mut Rng, group: usize, largest: u64) -> Program {
        let policy = match rng.u8(0..8) {
            0..=2 => Policy::Block,
            3 => Policy::DropOldest,
            4 => Policy::DropNewest,
            5 => Policy::Latest,
            6 => Policy::Every(rng.u64(1..4)),
            _ => Policy::Spill,
        };
        let limits = Limits {
            steps: rng.u64(1..5),
            bytes: largest * rng.u64(1..5),
        };
        let start = match rng.u8(0..6) {
            0 => Start::Latest,
            1 => Start::Step(rng.u64(0..4)),
            _ => Start::Earliest,
        };
        Program {
            reader: Reader {
                group: format!("group {group}"),
                rank: 0,
                size: rng.u32(1..4),
                start,
                policy,
                limits: rng.bool().then_some(limits),
                lease: rng.u64(100..2000),
                only: None,
            },
            from: if rng.bool() { 0 } else { rng.u64(0..1500) },
            slow: if rng.bool() { 0 } else { rng.u64(1..120) },
            by_number: rng.u8(..) < 80,
        }
    }

    fn add_kills(&mut self, rng: &mut Rng) {
        for _ in 0..rng.usize(0..5) {
            let when = rng.u64(0..1500);
            let again = rng.u8(..) < 190;
            let victim = match rng.u8(0..5) {
                0 | 1 => Victim::Writer(rng.u32(..self.writers), again),
                2 | 3 => {
                    let group = rng.usize(..self.programs.len());
                    Victim::Reader(group, rng.u32(..self.programs[group].reader.size), again)
                }
                _ if self.block_stores > 1 => Victim::BlockStore(rng.usize(1..self.block_stores)),
                _ => continue,
            };
            self.kills.push((when, victim));
        }
    }

    /// What a rank writes to a step, with all blocks in slot 0 or 1. The same whenever it is asked.
    pub(crate) fn layout(&self, step: Step, rank: u32) -> Layout {
        let mut rng = Rng::with_seed(mix(self.seed ^ mix(step / 3)));
        let shape = [rng.u64(2..12), rng.u64(2..12)];
        let dtype = Dtype::ALL[rng.usize(..Dtype::ALL.len())];
        let grid = Grid::cubic(&shape, u64::from(self.writers)).unwrap();
        let two = rng.bool();
        let u = Variable {
            name: "u".into(),
            dtype,
            shape: Dims::from_slice(&shape),
            attributes: Vec::new(),
            blocks: vec![Block {
                region: grid.part(u64::from(rank)),
                slot: 0,
            }],
        };
        let counts: Vec<u64> = (0..self.writers).map(|_| rng.u64(0..30)).collect();
        let before: u64 = counts[..rank as usize].iter().sum();
        let n = Variable {
            name: "n".into(),
            dtype: Dtype::I16,
            shape: Dims::from_slice(&[counts.iter().sum()]),
            attributes: Vec::new(),
            blocks: vec![Block {
                region: Region::at(&[before], &[counts[rank as usize]]).unwrap(),
                slot: u32::from(two),
            }],
        };
        Layout {
            variables: vec![u, n],
        }
    }

    fn step_bytes(&self, step: Step) -> u64 {
        let layouts = (0..self.writers).map(|rank| self.layout(step, rank));
        layouts
            .map(|layout| layout.packing().unwrap().slots.iter().sum::<u64>())
            .sum()
    }

    /// The bytes of a block: every byte follows from the variable, the step and the place in the
    /// whole array.
    pub(crate) fn content(&self, variable: &Variable, step: Step, region: &Region) -> Vec<u8> {
        let name = u64::from(variable.name.as_bytes()[0]);
        let element = variable.dtype.bytes();
        let mut bytes = Vec::new();
        let mut point: Vec<u64> = region.lower().to_vec();
        for _ in 0..region.volume().unwrap() {
            let place = point.iter().fold(0, |place, &x| place * 1000 + x);
            let word = mix(self.seed ^ mix(name << 32 | step) ^ mix(place).rotate_left(7));
            bytes.extend_from_slice(&word.to_le_bytes()[..element as usize]);
            for dim in (0..point.len()).rev() {
                point[dim] += 1;
                if point[dim] < region.upper()[dim] {
                    break;
                }
                point[dim] = region.lower()[dim];
            }
        }
        bytes
    }
}

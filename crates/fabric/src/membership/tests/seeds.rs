//! Random runs of agents and their network. The seed determines the run; a failure prints it.

use super::super::Action;
use super::config;
use super::world::{Step, World};
use fastrand::Rng;

const HOSTS: u8 = 4;
const SLOTS: u32 = 2;
const STEPS: usize = 200;
const SEEDS: u64 = 3000;

/// Counts of what the seeds made happen; the test checks that everything does happen.
#[derive(Debug, Default)]
struct Counts {
    fenced: u64,
    left: u64,
    members: u64,
    back: u64,
    without_head: u64,
}

const FAULTS: usize = 10;

/// How likely each fault is under this seed: never, rarely or often, so that no fault hides behind
/// others.
fn weights(random: &mut Rng) -> [u32; FAULTS] {
    std::array::from_fn(|_| [0, 1, 5][random.usize(..3)])
}

fn fault(world: &World, weights: &[u32; FAULTS], random: &mut Rng) -> Step {
    let processes: Vec<u64> = world.processes.keys().copied().collect();
    let process = processes.get(random.usize(..processes.len().max(1)));
    let process = process.copied().unwrap_or_default();
    let host = random.u8(..HOSTS);
    let others = 1 + random.u8(..HOSTS - 1);
    let mut turn = random.u32(..weights.iter().sum::<u32>().max(1));
    let chosen = weights.iter().position(|weight| {
        let is_it = turn < *weight;
        turn = turn.saturating_sub(*weight);
        is_it
    });
    match chosen {
        Some(0) => {
            let connections = world.connections();
            let connection = connections.get(random.usize(..connections.len().max(1)));
            Step::Break {
                connection: connection.copied().unwrap_or_default(),
                keeps: [random.usize(..4), random.usize(..4)],
            }
        }
        Some(1) => Step::Kill {
            process: world.on_host(others).unwrap_or_default(),
        },
        Some(2) if random.u32(..4) == 0 => Step::Kill {
            process: world.on_host(0).unwrap_or_default(),
        },
        Some(3 | 4) => Step::Stop { process },
        Some(5) => Step::Continue { process },
        Some(6) => Step::Cut {
            hosts: (host, (host + others) % HOSTS),
        },
        Some(7) => Step::Heal,
        Some(8) if process != world.on_host(0).unwrap_or_default() => Step::Leave { process },
        Some(9) if random.u32(..8) == 0 => Step::Leave { process },
        _ => Step::Start { host },
    }
}

fn chosen(world: &World, weights: &[u32; FAULTS], random: &mut Rng) -> Step {
    let processes: Vec<u64> = world.processes.keys().copied().collect();
    let process = processes.get(random.usize(..processes.len().max(1)));
    let process = process.copied().unwrap_or_default();
    let steps = world.deliveries();
    match random.u32(..100) {
        0..60 if !steps.is_empty() => steps[random.usize(..steps.len())].clone(),
        60..85 => Step::Turn {
            process,
            slot: random.u32(..SLOTS),
            at_once: random.bool(),
        },
        85..92 => Step::Start {
            host: random.u8(..HOSTS),
        },
        92..100 => fault(world, weights, random),
        _ => Step::Wait(random.u64(1..20)),
    }
}

fn run(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    let mut world = World::new(config());
    world.step(&Step::Start { host: 0 });
    let weights = weights(&mut random);
    for _ in 0..STEPS {
        let step = chosen(&world, &weights, &mut random);
        let is_wait = matches!(step, Step::Wait(_));
        world.step(&step);
        if is_wait && random.u32(..3) > 0 {
            for process in world.running() {
                world.step(&Step::Tick { process });
            }
        }
        world.checked()?;
    }
    world.settle(|len| random.usize(..len));
    world.checked()?;
    world.check_cut()?;
    world.step(&Step::Heal);
    world.settle(|len| random.usize(..len));
    world.checked()?;
    world.check_rest(|_| true)?;
    let rest = world.at_rest();
    world.settle(|len| random.usize(..len));
    if world.at_rest() != rest {
        return Err(format!(
            "no rest: {rest:?}, and later {:?}",
            world.at_rest()
        ));
    }
    let members = world.processes.values();
    counts.members += members.filter(|p| p.machine.life().is_some()).count() as u64;
    counts.without_head += u64::from(world.head().is_none());
    for (life, how) in &world.ended {
        counts.back += u64::from(life.incarnation > 0);
        match how {
            Action::Fenced => counts.fenced += 1,
            _ => counts.left += 1,
        }
    }
    world.checked()
}

#[test]
fn whatever_happens_the_living_agree() {
    let mut counts = Counts::default();
    let only = std::env::var("SAMITE_SEED").ok();
    let only: Option<u64> = only.and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..SEEDS, |seed| seed..seed + 1) {
        if let Err(rule) = run(seed, &mut counts) {
            panic!("seed {seed} (SAMITE_SEED={seed} repeats it): {rule}");
        }
    }
    // A run in which nothing happens shows nothing.
    let Counts {
        fenced,
        left,
        members,
        back,
        without_head,
    } = counts;
    let least = fenced.min(left).min(back).min(without_head).min(members);
    assert!(only.is_some() || least > SEEDS / 20, "{counts:?}");
}

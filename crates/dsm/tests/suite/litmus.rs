//! The litmus programs of memory models, with chunks as variables, by processes.
//!
//! Each round of a program has variables of its own, which begin as 0: what the round before left.
//! A batch of rounds runs without any synchronization in between; then the processes meet, and each
//! tells the others what it has read. The outcome of a round is what all have read, and what the
//! variables are in the end.
//!
//! | how variables are read | what must not happen |
//! |---|---|
//! | read guards | all that sequential consistency forbids |
//! | events as flags, and read guards after them | the same; but an event may come late, so the absence of one proves nothing |
//! | snapshots | what the coherence of one chunk forbids; the rest is only counted |

use crate::{runs, servers};
use samite_dsm::{Chunk, Dsm, Error, Policy, Subscription, Version};
use samite_fabric::Fabric;
use samite_testkit::{Outcome, check, same};
use std::collections::BTreeMap;
use std::time::Duration;

/// Rounds of a batch.
const ROUNDS: usize = 32;

/// Batches with one server, and with several.
const BATCHES: u64 = 20;
const BATCHES_OF_SEVERAL: u64 = 8;

/// The units: as many as the largest program has.
const UNITS: u32 = 4;

/// A variable.
type Var = usize;

const X: Var = 0;
const Y: Var = 1;

/// A step of a process.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Write a value.
    W(Var, u64),
    /// Read.
    R(Var),
    /// Read a flag. With events: wait until it was written in this round.
    F(Var),
    /// Read a flag. With events: look whether it was written in this round.
    P(Var),
}

use Step::{F, P, R, W};

/// How variables are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Guards,
    Events,
    Snapshots,
}

/// What was read, in the order of processes and their steps, and the variables in the end.
type Seen<'a> = (&'a [u64], &'a [u64]);

struct Program {
    name: &'static str,
    vars: usize,
    threads: &'static [&'static [Step]],
    /// Whether only one chunk is concerned: then snapshots, too, must not show it.
    is_of_one: bool,
    /// Whether it takes the absence of an event as a proof.
    needs_absence: bool,
    forbidden: fn(Seen<'_>) -> bool,
}

const PROGRAMS: [Program; 11] = [
    Program {
        name: "CoRR",
        vars: 1,
        threads: &[&[W(X, 1)], &[F(X), R(X)], &[R(X), R(X)]],
        is_of_one: true,
        needs_absence: false,
        forbidden: |(read, _)| read[1] < read[0] || read[3] < read[2],
    },
    Program {
        name: "CoWW",
        vars: 1,
        threads: &[&[W(X, 1), W(X, 2)], &[P(X), R(X)], &[R(X), R(X)]],
        is_of_one: true,
        needs_absence: false,
        forbidden: |(read, end)| end[0] != 2 || read[1] < read[0] || read[3] < read[2],
    },
    Program {
        name: "CoRW",
        vars: 1,
        threads: &[&[P(X), W(X, 1)], &[W(X, 2)], &[R(X), W(X, 3)]],
        is_of_one: true,
        needs_absence: false,
        // What was read before a write is older than it.
        forbidden: |(read, end)| {
            let later = end[0];
            read[0] == 1 || read[1] == 3 || read[0] == later || read[1] == later
        },
    },
    Program {
        name: "CoWR",
        vars: 1,
        threads: &[&[W(X, 1), R(X)], &[W(X, 2), R(X)], &[P(X), R(X)]],
        is_of_one: true,
        needs_absence: false,
        // A process that reads the other's value after its own has seen it overwritten.
        forbidden: |(read, end)| {
            let lost = read[0] == 0 || read[1] == 0 || read[2] != 0 && read[3] == 0;
            let back = read[2] == end[0] && read[3] != end[0];
            lost || back || read[0] == 2 && end[0] == 1 || read[1] == 1 && end[0] == 2
        },
    },
    Program {
        name: "MP",
        vars: 2,
        threads: &[&[W(X, 1), W(Y, 1)], &[F(Y), R(X)], &[P(Y), R(X)]],
        is_of_one: false,
        needs_absence: false,
        forbidden: |(read, _)| read[..2] == [1, 0] || read[2..] == [1, 0],
    },
    Program {
        name: "SB",
        vars: 2,
        threads: &[&[W(X, 1), R(Y)], &[W(Y, 1), R(X)]],
        is_of_one: false,
        needs_absence: false,
        forbidden: |(read, _)| read == [0, 0],
    },
    Program {
        name: "SB with flags",
        vars: 2,
        threads: &[&[W(X, 1), P(Y)], &[W(Y, 1), P(X)]],
        is_of_one: false,
        needs_absence: true,
        forbidden: |(read, _)| read == [0, 0],
    },
    Program {
        name: "LB",
        vars: 2,
        threads: &[&[P(X), W(Y, 1)], &[P(Y), W(X, 1)]],
        is_of_one: false,
        needs_absence: false,
        forbidden: |(read, _)| read == [1, 1],
    },
    Program {
        name: "WRC",
        vars: 2,
        threads: &[&[W(X, 1)], &[F(X), W(Y, 1)], &[F(Y), R(X)]],
        is_of_one: false,
        needs_absence: false,
        forbidden: |(read, _)| read == [1, 1, 0],
    },
    Program {
        name: "IRIW",
        vars: 2,
        threads: &[&[W(X, 1)], &[W(Y, 1)], &[F(X), R(Y)], &[F(Y), R(X)]],
        is_of_one: false,
        needs_absence: false,
        forbidden: |(read, _)| read == [1, 0, 1, 0],
    },
    Program {
        name: "2+2W",
        vars: 2,
        threads: &[&[W(X, 1), W(Y, 2)], &[W(Y, 1), W(X, 2)], &[P(X), P(Y)]],
        is_of_one: false,
        needs_absence: false,
        forbidden: |(_, end)| end == [1, 1],
    },
];

impl Program {
    fn must_not_be(&self, how: How) -> bool {
        match how {
            How::Guards => true,
            How::Events => !self.needs_absence,
            How::Snapshots => self.is_of_one,
        }
    }

    /// The number of writes of a variable in a round.
    fn writes(&self, var: Var) -> u64 {
        let steps = self.threads.iter().flat_map(|steps| steps.iter());
        let writes = steps.filter(|step| matches!(step, W(of, _) if *of == var));
        writes.count() as u64
    }
}

/// A variable of a round, as one process sees it. Its content is many times the same word: the
/// number of the batch and the value.
struct Variable {
    chunk: Chunk<u64>,
    events: Option<Subscription<u64>>,
}

fn word(batch: u64, value: u64) -> u64 {
    batch << 8 | value
}

/// Returns the value of a content in a batch: what an earlier batch has left is 0.
fn value(batch: u64, content: &[u64]) -> Outcome<u64> {
    let first = content[0];
    check!(content.iter().all(|word| *word == first), "a mixed version");
    check!(first >> 8 <= batch, "{first} in batch {batch}");
    Ok(match first >> 8 == batch {
        true => first & 0xff,
        false => 0,
    })
}

impl Variable {
    fn write(&self, batch: u64, value: u64) -> Outcome {
        let word = word(batch, value);
        // Both ways to write.
        if value % 2 == 1 {
            self.chunk
                .put(&vec![word; self.chunk.len() as usize], word)?;
            return Ok(());
        }
        let mut guard = self.chunk.write()?;
        guard.fill(word);
        guard.commit(word)?;
        Ok(())
    }

    fn read(&self, batch: u64, how: How) -> Outcome<u64> {
        match how {
            How::Snapshots => value(batch, &self.chunk.snapshot()?),
            How::Guards | How::Events => value(batch, &self.chunk.read()?),
        }
    }

    /// Returns the value of the last event that has come in this batch. Waits for the first one, if
    /// `waits`.
    fn flag(&mut self, batch: u64, how: How, waits: bool) -> Outcome<u64> {
        let Some(events) = &mut self.events else {
            return self.read(batch, how);
        };
        let mut last = 0;
        loop {
            let event = match waits && last == 0 {
                true => events.next_event(),
                false => events.next_within(Duration::ZERO),
            };
            match event {
                Ok(event) if event.tag >> 8 == batch => last = event.tag & 0xff,
                Ok(_) => {}
                Err(Error::NoEvent { .. }) if !waits || last > 0 => return Ok(last),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes the events of all commits of the batches so far.
    fn drain(&mut self, commits: u64) -> Outcome {
        if let Some(events) = &mut self.events {
            while events.after().0 < commits {
                events.next_event()?;
            }
        }
        Ok(())
    }
}

/// Runs a program; prints how often each outcome was seen.
fn run(program: &Program, dsm: &Dsm, unit: u32, how: How, batches: u64) -> Outcome {
    let steps = program.threads.get(unit as usize).copied().unwrap_or(&[]);
    let is_flag = |var: Var| {
        let flags = steps
            .iter()
            .any(|step| matches!(step, F(of) | P(of) if *of == var));
        flags && how == How::Events
    };
    let mut rounds: Vec<Vec<Variable>> = Vec::new();
    for round in 0..ROUNDS {
        let variable = |var: Var| -> Outcome<Variable> {
            // Some travel inside messages.
            let len = if round % 2 == 0 { 4 } else { 600 };
            let name = format!("{} {round} {var}", program.name);
            let chunk = dsm.alloc::<u64>(&name, len)?;
            let events = match is_flag(var) {
                true => Some(chunk.subscribe(Policy::Every, Version::default())?),
                false => None,
            };
            Ok(Variable { chunk, events })
        };
        rounds.push((0..program.vars).map(variable).collect::<Outcome<_>>()?);
    }
    let mut outcomes: BTreeMap<(Vec<u64>, Vec<u64>), u64> = BTreeMap::new();
    let mut random = u64::from(unit) + 1;
    dsm.barrier("begin", UNITS.into())?;
    for batch in 1..=batches {
        let mut reads: Vec<u64> = Vec::new();
        for variables in &mut rounds {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (0..random >> 33 & 0x7ff).for_each(|_| std::hint::spin_loop());
            for step in steps {
                match *step {
                    W(var, value) => variables[var].write(batch, value)?,
                    R(var) => reads.push(variables[var].read(batch, how)?),
                    F(var) => reads.push(variables[var].flag(batch, how, true)?),
                    P(var) => reads.push(variables[var].flag(batch, how, false)?),
                }
            }
        }
        let mut all =
            dsm.rendezvous("read", UNITS.into(), &[&[unit.into()], &reads[..]].concat())?;
        all.sort_by_key(|(_, reads)| reads[0]);
        for variables in &mut rounds {
            for (var, variable) in variables.iter_mut().enumerate() {
                variable.drain(program.writes(var) * batch)?;
            }
        }
        // All have read the same, and one checks it.
        let checked = if unit == 0 { &rounds[..] } else { &[] };
        for (round, variables) in checked.iter().enumerate() {
            let of_round = all.iter().flat_map(|(_, reads)| {
                let reads = &reads[1..];
                let each = reads.len() / ROUNDS;
                reads[round * each..(round + 1) * each].iter().copied()
            });
            let read: Vec<u64> = of_round.collect();
            let mut end = Vec::new();
            for variable in variables {
                end.push(variable.read(batch, how)?);
            }
            let is_forbidden = (program.forbidden)((&read, &end));
            check!(
                !is_forbidden || !program.must_not_be(how),
                "{} with {how:?}: read {read:?}, in the end {end:?}",
                program.name
            );
            *outcomes.entry((read, end)).or_default() += 1;
        }
        dsm.barrier("checked", UNITS.into())?;
    }
    for variables in &rounds {
        for (var, variable) in variables.iter().enumerate() {
            let commits = program.writes(var) * batches;
            same!(variable.chunk.read()?.version(), Version(commits));
        }
    }
    if unit == 0 {
        for ((read, end), count) in &outcomes {
            let weak = if (program.forbidden)((read, end)) {
                " (weak)"
            } else {
                ""
            };
            println!(
                "{} with {how:?}: {read:?} {end:?}: {count}{weak}",
                program.name
            );
        }
    }
    Ok(())
}

fn all(dsm: &Dsm, unit: u32, how: How, batches: u64) -> Outcome {
    let mut programs = PROGRAMS.iter();
    programs.try_for_each(|program| run(program, dsm, unit, how, batches))
}

fn one_server(fabric: &Fabric, unit: u32, how: How) -> Outcome {
    all(&Dsm::join(fabric)?, unit, how, BATCHES)
}

fn several_servers(dsm: &Dsm, unit: u32, how: How) -> Outcome {
    all(dsm, unit, how, BATCHES_OF_SEVERAL)
}

everywhere!(
    guards,
    runs(UNITS, |fabric, unit| one_server(fabric, unit, How::Guards))
);
everywhere!(
    events,
    runs(UNITS, |fabric, unit| one_server(fabric, unit, How::Events))
);
everywhere!(
    snapshots,
    runs(UNITS, |fabric, unit| one_server(
        fabric,
        unit,
        How::Snapshots
    ))
);

// The variables of a round have any homes, and the clients several servers.
everywhere!(
    guards_of_several_servers,
    servers::runs(|dsm, unit| several_servers(dsm, unit, How::Guards))
);
everywhere!(
    events_of_several_servers,
    servers::runs(|dsm, unit| several_servers(dsm, unit, How::Events))
);

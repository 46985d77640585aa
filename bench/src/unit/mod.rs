//! Our contestant: a unit of Samite that runs the cases on command.
//!
//! | file | commands |
//! |---|---|
//! | `message` | messages, and the barrier of the fabric |
//! | `threads` | several threads |
//! | `onesided`, `collectives`, `lock` | global memory |
//! | `gups` | random updates of it |
//! | `staging/` | steps from a writer to a reader, and steps in files |

mod collectives;
mod gups;
mod lock;
mod message;
mod onesided;
mod staging;
mod threads;

use crate::control::{Command, Control, pin};
use anyhow::{Result, ensure};
use samite::pgas::{Pgas, Team};
use samite::{Fabric, PeerId};
use std::cell::{Cell, OnceCell, RefCell};
use std::path::Path;
use std::time::Instant;

/// Whole programs to measure, which are defined above this crate.
#[derive(Clone, Copy, Debug)]
pub struct Programs {
    /// Sorts the integers of a class of NPB IS, collectively. Returns the seconds of the ten
    /// iterations, `None` for an unknown class.
    pub is: fn(&Pgas, &str) -> Result<Option<f64>>,
    /// Returns true if the workflow `lammps-msd` can run: LAMMPS may be missing.
    pub has_lammps: fn() -> bool,
}

/// Runs a rank until it is told to quit.
pub fn run_unit(folder: &Path, programs: Programs) -> Result<()> {
    let rank = std::env::var("SAMITE_UNIT")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    pin(rank)?;
    let fabric = samite::init()?;
    let members = fabric.job()?;
    let mut control = Control::open(folder, rank)?;
    fabric.barrier(&members)?;
    control.answer("ready")?;
    let unit = Unit {
        fabric: fabric.clone(),
        members,
        rank: rank as usize,
        pgas: OnceCell::new(),
        held: RefCell::default(),
        streams: Cell::new(0),
        programs,
    };
    while let Some(command) = control.next()? {
        let result = unit.run(&command);
        control.answer_result(result)?;
    }
    Ok(())
}

struct Unit {
    fabric: Fabric,
    members: Vec<PeerId>,
    rank: usize,
    /// Created when it is first needed, so that messages are measured without it.
    pgas: OnceCell<Pgas>,
    held: RefCell<collectives::Cached>,
    /// Number of streams so far.
    streams: Cell<u64>,
    programs: Programs,
}

impl Unit {
    fn run(&self, command: &Command) -> Result<Option<f64>> {
        match (command.name(), self.members.len()) {
            ("put" | "get" | "put_nb" | "strided" | "atomic", 2) => {
                onesided::run(self.world()?, command)
            }
            ("collective", _) => {
                collectives::run(self.world()?, &mut self.held.borrow_mut(), command)
            }
            ("threads", 2) => threads::run(&self.fabric, &self.members, self.rank, command),
            ("lock", _) => lock::run(self.world()?, command).map(Some),
            ("gups", ranks) if ranks.is_power_of_two() => gups::run(self.world()?, command),
            ("is", _) => (self.programs.is)(self.pgas()?, command.word(1)),
            ("step" | "slab" | "store" | "peak" | "file" | "index" | "layout" | "workflow", _) => {
                self.staging(command)
            }
            _ => self.message(command),
        }
    }

    fn world(&self) -> Result<&Team> {
        Ok(self.pgas()?.world())
    }

    /// Collective when called first.
    fn pgas(&self) -> Result<&Pgas> {
        if let Some(pgas) = self.pgas.get() {
            return Ok(pgas);
        }
        let pgas = Pgas::new(&self.fabric)?;
        Ok(self.pgas.get_or_init(|| pgas))
    }
}

/// Position-dependent bytes of a sender.
fn fill(bytes: &mut [u8], seed: usize) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (index.wrapping_mul(31) ^ (index >> 8) ^ seed.wrapping_mul(97)) as u8;
    }
}

fn check(bytes: &[u8], seed: usize) -> Result<()> {
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, seed);
    ensure!(
        bytes == expected,
        "the data that arrived is not the data that was sent"
    );
    Ok(())
}

/// Returns the seconds of `iters` on the ranks that take part, after `warmup`; with `together`,
/// until the last of them is done.
fn timed(
    world: &Team,
    takes_part: bool,
    together: bool,
    (iters, warmup): (u64, u64),
    mut often: impl FnMut(u64) -> Result<()>,
) -> Result<f64> {
    let mut run = |n: u64| if takes_part { often(n) } else { Ok(()) };
    world.barrier()?;
    run(warmup)?;
    world.barrier()?;
    let start = Instant::now();
    run(iters)?;
    if together {
        world.barrier()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    world.barrier()?;
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite::Identity;
    use samite::stage::service::{Capacity, Staging};
    use samite_testkit::{Failed, Outcome, full_name, units};

    /// Each command checks its data itself; here it must be supported.
    fn answers(fabric: &Fabric, members: &[PeerId], lines: &[&str]) -> Outcome {
        let unit = Unit {
            fabric: fabric.clone(),
            members: members.to_vec(),
            rank: members.iter().position(|m| *m == fabric.me()).unwrap_or(0),
            pgas: OnceCell::new(),
            held: RefCell::default(),
            streams: Cell::new(0),
            programs: Programs {
                is: |pgas, class| {
                    pgas.world().barrier()?;
                    Ok((class == "S").then_some(1.0))
                },
                has_lammps: || false,
            },
        };
        for line in lines {
            let seconds = unit.run(&Command::of(line));
            let seconds = seconds.map_err(|error| Failed::new(format!("{line}: {error:#}")))?;
            assert!(seconds.is_some_and(f64::is_finite), "{line}: {seconds:?}");
        }
        assert_eq!(unit.run(&Command::of("is Q")).ok(), Some(None));
        assert_eq!(unit.run(&Command::of("dance 1 2")).ok(), Some(None));
        Ok(())
    }

    #[test]
    fn a_pair_knows_its_commands() {
        let name = full_name(module_path!(), "a_pair_knows_its_commands");
        let lines = [
            "latency 8 10 2",
            "bandwidth segment 65536 4 1",
            "bandwidth cold 65536 4 1",
            "bandwidth malloc 65536 4 1",
            "bandwidth segment-copy 65536 4 1",
            "bandwidth hugepages 65536 4 1",
            "stream 65536 4 4 1",
            "idle 0.05",
            "rate 8 64 4 1",
            "memory",
            "put 8 100 10",
            "put 3 10 1",
            "put 65536 10 1",
            "get 8 100 10",
            "get 65536 10 1",
            "put_nb 8 100 10",
            "strided 16 64 10 1",
            "atomic single 100 10",
            "atomic contended 100 10",
            "lock uncontended 50 5",
            "lock contended 50 5",
            "is S",
        ];
        units(2).run(&name, |fabric, members| answers(fabric, members, &lines));
    }

    #[test]
    fn pairs_update_at_random() {
        let name = full_name(module_path!(), "pairs_update_at_random");
        let lines = ["gups plain 5000 100", "gups aggregated 5000 100"];
        units(2).run(&name, |fabric, members| answers(fabric, members, &lines));
    }

    /// The third process is the agent.
    #[test]
    fn a_pair_hands_on_steps() {
        let name = full_name(module_path!(), "a_pair_hands_on_steps");
        let lines = [
            "step view 65536 2 1",
            "step put 65536 2 1",
            "step copy 65536 2 1",
            "slab get 65536 2 1",
            "store put 65536 2 1",
            "store copy 65536 2 1",
            "file write 65536 2 1",
            "file write-synced 65536 1 1",
            "file read 65536 2 1",
            "index 1000 100 odd",
            "index 1000 100 grid",
            "layout matched 64 32 4 balance",
            "layout mismatched 64 32 4 reader",
        ];
        let unit = |unit: &samite_testkit::Unit| -> Outcome {
            if unit.rank < 2 {
                let pair = Identity {
                    units: 2,
                    ..unit.identity()
                };
                let fabric = Fabric::join(&unit.domain, pair, unit.config.clone())?;
                return answers(&fabric, &fabric.job()?, &lines);
            }
            let agent = Fabric::join(&unit.domain, samite::agent::identity(), unit.config.clone())?;
            let mut seen = 0;
            let others = |fabric: &Fabric| fabric.peers().len() - 1;
            let mut service = Staging::new(&agent, Capacity::of_memory(64 << 20));
            service.run(|fabric| {
                seen = seen.max(others(fabric));
                seen < 2 || others(fabric) > 0
            })?;
            Ok(())
        };
        units(3).orchestrate_bare(&name, unit, |_| ());
    }

    #[test]
    fn many_work_together() {
        let name = full_name(module_path!(), "many_work_together");
        let lines = [
            "alltoall 1024 4 1",
            "collective barrier segment 0 10 2",
            "collective allreduce segment 8 10 2",
            "collective allreduce private 4096 10 2",
            "collective bcast segment 4096 10 2",
            "collective bcast private 4096 10 2",
            "collective alltoall segment 1024 10 2",
            "collective alltoall private 1024 10 2",
            "lock contended 20 2",
        ];
        units(4).run(&name, |fabric, members| answers(fabric, members, &lines));
    }
}

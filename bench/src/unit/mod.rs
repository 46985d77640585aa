//! Our contestant: a unit of Samite that runs the cases on command.
//!
//! | file | commands |
//! |---|---|
//! | `message` | messages, and the barrier of the fabric |
//! | `threads` | several threads |
//! | `onesided`, `collectives`, `lock` | global memory |
//! | `gups` | random updates of it |
//! | `coherence`, `frames`, `share`, `recovery` | chunks |
//! | `video` | the video job |
//! | `mobile`, `mapped`, `native` | moved code, on staged data, in C |
//! | `staging/` | steps from a writer to a reader, and steps in files |

mod coherence;
mod collectives;
mod frames;
mod gups;
mod lock;
mod mapped;
mod message;
mod mobile;
mod native;
mod newcomers;
mod onesided;
mod operations;
mod recovery;
mod share;
mod staging;
mod threads;
mod video;

pub use newcomers::run_first;
pub use recovery::run_holder;

use crate::control::{Command, Control, pin};
use anyhow::{Result, ensure};
use samite::dsm::Dsm;
use samite::pgas::{Pgas, Team};
use samite::{Fabric, Match, PeerId};
use std::cell::{Cell, OnceCell, RefCell};
use std::path::Path;
use std::time::Instant;

/// The tag of the messages that say that a rank has completed a command.
const DONE: u64 = 12;

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
        past: RefCell::default(),
        said: RefCell::default(),
        hosted: OnceCell::new(),
        mobiles: RefCell::default(),
        filtered: RefCell::default(),
        programs,
    };
    unit.obey(&mut control)
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
    past: RefCell<video::Past>,
    /// The answer to the last command, where that is no number.
    said: RefCell<Option<String>>,
    /// Chunks of which the ranks themselves are the homes.
    hosted: OnceCell<Dsm>,
    /// Moved code, by the delay of the link.
    mobiles: RefCell<mobile::Mobiles>,
    filtered: RefCell<Option<mapped::Filtered>>,
    programs: Programs,
}

impl Unit {
    /// Runs commands until there are no more.
    fn obey(&self, control: &mut Control) -> Result<()> {
        while let Some(command) = control.next()? {
            let value = self.run(&command)?;
            self.all_are_done()?;
            match self.said.take() {
                Some(object) => control.answer(&object)?,
                None => control.answer_value(value)?,
            }
        }
        Ok(())
    }

    /// Rank 0 waits until the others have completed the command, too: it must not answer with a
    /// figure when another rank finds that the data are wrong, and ends.
    fn all_are_done(&self) -> Result<()> {
        if self.rank != 0 {
            return Ok(self.fabric.send(self.members[0], DONE, &[])?);
        }
        for member in &self.members[1..] {
            self.fabric.recv(Match::from(*member, DONE), &mut [])?;
        }
        Ok(())
    }

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
            ("chunk", 2) => self.coherence(command),
            ("frames", 2) => self.frames(command),
            ("share", _) => self.share(command),
            ("recovery", 2) => self.recovery(command),
            ("video", _) => self.video(command),
            ("mobile" | "chain", _) => self.mobile(command),
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
    use samite_testkit::{Failed, Outcome, Who, full_name, same, units};
    use std::collections::BTreeSet;

    fn unit(
        fabric: &Fabric,
        members: &[PeerId],
        is: fn(&Pgas, &str) -> Result<Option<f64>>,
    ) -> Unit {
        Unit {
            fabric: fabric.clone(),
            members: members.to_vec(),
            rank: members.iter().position(|m| *m == fabric.me()).unwrap_or(0),
            pgas: OnceCell::new(),
            held: RefCell::default(),
            streams: Cell::new(0),
            past: RefCell::default(),
            said: RefCell::default(),
            hosted: OnceCell::new(),
            mobiles: RefCell::default(),
            filtered: RefCell::default(),
            programs: Programs {
                is,
                has_lammps: || false,
            },
        }
    }

    /// Returns the commands of the cases of benches that have so many ranks.
    fn commands(benches: &[&str], ranks: u32, iters: u64) -> BTreeSet<String> {
        let options = crate::Options {
            quick: true,
            ..crate::Options::default()
        };
        let cases = |bench: &&str| crate::cases(bench, &options).expect("the bench exists");
        let cases = benches.iter().flat_map(cases);
        cases
            .filter(|case| case.ranks == ranks)
            .map(|case| case.measure.line(iters))
            .collect()
    }

    /// Each command checks its data itself; here it must be supported.
    fn answers(fabric: &Fabric, members: &[PeerId], lines: &BTreeSet<String>) -> Outcome {
        let unit = unit(fabric, members, |pgas, class| {
            pgas.world().barrier()?;
            Ok((class != "Q").then_some(1.0))
        });
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
        let benches = [
            "message",
            "threads",
            "oversubscribed",
            "onesided",
            "collectives",
            "lock",
            "is",
        ];
        let mut lines = commands(&benches, 2, 2);
        lines.insert("put 3 10 1".to_owned());
        units(2).run(&name, |fabric, members| answers(fabric, members, &lines));
    }

    #[test]
    fn pairs_update_at_random() {
        let name = full_name(module_path!(), "pairs_update_at_random");
        let lines = commands(&["gups"], 2, 5000);
        units(2).run(&name, |fabric, members| answers(fabric, members, &lines));
    }

    /// The third process is the agent.
    #[test]
    fn a_pair_hands_on_steps() {
        let name = full_name(module_path!(), "a_pair_hands_on_steps");
        // The same with arrays that fit into a small block store.
        let small = |word: &str| match word.parse::<u64>() {
            Ok(bytes) if bytes >= 1 << 20 => "65536".to_owned(),
            _ => word.to_owned(),
        };
        let is_here = |line: &String| !line.starts_with("workflow") && !line.starts_with("peak");
        let lines: BTreeSet<String> = commands(&["staging"], 2, 2)
            .into_iter()
            .filter(is_here)
            .map(|line| line.split(' ').map(small).collect::<Vec<_>>().join(" "))
            .collect();
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
    fn a_pair_shares_chunks() {
        let name = full_name(module_path!(), "a_pair_shares_chunks");
        let mut lines = commands(&["coherence"], 2, 20);
        // Starts processes of the command `samite`.
        lines.retain(|line| !line.starts_with("recovery"));
        let served = units(2).services(vec![samite::dsm::service::STARTER]);
        served.run(&name, |fabric, members| answers(fabric, members, &lines));
    }

    #[test]
    fn several_share_chunks() {
        let name = full_name(module_path!(), "several_share_chunks");
        let lines = commands(&["coherence"], 4, 20);
        let served = units(4).services(vec![samite::dsm::service::STARTER]);
        served.run(&name, |fabric, members| answers(fabric, members, &lines));
    }

    /// Rank 1 finds the data of the second command wrong.
    fn obeys_until_it_fails(fabric: &Fabric, members: &[PeerId]) -> Outcome {
        let unit = unit(fabric, members, |pgas, class| {
            ensure!(class == "S" || pgas.world().rank() == 0, "wrong data");
            Ok(Some(0.5))
        });
        // Files in place of the fifos.
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path(&format!("ctl.{}", unit.rank)), "is S\nis A\n")?;
        std::fs::write(path("out"), "")?;
        let control = Control::open(folder.path(), unit.rank as u32);
        let mut control = control.map_err(|error| Failed::new(error.to_string()))?;
        let Err(error) = unit.obey(&mut control) else {
            return Err(Failed::new("nothing failed"));
        };
        if unit.rank == 1 {
            same!(error.to_string(), "wrong data");
            samite_testkit::point("failed");
            samite_testkit::die();
        }
        let answers = std::fs::read_to_string(path("out"))?;
        same!(answers, "5.000000000000e-1\n");
        Ok(())
    }

    #[test]
    fn no_figure_is_answered_beside_an_error_of_another_rank() {
        let name = "no_figure_is_answered_beside_an_error_of_another_rank";
        let name = full_name(module_path!(), name);
        units(2).orchestrate(&name, obeys_until_it_fails, |cluster| {
            cluster.let_die(Who::Unit(1));
            cluster.wait_point(Who::Unit(1), "failed");
        });
    }

    #[test]
    fn many_work_together() {
        let name = full_name(module_path!(), "many_work_together");
        let lines = commands(&["oversubscribed", "collectives", "lock"], 8, 2);
        units(4).run(&name, |fabric, members| answers(fabric, members, &lines));
    }
}

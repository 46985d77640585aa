//! The peers of a bench, and how they are started.
//!
//! Their sources are part of this binary and are compiled when they are first needed, so that a
//! shipped `samite` can measure on any machine with a compiler.

mod build;
mod list;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::contestant::Launch;
use crate::host::cores;
use crate::ucx;
use build::{Build, on_path};
use list::{PEERS, Peer};

/// The peers of a bench on this machine.
#[derive(Default)]
pub(crate) struct Peers {
    /// Those that use the fifo protocol, with their programs.
    built: Vec<(&'static Peer, PathBuf)>,
    pub(crate) has_ucx: bool,
    /// Those that are not installed or cannot be built, with what to install or the error.
    pub(crate) missing: BTreeMap<String, String>,
    /// How each one is built and started.
    pub(crate) settings: BTreeMap<String, String>,
}

impl Peers {
    /// Finds the installed peers and builds those with our sources; with `in_haste`, only those
    /// that build quickly.
    pub(crate) fn find(bench: &str, in_haste: bool) -> Self {
        let mut peers = Peers::default();
        for peer in PEERS.iter().filter(|peer| peer.bench == bench) {
            let name = peer.name.to_owned();
            let program = match peer.is_installed() {
                true => peer.build(in_haste),
                false => Ok(None),
            };
            match program {
                Ok(Some(program)) => {
                    peers.built.push((peer, program));
                    peers.settings.insert(name, peer.settings());
                }
                Ok(None) => {
                    peers.missing.insert(name, peer.toolkit.install.to_owned());
                }
                // Its libraries may be broken, or those that cargo fetches not available.
                Err(error) => {
                    peers.missing.insert(name, format!("{error:#}"));
                }
            }
        }
        if bench == ucx::BENCH {
            peers.find_ucx();
        }
        peers
    }

    fn find_ucx(&mut self) {
        self.has_ucx = on_path(ucx::PROGRAM) && on_path(ucx::GUARD);
        let (list, text) = if self.has_ucx {
            (&mut self.settings, ucx::SETTINGS)
        } else {
            (&mut self.missing, "apt-get install ucx-utils util-linux")
        };
        list.insert(ucx::NAME.to_owned(), text.to_owned());
    }

    /// Returns how to start those that take commands, with their ranks pinned to `cpus` unless
    /// that is empty.
    pub(crate) fn launches(&self, ranks: u32, cpus: &[usize]) -> Vec<Launch> {
        let cores = match cpus.len() {
            0 => cores(),
            pinned => pinned,
        };
        self.built
            .iter()
            .filter(|(peer, _)| (peer.least_ranks..=peer.most_ranks).contains(&ranks))
            .map(|(peer, program)| peer.launch(program, ranks, cores))
            .collect()
    }
}

impl Peer {
    fn is_installed(&self) -> bool {
        let toolkit = self.toolkit;
        toolkit.build.is_possible()
            && toolkit.launcher.is_none_or(on_path)
            && toolkit.server.is_none_or(on_path)
    }

    /// Returns its program; `None` if building it would take too long in haste.
    fn build(&self, in_haste: bool) -> Result<Option<PathBuf>> {
        self.toolkit.build.run(self.source, in_haste)
    }

    fn launch(&self, program: &Path, ranks: u32, cores: usize) -> Launch {
        let toolkit = self.toolkit;
        let mut argv: Vec<String> = Vec::new();
        if let Some(launcher) = toolkit.launcher {
            let oversubscribed = if ranks as usize > cores {
                toolkit.oversubscribed
            } else {
                ""
            };
            let words = [launcher, toolkit.arguments, self.arguments, oversubscribed];
            argv.extend(
                words
                    .iter()
                    .flat_map(|some| some.split_whitespace())
                    .map(str::to_owned),
            );
        }
        argv.push(program.display().to_string());
        let env = toolkit
            .env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Launch {
            name: self.name.to_owned(),
            argv,
            env,
            each_rank: toolkit.launcher.is_none(),
        }
    }

    fn settings(&self) -> String {
        let toolkit = self.toolkit;
        let env = toolkit.env.iter().map(|(k, v)| format!("{k}={v}"));
        let words = [
            toolkit.launcher.unwrap_or(""),
            toolkit.arguments,
            self.arguments,
        ];
        let start: Vec<String> = env
            .chain(words.map(str::to_owned))
            .filter(|word| !word.is_empty())
            .collect();
        let oversubscribed = match toolkit.oversubscribed {
            "" => String::new(),
            more => format!(" (with more ranks than cores: {more})"),
        };
        let build = toolkit.build.settings(self.source);
        format!("{}{oversubscribed}; {build}", start.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::{Answer, Contestant};
    use crate::measure::Pace;
    use crate::placement::Placement;
    use crate::{BENCHES, Options};
    use samite_testkit::require;
    use std::time::Duration;

    /// Every peer checks its data after a command; here it must support some commands, and none may
    /// fail. Its ranks run where they are told.
    #[test]
    fn the_peers_answer_their_commands() {
        let cpus = Placement::Apart.cpus(None).unwrap();
        for bench in BENCHES {
            let peers = Peers::find(bench, true);
            for (peer, install) in &peers.missing {
                let is_slow = install.contains("minutes");
                let test = format!("{bench} with {peer}");
                require(&test, is_slow, install);
            }
            let cases = crate::cases(bench, &Options::default()).unwrap();
            let pairs = cases
                .iter()
                .filter(|case| case.ranks == 2 && case.point.is_none());
            let mut lines: Vec<String> = pairs
                .filter(|case| case.measure.pace == Pace::Iterations)
                .map(|case| case.measure.line(2))
                .collect();
            if bench == "is" {
                lines.push("is S".to_owned());
            }
            for launch in peers.launches(2, &cpus) {
                let mut contestant = Contestant::start(&launch, 2, &cpus).unwrap();
                if launch.each_rank {
                    let ranks = contestant.process_ids().zip(cpus.iter().cycle());
                    ranks.for_each(|(id, cpu)| is_pinned(&launch.name, id, *cpu));
                }
                answers(&mut contestant, &launch.name, &lines);
            }
        }
    }

    /// A source, two workers and a sink, of which the first compares all results with those of a
    /// sequential run; and four processes that share values.
    #[test]
    fn several_ranks_answer_their_commands() {
        let pipeline = [
            "video wall 33 17 9 500,1000",
            "video wall 1 1 3 500,1000",
            "video wall 64 48 40 500,1000",
            "video ideal 64 48 40 500,1000",
            "video deviation 64 48 40 500,1000",
        ];
        let cases = crate::coherence::cases();
        let shared = cases.iter().filter(|case| case.ranks == 4);
        let shared: Vec<String> = shared.map(|case| case.measure.line(2)).collect();
        for (bench, lines) in [
            ("video", pipeline.map(str::to_owned).into()),
            ("coherence", shared),
        ] {
            for launch in Peers::find(bench, true).launches(4, &[]) {
                let mut contestant = Contestant::start(&launch, 4, &[]).unwrap();
                answers(&mut contestant, &launch.name, &lines);
            }
        }
    }

    /// Open MPI counts the cores of the machine: it must be told of fewer that are used.
    #[test]
    fn ranks_that_share_a_core_yield_it() {
        let openmpi = PEERS.iter().find(|peer| peer.name == "openmpi").unwrap();
        let peers = Peers {
            built: vec![(openmpi, PathBuf::from("peer"))],
            ..Peers::default()
        };
        let yields = |ranks, cpus: &[usize]| {
            let argv = &peers.launches(ranks, cpus)[0].argv;
            argv.join(" ")
                .contains("--oversubscribe --mca mpi_yield_when_idle 1")
        };
        assert!(yields(2, &[0]));
        assert!(!yields(2, &[0, 1]));
        assert!(!yields(1, &[]) && yields(1 + cores() as u32, &[]));
    }

    fn is_pinned(name: &str, id: u32, cpu: usize) {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(allowed.map(str::trim), Some(&*cpu.to_string()), "{name}");
    }

    fn answers(contestant: &mut Contestant, name: &str, lines: &[String]) {
        let mut known = 0;
        for line in lines {
            match contestant.ask(line, Duration::from_secs(60)).unwrap() {
                Answer::Value(seconds) => {
                    assert!(seconds > 0.0, "{name}: {line}: {seconds}");
                    known += 1;
                }
                Answer::Unsupported => {}
                Answer::Failed(text) => panic!("{name}: {line}: {text}"),
            }
        }
        assert!(known > 0 || lines.is_empty(), "{name} knows nothing");
    }
}

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
use crate::network;
use crate::ucx;
use build::{Build, on_path};
use list::{PEERS, Peer};

/// The peers of a bench on this machine.
#[derive(Default)]
pub(crate) struct Peers {
    /// Those that use the fifo protocol, with their programs.
    built: Vec<(&'static Peer, PathBuf)>,
    /// Those that could not be built.
    absent: Vec<&'static Peer>,
    pub(crate) has_ucx: bool,
    /// It belongs to the bench, and is not installed.
    pub(crate) missing_ucx: bool,
    /// Those that are not installed or cannot be built, with what to install or the error.
    pub(crate) missing: BTreeMap<String, String>,
    /// How each one is built and started.
    pub(crate) settings: BTreeMap<String, String>,
}

impl Peers {
    /// Finds the installed peers and builds those with our sources; with `in_haste`, only those
    /// that build quickly.
    pub(crate) fn find(bench: &str, in_haste: bool) -> Self {
        let mut peers = Self::find_some(in_haste, |peer| peer.bench == bench);
        if [ucx::BENCH, network::BENCH].contains(&bench) {
            peers.find_ucx(&ucx::Networks::of(bench));
        }
        peers
    }

    /// As [`Peers::find`]: only those for so many ranks, if their names are wanted.
    pub(crate) fn of_ranks(bench: &str, ranks: u32, is_wanted: impl Fn(&str) -> bool) -> Self {
        Self::find_some(false, |peer| {
            peer.bench == bench && peer.takes(ranks) && is_wanted(peer.name)
        })
    }

    fn find_some(in_haste: bool, is_wanted: impl Fn(&Peer) -> bool) -> Self {
        let mut peers = Peers::default();
        for peer in PEERS.iter().filter(|peer| is_wanted(peer)) {
            let name = peer.name.to_owned();
            let program = match peer.is_installed() {
                true => peer.build(in_haste),
                false => Ok(None),
            };
            if !matches!(program, Ok(Some(_))) {
                peers.absent.push(peer);
            }
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
        peers
    }

    fn find_ucx(&mut self, networks: &ucx::Networks) {
        self.has_ucx = on_path(ucx::PROGRAM) && on_path(ucx::GUARD);
        self.missing_ucx = !self.has_ucx;
        let (list, text) = if self.has_ucx {
            (&mut self.settings, ucx::settings(networks))
        } else {
            let install = "apt-get install ucx-utils util-linux";
            (&mut self.missing, install.to_owned())
        };
        list.insert(ucx::NAME.to_owned(), text);
    }

    /// Whether all of them that take so many ranks can be started.
    pub(crate) fn are_all_here(&self, ranks: u32) -> bool {
        !self.absent.iter().any(|peer| peer.takes(ranks))
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
            .filter(|(peer, _)| peer.takes(ranks))
            .map(|(peer, program)| peer.launch(program, ranks, cores))
            .collect()
    }
}

impl Peer {
    fn takes(&self, ranks: u32) -> bool {
        (self.least_ranks..=self.most_ranks).contains(&ranks)
    }

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
        let env = self.env();
        let env = env.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        Launch {
            name: self.name.to_owned(),
            argv,
            env,
            each_rank: toolkit.launcher.is_none(),
        }
    }

    fn env(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.toolkit.env.iter().copied().chain(self.variable)
    }

    fn settings(&self) -> String {
        let toolkit = self.toolkit;
        let env = self.env().map(|(k, v)| format!("{k}={v}"));
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
            "video run 64 48 40 500,1000",
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

    #[test]
    fn peers_are_missed_where_they_could_run() {
        let zmq = PEERS.iter().find(|peer| peer.name == "zmq").unwrap();
        let peers = Peers {
            absent: vec![zmq],
            ..Peers::default()
        };
        assert!(!peers.are_all_here(2) && peers.are_all_here(8));
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

    /// What a peer says of a run is what such nodes do.
    fn is_run(said: &str, needs: [f64; 2], frames: u64) {
        let run: serde_json::Value = serde_json::from_str(said).unwrap();
        let number = |of: &serde_json::Value, key: &str| of[key].as_f64().unwrap();
        let nodes = run["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), needs.len(), "{said}");
        let mut all = 0.0;
        for (node, needs) in nodes.iter().zip(needs) {
            assert_eq!(number(node, "needs_s"), needs, "{said}");
            let processing = number(node, "processing_s");
            assert!(processing >= number(node, "frames") * needs, "{said}");
            assert!(number(node, "waiting_s") >= 0.0, "{said}");
            assert!(number(node, "late_frames") <= number(node, "frames"));
            assert!(number(&run, "wall_s") > processing, "{said}");
            all += number(node, "frames");
        }
        assert_eq!(all, frames as f64, "{said}");
        let encode = number(&run, "encode_s");
        assert!(encode > 0.0 && encode < number(&run, "wall_s"), "{said}");
        assert_eq!(run["checksum"].as_str().unwrap().len(), 16, "{said}");
    }

    fn answers(contestant: &mut Contestant, name: &str, lines: &[String]) {
        let mut known = 0;
        for line in lines {
            match contestant.ask(line, Duration::from_secs(60)).unwrap() {
                Answer::Value(seconds) => {
                    assert!(seconds > 0.0, "{name}: {line}: {seconds}");
                    known += 1;
                }
                Answer::Object(run) => {
                    is_run(&run, [0.0005, 0.001], 40);
                    known += 1;
                }
                Answer::Unsupported => {}
                Answer::Failed(text) => panic!("{name}: {line}: {text}"),
            }
        }
        assert!(known > 0 || lines.is_empty(), "{name} knows nothing");
    }
}

//! Which peers there are, how they are built and how they are started.
//!
//! The C sources travel inside this binary and are compiled when they are first needed, into
//! the user's cache folder, so that a shipped `samite` can measure wherever `mpicc` is.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::contestant::Launch;
use crate::host::cpu_model;
use crate::ucx;

const SOURCES: [(&str, &str); 3] = [
    ("peer.h", include_str!("../peers/peer.h")),
    ("mpi_message.c", include_str!("../peers/mpi_message.c")),
    ("zmq_message.c", include_str!("../peers/zmq_message.c")),
];
const FLAGS: [&str; 3] = ["-O3", "-march=native", "-w"];

/// A peer of our own in C.
struct Peer {
    name: &'static str,
    source: &'static str,
    compiler: &'static str,
    libraries: &'static [&'static str],
    /// What it needs beside its compiler.
    launcher: Option<&'static str>,
    header: Option<&'static str>,
    install: &'static str,
    /// Arguments of the launcher for all runs, and those for more ranks than cores.
    arguments: &'static str,
    crowded: &'static str,
    env: &'static [(&'static str, &'static str)],
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "openmpi",
        source: "mpi_message.c",
        compiler: "mpicc.openmpi",
        libraries: &[],
        launcher: Some("mpirun.openmpi"),
        header: None,
        install: "apt-get install openmpi-bin libopenmpi-dev",
        arguments: "-n {ranks} --bind-to none --mca pml ob1 --mca btl self,vader",
        crowded: "--oversubscribe",
        // Open MPI refuses to run as root, as containers do, unless told twice.
        env: &[
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ],
    },
    Peer {
        name: "mpich",
        source: "mpi_message.c",
        compiler: "mpicc.mpich",
        libraries: &[],
        launcher: Some("mpirun.mpich"),
        header: None,
        install: "apt-get install mpich libmpich-dev",
        arguments: "-n {ranks} -launcher fork -bind-to none",
        crowded: "",
        env: &[],
    },
    Peer {
        name: "zmq",
        source: "zmq_message.c",
        compiler: "cc",
        libraries: &["-lzmq"],
        launcher: None,
        header: Some("zmq.h"),
        install: "apt-get install gcc libzmq3-dev",
        arguments: "",
        crowded: "",
        env: &[],
    },
];

/// The peers of this machine.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Those of the fifo protocol, with the path of their program.
    built: Vec<(&'static str, PathBuf)>,
    pub(crate) has_ucx: bool,
    /// Those that are not installed, with the command that would change it.
    pub(crate) missing: BTreeMap<String, String>,
    /// How each one is started.
    pub(crate) settings: BTreeMap<String, String>,
}

impl Peers {
    /// Finds the peers that are installed and builds those that are ours.
    pub(crate) fn find() -> Result<Self> {
        let mut peers = Peers::default();
        for peer in &PEERS {
            if peer.installed() {
                peers.built.push((peer.name, peer.build()?));
                peers.settings.insert(peer.name.to_owned(), peer.settings());
            } else {
                peers
                    .missing
                    .insert(peer.name.to_owned(), peer.install.to_owned());
            }
        }
        peers.has_ucx = on_path(ucx::PROGRAM) && on_path(ucx::GUARD);
        if peers.has_ucx {
            peers
                .settings
                .insert(ucx::NAME.to_owned(), ucx::SETTINGS.to_owned());
        } else {
            peers.missing.insert(
                ucx::NAME.to_owned(),
                "apt-get install ucx-utils util-linux".to_owned(),
            );
        }
        Ok(peers)
    }

    /// How to start those that take commands, on `cores` cores.
    pub(crate) fn launches(&self, ranks: u32, cores: usize) -> Vec<Launch> {
        let start = |(name, program): &(&str, PathBuf)| {
            PEERS
                .iter()
                .find(|peer| peer.name == *name)
                .map(|p| p.launch(program, ranks, cores))
        };
        self.built.iter().filter_map(start).collect()
    }
}

impl Peer {
    fn installed(&self) -> bool {
        on_path(self.compiler)
            && self.launcher.is_none_or(on_path)
            && self
                .header
                .is_none_or(|header| has_header(self.compiler, header))
    }

    /// Compiles the peer unless that was done before with the same sources on the same kind
    /// of processor: a home may be shared by different ones.
    fn build(&self) -> Result<PathBuf> {
        let mut key = DefaultHasher::new();
        (SOURCES, FLAGS, self.compiler, cpu_model()).hash(&mut key);
        let folder = cache().join(format!("{:016x}", key.finish()));
        let program = folder.join(self.name);
        if program.is_file() {
            return Ok(program);
        }
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let work = tempfile::tempdir_in(&folder)?;
        for (name, text) in SOURCES {
            fs::write(work.path().join(name), text)?;
        }
        let output = Command::new(self.compiler)
            .current_dir(work.path())
            .args(FLAGS)
            .args(["-o", self.name, self.source])
            .args(self.libraries)
            .output()
            .with_context(|| format!("cannot start {}", self.compiler))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{} cannot build {}:\n{said}",
            self.compiler,
            self.source
        );
        // In one step, so that another bench never starts half a program.
        fs::rename(work.path().join(self.name), &program)?;
        Ok(program)
    }

    fn launch(&self, program: &Path, ranks: u32, cores: usize) -> Launch {
        let mut argv: Vec<String> = self.launcher.iter().map(|&word| word.to_owned()).collect();
        argv.extend(self.arguments.split_whitespace().map(str::to_owned));
        if ranks as usize > cores {
            argv.extend(self.crowded.split_whitespace().map(str::to_owned));
        }
        argv.push(program.display().to_string());
        let env = self
            .env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Launch {
            name: self.name.to_owned(),
            argv,
            env,
            each_rank: self.launcher.is_none(),
        }
    }

    fn settings(&self) -> String {
        let build = format!("{} {}", self.compiler, FLAGS.join(" "));
        let Some(launcher) = self.launcher else {
            return format!("PAIR over ipc; {build}");
        };
        let crowded = match self.crowded {
            "" => String::new(),
            more => format!(" (with more ranks than cores: {more})"),
        };
        format!("{launcher} {}{crowded}; {build}", self.arguments)
    }
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn has_header(compiler: &str, header: &str) -> bool {
    let probe = Command::new(compiler)
        .args(["-E", "-include", header, "-x", "c", "/dev/null"])
        .output();
    probe.is_ok_and(|output| output.status.success())
}

fn cache() -> PathBuf {
    env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("samite/peers")
}

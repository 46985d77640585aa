//! The peers of each bench, with their best settings on one machine.
//!
//! How the settings were found, on two cores of one machine:
//! * Open MPI's one-sided component is `sm`: 24 ns for a put and its flush, while `rdma` takes 40
//!   and `ucx` is not made for one machine. Its collectives are those of `tuned`: `coll_sm` gains a
//!   tenth at the barrier and loses up to half elsewhere.
//! * With more ranks than cores, the ranks of Open MPI have to yield the processor while they wait.
//!   It decides that by the cores of the machine, not by those to which the ranks are pinned, so it
//!   is told.
//! * Open MPI's OpenSHMEM has one engine, UCX, which is fastest over POSIX shared memory (30 ns for
//!   a put and its quiet, 36 to 45 with all of `sm`). With kernel copies enabled (`cma`),
//!   collectives sometimes end before their data have arrived. Without UCX's memory hooks it is as
//!   fast and does not crash in `shmem_finalize`.
//! * MPICH 4.0 implements windows by messages to the target, whatever hints it gets, and never
//!   yields the processor while it waits: none of its variables changes either.
//! * ADIOS2's SST has one data transport in its wheel, evpath over TCP. Pushing all steps to the
//!   reader (`SpeculativePreloadMode=ON`) is up to six times as fast as waiting for its requests (1
//!   MiB: 1.8 and 11 ms; 128 MiB: 166 and 204 ms), even if the reader wants a slab. The second mode
//!   takes part because a reader that must not receive unwanted data needs it. Of the other
//!   settings, the marshalling BP is as fast as BP5, FFS slower; ENet in place of TCP loses
//!   messages of 16 MiB; puts that copy at once gain nothing. No other setting is faster:
//!   milliseconds for a copied step of 16 MiB (two runs) and 128 MiB (one run), all with `ON`, on a
//!   machine that had other work, so that all times are long:
//!
//!   | | 16 MiB | 128 MiB |
//!   |---|---|---|
//!   | no other setting: what is used | 85 | 1336 |
//!   | `NetworkInterface=lo` | 91 | 1144 |
//!   | `ControlModule=epoll`, `select` | 98, 106 | 1213, 1314 |
//!   | `CPCommPattern=Peer` | 102 | 1236 |
//!   | `MarshalMethod=BP`, `FFS` | 103, 113 | 1097, 1831 |
//!   | `AUTO` instead of `ON` | 105 | 1163 |
//!
//!   Differences of a fifth are noise here. In another run, `StepDistributionMode=RoundRobin` and
//!   `OnDemand` took 100 and 123 ms compared with 97 (and `OnDemand` 54 compared with 2 at 1 MiB),
//!   and in a third one `ControlTransport=enet` 653 compared with 186. With `WANDataTransport=shm`
//!   no step arrives. With `DataTransport` set to RDMA, UCX or MPI, SST reports that it considers
//!   only `evpath`.
//! * The clients of Redis are our own: a client library adds a copy. Its threads for sockets are
//!   off, as by default: they need cores of their own. Values that are shared are received in the
//!   usual way, by clients that look for a while before they sleep, and with sockets that have room
//!   for a value of 1 MiB: two processes that write in turn gain a third by the first, and long
//!   values a tenth by the second; one that only reads loses by looking.
//! * For frames of UHD-2 in memory, Open MPI and libzmq take part with several settings, because
//!   which is fastest differs from machine to machine: a copy by the kernel or two through shared
//!   memory; the usual buffers of sockets, smaller ones, and two threads for IO. Without the
//!   settings of `malloc` in `zmq_peer.h`, the kernel clears the pages of each frame anew. Open MPI
//!   over UCX does not come to an end with such frames here. Frames of users are on huge pages;
//!   those of libzmq, which `malloc` gives, in one of its settings (`zmq-huge`).
//! * In the pipeline of the video, nodes that wait have to leave the processor to those that
//!   compute: Open MPI that yields while it looks (`openmpi-polling`), and one that sleeps between
//!   two looks (all others); MPICH does not yield. With one frame more on the way, a worker does
//!   not wait for the next one (`openmpi-ahead`, `zmq-request-2`). Open MPI moves a long message
//!   only when it is called, so a worker that probes while it computes has the next frame in time
//!   (`openmpi-probing`). As Samite's source, those that
//!   plan (`openmpi-planned`, `zmq-planned`) give no frame to a node that would do it after all
//!   others are done. Frames that are pushed to workers in
//!   turn wait at the slow ones, the more the higher the mark is.
//! * Lamellar is built without its launcher and its PMIx: its shared-memory backend needs neither.

use super::Build;
use crate::video::VIA;

/// A library with its compiler and launcher.
pub(super) struct Toolkit {
    pub(super) build: Build,
    /// Starts all ranks; without it, the bench starts each rank.
    pub(super) launcher: Option<&'static str>,
    /// A program that the peer starts itself.
    pub(super) server: Option<&'static str>,
    /// Arguments of the launcher, and those for more ranks than cores.
    pub(super) arguments: &'static str,
    pub(super) oversubscribed: &'static str,
    pub(super) env: &'static [(&'static str, &'static str)],
    /// What to install if it is missing.
    pub(super) install: &'static str,
}

/// A contestant of a bench.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) bench: &'static str,
    pub(super) toolkit: &'static Toolkit,
    /// File in the folder of peers.
    pub(super) source: &'static str,
    /// Arguments of the launcher in this bench.
    pub(super) arguments: &'static str,
    /// A variable of its environment.
    pub(super) variable: Option<(&'static str, &'static str)>,
    /// Minimum and maximum number of ranks.
    pub(super) least_ranks: u32,
    pub(super) most_ranks: u32,
}

const OPENMPI: Toolkit = Toolkit {
    launcher: Some("mpirun.openmpi"),
    arguments: "-n {ranks} --bind-to none --mca pml ob1 --mca btl self,vader",
    oversubscribed: "--oversubscribe --mca mpi_yield_when_idle 1",
    // It refuses to run as root, which is usual in containers, unless told twice.
    env: &[
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ],
    install: "apt-get install openmpi-bin libopenmpi-dev",
    ..toolkit(c("mpicc.openmpi", "mpi.h", &[]))
};

const MPICH: Toolkit = Toolkit {
    launcher: Some("mpirun.mpich"),
    arguments: "-n {ranks} -launcher fork -bind-to none",
    install: "apt-get install mpich libmpich-dev",
    ..toolkit(c("mpicc.mpich", "mpi.h", &[]))
};

const OPENSHMEM: Toolkit = Toolkit {
    launcher: Some("oshrun"),
    arguments: "-n {ranks} --bind-to none --mca opal_common_ucx_opal_mem_hooks 0",
    oversubscribed: OPENMPI.oversubscribed,
    env: &[
        ("UCX_TLS", "posix,self"),
        ("UCX_WARN_UNUSED_ENV_VARS", "n"),
        OPENMPI.env[0],
        OPENMPI.env[1],
    ],
    install: OPENMPI.install,
    ..toolkit(c("oshcc", "shmem.h", &[]))
};

const ZMQ: Toolkit = Toolkit {
    install: "apt-get install gcc libzmq3-dev",
    ..toolkit(c("cc", "zmq.h", &["-lzmq"]))
};

const SST: Toolkit = Toolkit {
    install: "apt-get install gcc, and ci/setup, which installs the wheel of ci/python.txt",
    ..toolkit(Build::C {
        compiler: "cc",
        header: "adios2_c.h",
        libraries: &["-ladios2_c", "-pthread"],
        wheel: Some("adios2"),
    })
};

const REDIS: Toolkit = Toolkit {
    server: Some("redis-server"),
    install: "apt-get install gcc redis-server",
    ..toolkit(c("cc", "stdio.h", &["-pthread"]))
};

const LAMELLAR: Toolkit = Toolkit {
    install: "it is built by cargo at the first run without --quick, which takes minutes",
    ..toolkit(Build::Cargo)
};

/// Returns a toolkit whose ranks the bench starts.
const fn toolkit(build: Build) -> Toolkit {
    Toolkit {
        build,
        launcher: None,
        server: None,
        arguments: "",
        oversubscribed: "",
        env: &[],
        install: "",
    }
}

const fn c(
    compiler: &'static str,
    header: &'static str,
    libraries: &'static [&'static str],
) -> Build {
    Build::C {
        compiler,
        header,
        libraries,
        wheel: None,
    }
}

/// Settings of the peers that read these variables.
const BUFFERS: &str = "SAMITE_BENCH_ZMQ";
const ENGINE: &str = "SAMITE_BENCH_SST";
const SOCKETS: &str = "SAMITE_BENCH_REDIS";

pub(super) const PEERS: &[Peer] = &[
    of("message", "openmpi", &OPENMPI, "mpi_message.c"),
    of("message", "mpich", &MPICH, "mpi_message.c"),
    // A pair of sockets has two ends.
    pair("message", "zmq", &ZMQ, "zmq_message.c"),
    pair("video", "openmpi", &OPENMPI, "mpi_message.c"),
    pair("video", "mpich", &MPICH, "mpi_message.c"),
    Peer {
        arguments: "--mca btl_vader_single_copy_mechanism none \
                    --mca btl_vader_max_send_size 131072",
        ..pair("video", "openmpi-two-copies", &OPENMPI, "mpi_message.c")
    },
    pair("video", "zmq", &ZMQ, "zmq_message.c"),
    // Buffers of the system's sockets that fit into the cache of a core.
    pair("video", "zmq-buffers", &ZMQ, "zmq_message.c").with(BUFFERS, "1 100000"),
    pair("video", "zmq-threads", &ZMQ, "zmq_message.c").with(BUFFERS, "2 0"),
    pair("video", "zmq-huge", &ZMQ, "zmq_message.c")
        .with("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    pipeline("openmpi-blocking", &OPENMPI, "mpi_video.c", "blocking,naps"),
    pipeline("openmpi-single", &OPENMPI, "mpi_video.c", "single,naps"),
    pipeline("openmpi-buffers", &OPENMPI, "mpi_video.c", "buffers,naps"),
    pipeline("openmpi-polling", &OPENMPI, "mpi_video.c", "buffers"),
    pipeline(
        "openmpi-ahead",
        &OPENMPI,
        "mpi_video.c",
        "buffers,naps,ahead",
    ),
    pipeline(
        "openmpi-planned",
        &OPENMPI,
        "mpi_video.c",
        "buffers,naps,ahead,planned",
    ),
    pipeline(
        "openmpi-probing",
        &OPENMPI,
        "mpi_video.c",
        "buffers,naps,ahead,probing",
    ),
    pipeline(
        "openmpi-probing-planned",
        &OPENMPI,
        "mpi_video.c",
        "buffers,naps,ahead,probing,planned",
    ),
    pipeline("mpich-buffers", &MPICH, "mpi_video.c", "buffers,naps"),
    pipeline("zmq-request", &ZMQ, "zmq_video.c", "request 1"),
    pipeline("zmq-request-2", &ZMQ, "zmq_video.c", "request 2"),
    pipeline("zmq-planned", &ZMQ, "zmq_video.c", "request 2 planned"),
    pipeline("zmq-push", &ZMQ, "zmq_video.c", "push 10"),
    pipeline("zmq-push-1", &ZMQ, "zmq_video.c", "push 1"),
    of("coherence", "redis", &REDIS, "redis_share.c"),
    of("coherence", "redis-looks", &REDIS, "redis_share.c").with(SOCKETS, "looks"),
    of("coherence", "redis-buffers", &REDIS, "redis_share.c").with(SOCKETS, "buffers"),
    of("coherence", "redis-both", &REDIS, "redis_share.c").with(SOCKETS, "looks,buffers"),
    of("oversubscribed", "openmpi", &OPENMPI, "mpi_message.c"),
    of("oversubscribed", "mpich", &MPICH, "mpi_message.c"),
    windows("onesided", "openmpi", &OPENMPI, "mpi_onesided.c"),
    of("onesided", "mpich", &MPICH, "mpi_onesided.c"),
    windows("onesided", "openmpi-shared", &OPENMPI, "mpi_shared.c"),
    of("onesided", "mpich-shared", &MPICH, "mpi_shared.c"),
    of("onesided", "openshmem", &OPENSHMEM, "shmem_onesided.c"),
    of("onesided", "lamellar", &LAMELLAR, "lamellar"),
    of("collectives", "openmpi", &OPENMPI, "mpi_collectives.c"),
    of("collectives", "mpich", &MPICH, "mpi_collectives.c"),
    of(
        "collectives",
        "openshmem",
        &OPENSHMEM,
        "shmem_collectives.c",
    ),
    windows("lock", "openmpi", &OPENMPI, "mpi_lock.c"),
    of("lock", "mpich", &MPICH, "mpi_lock.c"),
    of("lock", "openshmem", &OPENSHMEM, "shmem_lock.c"),
    windows("gups", "openmpi", &OPENMPI, "mpi_gups.c"),
    of("gups", "mpich", &MPICH, "mpi_gups.c"),
    of("gups", "openshmem", &OPENSHMEM, "shmem_gups.c"),
    of("gups", "lamellar", &LAMELLAR, "lamellar"),
    of_two(windows("mobile", "openmpi", &OPENMPI, "mpi_chase.c")),
    of_two(of("mobile", "mpich", &MPICH, "mpi_chase.c")),
    of_two(windows(
        "mobile",
        "openmpi-shared",
        &OPENMPI,
        "mpi_shared_chase.c",
    )),
    of_two(of("mobile", "mpich-shared", &MPICH, "mpi_shared_chase.c")),
    of("is", "openmpi", &OPENMPI, "mpi_is.c"),
    of("is", "mpich", &MPICH, "mpi_is.c"),
    pair("staging", "sst-preload", &SST, "sst.c").with(ENGINE, "SpeculativePreloadMode=ON"),
    pair("staging", "sst-on-demand", &SST, "sst.c").with(ENGINE, "SpeculativePreloadMode=OFF"),
    pair("staging", "redis", &REDIS, "redis.c"),
];

const fn of(
    bench: &'static str,
    name: &'static str,
    toolkit: &'static Toolkit,
    source: &'static str,
) -> Peer {
    Peer {
        name,
        bench,
        toolkit,
        source,
        arguments: "",
        variable: None,
        least_ranks: 1,
        most_ranks: u32::MAX,
    }
}

impl Peer {
    const fn with(self, variable: &'static str, value: &'static str) -> Peer {
        Peer {
            variable: Some((variable, value)),
            ..self
        }
    }
}

/// A pipeline of frames has a source, workers and a sink.
const fn pipeline(
    name: &'static str,
    toolkit: &'static Toolkit,
    source: &'static str,
    way: &'static str,
) -> Peer {
    Peer {
        least_ranks: 3,
        ..of("video", name, toolkit, source).with(VIA, way)
    }
}

/// Returns a peer of two ranks.
const fn pair(
    bench: &'static str,
    name: &'static str,
    toolkit: &'static Toolkit,
    source: &'static str,
) -> Peer {
    of_two(of(bench, name, toolkit, source))
}

/// Returns a peer that has only rows with two ranks.
const fn of_two(peer: Peer) -> Peer {
    Peer {
        most_ranks: 2,
        ..peer
    }
}

/// Returns a peer that uses windows of Open MPI.
const fn windows(
    bench: &'static str,
    name: &'static str,
    toolkit: &'static Toolkit,
    source: &'static str,
) -> Peer {
    Peer {
        arguments: "--mca osc sm",
        ..of(bench, name, toolkit, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_belongs_to_a_bench_and_has_a_name_there() {
        for (index, peer) in PEERS.iter().enumerate() {
            assert!(crate::BENCHES.contains(&peer.bench), "{}", peer.bench);
            let same = |other: &&Peer| (other.bench, other.name) == (peer.bench, peer.name);
            assert_eq!(
                PEERS[index..].iter().filter(same).count(),
                1,
                "{}",
                peer.name
            );
        }
    }
}

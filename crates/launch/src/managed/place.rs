//! What a process manager says of a process, by the environment that it sets.

use crate::Error;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use samite_mem::peer_credentials;
use std::env;
use std::fmt;
use std::os::fd::OwnedFd;

/// Who has started the processes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH or Intel MPI.
    Hydra,
    /// `srun`.
    Slurm,
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Manager::OpenMpi => "mpirun (Open MPI)",
            Manager::Hydra => "mpiexec (MPICH)",
            Manager::Slurm => "srun",
        })
    }
}

/// The place of a process among those of its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Who has started it.
    pub manager: Manager,
    /// A name of the job, for one machine: no other job there has it, and other machines of this
    /// job may have another one.
    pub job: String,
    /// The name of its machine, if the manager says it.
    pub host: Option<String>,
    /// A name of its node, which no other node of the job has, if the manager says one.
    pub node: Option<String>,
    /// Its number among all, from 0.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// Its number among those of its machine, from 0.
    pub local_rank: u32,
    /// How many its machine has.
    pub local_size: u32,
    /// Its number among those of its program, from 0, and how many these are. A manager that does
    /// not tell programs apart has one.
    pub of_program: (u32, u32),
}

/// The variables of one process manager.
struct Names {
    manager: Manager,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
}

/// `srun` comes last: a job script of Slurm may call `mpirun`, and then has the variables of both.
const KNOWN: [Names; 3] = [
    Names {
        manager: Manager::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    },
    Names {
        manager: Manager::Hydra,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
    },
    Names {
        manager: Manager::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
    },
];

/// Where the server of PMIx on this node is, as its versions say it.
const SERVERS: [&str; 5] = [
    "PMIX_SERVER_URI41",
    "PMIX_SERVER_URI4",
    "PMIX_SERVER_URI3",
    "PMIX_SERVER_URI21",
    "PMIX_SERVER_URI2",
];

/// Returns the number of the node in `JOB.NODE;ADDRESS`.
fn daemon(server: &str) -> Option<u32> {
    let (name, _) = server.split_once(';')?;
    name.rsplit_once('.')?.1.parse().ok()
}

impl Place {
    /// Returns the place of this process. Local.
    ///
    /// # Errors
    /// [`Error::Managed`]: no process manager that is known has started it, or its variables make
    /// no sense.
    pub fn of_environment() -> Result<Place, Error> {
        Place::of(&|name| env::var(name).ok(), &manager_process)
    }

    fn of(
        get: &dyn Fn(&str) -> Option<String>,
        manager_of: &dyn Fn(&str) -> Option<Pid>,
    ) -> Result<Place, Error> {
        let is_there =
            |names: &&Names| get(names.rank).is_some() && get(names.local_rank).is_some();
        let names = KNOWN.iter().find(is_there).ok_or_else(|| {
            Error::Managed(
                "no process manager has started this process: write `mpirun -n 4 samite join \
                 PROGRAM` (Open MPI, MPICH, Intel MPI) or `srun -n 4 samite join PROGRAM`; without \
                 one, `samite run -n 4 PROGRAM`"
                    .to_owned(),
            )
        })?;
        let number = |name: &str| {
            let text = get(name).unwrap_or_default();
            text.parse::<u32>().map_err(|_| {
                let manager = names.manager;
                Error::Managed(format!(
                    "{name} is \"{text}\", and {manager} sets it to a number"
                ))
            })
        };
        let missing =
            |name: &str| Error::Managed(format!("{} is not set, as {} does", name, names.manager));
        let (local_size, job, host, node) = match names.manager {
            Manager::OpenMpi => {
                let job = get("PMIX_NAMESPACE").ok_or_else(|| missing("PMIX_NAMESPACE"))?;
                let local_size = number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
                // Several nodes of Open MPI may be one machine.
                let host = get("PMIX_HOSTNAME");
                match SERVERS.iter().find_map(|name| daemon(&get(name)?)) {
                    Some(daemon) => {
                        let node = host.as_ref().map(|host| format!("{host}-{daemon}"));
                        (local_size, format!("{job}-{daemon}"), host, node)
                    }
                    None => (local_size, job, host.clone(), host),
                }
            }
            Manager::Hydra => {
                let socket = get("PMI_FD").ok_or_else(|| missing("PMI_FD"))?;
                let manager = manager_of(&socket).ok_or_else(|| {
                    Error::Managed(format!(
                        "the descriptor {socket} (PMI_FD) does not lead to {}: start \
                         `samite join` by it directly, and where the kernel (Linux 5.6 or newer) \
                         and the container allow pidfd_getfd",
                        names.manager
                    ))
                })?;
                let job = manager.as_raw_nonzero().to_string();
                let node = get("MPIR_CVAR_CH3_INTERFACE_HOSTNAME");
                (number("MPI_LOCALNRANKS")?, job, node.clone(), node)
            }
            Manager::Slurm => {
                let tasks = get("SLURM_STEP_TASKS_PER_NODE").ok_or_else(|| {
                    Error::Managed(
                        "this is a job of Slurm, but no step of it: write `srun samite join \
                         PROGRAM`"
                            .to_owned(),
                    )
                })?;
                let node = number("SLURM_NODEID")?;
                let local_size = tasks_of_node(&tasks, node).ok_or_else(|| {
                    Error::Managed(format!(
                        "SLURM_STEP_TASKS_PER_NODE is \"{tasks}\", which has no node {node}"
                    ))
                })?;
                let (job, step) = (number("SLURM_JOB_ID")?, number("SLURM_STEP_ID")?);
                // Several nodes of Slurm may be one machine.
                let job = format!("{job}-{step}-{node}");
                let node = get("SLURMD_NODENAME");
                (local_size, job, node.clone(), node)
            }
        };
        let (rank, size) = (number(names.rank)?, number(names.size)?);
        let programs = match names.manager {
            Manager::OpenMpi => get("OMPI_APP_CTX_NUM_PROCS"),
            Manager::Hydra | Manager::Slurm => None,
        };
        let of_program = programs.and_then(|counts| place_in(&counts, rank));
        let place = Place {
            manager: names.manager,
            job: name_of(names.manager, &job),
            host,
            node,
            rank,
            size,
            of_program: of_program.unwrap_or((rank, size)),
            local_rank: number(names.local_rank)?,
            local_size,
        };
        let is_inside = place.rank < place.size && place.local_rank < place.local_size;
        match is_inside && place.local_size <= place.size {
            true => Ok(place),
            false => Err(Error::Managed(format!(
                "the variables of {} make no sense: {place:?}",
                names.manager
            ))),
        }
    }

    /// Returns whether all processes of the job are on this machine.
    pub fn is_on_one_node(&self) -> bool {
        self.local_size == self.size
    }
}

/// Returns a name for a job, which is also that of its domain.
fn name_of(manager: Manager, job: &str) -> String {
    let manager = match manager {
        Manager::OpenMpi => "mpirun",
        Manager::Hydra => "mpiexec",
        Manager::Slurm => "srun",
    };
    let is_plain = |of: char| of.is_ascii_alphanumeric() || of == '-';
    let job = job.replace(|of| !is_plain(of), "-");
    format!("{manager}-{job}")
}

/// Returns how many tasks a node has, of a list such as `2(x3),1`.
fn tasks_of_node(list: &str, node: u32) -> Option<u32> {
    let mut before = 0_u32;
    for item in list.split(',') {
        let (tasks, times) = match item.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (item, 1),
        };
        before = before.checked_add(times)?;
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

/// Returns the place of a rank in its program, and how many processes that has: `counts` are those
/// of the programs, in the order of ranks.
fn place_in(counts: &str, rank: u32) -> Option<(u32, u32)> {
    let mut first = 0_u32;
    for count in counts.split_whitespace() {
        let count = count.parse::<u32>().ok()?;
        let end = first.checked_add(count)?;
        if rank < end {
            return Some((rank - first, count));
        }
        first = end;
    }
    None
}

/// Returns the process at the other end of a socket, which is a descriptor of this process.
fn manager_process(descriptor: &str) -> Option<Pid> {
    let socket = own_descriptor(descriptor)?;
    Pid::from_raw(peer_credentials(socket).ok()?.pid)
}

/// Returns a copy of a descriptor of this process, which it has from its parent by this number.
pub(super) fn own_descriptor(number: &str) -> Option<OwnedFd> {
    let myself = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
    let number = number.parse().ok()?;
    pidfd_getfd(myself, number, PidfdGetfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(set: &[(&str, &str)]) -> Result<Place, String> {
        let get = |name: &str| {
            let found = set.iter().find(|(of, _)| *of == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let manager = |socket: &str| (socket == "6").then(|| Pid::from_raw(77)).flatten();
        Place::of(&get, &manager).map_err(|error| error.to_string())
    }

    const OPEN_MPI: [(&str, &str); 8] = [
        ("OMPI_APP_CTX_NUM_PROCS", "1 3"),
        (
            "PMIX_SERVER_URI4",
            "prterun-host-7@0.2;tcp4://127.0.0.1:44473",
        ),
        ("PMIX_HOSTNAME", "node7"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "prterun-host-7@1"),
    ];
    const HYDRA: [(&str, &str); 5] = [
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "2"),
        ("PMI_FD", "6"),
    ];
    const SLURM: [(&str, &str); 7] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_STEP_NUM_TASKS", "7"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
    ];

    #[test]
    fn each_manager_says_where_a_process_is() {
        let numbers = |place: Place| {
            let Place { rank, size, .. } = place;
            let local = (place.local_rank, place.local_size);
            (place.manager, place.job, (rank, size), local)
        };
        let found = place(&OPEN_MPI).map(numbers);
        let job = "mpirun-prterun-host-7-1-2".to_owned();
        assert_eq!(found, Ok((Manager::OpenMpi, job, (3, 4), (1, 2))));
        let found = place(&HYDRA).map(numbers);
        let job = "mpiexec-77".to_owned();
        assert_eq!(found, Ok((Manager::Hydra, job, (1, 2), (1, 2))));
        let found = place(&SLURM).map(numbers);
        let job = "srun-12-0-2".to_owned();
        assert_eq!(found, Ok((Manager::Slurm, job, (5, 7), (1, 2))));
        let found = place(&OPEN_MPI).unwrap();
        let names = (found.host.as_deref(), found.node.as_deref());
        assert_eq!(names, (Some("node7"), Some("node7-2")));
        assert_eq!(found.of_program, (2, 3));
        assert_eq!(place(&SLURM).unwrap().of_program, (5, 7));
        assert!(place(&HYDRA).unwrap().is_on_one_node());
        assert!(!place(&SLURM).unwrap().is_on_one_node());
        // A script of Slurm that calls mpirun.
        let both = [&SLURM[..], &OPEN_MPI].concat();
        assert_eq!(place(&both).unwrap().manager, Manager::OpenMpi);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        assert!(place(&[]).unwrap_err().contains("mpirun -n 4 samite join"));
        let changed = |of: &[(&'static str, &'static str)], name, value| {
            let mut of = of.to_vec();
            of.retain(|(had, _)| *had != name);
            of.push((name, value));
            place(&of).unwrap_err()
        };
        for (of, name, value, says) in [
            (&OPEN_MPI[..], "OMPI_COMM_WORLD_RANK", "4", "make no sense"),
            (
                &OPEN_MPI,
                "OMPI_COMM_WORLD_LOCAL_SIZE",
                "9",
                "make no sense",
            ),
            (
                &OPEN_MPI,
                "OMPI_COMM_WORLD_SIZE",
                "x",
                "COMM_WORLD_SIZE is \"x\"",
            ),
            (&HYDRA, "PMI_FD", "7", "the descriptor 7 (PMI_FD)"),
            (&HYDRA, "MPI_LOCALNRANKS", "-1", "MPI_LOCALNRANKS is \"-1\""),
            (&SLURM, "SLURM_NODEID", "4", "has no node 4"),
        ] {
            let said = changed(of, name, value);
            assert!(said.contains(says), "{name}: {said}");
        }
        let without: Vec<_> = (OPEN_MPI.into_iter())
            .filter(|(name, _)| *name != "PMIX_NAMESPACE")
            .collect();
        let said = place(&without).unwrap_err();
        assert!(said.contains("PMIX_NAMESPACE is not set"), "{said}");
    }

    #[test]
    fn ranks_count_in_their_program() {
        let places = |counts| [0, 1, 3, 4].map(|rank| place_in(counts, rank));
        let of_two = [Some((0, 1)), Some((0, 3)), Some((2, 3)), None];
        assert_eq!(places("1 3"), of_two);
        assert_eq!(
            places("4"),
            [Some((0, 4)), Some((1, 4)), Some((3, 4)), None]
        );
        assert_eq!(places("x"), [None; 4]);
    }

    #[test]
    fn tasks_are_counted_by_node() {
        let counts = |list| [0, 1, 2, 3].map(|node| tasks_of_node(list, node));
        assert_eq!(counts("2(x3),1"), [Some(2), Some(2), Some(2), Some(1)]);
        assert_eq!(counts("4,2"), [Some(4), Some(2), None, None]);
        assert_eq!(counts("2(x,1"), [None; 4]);
        assert_eq!(counts(""), [None; 4]);
        assert_eq!(counts("1(x4294967295),2"), [Some(1); 4]);
    }
}

//! Processes that a process manager has started: `mpirun` of Open MPI, `mpiexec` of MPICH and of
//! Intel MPI, `srun` of Slurm. They become the units of a job.
//!
//! `place` what the manager says of a process · `attendance` how the agent of a node knows when the
//! units of that node have ended · `exchange` of addresses between machines, by PMIx or by `pmi`
//! (PMI-1)
//!
//! ```text
//!  mpirun -n 3 samite join ./program
//!    samite join, rank 0: starts `samite agent --units 3`, says that it is here, becomes ./program
//!    samite join, rank 1, 2:              wait for the agent, say that they are here, the same
//!    agent: ends when the three processes that were here have ended
//! ```
//!
//! On several machines, the first process of each starts an agent. That of rank 0 is the first
//! agent; its address and the secret of the domain go to the others by the process manager.
//!
//! A process keeps its number when it becomes the program, so signals of the manager reach the
//! program, and the agent watches it by a descriptor of the process (`pidfd`): nothing of Samite
//! stays in the program, and a killed one is noticed like one that ends.

mod attendance;
mod exchange;
mod place;
mod pmi;

pub use attendance::{Attendance, attend};
pub use exchange::Exchange;
pub use place::{Manager, Place};

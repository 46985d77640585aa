//! Starts the units of a job, shows their output, and ensures that all of them end.
//!
//! # Core objects
//! * [`Workflow`]: a TOML file that names programs, their arguments and how many units each has.
//! * [`Plan`]: everything that is needed to start a job, fully resolved: each program is an
//!   executable that exists, and the configuration is complete.
//! * [`run`]: runs a plan to its end. One thread, one poll; children are reaped when the kernel
//!   reports that they have ended, never by a timer.
//! * [`Event`]: what the caller is told meanwhile: lines, progress reports, starts and ends.
//! * [`Interrupts`]: Ctrl-C, Ctrl-Z and similar signals in a form that [`run`] can wait for.
//! * [`Backlog`]: what the caller has not shown yet, so that a reader that stops reading does not
//!   stop the launcher.
//!
//! # File map
//! `plan` the plan and the search for a program · `workflow` the file, its programs and edges ·
//! `parameters` the values that a workflow leaves open · `source` lines and nearest names for
//! messages · `setup` what a unit is started with · `spawn` one process · `units` which run ·
//! `hosts` the machines of a job on several · `managed` processes that `mpirun` or `srun` has
//! started · `files` for input and output · `agent` the start of
//! the agent · `output` lines from pipes · `words` the last words of a process · `backlog` lines
//! that are not read yet · `job` the run (`judge`: what ends mean, `far`: units of other machines)
//! · `reap` children that have ended · `cause` which failure was the first one · `signals` signals
//! as file descriptors · `limits` file descriptors · `exec` what a new unit does before it becomes
//! its program · `guard` ends groups after the launcher was killed · `error`.
//!
//! # Rules
//! * Every process leads its own group. The whole group is killed when the process ends, or when
//!   the launcher does, even by kill -9. Processes that leave the group (`setsid`, a daemon) are
//!   not followed: their output is not read once their unit has ended, and they may stay. If
//!   launcher and guard are killed at once, or the guard is stopped, nothing ends the groups
//!   either.
//! * Nothing is started before every program of the job is known to exist.
//! * The first failure ends the job, unless the unit is started again or optional. The failure
//!   that was the cause is reported, with the unit's last lines: an error that says that another
//!   unit was lost is a consequence.
//! * File descriptors: two pipes per unit, or one if the limit is low and both streams go to the
//!   same place; one for each file that gets output; nothing else per unit.
//! * The launcher never waits for the reader of its output, for processes that a unit left behind,
//!   or for its guard: signals are always handled.
//!
//! # Progress reports
//! A unit that reports progress prints a line that starts with the character RECORD SEPARATOR:
//! `\x1eprogress {"step":3,"of":100,"note":"residual 1e-3"}`; `of` and `note` are optional. The
//! line is not shown; it becomes [`Event::Progress`].
//!
//! # Example
//! ```
//! use samite_launch::{Event, Plan, Program, run};
//!
//! let mut plan = Plan::new("greeting");
//! plan.programs.push(Program::new("hello", "/bin/echo").units(2).args(["hi"]));
//! let mut lines = Vec::new();
//! run(&plan, None, &mut |event| {
//!     if let Event::Line(line) = event {
//!         line.write_to(&mut lines).expect("a Vec takes everything");
//!     }
//! })?;
//! assert_eq!(String::from_utf8_lossy(&lines).matches("] hi").count(), 2);
//! # Ok::<(), samite_launch::Error>(())
//! ```
#![forbid(unsafe_code)]

mod agent;
mod backlog;
mod cause;
mod error;
mod exec;
mod files;
mod guard;
mod hosts;
mod job;
mod limits;
mod managed;
mod output;
mod parameters;
mod plan;
mod reap;
mod setup;
mod signals;
mod source;
mod spawn;
mod units;
mod words;
mod workflow;

pub use backlog::Backlog;
pub use cause::follows_a_loss;
pub use error::{Error, Exit};
pub use exec::ExecUnit;
pub use guard::guard;
pub use hosts::{HostSide, Node, serve};
pub use job::run;
pub use limits::{files_allowed, files_needed};
pub use managed::{Attendance, Exchange, Manager, Place, attend};
pub use output::{Event, Line, Progress, Stream};
pub use parameters::Parameter;
pub use plan::{Cpus, Host, Name, Plan, Program, find_program};
pub use setup::Setup;
pub use signals::Interrupts;
pub use source::nearest;
pub use workflow::{Builtins, Run, Workflow, workflow_schema};

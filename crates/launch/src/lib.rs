//! Starts the units of a job, shows what they say, and sees to it that all of them end.
//!
//! # Core objects
//! * [`Workflow`]: a TOML file that names programs, their arguments and how many units each has.
//! * [`Plan`]: everything that is needed to start a job, all questions answered: each program is an
//!   executable that exists, the configuration is resolved.
//! * [`run`]: runs a plan to its end. One thread, one poll; children are reaped when the kernel
//!   says that they ended, never by a timer.
//! * [`Event`]: what the caller is told meanwhile: lines, progress reports, starts and ends.
//! * [`Interrupts`]: Ctrl-C, Ctrl-Z and their relatives as something that [`run`] can wait for.
//! * [`Backlog`]: what the caller has not shown yet, so that nobody who stops reading stops the
//!   launcher.
//!
//! # File map
//! `plan` the plan and the search for a program · `workflow` the file, its programs and edges ·
//! `parameters` the values that a workflow leaves open · `source` lines and nearest names for
//! messages · `spawn` one process · `agent` the start of the agent · `output` lines out of pipes ·
//! `backlog` lines that nobody reads · `job` the run · `signals` signals as file descriptors ·
//! `limits` file descriptors · `exec` what a new unit does before it becomes its program · `guard`
//! what outlives a launcher that is killed · `error`.
//!
//! # Rules
//! * Every process leads its own group, and the whole group goes when it ends, or when the launcher
//!   does, also by kill -9. What leaves the group (`setsid`, a daemon) is not followed: its output
//!   is not read any more once its unit has ended, and it may stay. Nor is anybody followed whose
//!   launcher and guard are killed at once, or whose guard somebody has stopped.
//! * Nothing is started before every program of the job is known to exist.
//! * The first failure ends the job and is the one that is reported, with the unit's last words.
//! * File descriptors: two pipes for a unit, or one when the limit is low; nothing else per unit.
//! * The launcher never waits for who reads its output, nor for what a unit left behind, nor for
//!   its guard: signals are always heard.
//!
//! # Progress reports
//! A unit that has something for the progress bar prints a line that starts with the character
//! RECORD SEPARATOR: `\x1eprogress {"step":3,"of":100,"note":"residual 1e-3"}`; `of` and `note` may
//! be left out. The line is not shown; it becomes [`Event::Progress`].
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
mod error;
mod exec;
mod guard;
mod job;
mod limits;
mod output;
mod parameters;
mod plan;
mod signals;
mod source;
mod spawn;
mod workflow;

pub use backlog::Backlog;
pub use error::{Error, Exit};
pub use exec::ExecUnit;
pub use guard::guard;
pub use job::run;
pub use output::{Event, Line, Progress, Stream};
pub use parameters::Parameter;
pub use plan::{Cpus, Name, Plan, Program, find_program};
pub use signals::Interrupts;
pub use source::nearest;
pub use workflow::{Builtins, Workflow};

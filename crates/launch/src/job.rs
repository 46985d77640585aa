//! A job from its first process to its last.
//!
//! ```text
//! running --(a unit failed, the agent ended, Ctrl-C)--> ending --(grace is over, Ctrl-C)--> killing
//!    |                                                     |                                   |
//!    +------------------ all units have ended -------------+-----------------------------------+
//!                                 |
//!                      SIGTERM to the agent, the same ladder, the end
//! ```
//! The loop waits for output, ended children and signals at once. It looks at children after their
//! wake-up was cleared, so an end in between causes one more round and never a lost one.

use crate::agent;
use crate::error::{Error, Exit};
use crate::limits;
use crate::output::Event;
use crate::plan::{Name, Plan};
use crate::signals::{ChildWatch, Interrupts};
use crate::spawn::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Runs a plan to its end and returns when no process of it is left.
///
/// `on_event` is called from this thread, in the order of events of one process; it should be quick,
/// since units that print wait for it. Call this from a thread that lives as long as the job: the
/// kernel ends processes that were started through [`Plan::starter`] with the thread that did.
///
/// # Errors
/// The first thing that went wrong; [`Error::exit_code`] is the exit code to end with.
pub fn run(
    plan: &Plan,
    interrupts: Option<&Interrupts>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(), Error> {
    let wanted = plan.units();
    if wanted == 0 {
        return Err(Error::NothingToRun {
            job: plan.job.clone(),
        });
    }
    let pipes = limits::pipes_for(wanted)?;
    let children = ChildWatch::install()?;
    let agent = match &plan.agent {
        Some(argv) => Some(agent::start(plan, argv, &children, interrupts, on_event)?),
        None => None,
    };
    let units = Process::start_units(plan, pipes, on_event)?;
    tracing::info!(job = plan.job, units = wanted, ?pipes, "started");
    let mut job = Job {
        processes: units.into_iter().chain(agent).collect(),
        children,
        interrupts,
        grace: plan.grace,
        ending: None,
        failure: None,
    };
    job.run_units(on_event)?;
    job.end_agent(on_event)?;
    job.failure.map_or(Ok(()), Err)
}

struct Job<'a> {
    /// The units in order, then the agent if there is one.
    processes: Vec<Process>,
    children: ChildWatch,
    interrupts: Option<&'a Interrupts>,
    grace: Duration,
    ending: Option<Ending>,
    failure: Option<Error>,
}

/// How far the end has come.
enum Ending {
    /// All were asked; at this time they are killed.
    Asked(Instant),
    Killed,
}

impl Job<'_> {
    fn run_units(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        while self
            .processes
            .iter()
            .any(|process| is_unit(process) && !process.has_ended())
        {
            self.wait(on_event)?;
            let ended = self.reap(on_event);
            if let Some(error) = self.judge(&ended) {
                self.fail(error);
            }
            self.hear_interrupts();
            self.lose_patience();
        }
        Ok(())
    }

    /// The units are gone; the agent has nothing left to serve.
    fn end_agent(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        if !matches!(self.ending, Some(Ending::Killed)) {
            self.ask_to_end();
        }
        while self.processes.iter().any(|process| !process.has_ended()) {
            self.wait(on_event)?;
            let ended = self.reap(on_event);
            // Units may fail of its loss before it can be reaped: its files close first. Asked to
            // end it may end as it likes, but not by a signal that nobody here sent.
            let killed =
                |exit| matches!(exit, Exit::Signal(signal) if signal != Signal::TERM.as_raw());
            if self.failure.is_some() && ended.iter().any(|&(_, exit)| killed(exit)) {
                self.judge(&ended)
                    .into_iter()
                    .for_each(|error| self.fail(error));
            }
            self.hear_interrupts();
            self.lose_patience();
        }
        Ok(())
    }

    /// Waits until something happens, and passes on what was printed.
    fn wait(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        let mut fds = vec![PollFd::new(&self.children, PollFlags::IN)];
        if let Some(interrupts) = self.interrupts {
            fds.push(PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN));
        }
        let first = fds.len();
        let readers = self
            .processes
            .iter()
            .flat_map(|process| process.output.readers());
        fds.extend(readers.map(|reader| PollFd::new(reader, PollFlags::IN)));
        let timeout = match &self.ending {
            Some(Ending::Asked(deadline)) => {
                Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()
            }
            Some(Ending::Killed) | None => None,
        };
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(source) => return Err(Error::system("wait for its units", source)),
        }
        let ready: Vec<bool> = fds[first..]
            .iter()
            .map(|fd| !fd.revents().is_empty())
            .collect();
        let mut ready = ready.as_slice();
        for process in &mut self.processes {
            let (own, others) = ready.split_at(process.output.readers().count());
            process.output.read(&process.name, own, on_event);
            ready = others;
        }
        Ok(())
    }

    /// Reaps until a look at all children finds no more; returns who ended, and how.
    ///
    /// More than one look, because a unit that ends may take another with it while this one looks:
    /// then both are in the list, and [`Job::judge`] can tell cause from effect.
    fn reap(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Vec<(usize, Exit)> {
        self.children.clear();
        let mut ended = Vec::new();
        loop {
            let before = ended.len();
            for (index, process) in self.processes.iter_mut().enumerate() {
                if let Some(exit) = process.reap() {
                    process.output.finish(&process.name, on_event);
                    on_event(Event::Ended {
                        name: &process.name,
                        exit,
                    });
                    ended.push((index, exit));
                }
            }
            if ended.len() == before {
                return ended;
            }
        }
    }

    /// What the ends of processes mean for the job. When several ended, the cause comes first: the
    /// agent, whose loss units notice; then death by a signal, which other units notice; then a code.
    fn judge(&self, ended: &[(usize, Exit)]) -> Option<Error> {
        let units_left = self
            .processes
            .iter()
            .any(|process| is_unit(process) && !process.has_ended());
        let mut failures: Vec<_> = ended
            .iter()
            .map(|&(index, exit)| (&self.processes[index], exit))
            .filter(|(process, exit)| !exit.is_success() || (!is_unit(process) && units_left))
            .collect();
        failures.sort_by_key(|(process, exit)| (is_unit(process), matches!(exit, Exit::Code(_))));
        let &(process, exit) = failures.first()?;
        let said = process.output.last_words();
        Some(if is_unit(process) {
            Error::UnitFailed {
                unit: process.name.clone(),
                exit,
                said,
            }
        } else {
            Error::AgentLost { exit, said }
        })
    }

    /// Remembers the first failure and asks the others to end. The loss of the agent, unless it was
    /// killed from here, is the cause even of failures that were seen before it.
    fn fail(&mut self, error: Error) {
        let killed = matches!(self.ending, Some(Ending::Killed));
        let is_cause = match &self.failure {
            None => true,
            Some(Error::UnitFailed { exit, .. }) => {
                matches!(exit, Exit::Code(_)) && matches!(error, Error::AgentLost { .. }) && !killed
            }
            Some(_) => false,
        };
        if is_cause {
            self.failure = Some(error);
        }
        if self.ending.is_none() {
            self.ask_to_end();
        }
    }

    fn hear_interrupts(&mut self) {
        let Some((count, signal)) = self.interrupts.and_then(Interrupts::take) else {
            return;
        };
        let again = self.ending.is_some() || count > 1;
        self.fail(Error::Interrupted { signal });
        if again {
            self.kill();
        }
    }

    fn lose_patience(&mut self) {
        if let Some(Ending::Asked(deadline)) = self.ending
            && Instant::now() >= deadline
        {
            self.kill();
        }
    }

    /// SIGTERM, and SIGCONT for those that are stopped and could not hear it. The agent stays while
    /// there are units: they may need it to end well.
    fn ask_to_end(&mut self) {
        let units_left = self
            .processes
            .iter()
            .any(|process| is_unit(process) && !process.has_ended());
        for process in self
            .processes
            .iter()
            .filter(|process| is_unit(process) || !units_left)
        {
            process.signal(Signal::TERM);
            process.signal(Signal::CONT);
        }
        self.ending = Some(Ending::Asked(Instant::now() + self.grace));
    }

    fn kill(&mut self) {
        for process in &self.processes {
            process.signal(Signal::KILL);
        }
        self.ending = Some(Ending::Killed);
    }
}

fn is_unit(process: &Process) -> bool {
    process.name != Name::agent()
}

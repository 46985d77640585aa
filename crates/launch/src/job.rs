//! A job from its first process to its last.
//!
//! ```text
//! running --(a unit failed, the agent ended, Ctrl-C)--> ending --(grace is over, Ctrl-C again)--> killing
//!    |                                                     |                                   |
//!    +------------------ all units have ended -------------+-----------------------------------+
//!                                 |
//!                      SIGTERM to the agent, the same ladder, the end
//! ```
//! The loop waits for output, ended children and signals at once. It looks at children when the
//! kernel says that one changed, after that wake-up was cleared, so an end in between causes one
//! more round and never a lost one. While the caller has too much to show no output is read;
//! everything else goes on.

use crate::Backlog;
use crate::agent;
use crate::error::{Error, Exit};
use crate::guard::Guard;
use crate::limits;
use crate::output::Event;
use crate::plan::{Name, Plan};
use crate::signals::{ChildWatch, Interrupts};
use crate::spawn::{Process, stop_with};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Runs a plan to its end and returns when no process of it is left.
///
/// `on_event` is called from this thread, in the order of events of one process; it should be
/// quick, since units that print wait for it. Call this from a thread that lives as long as the
/// job: the kernel ends processes that were started through [`Plan::starter`] with the thread that
/// did.
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
    let guard = plan.starter.as_deref().map(Guard::start).transpose();
    let mut guard = guard.map_err(|source| Error::system("start its guard", source))?;
    let agent = match &plan.agent {
        Some(argv) => Some(agent::start(plan, argv, &children, interrupts, on_event)?),
        None => None,
    };
    let mut on_start = |pid| guard.iter_mut().for_each(|guard| guard.watch(pid));
    agent.iter().for_each(|agent| on_start(agent.pid()));
    let units = Process::start_units(plan, pipes, &mut on_start, on_event)?;
    tracing::info!(job = plan.job, units = wanted, ?pipes, "started");
    let processes: Vec<Process> = units.into_iter().chain(agent).collect();
    let numbers = processes.iter().map(Process::pid).zip(0..);
    let mut job = Job {
        numbers: numbers.collect(),
        processes,
        guard,
        children,
        interrupts,
        backlog: plan.backlog.as_ref(),
        grace: plan.grace,
        ending: None,
        wishes: Wishes::default(),
        failure: None,
    };
    job.run_units(on_event)?;
    job.end_agent(on_event)?;
    job.failure.map_or(Ok(()), Err)
}

struct Job<'a> {
    /// The units in order, then the agent if there is one.
    processes: Vec<Process>,
    /// Which of them a process id is.
    numbers: BTreeMap<u32, usize>,
    guard: Option<Guard>,
    children: ChildWatch,
    interrupts: Option<&'a Interrupts>,
    backlog: Option<&'a Backlog>,
    grace: Duration,
    ending: Option<Ending>,
    wishes: Wishes,
    failure: Option<Error>,
}

/// How far the end has come.
enum Ending {
    /// All were asked, and are killed if they take too long.
    Asked {
        until: Instant,
    },
    Killed,
}

/// Two signals within this time are one wish: `timeout` signals the process and then its group.
const ONE_WISH: Duration = Duration::from_millis(500);

/// When somebody first asked for the end by a signal.
#[derive(Debug, Default)]
struct Wishes {
    first: Option<Instant>,
}

impl Wishes {
    /// A signal came; whether it is another wish than the first one.
    fn is_another(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        now.duration_since(first) >= ONE_WISH
    }

    /// The launcher itself was stopped for so long.
    fn leave_out(&mut self, stopped: Duration) {
        if let Some(first) = &mut self.first {
            *first += stopped;
        }
    }
}

/// A child of this process that has ended and that nobody has reaped, if there is one. One question
/// for all of them.
fn ended_child() -> Option<u32> {
    let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let pid = waitid(Id::All, options).ok()?.pid()?;
    Some(pid.as_raw().unsigned_abs())
}

/// Reaps until no child is left that has ended; who ended, and how. The kernel is asked for those
/// that have, by `ended_child`: a wake-up costs as much as there are ends, and not as there are
/// processes. `reap` asks for one of them.
fn reap_ended(
    numbers: &BTreeMap<u32, usize>,
    mut ended_child: impl FnMut() -> Option<u32>,
    mut reap: impl FnMut(usize) -> Option<Exit>,
) -> Vec<(usize, Exit)> {
    let mut ended = Vec::new();
    while let Some(pid) = ended_child() {
        let Some(&index) = numbers.get(&pid) else {
            // A child of somebody else in this process, who has not reaped it yet: ours may be
            // behind it.
            let all = numbers.values();
            ended.extend(all.filter_map(|&index| Some((index, reap(index)?))));
            break;
        };
        match reap(index) {
            Some(exit) => ended.push((index, exit)),
            None => break,
        }
    }
    ended
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
            self.time_out();
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
            self.time_out();
        }
        Ok(())
    }

    /// Waits until something happens, and passes on what was printed.
    fn wait(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        let mut fds = vec![PollFd::new(&self.children, PollFlags::IN)];
        if let Some(interrupts) = self.interrupts {
            fds.push(PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN));
        }
        let full = self.backlog.filter(|backlog| backlog.is_full());
        fds.extend(full.map(|backlog| PollFd::from_borrowed_fd(backlog.as_fd(), PollFlags::IN)));
        let first = fds.len();
        let readers = self
            .processes
            .iter()
            .filter(|_| full.is_none())
            .flat_map(|process| process.output.readers());
        fds.extend(readers.map(|reader| PollFd::new(reader, PollFlags::IN)));
        let timeout = match &self.ending {
            Some(Ending::Asked { until }) => {
                Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()
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
        if full.is_some() {
            return Ok(());
        }
        let mut ready = ready.as_slice();
        for process in &mut self.processes {
            let (own, others) = ready.split_at(process.output.readers().count());
            process.output.read(&process.name, own, on_event);
            ready = others;
        }
        Ok(())
    }

    /// Reaps until no child is left that has ended; returns who ended, and how.
    ///
    /// More than one look, because a unit that ends may take another with it while this one looks:
    /// then both are in the list, and [`Job::judge`] can tell cause from effect.
    fn reap(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Vec<(usize, Exit)> {
        if !self.children.clear() {
            return Vec::new();
        }
        let numbers = std::mem::take(&mut self.numbers);
        let ended = reap_ended(&numbers, ended_child, |index| {
            self.reap_one(index, on_event)
        });
        self.numbers = numbers;
        ended
    }

    fn reap_one(&mut self, index: usize, on_event: &mut dyn FnMut(Event<'_>)) -> Option<Exit> {
        let process = &mut self.processes[index];
        let exit = process.reap()?;
        if let Some(guard) = &mut self.guard {
            guard.forget(process.pid());
        }
        process.output.finish(&process.name, on_event);
        on_event(Event::Ended {
            name: &process.name,
            exit,
        });
        Some(exit)
    }

    /// What the ends of processes mean for the job. When several ended, the cause comes first: the
    /// agent, whose loss units notice; then death by a signal, which other units notice; then a
    /// code.
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
        let Some(interrupts) = self.interrupts else {
            return;
        };
        let heard = interrupts.take();
        if heard.stop {
            self.stop();
        }
        let Some(signal) = heard.end else {
            return;
        };
        // The end may have begun for another reason: then the units clean up, and one signal does
        // not break that off.
        let is_another = self.wishes.is_another(Instant::now());
        self.fail(Error::Interrupted { signal });
        if is_another {
            self.kill();
        }
    }

    /// Stops everything until somebody continues the launcher; the time is not counted.
    fn stop(&mut self) {
        let before = Instant::now();
        stop_with(&self.processes);
        if let Some(Ending::Asked { until }) = &mut self.ending {
            *until += before.elapsed();
        }
        self.wishes.leave_out(before.elapsed());
    }

    fn time_out(&mut self) {
        if let Some(Ending::Asked { until }) = self.ending
            && Instant::now() >= until
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
        let until = Instant::now() + self.grace;
        self.ending = Some(Ending::Asked { until });
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Sixty-four processes, of which these have ended, and how often each question was asked of
    /// the kernel.
    struct Children {
        ended: RefCell<Vec<u32>>,
        asked_for_any: Cell<usize>,
        asked_for_one: Cell<usize>,
    }

    const MANY: u32 = 64;
    const FIRST_PID: u32 = 100;

    impl Children {
        fn reap(ended: &[u32]) -> (Vec<usize>, usize, usize) {
            let children = Children {
                ended: RefCell::new(ended.to_vec()),
                asked_for_any: Cell::new(0),
                asked_for_one: Cell::new(0),
            };
            let numbers = (0..MANY).map(|number| (FIRST_PID + number, number as usize));
            let any = || {
                children.asked_for_any.update(|count| count + 1);
                children.ended.borrow().first().copied()
            };
            let one = |index: usize| {
                children.asked_for_one.update(|count| count + 1);
                let mut ended = children.ended.borrow_mut();
                let at = ended
                    .iter()
                    .position(|pid| *pid == FIRST_PID + index as u32)?;
                ended.remove(at);
                Some(Exit::Code(0))
            };
            let reaped = reap_ended(&numbers.collect(), any, one);
            let reaped = reaped.into_iter().map(|(index, _)| index).collect();
            let asked = (children.asked_for_any.get(), children.asked_for_one.get());
            (reaped, asked.0, asked.1)
        }
    }

    /// A wake-up without an end is one question to the kernel, whatever the number of units; each
    /// end adds one, and one for the unit that ended.
    #[test]
    fn a_wake_up_asks_no_unit_that_has_not_ended() {
        assert_eq!(Children::reap(&[]), (Vec::new(), 1, 0));
        let two = [FIRST_PID + 63, FIRST_PID + 7];
        assert_eq!(Children::reap(&two), (vec![63, 7], 3, 2));
    }

    /// A child of somebody else in this process hides nobody who ended behind it.
    #[test]
    fn a_child_of_somebody_else_hides_no_end() {
        let stranger = 7;
        assert_eq!(Children::reap(&[stranger]).0, [0; 0]);
        let (reaped, ..) = Children::reap(&[stranger, FIRST_PID + 7]);
        assert_eq!(reaped, [7]);
        let (reaped, ..) = Children::reap(&[FIRST_PID + 3, stranger, FIRST_PID + 7]);
        assert_eq!(reaped, [3, 7]);
    }

    /// One wish is the first signal and what follows it at once, whenever the end began; what the
    /// launcher was stopped for is not counted.
    #[test]
    fn signals_are_another_wish_after_a_while() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut wishes = Wishes::default();
        // However long the end has been going on by then.
        assert!(!wishes.is_another(at(60_000)));
        assert!(!wishes.is_another(at(60_499)));
        assert!(wishes.is_another(at(60_500)));
        let mut wishes = Wishes::default();
        assert!(!wishes.is_another(at(0)));
        wishes.leave_out(Duration::from_secs(60));
        assert!(!wishes.is_another(at(60_100)));
        assert!(wishes.is_another(at(60_600)));
    }
}

//! A job from its first process to its last.
//!
//! ```text
//! running --(a unit failed, agent ended, Ctrl-C)--> ending --(grace over, Ctrl-C again)--> killing
//!    |                                                 |                                  |
//!    +----------------- all units have ended ----------+----------------------------------+
//!                                 |
//!                      SIGTERM to the agent, the same stages, the end
//! ```
//! The loop waits for output, ended children and signals at once. When the kernel reports that a
//! child has changed, the loop clears the wake-up and then checks the children, so an end in
//! between causes one more round but is never missed. While the caller has too much output to show,
//! no output is read; everything else continues.

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
/// `on_event` is called from this thread, in order for the events of one process. It should be
/// quick, because units that print wait for it. Call `run` from a thread that lives as long as the
/// job: when the thread that started processes through [`Plan::starter`] ends, the kernel ends
/// these processes.
///
/// # Errors
/// The first failure; [`Error::exit_code`] is the exit code to end with.
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
    check_length(plan)?;
    let pipes = limits::pipes_for(wanted)?;
    let children = ChildWatch::install()?;
    let guard = plan.starter.as_deref().map(Guard::start).transpose();
    let mut guard = guard.map_err(|source| Error::system("start its guard", source))?;
    // The agent has to be ready before any unit starts.
    let agent = match &plan.agent {
        Some(argv) => Some(agent::start(plan, argv, &children, interrupts, on_event)?),
        None => None,
    };
    // The guard learns of each unit's group as soon as it exists. An agent that is not ready has
    // started no other process.
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

/// Refuses settings that do not fit into one environment variable.
fn check_length(plan: &Plan) -> Result<(), Error> {
    // The kernel allows each string 32 pages, with the name and a zero at the end.
    let most = 32 * rustix::param::page_size() - "SAMITE_CONFIG=\0".len();
    let bytes = plan.config.len();
    if bytes > most {
        let job = plan.job.clone();
        return Err(Error::SettingsTooLong { job, bytes, most });
    }
    Ok(())
}

struct Job<'a> {
    /// The units in order, then the agent if there is one.
    processes: Vec<Process>,
    /// The index of the process with a process id.
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

/// The progress of ending the job.
enum Ending {
    /// All were asked to end, and are killed if they take too long; `None`: they may take forever.
    Asked {
        until: Option<Instant>,
    },
    Killed,
}

/// Two signals within this time count as one request: `timeout` signals the process and then its
/// group.
const ONE_WISH: Duration = Duration::from_millis(500);

/// When a signal first asked the job to end.
#[derive(Debug, Default)]
struct Wishes {
    first: Option<Instant>,
}

impl Wishes {
    /// Records a signal. Returns true if it is another request than the first one.
    fn is_another(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        now.duration_since(first) >= ONE_WISH
    }

    /// Excludes the time for which the launcher itself was stopped.
    fn leave_out(&mut self, stopped: Duration) {
        if let Some(first) = &mut self.first {
            *first += stopped;
        }
    }
}

/// Returns a child of this process that has ended and is not reaped yet, if there is one. A single
/// system call for all children.
fn ended_child() -> Option<u32> {
    let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let pid = waitid(Id::All, options).ok()?.pid()?;
    Some(pid.as_raw().unsigned_abs())
}

/// Reaps until no ended child is left. Returns which processes ended, and how. `ended_child` asks
/// the kernel for children that have ended, so the cost of a wake-up depends on the number of ends,
/// not of processes. `reap` reaps one of them.
fn reap_ended(
    numbers: &BTreeMap<u32, usize>,
    mut ended_child: impl FnMut() -> Option<u32>,
    mut reap: impl FnMut(usize) -> Option<Exit>,
) -> Vec<(usize, Exit)> {
    let mut ended = Vec::new();
    while let Some(pid) = ended_child() {
        let Some(&index) = numbers.get(&pid) else {
            // A child that another part of this process has started and not reaped yet: ours may be
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
        while self.units_left() {
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

    /// Ends the agent, which has nothing left to serve once the units are gone.
    fn end_agent(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        if !matches!(self.ending, Some(Ending::Killed)) {
            self.ask_to_end();
        }
        while self.processes.iter().any(|process| !process.has_ended()) {
            self.wait(on_event)?;
            let ended = self.reap(on_event);
            // Units may fail because of its loss before it can be reaped, because its files close
            // first. If a unit has failed and a signal that was not sent from here has killed the
            // agent, its loss counts as the cause, although it may also have crashed only when it
            // was asked to end.
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

    fn units_left(&self) -> bool {
        let mut units = self.processes.iter().filter(|process| is_unit(process));
        units.any(|unit| !unit.has_ended())
    }

    /// Waits until something happens, and passes output on.
    fn wait(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        let mut fds = vec![PollFd::new(&self.children, PollFlags::IN)];
        if let Some(interrupts) = self.interrupts {
            fds.push(PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN));
        }
        let full = self.backlog.filter(|backlog| backlog.is_full());
        fds.extend(full.map(|backlog| PollFd::from_borrowed_fd(backlog.as_fd(), PollFlags::IN)));
        let first = fds.len();
        // While the caller's queue is full, the units' pipes fill up and slow the units down.
        let readers = self
            .processes
            .iter()
            .filter(|_| full.is_none())
            .flat_map(|process| process.output.readers());
        fds.extend(readers.map(|reader| PollFd::new(reader, PollFlags::IN)));
        let timeout = match &self.ending {
            Some(Ending::Asked { until: Some(until) }) => {
                Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()
            }
            _ => None,
        };
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(source) => return Err(Error::system("wait for its units", source)),
        }
        // `ready` lists the pipes of all processes in order; each takes its share.
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

    /// Reaps until no ended child is left. Returns which processes ended, and how.
    ///
    /// It checks repeatedly because a unit that ends may take another with it meanwhile. Both are
    /// then in the list, and [`Job::judge`] can tell cause from effect.
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

    /// Determines what the ends of processes mean for the job. If several ended, the cause comes
    /// first: the agent, whose loss units notice; then death by a signal, which other units notice;
    /// then an exit code.
    fn judge(&self, ended: &[(usize, Exit)]) -> Option<Error> {
        let units_left = self.units_left();
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

    /// Records the first failure and asks the others to end. The loss of the agent, unless it was
    /// killed from here, counts as the cause even of failures that were seen before it.
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
        // The end may have begun for another reason. The units are then cleaning up, and one signal
        // does not interrupt that.
        let is_another = self.wishes.is_another(Instant::now());
        self.fail(Error::Interrupted { signal });
        if is_another {
            self.kill();
        }
    }

    /// Stops everything until the launcher is continued; the time is not counted.
    fn stop(&mut self) {
        let before = Instant::now();
        stop_with(&self.processes);
        if let Some(Ending::Asked { until }) = &mut self.ending {
            *until = until.and_then(|until| until.checked_add(before.elapsed()));
        }
        self.wishes.leave_out(before.elapsed());
    }

    fn time_out(&mut self) {
        if let Some(Ending::Asked { until: Some(until) }) = self.ending
            && Instant::now() >= until
        {
            self.kill();
        }
    }

    /// Sends SIGTERM, and SIGCONT for processes that are stopped and could not handle it. The agent
    /// stays while there are units, because they may need it to end properly.
    fn ask_to_end(&mut self) {
        let units_left = self.units_left();
        for process in self
            .processes
            .iter()
            .filter(|process| is_unit(process) || !units_left)
        {
            process.signal(Signal::TERM);
            process.signal(Signal::CONT);
        }
        let until = Instant::now().checked_add(self.grace);
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

    /// Sixty-four processes, the list of those that have ended, and how often the kernel was asked
    /// each question.
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

    /// A wake-up without an ended child is one system call, whatever the number of units. Each
    /// ended child adds one call, and one to reap it.
    #[test]
    fn a_wake_up_asks_no_unit_that_has_not_ended() {
        assert_eq!(Children::reap(&[]), (Vec::new(), 1, 0));
        let two = [FIRST_PID + 63, FIRST_PID + 7];
        assert_eq!(Children::reap(&two), (vec![63, 7], 3, 2));
    }

    /// A child of another part of this process does not hide an ended child behind it.
    #[test]
    fn a_child_of_somebody_else_hides_no_end() {
        let stranger = 7;
        assert_eq!(Children::reap(&[stranger]).0, [0; 0]);
        let (reaped, ..) = Children::reap(&[stranger, FIRST_PID + 7]);
        assert_eq!(reaped, [7]);
        let (reaped, ..) = Children::reap(&[FIRST_PID + 3, stranger, FIRST_PID + 7]);
        assert_eq!(reaped, [3, 7]);
    }

    /// The first signal and those that immediately follow it are one request, whenever the end
    /// began. The time for which the launcher was stopped is not counted.
    #[test]
    fn signals_are_another_wish_after_a_while() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut wishes = Wishes::default();
        // However long ago the end began.
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

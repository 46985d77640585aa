//! A job from its first process to its last.
//!
//! ```text
//!         a unit failed, agent lost, Ctrl-C            grace over, Ctrl-C again
//! running ---------------------------------> ending ---------------------------> killing
//!    |  \                                   / |                                     |
//!    |   +-- probably a --> listening --+    |                                     |
//!    |       consequence        |            |                                     |
//!    +---------------- all units have ended -+-------------------------------------+
//!                                 |
//!                      SIGTERM to the agent, the same stages, the end
//! ```
//! While it listens, the launcher waits for the unit whose end was the cause to fail as well (see
//! `cause`), and asks nobody to end.
//!
//! The loop waits for output, ended children and signals at once. When the kernel reports that a
//! child has changed, the loop clears the wake-up and then checks the children, so an end in
//! between causes one more round but is never missed. While the caller has too much output to show,
//! no output is read; everything else continues.

mod far;
mod judge;

use crate::Backlog;
use crate::agent;
use crate::cause::{Claim, Disagreement, Failure};
use crate::error::{Error, Exit};
use crate::files::OutputFiles;
use crate::guard::Guard;
use crate::hosts::{BEAT, Hosts, Place};
use crate::limits;
use crate::output::Event;
use crate::plan::{Name, Plan};
use crate::reap::{ended_child, reap_ended};
use crate::signals::{ChildWatch, Interrupts};
use crate::spawn::{Process, stop_with};
use crate::units::Units;
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
    check_paths(plan)?;
    // The limit is raised before the files are opened.
    let pipes = limits::pipes_of_launcher(plan)?;
    let files = OutputFiles::create(plan)?;
    let children = ChildWatch::install()?;
    let guard = plan.starter.as_deref().map(Guard::start).transpose();
    let mut guard = guard.map_err(|source| Error::system("start its guard", source))?;
    // The agents have to be ready before any unit starts.
    let hosts = Hosts::start(plan, interrupts, on_event)?;
    let agent = match &plan.agent {
        Some(argv) if !hosts.are_there() => {
            let mut caller = interrupts;
            Some(agent::start(plan, argv, &children, &mut caller, on_event)?)
        }
        _ => None,
    };
    // An agent that is not ready has started no other process.
    let pid = agent.as_ref().and_then(Process::child);
    if let (Some(pid), Some(guard)) = (pid, &mut guard) {
        guard.watch(pid);
    }
    tracing::info!(job = plan.job, units = wanted, ?pipes, "starts");
    let mut job = Job {
        numbers: BTreeMap::new(),
        places: BTreeMap::new(),
        ended_on_hosts: Vec::new(),
        hang_up_at: None,
        processes: Vec::new(),
        units: Units::new(plan, pipes, files),
        guard,
        children,
        interrupts,
        backlog: plan.backlog.as_ref(),
        grace: plan.grace,
        listen: plan.listen.min(plan.grace),
        timeout: plan.timeout,
        until: plan
            .timeout
            .and_then(|time| Instant::now().checked_add(time)),
        ending: None,
        wishes: Wishes::default(),
        failure: None,
        disagreements: Vec::new(),
        ended_well: Vec::new(),
        pardoned: BTreeMap::new(),
    };
    job.units.hosts = hosts;
    job.add(agent.into_iter().collect());
    job.start_units(on_event);
    job.run_units(on_event)?;
    if job.failure.is_none() && job.ending.is_none() {
        on_event(Event::UnitsEnded);
    }
    job.end_agent(on_event)?;
    job.end_hosts(on_event)?;
    job.result()
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

/// Refuses paths that cannot be sent to hosts.
fn check_paths(plan: &Plan) -> Result<(), Error> {
    let odd = plan.path_that_is_no_text();
    match odd.filter(|_| !plan.hosts.is_empty()) {
        None => Ok(()),
        Some(path) => {
            let why = format!("the path {} is not UTF-8 text", path.display());
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
            Err(Error::system("send its plan to hosts", source))
        }
    }
}

struct Job<'a> {
    /// The agent if there is one, then the units in the order in which they were started.
    processes: Vec<Process>,
    units: Units<'a>,
    /// The index of the child with a process id, unless it is reaped.
    numbers: BTreeMap<u32, usize>,
    /// The index of the unit of a host, and those that have ended and are not reaped.
    places: BTreeMap<Place, usize>,
    ended_on_hosts: Vec<usize>,
    /// When the connections with hosts are closed whose units were killed, and have not ended.
    hang_up_at: Option<Instant>,
    guard: Option<Guard>,
    children: ChildWatch,
    interrupts: Option<&'a Interrupts>,
    backlog: Option<&'a Backlog>,
    grace: Duration,
    listen: Duration,
    timeout: Option<Duration>,
    /// When the job has run for too long.
    until: Option<Instant>,
    ending: Option<Ending>,
    wishes: Wishes,
    failure: Option<Failure>,
    /// Which units found that what they do does not fit what others do.
    disagreements: Vec<Disagreement>,
    /// The units that ended without an error before the first failure.
    ended_well: Vec<Name>,
    /// The last failure of each unit that was started again, or is optional, and when it was seen.
    pardoned: BTreeMap<Name, (Instant, Failure)>,
}

/// The progress of ending the job.
enum Ending {
    /// A unit failed, but another one was probably the cause and has not ended yet.
    Listening {
        until: Option<Instant>,
    },
    /// All were asked to end. Each is killed if it takes too long.
    Asked,
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

impl Job<'_> {
    /// Adds processes that were started.
    fn add(&mut self, processes: Vec<Process>) {
        for mut process in processes {
            let index = self.processes.len();
            if let Some(pid) = process.child() {
                self.numbers.insert(pid, index);
            }
            if let Some(unit) = process.on_host() {
                self.places.insert(unit.place(), index);
            }
            self.processes.push(process);
        }
    }

    /// Starts the programs that need not wait for others any more. If a unit cannot be started, the
    /// job ends as it does when one fails: the others are asked to end.
    fn start_units(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        // A program may end before the next one is looked at.
        while self.ending.is_none() && self.units.are_waiting() {
            let mut new = Vec::new();
            let started = {
                let mut on_start = guard_of(&mut self.guard);
                let units = &mut self.units;
                units.start_next(&self.processes, &mut new, &mut on_start, on_event)
            };
            let is_done = new.is_empty();
            self.add(new);
            if let Err(error) = started {
                self.fail(Failure::other(Claim::Own, error));
            }
            if is_done {
                break;
            }
        }
    }

    fn run_units(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        while self.units_left() {
            self.wait(on_event)?;
            let ended = self.reap(on_event);
            // A signal to all processes (systemd, a batch system) ends units, too. It has to be
            // heard before their ends are judged.
            self.hear_interrupts();
            let ended = self.pardon(ended, on_event);
            self.judge(&ended);
            self.time_out();
            self.hang_up_if_late(on_event);
            self.restart_units(on_event);
            self.start_units(on_event);
            self.forgo_restarts(on_event);
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
            for &(index, exit) in &ended {
                on_event(self.processes[index].ended(exit, false));
            }
            // Units may fail because of its loss before it can be reaped, because its files close
            // first. If a unit has failed and a signal that was not sent from here has killed the
            // agent, its loss counts as the cause, although it may also have crashed only when it
            // was asked to end.
            let killed =
                |exit| matches!(exit, Exit::Signal(signal) if signal != Signal::TERM.as_raw());
            if self.failure.is_some() && ended.iter().any(|&(_, exit)| killed(exit)) {
                self.judge(&ended);
            }
            self.hear_interrupts();
            self.time_out();
        }
        Ok(())
    }

    fn units_left(&self) -> bool {
        let will_start = |unit: &Process| unit.again.is_some();
        let starts = self.units.are_waiting() || self.units().any(will_start);
        (self.ending.is_none() && starts) || self.units().any(|unit| !unit.has_ended())
    }

    fn units(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| is_unit(process))
    }

    /// Waits until something happens, and passes output on.
    fn wait(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        let mut fds = vec![PollFd::new(&self.children, PollFlags::IN)];
        if let Some(interrupts) = self.interrupts {
            fds.push(PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN));
        }
        let full = self.backlog.filter(|backlog| backlog.is_full());
        self.units.hosts.before_wait(full.is_some());
        fds.extend(full.map(|backlog| PollFd::from_borrowed_fd(backlog.as_fd(), PollFlags::IN)));
        // While the caller's queue is full, the units' pipes fill up and slow the units down.
        let links = self.units.hosts.borrow();
        fds.extend(self.units.hosts.fds(&links));
        let first_reader = fds.len();
        let readers = self
            .processes
            .iter()
            .filter(|_| full.is_none())
            .flat_map(|process| process.output.readers());
        fds.extend(readers.map(|reader| PollFd::new(reader, PollFlags::IN)));
        let timeout = self.next_time().and_then(|next| {
            Timespec::try_from(next.saturating_duration_since(Instant::now())).ok()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(source) => return Err(Error::system("wait for its units", source)),
        }
        // `ready` lists the pipes of all processes in order; each takes its share.
        let ready: Vec<bool> = fds[first_reader..]
            .iter()
            .map(|fd| !fd.revents().is_empty())
            .collect();
        let is_full = full.is_some();
        drop(fds);
        drop(links);
        self.hear_hosts(on_event);
        if is_full {
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

    /// Returns when something has to be done although nothing happens.
    fn next_time(&self) -> Option<Instant> {
        let left = self.processes.iter().filter(|process| !process.has_ended());
        let kills = left.filter_map(|process| process.kill_at);
        let listening = match self.ending {
            Some(Ending::Listening { until }) => until,
            _ => None,
        };
        let again = |process: &Process| process.again.map(|(_, at)| at);
        let others = self
            .processes
            .iter()
            .filter_map(again)
            .chain(self.until)
            .filter(|_| self.ending.is_none());
        let beat = self.units.hosts.are_there().then(|| Instant::now() + BEAT);
        let hung = self.hang_up_at.filter(|_| self.units.hosts.are_there());
        let all = kills.chain(listening).chain(others).chain(beat);
        all.chain(hung).min()
    }

    /// Reaps until no ended child is left. Returns which processes ended, and how.
    ///
    /// It checks repeatedly because a unit that ends may take another with it meanwhile. Both are
    /// then in the list, and [`Job::judge`] can tell cause from effect.
    fn reap(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Vec<(usize, Exit)> {
        let mut ended = self.reap_on_hosts(on_event);
        if !self.children.clear() {
            return ended;
        }
        let mut numbers = std::mem::take(&mut self.numbers);
        let here = reap_ended(&mut numbers, ended_child, |index| {
            self.reap_one(index, on_event)
        });
        self.numbers = numbers;
        ended.extend(here);
        ended
    }

    fn reap_one(&mut self, index: usize, on_event: &mut dyn FnMut(Event<'_>)) -> Option<Exit> {
        let process = &mut self.processes[index];
        let exit = process.reap()?;
        process.ended_at = Some(Instant::now());
        if let Some(guard) = &mut self.guard {
            process
                .child()
                .into_iter()
                .for_each(|pid| guard.forget(pid));
        }
        process.output.finish(&process.name, on_event);
        Some(exit)
    }

    /// Returns for how long the launcher was stopped.
    fn hear_interrupts(&mut self) -> Duration {
        let heard = self.interrupts.map(Interrupts::take).unwrap_or_default();
        let stopped = match heard.stop {
            true => self.stop(),
            false => Duration::ZERO,
        };
        if let Some(signal) = heard.end {
            self.interrupted(signal);
        }
        stopped
    }

    fn interrupted(&mut self, signal: i32) {
        // The end may have begun for another reason. The units are then cleaning up, and one signal
        // does not interrupt that.
        let is_another = self.wishes.is_another(Instant::now());
        self.fail(Failure::other(
            Claim::Interrupt,
            Error::Interrupted { signal },
        ));
        if is_another {
            self.kill();
        }
    }

    /// Stops everything until the launcher is continued. Returns for how long, which is not
    /// counted.
    fn stop(&mut self) -> Duration {
        let before = Instant::now();
        self.units.hosts.hold(|| stop_with(&self.processes));
        let stopped = before.elapsed();
        let mut times: Vec<&mut Option<Instant>> = vec![&mut self.until, &mut self.hang_up_at];
        if let Some(Ending::Listening { until }) = &mut self.ending {
            times.push(until);
        }
        let processes = self.processes.iter_mut();
        times.extend(processes.map(|process| &mut process.kill_at));
        for time in times {
            *time = time.and_then(|time| time.checked_add(stopped));
        }
        for (_, at) in self
            .processes
            .iter_mut()
            .flat_map(|process| &mut process.again)
        {
            *at = at.checked_add(stopped).unwrap_or(*at);
        }
        self.wishes.leave_out(stopped);
        stopped
    }

    fn time_out(&mut self) {
        let now = Instant::now();
        let is_over = |until: Option<Instant>| until.is_some_and(|until| now >= until);
        match self.ending {
            None if is_over(self.until) => {
                let after = self.timeout.unwrap_or_default();
                self.fail(Failure::other(Claim::Interrupt, Error::TimedOut { after }));
            }
            Some(Ending::Listening { until }) if is_over(until) => self.ask_to_end(),
            _ => {}
        }
        for process in &mut self.processes {
            process.kill_if_late(now);
        }
        let is_killed = |index: &usize| {
            let process = &self.processes[*index];
            process.was_killed() && !process.has_ended()
        };
        if self.places.values().any(is_killed) {
            self.hang_up_at.get_or_insert(now + far::ANSWER);
        }
    }

    /// Asks all to end. The agent stays while there are units, because they may need it to end
    /// properly.
    fn ask_to_end(&mut self) {
        let units_left = self.units_left();
        for process in &mut self.processes {
            if is_unit(process) || !units_left {
                process.ask_to_end(self.grace);
            }
        }
        self.ending = Some(Ending::Asked);
    }

    fn kill(&mut self) {
        self.processes.iter_mut().for_each(Process::kill);
        self.ending = Some(Ending::Killed);
        self.hang_up_at.get_or_insert(Instant::now() + far::ANSWER);
    }
}

/// Returns what tells the guard of a new process.
fn guard_of(guard: &mut Option<Guard>) -> impl FnMut(u32) {
    move |pid| guard.iter_mut().for_each(|guard| guard.watch(pid))
}

fn is_unit(process: &Process) -> bool {
    process.name != Name::agent()
}

#[cfg(test)]
mod tests {
    use super::*;

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

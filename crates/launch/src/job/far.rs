//! The units of a job that run on other machines.

use super::{Ending, Job};
use crate::cause::{Claim, Failure};
use crate::error::{Error, Exit};
use crate::hosts::{BEAT, Hosts, Order, Place, Report};
use crate::output::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a host may take to report the end of a unit that was killed.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// How a unit ends whose host is lost.
const LOST: Exit = Exit::Signal(Signal::KILL.as_raw());
/// How a unit ends that was not started.
const NOT_STARTED: Exit = Exit::Code(127);

impl Job<'_> {
    /// Takes what hosts have reported.
    pub(super) fn hear_hosts(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        if !self.units.hosts.are_there() {
            return;
        }
        let (reports, lost) = self.units.hosts.serve(on_event);
        for report in reports {
            self.take(report, on_event);
        }
        if let Some(error) = lost {
            self.lose(error);
        }
    }

    fn lose(&mut self, error: Error) {
        // A signal to all processes ends connections, too.
        self.hear_interrupts();
        self.fail(Failure::other(Claim::Agent, error));
        for index in self.places.values().copied().collect::<Vec<_>>() {
            let unit = self.processes[index].on_host();
            if unit.is_some_and(|unit| Hosts::is_gone(unit)) {
                self.ends_on_host(index, LOST);
            }
        }
    }

    /// Closes the connections with hosts that have not reported the end of units which were killed:
    /// a connection that is cut may never end.
    pub(super) fn hang_up_if_late(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        if self.hang_up_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.hang_up_at = None;
        let (places, processes) = (&self.places, &mut self.processes);
        let mut silent = Vec::new();
        for index in places.values() {
            let process = &mut processes[*index];
            if process.was_killed() && !process.has_ended() {
                silent.push(*index);
            }
        }
        let late = |link: &std::cell::RefCell<crate::hosts::Link>| {
            silent.iter().any(|index| processes[*index].is_at(link))
        };
        if let Some(error) = self.units.hosts.hang_up(late, on_event) {
            self.lose(error);
        }
    }

    fn take(&mut self, report: Report, on_event: &mut dyn FnMut(Event<'_>)) {
        match report {
            Report::Started(place, pid) => {
                let Some(index) = self.of_host(place) else {
                    return;
                };
                let process = &mut self.processes[index];
                if let Some(unit) = process.on_host() {
                    unit.pid = Some(pid);
                }
                process.started().into_iter().for_each(on_event);
            }
            Report::NotStarted(place, why) => {
                let Some(index) = self.of_host(place) else {
                    return;
                };
                let process = &mut self.processes[index];
                let name = process.name.clone();
                let is_optional = self.units.is_optional(&self.processes[index]);
                self.ends_on_host(index, NOT_STARTED);
                if !is_optional {
                    let source = std::io::Error::other(why);
                    self.fail(Failure::other(Claim::Own, Error::Spawn { name, source }));
                }
            }
            Report::Line {
                of,
                stream,
                text,
                complete,
            } => {
                // Those of agents are shown by `Hosts`.
                if let Some(index) = of.and_then(|place| self.of_host(place)) {
                    let process = &mut self.processes[index];
                    let line = (text.as_slice(), complete);
                    process.output.line(&process.name, stream, line, on_event);
                }
            }
            Report::Progress(place, progress) => {
                if let Some(index) = self.of_host(place) {
                    let name = &self.processes[index].name;
                    on_event(Event::Progress { name, progress });
                }
            }
            Report::Ended(Some(place), exit) => {
                let index = self.of_host(place);
                if let Some(index) = index {
                    self.ends_on_host(index, exit);
                }
            }
            Report::Ended(None, _) | Report::Ready { .. } | Report::CannotBegin { .. } => {}
        }
    }

    /// Returns the index of a unit that a host has named.
    fn of_host(&self, place: Place) -> Option<usize> {
        self.places.get(&place).copied()
    }

    /// Returns the units of hosts that have ended, and how.
    pub(super) fn reap_on_hosts(
        &mut self,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Vec<(usize, Exit)> {
        let mut ended = Vec::new();
        for index in std::mem::take(&mut self.ended_on_hosts) {
            if let Some(exit) = self.reap_one(index, on_event) {
                ended.push((index, exit));
            }
        }
        ended
    }

    fn ends_on_host(&mut self, index: usize, exit: Exit) {
        if let Some(unit) = self.processes[index].on_host() {
            unit.ended.get_or_insert(exit);
            self.ended_on_hosts.push(index);
        }
    }

    /// Tells all hosts that a unit has ended, and is not started again: others there may wait for
    /// it.
    pub(super) fn tell_hosts(&mut self, index: usize, exit: Exit) {
        if let Some(place) = self.processes[index].on_host().map(|unit| unit.place()) {
            self.units.hosts.tell(&Order::Ended(place, exit));
        }
    }

    /// Ends the agents of the hosts, and waits until the hosts have ended.
    pub(super) fn end_hosts(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        if !self.units.hosts.are_there() {
            return Ok(());
        }
        self.units.hosts.tell(&Order::End);
        let mut until = Instant::now() + self.grace;
        while Instant::now() < until && !matches!(self.ending, Some(Ending::Killed)) {
            self.units.hosts.before_wait(false);
            self.units.hosts.serve(on_event);
            until += self.hear_interrupts();
            if !self.units.hosts.are_left() {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now()).min(BEAT);
            let links = self.units.hosts.borrow();
            let mut fds = self.units.hosts.fds(&links);
            if let Some(interrupts) = self.interrupts {
                fds.push(PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN));
            }
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(source) => return Err(Error::system("wait for its hosts", source)),
            }
        }
        self.units.hosts.hang_up(|_| true, on_event);
        Ok(())
    }
}

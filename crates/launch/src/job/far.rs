//! The units of a job that run on other machines.

use super::Job;
use crate::cause::{Claim, Failure};
use crate::error::{Error, Exit};
use crate::hosts::{Hosts, Order, Place, Report};
use crate::output::Event;
use rustix::event::{Timespec, poll};
use rustix::process::Signal;
use std::time::Instant;

/// How a unit ends whose host is lost.
const LOST: Exit = Exit::Signal(Signal::KILL.as_raw());
/// How a unit ends that was not started.
const NOT_STARTED: Exit = Exit::Code(127);

impl Job<'_> {
    /// Takes what hosts have reported.
    pub(super) fn hear_hosts(&mut self, is_full: bool, on_event: &mut dyn FnMut(Event<'_>)) {
        if !self.units.hosts.are_there() {
            return;
        }
        let (reports, lost) = self.units.hosts.serve(is_full, on_event);
        for report in reports {
            self.take(report, on_event);
        }
        if let Some(error) = lost {
            self.fail(Failure::other(Claim::Agent, error));
            for index in self.places.values().copied().collect::<Vec<_>>() {
                let unit = self.processes[index].on_host();
                if unit.is_some_and(|unit| Hosts::is_gone(unit)) {
                    self.ends_on_host(index, LOST);
                }
            }
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
                self.ends_on_host(index, NOT_STARTED);
                let source = std::io::Error::other(why);
                self.fail(Failure::other(Claim::Own, Error::Spawn { name, source }));
            }
            Report::Line {
                of,
                stream,
                text,
                complete,
            } => match of.and_then(|place| self.of_host(place)) {
                Some(index) => {
                    let process = &mut self.processes[index];
                    let line = (text.as_slice(), complete);
                    process.output.line(&process.name, stream, line, on_event);
                }
                None => {
                    tracing::info!(text = %String::from_utf8_lossy(&text), "an agent says");
                }
            },
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
            Report::Ended(None, exit) => {
                let said = Vec::new();
                let error = Error::AgentLost { exit, said };
                if self.units_left() {
                    self.fail(Failure::other(Claim::Agent, error));
                }
            }
            Report::Ready { .. } | Report::CannotBegin { .. } => {}
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
        let until = Instant::now() + self.grace;
        while Instant::now() < until {
            self.units.hosts.serve(false, on_event);
            if !self.units.hosts.are_left() {
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            let links = self.units.hosts.borrow();
            let mut fds = self.units.hosts.fds(&links);
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(source) => return Err(Error::system("wait for its hosts", source)),
            }
        }
        self.units.hosts.hang_up(on_event);
        Ok(())
    }
}

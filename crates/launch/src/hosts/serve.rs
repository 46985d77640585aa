//! The host's side: `samite host` starts the agent of its machine and the units that the launcher
//! names, and reports what they print and how they end.

use super::connection::{Wire, time_until};
use super::wire::{Node, Order, Outbox, Place, Report};
use crate::agent;
use crate::error::{Error, Exit};
use crate::files::OutputFiles;
use crate::guard::Guard;
use crate::limits;
use crate::output::{Event, Line};
use crate::plan::{Name, Plan, Program};
use crate::reap::{ended_child, reap_ended};
use crate::signals::ChildWatch;
use crate::spawn::Process;
use crate::units::Units;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Instant;

/// Reports that the launcher has not taken, in bytes, after which no output is read.
const WAITING_MAX: usize = 4 << 20;

/// What a host needs of the program that it is.
pub trait HostSide {
    /// Returns the command of the agent, after it has completed the plan for this host.
    ///
    /// # Errors
    /// A sentence: this host cannot take part.
    fn agent(&mut self, plan: &mut Plan, node: &Node) -> Result<Vec<OsString>, String>;

    /// Returns the address at which the agent listens, which is ready.
    ///
    /// # Errors
    /// A sentence: it is not known.
    fn address(&mut self, plan: &Plan) -> Result<String, String>;

    /// A unit of any host has ended, and is not started again.
    fn ended(&mut self, name: &Name, exit: Exit);
}

/// Does what the launcher at the other end of standard input and output orders. Returns when that
/// is over; what was started is killed then.
///
/// # Errors
/// [`Error::System`].
pub fn serve(side: &mut dyn HostSide) -> Result<(), Error> {
    let mut wire = Wire::of_process()?;
    let Some((mut plan, node)) = wire.orders.wait_for_begin()? else {
        return Ok(());
    };
    let children = ChildWatch::install()?;
    let argv = match begin(side, &mut plan, &node) {
        Ok(argv) => argv,
        Err(why) => return wire.refuse(why),
    };
    let pipes = match limits::pipes_of_host(&of_host(&plan, node.host as usize)) {
        Ok(pipes) => pipes,
        Err(error) => return wire.refuse(error.to_string()),
    };
    // As that of a launcher: this process may be killed.
    let guard = plan.starter.as_deref().map(Guard::start).transpose();
    let mut guard = guard.map_err(|source| Error::system("start its guard", source))?;
    let mut log = |event: Event<'_>| {
        if let Event::Line(line) = event {
            wire.outbox.push(&line_of(None, line));
        }
    };
    let agent = match agent::start(&plan, &argv, &children, &mut wire.orders, &mut log) {
        Ok(agent) => agent,
        Err(error) => return wire.refuse(error.to_string()),
    };
    if let (Some(pid), Some(guard)) = (agent.child(), &mut guard) {
        guard.watch(pid);
    }
    match side.address(&plan) {
        Ok(address) => wire.outbox.push(&Report::Ready { address }),
        Err(why) => return wire.refuse(why),
    }
    let mut host = Host {
        units: Units::new(&plan, pipes, OutputFiles::default()),
        numbers: agent.child().into_iter().map(|pid| (pid, 0)).collect(),
        processes: vec![(None, agent)],
        places: BTreeMap::new(),
        children,
        guard,
        wire,
        is_paused: false,
        is_ending: false,
    };
    host.run(side)
}

/// Returns the programs with as many units as run on this host.
fn of_host(plan: &Plan, host: usize) -> Vec<Program> {
    let programs = plan.programs.iter().enumerate();
    let here = |(number, program): (usize, &Program)| {
        let ranks = 0..program.units;
        let units = ranks.filter(|rank| plan.host_of(number, *rank) == Some(host));
        program.clone().units(units.count() as u32)
    };
    programs.map(here).collect()
}

/// Prepares this process for the plan.
fn begin(side: &mut dyn HostSide, plan: &mut Plan, node: &Node) -> Result<Vec<OsString>, String> {
    let folder = &plan.cwd;
    std::env::set_current_dir(folder)
        .map_err(|error| format!("{} is needed there, as here: {error}", folder.display()))?;
    side.agent(plan, node)
}

struct Host<'a> {
    units: Units<'a>,
    /// The agent, then the units in the order of their starts; one that is started again has the
    /// place of the one before.
    processes: Vec<(Option<Place>, Process)>,
    places: BTreeMap<Place, usize>,
    /// The index of the process with a process id, unless it is reaped.
    numbers: BTreeMap<u32, usize>,
    children: ChildWatch,
    guard: Option<Guard>,
    wire: Wire,
    is_paused: bool,
    is_ending: bool,
}

impl Host<'_> {
    fn run(&mut self, side: &mut dyn HostSide) -> Result<(), Error> {
        loop {
            self.wire.orders.read()?;
            while let Some(order) = self.wire.orders.waiting.pop_front() {
                self.obey(order, side);
            }
            self.processes[0].1.kill_if_late(Instant::now());
            self.reap();
            if self.is_ending && self.processes[0].1.has_ended() {
                return self.wire.flush();
            }
            let wire = &mut self.wire;
            let is_gone = wire.outbox.write_to(&mut wire.reports).is_err();
            if is_gone || wire.orders.are_over() {
                return Ok(()); // What is left is killed as it is dropped.
            }
            self.wait()?;
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        let reads = !self.is_paused && self.wire.outbox.len() < WAITING_MAX;
        let mut fds = vec![
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&self.wire.orders.pipe, PollFlags::IN),
        ];
        if !self.wire.outbox.is_empty() {
            fds.push(PollFd::new(&self.wire.reports, PollFlags::OUT));
        }
        let first = fds.len();
        let all = self.processes.iter().filter(|_| reads);
        let readers = all.flat_map(|(_, process)| process.output.readers());
        fds.extend(readers.map(|reader| PollFd::new(reader, PollFlags::IN)));
        let next = [self.processes[0].1.kill_at, self.wire.orders.until()];
        let left = time_until(next.into_iter().flatten().min());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(source) => return Err(Error::system("wait for its units", source)),
        }
        let ready = fds[first..].iter().map(|fd| !fd.revents().is_empty());
        let ready: Vec<bool> = ready.collect();
        if reads {
            let mut ready = ready.as_slice();
            let outbox = &mut self.wire.outbox;
            for (place, process) in &mut self.processes {
                let (own, others) = ready.split_at(process.output.readers().count());
                process.output.read(&process.name, own, &mut |event| {
                    report(outbox, *place, event)
                });
                ready = others;
            }
        }
        Ok(())
    }

    fn obey(&mut self, order: Order, side: &mut dyn HostSide) {
        match order {
            // Those that concern the connection were heard as they arrived.
            Order::Begin { .. } | Order::Beat | Order::Hold(_) => {}
            Order::Start(place) => self.start(place),
            Order::Signal(place, signal) => {
                let index = self.places.get(&place);
                let signal = Signal::from_named_raw(signal);
                if let (Some(index), Some(signal)) = (index, signal) {
                    self.processes[*index].1.signal(signal);
                }
            }
            Order::Ended((program, rank), exit) => {
                if let Some(program) = self.units.plan.programs.get(program as usize) {
                    side.ended(&Name::unit(&program.name, rank), exit);
                }
            }
            Order::Pause(is_paused) => self.is_paused = is_paused,
            Order::End => {
                self.is_ending = true;
                let grace = self.units.plan.grace;
                self.processes[0].1.ask_to_end(grace);
            }
        }
    }

    fn start(&mut self, place: Place) {
        let is_there = self.units.plan.programs.get(place.0 as usize);
        if is_there.is_none_or(|program| place.1 >= program.units) {
            let why = "the plan has no such unit".to_owned();
            return self.wire.outbox.push(&Report::NotStarted(place, why));
        }
        let guard = &mut self.guard;
        let mut on_start = |pid| guard.iter_mut().for_each(|guard| guard.watch(pid));
        let started = self.units.start(place.0 as usize, place.1, &mut on_start);
        match started {
            Ok(process) => {
                let pid = process.child().unwrap_or_default();
                self.wire.outbox.push(&Report::Started(place, pid));
                let index = *self.places.entry(place).or_insert(self.processes.len());
                self.numbers.insert(pid, index);
                match self.processes.get_mut(index) {
                    Some((_, before)) => *before = process,
                    None => self.processes.push((Some(place), process)),
                }
            }
            Err(error) => {
                let cause = std::error::Error::source(&error);
                let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
                let why = format!("{error}{cause}");
                self.wire.outbox.push(&Report::NotStarted(place, why));
            }
        }
    }

    fn reap(&mut self) {
        if !self.children.clear() {
            return;
        }
        let mut numbers = std::mem::take(&mut self.numbers);
        let (processes, outbox) = (&mut self.processes, &mut self.wire.outbox);
        let guard = &mut self.guard;
        reap_ended(&mut numbers, ended_child, |index| {
            let (place, process) = &mut processes[index];
            let exit = process.reap()?;
            if let (Some(pid), Some(guard)) = (process.child(), guard.as_mut()) {
                guard.forget(pid);
            }
            process
                .output
                .finish(&process.name, &mut |event| report(outbox, *place, event));
            outbox.push(&Report::Ended(*place, exit));
            Some(exit)
        });
        self.numbers = numbers;
    }
}

/// Passes on what a process has said.
fn report(outbox: &mut Outbox, of: Option<Place>, event: Event<'_>) {
    match event {
        Event::Line(line) => outbox.push(&line_of(of, line)),
        Event::Progress { progress, .. } => {
            if let Some(place) = of {
                outbox.push(&Report::Progress(place, progress));
            }
        }
        _ => {}
    }
}

fn line_of(of: Option<Place>, line: Line<'_>) -> Report {
    Report::Line {
        of,
        stream: line.stream,
        text: line.text.to_vec(),
        complete: line.complete,
    }
}

//! The host's side: `samite host` starts the agent of its machine and the units that the launcher
//! names, and reports what they print and how they end.

use super::wire::{BEAT, Inbox, Node, Order, Outbox, Place, Report, SILENCE};
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
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
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
    let Some((mut plan, node)) = wire.wait_for_begin()? else {
        return Ok(());
    };
    let children = ChildWatch::install()?;
    let argv = match begin(side, &mut plan, &node) {
        Ok(argv) => argv,
        Err(why) => return wire.refuse(why),
    };
    // As that of a launcher: this process may be killed.
    let guard = plan.starter.as_deref().map(Guard::start).transpose();
    let mut guard = guard.map_err(|source| Error::system("start its guard", source))?;
    let mut log = |event: Event<'_>| {
        if let Event::Line(line) = event {
            wire.outbox.push(&line_of(None, line));
        }
    };
    let agent = match agent::start(&plan, &argv, &children, None, &mut log) {
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
    let pipes = limits::pipes_for(&of_host(&plan, node.host as usize))?;
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
        heard: Instant::now(),
        is_held: false,
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

/// Standard input and output.
struct Wire {
    orders: File,
    inbox: Inbox,
    reports: File,
    outbox: Outbox,
}

impl Wire {
    fn of_process() -> Result<Wire, Error> {
        let open = || {
            let orders = std::io::stdin().as_fd().try_clone_to_owned()?;
            let reports = std::io::stdout().as_fd().try_clone_to_owned()?;
            rustix::io::ioctl_fionbio(&orders, true)?;
            rustix::io::ioctl_fionbio(&reports, true)?;
            Ok((File::from(orders), File::from(reports)))
        };
        let opened: std::io::Result<(File, File)> = open();
        let opened = opened.map_err(|error| Error::system("use its standard streams", error));
        let (orders, reports) = opened?;
        Ok(Wire {
            orders,
            inbox: Inbox::default(),
            reports,
            outbox: Outbox::default(),
        })
    }

    /// Waits for the first order; `None`: the launcher is gone.
    fn wait_for_begin(&mut self) -> Result<Option<(Plan, Node)>, Error> {
        loop {
            let mut fds = [PollFd::new(&self.orders, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            match self.read()? {
                (orders, _) if !orders.is_empty() => {
                    for order in orders {
                        if let Order::Begin { plan, node } = order {
                            return Ok(Some((*plan, node)));
                        }
                    }
                }
                (_, true) => {}
                (_, false) => return Ok(None),
            }
        }
    }

    fn read(&mut self) -> Result<(Vec<Order>, bool), Error> {
        let read = self.inbox.read_from(&mut self.orders);
        read.map_err(|source| Error::system("understand its orders", source))
    }

    /// Says why this host cannot begin, and waits until that is read.
    fn refuse(&mut self, why: String) -> Result<(), Error> {
        self.outbox.push(&Report::CannotBegin { why });
        self.flush();
        Ok(())
    }

    /// Writes all reports, unless the launcher is gone.
    fn flush(&mut self) {
        while !self.outbox.is_empty() && self.outbox.write_to(&mut self.reports).is_ok() {
            if !self.outbox.is_empty() {
                let mut fds = [PollFd::new(&self.reports, PollFlags::OUT)];
                let _ = poll(&mut fds, None);
            }
        }
    }
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
    /// When the launcher was heard last, and whether it is stopped.
    heard: Instant,
    is_held: bool,
}

impl Host<'_> {
    fn run(&mut self, side: &mut dyn HostSide) -> Result<(), Error> {
        loop {
            self.wait()?;
            let (orders, is_open) = self.wire.read()?;
            if !orders.is_empty() {
                self.heard = Instant::now();
            }
            for order in orders {
                self.obey(order, side);
            }
            let is_silent = !self.is_held && self.heard.elapsed() > SILENCE;
            self.processes[0].1.kill_if_late(Instant::now());
            self.reap();
            let is_over = self.is_ending && self.processes[0].1.has_ended();
            if is_over {
                self.wire.flush();
            }
            let is_gone = self.wire.outbox.write_to(&mut self.wire.reports).is_err();
            if !is_open || is_over || is_gone || is_silent {
                return Ok(()); // What is left is killed as it is dropped.
            }
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        let reads = !self.is_paused && self.wire.outbox.len() < WAITING_MAX;
        let mut fds = vec![
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&self.wire.orders, PollFlags::IN),
        ];
        if !self.wire.outbox.is_empty() {
            fds.push(PollFd::new(&self.wire.reports, PollFlags::OUT));
        }
        let first = fds.len();
        let all = self.processes.iter().filter(|_| reads);
        let readers = all.flat_map(|(_, process)| process.output.readers());
        fds.extend(readers.map(|reader| PollFd::new(reader, PollFlags::IN)));
        let next = self.processes[0].1.kill_at;
        let next = next.map_or(self.heard + SILENCE, |at| at.min(self.heard + SILENCE));
        // At least a moment, if the launcher is stopped for long.
        let left = next
            .saturating_duration_since(Instant::now())
            .max(BEAT / 10);
        let left = Timespec::try_from(left).ok();
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
            Order::Begin { .. } => {}
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
            Order::Beat => {}
            Order::Hold(is_held) => self.is_held = is_held,
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

//! The hosts of a job that runs on several machines: a `samite host` on each of them, which the
//! launcher starts by a command such as `ssh HOST samite host`.
//!
//! ```text
//!   launcher                                          samite host, on another machine
//!     Link::order   Begin {plan}, Start, Signal  --->   serve: its standard input
//!     Link::serve   Ready, Line, Ended           <---   its standard output
//!     (end of file) the launcher is gone         --->   kills its units, and its agent
//! ```
//!
//! The launcher decides everything; a host does what it is told and reports what happens. A unit of
//! a host is a [`Process`](crate::spawn::Process) of the launcher like any other: it has output, an
//! exit, a grace.
//!
//! # Files
//! `mod` (the launcher's side) · `serve` (the host's side) · `connection` (its end of it) · `wire`
//! (the bytes between them)

mod connection;
mod serve;
mod wire;

pub use serve::{HostSide, serve};
pub use wire::Node;
pub(crate) use wire::{BEAT, Order, Place, Report};

use crate::error::{Error, Exit};
use crate::output::{Event, Output, Stream};
use crate::plan::{Host, Name, Plan};
use crate::signals::Interrupts;
use crate::spawn::stop_with;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use wire::{Inbox, Outbox};

/// How long a host may take until its agent is ready: a connection, a login, a slow file system.
const READY: Duration = Duration::from_secs(60);
/// How long the hosts may take to read that the launcher stops.
const HEARD: Duration = Duration::from_secs(1);

/// The connection with a host.
#[derive(Debug)]
pub(crate) struct Link {
    host: String,
    /// The name under which its lines are shown.
    name: Name,
    child: Child,
    orders: Option<ChildStdin>,
    outbox: Outbox,
    reports: ChildStdout,
    inbox: Inbox,
    /// What its start command prints, `Permission denied` for example.
    output: Output,
    /// The address of its agent, once that is ready.
    ready: Option<String>,
    /// Why it is over.
    over: Option<String>,
    is_paused: bool,
}

/// All hosts of a job.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    links: Vec<Rc<RefCell<Link>>>,
    /// Whether they were told to end.
    are_ending: bool,
    /// When they were told last that the launcher is there.
    beaten: Option<Instant>,
}

/// A unit on a host, as the launcher knows it.
#[derive(Debug)]
pub(crate) struct RemoteUnit {
    link: Rc<RefCell<Link>>,
    place: Place,
    /// Its process id, once the host has reported it.
    pub(crate) pid: Option<u32>,
    /// What the host has reported of its end.
    pub(crate) ended: Option<Exit>,
}

impl RemoteUnit {
    pub(crate) fn signal(&self, signal: i32) {
        let mut link = self.link.borrow_mut();
        link.order(&Order::Signal(self.place, signal));
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Returns whether it runs at the other end of this connection.
    pub(crate) fn is_at(&self, link: &RefCell<Link>) -> bool {
        std::ptr::eq(&*self.link, link)
    }
}

impl Link {
    fn start(host: &Host) -> Result<Link, Error> {
        let name = Name::host(&host.name);
        let start = || {
            let (program, args) = host
                .command
                .split_first()
                .ok_or_else(|| std::io::Error::other("its start command is empty"))?;
            let (errors, stderr) = crate::output::pipe()?;
            let mut child = Command::new(program)
                .args(args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(stderr)
                .process_group(0)
                .spawn()?;
            let (orders, reports) = (child.stdin.take(), child.stdout.take());
            let missing = || std::io::Error::other("it has no pipes");
            let (orders, reports) = (orders.ok_or_else(missing)?, reports.ok_or_else(missing)?);
            rustix::io::ioctl_fionbio(&orders, true)?;
            rustix::io::ioctl_fionbio(&reports, true)?;
            Ok(Link {
                host: host.name.clone(),
                name: name.clone(),
                child,
                orders: Some(orders),
                outbox: Outbox::default(),
                reports,
                inbox: Inbox::default(),
                output: Output::new(true, vec![(Stream::Stderr, errors)]),
                ready: None,
                over: None,
                is_paused: false,
            })
        };
        start().map_err(|source| Error::Spawn {
            name: name.clone(),
            source,
        })
    }

    fn order(&mut self, order: &Order) {
        self.outbox.push(order);
        self.write();
    }

    fn write(&mut self) {
        let Some(orders) = &mut self.orders else {
            return;
        };
        // If it is gone, its output ends, too, and says why.
        if self.outbox.write_to(orders).is_err() {
            self.orders = None;
        }
    }

    /// Reads what has come, and writes what can be written.
    fn serve(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Vec<Report> {
        self.write();
        let ready: Vec<bool> = self.output.readers().map(|_| true).collect();
        self.output.read(&self.name, &ready, on_event);
        if self.over.is_some() {
            return Vec::new();
        }
        match self.inbox.read_from(&mut self.reports) {
            Ok((reports, true)) => reports,
            Ok((reports, false)) => {
                self.ends("its start command has ended".to_owned(), on_event);
                reports
            }
            Err(error) => {
                self.ends(error.to_string(), on_event);
                Vec::new()
            }
        }
    }

    /// Takes what a host reports before its units are started.
    fn begin(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        for report in self.serve(on_event) {
            match report {
                Report::Ready { address } => self.ready = Some(address),
                Report::CannotBegin { why } => return Err(self.failed(&why)),
                Report::Line { text, complete, .. } => self.says((&text, complete), on_event),
                Report::Ended(None, exit) => return Err(self.failed(&format!("its agent {exit}"))),
                other => tracing::debug!(host = %self.name, ?other, "an early report"),
            }
        }
        match &self.over {
            Some(why) => Err(self.failed(why)),
            None => Ok(()),
        }
    }

    /// Shows a line of its agent.
    fn says(&mut self, line: (&[u8], bool), on_event: &mut dyn FnMut(Event<'_>)) {
        self.output.line(&self.name, Stream::Stderr, line, on_event);
    }

    fn ends(&mut self, why: String, on_event: &mut dyn FnMut(Event<'_>)) {
        // At the end of its output it has ended, or does nothing more that counts.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.output.finish(&self.name, on_event);
        (self.orders, self.over) = (None, Some(why));
    }

    fn fds(&self) -> Vec<PollFd<'_>> {
        let mut fds = Vec::new();
        if self.over.is_none() {
            fds.push(PollFd::new(&self.reports, PollFlags::IN));
        }
        fds.extend(self.unwritten());
        let errors = self.output.readers();
        fds.extend(errors.map(|reader| PollFd::new(reader, PollFlags::IN)));
        fds
    }

    /// Returns what takes the orders that are not written yet.
    fn unwritten(&self) -> Option<PollFd<'_>> {
        let orders = self.orders.as_ref().filter(|_| !self.outbox.is_empty());
        orders.map(|orders| PollFd::new(orders, PollFlags::OUT))
    }

    fn failed(&self, why: &str) -> Error {
        Error::Host {
            host: self.host.clone(),
            why: why.to_owned(),
            said: self.output.last_words().shown(),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The host kills its units when its standard input ends.
        self.orders = None;
        if self.over.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Hosts {
    /// Starts the hosts of a plan; returns when their agents are ready.
    ///
    /// # Errors
    /// [`Error::Host`] names the first one that failed.
    pub(crate) fn start(
        plan: &Plan,
        interrupts: Option<&Interrupts>,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Hosts, Error> {
        // All logins at once; the agents one behind the first one.
        let links = plan.hosts.iter().map(Link::start);
        let links = links.map(|link| Ok(Rc::new(RefCell::new(link?))));
        let mut hosts = Hosts {
            links: links.collect::<Result<_, Error>>()?,
            are_ending: false,
            beaten: None,
        };
        let mut until = Instant::now() + READY;
        let mut join = None;
        for first in [true, false] {
            let some = hosts.links.iter().cloned().enumerate();
            let some: Vec<_> = some.filter(|(host, _)| (*host == 0) == first).collect();
            for (host, link) in &some {
                let of_plan = &plan.hosts[*host];
                let node = Node {
                    host: *host as u32,
                    name: of_plan.name.clone(),
                    listen: of_plan.address.clone(),
                    join: join.clone(),
                    secret: plan.secret.clone(),
                };
                let plan = Box::new(plan.clone());
                link.borrow_mut().order(&Order::Begin { plan, node });
            }
            for (_, link) in &some {
                let address = hosts.wait_until_ready(link, &mut until, interrupts, on_event)?;
                join.get_or_insert(address);
            }
        }
        Ok(hosts)
    }

    /// Waits until the agent of a host is ready; returns its address.
    fn wait_until_ready(
        &mut self,
        link: &RefCell<Link>,
        until: &mut Instant,
        interrupts: Option<&Interrupts>,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<String, Error> {
        loop {
            let heard = interrupts.map(Interrupts::take).unwrap_or_default();
            if let Some(signal) = heard.end {
                return Err(Error::Interrupted { signal });
            }
            if heard.stop {
                let before = Instant::now();
                self.hold(|| stop_with(&[]));
                *until += before.elapsed();
            }
            // The first that fails is named, whichever is waited for.
            for other in &self.links {
                other.borrow_mut().begin(on_event)?;
            }
            if let Some(address) = link.borrow_mut().ready.take() {
                return Ok(address);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("its agent was not ready within {} s", READY.as_secs());
                return Err(link.borrow().failed(&why));
            }
            self.beat();
            let left = left.min(BEAT);
            let links = self.borrow();
            let mut fds = self.fds(&links);
            if let Some(interrupts) = interrupts {
                fds.push(PollFd::from_borrowed_fd(interrupts.as_fd(), PollFlags::IN));
            }
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(source) => return Err(Error::system("wait for a host", source)),
            }
        }
    }

    pub(crate) fn are_there(&self) -> bool {
        !self.links.is_empty()
    }

    /// Starts a unit on a host.
    pub(crate) fn start_unit(&self, host: usize, place: Place) -> RemoteUnit {
        let link = self.links[host].clone();
        link.borrow_mut().order(&Order::Start(place));
        RemoteUnit {
            link,
            place,
            pid: None,
            ended: None,
        }
    }

    /// Returns what has to be polled: [`Hosts::serve`] looks at all of it.
    pub(crate) fn fds<'a>(&self, links: &'a [std::cell::Ref<'_, Link>]) -> Vec<PollFd<'a>> {
        links.iter().flat_map(|link| link.fds()).collect()
    }

    /// Borrows the links for [`Hosts::fds`].
    pub(crate) fn borrow(&self) -> Vec<std::cell::Ref<'_, Link>> {
        self.links.iter().map(|link| link.borrow()).collect()
    }

    /// Returns what the hosts have reported. `is_full`: no output is to be read for now.
    pub(crate) fn serve(
        &mut self,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> (Vec<Report>, Option<Error>) {
        let (mut all, mut lost) = (Vec::new(), None);
        for link in &self.links {
            let mut link = link.borrow_mut();
            let was_over = link.over.is_some();
            for report in link.serve(on_event) {
                match report {
                    Report::Line {
                        of: None,
                        text,
                        complete,
                        ..
                    } => link.says((&text, complete), on_event),
                    Report::Ended(None, exit) if !self.are_ending => {
                        lost.get_or_insert(link.failed(&format!("its agent {exit}")));
                    }
                    other => all.push(other),
                }
            }
            if let Some(why) = link.over.as_ref().filter(|_| !was_over && !self.are_ending) {
                lost.get_or_insert(link.failed(why));
            }
        }
        (all, lost)
    }

    /// Tells the hosts, before a wait, whether output may be read, and that the launcher is there.
    pub(crate) fn before_wait(&mut self, is_full: bool) {
        for link in &self.links {
            let mut link = link.borrow_mut();
            if link.is_paused != is_full {
                link.is_paused = is_full;
                link.order(&Order::Pause(is_full));
            }
        }
        self.beat();
    }

    /// Tells the hosts that the launcher is there, if that is due.
    fn beat(&mut self) {
        let is_due = self.beaten.is_none_or(|at| at.elapsed() >= BEAT);
        if is_due && self.are_there() {
            self.beaten = Some(Instant::now());
            self.tell(&Order::Beat);
        }
    }

    /// Stops the launcher by `stop`, which returns when it is continued: the hosts do not expect to
    /// hear it meanwhile. One that does not read that is not waited for.
    pub(crate) fn hold(&mut self, stop: impl FnOnce()) {
        self.tell(&Order::Hold(true));
        let until = Instant::now() + HEARD;
        loop {
            let links = self.borrow();
            let mut fds: Vec<_> = links.iter().filter_map(|link| link.unwritten()).collect();
            let left = until.saturating_duration_since(Instant::now());
            if fds.is_empty() || left.is_zero() {
                break;
            }
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
            drop(fds);
            drop(links);
            self.links.iter().for_each(|link| link.borrow_mut().write());
        }
        stop();
        self.tell(&Order::Hold(false));
    }

    /// Returns whether the host of a unit is gone.
    pub(crate) fn is_gone(unit: &RemoteUnit) -> bool {
        unit.link.borrow().over.is_some()
    }

    /// Tells all hosts.
    pub(crate) fn tell(&mut self, order: &Order) {
        self.are_ending |= matches!(order, Order::End);
        for link in &self.links {
            link.borrow_mut().order(order);
        }
    }

    /// Returns whether a host has not ended yet.
    pub(crate) fn are_left(&self) -> bool {
        let is_left = |link: &Rc<RefCell<Link>>| link.borrow().over.is_none();
        self.links.iter().any(is_left)
    }

    /// Closes the connections that `which` names: what is left on those hosts is killed. Returns
    /// the error of the first one.
    pub(crate) fn hang_up(
        &mut self,
        which: impl Fn(&RefCell<Link>) -> bool,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Option<Error> {
        let mut first = None;
        for link in self.links.iter().filter(|link| which(link)) {
            let mut link = link.borrow_mut();
            if link.over.is_none() {
                link.ends("it does not answer".to_owned(), on_event);
                first.get_or_insert(link.failed("it does not answer"));
            }
        }
        first
    }
}

#[cfg(test)]
mod tests;

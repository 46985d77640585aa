//! The host's end of the connection with its launcher: standard input and output.

use super::wire::{Inbox, Node, Order, Outbox, Report, SILENCE};
use crate::agent::Caller;
use crate::error::Error;
use crate::plan::Plan;
use crate::spawn::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Standard input and output.
pub(super) struct Wire {
    pub(super) orders: Orders,
    pub(super) reports: File,
    pub(super) outbox: Outbox,
}

/// What the launcher orders, from standard input.
pub(super) struct Orders {
    pub(super) pipe: File,
    inbox: Inbox,
    /// Those that have arrived and are not obeyed yet.
    pub(super) waiting: VecDeque<Order>,
    is_open: bool,
    /// When the launcher was heard last, and whether it is stopped.
    heard: Instant,
    is_held: bool,
}

impl Orders {
    fn new(pipe: File) -> Orders {
        Orders {
            pipe,
            inbox: Inbox::default(),
            waiting: VecDeque::new(),
            is_open: true,
            heard: Instant::now(),
            is_held: false,
        }
    }

    /// Reads once.
    pub(super) fn read(&mut self) -> Result<(), Error> {
        let before = self.inbox.len();
        let read = self.inbox.read_from(&mut self.pipe);
        let read = read.map_err(|source| Error::system("understand its orders", source));
        let (orders, is_open) = read?;
        self.is_open = is_open;
        if !orders.is_empty() || self.inbox.len() > before {
            self.heard = Instant::now();
        }
        for order in orders {
            match order {
                Order::Beat => {}
                Order::Hold(is_held) => self.is_held = is_held,
                order => self.waiting.push_back(order),
            }
        }
        Ok(())
    }

    /// Returns when the launcher is given up unless it is heard; `None`: it is stopped.
    pub(super) fn until(&self) -> Option<Instant> {
        (!self.is_held).then(|| self.heard + SILENCE)
    }

    /// Returns true if the launcher is gone, or was silent for too long.
    pub(super) fn are_over(&self) -> bool {
        let is_silent = self.until().is_some_and(|until| Instant::now() >= until);
        !self.is_open || is_silent
    }

    /// Waits for orders, and for one more thing, until [`Orders::until`].
    fn wait<'f>(&'f self, also: Option<PollFd<'f>>) {
        let own = PollFd::new(&self.pipe, PollFlags::IN);
        let mut fds: Vec<_> = std::iter::once(own).chain(also).collect();
        // After an error, the caller reads as after a wake-up.
        let _ = poll(&mut fds, time_until(self.until()).as_ref());
    }

    /// Waits for the first order; `None`: the launcher is gone. What comes with it is obeyed later.
    pub(super) fn wait_for_begin(&mut self) -> Result<Option<(Plan, Node)>, Error> {
        loop {
            self.read()?;
            while let Some(order) = self.waiting.pop_front() {
                if let Order::Begin { plan, node } = order {
                    return Ok(Some((*plan, node)));
                }
            }
            if self.are_over() {
                return Ok(None);
            }
            self.wait(None);
        }
    }
}

/// While its agent starts, a host hears whether the launcher is there.
impl Caller for Orders {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pipe.as_fd())
    }

    fn hear(&mut self, _: &Process) -> Result<Duration, Error> {
        self.read()?;
        match self.are_over() {
            true => {
                let gone = std::io::ErrorKind::UnexpectedEof;
                Err(Error::system("hear who has started it", gone))
            }
            false => Ok(Duration::ZERO),
        }
    }
}

/// Returns how long to wait for a time.
pub(super) fn time_until(time: Option<Instant>) -> Option<Timespec> {
    let left = time?.saturating_duration_since(Instant::now());
    Timespec::try_from(left).ok()
}

impl Wire {
    pub(super) fn of_process() -> Result<Wire, Error> {
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
            orders: Orders::new(orders),
            reports,
            outbox: Outbox::default(),
        })
    }

    /// Says why this host cannot begin, and waits until that is read.
    pub(super) fn refuse(&mut self, why: String) -> Result<(), Error> {
        self.outbox.push(&Report::CannotBegin { why });
        self.flush()
    }

    /// Writes all reports, unless the launcher is gone, or silent for too long.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        while self.outbox.write_to(&mut self.reports).is_ok() && !self.outbox.is_empty() {
            self.orders.read()?;
            if self.orders.are_over() {
                break;
            }
            let room = PollFd::new(&self.reports, PollFlags::OUT);
            self.orders.wait(Some(room));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, PipeWriter, Read, Write};
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::channel;

    /// Longer than a test takes, and less than [`SILENCE`].
    const LONG: Duration = Duration::from_secs(30);

    fn orders() -> (Orders, PipeWriter) {
        let (orders, launcher) = crate::output::pipe().unwrap();
        (Orders::new(OwnedFd::from(orders).into()), launcher)
    }

    fn send(launcher: &mut PipeWriter, orders: impl IntoIterator<Item = Order>) {
        let mut outbox = Outbox::default();
        orders.into_iter().for_each(|order| outbox.push(&order));
        outbox.write_to(launcher).unwrap();
    }

    fn begin() -> Order {
        Order::Begin {
            plan: Box::new(Plan::new("job")),
            node: Node {
                host: 1,
                name: "two".into(),
                listen: "10.0.0.2".into(),
                join: None,
                secret: "a secret".into(),
            },
        }
    }

    /// Runs what must not wait for ever.
    fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, ended) = channel();
        std::thread::spawn(move || done.send(run()));
        ended.recv_timeout(LONG).expect("it does not wait")
    }

    /// Makes the launcher one that was not heard for as long as it may be silent.
    fn was_silent(orders: &mut Orders) {
        orders.heard = Instant::now() - SILENCE;
        assert_ne!(orders.are_over(), orders.is_held);
    }

    /// Orders that arrive before the first one of a job, or together with it, count.
    #[test]
    fn orders_that_come_with_the_first_one_are_kept() {
        let (mut orders, mut launcher) = orders();
        let hold = Order::Hold;
        let early = [Order::Beat, hold(true), begin(), Order::Start((0, 1))];
        send(&mut launcher, early);
        send(&mut launcher, [hold(false), Order::Pause(true), hold(true)]);
        let begun = orders.wait_for_begin().unwrap();
        assert!(begun.is_some_and(|(_, node)| node.host == 1));
        assert!(orders.is_held);
        let kept: Vec<Order> = orders.waiting.drain(..).collect();
        let expected = [Order::Start((0, 1)), Order::Pause(true)];
        assert_eq!(format!("{kept:?}"), format!("{expected:?}"));
    }

    /// Whatever is heard of the launcher restarts the count, and while it is stopped there is none.
    #[test]
    fn a_launcher_that_is_silent_is_given_up() {
        let (mut orders, mut launcher) = orders();
        was_silent(&mut orders);
        send(&mut launcher, [Order::Beat]);
        orders.read().unwrap();
        assert!(!orders.are_over());
        // Part of a long order.
        was_silent(&mut orders);
        let mut outbox = Outbox::default();
        outbox.push(&Order::Hold(true));
        let mut bytes = Vec::new();
        outbox.write_to(&mut bytes).unwrap();
        launcher.write_all(&bytes[..3]).unwrap();
        orders.read().unwrap();
        assert!(!orders.are_over());
        launcher.write_all(&bytes[3..]).unwrap();
        orders.read().unwrap();
        assert!(orders.is_held && orders.until().is_none());
        was_silent(&mut orders);
        send(&mut launcher, [Order::Hold(false)]);
        orders.read().unwrap();
        assert!(!orders.are_over());
        // Nothing but the end of the connection. A process that another test starts may have a copy
        // of it for a moment.
        drop(launcher);
        in_time(move || {
            while !orders.are_over() {
                orders.read().unwrap();
            }
        });
    }

    /// Nobody says what is to begin.
    #[test]
    fn the_first_order_is_not_waited_for_for_ever() {
        let (mut orders, launcher) = orders();
        was_silent(&mut orders);
        let begun = in_time(move || orders.wait_for_begin().map(|begun| begun.is_some()));
        assert!(!begun.unwrap());
        drop(launcher);
    }

    fn wire() -> (Wire, PipeWriter, PipeReader) {
        let (orders, launcher) = orders();
        let (reader, reports) = samite_testkit::full_pipe();
        rustix::io::ioctl_fionbio(&reports, true).unwrap();
        let reports = OwnedFd::from(reports).into();
        let outbox = Outbox::default();
        let wire = Wire {
            orders,
            reports,
            outbox,
        };
        (wire, launcher, reader)
    }

    /// The launcher, or what is between, takes no reports any more.
    #[test]
    fn reports_are_not_written_for_ever() {
        let (mut wire, launcher, reader) = wire();
        was_silent(&mut wire.orders);
        let why = || "it has no UCX".to_owned();
        let wire = in_time(move || wire.refuse(why()).map(|()| wire));
        assert!(!wire.unwrap().outbox.is_empty());
        drop((launcher, reader));
    }

    /// A launcher that is heard may take its time.
    #[test]
    fn reports_are_written_to_a_slow_launcher() {
        let (mut wire, mut launcher, mut reader) = self::wire();
        was_silent(&mut wire.orders);
        send(&mut launcher, [Order::Beat]);
        let why = || "it has no UCX".to_owned();
        let host = std::thread::spawn(move || wire.refuse(why()).map(|()| wire));
        let mut read = Vec::new();
        let mut bytes = [0; 4096];
        while !read.ends_with(why().as_bytes()) {
            let count = reader.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "the host has ended");
            read.extend_from_slice(&bytes[..count]);
        }
        let wire = host.join().unwrap().unwrap();
        assert!(wire.outbox.is_empty());
    }
}

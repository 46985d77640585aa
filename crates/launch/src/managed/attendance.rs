//! How the agent of a node knows which processes are the units of that node, and when they have
//! ended: each says once that it is here, by a socket in the abstract namespace, and the agent then
//! watches the process.

use crate::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, getuid, pidfd_open};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Child;
use std::time::{Duration, Instant};

/// How often a process looks whether the agent is there yet.
const LOOK: Duration = Duration::from_millis(10);
/// How long a process waits for the answer of an agent that is there.
const ANSWER: Duration = Duration::from_secs(10);

fn address(domain: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("samite-units-{}-{domain}", getuid().as_raw()))
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::Managed(format!("{what}: {error}"))
}

/// The agent's side.
#[derive(Debug)]
pub struct Attendance {
    listener: UnixListener,
    units: u32,
    /// Those that are here, and have not ended.
    here: Vec<OwnedFd>,
    /// How many have been here.
    came: u32,
}

impl Attendance {
    /// Expects so many units of a domain. Units wait for this.
    ///
    /// # Errors
    /// [`Error::Managed`]: another agent of this user expects them already.
    pub fn open(domain: &str, units: u32) -> Result<Attendance, Error> {
        let open = || {
            let listener = UnixListener::bind_addr(&address(domain)?)?;
            listener.set_nonblocking(true)?; // Who connects may be gone before it is accepted.
            Ok(listener)
        };
        let listener = open().map_err(|error| {
            failed(
                &format!("the agent of {domain} cannot wait for its units"),
                &error,
            )
        })?;
        Ok(Attendance {
            listener,
            units,
            here: Vec::new(),
            came: 0,
        })
    }

    /// Returns when all units have been here and have ended; or when none is here, and those that
    /// are missing have not come within this time.
    ///
    /// # Errors
    /// [`Error::Managed`] says how many are missing; or what the system refuses.
    pub fn wait(mut self, patience: Duration) -> Result<(), Error> {
        let mut until = Instant::now() + patience;
        loop {
            let is_complete = self.came == self.units;
            if is_complete && self.here.is_empty() {
                return Ok(());
            }
            let may_come = !is_complete && self.here.is_empty();
            let left = until.saturating_duration_since(Instant::now());
            if may_come && left.is_zero() {
                let (came, units) = (self.came, self.units);
                return Err(Error::Managed(format!(
                    "{came} of {units} units of this machine came within {patience:?}, and none is \
                     here any more"
                )));
            }
            let ended = self.look(may_come.then_some(left), !is_complete);
            if ended.map_err(|error| failed("the units cannot be watched", &error))? {
                until = Instant::now() + patience;
            }
        }
    }

    /// Waits for an arrival or an end, at most this long. Returns whether there was one.
    fn look(&mut self, left: Option<Duration>, may_come: bool) -> io::Result<bool> {
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut waits: Vec<PollFd<'_>> = (self.here.iter())
            .map(|unit| PollFd::new(unit, PollFlags::IN))
            .collect();
        if may_come {
            waits.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        match poll(&mut waits, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = waits
            .iter()
            .map(|wait| !wait.revents().is_empty())
            .collect();
        let count = self.here.len();
        let mut ended = is_ready[..count].iter();
        self.here.retain(|_| ended.next() == Some(&false));
        if may_come && is_ready.get(count) == Some(&true) {
            self.arrives()?;
        }
        Ok(true)
    }

    /// Takes a process that says that it is here, if it is one of this user.
    fn arrives(&mut self) -> io::Result<()> {
        let mut stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let Ok(process) = socket_peercred(&stream) else {
            return Ok(());
        };
        if process.uid != getuid() {
            return Ok(());
        }
        // One that is gone already has been here, and has ended.
        self.came += 1;
        if let Ok(process) = pidfd_open(process.pid, PidfdFlags::empty()) {
            self.here.push(process);
        }
        // If it does not hear this, it has ended.
        let _ = stream.write_all(b"\n");
        Ok(())
    }
}

/// Says that this process is here, once the agent of its domain can be reached. `agent`: the agent,
/// if this process has started it.
///
/// # Errors
/// [`Error::Managed`]: there is no agent after this time, or it has ended.
pub fn attend(domain: &str, mut agent: Option<Child>, patience: Duration) -> Result<(), Error> {
    let until = Instant::now() + patience;
    let mut stream = loop {
        match address(domain).and_then(|address| UnixStream::connect_addr(&address)) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() >= until => {
                let what = format!(
                    "no agent of {domain} was there within {patience:?}: the first process of \
                     this machine starts it"
                );
                return Err(failed(&what, &error));
            }
            Err(_) => {}
        }
        if let Some(agent) = &mut agent
            && let Ok(Some(status)) = agent.try_wait()
        {
            return Err(Error::Managed(format!(
                "the agent of {domain} has ended before its units began: {status}"
            )));
        }
        std::thread::sleep(LOOK);
    };
    let heard = stream
        .set_read_timeout(Some(ANSWER))
        .and_then(|()| stream.read_exact(&mut [0]));
    heard.map_err(|error| failed(&format!("the agent of {domain} does not answer"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn domain(test: &str) -> String {
        format!("{test}-{}", std::process::id())
    }

    /// The agent waits for all, and for the end of each, however that comes.
    #[test]
    fn the_end_of_the_last_unit_is_noticed() {
        let name = domain("end-of-the-last");
        let mut attendance = Attendance::open(&name, 2).unwrap();
        let comes = || attend(&name, None, Duration::from_secs(60)).unwrap();
        // They are this process, which does not end.
        std::thread::scope(|scope| {
            let threads = [scope.spawn(comes), scope.spawn(comes)];
            while attendance.came < 2 {
                attendance.look(None, true).unwrap();
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
        assert_eq!(attendance.here.len(), 2);
        assert!(!attendance.look(Some(Duration::ZERO), false).unwrap());
        let name = domain("end-of-a-child");
        let mut attendance = Attendance::open(&name, 1).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        attendance.came = 1;
        attendance.here = vec![pidfd_open(pid, PidfdFlags::empty()).unwrap()];
        child.kill().unwrap();
        attendance.wait(Duration::from_secs(60)).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn units_that_do_not_come_are_counted() {
        let name = domain("do-not-come");
        let attendance = Attendance::open(&name, 3).unwrap();
        assert!(Attendance::open(&name, 3).is_err(), "a second agent");
        let said = attendance.wait(Duration::ZERO).unwrap_err().to_string();
        assert!(said.contains("0 of 3 units"), "{said}");
        let said = attend(&name, None, Duration::ZERO).unwrap_err().to_string();
        assert!(said.contains("no agent of"), "{said}");
        let agent = Command::new("false").spawn().unwrap();
        let said = attend(&name, Some(agent), Duration::from_secs(60));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("has ended before its units began"), "{said}");
    }
}

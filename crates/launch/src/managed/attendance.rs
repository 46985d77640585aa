//! How the agent of a node knows which processes are the units of that node, and when they have
//! ended: each says once that it is here, by a socket in the abstract namespace, and the agent then
//! watches the process.

use crate::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getuid, pidfd_open, test_kill_process};
use samite_mem::peer_credentials;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// How often a process looks whether the agent is there yet.
const LOOK: Duration = Duration::from_millis(10);
/// How long a process waits for the answer of an agent that is there.
const ANSWER: Duration = Duration::from_secs(10);

/// How long those are waited for that have not come when another one has come and ended.
const AFTER_AN_END: Duration = Duration::from_secs(10);
/// How often an agent to which nobody has come looks whether its starter is still there.
const LOOK_AT_STARTER: Duration = Duration::from_millis(100);

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
    /// The unit that has started the agent, until it has been here.
    starter: Option<Pid>,
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
            starter: None,
        })
    }

    /// Returns when all units have been here and have ended; or when none is here, and those that
    /// are missing have not come within this time, or within 10 s after another one has ended.
    /// `starter`: the unit that has started the agent. If it ends before it was here, nobody is
    /// waited for.
    ///
    /// # Errors
    /// [`Error::Managed`] says how many are missing; or what the system refuses.
    pub fn wait(mut self, starter: Option<Pid>, patience: Duration) -> Result<(), Error> {
        self.starter = starter;
        let mut until = Instant::now() + patience;
        loop {
            let is_gone = |starter| test_kill_process(starter) == Err(Errno::SRCH);
            if self.here.is_empty() && self.starter.is_some_and(is_gone) {
                return Err(Error::Managed(
                    "the first unit of this machine has ended before it began".to_owned(),
                ));
            }
            let is_complete = self.came == self.units;
            if is_complete && self.here.is_empty() {
                return Ok(());
            }
            let may_come = !is_complete && self.here.is_empty();
            let left = until.saturating_duration_since(Instant::now());
            if may_come && left.is_zero() {
                let (came, units) = (self.came, self.units);
                return Err(Error::Managed(format!(
                    "{came} of {units} units of this machine came, and none is here any more"
                )));
            }
            let before = self.here.len();
            let looked = self.look(may_come.then_some(left.min(LOOK_AT_STARTER)), !is_complete);
            if looked.map_err(|error| failed("the units cannot be watched", &error))? {
                let has_ended = self.here.len() < before;
                until = Instant::now() + if has_ended { AFTER_AN_END } else { patience };
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
            Ok(0) | Err(Errno::INTR) => return Ok(false),
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
        let process = peer_credentials(&stream)?;
        // One without a number is in a container whose processes are not seen from here.
        let Some(pid) = Pid::from_raw(process.pid).filter(|_| process.uid == getuid().as_raw())
        else {
            return Ok(());
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => self.here.push(process),
            Err(Errno::SRCH) => {} // It has been here, and has ended.
            Err(error) => return Err(error.into()),
        }
        self.came += 1;
        self.starter = self.starter.filter(|starter| *starter != pid);
        // If it does not hear this, it has ended.
        let _ = stream.write_all(b"\n");
        Ok(())
    }
}

/// Says that this process is here, once the agent of its domain can be reached. `agent`: the
/// process of the agent, if this one has started it.
///
/// # Errors
/// [`Error::Managed`]: there is no agent after this time, or it has ended.
pub fn attend(domain: &str, agent: Option<Pid>, patience: Duration) -> Result<(), Error> {
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
        if agent.is_some_and(|agent| test_kill_process(agent) == Err(Errno::SRCH)) {
            return Err(Error::Managed(format!(
                "the agent of {domain} has ended before its units began, and has said why"
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
        let pid = Pid::from_child(&child);
        attendance.came = 1;
        attendance.here = vec![pidfd_open(pid, PidfdFlags::empty()).unwrap()];
        child.kill().unwrap();
        attendance.wait(None, Duration::from_secs(60)).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn units_that_do_not_come_are_counted() {
        let name = domain("do-not-come");
        let attendance = Attendance::open(&name, 3).unwrap();
        assert!(Attendance::open(&name, 3).is_err(), "a second agent");
        let said = attendance.wait(None, Duration::ZERO);
        let said = said.unwrap_err().to_string();
        assert!(said.contains("0 of 3 units"), "{said}");
        let mut starter = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&starter);
        starter.wait().unwrap();
        let attendance = Attendance::open(&name, 3).unwrap();
        let said = attendance.wait(Some(pid), Duration::from_secs(600));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("before it began"), "{said}");
        let said = attend(&name, None, Duration::ZERO).unwrap_err().to_string();
        assert!(said.contains("no agent of"), "{said}");
        let mut agent = Command::new("false").spawn().unwrap();
        let pid = Pid::from_child(&agent);
        agent.wait().unwrap();
        let said = attend(&name, Some(pid), Duration::from_secs(60));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("has ended before its units began"), "{said}");
    }
}

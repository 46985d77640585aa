//! The start of the agent: no unit starts before the agent has reported that it is ready.

use crate::error::{Error, Exit};
use crate::output::{Event, is_for_now};
use crate::plan::Plan;
use crate::signals::{ChildWatch, Interrupts};
use crate::spawn::{Process, stop_with};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::ffi::OsString;
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Far longer than an agent needs, even on a machine that is otherwise busy.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// How long an agent may take to end after it closed its standard output without `ready`.
const LAST_TIMEOUT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Whoever has an agent started, and may end the wait until it is ready.
pub(crate) trait Caller {
    /// Returns what is readable when there is something to hear.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Hears the caller. Returns for how long that has stopped this process.
    ///
    /// # Errors
    /// Why the wait is over.
    fn hear(&mut self, agent: &Process) -> Result<Duration, Error>;
}

impl Caller for Option<&Interrupts> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.map(AsFd::as_fd)
    }

    fn hear(&mut self, agent: &Process) -> Result<Duration, Error> {
        let heard = self.map(Interrupts::take).unwrap_or_default();
        let mut stopped = Duration::ZERO;
        if heard.stop {
            let before = Instant::now();
            stop_with(std::slice::from_ref(agent));
            stopped = before.elapsed();
        }
        match heard.end {
            Some(signal) => Err(Error::Interrupted { signal }),
            None => Ok(stopped),
        }
    }
}

/// Starts the agent and waits for its line `ready`.
pub(crate) fn start(
    plan: &Plan,
    argv: &[OsString],
    children: &ChildWatch,
    caller: &mut dyn Caller,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Process, Error> {
    let (mut agent, stdout) = Process::start_agent(plan, argv)?;
    agent.started().into_iter().for_each(&mut *on_event);
    match wait_until_ready(&mut agent, stdout, caller, on_event)? {
        Readiness::Ready => Ok(agent),
        Readiness::Closed => {
            // Its log, read up to its end, says why it failed.
            let exit = end(&mut agent, children, on_event);
            Err(Error::AgentStart {
                exit,
                said: agent.output.last_words().shown(),
            })
        }
        Readiness::Late => {
            agent.output.finish(&agent.name, on_event);
            let said = agent.output.last_words().shown();
            Err(Error::AgentSilent {
                seconds: READY_DEADLINE.as_secs(),
                said,
            })
        }
    }
}

/// The first line that an agent prints. Only as many bytes are kept as are needed to recognise it.
#[derive(Debug, Default)]
struct Greeting {
    said: Vec<u8>,
}

const READY: &[u8] = b"ready\n";

impl Greeting {
    /// Adds bytes. Returns true if the line is `ready`.
    fn hear(&mut self, bytes: &[u8]) -> bool {
        let wanted = READY.len().saturating_sub(self.said.len());
        self.said
            .extend_from_slice(&bytes[..bytes.len().min(wanted)]);
        self.said == READY
    }
}

enum Readiness {
    Ready,
    Closed,
    Late,
}

fn wait_until_ready(
    agent: &mut Process,
    mut stdout: PipeReader,
    caller: &mut dyn Caller,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Readiness, Error> {
    let mut deadline = Instant::now() + READY_DEADLINE;
    let mut greeting = Greeting::default();
    loop {
        deadline += caller.hear(agent)?;
        // Wait for the line, for what the agent logs, or for the caller.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Readiness::Late);
        }
        let mut fds = vec![PollFd::new(&stdout, PollFlags::IN)];
        fds.extend(
            agent
                .output
                .readers()
                .map(|reader| PollFd::new(reader, PollFlags::IN)),
        );
        let caller = caller.fd();
        fds.extend(caller.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(source) => return Err(Error::system("wait for the agent", source)),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        agent.output.read(&agent.name, &ready[1..], on_event);
        if ready[0] {
            let mut bytes = [0; 256];
            match stdout.read(&mut bytes) {
                Err(error) if is_for_now(&error) => {}
                Ok(0) | Err(_) => return Ok(Readiness::Closed),
                Ok(count) if greeting.hear(&bytes[..count]) => return Ok(Readiness::Ready),
                Ok(_) => {}
            }
        }
    }
}

/// Ends an agent that closed its output without `ready`: it is about to exit, and is killed if it
/// does not.
fn end(agent: &mut Process, children: &ChildWatch, on_event: &mut dyn FnMut(Event<'_>)) -> Exit {
    let mut timeout = Some(LAST_TIMEOUT);
    loop {
        children.clear();
        if let Some(exit) = agent.reap() {
            agent.output.finish(&agent.name, on_event);
            return exit;
        }
        let mut fds = [PollFd::new(children, PollFlags::IN)];
        if let Ok(0) = poll(&mut fds, timeout.as_ref()) {
            agent.signal(Signal::KILL);
            timeout = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_testkit::fuzz::{self, bytes};

    /// Whatever an agent prints, in whatever pieces, only `ready` as the first line counts, and
    /// memory use is bounded.
    #[test]
    fn no_agent_says_too_much() {
        let name = "agent::tests::no_agent_says_too_much";
        fuzz::rounds(name, 2000, |_, random| {
            let mut text = match random.u32(..3) {
                0 => Vec::new(),
                1 => b"ready".to_vec(),
                _ => READY.to_vec(),
            };
            text.extend(bytes(random, 2000));
            let mut greeting = Greeting::default();
            let mut rest = text.as_slice();
            let mut is_ready = false;
            while !rest.is_empty() && !is_ready {
                let (piece, others) = rest.split_at(random.usize(1..=rest.len().min(256)));
                is_ready = greeting.hear(piece);
                rest = others;
            }
            assert_eq!(is_ready, text.starts_with(READY));
            assert!(greeting.said.len() <= READY.len());
        });
    }
}

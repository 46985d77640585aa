//! What a launcher and the `samite host` of another machine tell each other, as bytes.
//!
//! ```text
//!   4 bytes length   then the message, encoded by `postcard`
//! ```
//! Both trust each other: a launcher has started the other one, as the same user. Still no length
//! that is claimed is believed.

use crate::error::Exit;
use crate::output::{Progress, Stream};
use crate::plan::Plan;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::time::Duration;

/// The longest message, in bytes: a plan with the arguments of many units.
const MESSAGE_MAX: usize = 64 << 20;
/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// How often a launcher says that it is there, and how long a host waits to hear it: a connection
/// that is cut may never end.
pub(crate) const BEAT: Duration = Duration::from_secs(5);
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// A unit: the number of its program in the plan, and its rank.
pub(crate) type Place = (u32, u32);

/// What the launcher tells a host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The first one: start the agent, as the host with this number.
    Begin { plan: Box<Plan>, node: Node },
    /// Start a unit, perhaps for another time.
    Start(Place),
    /// Send a signal to a unit and to everything that it has started.
    Signal(Place, i32),
    /// A unit of any host has ended.
    Ended(Place, Exit),
    /// Read no output for now, or go on.
    Pause(bool),
    /// The launcher is there.
    Beat,
    /// The launcher is stopped and says nothing for a while, or goes on.
    Hold(bool),
    /// All units have ended: end the agent, then yourself.
    End,
}

/// How a host is one of several.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Node {
    /// Its number among the hosts of the plan.
    pub host: u32,
    /// Its name.
    pub name: String,
    /// Its address, at which the others reach it.
    pub listen: String,
    /// Where the agent of the first host listens; `None`: this is the first one.
    pub join: Option<String>,
    /// The secret of the domain.
    pub secret: String,
}

/// What a host tells the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Its agent is ready, and listens at this address.
    Ready { address: String },
    /// It cannot begin.
    CannotBegin { why: String },
    /// A unit was started, with this process id.
    Started(Place, u32),
    /// A unit could not be started.
    NotStarted(Place, String),
    /// A line of a unit; `None`: of the agent.
    Line {
        of: Option<Place>,
        stream: Stream,
        text: Vec<u8>,
        complete: bool,
    },
    /// A unit has reported its progress.
    Progress(Place, Progress),
    /// A unit has ended; `None`: the agent.
    Ended(Option<Place>, Exit),
}

/// Messages to the other side that have not left yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<u8>);

impl Outbox {
    pub(crate) fn push<T: Serialize>(&mut self, message: &T) {
        // A plan of which a path is no text was refused before.
        let bytes = postcard::to_stdvec(message).expect("plain data is encodable");
        let len = bytes.len() as u32;
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(&bytes);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Writes as much as the pipe takes.
    ///
    /// # Errors
    /// The other side is gone.
    pub(crate) fn write_to(&mut self, pipe: &mut impl Write) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.0.len() {
            match pipe.write(&self.0[sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.0.drain(..sent);
        Ok(())
    }
}

/// Messages from the other side that are not complete yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Vec<u8>);

impl Inbox {
    /// Returns the number of bytes that have arrived of the next message.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Reads once. Returns the messages that are complete now, and whether more may follow.
    ///
    /// # Errors
    /// What has arrived is no message.
    pub(crate) fn read_from<T: DeserializeOwned>(
        &mut self,
        pipe: &mut impl Read,
    ) -> io::Result<(Vec<T>, bool)> {
        let mut bytes = vec![0; READ];
        let is_open = match pipe.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.0.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) if crate::output::is_for_now(&error) => true,
            Err(error) => return Err(error),
        };
        let (mut messages, mut at) = (Vec::new(), 0);
        while let Some(head) = self.0[at..].first_chunk::<4>() {
            let len = u32::from_le_bytes(*head) as usize;
            if len > MESSAGE_MAX {
                return Err(wrong());
            }
            let Some(message) = self.0.get(at + 4..at + 4 + len) else {
                break;
            };
            messages.push(postcard::from_bytes(message).map_err(|_| wrong())?);
            at += 4 + len;
        }
        self.0.drain(..at);
        Ok((messages, is_open))
    }
}

fn wrong() -> io::Error {
    let what = "bytes that are no message: it is another version of samite, or its shell prints something at its start";
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_testkit::fuzz;

    /// A pipe that gives and takes a few bytes at a time.
    struct Slow(Vec<u8>, usize);

    impl Read for Slow {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = into.len().min(self.1).min(self.0.len());
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            into[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
    }

    #[test]
    fn messages_arrive_in_pieces() {
        let reports = |number: u32| Report::Line {
            of: Some((number, 7)),
            stream: Stream::Stderr,
            text: vec![number as u8; number as usize * 100],
            complete: true,
        };
        for step in [1, 7, 100_000] {
            let mut outbox = Outbox::default();
            (0..50).for_each(|number| outbox.push(&reports(number)));
            let mut wire = Vec::new();
            outbox.write_to(&mut wire).unwrap();
            assert!(outbox.is_empty());
            let (mut slow, mut inbox, mut all) = (Slow(wire, step), Inbox::default(), Vec::new());
            while all.len() < 50 {
                let (some, is_open) = inbox.read_from::<Report>(&mut slow).unwrap();
                assert!(is_open);
                all.extend(some);
            }
            let shown = |report: &Report| format!("{report:?}");
            assert!(
                all.iter()
                    .map(shown)
                    .eq((0..50).map(|at| shown(&reports(at))))
            );
        }
    }

    /// Nothing that is no message makes a launcher or a host panic: messages of which some bytes
    /// have changed, and random ones of a right length.
    #[test]
    fn other_bytes_are_refused() {
        let name = "hosts::wire::tests::other_bytes_are_refused";
        let mut plan = Plan::new("job");
        plan.programs
            .push(crate::Program::new("a", "/bin/a").args(["b"]));
        let node = Node {
            host: 0,
            name: "one".into(),
            listen: "10.0.0.1".into(),
            join: None,
            secret: "a secret".into(),
        };
        let mut outbox = Outbox::default();
        let plan = Box::new(plan);
        outbox.push(&Order::Begin { plan, node });
        outbox.push(&Order::Signal((0, 1), 15));
        let begin = outbox.0;
        let mut read = Inbox::default();
        let whole = read.read_from::<Order>(&mut Slow(begin.clone(), 1 << 20));
        assert_eq!(whole.unwrap().0.len(), 2);
        fuzz::rounds(name, 4000, |_, random| {
            let mut bytes = begin.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(4..bytes.len());
                bytes[at] = random.u8(..);
            }
            let random_one = fuzz::bytes(random, 300);
            bytes.extend_from_slice(&(random_one.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&random_one);
            let _ = Inbox::default().read_from::<Order>(&mut Slow(bytes.clone(), 1 << 20));
            let _ = Inbox::default().read_from::<Report>(&mut Slow(bytes, 1 << 20));
        });
    }
}

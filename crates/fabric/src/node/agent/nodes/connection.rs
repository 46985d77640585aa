//! A connection with the agent of another node: a greeting, then messages.

use super::greeting::{FROM_CALLER, Greeting, Heard, Secret};
use super::session::Session;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a connection may take until both agents have greeted each other.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// How long a connection that is closed may take to send what is left.
const CLOSING_TIME: Duration = Duration::from_secs(2);
/// Bytes that may wait to be sent: a member that takes so little is gone.
const WAITING_MAX: usize = 16 << 20;
/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// A connection; see the module's documentation.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    stage: Stage,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// When it ends, unless it has become open, or has sent what is left.
    until: Option<Instant>,
}

#[derive(Debug)]
enum Stage {
    Connecting(Greeting),
    Greeting(Greeting),
    Open(Session),
    /// What is left is sent.
    Closing,
}

/// What has happened on a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The agents trust each other.
    Open,
    Message(Vec<u8>),
    /// It is over, and why.
    Closed(Ended),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Ended {
    #[error("this agent has closed it")]
    Here,
    #[error("the other side has closed it")]
    There,
    #[error("the other agent has another secret")]
    OtherSecret,
    #[error("the other agent is of another version")]
    OtherVersion,
    #[error("the other side is no agent")]
    NoAgent,
    #[error("the agent is called by an address that is not its own")]
    OtherAddress,
    #[error("a message is not the other agent's, or not its next one")]
    Forged,
    #[error("nothing answers")]
    NoAnswer,
    #[error("the other side is too slow")]
    TooSlow,
    #[error("the other side takes nothing")]
    TakesNothing,
    #[error("a message of {0} bytes")]
    TooLong(usize),
    #[error("{0}")]
    System(Errno),
}

impl Ended {
    /// Returns whether it would end in the same way again.
    pub(super) fn is_final(self) -> bool {
        matches!(
            self,
            Ended::OtherSecret | Ended::OtherVersion | Ended::OtherAddress | Ended::NoAgent
        )
    }
}

impl From<Errno> for Ended {
    fn from(error: Errno) -> Ended {
        Ended::System(error)
    }
}

impl Connection {
    /// Accepts a caller of the address `own`.
    pub(super) fn accepted(socket: OwnedFd, secret: Secret, own: SocketAddr) -> Connection {
        let greeting = Greeting::new(secret, false, own);
        Connection::new(socket, Stage::Greeting, greeting)
    }

    /// Calls an agent.
    pub(super) fn call(address: SocketAddr, secret: Secret) -> Result<Connection, Errno> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let greeting = Greeting::new(secret, true, address);
        Ok(Connection::new(socket, Stage::Connecting, greeting))
    }

    fn new(socket: OwnedFd, stage: fn(Greeting) -> Stage, greeting: Greeting) -> Connection {
        // Beats are small, and should not wait for each other.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        Connection {
            socket,
            outbox: greeting.hello(),
            stage: stage(greeting),
            inbox: Vec::new(),
            until: Some(Instant::now() + GREETING_TIME),
        }
    }

    /// Returns whether the agents do not trust each other yet.
    pub(super) fn is_greeting(&self) -> bool {
        matches!(self.stage, Stage::Connecting(_) | Stage::Greeting(_))
    }

    /// Returns whether it was closed here.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing)
    }

    /// Returns what it waits for.
    pub(super) fn waits_for(&self) -> PollFlags {
        match (&self.stage, self.outbox.is_empty()) {
            (Stage::Connecting(_), _) => PollFlags::OUT,
            (_, true) => PollFlags::IN,
            (_, false) => PollFlags::IN | PollFlags::OUT,
        }
    }

    /// Queues a message, if the connection is open.
    pub(super) fn send(&mut self, message: &[u8]) {
        if let Stage::Open(session) = &mut self.stage {
            session.seal(message, &mut self.outbox);
        }
    }

    /// Closes it after what was sent.
    pub(super) fn close(&mut self) {
        self.stage = Stage::Closing;
        self.until = Some(Instant::now() + CLOSING_TIME);
    }

    /// Reads and writes what can be read and written; returns what has happened.
    pub(super) fn serve(&mut self, has_events: bool) -> Vec<News> {
        let mut news = Vec::new();
        if let Err(why) = self.try_serve(has_events, &mut news) {
            news.push(News::Closed(why));
        }
        news
    }

    fn try_serve(&mut self, has_events: bool, news: &mut Vec<News>) -> Result<(), Ended> {
        if has_events {
            self.connected()?;
            self.read(news)?;
        }
        if !matches!(self.stage, Stage::Connecting(_)) {
            self.write()?;
        }
        if matches!(self.stage, Stage::Closing) && self.outbox.is_empty() {
            return Err(Ended::Here);
        }
        if self.until.is_some_and(|until| Instant::now() > until) {
            return Err(match self.stage {
                Stage::Connecting(_) => Ended::NoAnswer,
                _ => Ended::TooSlow,
            });
        }
        Ok(())
    }

    fn connected(&mut self) -> Result<(), Ended> {
        if !matches!(self.stage, Stage::Connecting(_)) {
            return Ok(());
        }
        match sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => return Err(error.into()),
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Closing);
        if let Stage::Connecting(greeting) = stage {
            self.stage = Stage::Greeting(greeting);
        }
        Ok(())
    }

    fn read(&mut self, news: &mut Vec<News>) -> Result<(), Ended> {
        let mut bytes = vec![0; READ];
        // Of a stranger, no more is read than a greeting has.
        let most = match self.is_greeting() {
            true => (FROM_CALLER + 1).saturating_sub(self.inbox.len()).max(1),
            false => READ,
        };
        match recv(&self.socket, &mut bytes[..most], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Ended::There),
            Ok((_, read)) => self.inbox.extend_from_slice(&bytes[..read]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if let Stage::Greeting(greeting) = &mut self.stage {
            match greeting.hear(&mut self.inbox) {
                Heard::More(sent) => self.outbox.extend_from_slice(&sent),
                Heard::Trusted(sent, session) => {
                    self.outbox.extend_from_slice(&sent);
                    self.stage = Stage::Open(session);
                    self.until = None;
                    news.push(News::Open);
                }
                Heard::Refused(sent, why) => {
                    self.outbox.extend_from_slice(&sent);
                    let _ = self.write();
                    return Err(why);
                }
            }
        }
        if let Stage::Open(session) = &mut self.stage {
            let take = |message| news.push(News::Message(message));
            session.open(&mut self.inbox, take)?;
        }
        if matches!(self.stage, Stage::Closing) {
            self.inbox.clear();
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), Ended> {
        while !self.outbox.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, &self.outbox, flags) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.outbox.len() > WAITING_MAX {
            true => Err(Ended::TakesNothing),
            false => Ok(()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;

    /// A message that somebody adds to those of a trusted agent ends the connection.
    #[test]
    fn a_message_of_somebody_else_ends_the_connection() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let secret = Secret::of("the secret of a test").unwrap();
        let address = ([10, 0, 0, 7], 7000).into();
        let mut connection = Connection::accepted(ours, secret.clone(), address);
        let mut say = |bytes: &[u8]| {
            assert_eq!(send(&theirs, bytes, SendFlags::NOSIGNAL), Ok(bytes.len()));
            connection.serve(true)
        };
        let hear = || {
            let mut bytes = vec![0; 1000];
            let heard = recv(&theirs, &mut bytes[..], RecvFlags::DONTWAIT).unwrap();
            bytes.truncate(heard.1);
            bytes
        };
        let mut greeting = Greeting::new(secret, true, address);
        assert_eq!(say(&greeting.hello()), []);
        let Heard::More(proof) = greeting.hear(&mut hear()) else {
            panic!("the agent that was called waits for a proof");
        };
        assert_eq!(say(&proof), [News::Open]);
        let Heard::Trusted(_, mut session) = greeting.hear(&mut hear()) else {
            panic!("it trusts the proof");
        };
        let mut sealed = Vec::new();
        session.seal(b"beat", &mut sealed);
        assert_eq!(say(&sealed), [News::Message(b"beat".into())]);
        assert_eq!(say(&sealed), [News::Closed(Ended::Forged)]);
    }
}

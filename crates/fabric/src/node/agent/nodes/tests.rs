//! Agents of several nodes in one process, on the loopback device.

use super::*;
use crate::Identity;
use crate::node::{Cpus, RemoteTable, State};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

/// The time for what takes a moment.
const MOMENT: Duration = Duration::from_secs(4);

const SECRET: &str = "the secret of a test";

fn network(name: &str, join: Option<String>) -> Network {
    Network {
        name: name.into(),
        listen: ([127, 0, 0, 1], 0).into(),
        join,
        secret: Secret::of(SECRET).unwrap(),
        transport: FarTransport::default(),
    }
}

/// An agent with its node.
struct Agent {
    nodes: Nodes,
    node: Node,
}

impl Agent {
    fn begin(network: &Network) -> Agent {
        let (nodes, life) = Nodes::begin("test", network).unwrap();
        let node = Node::create(life, 1 << 20).unwrap();
        Agent { nodes, node }
    }

    fn address(&self) -> String {
        self.nodes.address.to_string()
    }

    /// Serves the other agents for a moment at most, until something is there.
    fn serve_until<T>(&mut self, mut find: impl FnMut(&Agent) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            assert!(begin.elapsed() < MOMENT, "it takes longer than a moment");
            let ready = self.nodes.poll(Duration::from_millis(2)).unwrap();
            self.nodes.serve(&ready, &mut self.node).unwrap();
        }
    }

    /// Serves a node that joins, and returns its agent.
    fn admit(&mut self, name: &str) -> Agent {
        let network = network(name, Some(self.address()));
        let joining = thread::spawn(move || Agent::begin(&network));
        self.serve_until(|_| joining.is_finished().then_some(()));
        joining.join().unwrap()
    }
}

/// Returns why a node cannot join.
fn why_not(network: &Network) -> String {
    Nodes::begin("test", network).unwrap_err().to_string()
}

/// Whoever joins is told what is wrong with what answers.
#[test]
fn what_is_no_agent_of_this_version_is_told_from_a_silent_address() {
    let answers: [(&'static [u8], &str); 3] = [
        (b"samite\0\x63 and more", "is of another version of Samite"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no agent of Samite"),
        (b"SSH-2.0-", "is no agent of Samite"),
    ];
    for (answer, says) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
            stream
        });
        let why = why_not(&network("one", Some(address.clone())));
        assert!(why.contains(&address) && why.contains(says), "{why}");
        other.join().unwrap();
    }
}

#[test]
fn an_agent_listens_on_one_interface() {
    for any in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        let listen = any.parse().unwrap();
        let why = why_not(&Network {
            listen,
            ..network("one", None)
        });
        assert!(why.contains("name an address of this machine"), "{why}");
    }
}

/// Someone in the middle, whom agents call in place of the first one, cannot pass them on to it.
#[test]
fn an_agent_that_is_called_by_another_address_is_not_joined() {
    let mut head = Agent::begin(&network("one", None));
    let middle = TcpListener::bind("127.0.0.1:0").unwrap();
    let (called, address) = (middle.local_addr().unwrap(), head.address());
    thread::spawn(move || {
        let (caller, _) = middle.accept().unwrap();
        let agent = TcpStream::connect(address).unwrap();
        let ways = [(&caller, &agent), (&agent, &caller)];
        thread::scope(|scope| {
            for (mut from, mut to) in ways {
                scope.spawn(move || std::io::copy(&mut from, &mut to));
            }
        });
    });
    let network = network("two", Some(called.to_string()));
    let joining = thread::spawn(move || why_not(&network));
    head.serve_until(|_| joining.is_finished().then_some(()));
    let why = joining.join().unwrap();
    assert!(why.contains("listens at another address"), "{why}");
}

/// A node that joins after the end of a unit, while its slot is not free yet, learns who it was.
#[test]
fn nodes_learn_who_the_dead_were() {
    let mut head = Agent::begin(&network("one", None));
    let (pid, cpus) = (std::process::id() as i32, Cpus::default());
    let identity = Identity::by_hand("dead");
    let life = head.node.admit(pid, None, &cpus, &identity).unwrap();
    head.nodes.tell_slots(&mut head.node);
    let index = head.node.member(life).unwrap();
    head.node.lose(index);
    head.nodes.tell_slots(&mut head.node);
    let mut two = head.admit("two");
    let table = two.nodes.table().try_clone_to_owned().unwrap();
    let others = Others::from(RemoteTable::attach(table).unwrap());
    let peer = life.0.of(0);
    let info = head.serve_until(|_| {
        let ready = two.nodes.poll(Duration::ZERO).unwrap();
        two.nodes.serve(&ready, &mut two.node).unwrap();
        others.info(peer)
    });
    assert_eq!((info.incarnation, info.identity), (life.1, identity));
    assert_eq!(others.state(peer), Some((State::Dead, life.1)));
}

/// Any number of silent strangers leave room for a node.
#[test]
fn silent_strangers_keep_no_node_out() {
    let mut head = Agent::begin(&network("one", None));
    let call = |head: &mut Agent| {
        let mut stranger = TcpStream::connect(head.nodes.address).unwrap();
        stranger.set_nonblocking(true).unwrap();
        // It was accepted when the agent has greeted it.
        head.serve_until(|_| match stranger.read(&mut [0; 100]) {
            Ok(read) => (read > 0).then_some(()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                None
            }
        });
        stranger
    };
    let mut strangers: Vec<TcpStream> = (0..2 * STRANGERS_MAX).map(|_| call(&mut head)).collect();
    assert_eq!(head.nodes.connections.len(), STRANGERS_MAX);
    // Those that were silent for longest are gone.
    let mut is_gone = |at: usize| matches!(strangers[at].read(&mut [0]), Ok(0));
    assert!(is_gone(0) && is_gone(STRANGERS_MAX - 1));
    assert!(!is_gone(STRANGERS_MAX));
    let two = head.admit("two");
    assert_eq!(two.nodes.facts().len(), 2);
}

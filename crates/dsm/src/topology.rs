//! Which servers a domain has, which of them each client uses, and how chunks are kept coherent: a
//! file, which all processes of a job read.
//!
//! ```toml
//! [[server]]
//! name = "gateway"             # without a program: the agent of the domain
//!
//! [[server]]
//! name = "left"
//! program = "chunk-server"     # a unit of this program
//! rank = 0
//! cache = 67108864             # bytes of copies of other servers' chunks; default: no limit
//!
//! [[client]]
//! program = "worker"           # its units use this server for the chunks of all homes
//! ranks = [0, 1]               # default: all
//! server = "left"
//!
//! [[link]]
//! from = "worker"              # a program without an entry above uses the server with the
//! to = "left"                  # fastest link
//! rate = 125000000             # bytes per second
//!
//! [[chunk]]
//! name = "field.*"             # the first entry that fits; `*` at the end is any text
//! protocol = "update"          # home-mesi, update, immutable, home-only
//! home = "left"                # default: by rendezvous hash of the name
//! replicas = 2                 # servers that have each version, home included; default: 1
//! ```
//! The *backups* of a chunk with replicas are the next servers after its home in the rendezvous
//! order of its name. When the home is lost, the first of them takes the chunk over.
//!
//! A client without a server of its own asks the home of each chunk. Without a file, the agent is
//! the only server.
//!
//! Source of the placement: Thaler and Ravishankar, *Using name-based mappings to increase hit
//! rates* (1998).

use crate::error::{Error, Result};
use crate::protocol::{Protocol, Replicas, ServerId};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The most servers.
const MOST_SERVERS: usize = 4096;

/// The topology of this process, if it was set.
static OF_PROCESS: Mutex<Option<Arc<Topology>>> = Mutex::new(None);

/// The servers of a domain, their clients, and the protocols of chunks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    #[serde(rename = "server")]
    servers: Vec<Server>,
    #[serde(rename = "client", default)]
    clients: Vec<Client>,
    #[serde(rename = "link", default)]
    links: Vec<Link>,
    #[serde(rename = "chunk", default)]
    chunks: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    name: String,
    program: Option<String>,
    #[serde(default)]
    rank: u32,
    cache: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Client {
    program: String,
    ranks: Option<Vec<u32>>,
    server: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    from: String,
    to: String,
    rate: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    name: String,
    #[serde(default)]
    protocol: Protocol,
    home: Option<String>,
    #[serde(default = "one")]
    replicas: u16,
}

fn one() -> u16 {
    1
}

/// Which process a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place<'t> {
    Agent,
    Unit { program: &'t str, rank: u32 },
}

impl Default for Topology {
    /// The agent alone.
    fn default() -> Topology {
        let agent = Server {
            name: "agent".to_owned(),
            program: None,
            rank: 0,
            cache: None,
        };
        Topology {
            servers: vec![agent],
            clients: Vec::new(),
            links: Vec::new(),
            chunks: Vec::new(),
        }
    }
}

impl Topology {
    /// Reads a topology file.
    ///
    /// # Errors
    /// [`Error::Topology`], which says what is wrong, and where.
    pub fn parse(text: &str) -> Result<Topology> {
        let topology: Topology = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        topology.check()?;
        Ok(topology)
    }

    fn check(&self) -> Result<()> {
        let count = self.servers.len();
        if count == 0 || count > MOST_SERVERS {
            return Err(wrong(format!(
                "it has {count} servers: use 1 to {MOST_SERVERS}"
            )));
        }
        for (at, server) in self.servers.iter().enumerate() {
            let same = |other: &&Server| {
                other.name == server.name
                    || (&other.program, other.rank) == (&server.program, server.rank)
            };
            if let Some(other) = self.servers[..at].iter().find(same) {
                let (name, other) = (&server.name, &other.name);
                return Err(wrong(format!(
                    "the servers \"{other}\" and \"{name}\" have the same name or process"
                )));
            }
        }
        let named = self.clients.iter().map(|client| &client.server);
        let named = named.chain(self.chunks.iter().filter_map(|rule| rule.home.as_ref()));
        let named = named.chain(self.links.iter().map(|link| &link.to));
        for name in named {
            self.named(name)
                .ok_or_else(|| wrong(format!("there is no server \"{name}\"")))?;
        }
        let fits = |rule: &&Rule| (1..=count).contains(&usize::from(rule.replicas));
        if let Some(rule) = self.chunks.iter().find(|rule| !fits(rule)) {
            let (name, replicas) = (&rule.name, rule.replicas);
            return Err(wrong(format!(
                "the chunks \"{name}\" have {replicas} replicas, and there are {count} servers: use \
                 1 to {count}"
            )));
        }
        Ok(())
    }

    /// Makes it the topology of [`Dsm::join`](crate::Dsm::join) in this process.
    pub fn make_default(self) {
        let mut own = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        *own = Some(Arc::new(self));
    }

    /// Returns the topology of this process: the agent alone, unless another one was set.
    pub fn of_process() -> Arc<Topology> {
        let own = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        own.clone().unwrap_or_default()
    }

    /// Returns the same number for the same topology in all processes.
    pub fn digest(&self) -> u64 {
        let bytes = postcard::to_stdvec(self).expect("plain data are encodable");
        xxh3_64(&bytes)
    }

    /// Returns all servers.
    pub fn servers(&self) -> impl Iterator<Item = ServerId> {
        (0..self.servers.len()).map(|at| ServerId(at as u16))
    }

    /// Returns the name of a server.
    pub fn name(&self, server: ServerId) -> &str {
        let found = self.servers.get(usize::from(server.0));
        found.map_or("?", |server| &server.name)
    }

    /// Returns the home of the chunk of that name.
    pub fn home(&self, chunk: &str) -> ServerId {
        let rule = self.rule(chunk).and_then(|rule| rule.home.as_deref());
        if let Some(home) = rule.and_then(|home| self.named(home)) {
            return home;
        }
        let weight = |server: &ServerId| self.weight(chunk, *server);
        self.servers().max_by_key(weight).unwrap_or_default()
    }

    fn weight(&self, chunk: &str, server: ServerId) -> u64 {
        let seed = xxh3_64(self.name(server).as_bytes());
        xxh3_64_with_seed(chunk.as_bytes(), seed)
    }

    /// Returns how many servers have each version of the chunk of that name, and in which order
    /// they take their turns; `None`: only its home has them.
    pub(crate) fn replicas(&self, chunk: &str) -> Option<Replicas> {
        let count = self.rule(chunk).map_or(1, |rule| rule.replicas);
        if count < 2 {
            return None;
        }
        let home = self.home(chunk);
        let mut order: Vec<ServerId> = self.servers().collect();
        // The home may be one that a rule names.
        order.sort_by_key(|server| (*server != home, Reverse(self.weight(chunk, *server))));
        Some(Replicas { count, order })
    }

    /// Returns how the chunk of that name is kept coherent.
    pub fn protocol(&self, chunk: &str) -> Protocol {
        self.rule(chunk)
            .map_or(Protocol::default(), |rule| rule.protocol)
    }

    /// Returns the server that a unit uses for the chunks of all homes, if it has one.
    pub fn server_for(&self, program: &str, rank: u32) -> Option<ServerId> {
        let is_it = |client: &&Client| {
            let ranks = client.ranks.as_ref();
            client.program == program && ranks.is_none_or(|ranks| ranks.contains(&rank))
        };
        if let Some(client) = self.clients.iter().find(is_it) {
            return self.named(&client.server);
        }
        let links = self.links.iter().filter(|link| link.from == program);
        let fastest = links.max_by_key(|link| link.rate)?;
        self.named(&fastest.to)
    }

    /// Returns the server that a unit is.
    pub fn server_of(&self, program: &str, rank: u32) -> Option<ServerId> {
        let is_it =
            |server: &Server| server.program.as_deref() == Some(program) && server.rank == rank;
        let at = self.servers.iter().position(is_it)?;
        Some(ServerId(at as u16))
    }

    pub(crate) fn cache_of(&self, server: ServerId) -> u64 {
        let found = self.servers.get(usize::from(server.0));
        found.and_then(|server| server.cache).unwrap_or(u64::MAX)
    }

    pub(crate) fn place(&self, server: ServerId) -> Option<Place<'_>> {
        let Server { program, rank, .. } = self.servers.get(usize::from(server.0))?;
        Some(match program {
            None => Place::Agent,
            Some(program) => Place::Unit {
                program,
                rank: *rank,
            },
        })
    }

    fn rule(&self, chunk: &str) -> Option<&Rule> {
        let fits = |rule: &&Rule| match rule.name.strip_suffix('*') {
            Some(begin) => chunk.starts_with(begin),
            None => chunk == rule.name,
        };
        self.chunks.iter().find(fits)
    }

    fn named(&self, name: &str) -> Option<ServerId> {
        let at = self.servers.iter().position(|server| server.name == name)?;
        Some(ServerId(at as u16))
    }
}

fn wrong(what: String) -> Error {
    Error::Topology(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        [[server]]
        name = "gateway"
        [[server]]
        name = "left"
        program = "chunk-server"
        cache = 1000
        [[client]]
        program = "worker"
        ranks = [1]
        server = "left"
        [[link]]
        from = "sink"
        to = "gateway"
        rate = 10
        [[link]]
        from = "sink"
        to = "left"
        rate = 20
        [[chunk]]
        name = "field.*"
        protocol = "update"
        home = "left"
        [[chunk]]
        name = "field"
        protocol = "immutable"
        [[chunk]]
        name = "state*"
        replicas = 2
    "#;

    #[test]
    fn a_topology_is_read() {
        let topology = Topology::parse(TWO).unwrap();
        let (gateway, left) = (ServerId(0), ServerId(1));
        assert_eq!(topology.servers().collect::<Vec<_>>(), [gateway, left]);
        assert_eq!(topology.place(gateway), Some(Place::Agent));
        assert_eq!(topology.server_of("chunk-server", 0), Some(left));
        assert_eq!(topology.server_of("chunk-server", 1), None);
        assert_eq!(
            (topology.cache_of(gateway), topology.cache_of(left)),
            (u64::MAX, 1000)
        );
        assert_eq!(topology.server_for("worker", 1), Some(left));
        assert_eq!(topology.server_for("worker", 0), None);
        assert_eq!(topology.server_for("sink", 7), Some(left));
        assert_eq!(topology.home("field.1"), left);
        assert_eq!(topology.protocol("field.1"), Protocol::Update);
        assert_eq!(topology.protocol("field"), Protocol::Immutable);
        assert_eq!(topology.protocol("other"), Protocol::HomeMesi);
        assert_eq!(topology.replicas("field"), None);
        for name in ["state 1", "state 2", "state 3"] {
            let replicas = topology.replicas(name).expect("it has two");
            assert_eq!((replicas.count, replicas.order.len()), (2, 2));
            assert_eq!(replicas.order[0], topology.home(name));
        }
        let again = Topology::parse(TWO).unwrap();
        assert_eq!(topology.digest(), again.digest());
        assert_ne!(topology.digest(), Topology::default().digest());
    }

    #[test]
    fn names_are_spread_and_few_move() {
        let servers = |count: usize| {
            let each = (0..count)
                .map(|at| format!("[[server]]\nname = \"{at}\"\nprogram = \"s\"\nrank = {at}\n"));
            Topology::parse(&each.collect::<String>()).unwrap()
        };
        let (four, five) = (servers(4), servers(5));
        let names: Vec<String> = (0..4000).map(|at| format!("chunk {at}")).collect();
        for server in four.servers() {
            let count = names
                .iter()
                .filter(|name| four.home(name) == server)
                .count();
            assert!(
                (850..1150).contains(&count),
                "{count} of 4000 at {server:?}"
            );
        }
        let moved = names
            .iter()
            .filter(|name| four.home(name) != five.home(name));
        let to_new = moved.clone().all(|name| five.home(name) == ServerId(4));
        assert!(to_new && (650..950).contains(&moved.count()));
    }

    #[test]
    fn mistakes_are_named() {
        let says = |text: &str, what: &str| {
            let error = Topology::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        says("", "server");
        says("server = []", "0 servers");
        says("[[server]]\nnam = \"a\"", "nam");
        says(
            &format!("{TWO}\n[[client]]\nprogram = \"a\"\nserver = \"lft\""),
            "\"lft\"",
        );
        says(
            "[[server]]\nname = \"a\"\n[[server]]\nname = \"b\"",
            "the same name or process",
        );
        says(
            &format!("{TWO}\n[[chunk]]\nname = \"x\"\nprotocol = \"mesi\""),
            "mesi",
        );
        for replicas in [0, 3] {
            says(
                &format!("{TWO}\n[[chunk]]\nname = \"x*\"\nreplicas = {replicas}"),
                "\"x*\" have",
            );
        }
    }
}

//! The settings of a simulation, and the threads that run it.

use super::Sim;
use super::network::Network;
use crate::transport::delayed::Delayed;
use crate::transport::ordered::Ordered;
use crate::transport::{AnyTransport, Rma};
use crate::{Config, Error, Fabric, Identity, PeerId};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Determines everything random.
    pub seed: u64,
    /// Number of units.
    pub units: u32,
    /// The programs of the job, with their numbers of units: one, unless `of_programs` was called.
    pub programs: Vec<(&'static str, u32)>,
    /// Number of nodes: unit u is on node u % nodes.
    pub nodes: u32,
    /// Range of the random latency of a frame.
    pub latency: Range<Duration>,
    /// Bandwidth of a pair, in bytes per second.
    pub bandwidth: u64,
    /// Maximum number of frames of a pair in flight; further ones are refused until some arrive.
    pub in_flight_max: usize,
    /// Maximum length of a frame's body.
    pub body_max: u64,
    /// RMA between nodes.
    pub rma: Rma,
    /// Whether frames between nodes stay in order within a pair.
    pub is_ordered: bool,
    /// Whether unit 0 identifies itself as the host of an agent's services.
    pub has_host: bool,
    /// Units that die, and when.
    pub kills: Vec<(u32, Duration)>,
    /// Nodes that disappear, and when.
    pub node_kills: Vec<(u32, Duration)>,
    /// Nodes that join, for the first time or again, and when.
    pub starts: Vec<(u32, Duration)>,
    /// Number of units of other jobs on other nodes. All agents know them, but they are not run.
    /// `lost_bystanders` of them are lost, one after the other.
    pub bystanders: u32,
    /// See [`Scenario::bystanders`].
    pub lost_bystanders: u32,
    /// Configuration of every unit.
    pub config: Config,
}

impl Scenario {
    /// Creates a network of `units` units at the scale of a cluster: 1 to 20 us, 10 GB/s. Each unit
    /// is on its own node.
    pub fn new(seed: u64, units: u32) -> Scenario {
        Scenario {
            seed,
            units,
            programs: vec![("unit", units)],
            nodes: units,
            latency: Duration::from_micros(1)..Duration::from_micros(20),
            bandwidth: 10_000_000_000,
            in_flight_max: 64,
            body_max: 4096,
            rma: Rma::None,
            is_ordered: true,
            has_host: false,
            kills: Vec::new(),
            node_kills: Vec::new(),
            starts: Vec::new(),
            bystanders: 0,
            lost_bystanders: 0,
            config: Config {
                deadline: Duration::from_secs(10),
                ..Config::default()
            },
        }
    }

    /// Places the units on this many nodes, round-robin.
    pub fn on_nodes(mut self, nodes: u32) -> Scenario {
        self.nodes = nodes.clamp(1, self.units.max(1));
        self
    }

    /// Divides the units among programs, in order.
    pub fn of_programs(mut self, programs: &[(&'static str, u32)]) -> Scenario {
        let units: u32 = programs.iter().map(|(_, units)| units).sum();
        assert_eq!(units, self.units, "each unit belongs to a program");
        self.programs = programs.to_vec();
        self
    }

    /// Enables RMA between nodes.
    pub fn with_rma(mut self, rma: Rma) -> Scenario {
        self.rma = rma;
        self
    }

    /// Lets frames between nodes overtake each other.
    pub fn unordered(mut self) -> Scenario {
        self.is_ordered = false;
        self
    }

    /// Makes unit 0 identify itself as the host of an agent's services.
    pub fn with_host(mut self) -> Scenario {
        self.has_host = true;
        self
    }

    /// Returns the peer number of a unit.
    pub fn peer_of(&self, unit: u32) -> PeerId {
        PeerId::new(unit % self.nodes, unit / self.nodes)
    }

    pub(super) fn bystander(&self, number: u32) -> PeerId {
        const OF_NODE: u32 = 400;
        PeerId::new(self.nodes + number / OF_NODE, number % OF_NODE)
    }

    pub(super) fn units_of(&self, node: u32) -> impl Iterator<Item = u32> + use<> {
        (node..self.units).step_by(self.nodes as usize)
    }

    /// Returns true if a node is not present from the beginning.
    pub(super) fn comes_later(&self, node: u32) -> bool {
        let first = |list: &[(u32, Duration)]| {
            let of_node = list.iter().filter(|(number, _)| *number == node);
            of_node.map(|(_, at)| *at).min()
        };
        let (started, killed) = (first(&self.starts), first(&self.node_kills));
        started.is_some_and(|started| killed.is_none_or(|killed| started < killed))
    }

    /// Iterates over the units in the order of their results: first their first lives, then those
    /// on nodes that return.
    pub(super) fn lives(&self) -> impl Iterator<Item = u32> {
        let mut seen: BTreeSet<u32> = (0..self.nodes)
            .filter(|node| !self.comes_later(*node))
            .collect();
        let again = self
            .starts
            .iter()
            .filter(move |(node, _)| !seen.insert(*node));
        (0..self.units).chain(again.flat_map(|(node, _)| self.units_of(*node)))
    }

    /// Returns the unit of a peer, the inverse of [`Scenario::peer_of`].
    pub(super) fn unit_of(&self, peer: PeerId) -> u32 {
        peer.slot().0 * self.nodes + peer.node()
    }

    /// Kills unit `unit` at this time.
    pub fn kill(mut self, unit: u32, at: Duration) -> Scenario {
        self.kills.push((unit, at));
        self
    }

    /// Removes node `node` at this time, with its agent and its units.
    pub fn kill_node(mut self, node: u32, at: Duration) -> Scenario {
        self.node_kills.push((node, at));
        self
    }

    /// Lets node `node` join at this time. A node that was present before returns in another life.
    pub fn start_node(mut self, node: u32, at: Duration) -> Scenario {
        self.starts.push((node, at));
        self
    }

    /// Runs `unit` once per unit, to the end. Returns the results in order of units, then those of
    /// units on nodes that returned, in the order of [`Scenario::starts`]. A killed unit sees all
    /// peers lost. If a unit panics, the message names the seed.
    pub fn run<T: Send>(&self, unit: impl Fn(&Fabric) -> T + Sync) -> Vec<T> {
        let network = Arc::new(Network::new(self));
        let (network, unit) = (&network, &unit);
        let run_unit = |index: u32| {
            let _baton = network.enter(index);
            let fabric = self
                .fabric(index, network.clone())
                .map_err(|error| error.to_string());
            match fabric {
                Ok(fabric) => unit(&fabric),
                Err(error) => panic!("a simulated unit could not start: {error}"),
            }
        };
        let run_unit = &run_unit;
        let ended: Vec<_> = std::thread::scope(|scope| {
            let lives = 0..self.lives().count() as u32;
            let threads = lives.map(|index| scope.spawn(move || run_unit(index)));
            let threads: Vec<_> = threads.collect();
            network.start();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let ended = ended.into_iter().enumerate();
        ended
            .map(|(index, end)| end.unwrap_or_else(|panic| self.explain(index, panic.as_ref())))
            .collect()
    }

    fn explain(&self, unit: usize, panic: &(dyn std::any::Any + Send)) -> ! {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic");
        panic!(
            "seed {seed}, unit {unit}: {text}\n  repeat it with: SAMITE_SIM_SEED={seed} cargo test",
            seed = self.seed
        );
    }

    fn fabric(&self, index: u32, network: Arc<Network>) -> Result<Fabric, Error> {
        let node = network.join(index)?;
        let identity = self.identity(node.unit);
        let sim = Sim::new(index, node.clone(), network);
        let sim = AnyTransport::Sim(Box::new(sim));
        let transport = match self.is_ordered {
            true => sim,
            false => AnyTransport::Ordered(Ordered::new(sim, node.incarnation)),
        };
        let config = self.config.clone();
        let transport = Delayed::put_before(transport, &node, &identity, &config);
        Ok(Fabric::assemble(node, transport, identity, None, config))
    }

    pub(super) fn identity(&self, index: u32) -> Identity {
        let mut first = 0;
        let mut programs = self.programs.iter().copied();
        let (program, size) = programs
            .find(|(_, size)| {
                first += size;
                index < first
            })
            .expect("each unit belongs to a program");
        let program = match self.has_host && index == 0 {
            true => crate::agent::identity().program,
            false => program.to_owned(),
        };
        Identity {
            job: "simulation".to_owned(),
            program,
            rank: index + size - first,
            size,
            unit: index,
            units: self.units,
        }
    }
}

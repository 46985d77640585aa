//! What is simulated, and the threads that run it.

use super::Sim;
use super::network::Network;
use crate::transport::ordered::Ordered;
use crate::transport::{AnyTransport, Rma};
use crate::{Config, Error, Fabric, Identity, PeerId};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// How many units there are.
    pub units: u32,
    /// On how many nodes: unit u is on node u % nodes.
    pub nodes: u32,
    /// A frame takes this long, at random.
    pub latency: Range<Duration>,
    /// Bytes per second of one pair.
    pub bandwidth: u64,
    /// Frames of one pair that may be under way; more are refused for now.
    pub in_flight_max: usize,
    /// Longest body of a frame.
    pub body_max: u64,
    /// RMA between nodes.
    pub rma: Rma,
    /// Whether frames of a pair on two nodes keep their order.
    pub is_ordered: bool,
    /// Whether unit 0 says that it hosts the services of an agent.
    pub has_host: bool,
    /// Which unit dies when.
    pub kills: Vec<(u32, Duration)>,
    /// Which node disappears when.
    pub node_kills: Vec<(u32, Duration)>,
    /// Which node joins when, for the first time or again.
    pub starts: Vec<(u32, Duration)>,
    /// Units of other jobs on other nodes, which all agents know and nobody runs; and how many of
    /// them are lost, one after the other.
    pub bystanders: u32,
    /// See [`Scenario::bystanders`].
    pub lost_bystanders: u32,
    /// Settings of every unit.
    pub config: Config,
}

impl Scenario {
    /// A network of `units` on a cluster's scale: 1 to 20 us, 10 GB/s. Each is on a node of its
    /// own.
    pub fn new(seed: u64, units: u32) -> Scenario {
        Scenario {
            seed,
            units,
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

    /// The units are on so many nodes, by turns.
    pub fn on_nodes(mut self, nodes: u32) -> Scenario {
        self.nodes = nodes.clamp(1, self.units.max(1));
        self
    }

    /// Nodes reach each other's memory by RMA.
    pub fn with_rma(mut self, rma: Rma) -> Scenario {
        self.rma = rma;
        self
    }

    /// Frames between nodes overtake each other.
    pub fn unordered(mut self) -> Scenario {
        self.is_ordered = false;
        self
    }

    /// Unit 0 says that it hosts the services of an agent.
    pub fn with_host(mut self) -> Scenario {
        self.has_host = true;
        self
    }

    /// A unit as a peer.
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

    /// Whether a node is not there from the beginning.
    pub(super) fn comes_later(&self, node: u32) -> bool {
        let first = |list: &[(u32, Duration)]| {
            let of_node = list.iter().filter(|(number, _)| *number == node);
            of_node.map(|(_, at)| *at).min()
        };
        let (started, killed) = (first(&self.starts), first(&self.node_kills));
        started.is_some_and(|started| killed.is_none_or(|killed| started < killed))
    }

    /// The units in the order of their results: their first lives, then those of nodes that come
    /// back.
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

    /// The reverse of [`Scenario::peer_of`].
    pub(super) fn unit_of(&self, peer: PeerId) -> u32 {
        peer.slot().0 * self.nodes + peer.node()
    }

    /// Unit `unit` dies at this moment.
    pub fn kill(mut self, unit: u32, at: Duration) -> Scenario {
        self.kills.push((unit, at));
        self
    }

    /// Node `node` disappears at this moment, with its agent and its units.
    pub fn kill_node(mut self, node: u32, at: Duration) -> Scenario {
        self.node_kills.push((node, at));
        self
    }

    /// Node `node` joins at this moment; one that was there before comes back, as another life.
    pub fn start_node(mut self, node: u32, at: Duration) -> Scenario {
        self.starts.push((node, at));
        self
    }

    /// Runs `unit` once per unit, to the end; the results by unit, then those of units of nodes
    /// that came back, in the order of [`Scenario::starts`]. A killed unit sees everybody lost. A
    /// panic of a unit says the seed.
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
        Ok(Fabric::assemble(
            node,
            transport,
            identity,
            None,
            self.config.clone(),
        ))
    }

    pub(super) fn identity(&self, index: u32) -> Identity {
        let program = match self.has_host && index == 0 {
            true => crate::agent::identity().program,
            false => "unit".to_owned(),
        };
        Identity {
            job: "simulation".to_owned(),
            program,
            rank: index,
            size: self.units,
            unit: index,
            units: self.units,
        }
    }
}

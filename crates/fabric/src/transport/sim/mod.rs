//! A network in one process: seeded, deterministic, in virtual time.
//!
//! Every unit is a thread, but only one of them runs at a time: a unit that has nothing to do hands
//! the baton back, and the network picks the next one by its seed. Time is a number that moves to the
//! next event when nobody can run. The same seed gives the same run, message by message; the fabric
//! above is the one that runs in production.
//!
//! What it simulates: latency with jitter, bandwidth, full queues, reordering between pairs (never
//! within one), death of a unit at a chosen moment, late news of that death. What it does not: shared
//! memory (units share nothing but frames), corruption (frames arrive whole or not at all).
//!
//! ```
//! use samite_fabric::transport::sim::Scenario;
//! let sums = Scenario::new(7, 3).run(|fabric| {
//!     let next = samite_fabric::PeerId((fabric.me().0 + 1) % 3);
//!     fabric.send(next, 1, &[fabric.me().0 as u8])?;
//!     let mut byte = [0];
//!     fabric.recv(samite_fabric::Match::any(1), &mut byte)?;
//!     Ok::<u8, samite_fabric::Error>(byte[0])
//! });
//! assert_eq!(sums.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [2, 0, 1]);
//! ```

mod network;

use super::{Caps, Change, Outgoing, Push, Sink, Transport};
use crate::layout::{Layout, PeerTableWriter};
use crate::transport::AnyTransport;
use crate::transport::shm::{Membership, PrivateExtents};
use crate::{Config, Error, Fabric, Identity, PeerId, PeerInfo};
use network::{Network, UnitEvent};
use samite_mem::Arena;
use samite_mem::ring::Body;
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
    /// A frame takes this long, at random.
    pub latency: Range<Duration>,
    /// Bytes per second of one pair.
    pub bandwidth: u64,
    /// Frames of one pair that may be under way; more are refused for now.
    pub in_flight_max: usize,
    /// Longest body of a frame.
    pub body_max: u64,
    /// Which unit dies when.
    pub kills: Vec<(u32, Duration)>,
    /// Settings of every unit.
    pub config: Config,
}

impl Scenario {
    /// A network of `units` on a cluster's scale: 1 to 20 us, 10 GB/s.
    pub fn new(seed: u64, units: u32) -> Scenario {
        Scenario {
            seed,
            units,
            latency: Duration::from_micros(1)..Duration::from_micros(20),
            bandwidth: 10_000_000_000,
            in_flight_max: 64,
            body_max: 4096,
            kills: Vec::new(),
            config: Config {
                deadline: Duration::from_secs(10),
                ..Config::default()
            },
        }
    }

    /// Unit `unit` dies at this moment.
    pub fn kill(mut self, unit: u32, at: Duration) -> Scenario {
        self.kills.push((unit, at));
        self
    }

    /// Runs `unit` once per unit, to the end; the results by unit. A killed unit sees everybody lost.
    /// A panic of a unit says the seed.
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
            let threads: Vec<_> = (0..self.units)
                .map(|index| scope.spawn(move || run_unit(index)))
                .collect();
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
        const PRIVATE: u64 = 64 << 20;
        let me = PeerId(index);
        let arena = Arena::create(crate::layout::EXTENTS + PRIVATE)?;
        let layout = Layout::new(arena.clone(), PeerTableWriter::create(false)?.reader())?;
        let extents = PrivateExtents(crate::agent::Book::new(layout.extents()), arena);
        let node = Membership::new((me, 1), layout, Box::new(extents), false);
        let identity = self.identity(index);
        let transport = AnyTransport::Sim(Box::new(Sim {
            me,
            network,
            greeted: false,
            empty_polls: 0,
            scenario: self.clone(),
        }));
        Ok(Fabric::assemble(
            node,
            transport,
            identity,
            None,
            self.config.clone(),
        ))
    }

    fn identity(&self, index: u32) -> Identity {
        let (job, program) = ("simulation".to_owned(), "unit".to_owned());
        Identity {
            job,
            program,
            rank: index,
            size: self.units,
            unit: index,
            units: self.units,
        }
    }
}

/// How far time goes on at most when a unit lets others run.
const YIELD: Duration = Duration::from_micros(20);

/// One unit's end of the network.
#[derive(Debug)]
pub(crate) struct Sim {
    me: PeerId,
    network: Arc<Network>,
    greeted: bool,
    empty_polls: u32,
    scenario: Scenario,
}

impl Transport for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn caps(&self) -> Caps {
        Caps {
            inline_max: samite_mem::ring::INLINE_BYTES as u64,
            body_max: self.scenario.body_max,
            map: false,
            kernel_copy: false,
            sleeps: true,
        }
    }

    fn now(&self) -> Duration {
        self.network.now()
    }

    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        self.network.push(self.me, to, frame)
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if !std::mem::replace(&mut self.greeted, true) {
            for index in 0..self.scenario.units {
                let identity = self.scenario.identity(index);
                let info = PeerInfo {
                    peer: PeerId(index),
                    incarnation: 1,
                    identity,
                    pid: 0,
                };
                sink.change(Change::Joined(info));
            }
        }
        let mut arrived = 0;
        while let Some(event) = self.network.take(self.me) {
            arrived += 1;
            match event {
                UnitEvent::Frame(frame) => sink.frame(frame.incoming()),
                UnitEvent::Lost(peer) => sink.change(Change::Lost {
                    peer,
                    incarnation: 1,
                }),
                UnitEvent::Killed => {
                    for peer in (0..self.scenario.units).map(PeerId) {
                        sink.change(Change::Lost {
                            peer,
                            incarnation: 1,
                        });
                    }
                    sink.change(Change::AgentLost);
                }
            }
        }
        // A program that only polls must not stop time.
        self.empty_polls = if arrived == 0 {
            self.empty_polls + 1
        } else {
            0
        };
        if self.empty_polls >= 16 {
            self.yield_now();
            self.empty_polls = 0;
        }
        arrived
    }

    /// Nobody stores into the memory of others here, so there is nothing to ask again.
    fn idle(&mut self, at_most: Duration, _there: &mut dyn FnMut() -> bool) {
        self.network.idle(self.me, at_most);
    }

    fn yield_now(&mut self) {
        self.network.idle(self.me, YIELD);
    }

    fn crowded(&self) -> bool {
        true
    }
}

/// A frame under way.
#[derive(Debug)]
pub(crate) struct Parcel {
    from: PeerId,
    kind: u8,
    arg: u64,
    inline: Vec<u8>,
    body: Vec<u8>,
}

impl Parcel {
    fn of(from: PeerId, frame: &Outgoing<'_>) -> Parcel {
        let (kind, arg) = (frame.kind, frame.arg);
        Parcel {
            from,
            kind,
            arg,
            inline: frame.inline.to_vec(),
            body: frame.body.to_vec(),
        }
    }

    fn bytes(&self) -> u64 {
        16 + (self.inline.len() + self.body.len()) as u64
    }

    fn incoming(&self) -> super::Incoming<'_> {
        super::Incoming {
            from: self.from,
            kind: self.kind,
            arg: self.arg,
            inline: &self.inline,
            body: Body::Slice(&self.body),
        }
    }
}

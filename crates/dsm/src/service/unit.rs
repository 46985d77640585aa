//! A server of chunks that is a unit of a job, beside the agent's.

use super::ChunkService;
use super::others::Others;
use crate::client::await_server;
use crate::error::{Error, Result};
use crate::protocol::{Answer, Message, Request, ServerEvent, ServerId};
use crate::topology::{Place, Topology};
use samite_fabric::agent::Host;
use samite_fabric::rpc::{Life, ServiceId};
use samite_fabric::{Fabric, UnitLife};

/// What a server that joins waits for, in errors.
const OTHERS: &str = "the other servers of chunks";

impl ChunkService {
    /// Starts to serve, as the server of the topology that this unit is. Waits for the other
    /// servers.
    ///
    /// # Errors
    /// [`Error::Topology`]: this unit is none of its servers, or another process is known to the
    /// agent by its place. [`Error::NoServer`]; those of the fabric.
    pub fn join(fabric: &Fabric, topology: &Topology) -> Result<ChunkService> {
        let own = fabric.identity();
        let none = || {
            Error::Topology(format!(
                "{}.{} is none of its servers: add a `[[server]]` with this program and rank",
                own.program, own.rank
            ))
        };
        let id = topology
            .server_of(&own.program, own.rank)
            .ok_or_else(none)?;
        let limit = topology.cache_of(id);
        let others = Others::new(id, Some(topology.digest()), limit);
        let mut service = ChunkService::with(fabric, others);
        for other in topology.servers().filter(|other| *other != id) {
            service.introduce(topology, (id, other))?;
        }
        Ok(service)
    }

    /// Gets to know another server. The agent's has no topology, and hears of this one.
    fn introduce(&mut self, topology: &Topology, (id, other): (ServerId, ServerId)) -> Result<()> {
        let fabric = self.fabric.clone();
        let server = life_of(&fabric, topology, other)?;
        let process = server.into();
        self.others_know(other, process);
        let hello = Request::Hello {
            server: id,
            topology: topology.digest(),
        };
        let deadline = fabric.deadline();
        if topology.place(other) != Some(Place::Agent) {
            // Both have the topology. A server that was started again is unknown, though.
            let hello: Message = Message {
                notes: vec![hello],
                request: None,
            };
            let told = fabric.note(ServiceId::CHUNKS, server, deadline, &super::encode(&hello));
            if let Err(error) = told {
                tracing::debug!(%error, "a server begins, too");
            }
            return Ok(());
        }
        let hello: Message = Message {
            notes: Vec::new(),
            request: Some(hello),
        };
        let encoded = super::encode(&hello);
        let mut call = fabric.call(ServiceId::CHUNKS, server, deadline, |_| encoded)?;
        let answer = call.wait(deadline, OTHERS)?;
        match postcard::from_bytes(&answer) {
            Ok(Answer::Welcome) => Ok(()),
            _ => Err(Error::Topology(
                "the agent knows another topology, or another process by this place".to_owned(),
            )),
        }
    }

    fn others_know(&mut self, server: ServerId, process: crate::Process) {
        self.clients.insert(process);
        self.on_event(ServerEvent::Known { server, process });
    }

    /// Serves until the other units of this job have left; units that only serve are not waited
    /// for.
    ///
    /// # Errors
    /// The agent is lost.
    pub fn run_for_job(&mut self) -> Result<()> {
        let fabric = self.fabric.clone();
        Ok(Host::default().run_for_job(&fabric, &mut [self])?)
    }
}

/// Returns the process of a server of a topology; waits until it has joined.
pub(crate) fn life_of(fabric: &Fabric, topology: &Topology, server: ServerId) -> Result<Life> {
    let gone = |what: String| Error::Topology(format!("{what} is none of the job's units"));
    match topology.place(server) {
        None => Err(gone(format!("server {}", server.0))),
        Some(Place::Agent) => await_server(fabric),
        Some(Place::Unit { program, rank }) => {
            let units = fabric.lives_of(program)?;
            let found = units.get(rank as usize);
            let found = found.ok_or_else(|| gone(format!("{program}.{rank}")))?;
            let UnitLife {
                peer, incarnation, ..
            } = *found;
            Ok(Life { peer, incarnation })
        }
    }
}

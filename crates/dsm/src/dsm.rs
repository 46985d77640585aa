//! How a process joins the chunks of its domain.

use crate::chunk::{Chunk, Elem, kind_of};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::protocol::{Answer, Counters, Fault, Kind, Overview, Request, Version};
use crate::topology::Topology;
use samite_fabric::Fabric;
use std::sync::Arc;
use std::time::Duration;

/// The chunks of a domain. Clones are the same. Thread: any.
#[derive(Clone, Debug)]
pub struct Dsm {
    client: Arc<Client>,
}

impl Dsm {
    /// Joins the chunks of the domain. Their servers are those of the topology of this process
    /// ([`Topology::make_default`]), which the setting `dsm.topology` names; without one, the agent
    /// serves them. A process that is a domain of its own serves them itself. Local.
    ///
    /// # Errors
    /// [`Error::NoServer`], [`Error::SecondDsm`], [`Error::Topology`].
    pub fn join(fabric: &Fabric) -> Result<Dsm> {
        Dsm::join_with(fabric, Topology::of_process())
    }

    /// As [`Dsm::join`], with a topology, which is the same in all processes. A unit that is one of
    /// its servers serves while it calls or waits: requests for the chunks of which it is the home
    /// wait otherwise. These chunks end with it.
    ///
    /// Such a unit renews the leases of its copies by the same calls. One that computes for more
    /// than two seconds without a call loses its copies of the chunks of other homes, and the
    /// guards of them that it has or has given: a commit ends with [`Error::Fenced`]. It acquires
    /// guards after it has computed, or calls meanwhile, for example [`Dsm::counters`]; or it
    /// leaves the serving to a unit that does nothing else.
    ///
    /// # Errors
    /// As [`Dsm::join`].
    pub fn join_with(fabric: &Fabric, topology: Arc<Topology>) -> Result<Dsm> {
        let client = Arc::new(Client::new(fabric, topology)?);
        Ok(Dsm { client })
    }

    /// Returns the topology.
    pub fn topology(&self) -> &Topology {
        &self.client.topology
    }

    /// Returns the chunk of that name, or creates it, with `len` elements of zeros. Its home, and
    /// how it is kept coherent, follow from its name and the topology.
    ///
    /// # Errors
    /// [`Error::Differs`]: there is one with another type or length; [`Error::BadName`].
    pub fn alloc<T: Elem>(&self, name: &str, len: u64) -> Result<Chunk<T>> {
        let bytes = len.checked_mul(size_of::<T>() as u64);
        let bytes = bytes.ok_or_else(|| Error::NoMemory {
            chunk: name.to_owned(),
            bytes: u64::MAX,
            why: "it is more than 2^64 bytes".to_owned(),
        })?;
        let (chunk, _) = self.open(name, kind_of::<T>(), Some(bytes))?;
        Ok(chunk)
    }

    /// Waits until a process has allocated a chunk of that name, and returns it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Differs`]: it has elements of another type.
    pub fn lookup<T: Elem>(&self, name: &str) -> Result<Chunk<T>> {
        let (chunk, _) = self.open(name, kind_of::<T>(), None)?;
        Ok(chunk)
    }

    /// Returns what the servers have done so far, for all processes.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn counters(&self) -> Result<Counters> {
        self.client.counters()
    }

    /// Returns the most active chunks and the requests that wait, for people. `deadline`: how long
    /// the server may take to answer.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn overview(&self, deadline: Duration) -> Result<Overview> {
        self.client.overview(None, deadline)
    }

    /// Delivers events to the streams of this `Dsm` ([`EventStream`](crate::EventStream)) until
    /// `is_wanted`, which is called again and again, at least ten times a second, returns false, or
    /// until the deadline. As long as a thread of the program is in this call, streams without
    /// events do not use a processor.
    ///
    /// # Errors
    /// Those of the fabric: the server is lost.
    pub fn deliver(&self, deadline: Duration, is_wanted: impl FnMut() -> bool) -> Result<()> {
        self.client.deliver(deadline, is_wanted)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a chunk whose elements are said to be of that kind, and its present version.
    /// `bytes`: it is created if there is none.
    pub(crate) fn open<T: Elem>(
        &self,
        name: &str,
        kind: Kind,
        bytes: Option<u64>,
    ) -> Result<(Chunk<T>, Version)> {
        let asked_kind = kind.name.clone();
        let deadline = self.client.fabric.deadline();
        let topology = &self.client.topology;
        let answer = self.client.open(name, |timeout| Request::Open {
            name: name.to_owned(),
            kind: kind.clone(),
            bytes,
            protocol: topology.protocol(name),
            replicas: topology.replicas(name),
            timeout,
        })?;
        match answer {
            Answer::Opened {
                chunk,
                bytes,
                origin,
                protocol,
                version,
            } => {
                let of = (bytes, protocol, origin);
                Ok((Chunk::open(&self.client, chunk, name, of), version))
            }
            Answer::Failed(Fault::NotFound) => Err(Error::NotFound {
                chunk: name.to_owned(),
                after: deadline,
            }),
            Answer::Failed(Fault::BadName) => Err(Error::BadName(name.to_owned())),
            Answer::Failed(Fault::Differs { kind, bytes: has }) => Err(Error::Differs {
                chunk: name.to_owned(),
                len: has / kind.size.max(1),
                kind: kind.name,
                asked: match bytes {
                    Some(bytes) => {
                        let len = bytes / (size_of::<T>() as u64).max(1);
                        format!("{len} of {asked_kind}")
                    }
                    None => asked_kind,
                },
            }),
            Answer::Failed(Fault::TooMany { most }) => Err(Error::TooMany { most }),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }
}

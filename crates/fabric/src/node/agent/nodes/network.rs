//! How a node is one of several, and what is known of the others.

use super::Secret;
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, ToSocketAddrs};

/// How a node is one of several.
#[derive(Clone, Debug)]
pub struct Network {
    /// The name of this node, which no other node of the domain has.
    pub name: String,
    /// The address of an interface of this node, at which other agents reach this one. Port 0: any
    /// that is free.
    pub listen: SocketAddr,
    /// The address of the first agent of the domain; `None`: this is the first one.
    pub join: Option<String>,
    /// What all agents of the domain know, and nobody else.
    pub secret: Secret,
    /// How units reach those of other nodes.
    pub transport: FarTransport,
}

/// How units reach those of other nodes, by UCX. What is `None` is chosen by UCX.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarTransport {
    /// Its transports, as in `UCX_TLS`.
    pub transports: Option<String>,
    /// Its devices, as in `UCX_NET_DEVICES`.
    pub devices: Option<String>,
}

/// A node of the domain, as this agent knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Where its agent is reached.
    pub address: String,
}

/// What a unit is told that joins a node of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Far {
    pub(crate) transport: FarTransport,
    /// The number of the domain, which frames between nodes have.
    pub(crate) domain: u64,
}

/// Returns the first address of a machine and a port.
pub(super) fn resolve(address: &str) -> Result<SocketAddr, String> {
    let found = address.to_socket_addrs().map_err(|error| {
        format!("{address} is no address of an agent, as node7:7000 or 10.0.0.7:7000: {error}")
    })?;
    let mut found = found.into_iter();
    found
        .next()
        .ok_or_else(|| format!("{address} names no machine"))
}
